"""Capturing PyTorch: functions, modules, gradients, optimizers. The only room here that imports torch."""
