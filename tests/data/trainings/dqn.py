"""After PyTorch's tutorial of deep Q learning."""

# ruff: noqa

import torch
import torch.nn.functional as F
from torch import nn


GAMMA = 0.99


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2, self.layer3 = (
            nn.Linear(4, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 2),
        )

    def forward(self, x):
        x = F.relu(self.layer1(x))
        x = F.relu(self.layer2(x))
        return self.layer3(x)


def optimize_model(policy_net, optimizer, state, action, reward, next_state, done):
    state_action_values = policy_net(state).gather(1, action)
    next_state_values = policy_net(next_state).max(1).values
    next_state_values = next_state_values.detach()
    next_state_values = next_state_values * (1.0 - done)
    expected_state_action_values = (next_state_values * GAMMA) + reward
    loss = F.smooth_l1_loss(state_action_values, expected_state_action_values.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy_net.parameters(), 0.1)
    optimizer.step()


def main():
    torch.manual_seed(0)
    policy_net = DQN()
    optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
    state, next_state = torch.randn(16, 4), torch.randn(16, 4)
    action, reward = torch.randint(0, 2, (16, 1)), torch.ones(16)
    done = (torch.rand(16) < 0.3).float()
    for step in range(2):
        optimize_model(policy_net, optimizer, state, action, reward, next_state, done)
