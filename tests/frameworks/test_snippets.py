"""Every snippet of Python in the documents runs as it stands, behind the lines that its reader has.

`precheck` starts a cluster, so that its snippet is run by tests/cluster/test_cluster_command.py.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import pytest
import torch
from mindspore import mint

from ray_precheck.bench import declared
from ray_precheck.schema.record import ApiName

pytestmark = pytest.mark.frameworks
ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STARTS_A_CLUSTER = "ray_precheck/cli/README.md:0"


def snippets() -> dict[str, str]:
    """Return the snippets by their documents and their numbers there."""
    paths = [*ROOT.glob("*.md"), *ROOT.glob("ray_precheck/**/*.md"), *ROOT.glob("scripts/**/*.md")]
    return {
        f"{path.relative_to(ROOT)}:{number}": code
        for path in sorted(paths)
        for number, code in enumerate(_BLOCK.findall(path.read_text(encoding="utf-8")))
    }


def training(_: Path) -> dict[str, Any]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    batch = torch.ones(4, 3)
    return {
        "model": model, "optimizer": optimizer, "train": train, "loader": [batch, batch], "batch": batch,
    }  # fmt: skip


def msprobes(folder: Path) -> dict[str, Any]:
    config = {
        "task": "statistics",
        "dump_path": str(folder / "dump"),
        "rank": [],
        "step": [],
        "level": "L1",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return training(folder)


def captures(folder: Path) -> dict[str, Any]:
    from ray_precheck.capture import Capture

    for name in ("npu_dump", "gpu_dump"):
        with Capture(folder / name, framework="pytorch"):
            given = training(folder)
            given["train"](given["batch"])
    return {}


def resnet(_: Path) -> dict[str, Any]:
    class OnNpu(torch.nn.Sequential):
        def npu(self) -> "OnNpu":
            return self

    net = OnNpu(torch.nn.Conv2d(3, 2, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    labels = SimpleNamespace(npu=lambda: torch.tensor([1]))
    return {"torch": torch, "model": net, "criterion": lambda out, _: out.sum(), "labels": labels}


def two_pkl(folder: Path) -> dict[str, Any]:
    from ray_precheck.hooks import register_hook, set_dump_path, wrap_acc_cmp_hook

    model = torch.nn.Linear(3, 2)
    register_hook(model, wrap_acc_cmp_hook)
    for name in ("npu", "cpu"):
        set_dump_path(str(folder / f"{name}_resnet50_op.pkl"))
        model(torch.ones(2, 3)).sum().backward()
    return {}


def cell(_: Path) -> dict[str, Any]:
    net = ms.nn.Dense(3, 2)
    optimizer = ms.nn.SGD(net.trainable_params(), 0.1)
    grad = ms.value_and_grad(lambda x: mint.sum(net(x)), None, optimizer.parameters)
    return {"net": net, "loader": [(mint.ones((4, 3)),)] * 2, "step": grad, "optimizer": optimizer}


def nothing(_: Path) -> dict[str, Any]:
    return {}


# What the reader of a snippet has already.
READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "ray_precheck/bench/README.md:0": nothing,
    "ray_precheck/capture/README.md:0": training,
    "ray_precheck/capture/README.md:1": training,
    "ray_precheck/capture/README.md:2": msprobes,
    "ray_precheck/capture/mindspore/README.md:0": cell,
    "ray_precheck/cli/README.md:1": nothing,
    "ray_precheck/frameworks/README.md:0": nothing,
    "ray_precheck/frameworks/README.md:1": lambda _: {
        "softcap": lambda x, cap: torch.tanh(x / cap) * cap
    },
    "ray_precheck/hooks/README.md:0": resnet,
    "ray_precheck/hooks/README.md:1": two_pkl,
    "ray_precheck/trace/README.md:0": captures,
    "scripts/README.md:0": nothing,
}


@pytest.fixture(autouse=True)
def as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.Tensor, "npu", lambda self: self, raising=False)
    known = dict(vars(declared))
    yield
    assert vars(declared).keys() == known.keys()


@pytest.mark.parametrize("place", sorted(snippets().keys() - {_STARTS_A_CLUSTER}))
def test_a_snippet_runs_as_it_stands(place: str, tmp_path: Path) -> None:
    assert place in READERS, "say above what the reader of this snippet has"
    given = {"__name__": "snippet", **READERS[place](tmp_path)}
    exec(compile(snippets()[place], place, "exec"), given)
    if "resolve" in given:
        assert callable(given["resolve"](ApiName("Toy", "softcap", 0)))
