"""float32 products with operands of fewer bits: honest where the dump says so, else a fault."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from ray_precheck.accuracy.standards.user_file import load_standard
from ray_precheck.capture import Capture
from ray_precheck.check.bench import Implementations
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.compare.closing import format_comparison_summary
from ray_precheck.commands.compare.run import compare_captures
from ray_precheck.commands.locate.options import LocationConfig
from ray_precheck.commands.locate.run import run_location
from ray_precheck.dump.parse import open_dump
from ray_precheck.frameworks.pytorch import backend, switches
from ray_precheck.frameworks.pytorch.backend import TorchBackend
from ray_precheck.frameworks.pytorch.switches import formats_of
from ray_precheck.schema.dtypes import Float32, from_header
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import Task

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
TF32 = {"products": "tf32", "convolutions": "tf32", "recurrent": "tf32"}
aten = torch.ops.aten
F = torch.nn.functional
# The places of the factors of a product among its arguments.
FACTORS = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.convolution.default: (0, 1),
    aten.convolution_backward.default: (0, 1, 2),
}
Change = Callable[[torch.Tensor], torch.Tensor]


def truncated(x: torch.Tensor) -> torch.Tensor:
    return (x.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)


def nearest(x: torch.Tensor) -> torch.Tensor:
    """Ties away from zero, as `cvt.rna.tf32` of NVIDIA's has it."""
    return truncated((x.contiguous().view(torch.int32) + (1 << 12)).view(torch.float32))


