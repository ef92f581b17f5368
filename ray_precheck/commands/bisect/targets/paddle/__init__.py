"""The target Paddle Inference: its pass, switch or operator that makes a model's outputs wrong."""
