"""After examples/mnist and the BasicBlock of torchvision's ResNet."""

# ruff: noqa

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, planes):
        super().__init__()
        self.conv1 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out = out + x
        return F.relu(out)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.block = BasicBlock(8)
        self.fc1 = nn.Linear(8 * 25, 10)

    def forward(self, x):
        x = (x - 0.1307) / 0.3081
        x = self.conv1(x)
        x = F.max_pool2d(F.relu(x), 2)
        x = self.block(x)
        x = torch.flatten(x, 1)
        x = self.fc1(x)
        return x


def main():
    torch.manual_seed(0)
    model = Net()
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data, target = torch.rand(8, 1, 12, 12), torch.randint(0, 10, (8,))
    for step in range(2):
        optimizer.zero_grad()
        output = model(data)
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.step()
