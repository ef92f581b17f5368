"""ONNX Runtime: which optimizer, and which nodes of the model."""
