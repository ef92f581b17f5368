"""Every snippet of Python in the documents runs as it stands, behind the lines that its reader has.

Each runs in a process of its own, because it may hook a framework for good: a child of
`python test_snippets.py FOLDER PLACE...`, which has imported torch once for all. `precheck` starts a
cluster, so that its snippet is run by tests/cluster/test_cluster_command.py.
"""

import gc
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
# Reads what the commands above it wrote; `test_agents_page.py` runs them and it.
_READS_RESULTS = "ray_precheck/running/README.md:0"


def snippets() -> dict[str, str]:
    """Return the snippets by their documents and their numbers there.

    Those of Chinese pages are the same: tests/unit/docs/test_docs_zh.py holds them to the English ones.
    """
    paths = [*ROOT.glob("*.md"), *ROOT.glob("ray_precheck/**/*.md"), *ROOT.glob("scripts/**/*.md")]
    return {
        f"{path.relative_to(ROOT)}:{number}": code
        for path in sorted(paths)
        if not path.name.endswith(".zh-CN.md")
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


PLACES = sorted(snippets().keys() - {_STARTS_A_CLUSTER, _READS_RESULTS})


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return what each snippet has printed, and what it said on stderr, by its place."""
    folder = tmp_path_factory.mktemp("snippets")
    done = subprocess.run(
        [sys.executable, __file__, str(folder), *PLACES],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {
        place: [(folder / str(number) / name).read_text() for name in ("stdout", "stderr")]
        for number, place in enumerate(PLACES)
    }


@pytest.mark.parametrize("place", PLACES)
def test_a_snippet_runs_as_it_stands(place: str, outputs: dict[str, list[str]]) -> None:
    assert place in READERS, "say above what the reader of this snippet has"
    printed, said = outputs[place]
    assert printed.endswith(f"{place} has run\n"), said


def main(folder: Path, places: list[str]) -> None:
    """Run snippets, each in a child of this process and in a folder of its own."""
    # Before the children, which begin with it, as with the compiler that its optimizers import.
    import torch._dynamo  # noqa: F401

    gc.freeze()  # Else each child looks at all of torch once more when it ends, which takes 0.6 s.

    for number, place in enumerate(places):
        own = folder / str(number)
        own.mkdir()
        if os.fork() == 0:
            for descriptor, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(os.open(own / name, os.O_CREAT | os.O_WRONLY), descriptor)
            run_snippet(place, own)
            sys.exit()
        os.wait()


def run_snippet(place: str, folder: Path) -> None:
    """Run a snippet in a folder."""
    os.chdir(folder)
    given = {"__name__": "snippet", **READERS[place](folder)}
    exec(compile(snippets()[place], place, "exec"), given)
    if "resolve" in given:
        from ray_precheck.schema.record import ApiName

        assert callable(given["resolve"](ApiName("Toy", "softcap", 0)))
    print(f"{place} has run")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
