"""What a capture could not see is named at its end; what it saw whole is called complete."""

import copy
import ctypes
import gc
import io
import json
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from ray_precheck.capture import Capture

HERE = Path(__file__).name


class Doubled(nn.Module):
    """A module of which a part is dark."""

    def __init__(self, dark: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.dark = dark

    def forward(self, x: torch.Tensor) -> Any:
        inner = self.inner(x)
        return self.dark(inner) + inner


class Net(nn.Module):
    """A model with such a module."""

    def __init__(self, dark: Callable[..., Any]) -> None:
        super().__init__()
        self.block = Doubled(dark)

    def forward(self, x: torch.Tensor) -> Any:
        return self.block(x).sum()


@pytest.fixture
def ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Capture an action; return what is said at the end, and the header's field."""

    def run(action: Callable[[], object], **options: Any) -> tuple[str, dict[str, Any]]:
        capfd.readouterr()
        with Capture(tmp_path, step_by="manual", framework="pytorch", **options):
            action()
        (dump,) = tmp_path.glob("step0/*/dump.json")
        return capfd.readouterr().err, json.loads(dump.read_text()).get("dark")

    return run


def step_of(dark: Callable[..., Any]) -> Callable[[], object]:
    model, batch = Net(dark), torch.randn(2, 4)
    return lambda: model(batch).backward()


def unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """What an extension does: its calls of torch's operators go past Python."""

    def call(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args)

    return call


class NumpySine(torch.autograd.Function):
    """PyTorch's tutorial of extensions with numpy."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * torch.cos(x)


def through_a_thread(x: torch.Tensor) -> torch.Tensor:
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(x * 2))
    thread.start()
    thread.join()
    return found[0]


def through_a_pool(x: torch.Tensor) -> torch.Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.relu, x).result()


POOL = ThreadPoolExecutor(1)


def through_an_old_pool(x: torch.Tensor) -> torch.Tensor:
    return POOL.submit(torch.relu, x).result()


def doubled_by_c(x: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(x)
    ctypes.memmove(made.data_ptr(), x.data_ptr(), x.numel() * x.element_size())
    return made


def through_dlpack(x: torch.Tensor) -> torch.Tensor:
    array = np.from_dlpack(x.detach())
    return torch.from_dlpack(array * 2)


def shared_and_changed(x: torch.Tensor) -> torch.Tensor:
    array = x.detach().clone().numpy()
    array *= 2
    return torch.as_tensor(array)


class FakeKernel:
    """A kernel of Triton."""

    __name__ = "double_kernel"

    def run(self, x: torch.Tensor, out: torch.Tensor) -> None:
        unseen(lambda: out.copy_(x * 2))()


def through_triton(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    FakeKernel().run(x, out)
    return out


def through_a_graph(x: torch.Tensor) -> torch.Tensor:
    torch.cuda.CUDAGraph.replay(object())  # type: ignore[arg-type]
    return x


def scripted() -> Callable[..., Any]:
    return torch.jit.trace(lambda x: x * 2, torch.ones(2, 4))


def scripted_module() -> Callable[..., Any]:
    return torch.jit.script(nn.Linear(4, 4))


def traced_module() -> Callable[..., Any]:
    return torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4))


def compiled() -> Callable[..., Any]:
    return torch.compile(lambda x: x * 2, backend="eager")


def compiled_module() -> Callable[..., Any]:
    return torch.compile(nn.Linear(4, 4), backend="eager")


def plain(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    return lambda: function


NO_PRODUCER = "a tensor that no recorded call made"
PLANTED = {
    "compiled function": (compiled, "the compiled function"),
    "compiled module": (compiled_module, "the compiled function"),
    "scripted function": (scripted, "the TorchScript function"),
    "scripted module": (scripted_module, "the TorchScript function forward"),
    "traced module": (traced_module, "the TorchScript function forward"),
    "extension": (plain(unseen(lambda x: x * 2)), f"{NO_PRODUCER} (MulBackward0)"),
    "extension without a graph": (plain(unseen(lambda x: x.detach() * 2)), f"{NO_PRODUCER} and"),
    "extension with several": (plain(unseen(lambda x: torch.cat(x.split(2)))), "(CatBackward0)"),
    "extension of integers": (
        plain(lambda x: x[unseen(lambda x: x.argmax(0))(x), 0]),
        f"{NO_PRODUCER} and Tensor.__getitem__",
    ),
    "extension with a view": (plain(unseen(lambda x: (x * 2).view(2, 4))), "(ViewBackward0)"),
    "native autograd function": (
        plain(unseen(lambda x: torch.special.erfcx(x.detach()))),
        NO_PRODUCER,
    ),
    "numpy": (
        plain(lambda x: torch.from_numpy(np.tanh(x.detach().numpy()))),
        "values that went through numpy",
    ),
    "numpy in a function": (plain(NumpySine.apply), "values that went through numpy"),
    "numpy in place": (plain(shared_and_changed), "values that went through numpy"),
    "dlpack": (plain(through_dlpack), "values that went through numpy"),
    "thread": (plain(through_a_thread), "operators in another thread"),
    "pool of threads": (plain(through_a_pool), "operators in another thread"),
    "old pool of threads": (plain(through_an_old_pool), NO_PRODUCER),
    "library in C": (plain(doubled_by_c), "memory handed to foreign code (ctypes)"),
    "triton kernel": (plain(through_triton), "the Triton kernel double_kernel"),
    "replayed graph": (plain(through_a_graph), "a CUDA graph that is replayed"),
}


@pytest.mark.filterwarnings("ignore")
def test_triton_that_is_imported_within_the_step_is_named(
    ended: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found on an H200: a script that imports Triton late ended with "it is complete"."""
    monkeypatch.delitem(sys.modules, "triton.runtime.jit", raising=False)
    triton = types.SimpleNamespace(JITFunction=FakeKernel)

    def imports(x: torch.Tensor) -> torch.Tensor:
        monkeypatch.setitem(sys.modules, "triton.runtime.jit", triton)  # type: ignore[arg-type]
        return x

    said, dark = ended(step_of(plain(imports)()))
    assert [place["what"] for place in dark["places"]] == [
        "kernels of Triton, which was imported in this step"
    ]
    assert "1 place is dark" in said


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine lacks: Triton, and CUDA's graphs."""
    triton = types.SimpleNamespace(JITFunction=FakeKernel)
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", triton)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("planted", PLANTED)
def test_a_dark_place_is_named_with_module_and_line(
    ended: Callable[..., Any], planted: str
) -> None:
    make, what = PLANTED[planted]
    through_an_old_pool(torch.ones(1))
    said, dark = ended(step_of(make()))
    names = [place for place in dark["places"] if what in place["what"]]
    assert names, dark
    assert all(place["module"].startswith("block.") for place in dark["places"])
    assert all(HERE in place["place"] for place in dark["places"])
    assert dark["count"] == 1, dark
    assert f"{names[0]['what']} ({names[0]['module']}, {names[0]['place']}" in said


def test_a_loss_that_nobody_saw_made_is_named(ended: Callable[..., Any]) -> None:
    x = torch.ones(3, requires_grad=True)
    said, dark = ended(lambda: unseen(lambda: (x * 2).sum())().backward())
    assert dark["count"] == 1
    assert "(SumBackward0) and the backward pass got" in said


class Everyday(nn.Module):
    """Layers with buffers, a hidden state, and a mask that was made before."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = spectral_norm(nn.Linear(8, 11))
        self.masks = {"causal": torch.ones(5, 5).triu(1).bool()}

    def forward(self, tokens: torch.Tensor) -> Any:
        x, _ = self.lstm(self.embedding(tokens))
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        x, _ = self.attention(x, x, x, attn_mask=self.masks["causal"])
        x = x + checkpoint(nn.functional.gelu, x, use_reentrant=False)
        x = checkpoint(nn.functional.silu, x, use_reentrant=True)
        return self.head(x)


def train(model: nn.Module, batches: Any, *, accumulate: int = 1) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for number, (tokens, target) in enumerate(batches, 1):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), target.flatten())
        loss.backward()
        float(loss.detach().numpy())
        if number % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.mul_(0.5)
            optimizer.step()
            optimizer.zero_grad()


def batches(count: int = 2) -> list[Any]:
    return [(torch.randint(11, (3, 5)), torch.randint(11, (3, 5))) for _ in range(count)]


class Items(torch.utils.data.Dataset[Any]):
    """Items of numpy, as most data sets have them."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        tokens = np.arange(index, index + 5) % 11
        return torch.from_numpy(tokens), torch.from_numpy(tokens)


def loaded(**options: Any) -> None:
    train(Everyday(), torch.utils.data.DataLoader(Items(), batch_size=3, **options))


def numpy_data() -> None:
    """A loop that keeps its losses, and its data, in numpy."""
    data, model = np.random.rand(20, 4).astype("float32"), nn.Linear(4, 1)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for start in range(0, 20, 5):
        x = torch.from_numpy(data[start : start + 5])
        y = torch.tensor(data[start : start + 5, :1])
        prediction = model(x)
        loss = (prediction - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().numpy())
        prediction.detach().numpy().mean()


def adversaries() -> None:
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    one, two = (torch.optim.Adam(each.parameters()) for each in (generator, critic))
    for _ in range(2):
        made = generator(torch.randn(2, 4))
        (critic(made.detach()).mean() - critic(torch.randn(2, 4)).mean()).backward()
        two.step()
        two.zero_grad()
        (-critic(made).mean()).backward()
        one.step()
        (penalty,) = torch.autograd.grad(
            critic(made.detach().requires_grad_()).sum(), made, allow_unused=True
        )
        assert penalty is None


def averaged() -> None:
    model = nn.Linear(4, 4)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    train(nn.Sequential(nn.Embedding(11, 4), model, nn.Linear(4, 11)), batches())
    average.update_parameters(model)
    average(torch.ones(2, 4))


def generated() -> None:
    model = Everyday().eval()
    with torch.inference_mode():
        tokens = torch.zeros(1, 5, dtype=torch.long)
        for _ in range(3):
            following = model(tokens)[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens[:, 1:], following], 1)
        tokens.tolist()


