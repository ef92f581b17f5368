"""Makes the dumps of MegEngine that tests read: a small network, run with its usual and with naive kernels.

    PYTHONPATH=. python3.10 -m scripts.megengine_dumps FOLDER

Runs where megengine 1.13 is installed: Python 3.10 and NumPy 1. Goes out: `default`, `naive` (folders of all
values), `default.txt`, `naive.txt`, `faulty` (of a network whose pooling counts the padding, and is the same
otherwise), and what MegEngine's own tools print of them: `naive.diff`, `faulty.diff`, and `.roots` of each.
The tests have it in tests/data/megengine.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

_SIDE, _CHANNELS = 8, 3
# Below what the kernels differ by, so that all variables that do are listed; and the tool's default.
_LIMITS = {"naive": "1e-8", "faulty": "1e-3"}


def main() -> None:
    """Make the dumps in a folder that is named on the command line."""
    parser = argparse.ArgumentParser(description="make dumps of MegEngine for tests")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    data = np.random.default_rng(0).random((1, _CHANNELS, _SIDE, _SIDE)).astype(np.float32)
    np.save(folder / "data.npy", data)
    _dump_network(folder / "net.mge", data, "average_count_exclude_padding")
    _dump_network(folder / "faulty.mge", data, "average")
    for name, model, words in (
        ("default", "net", ["--bin-io-dump", "default", "--io-dump", "default.txt"]),
        ("naive", "net", ["--bin-io-dump", "naive", "--io-dump", "naive.txt"]),
        ("faulty", "faulty", ["--bin-io-dump", "faulty"]),
    ):
        variables = {"MGB_USE_MEGDNN_DBG": "2"} if name == "naive" else {}
        command = [
            "ray_precheck.tools.load_and_run",
            f"{model}.mge",
            "--input",
            "data:data.npy",
            *words,
        ]
        _run(folder, command, variables)
    for name, limit in _LIMITS.items():
        compare = ["megengine.tools.compare_binary_iodump", "default", name, "-e", limit]
        (folder / f"{name}.diff").write_text(_run(folder, compare))
        tree = ["megengine.tools.accuracy_shake_var_tree", f"{name}.diff"]
        (folder / f"{name}.roots").write_text(_run(folder, tree))
    for name in ("net.mge", "faulty.mge", "data.npy"):
        (folder / name).unlink()


def _run(folder: Path, command: list[str], variables: dict[str, str] | None = None) -> str:
    """Run a module in the folder and return what it printed."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **(variables or {}),
    }
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def _dump_network(path: Path, data: Any, pooling: str) -> None:
    """Write a network of two convolutions side by side, pooling, half precision, and a linear layer."""
    import megengine
    from megengine import functional, jit, module

    class Network(module.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.wide = module.Conv2d(_CHANNELS, 4, 3, padding=1)
            self.narrow = module.Conv2d(_CHANNELS, 4, 1)
            self.norm = module.BatchNorm2d(4)
            self.linear = module.Linear(4 * 5 * 5, 6)

        def forward(self, picture: Any) -> Any:
            hidden = functional.relu(self.norm(self.wide(picture))) + self.narrow(picture)
            hidden = functional.avg_pool2d(hidden, 2, 2, padding=1, mode=pooling)
            hidden = hidden.astype("float16").astype("float32")
            logits = self.linear(functional.flatten(hidden, 1))
            return functional.softmax(logits), functional.argmax(logits, axis=1)

    megengine.random.seed(3)
    np.random.seed(3)
    network = Network()
    network.eval()

    @jit.trace(symbolic=True, capture_as_const=True)  # type: ignore[misc]
    def traced(picture: Any) -> Any:
        return network(picture)

    traced(megengine.tensor(data))
    traced.dump(str(path), arg_names=["data"], output_names=["prob", "best"], no_assert=True)


if __name__ == "__main__":
    main()
