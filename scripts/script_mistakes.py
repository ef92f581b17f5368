"""Thirty mistakes in scripts, not in kernels: does `locate` name the call, or the missing one, with its line?

    python -m scripts.script_mistakes [--names NAME ...] [--ways tensors statistics] [--captures FOLDER]

Each mistake is an edit of one of seven small trainings, which have the form of PyTorch's examples and of
Hugging Face's models. The training as it stands is the golden run, captured without oneDNN, so that
rounding differs, too; the edited one is the target. A mistake is named where the first row of `locate` has
a line that the edit changed, on either side, or the line that `Mistake.line` says where no operator stands in
an edited one. Each golden run is also searched beside a run of the same script, in which nothing may be
named.
"""

import argparse
import difflib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ray_precheck.capture import Capture
from scripts.locate_faults.looking.replaying import forget, remembered
from scripts.locate_faults.planting.twins import STATISTICS, twin_of
from scripts.measuring import rows_of_table

_HEAD = """\
import math

import torch
import torch.nn.functional as F
from torch import nn

"""
# After Hugging Face's modeling_llama, with the attention written out, and its causal loss.
_LLAMA = """
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
"""
# After examples/mnist and the BasicBlock of torchvision's ResNet.
_CNN = """
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
"""
# After examples/vae.
_VAE = """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 40), nn.Linear(40, 8), nn.Linear(40, 8)
        self.fc3, self.fc4 = nn.Linear(8, 40), nn.Linear(40, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def main():
    torch.manual_seed(0)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.rand(16, 1, 8, 8)
    for step in range(2):
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        optimizer.step()
"""
# After PyTorch's tutorial of deep Q learning.
_DQN = """
GAMMA = 0.99


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2, self.layer3 = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 2)

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
"""
# After PyTorch's tutorial of new autograd functions, and a memory-saving swish of EfficientNet.
_FUNCTION = """
class LegendrePolynomial3(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return 0.5 * (5 * input ** 3 - 3 * input)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return grad_output * 1.5 * (5 * input ** 2 - 1)


class MemoryEfficientSwish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i):
        ctx.save_for_backward(i)
        return i * torch.sigmoid(i)

    @staticmethod
    def backward(ctx, grad_output):
        (i,) = ctx.saved_tensors
        sigmoid_i = torch.sigmoid(i)
        return grad_output * (sigmoid_i * (1 + i * (1 - sigmoid_i)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, x):
        x = MemoryEfficientSwish.apply(self.fc1(x))
        x = LegendrePolynomial3.apply(torch.tanh(self.fc2(x)))
        return self.fc3(x)


def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 16), torch.randn(8, 1)
    for step in range(2):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).sum()
        loss.backward()
        optimizer.step()
"""
# After sentence-transformers: a BERT layer, mean pooling, and the contrastive loss of CLIP.
_ENCODER = """
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
"""
# After Hugging Face's annotated diffusion model.
_DIFFUSION = """
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
"""
PROGRAMS = {
    "llama": _LLAMA,
    "cnn": _CNN,
    "vae": _VAE,
    "dqn": _DQN,
    "function": _FUNCTION,
    "encoder": _ENCODER,
    "diffusion": _DIFFUSION,
}


@dataclass(frozen=True)
class Mistake:
    """An edit of a training: each of `edits` replaces a text that stands there once. `line` is a part of the
    line that is to be named where no operator stands in an edited line."""

    name: str
    program: str
    edits: tuple[tuple[str, str], ...]
    line: str = ""


def _mistake(name: str, program: str, old: str, new: str, line: str = "") -> Mistake:
    return Mistake(name, program, ((old, new),), line)


