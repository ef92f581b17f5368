"""Models like the examples of PyTorch and Hugging Face, small; functions return a model and its inputs."""

import math

import torch
from torch import nn
from torch.nn import functional


class SelfAttention(nn.Module):
    """Attention of several heads, written out, as BERT has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            each(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads) + mask
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class EncoderLayer(nn.Module):
    """A layer of BERT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.last_norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + self.attention(x, mask))
        hidden = functional.gelu(self.up(x))
        return self.last_norm(x + self.down(hidden))


class SmallBert(nn.Module):
    """BERT with a head for classes."""

    def __init__(self, layers: int = 2, width: int = 32, words: int = 100) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.layers = nn.ModuleList(EncoderLayer(width, 4) for _ in range(layers))
        self.pooler, self.classes = nn.Linear(width, width), nn.Linear(width, 5)

    def forward(self, ids: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
        mask = (1.0 - attention[:, None, None, :].float()) * -1e4
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, mask)
        return self.classes(torch.tanh(self.pooler(x[:, 0])))


class RootMeanSquare(nn.Module):
    """The norm of Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class DecoderLayer(nn.Module):
    """A layer of Llama: rotary positions, a causal mask, a gated unit."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.last_norm = RootMeanSquare(width), RootMeanSquare(width)
        self.qkv, self.out = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[1], parts[2]
        q, k = q * cos + rotated(q) * sin, k * cos + rotated(k) * sin
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        weights = scores.masked_fill(~causal, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        normed = self.last_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Return the halves of the last axis exchanged, one of them negated."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


class SmallLlama(nn.Module):
    """Llama."""

    def __init__(self, layers: int = 2, width: int = 32, words: int = 100) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(DecoderLayer(width, 4) for _ in range(layers))
        self.norm, self.head = RootMeanSquare(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1]).float()[:, None] * 10000 ** (
            -torch.arange(0, 8, 2).float() / 8
        )
        angles = torch.cat((places, places), dim=-1)
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.head(self.norm(x))


class ResidualBlock(nn.Module):
    """A basic block of ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norm, self.last_norm = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norm(self.first(x)))
        return functional.relu(x + self.last_norm(self.second(hidden)))


class ResidualNet(nn.Module):
    """ResNet with a head for classes."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.blocks = nn.Sequential(ResidualBlock(channels), ResidualBlock(channels))
        self.classes = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(x))), 2)
        x = self.blocks(x)
        return self.classes(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Unet(nn.Module):
    """A network whose way up gets what its way down had."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.down, self.low = (
            nn.Conv2d(3, channels, 3, padding=1),
            nn.Conv2d(channels, channels, 3, padding=1),
        )
        self.up = nn.Conv2d(2 * channels, 3, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = functional.silu(self.norm(self.down(x)))
        low = functional.silu(self.low(functional.avg_pool2d(high, 2)))
        return self.up(torch.cat((high, functional.interpolate(low, scale_factor=2.0)), dim=1))


class Autoencoder(nn.Module):
    """The variational autoencoder of PyTorch's examples, without its noise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mean, self.spread = nn.Linear(64, 40), nn.Linear(40, 8), nn.Linear(40, 8)
        self.second, self.last = nn.Linear(8, 40), nn.Linear(40, 64)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = functional.relu(self.first(x.view(-1, 64)))
        mean, spread = self.mean(hidden), self.spread(hidden)
        drawn = mean + noise * torch.exp(0.5 * spread)
        return torch.sigmoid(self.last(torch.tanh(self.second(drawn)))), mean, spread


def encoder() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    attention = torch.ones(3, 16, dtype=torch.int64)
    attention[1, 12:] = 0
    return SmallBert().eval().requires_grad_(False), (torch.randint(0, 100, (3, 16)), attention)


def decoder() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return SmallLlama().eval().requires_grad_(False), (torch.randint(0, 100, (2, 16)),)


def resnet() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return ResidualNet().eval().requires_grad_(False), (torch.randn(2, 3, 16, 16),)


def unet() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Unet().eval().requires_grad_(False), (torch.randn(2, 3, 16, 16),)


def autoencoder() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Autoencoder(), (torch.rand(4, 8, 8), torch.randn(4, 8))
