"""Programs that need PyTorch alone, in form as its examples have them, small and with random weights.

Each function makes what is needed and returns the training: a function that runs it once and returns every
tensor that must be the same with and without a capture (losses, parameters, outputs).
"""

import itertools
import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

Results = list[torch.Tensor]
Training = Callable[[], Results]
TORCH_PROGRAMS: dict[str, Callable[[], Training]] = {}


def torch_program(make: Callable[[], Training]) -> Callable[[], Training]:
    """Register a program."""
    TORCH_PROGRAMS[make.__name__] = make
    return make


def _kept(losses: Iterable[torch.Tensor], *modules: nn.Module) -> Results:
    kept = [loss.detach() for loss in losses]
    for module in modules:
        kept += [value.detach() for value in module.state_dict().values()]
    return [each.clone() for each in kept]


def _perceptron(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for one, two in itertools.pairwise(sizes):
        layers += [nn.Linear(one, two), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@torch_program
def float16_with_scaler() -> Training:
    """Autocast, a scaler, gradients that are unscaled and clipped before the step."""
    model = _perceptron(12, 24, 24, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = torch.randn(16, 12), torch.randint(0, 4, (16,))

    def train() -> Results:
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
        return _kept(losses, model)

    return train


@torch_program
def bfloat16_accumulated() -> Training:
    """Autocast in bfloat16, gradients of two batches, a schedule, weights that are averaged."""
    model = nn.Sequential(nn.Linear(10, 20), nn.LayerNorm(20), nn.GELU(), nn.Linear(20, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    x, y = torch.randn(4, 8, 10), torch.randn(4, 8, 1)

    def train() -> Results:
        losses = []
        for at in range(4):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(model(x[at]), y[at]) / 2
            loss.backward()
            losses.append(loss)
            if at % 2:
                nn.utils.clip_grad_value_(model.parameters(), 0.3)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                averaged.update_parameters(model)
        return _kept(losses, model, averaged)

    return train


@torch_program
def checkpointed_transformer() -> Training:
    """Blocks that are computed again in the backward pass, attention and a causal mask."""
    blocks = nn.ModuleList(
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True) for _ in range(2)
    )
    words, head = nn.Embedding(30, 16), nn.Linear(16, 30)
    model = nn.ModuleList([blocks, words, head])
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 30, (2, 9))
    mask = nn.Transformer.generate_square_subsequent_mask(8)

    def train() -> Results:
        h = words(tokens[:, :-1])
        for block in blocks:
            h = checkpoint(block, h, mask, use_reentrant=False)
        loss = F.cross_entropy(head(h).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return _kept([loss], model)

    return train


@torch_program
def dcgan() -> Training:
    """A generator and a discriminator, two optimizers, what is detached between them."""
    generator = nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4, 1, 0, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    critic = nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(8, 16, 4, 1, 0, bias=False),
        nn.BatchNorm2d(16),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(16, 1, 1),
        nn.Sigmoid(),
    )
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    real = torch.rand(4, 3, 8, 8) * 2 - 1

    def train() -> Results:
        critic.zero_grad()
        label = torch.full((4,), 1.0)
        right = F.binary_cross_entropy(critic(real).view(-1), label)
        right.backward()
        fake = generator(torch.randn(4, 8, 1, 1))
        wrong = F.binary_cross_entropy(critic(fake.detach()).view(-1), label.fill_(0.0))
        wrong.backward()
        of_critic.step()
        generator.zero_grad()
        fooled = F.binary_cross_entropy(critic(fake).view(-1), label.fill_(1.0))
        fooled.backward()
        of_generator.step()
        return _kept([right, wrong, fooled], generator, critic)

    return train


@torch_program
def unet_diffusion() -> Training:
    """A step of diffusion: noise at random times, a network that halves and doubles pictures."""

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Linear(8, 16)
            self.enter = nn.Conv2d(3, 16, 3, padding=1)
            self.down = nn.Conv2d(16, 16, 3, stride=2, padding=1)
            self.norm = nn.GroupNorm(4, 16)
            self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
            self.leave = nn.Conv2d(32, 3, 3, padding=1)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            rates = torch.exp(-math.log(100.0) * torch.arange(4) / 4)
            angles = t[:, None].float() * rates[None]
            h = (
                self.enter(x)
                + self.time(torch.cat([angles.sin(), angles.cos()], -1))[..., None, None]
            )
            low = F.silu(self.norm(self.down(h)))
            flat = low.flatten(2).transpose(1, 2)
            flat = flat + self.attend(flat, flat, flat, need_weights=False)[0]
            low = flat.transpose(1, 2).unflatten(2, low.shape[2:])
            up = F.interpolate(low, scale_factor=2, mode="nearest")
            return self.leave(torch.cat([h, up], dim=1))

    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0)
    clean = torch.randn(2, 3, 8, 8)

    def train() -> Results:
        t = torch.randint(0, 50, (2,))
        noise = torch.randn_like(clean)
        share = kept[t][:, None, None, None]
        noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
        loss = F.mse_loss(model(noisy, t), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return _kept([loss], model)

    return train


@torch_program
def vae() -> Training:
    """An autoencoder whose code is drawn, with a divergence beside the reconstruction."""
    encoder, decoder = nn.Linear(20, 12), _perceptron(6, 16, 20)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    x = torch.rand(8, 20)

    def train() -> Results:
        mean, logvar = encoder(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        again = torch.sigmoid(decoder(code))
        loss = F.binary_cross_entropy(again, x, reduction="sum")
        loss = loss - 0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
        loss.backward()
        optimizer.step()
        return _kept([loss], encoder, decoder)

    return train


@torch_program
def ppo() -> Training:
    """Advantages by a backward loop, the clipped ratio, a categorical policy."""
    policy, value = _perceptron(4, 16, 3), _perceptron(4, 16, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=3e-4)
    states, rewards = torch.randn(12, 4), torch.randn(12)

    def train() -> Results:
        with torch.no_grad():
            before = torch.distributions.Categorical(logits=policy(states))
            actions = before.sample()
            old, values = before.log_prob(actions), value(states).squeeze(-1)
            gained = torch.zeros(12)
            last = torch.zeros(())
            for t in reversed(range(12)):
                following = values[t + 1] if t < 11 else torch.zeros(())
                last = rewards[t] + 0.99 * following - values[t] + 0.99 * 0.95 * last
                gained[t] = last
            goals = gained + values
        losses = []
        for _ in range(2):
            now = torch.distributions.Categorical(logits=policy(states))
            ratio = (now.log_prob(actions) - old).exp()
            scaled = (gained - gained.mean()) / (gained.std() + 1e-8)
            clipped = torch.min(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled)
            missed = F.mse_loss(value(states).squeeze(-1), goals)
            loss = -clipped.mean() + 0.5 * missed - 0.01 * now.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
            losses.append(loss)
        return _kept(losses, policy, value)

    return train


@torch_program
def lstm_and_ctc() -> Training:
    """A language model of LSTM cells and layers, packed sequences, a CTC loss."""
    words, layer = nn.Embedding(20, 8), nn.LSTM(8, 12, num_layers=2, batch_first=True)
    cell, head = nn.LSTMCell(12, 12), nn.Linear(12, 20)
    model = nn.ModuleList([words, layer, cell, head])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, lengths = torch.randint(1, 20, (3, 10)), torch.tensor([10, 8, 6])
    spoken = torch.randint(1, 20, (3, 4))

    def train() -> Results:
        packed = nn.utils.rnn.pack_padded_sequence(words(tokens), lengths, batch_first=True)
        out, (hidden, _) = layer(packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        h, c = cell(hidden[-1])
        h, _ = cell(h, (h, c))
        scores = head(out + h[:, None]).log_softmax(-1)
        loss = F.ctc_loss(scores.transpose(0, 1), spoken, lengths, torch.tensor([4, 3, 2]))
        loss = loss + F.nll_loss(scores.flatten(0, 1), tokens.flatten(), ignore_index=0)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return _kept([loss], model)

    return train


@torch_program
def fourier_operator() -> Training:
    """Layers that multiply a few Fourier modes by complex weights."""
    mixing = nn.Parameter(torch.randn(4, 4, 5, dtype=torch.cfloat) * 0.2)
    enter, leave, local = nn.Conv1d(1, 4, 1), nn.Conv1d(4, 1, 1), nn.Conv1d(4, 4, 1)
    model = nn.ModuleList([enter, leave, local])
    optimizer = torch.optim.Adam([mixing, *model.parameters()], lr=1e-2)
    x, y = torch.randn(2, 1, 32), torch.randn(2, 1, 32)

    def train() -> Results:
        h = enter(x)
        spectrum = torch.fft.rfft(h)
        out = torch.zeros(2, 4, 17, dtype=torch.cfloat)
        out[:, :, :5] = torch.einsum("bix,iox->box", spectrum[:, :, :5], mixing)
        h = F.gelu(torch.fft.irfft(out, n=32) + local(h))
        energy = (spectrum.conj() * spectrum).real.mean() + spectrum.conj().imag.square().mean()
        loss = F.mse_loss(leave(h), y) + 1e-3 * energy
        loss.backward()
        optimizer.step()
        return [*_kept([loss], model), mixing.detach().clone()]

    return train


@torch_program
def graph_network() -> Training:
    """A graph network: products with a sparse matrix, and messages that are added by index."""
    edges = torch.randint(0, 10, (2, 40))
    one, two = nn.Linear(6, 8), nn.Linear(8, 3)
    model = nn.ModuleList([one, two])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    features, labels = torch.randn(10, 6), torch.randint(0, 3, (10,))

    def train() -> Results:
        adjacency = torch.sparse_coo_tensor(edges, torch.ones(40), (10, 10)).coalesce()
        degrees = torch.zeros(10).index_add_(0, edges[0], torch.ones(40)).clamp_(min=1)
        h = F.relu(torch.sparse.mm(adjacency, one(features)) / degrees[:, None])
        gathered = torch.zeros(10, 8).index_add(0, edges[0], h[edges[1]])
        best = torch.zeros(10, 8).scatter_reduce(
            0, edges[0][:, None].expand(-1, 8), h[edges[1]], "amax"
        )
        csr = adjacency.to_sparse_csr()
        h = two(gathered / degrees[:, None] + best + csr @ h.detach())
        loss = F.cross_entropy(h, labels)
        loss.backward()
        optimizer.step()
        return _kept([loss], model)

    return train


@torch_program
def ensemble_by_vmap() -> Training:
    """Gradients of several models at once by torch.func, and of each sample."""
    models = [_perceptron(5, 8, 2) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    skeleton = _perceptron(5, 8, 2).to("meta")
    x, y = torch.randn(6, 5), torch.randint(0, 2, (6,))

    def loss_of(
        weights: dict, states: dict, one: torch.Tensor, label: torch.Tensor
    ) -> torch.Tensor:
        return F.cross_entropy(
            torch.func.functional_call(skeleton, (weights, states), (one,)), label
        )

    def train() -> Results:
        with_models = torch.func.vmap(torch.func.grad_and_value(loss_of), (0, 0, None, None))
        grads, losses = with_models(parameters, buffers, x, y)
        first = {name: each[0].detach() for name, each in parameters.items()}
        one = torch.func.vmap(torch.func.grad(loss_of), (None, None, 0, 0))
        of_samples = one(first, {}, x[:, None], y[:, None])
        with torch.no_grad():
            for name, each in parameters.items():
                each.sub_(0.1 * grads[name])
        hessian = torch.func.hessian(lambda v: (v**3).sum())(x[0])
        kept = [*parameters.values(), *grads.values(), *of_samples.values(), losses, hessian]
        return [each.detach().clone() for each in kept]

    return train


@torch_program
def compiled() -> Training:
    """A model behind torch.compile (without a C++ compiler), trained for two steps."""
    model = _perceptron(6, 12, 3)
    fast = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))

    def train() -> Results:
        losses = []
        for _ in range(2):
            loss = F.cross_entropy(fast(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return _kept(losses, model)

    return train


@torch_program
def serving_with_cache() -> Training:
    """Generation of tokens under inference_mode, with a cache of keys that grows, changed in place."""
    words, qkv, out = nn.Embedding(25, 16), nn.Linear(16, 48), nn.Linear(16, 25)

    @torch.inference_mode()
    def train() -> Results:
        cache = torch.zeros(2, 1, 2, 12, 8)
        tokens = torch.tensor([[3]])
        logits = []
        for at in range(6):
            h = words(tokens[:, -1:]).mul_(1.1).add_(0.01)
            q, k, v = (each.view(1, 1, 2, 8).transpose(1, 2) for each in qkv(h).chunk(3, -1))
            cache[0, :, :, at : at + 1] = k
            cache[1, :, :, at : at + 1].copy_(v)
            keys, values = cache[:, :, :, : at + 1]
            mixed = F.scaled_dot_product_attention(q, keys, values)
            scores = out(mixed.transpose(1, 2).reshape(1, 1, 16)).squeeze(1)
            scores.div_(0.7)
            best = scores.topk(5).values[:, -1:]
            scores.masked_fill_(scores < best, float("-inf"))
            chosen = torch.multinomial(scores.softmax(-1), 1)
            tokens = torch.cat([tokens, chosen], dim=1)
            logits.append(scores.clone())
        return [*logits, tokens, cache]

    return train


@torch_program
def lora_by_hand() -> Training:
    """A frozen linear layer with two small matrices beside it, and an update of these alone."""
    frozen = nn.Linear(16, 16).requires_grad_(False)
    down = nn.Parameter(torch.randn(4, 16) * 0.1)
    up = nn.Parameter(torch.zeros(16, 4))
    optimizer = torch.optim.AdamW([down, up], lr=1e-2, foreach=True)
    x, y = torch.randn(6, 16), torch.randn(6, 16)

    def train() -> Results:
        losses = []
        for _ in range(2):
            h = frozen(x) + F.dropout(x, 0.1) @ down.T @ up.T * 2.0
            loss = F.smooth_l1_loss(h, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        with torch.no_grad():
            frozen.weight += up @ down * 2.0
        return [*_kept(losses, frozen), down.detach().clone(), up.detach().clone()]

    return train


@torch_program
def quantised() -> Training:
    """Fake quantisation in training, dynamic int8 layers, a product in fp8."""
    model = _perceptron(16, 16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(4, 16), torch.randn(4, 8)
    # Made before: its memory has no values at first.
    fast = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)

    def train() -> Results:
        weight = torch.fake_quantize_per_tensor_affine(model[0].weight, 0.02, 0, -128, 127)
        scales = model[2].weight.detach().abs().amax(1) / 127
        other = torch.fake_quantize_per_channel_affine(
            model[2].weight, scales, torch.zeros(8, dtype=torch.int32), 0, -128, 127
        )
        h = F.relu(F.linear(x, weight, model[0].bias))
        loss = F.mse_loss(F.linear(h, other, model[2].bias), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            q = torch.quantize_per_tensor(x, 0.05, 10, torch.quint8)
            again = q.dequantize()
            one = (x / x.abs().max() * 400).to(torch.float8_e4m3fn)
            two = model[0].weight.detach().to(torch.float8_e4m3fn)
            scale = torch.tensor(1.0)
            product = torch._scaled_mm(one, two.t(), scale, scale, out_dtype=torch.bfloat16)
        return [*_kept([loss], model), again, product, fast(x)]

    return train


@torch_program
def vision_transformer() -> Training:
    """Patches by a convolution, a token of the class, label smoothing, mixed samples."""
    patches, cls = nn.Conv2d(3, 16, 4, stride=4), nn.Parameter(torch.zeros(1, 1, 16))
    positions = nn.Parameter(torch.randn(1, 5, 16) * 0.02)
    block = nn.TransformerEncoderLayer(
        16, 4, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    head = nn.Linear(16, 5)
    model = nn.ModuleList([patches, block, head])
    optimizer = torch.optim.AdamW([cls, positions, *model.parameters()], weight_decay=0.05)
    pictures, labels = torch.rand(4, 3, 8, 8), torch.randint(0, 5, (4,))

    def train() -> Results:
        share = 0.3
        order = torch.randperm(4)
        mixed = share * pictures + (1 - share) * pictures[order]
        h = patches((mixed - 0.5) / 0.25).flatten(2).transpose(1, 2)
        h = block(torch.cat([cls.expand(4, -1, -1), h], dim=1) + positions)
        logits = head(h[:, 0])
        loss = share * F.cross_entropy(logits, labels, label_smoothing=0.1)
        loss = loss + (1 - share) * F.cross_entropy(logits, labels[order], label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return [*_kept([loss], model), cls.detach().clone(), positions.detach().clone()]

    return train


class BiasesWithoutGradient(nn.Module):
    """The biases before batch norm, and of keys before softmax: their gradients are rounding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.query, self.key, self.last = (nn.Linear(16, size) for size in (16, 16, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits `(N, 10)` of pictures `(N, 3, 16, 16)`."""
        rows = torch.relu(self.norm(self.convolution(x))).flatten(2).transpose(1, 2)[:, ::16]
        scores = torch.softmax(self.query(rows) @ self.key(rows).transpose(1, 2) / 4, -1)
        return self.last((scores @ rows).mean(1))


@torch_program
def biases_without_gradient() -> Training:
    """AdamW makes whole steps of the rounding that such biases have for gradients."""
    model = BiasesWithoutGradient()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = [(torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,))) for _ in range(3)]

    def train() -> Results:
        losses = []
        for x, y in batches:
            optimizer.zero_grad()
            losses.append(F.cross_entropy(model(x), y))
            losses[-1].backward()
            optimizer.step()
        return _kept(losses, model)

    return train
