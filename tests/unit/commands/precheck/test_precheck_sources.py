"""The model's line of a call, from the stacks that msprobe writes beside a dump."""

import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.trace.sources import model_line, source_lines

pytestmark = pytest.mark.unit

TORCH = "/env/lib/python3.11/site-packages/torch/nn/modules"
LINEAR = [
    f"File {TORCH}/linear.py, line 134, in forward, \n return F.linear(input, self.weight, self.bias)",
    f"File {TORCH}/module.py, line 1789, in _call_impl, \n return forward_call(*args, **kwargs)",
    "File /home/me/net.py, line 10, in forward, \n y = s.a(x)",
    "File /home/me/train.py, line 15, in <module>, \n n(torch.randn(2,8)).backward()",
]
SILU = ["File /home/me/net.py, line 11, in forward, \n return silu(y).sum()", *LINEAR[1:2]]
# As mindstudio-probe 26.2 has written it for a small network, with other folders.
NEW = {
    "0": [["Functional.linear.0.forward"], LINEAR],
    "1": [["Functional.silu.0.forward", "Tensor.sum.0.forward"], SILU],
}
OLD = {
    "Functional.linear.0.forward": LINEAR,
    "Functional.silu.0.forward": SILU,
    "Tensor.sum.0.forward": SILU,
}
JOINED = {name: "\n".join(stack) for name, stack in OLD.items()}


def dump_with(folder: Path, stacks: Any) -> Path:
    (folder / "stack.json").write_text(json.dumps(stacks))
    return folder / "dump.json"


@pytest.mark.parametrize("stacks", [NEW, OLD, JOINED], ids=["new", "old", "one text"])
def test_the_first_frame_that_is_the_models_is_found(tmp_path: Path, stacks: Any) -> None:
    calls = ["Functional.linear.0.forward", "Tensor.sum.0.backward", "Mint.none.0.forward"]
    assert source_lines(dump_with(tmp_path, stacks), calls) == {
        "Functional.linear.0.forward": "/home/me/net.py:10, in forward: y = s.a(x)",
        "Tensor.sum.0.backward": "/home/me/net.py:11, in forward: return silu(y).sum()",
    }


def test_a_backward_with_a_stack_of_its_own_has_that(tmp_path: Path) -> None:
    stacks = {"A.0.forward": SILU, "A.0.backward": LINEAR}
    lines = source_lines(dump_with(tmp_path, stacks), ["A.0.backward"])
    assert lines == {"A.0.backward": "/home/me/net.py:10, in forward: y = s.a(x)"}


@pytest.mark.parametrize(
    "path",
    [
        "/x/site-packages/torch/functional.py",
        "/x/dist-packages/torch_npu/utils.py",
        "/x/site-packages/mindspore/nn/cell.py",
        "/src/msprobe/core/hook.py",
        "/usr/lib/python3.10/contextlib.py",
        "<frozen importlib._bootstrap>",
    ],
)
def test_frames_of_frameworks_msprobe_and_python_are_not_the_models(path: str) -> None:
    assert model_line([f"File {path}, line 1, in f, \n x"]) == ""


@pytest.mark.parametrize(
    "path",
    ["/home/me/torch/net.py", "/home/me/accelerate/net.py", "net.py"],
)
def test_folders_of_the_users_are_the_models(path: str) -> None:
    assert model_line([f"File {path}, line 7, in forward, \n y"]) == f"{path}:7, in forward: y"


SHOWN = "transformers/models/llama/modeling_llama.py"
LLAMA = f"/x/site-packages/{SHOWN}"
TRAINER = "/x/site-packages/transformers/trainer.py"
PEFT, ACCELERATE = "/x/site-packages/peft/peft_model.py", "/x/site-packages/accelerate/optimizer.py"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        # A model of the user's under a trainer; a library's model; an optimizer's step.
        (["net.py", PEFT, TRAINER, "train.py"], "net.py:1, in f: x"),
        ([LLAMA, PEFT, LLAMA, "train.py"], f"{SHOWN}:1, in f: x; called by train.py:4, in f: x"),
        ([f"{TORCH}/batchnorm.py", ACCELERATE, TRAINER, "train.py"], "train.py:4, in f: x"),
        ([LLAMA], f"{SHOWN}:1, in f: x"),
        ([TRAINER, "/src/ray_precheck/capture/hooks.py"], ""),
    ],
)
def test_what_runs_a_model_is_not_the_model(paths: list[str], expected: str) -> None:
    stack = [f"File {path}, line {at}, in f, \n x" for at, path in enumerate(paths, 1)]
    assert model_line(stack) == expected


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"0": 5}', b'{"0": [["A.0.forward"], null]}', b'{"A.0.forward": [3]}']
)
def test_a_file_of_something_else_gives_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "stack.json").write_bytes(content)
    assert source_lines(tmp_path / "dump.json", ["A.0.forward"]) == {}


def test_without_a_file_there_is_nothing(tmp_path: Path) -> None:
    assert source_lines(tmp_path / "dump.json", ["A.0.forward"]) == {}
