"""Small trainings of many kinds, which are honest, or have one planted jump.

Comes in: the name of a training, and a jump with the step at which it happens. Goes out: its steps, made one
after the other. Called by `scripts.watch.trial`. They take 1 to 4 ms a step, so that thousands can be made;
what they have of real ones is what moves gradients: warm-up, clipping, noise of small batches, two
optimizers, losses that fall to nothing, targets with heavy tails.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

# What happens at one step of a training; each is a fault that people have met.
JUMPS = (
    "a batch is NaN",
    "a batch is 1000 times too large",
    "labels are shuffled",
    "the learning rate is 100 times too large",
    "gradients are 30 times too large",
    "a layer is zeroed",
)
# In fewer steps the learning rate falls as it does in so many.
_LEAST_STEPS = 1500
_NAN, _LARGE, _GARBAGE, _RATE, _SCALED, _ZEROED = JUMPS


@dataclass(frozen=True)
class HonestTraining:
    """A model, its optimizer, its loss on a batch, and how gradients are clipped (None: not at all)."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    clip: float | None = None
    warm_up: int = 0

    def knows(self, jump: str) -> bool:
        """Return whether a jump can happen in it: whole numbers cannot be NaN or too large."""
        return jump not in (_NAN, _LARGE) or self.batch()[0].is_floating_point()

    def steps(self, count: int, jump: str = "", at: int = -1) -> Iterator[int]:
        """Make steps, and yield the number of each; the jump happens in step `at`."""
        rate = self.optimizer.param_groups[0]["lr"]
        for number in range(count):
            inputs, targets = self.batch()
            if number == at:
                inputs, targets = _planted(jump, inputs, targets, self.model)
            factor = 100.0 if number == at and jump == _RATE else 1.0
            warm = min(1.0, (number + 1) / (self.warm_up + 1))
            falling = 0.55 + 0.45 * math.cos(math.pi * number / max(count, _LEAST_STEPS))
            for group in self.optimizer.param_groups:
                group["lr"] = rate * factor * warm * falling
            self.optimizer.zero_grad()
            loss = self.loss(self.model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            if number == at and jump == _SCALED:
                for each in self.model.parameters():
                    if each.grad is not None:
                        each.grad *= 30
            if self.clip is not None:
                clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            yield number


def _planted(
    jump: str, inputs: torch.Tensor, targets: torch.Tensor, model: nn.Module
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch with a jump in it; a layer is zeroed in the model."""
    is_float = inputs.is_floating_point()
    if jump == _NAN and is_float:
        inputs = torch.full_like(inputs, math.nan)
    elif jump == _LARGE and is_float:
        inputs = inputs * 1000
    elif jump == _GARBAGE:
        targets = targets.flatten()[torch.randperm(targets.numel())].view_as(targets)
    elif jump == _ZEROED:
        with torch.no_grad():
            parameters = [each for each in model.parameters() if each.dim() > 1]
            parameters[len(parameters) // 2].zero_()
    return inputs, targets


class Blocks(nn.Module):
    """A causal transformer of two blocks on characters."""

    def __init__(self, words: int, width: int = 32, length: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next character at each place."""
        found: torch.Tensor = self.blocks(
            self.embed(tokens) + self.places, self.mask, is_causal=True
        )
        scores: torch.Tensor = self.head(found)
        return scores


class Recurrent(nn.Module):
    """An LSTM on characters."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.cells = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next character at each place."""
        scores: torch.Tensor = self.head(self.cells(self.embed(tokens))[0])
        return scores


# Text whose characters follow from those before: sums of two sequences of different periods.
def _text(length: int) -> torch.Tensor:
    places = torch.arange(length)
    return (places % 7 * 3 + places // 5 % 4 + (torch.rand(length) < 0.1)) % 20


def _of_text(words: int, length: int, rows: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    text = _text(20_000) % words

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.randint(0, len(text) - length - 1, (rows,))
        places = at[:, None] + torch.arange(length)
        return text[places], text[places + 1]

    return batch


def _of_images(rows: int, count: int = 600) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Noisy, shifted copies of ten patterns; every twentieth has a wrong label."""
    patterns = functional.interpolate(torch.randn(10, 1, 4, 4), size=12, mode="bilinear")
    labels = torch.randint(0, 10, (count,))
    images = patterns[labels] + 0.5 * torch.randn(count, 1, 12, 12)
    wrong = torch.rand(count) < 0.05
    labels = torch.where(wrong, torch.randint(0, 10, (count,)), labels)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.randint(0, count, (rows,))
        return images[at], labels[at]

    return batch


def _of_tails() -> tuple[torch.Tensor, torch.Tensor]:
    """A polynomial of the fourth degree at normal places, whose values have heavy tails."""
    x = torch.randn(32, 1)
    powers = torch.cat([x**n for n in range(1, 5)], 1)
    return powers, powers @ torch.tensor([[3.0], [-2.0], [1.0], [0.5]]) + 1


def _of_few() -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Forty fixed points with labels of chance, which a model learns by heart."""
    inputs, labels = torch.randn(40, 8), torch.randint(0, 2, (40,))

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.randint(0, 40, (8,))
        return inputs[at], labels[at]

    return batch


def _of_spectra() -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Images that a model is to give back."""
    images = _of_images(16)
    return lambda: (flat := images()[0].flatten(1), flat)


def _words(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def _transformer() -> HonestTraining:
    model = Blocks(20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    return HonestTraining(model, optimizer, _of_text(20, 24, 8), _words, clip=1.0, warm_up=100)


def _lstm() -> HonestTraining:
    model = Recurrent(20)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    return HonestTraining(model, optimizer, _of_text(20, 24, 8), _words, clip=0.25)


def _convolutions() -> HonestTraining:
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU()),
        *(nn.Dropout(0.2), nn.Flatten(), nn.Linear(256, 10)),
    )
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    return HonestTraining(model, optimizer, _of_images(16), functional.cross_entropy)


def _coder() -> HonestTraining:
    model = nn.Sequential(nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 144))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return HonestTraining(model, optimizer, _of_spectra(), functional.mse_loss)


def _polynomial() -> HonestTraining:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return HonestTraining(model, optimizer, _of_tails, functional.smooth_l1_loss)


def _by_heart() -> HonestTraining:
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return HonestTraining(model, optimizer, _of_few(), functional.cross_entropy)


class Adversaries:
    """A generator and a discriminator with an optimizer each, the second of which steps every time."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        self.judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self._first = torch.optim.Adam(self.judge.parameters(), 1e-3, betas=(0.5, 0.999))
        self._second = torch.optim.Adam(self.model.parameters(), 1e-3, betas=(0.5, 0.999))

    def knows(self, jump: str) -> bool:
        """Return whether a jump can happen in it: only the data and the discriminator have some."""
        return jump in (_NAN, _LARGE, _ZEROED)

    def steps(self, count: int, jump: str = "", at: int = -1) -> Iterator[int]:
        """Make steps, and yield the number of each; the jump happens in step `at`."""
        judged = functional.binary_cross_entropy_with_logits
        ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
        for number in range(count):
            angle = torch.rand(32, 1) * 2 * math.pi
            real = torch.cat([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(32, 2)
            if number == at:
                real, _ = _planted(jump, real, ones, self.judge)
            made = self.model(torch.randn(32, 8))
            self._first.zero_grad()
            loss = judged(self.judge(real), ones) + judged(self.judge(made.detach()), zeros)
            loss.backward()  # type: ignore[no-untyped-call]
            self._first.step()
            if number % 2 == 0:
                self._second.zero_grad()
                judged(self.judge(made), ones).backward()  # type: ignore[no-untyped-call]
                self._second.step()
            yield number


TRAININGS: dict[str, Callable[[], HonestTraining | Adversaries]] = {
    "a transformer, AdamW, warm-up, clipped": _transformer,
    "an LSTM, SGD, clipped": _lstm,
    "convolutions, Adadelta, dropout, wrong labels": _convolutions,
    "an autoencoder, Adam": _coder,
    "two adversaries, two optimizers": Adversaries,
    "a polynomial with heavy tails, SGD": _polynomial,
    "forty points learnt by heart, Adam": _by_heart,
}