MISTAKES = (
    _mistake("RoPE without its sign", "llama", "torch.cat((-x2, x1)", "torch.cat((x2, x1)"),
    _mistake("RoPE subtracts", "llama", "(q * cos) + (rot", "(q * cos) - (rot"),
    _mistake("keys repeated in blocks", "llama",
        "    hidden_states = hidden_states[:, :, None, :, :].expand(batch, heads, n_rep, length, dim)\n"
        "    return hidden_states.reshape(batch, heads * n_rep, length, dim)",
        "    return hidden_states.repeat(1, n_rep, 1, 1)"),
    _mistake("attention without its scale", "llama", "        scores = scores / math.sqrt(DIM)\n", ""),
    _mistake("mask of the wrong side", "llama",
        "torch.triu(mask, diagonal=1)", "torch.tril(mask, diagonal=-1)"),
    _mistake("another eps", "llama", "eps=1e-6", "eps=1e-5", "variance + self.variance_epsilon"),
    _mistake("a lost residual", "llama",
        "        hidden_states = residual + hidden_states\n        residual", "        residual"),
    Mistake("labels not shifted", "llama",
        (("logits[..., :-1, :].contiguous()", "logits"), ("labels[..., 1:].contiguous()", "labels"))),
    Mistake("labels shifted the wrong way", "llama",
        (("logits[..., :-1, :]", "logits[..., 1:, :]"), ("labels[..., 1:]", "labels[..., :-1]"))),
    _mistake("gate and up swapped", "llama",
        "F.silu(self.gate_proj(x)) * self.up_proj(x)", "F.silu(self.up_proj(x)) * self.gate_proj(x)"),
    _mistake("heads without their transpose", "llama",
        "view(batch, length, HEADS, DIM).transpose(1, 2)", "view(batch, HEADS, length, DIM)"),
    _mistake("padding in the loss", "llama",
        "        labels = labels.masked_fill(labels == PAD, -100)\n", ""),
    _mistake("gradients accumulated without a mean", "llama",
        "            loss = loss / accumulation_steps\n", ""),
    _mistake("a double softmax", "cnn", "        return x\n", "        return F.softmax(x, dim=1)\n"),
    _mistake("brackets of the normalisation", "cnn", "(x - 0.1307) / 0.3081", "x - 0.1307 / 0.3081"),
    _mistake("gradients not set to zero", "cnn",
        "        optimizer.zero_grad()\n", "", "optimizer.step()"),
    _mistake("trained in eval mode", "cnn", "model.train()", "model.eval()", "self.bn1(self.conv1(x))"),
    _mistake("a variance for a deviation", "vae", "torch.exp(0.5 * logvar)", "torch.exp(logvar)"),
    _mistake("a mean for a sum", "vae", "torch.sum(1 + logvar", "torch.mean(1 + logvar"),
    _mistake("another reduction", "vae", 'reduction="sum"', 'reduction="mean"'),
    _mistake("a double sigmoid", "vae",
        "binary_cross_entropy(recon_x", "binary_cross_entropy_with_logits(recon_x"),
    _mistake("a lost detach", "dqn", "    next_state_values = next_state_values.detach()\n", ""),
    _mistake("ends of episodes not masked", "dqn",
        "    next_state_values = next_state_values * (1.0 - done)\n", ""),
    _mistake("gradients not clipped", "dqn",
        "    torch.nn.utils.clip_grad_norm_(policy_net.parameters(), 0.1)\n", ""),
    _mistake("a wrong Function.backward", "function",
        "(sigmoid_i * (1 + i * (1 - sigmoid_i)))", "(sigmoid_i * (1 - sigmoid_i))"),
    _mistake("a lost square in a Function.backward", "function", "input ** 2 - 1", "input - 1"),
    _mistake("a Function.backward without its gradient", "function",
        "return grad_output * 1.5 * (5", "return 1.5 * (5"),
    _mistake("padding mask inverted", "encoder", "[:, None, :] == 0", "[:, None, :] == 1"),
    _mistake("pooling over padding", "encoder", "(x * mask).sum(1) / mask.sum(1)", "x.mean(1)"),
    _mistake("a noise schedule without its root", "diffusion",
        "    sqrt_alphas_cumprod_t = alphas_cumprod.gather(-1, t)[:, None].sqrt()",
        "    sqrt_alphas_cumprod_t = alphas_cumprod.gather(-1, t)[:, None]"),
)  # fmt: skip
TENSORS = "tensors"


def sources_of(mistake: Mistake) -> tuple[str, str]:
    """Return the edited training and the golden one."""
    golden = target = _HEAD + PROGRAMS[mistake.program]
    for old, new in mistake.edits:
        assert target.count(old) == 1, (
            f"{mistake.name}: {old!r} stands there {target.count(old)} times"
        )
        target = target.replace(old, new)
    return target, golden


