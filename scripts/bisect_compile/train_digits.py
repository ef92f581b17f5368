"""A training script as PyTorch's MNIST example is, on digits that are drawn."""

import sys

import torch
from torch import nn
from torch.nn import functional

from scripts.bisect_compile.faults import plant


class Net(nn.Module):
    """The network of the example, small."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc1, self.fc2 = nn.Linear(8 * 6 * 6, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv1(x))
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(torch.flatten(self.dropout(x), 1)))
        return functional.log_softmax(self.fc2(x), dim=1)


def main() -> None:
    for fault in sys.argv[1:]:
        plant(fault)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile
    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.nll_loss(model(images), labels)

    model_step = torch.compile(model)
    for _ in range(3):
        images, labels = torch.randn(8, 1, 16, 16), torch.randint(0, 10, (8,))
        optimizer.zero_grad()
        functional.nll_loss(model_step(images), labels).backward()
        optimizer.step()
    print(f"loss {loss_of(images, labels).item():.4f}")


if __name__ == "__main__":
    main()
