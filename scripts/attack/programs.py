"""Small programs as users write them, each of which meets some conditions that a wrong kernel needs.

Comes in: the dtype of the floats. Goes out: a function that runs forward, backward and update once; all that
it needs is made before, so that a capture has the step alone.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

Step = Callable[[], object]
Program = Callable[[torch.dtype], Step]
_BATCH, _LENGTH, _HEADS, _WIDTH, _WORDS = 2, 12, 4, 32, 40


def attention(dtype: torch.dtype) -> Step:
    """Heads that are transposed, keys shared by expansion, left padding, causal masks."""
    x = torch.randn(_BATCH, _LENGTH, _WIDTH, dtype=dtype, requires_grad=True)
    to_qkv = torch.nn.Linear(_WIDTH, 3 * _WIDTH, dtype=dtype)
    padding = torch.ones(_BATCH, 1, _LENGTH, _LENGTH).tril().bool()
    padding[0, :, :, :3] = False
    additive = torch.zeros(padding.shape, dtype=dtype).masked_fill(~padding, torch.finfo(dtype).min)

    def heads(of: torch.Tensor) -> torch.Tensor:
        return of.view(_BATCH, _LENGTH, _HEADS, -1).transpose(1, 2)

    def step() -> None:
        q, k, v = map(heads, to_qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.transpose(-2, -1) * 0.3
        probabilities = (scores + additive).softmax(dim=-1)
        hard = torch.masked_fill(scores, (~padding).expand(-1, _HEADS, -1, -1), float("-inf"))
        filled = torch.softmax(hard, -1).nan_to_num(0)
        y = y + filled @ v
        masked = F.scaled_dot_product_attention(q, k, v, attn_mask=padding)
        shared = k[:, :1].expand(-1, _HEADS, -1, -1).reshape(_BATCH * _HEADS, _LENGTH, -1)
        y = y + masked + shared.view_as(y)
        context = probabilities @ v
        out = y.transpose(1, 2).reshape(_BATCH, _LENGTH, _WIDTH)
        out = out + context.transpose(1, 2).reshape(_BATCH, _LENGTH, _WIDTH)
        also = context.permute(0, 2, 1, 3).contiguous().view(_BATCH, _LENGTH, _WIDTH)
        longer = torch.cat([k[:, :, :4].contiguous(), k], dim=2)
        (torch.cat([out, also], dim=-1).sum() + longer.square().sum()).backward()

    return step


def pictures(dtype: torch.dtype) -> Step:
    """A convolutional network in channels_last, with running statistics and inputs that are not centred."""
    last = torch.channels_last
    images = torch.randn(2, 8, 10, 10, dtype=dtype).add_(2).to(memory_format=last)
    conv = torch.nn.Conv2d(8, 12, 3, padding=1, dtype=dtype).to(memory_format=last)
    norm = torch.nn.BatchNorm2d(12, dtype=dtype)
    instance = torch.nn.InstanceNorm2d(12, affine=True, track_running_stats=True, dtype=dtype)
    groups = torch.nn.GroupNorm(3, 12, dtype=dtype)
    frozen = torch.nn.BatchNorm2d(8, dtype=dtype)
    lifted = (torch.randn(4, 8, 5, 5) + 40 * torch.arange(1, 9).view(1, 8, 1, 1)).to(dtype)

    def step() -> None:
        x = F.relu(norm(conv(images)))
        x = F.silu(groups(x)) + x
        x = F.max_pool2d(x, 2) + F.avg_pool2d(x, 2)
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        x = F.pad(x, (1, 1, 1, 1))
        pooled = F.adaptive_avg_pool2d(x, 2).flatten(1)
        shuffled = F.pixel_shuffle(x, 2)
        pooled = pooled + instance(x).mean()
        loss = pooled.square().mean() + shuffled.mean() + frozen(lifted).square().mean()
        loss.backward()

    return step


def language(dtype: torch.dtype) -> Step:
    """Tokens that occur often, logits with classes in the middle, ignored labels, a recurrent layer."""
    words = torch.nn.Embedding(_WORDS, _WIDTH, dtype=dtype)
    bags = torch.nn.EmbeddingBag(_WORDS, 8, mode="sum", dtype=dtype)
    bounded = torch.nn.Embedding(_WORDS, 8, max_norm=1.0, dtype=dtype)
    with torch.no_grad():
        bounded.weight.mul_(4)
    norm = torch.nn.LayerNorm(_WIDTH, dtype=dtype)
    tokens = torch.randint(0, 6, (_BATCH, _LENGTH))
    labels = torch.randint(0, _WORDS, (_BATCH, _LENGTH))
    labels[:, :4] = -100

    def step() -> None:
        h = norm(words(tokens))
        by_time = words(tokens.t())
        logits = F.linear(h, words.weight)
        loss = F.cross_entropy(logits.transpose(1, 2), labels)
        loss = loss + by_time.transpose(0, 1).mul(h).mean() + bags(tokens).sum()
        loss = loss + bounded(tokens).sum()
        loss = loss + F.nll_loss(F.log_softmax(logits, -1).permute(0, 2, 1), labels)
        loss.backward()

    return step


def gated(dtype: torch.dtype) -> Step:
    """Parts of one tensor: chunks, halves that are rotated, shifted differences, every second element."""
    x = torch.randn(_BATCH, _LENGTH, _WIDTH, dtype=dtype, requires_grad=True)
    up = torch.nn.Linear(_WIDTH, 2 * _WIDTH, bias=False, dtype=dtype)
    steps = torch.randn(_LENGTH + 1, 16, dtype=dtype)
    signal = torch.randn(_BATCH, 64, dtype=dtype)

    def step() -> None:
        gate, value = up(x).chunk(2, dim=-1)
        hidden = F.silu(gate) * value
        one, two = hidden[..., : _WIDTH // 2], hidden[..., _WIDTH // 2 :]
        rotated = torch.cat((-two, one), dim=-1)
        even, odd = rotated[..., ::2], rotated[..., 1::2]
        swapped = torch.stack((torch.sin(even), torch.tanh(odd)), dim=-1).flatten(-2)
        rows = steps[1:] - steps[:-1]
        decimated = torch.exp(signal[:, ::4])
        last = torch.sigmoid(steps[-4:])
        by_feature = F.gelu(swapped.transpose(1, 2)).mean()
        over_time = torch.cumsum(x.transpose(1, 2), dim=-1).mean()
        softened = torch.softmax(x.transpose(1, 2), dim=1).square().sum()
        normed = F.layer_norm(hidden.transpose(1, 2), (_LENGTH,)).square().mean()
        total = rows.sum() + decimated.sum() + last.sum()
        mixed = hidden + x.transpose(1, 2).flip(1).transpose(1, 2)
        (by_feature + over_time + softened + normed + mixed.mean() + total).backward()

    return step


def gradients(dtype: torch.dtype) -> Step:
    """Sums whose gradient is one number, expanded; losses of transposed results."""
    x = torch.randn(3, 5, 24, dtype=dtype, requires_grad=True)
    weight = torch.randn(3, 5, 24, dtype=dtype)
    norm = torch.nn.LayerNorm(24, dtype=dtype)
    conv = torch.nn.Conv1d(5, 6, 3, dtype=dtype)

    def step() -> None:
        F.gelu(x).sum().backward()
        norm(x).sum().backward()
        torch.softmax(x, -1).sum(0).mul(weight[0]).sum().backward()
        F.silu(x).transpose(1, 2).contiguous().pow(2).sum().backward()
        torch.tanh(x).sum(dim=1).pow(2).sum().backward()
        conv(x).sum().backward()
        F.log_softmax(x, -1).sum().backward()

    return step


def graph(dtype: torch.dtype) -> Step:
    """Messages along edges: many edges end at one node."""
    nodes, edges, width = 6, 30, 9
    features = torch.randn(nodes, width, dtype=dtype, requires_grad=True)
    sources = torch.randint(0, nodes, (edges,))
    targets = torch.randint(0, 3, (edges,))
    table = torch.zeros(nodes, width, dtype=dtype)

    def step() -> None:
        messages = features[sources]
        wide = targets[:, None].expand(-1, width)
        summed = torch.zeros(nodes, width, dtype=dtype).index_add(0, targets, messages)
        scattered = torch.zeros(nodes, width, dtype=dtype).scatter_add(0, wide, messages)
        largest = torch.zeros(nodes, width, dtype=dtype).scatter_reduce(0, wide, messages, "amax")
        degrees = torch.bincount(targets, minlength=nodes)
        gathered = torch.gather(features, 0, wide)
        chosen = features.index_select(0, targets)
        table.index_put_((targets,), messages.detach(), accumulate=True)
        rows = torch.zeros(nodes, width, dtype=dtype)
        rows.index_add_(0, targets, messages.detach())
        loss = (
            (summed + scattered + largest).square().mean()
            + gathered.mean()
            + chosen.square().mean()
        )
        (loss + rows.mean() + degrees.to(dtype).mean()).backward()

    return step


def updates(dtype: torch.dtype) -> Step:
    """Gradients that are clipped, three optimizers, an average of weights."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Linear(7, 3)).to(dtype)
    average = [torch.zeros_like(each) for each in model.parameters()]
    optimizers = [
        torch.optim.AdamW(model.parameters(), foreach=False, lr=1e-2),
        torch.optim.Adam(model.parameters(), fused=True, lr=1e-2),
        torch.optim.SGD(model.parameters(), momentum=0.9, foreach=True, lr=1e-2),
    ]
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    for each in optimizers:
        each.step()
    x = torch.randn(4, 6, dtype=dtype)

    def step() -> None:
        model(x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with torch.no_grad():
            torch._foreach_lerp_(average, list(model.parameters()), 0.1)
        for each in optimizers:
            each.step()

    return step


def serving(dtype: torch.dtype) -> Step:
    """A cache of keys that is written in place, outputs that are given, numbers as tensors."""
    cache = torch.zeros(_BATCH, _HEADS, 16, 8, dtype=dtype)
    key = torch.randn(_BATCH, _LENGTH, _HEADS, 8, dtype=dtype)
    state = torch.randn(_BATCH, 20, dtype=dtype)
    logits = torch.randn(_BATCH, 33, dtype=dtype)
    values, indices = torch.empty(_BATCH, dtype=dtype), torch.empty(_BATCH, dtype=torch.int64)
    place = torch.empty(_BATCH, 20, dtype=dtype)
    scale = torch.tensor(0.37, dtype=dtype)
    square = torch.randn(9, 9, dtype=dtype)

    @torch.no_grad()
    def step() -> None:
        cache[:, :, :_LENGTH].copy_(key.transpose(1, 2))
        cache[:, :, 13] = key[:, 0]
        buffer = torch.empty(9, 9, dtype=dtype)
        buffer.copy_(square.t())
        torch.clone(square.t())
        square.t().to(torch.float64)
        torch.add(state, state, out=place)
        torch.max(logits, 1, out=(values, indices))
        torch.mul(state, scale)
        torch.div(square, torch.tensor(3.0, dtype=dtype))
        square.mul_(square)
        torch.mul(state, state)
        torch.mm(square, square.t())
        torch.where(logits > 0, logits, torch.zeros((), dtype=dtype))
        torch.triu(square.t())
        torch.roll(key.transpose(1, 2), 1, dims=2)
        torch.sort(logits, dim=-1)
        cache.index_copy_(2, torch.tensor([15, 3]), key[:, :2].transpose(1, 2))

    return step


def shapes(dtype: torch.dtype) -> Step:
    """Odd lengths, dimensions of one, arguments that both broadcast."""
    odd = torch.randn(3, 37, dtype=dtype, requires_grad=True)
    norm = torch.nn.LayerNorm(37, dtype=dtype)
    column = torch.randn(7, 1, dtype=dtype)
    row = torch.randn(1, 5, dtype=dtype)
    single = torch.randn(4, 1, 16, dtype=dtype, requires_grad=True)
    weights = torch.nn.Linear(37, 19, dtype=dtype)

    def step() -> None:
        h = F.gelu(norm(odd))
        out = weights(h).softmax(-1).sum(0)
        table = torch.sub(column, row).abs() + torch.maximum(column, row)
        one = F.softmax(single.transpose(1, 2), dim=-1).sum() + single.mean(1).square().sum()
        (out.square().sum() + odd.cumsum(-1).mean() + one + table.sum()).backward()

    return step


def choices(dtype: torch.dtype) -> Step:
    """Values that occur often, rows of zeros, channels far from zero."""
    levels = torch.randint(0, 4, (5, 12)).to(dtype).requires_grad_()
    vectors = torch.randn(6, 10, dtype=dtype)
    vectors[2:4] = 0
    vectors.requires_grad_()
    lifted = (torch.randn(6, 16) + 50).to(dtype).requires_grad_()
    norm = torch.nn.LayerNorm(16, dtype=dtype)

    def step() -> None:
        top = torch.topk(levels, 3, dim=-1).values
        order = torch.sort(levels, dim=-1, stable=True)
        best = torch.amax(levels, dim=-1)
        ranked = torch.argsort(levels.detach(), dim=-1, stable=True)
        norms = torch.linalg.vector_norm(vectors, dim=-1)
        near = F.cosine_similarity(vectors[:3], vectors[3:], dim=-1)
        unit = F.normalize(vectors, dim=-1)
        centred = F.layer_norm(vectors, (10,))
        spread = torch.var(lifted, dim=-1) + lifted.std(dim=-1)
        loss = top.sum() + order.values.mul(torch.arange(12)).sum() + best.square().sum()
        loss = loss + norms.sum() + near.sum() + unit.square().sum() + centred.sum()
        (loss + spread.sum() + norm(lifted).square().mean() + ranked[0, 0].to(dtype)).backward()

    return step


def decisions(dtype: torch.dtype) -> Step:
    """Comparisons, counts, searches, roundings, casts and copies: functions that have one right answer."""
    levels = torch.randint(-3, 4, (24, 40)).to(dtype)
    others = torch.randint(-3, 4, (24, 40)).to(dtype)
    values = torch.randn(24, 40, dtype=dtype) * 3
    bounds = torch.arange(-3, 4).to(dtype)
    whole = torch.randint(-9, 10, (24, 40))
    rows, column = torch.randint(0, 24, (30,)), torch.randint(0, 40, (24, 6))
    flags = torch.rand(24, 40) > 0.4
    table = torch.randn(24, 16, dtype=dtype)
    ones = (torch.rand(24, 40) > 0.3).to(dtype)
    wide = torch.randn(24, 40)
    narrow = torch.bfloat16 if dtype is torch.float32 else dtype

    @torch.no_grad()
    def step() -> None:
        for compare in (torch.eq, torch.ne, torch.gt, torch.ge, torch.lt, torch.le):
            compare(levels, others)
        ones.bool()
        torch.logical_not(ones)
        torch.logical_and(flags, levels)
        torch.count_nonzero(levels, dim=1)
        torch.searchsorted(bounds, levels)
        torch.bucketize(levels, bounds)
        torch.nonzero(levels)
        torch.isin(levels, bounds[:3])
        torch.argmax(levels, dim=1)
        values.int()
        for rounding in (torch.round, torch.floor, torch.ceil, torch.trunc, torch.sign, torch.abs):
            rounding(values)
        wide.to(narrow)
        values.double()
        values.clone()
        torch.clamp(values, -1.0, 1.0)
        torch.where(flags, values, levels)
        torch.maximum(values, levels)
        torch.max(values, 1)
        torch.sort(values, -1)
        torch.topk(values, 3, -1)
        torch.gather(values, 1, column)
        torch.index_select(values, 0, rows)
        torch.masked_select(values, flags)
        torch.masked_fill(values, flags, 0.5)
        torch.cat([values, levels])
        torch.stack([values, levels])
        torch.flip(values, [0])
        F.pad(values, (1, 2))
        F.embedding(rows, table)
        F.relu(values)
        torch.add(whole, whole.flip(0))
        torch.sum(whole, 1)
        torch.bitwise_and(whole, whole.flip(1))
        torch.bincount(rows)

    return step


def rounded(dtype: torch.dtype) -> Step:
    """Layers whose results have some thousand elements, so that rounding can be told from a small bias."""
    made = lambda *shape: torch.randn(shape).to(dtype).requires_grad_()  # noqa: E731
    x, y, flat = made(48, 96), made(48, 96), made(48, 96)
    small = (0.05 * torch.randn(48, 96)).to(dtype).requires_grad_()
    weight, bias, gain = made(64, 96), made(64), made(96)
    images, filters = made(2, 8, 16, 16), made(12, 8, 3, 3)
    q, k, v = made(2, 4, 24, 16), made(2, 4, 24, 16), made(2, 4, 24, 16)
    wide = torch.randn(48, 96)

    def step() -> None:
        wide.to(dtype)
        results = [
            torch.add(x, y),
            torch.sub(x, y),
            torch.mul(x, y),
            torch.div(x, y),
            torch.matmul(x, weight.t()),
            F.linear(x, weight, bias),
            torch.bmm(q[0], k[0].transpose(1, 2)),
            F.conv2d(images, filters),
            F.gelu(x),
            F.silu(x),
            F.layer_norm(small, (96,), gain),
            F.group_norm(0.05 * images, 4),
            F.rms_norm(small, (96,), gain, 1e-5),
            F.batch_norm(images, None, None, training=True),
            torch.softmax(flat, -1),
            torch.exp(x),
            torch.tanh(x),
            torch.sigmoid(x),
            F.avg_pool2d(images, 2),
            F.scaled_dot_product_attention(q, k, v),
        ]
        torch.autograd.backward(results, [torch.randn(each.shape).to(dtype) for each in results])

    return step


def sparse_graph(dtype: torch.dtype) -> Step:
    """Adjacency matrices in COO and CSR, and one whose places are named twice."""
    dense = torch.randn(12, 12).relu().to(dtype)
    coo, csr = dense.to_sparse(), dense.to_sparse_csr()
    features = torch.randn(12, 5, dtype=dtype)
    places = torch.randint(0, 4, (2, 20))
    values = torch.randn(20, dtype=dtype)

    @torch.no_grad()
    def step() -> None:
        csr @ features
        torch.sparse.mm(coo, features)
        twice = torch.sparse_coo_tensor(places, values, (4, 4), check_invariants=False)
        twice.coalesce()
        twice.to_dense()

    return step


def complexes(_: torch.dtype) -> Step:
    """Signals: conjugates and imaginary parts that are not computed before they are needed."""
    signal = torch.randn(6, 6, dtype=torch.complex64)

    @torch.no_grad()
    def step() -> None:
        torch.mm(signal.conj(), signal)
        torch.mul(signal.conj(), signal)
        torch.add(signal.conj().imag, 1.0)
        torch.abs(torch.fft.fft(signal.t()))

    return step


def drawing(dtype: torch.dtype) -> Step:
    """Random calls, of each operator as many as show a parameter that is slightly wrong."""
    x, chances = torch.randn(64, 128, dtype=dtype), torch.rand(64, 128).to(dtype) * 0.9
    q, k, v = torch.randn(3, 2, 2, 64, 16, dtype=dtype)

    @torch.no_grad()
    def step() -> None:
        for _ in range(16):
            torch.randn(64, 128, dtype=dtype)
        for _ in range(4):
            F.dropout(x, 0.1)
            torch.bernoulli(chances)
            torch.randint(1000, (64, 128))
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)

    return step


PROGRAMS: dict[str, Program] = {
    each.__name__: each
    for each in (
        attention,
        pictures,
        language,
        gated,
        gradients,
        graph,
        updates,
        serving,
        shapes,
        choices,
        decisions,
        rounded,
        sparse_graph,
        complexes,
        drawing,
    )
}


def make_step(name: str, dtype: torch.dtype) -> Step:
    """Return the step of a program with numbers that are the same each time."""
    torch.manual_seed(11)
    return PROGRAMS[name](dtype)
