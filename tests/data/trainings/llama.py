"""After Hugging Face's modeling_llama, with the attention written out, and its causal loss."""

# ruff: noqa

import math

import torch
import torch.nn.functional as F
from torch import nn


HEADS, KV_HEADS, DIM, WIDTH, VOCABULARY, PAD = 4, 2, 8, 32, 64, 0


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


def repeat_kv(hidden_states, n_rep):
    batch, heads, length, dim = hidden_states.shape
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, heads, n_rep, length, dim)
    return hidden_states.reshape(batch, heads * n_rep, length, dim)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * DIM, bias=False)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * DIM, bias=False)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * DIM, WIDTH, bias=False)

    def forward(self, hidden_states, cos, sin, mask):
        batch, length, _ = hidden_states.shape
        query = self.q_proj(hidden_states).view(batch, length, HEADS, DIM).transpose(1, 2)
        key = self.k_proj(hidden_states).view(batch, length, KV_HEADS, DIM).transpose(1, 2)
        value = self.v_proj(hidden_states).view(batch, length, KV_HEADS, DIM).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        key = repeat_kv(key, HEADS // KV_HEADS)
        value = repeat_kv(value, HEADS // KV_HEADS)
        scores = torch.matmul(query, key.transpose(2, 3))
        scores = scores / math.sqrt(DIM)
        scores = scores + mask
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        output = torch.matmul(weights, value).transpose(1, 2).contiguous()
        return self.o_proj(output.reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up_proj = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), MLP()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(WIDTH), RMSNorm(WIDTH)

    def forward(self, hidden_states, cos, sin, mask):
        residual = hidden_states
        hidden_states = self.self_attn(self.input_layernorm(hidden_states), cos, sin, mask)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.mlp(self.post_attention_layernorm(hidden_states))
        hidden_states = residual + hidden_states
        return hidden_states


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([DecoderLayer(), DecoderLayer()])
        self.norm, self.lm_head = RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("inv_freq", 1.0 / (10000.0 ** (torch.arange(0, DIM, 2).float() / DIM)))

    def forward(self, input_ids, labels):
        hidden_states = self.embed_tokens(input_ids)
        length = input_ids.shape[1]
        position_ids = torch.arange(length).unsqueeze(0)
        freqs = position_ids[:, :, None].float() * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1)
        mask = torch.full((length, length), torch.finfo(torch.float32).min)
        mask = torch.triu(mask, diagonal=1)
        for layer in self.layers:
            hidden_states = layer(hidden_states, emb.cos(), emb.sin(), mask)
        logits = self.lm_head(self.norm(hidden_states))
        labels = labels.masked_fill(labels == PAD, -100)
        shift_logits = logits[..., :-1, :].contiguous()
        shift_labels = labels[..., 1:].contiguous()
        return F.cross_entropy(shift_logits.view(-1, VOCABULARY), shift_labels.view(-1))


def main():
    torch.manual_seed(0)
    model = Llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    input_ids = torch.randint(1, VOCABULARY, (2, 12))
    input_ids[0, -3:] = PAD
    accumulation_steps = 2
    for step in range(2):
        for micro_batch in input_ids.split(1):
            loss = model(micro_batch, labels=micro_batch)
            loss = loss / accumulation_steps
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
