"""Tensors that go from one process to another: through shared memory, or the object store."""
