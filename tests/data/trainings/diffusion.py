"""After Hugging Face's annotated diffusion model."""

# ruff: noqa

import math

import torch
import torch.nn.functional as F
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.first, self.last = nn.Linear(16, 32), nn.Linear(24, 32), nn.Linear(32, 24)

    def forward(self, x, t):
        frequencies = torch.exp(torch.arange(8) * -(math.log(10000) / 7))
        embeddings = t[:, None] * frequencies[None, :]
        embeddings = torch.cat((embeddings.sin(), embeddings.cos()), dim=-1)
        return self.last(F.silu(self.first(x) + self.time(embeddings)))


def p_losses(model, x_start, t, noise, alphas_cumprod):
    sqrt_alphas_cumprod_t = alphas_cumprod.gather(-1, t)[:, None].sqrt()
    sqrt_one_minus_alphas_cumprod_t = (1.0 - alphas_cumprod.gather(-1, t)[:, None]).sqrt()
    x_noisy = sqrt_alphas_cumprod_t * x_start + sqrt_one_minus_alphas_cumprod_t * noise
    predicted_noise = model(x_noisy, t)
    return F.mse_loss(predicted_noise, noise)


def main():
    torch.manual_seed(0)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    alphas_cumprod = torch.cumprod(1.0 - torch.linspace(1e-4, 0.02, 200), dim=0)
    x_start, t = torch.randn(12, 24), torch.randint(0, 200, (12,))
    model(x_start, t)
    for step in range(2):
        optimizer.zero_grad()
        loss = p_losses(model, x_start, t, torch.randn_like(x_start), alphas_cumprod)
        loss.backward()
        optimizer.step()