def transformed() -> None:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    parameters = dict(model.named_parameters())

    def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    {name: (parameters[name] - each.mean(0)).sum() for name, each in gradients.items()}
    _, tangent = torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))
    tangent.sum()
    torch.func.jacrev(torch.sin)(x[0]).sum()


class Clamped(torch.autograd.Function):
    """A function whose two passes are in Python."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * (x > 0)


def own_function() -> None:
    x = torch.randn(4, requires_grad=True)
    x.register_hook(lambda gradient: gradient * 2)
    Clamped.apply(x * 2).sum().backward()
    (x.grad * 2).sum()  # type: ignore[operator]


def half_precision() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(3, 4)).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


def custom_operator() -> None:
    torch.ops.dark_test.double(torch.ones(3)).sum()


def saved_and_loaded() -> None:
    model, file = nn.Linear(4, 4), io.BytesIO()
    torch.save({"model": model.state_dict(), "x": torch.ones(2, 4)}, file)
    file.seek(0)
    found = torch.load(file)
    model.load_state_dict(found["model"])
    copy.deepcopy(model)(found["x"] * 2)


def exported() -> None:
    program = torch.export.export(nn.Linear(4, 4), (torch.ones(2, 4),))
    program.module()(torch.randn(2, 4)).sum().backward()


def old_style() -> None:
    class Old(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = torch.FloatTensor([0.5, 0.25])
            return (x[:, :2] * weight).sum() + packed(x)

    def packed(x: torch.Tensor) -> torch.Tensor:
        rows = nn.utils.rnn.pack_padded_sequence(x[None], [2], batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(nn.GRU(4, 4)(rows)[0])[0].sum()

    Old()(torch.randn(2, 4, requires_grad=True)).backward()


def packed_weights() -> None:
    """A layer whose packed weights the capture itself takes apart."""
    weight = torch.quantize_per_tensor(torch.randn(8, 4), 0.1, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, torch.randn(8))

    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.quantized.linear_dynamic(super().forward(x), packed)

    Layer(4, 4)(torch.randn(2, 4))


HONEST: dict[str, Callable[[], object]] = {
    "everyday layers": lambda: train(Everyday(), batches()),
    "accumulated gradients": lambda: train(Everyday(), batches(4), accumulate=2),
    "data loader": lambda: loaded(),
    "data loader with workers": lambda: loaded(num_workers=1),
    "data in numpy": numpy_data,
    "two optimizers": adversaries,
    "averaged weights": averaged,
    "generation": generated,
    "transforms": transformed,
    "own function": own_function,
    "half precision": half_precision,
    "custom operator": custom_operator,
    "saved and loaded": saved_and_loaded,
    "exported": exported,
    "old style": old_style,
    "packed weights": packed_weights,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("honest", HONEST)
def test_an_honest_program_is_complete(ended: Callable[..., Any], honest: str) -> None:
    with torch.library._scoped_library("dark_test", "DEF") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
        said, dark = ended(HONEST[honest])
    assert dark == {"count": 0, "places": []}
    assert "; it is complete" in said


def test_what_was_there_before_the_step_needs_no_producer(ended: Callable[..., Any]) -> None:
    hidden = unseen(lambda: torch.ones(3) * 2)()
    _, dark = ended(lambda: (hidden[1:] + 1).sum())
    assert dark["count"] == 0
    assert not gc.get_freeze_count()


def test_a_step_that_was_seen_whole_is_complete(ended: Callable[..., Any]) -> None:
    said, dark = ended(step_of(torch.relu))
    assert dark == {"count": 0, "places": []}
    assert "; it is complete" in said


@pytest.mark.parametrize("options", [{"level": "L0"}, {"chosen": ["relu"]}])
def test_a_part_of_a_step_is_not_called_complete(ended: Callable[..., Any], options: Any) -> None:
    said, dark = ended(step_of(torch.relu), **options)
    assert dark is None
    assert "complete" not in said