def half(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def same(x: torch.Tensor) -> torch.Tensor:
    return x


class Device(TorchDispatchMode):
    """A device with products of float32 that round their operands, and spoil their results."""

    def __init__(self, operand: Change, result: Change = same, kernels: str = "") -> None:
        super().__init__()
        self.operand, self.result, self.kernels = operand, result, kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        places = FACTORS.get(func, ())
        if not places or args[0].dtype is not torch.float32:
            return func(*args, **(kwargs or {}))
        is_chosen = self.kernels in func.__name__
        change, spoil = (self.operand, self.result) if is_chosen else (truncated, same)
        changed = [change(x) if i in places else x for i, x in enumerate(args)]
        found = func(*changed, **(kwargs or {}))
        if func is not aten.convolution_backward.default:
            return spoil(found)
        # The gradient of a bias is no product.
        bias = args[0].sum((0, 2, 3)) if found[2] is not None else None
        return *(None if x is None else spoil(x) for x in found[:2]), bias


@contextmanager
def taken_apart() -> Iterator[None]:
    """Make an LSTM and attention of products, which on a CPU are one operator each."""
    with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def on_device(mode: Device, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the tested side run on a device, which computes in what it is asked for."""
    forward = TorchBackend.forward

    def run(self: Any, function: Any, call: Any, plan: Any) -> Any:
        with mode, taken_apart():
            execution = forward(self, function, call, plan)
        gradients = execution.gradients

        def run_gradients(cotangents: Any) -> Any:
            with mode:
                return gradients(cotangents)

        execution.gradients = run_gradients
        return execution

    patch.setattr(TorchBackend, "forward", run)
    patch.setattr(backend, "compute_in", lambda kind, wanted: (wanted, ""))
    yield


def gpt() -> None:
    width, heads, words = 64, 4, 96
    embedding, norm = torch.nn.Embedding(words, width), torch.nn.LayerNorm(width)
    to_qkv, to_out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
    head = torch.nn.Linear(width, words, bias=False)
    tokens = torch.randint(words, (2, 24))
    x = embedding(tokens)
    q, k, v = (each.view(2, 24, heads, -1).transpose(1, 2) for each in to_qkv(norm(x)).chunk(3, -1))
    # Queries as large as those of a model that has learned.
    y = F.scaled_dot_product_attention(4 * q, k, v, is_causal=True)
    x = x + F.gelu(to_out(y.transpose(1, 2).reshape(2, 24, width)))
    F.cross_entropy(head(x).flatten(0, 1), tokens.flatten()).backward()


def pictures() -> None:
    first, second = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ConvTranspose2d(16, 8, 2, 2)
    norm, head = torch.nn.BatchNorm2d(16), torch.nn.Linear(8, 10)
    x = second(torch.relu(norm(first(torch.randn(4, 3, 12, 12)))))
    head(x.mean((2, 3))).square().mean().backward()


def recurrent() -> None:
    lstm, head = torch.nn.LSTM(24, 32, num_layers=2), torch.nn.Linear(32, 5)
    head(lstm(torch.randn(12, 4, 24))[0][-1]).square().mean().backward()


def captured(folder: Path, program: Callable[[], None], mode: Device, task: str) -> Path:
    torch.manual_seed(0)
    with mode, taken_apart(), Capture(folder, step_by="manual", framework="pytorch", task=task):
        program()
    (dump,) = folder.glob("step0/*/dump.json")
    return dump


def said(dump: Path, formats: object) -> None:
    """Write what a capture on a GPU writes into the header."""
    content = json.loads(dump.read_text())
    assert "float32" not in content  # the program ran on the CPU
    dump.write_text(json.dumps({"float32": formats, **content}))


def checked(path: Path, standard: str = "auto") -> dict[str, TaskResult]:
    with open_dump(path) as dump:
        settings = CheckSettings(
            "pytorch",
            dump.task,
            dump.data_folder,
            knows_layouts=True,
            tests_dump=dump.task == "tensor",
            standard=load_standard(standard),
            float32=dump.float32,
        )
        checker = Checker(settings, "cpu")
        payloads = [dump.payload(Task(i, call.name, 0.0)) for i, call in enumerate(dump.calls)]
    return {each.name: checker.check(each) for each in payloads}


def errors(results: dict[str, TaskResult]) -> dict[str, str]:
    return {
        name: result.message
        for name, result in results.items()
        if Verdict.ERROR in (result.forward, result.backward)
    }


def found(
    folder: Path, program: Callable[[], None], mode: Device, task: str, formats: object = TF32
) -> dict[str, str]:
    """Return the errors of a program on a device that is a GPU with TF32, as the dump says."""
    with pytest.MonkeyPatch.context() as patch:
        dump = captured(folder, program, mode, task)
        said(dump, formats)
        if task == "tensor":
            return errors(checked(dump))
        with on_device(mode, patch):
            return errors(checked(dump))


PROGRAMS = pytest.mark.parametrize("program", [gpt, pictures, recurrent])
TASKS = pytest.mark.parametrize("task", ["tensor", "statistics"])


@PROGRAMS
@TASKS
@pytest.mark.parametrize("rounding", [truncated, nearest])
def test_honest_tf32_passes_where_the_dump_says_so(
    tmp_path: Path, program: Callable[[], None], task: str, rounding: Change
) -> None:
    assert found(tmp_path, program, Device(rounding), task) == {}


@PROGRAMS
@TASKS
def test_tf32_is_a_fault_where_the_dump_says_nothing(
    tmp_path: Path, program: Callable[[], None], task: str
) -> None:
    wrong = found(tmp_path, program, Device(truncated), task, formats={})
    assert any("linear" in name or "conv" in name or "lstm" in name for name in wrong)


def larger(x: torch.Tensor) -> torch.Tensor:
    return x * 1.01


def without_last(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[..., -1] = 0
    return x


@TASKS
@pytest.mark.parametrize(
    ("operand", "result"), [(half, same), (truncated, larger), (truncated, without_last)]
)
@pytest.mark.parametrize(
    ("program", "kernel", "name"),
    [
        (gpt, "mm", "linear"),
        (gpt, "bmm", "attention"),
        (pictures, "conv", "conv"),
        (recurrent, "mm", "lstm"),
    ],
)
def test_faults_that_are_larger_than_tf32_are_found(
    tmp_path: Path,
    program: Callable[[], None],
    kernel: str,
    name: str,
    operand: Change,
    result: Change,
    task: str,
) -> None:
    wrong = found(tmp_path, program, Device(operand, result, kernel), task)
    assert any(name in each for each in wrong), wrong


@pytest.mark.parametrize("standard", ["msprobe", "thousandth", "benchmark"])
def test_other_standards_say_what_tf32_explains(tmp_path: Path, standard: str) -> None:
    dump = captured(tmp_path / "honest", recurrent, Device(truncated), "tensor")
    said(dump, TF32)
    honest, passes = checked(dump, standard), checked(dump)
    assert errors(passes) == {}
    told = errors(honest)
    assert all(
        "rounding: the program computed with TF32 (10 bits" in each for each in told.values()
    )
    assert told or standard == "msprobe"
    dump = captured(tmp_path / "wrong", recurrent, Device(truncated, larger, "mm"), "tensor")
    said(dump, TF32)
    (message,) = [each for name, each in errors(checked(dump, standard)).items() if "lstm" in name]
    assert "TF32 (10 bits of fraction)" in message
    assert "which does not explain it" in message


@pytest.fixture
def settings() -> Iterator[None]:
    """Put the settings of torch back, old and new."""
    yield
    for kind in ("gpu", "cpu"):
        switches.compute_in(kind, Float32())
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.usefixtures("settings")
@pytest.mark.filterwarnings("error")
def test_old_and_new_settings_are_read_and_set_also_where_they_contradict_each_other() -> None:
    full = Float32()
    assert formats_of("gpu") == Float32("ieee", "tf32", "tf32")  # as cuDNN is by default
    assert (formats_of("cpu"), formats_of("npu"), formats_of("xpu")) == (full, full, full)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = False
    assert formats_of("gpu") == Float32("tf32", "ieee", "ieee")
    torch.set_float32_matmul_precision("highest")
    assert formats_of("gpu") == full
    if hasattr(torch.backends.cudnn, "rnn") and hasattr(torch.backends.cudnn.rnn, "fp32_precision"):
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.cudnn.rnn.fp32_precision = "tf32"
        with pytest.raises(RuntimeError):
            print(torch.backends.cudnn.allow_tf32)
        assert formats_of("gpu") == Float32("tf32", "ieee", "tf32")
    wanted = Float32("tf32", "tf32", "ieee")
    for each in (full, wanted, full, Float32("ieee", "tf32", "tf32"), Float32("bf16", "hf32")):
        switches.compute_in("gpu", each)
        known = [name if name == "tf32" else "ieee" for name in (each.products, each.convolutions)]
        assert formats_of("gpu") == Float32(*known, recurrent=each.recurrent)


@pytest.mark.usefixtures("settings")
def test_what_this_device_lacks_is_a_caveat() -> None:
    wanted = Float32("bf16", "bf16", "bf16")
    found, caveat = switches.compute_in("cpu", wanted)
    rounds = switches.computed_in("cpu", wanted)
    assert found == rounds
    assert (found == wanted) == (caveat == "")
    if not rounds:  # no AMX
        assert caveat == (
            "the program computed with bfloat16 (7 bits of fraction) in matrix products, convolutions and"
            " recurrent layers, and this CPU with full float32"
        )
    assert switches.compute_in("cpu", Float32()) == (Float32(), "")


def header_of(folder: Path, program: Callable[[], object]) -> object:
    with Capture(folder, step_by="manual", framework="pytorch", task="statistics"):
        program()
    (dump,) = folder.glob("step0/*/dump.json")
    return json.loads(dump.read_text()).get("float32")


@pytest.mark.usefixtures("settings")
def test_the_capture_says_what_the_device_of_its_calls_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program() -> None:
        torch.add(torch.ones(2), 1)

    # On a CPU the settings of cuDNN mean nothing, on a GPU without TF32 neither.
    assert header_of(tmp_path / "cpu", program) is None
    monkeypatch.setitem(switches.KINDS, "cpu", "gpu")
    assert header_of(tmp_path / "old", program) is None
    monkeypatch.setattr(switches, "_gpu_has_tf32", lambda: True)
    conv = {"convolutions": "tf32", "recurrent": "tf32"}
    assert header_of(tmp_path / "gpu", program) == conv

    def switched() -> None:
        program()
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = False

    found = header_of(tmp_path / "switched", switched)
    both = ["tf32", "ieee"]
    assert found == {"products": ["ieee", "tf32"], "convolutions": both, "recurrent": both}
    assert from_header(found) == Float32("tf32", "tf32", "tf32")
    monkeypatch.setitem(switches.KINDS, "cpu", "cpu")
    # The settings of a CPU say nothing where it rounds no operand.
    torch.set_float32_matmul_precision("medium")
    for rounds, expected in ((False, None), (True, {"products": "bf16"})):
        monkeypatch.setattr(switches, "_cpu_rounds", lambda rounds=rounds: (rounds, rounds))
        found = header_of(tmp_path / str(rounds), program)
        assert found == expected


def test_captures_of_other_formats_are_compared_with_that_said_first(tmp_path: Path) -> None:
    golden = captured(tmp_path / "golden", recurrent, Device(same), "tensor")
    target = captured(tmp_path / "target", recurrent, Device(truncated), "tensor")
    said(target, {"products": "tf32"})
    note = (
        "the target computed with TF32 (10 bits of fraction) in matrix products, the golden run with"
        " full float32: their products differ by that"
    )
    compared = compare_captures(target, golden, out=tmp_path / "compared")
    assert format_comparison_summary(compared.reports[0].summary).splitlines()[1] == note
    config = LocationConfig(target=target, golden=golden, out=tmp_path / "located")
    located = run_location(config, show_progress=False)
    assert located.notes == (note,)


def test_unknown_words_of_a_header_are_full_float32() -> None:
    for value in (None, [], "tf32", {"products": 3, "other": "tf32"}, {"products": ["x", {}]}):
        assert from_header(value) == Float32()
    assert from_header({"products": ["ieee", "hf32", "x"], "recurrent": "bf16"}) == Float32(
        "hf32", "ieee", "bf16"
    )


def test_what_makes_no_product_of_fewer_bits_costs_no_more_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = captured(tmp_path, gpt, Device(same), "tensor")
    said(dump, {"convolutions": "tf32", "recurrent": "tf32"})  # as any GPU with cuDNN has it
    ran: list[bool] = []
    computed = Implementations._computed

    def counted(self: Any, way: Any, *given: Any) -> Any:
        ran.append(way.operands is not None and way.operands.truncates)
        return computed(self, way, *given)

    monkeypatch.setattr(Implementations, "_computed", counted)
    assert errors(checked(dump)) == {}
    assert ran
    assert not any(ran)
