"""Which calls our package makes of torch_npu, MindSpore and acl, and whether their releases have them."""
