"""Dumps in the formats of torch_npu.hooks: lines of JSON, arrays of numpy, and what overflowed.

Comes in: a model, and one of three hooks. Goes out: files. Called under the old names in
`ray_precheck.hooks`.
"""
