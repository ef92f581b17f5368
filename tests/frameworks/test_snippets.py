"""Every snippet of Python in the documents runs as it stands, behind the lines that its reader has.

Each runs in a process of its own, `python test_snippets.py PLACE FOLDER`, because it may hook a framework for
good. `precheck` starts a cluster, so that its snippet is run by tests/cluster/test_cluster_command.py.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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
    import torch

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
    import torch

    torch.Tensor.npu = lambda self: self  # type: ignore[attr-defined]

    class OnNpu(torch.nn.Sequential):
        def npu(self) -> "OnNpu":
            return self

    net = OnNpu(torch.nn.Conv2d(3, 2, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    labels = SimpleNamespace(npu=lambda: torch.tensor([1]))
    return {"torch": torch, "model": net, "criterion": lambda out, _: out.sum(), "labels": labels}


def two_pkl(folder: Path) -> dict[str, Any]:
    import torch

    from ray_precheck.hooks import register_hook, set_dump_path, wrap_acc_cmp_hook

    model = torch.nn.Linear(3, 2)
    register_hook(model, wrap_acc_cmp_hook)
    for name in ("npu", "cpu"):
        set_dump_path(str(folder / f"{name}_resnet50_op.pkl"))
        model(torch.ones(2, 3)).sum().backward()
    return {}


def cell(_: Path) -> dict[str, Any]:
    import mindspore as ms
    from mindspore import mint

    net = ms.nn.Dense(3, 2)
    optimizer = ms.nn.SGD(net.trainable_params(), 0.1)
    grad = ms.value_and_grad(lambda x: mint.sum(net(x)), None, optimizer.parameters)
    return {"net": net, "loader": [(mint.ones((4, 3)),)] * 2, "step": grad, "optimizer": optimizer}


def capped(_: Path) -> dict[str, Any]:
    return {"softcap": lambda x, cap: (x / cap).tanh() * cap}


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
    "ray_precheck/frameworks/README.md:1": capped,
    "ray_precheck/hooks/README.md:0": resnet,
    "ray_precheck/hooks/README.md:1": two_pkl,
    "ray_precheck/trace/README.md:0": captures,
    "scripts/README.md:0": nothing,
}


@pytest.mark.parametrize("place", sorted(snippets().keys() - {_STARTS_A_CLUSTER}))
def test_a_snippet_runs_as_it_stands(place: str, tmp_path: Path) -> None:
    assert place in READERS, "say above what the reader of this snippet has"
    done = subprocess.run(
        [sys.executable, __file__, place, str(tmp_path)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"{place} has run\n")


def main(place: str, folder: Path) -> None:
    """Run a snippet in a folder."""
    os.chdir(folder)
    given = {"__name__": "snippet", **READERS[place](folder)}
    exec(compile(snippets()[place], place, "exec"), given)
    if "resolve" in given:
        from ray_precheck.schema.record import ApiName

        assert callable(given["resolve"](ApiName("Toy", "softcap", 0)))
    print(f"{place} has run")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
