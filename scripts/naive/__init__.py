"""Kernels that are wrong at the default side of a switch: does `naive` name the switch?"""
