"""After sentence-transformers: a BERT layer, mean pooling, and the contrastive loss of CLIP."""

# ruff: noqa

import math

import torch
import torch.nn.functional as F
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x, attention_mask):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(attention_mask[:, None, :] == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(50, 32), SelfAttention()
        self.norm, self.dense = nn.LayerNorm(32), nn.Linear(32, 32)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, input_ids, attention_mask):
        x = self.embedding(input_ids)
        x = self.norm(x + self.attention(x, attention_mask))
        x = self.dense(F.gelu(x))
        mask = attention_mask.unsqueeze(-1).float()
        pooled = (x * mask).sum(1) / mask.sum(1)
        return F.normalize(pooled, dim=-1)


def main():
    torch.manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    one, two = torch.randint(1, 50, (6, 10)), torch.randint(1, 50, (6, 10))
    attention_mask = (torch.arange(10)[None, :] < torch.tensor([10, 4, 7, 9, 3, 6])[:, None]).long()
    for step in range(2):
        optimizer.zero_grad()
        text, image = model(one, attention_mask), model(two, attention_mask)
        logits = text @ image.t()
        logits = logits * model.logit_scale.exp()
        labels = torch.arange(6)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        loss.backward()
        optimizer.step()