def expected_lines(mistake: Mistake) -> tuple[set[int], set[int]]:
    """Return the numbers of the lines that may be named, of the target and of the golden run."""
    target, golden = (text.splitlines() for text in sources_of(mistake))
    if mistake.line:
        ours, theirs = (
            {number for number, line in enumerate(side, 1) if mistake.line in line}
            for side in (target, golden)
        )
        return ours, theirs
    found: tuple[set[int], set[int]] = set(), set()
    for kind, begin, end, first, last in difflib.SequenceMatcher(
        None, target, golden, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            found[0].update(range(begin + 1, end + 1))
            found[1].update(range(first + 1, last + 1))
    return found


def capture_training(folder: Path, source: str, *, golden: bool) -> Path:
    """Write a training into a folder, run it there, and return its capture of both steps with tensors."""
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(source, encoding="utf-8")
    names: dict[str, object] = {"__name__": "train"}
    exec(compile(source, str(script), "exec"), names)
    was_enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = not golden  # type: ignore[assignment]
    try:
        with Capture(folder / "dump", framework="pytorch", task="tensor", level="mix", steps="0-1"):
            names["main"]()  # type: ignore[operator]
    finally:
        torch.backends.mkldnn.enabled = was_enabled  # type: ignore[assignment]
    return folder / "dump"


def _statistics_of(dump: Path, scratch: Path) -> Path:
    twins = scratch / dump.parent.name
    for each in sorted(dump.rglob("dump.json")):
        twin_of(each, STATISTICS, twins)
    return twins


def placed_rows(target: Path, golden: Path) -> list[dict[str, str]]:
    """Return the rows of `locate` that have a place."""
    # Not at the top: captures are made without it.
    from ray_precheck.commands.locate.run import locate_captures

    out = Path(tempfile.mkdtemp(prefix="mistakes_"))
    try:
        with remembered():
            report = locate_captures(target, golden, out=out, devices=(1,))
        rows = rows_of_table(report.table.parent, report.table.name)
        return [row for row in rows if row["Place"]]
    finally:
        shutil.rmtree(out)


def has_the_line(mistake: Mistake, rows: Sequence[dict[str, str]]) -> bool:
    """Return whether the first row has a line of the mistake."""
    if not rows:
        return False
    path, _, rest = rows[0]["Source"].partition(", in ")[0].rpartition(":")
    ours, theirs = expected_lines(mistake)
    lines = theirs if Path(path).parent.name.startswith("golden") else ours
    return rest.isdigit() and int(rest) in lines


def searched(
    mistakes: Sequence[Mistake], ways: Sequence[str], folder: Path
) -> Iterator[tuple[str, str, list[dict[str, str]], bool]]:
    """Yield the name of each mistake, the way, its rows, and whether it is named; then the honest pairs."""
    programs = [name for name in PROGRAMS if any(each.program == name for each in mistakes)]
    for program in programs:
        forget()
        source = _HEAD + PROGRAMS[program]
        golden = capture_training(folder / f"golden-{program}", source, golden=True)
        pairs = [
            (each, capture_training(folder / each.name.replace(" ", "-"), sources_of(each)[0], golden=False))
            for each in mistakes
            if each.program == program
        ]  # fmt: skip
        honest = capture_training(folder / f"honest-{program}", source, golden=False)
        for way in ways:
            for each, target in [*pairs, (None, honest)]:
                if way == TENSORS:
                    rows = placed_rows(target, golden)
                else:
                    rows = placed_rows(
                        *(_statistics_of(side, folder / way) for side in (target, golden))
                    )
                if each is None:
                    yield f"honest {program}", way, rows, not rows
                else:
                    yield each.name, way, rows, has_the_line(each, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Capture, search, and print what the first row says of each mistake."""
    parser = argparse.ArgumentParser(description="mistakes in scripts: are they named?")
    parser.add_argument("--names", nargs="+", help="words of the names of mistakes; all by default")
    parser.add_argument("--ways", nargs="+", default=(TENSORS, STATISTICS))
    parser.add_argument("--captures", type=Path, help="an empty folder, in which the captures stay")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    chosen = [
        each for each in MISTAKES if not options.names or any(word in each.name for word in options.names)
    ]  # fmt: skip
    folder = options.captures or Path(tempfile.mkdtemp(prefix="script_mistakes_"))
    counts = dict.fromkeys(options.ways, 0)
    for name, way, rows, is_right in searched(chosen, options.ways, folder):
        first = rows[0] if rows else {}
        counts[way] += is_right and not name.startswith("honest ")
        print(f"{'named' if is_right else 'MISSED'} | {name} | {way} | {len(rows)}", *(
            first.get(column, "") for column in ("API Name", "Direction", "Verdict", "Source", "Message")
        ), sep=" | ", flush=True)  # fmt: skip
    for way, count in counts.items():
        print(f"{way}: {count} of {len(chosen)}")
    if options.captures is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
