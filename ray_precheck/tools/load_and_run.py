"""`load_and_run`: run a model of MegEngine's, with a dump of what its operators compute.

    python -m ray_precheck.tools.load_and_run MODEL --input NAME:DATA --io-dump FILE --bin-io-dump FOLDER

Comes in: a model that `megengine.jit.trace(...).dump` wrote, and data for its inputs. Goes out: the dumps,
and a line for each output. Drives `megenginelite.LiteNetwork`, which comes with megengine (Python 3.8 to
3.10, NumPy 1). With MGB_USE_MEGDNN_DBG=2 in the environment naive kernels run, and nothing else changes.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.errors import BackendMissingError, PrecheckError, UsageError
from ray_precheck.foreign import open_file, printable, read_file
from ray_precheck.options.commands import PASSED, UNUSABLE
from ray_precheck.schema.dtypes import Array

_INSTALL = "pip install 'megengine>=1.13' 'numpy<2', with Python 3.8 to 3.10"
_PICTURES = (".ppm", ".pgm")
_LARGEST_PIXEL = 255


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    given = _parser().parse_args(arguments)
    try:
        for line in load_and_run(
            given.model,
            dict(_input(pair) for word in given.input for pair in word.split(";") if pair),
            io_dump=given.io_dump,
            bin_io_dump=given.bin_io_dump,
            is_reproducible=given.reproducible,
            is_fast_run=given.fast_run,
            uses_cuda=given.cuda,
            times=given.iter,
        ):
            print(printable(line))
    except PrecheckError as error:
        print(printable(f"load_and_run: error: {error}"), file=sys.stderr)
        return UNUSABLE
    return PASSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "load_and_run",
        description="run a model of MegEngine's with a dump of its operators; MGB_USE_MEGDNN_DBG=2 in the"
        " environment takes naive kernels",
    )
    parser.add_argument("model", type=Path, help="what megengine.jit.trace(...).dump wrote")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME:DATA",
        help="an input: a file (.npy, .json, .ppm, .pgm) or numbers as JSON, [[1, 2], [3, 4]]; several are"
        " parted by ; or are options of their own",
    )
    parser.add_argument(
        "--io-dump",
        metavar="FILE",
        help="text of each operator and its variables, values abbreviated",
    )
    parser.add_argument(
        "--bin-io-dump", metavar="FOLDER", help="a file for each variable, with all values"
    )
    parser.add_argument(
        "--reproducible",
        action="store_true",
        help="reproducible algorithms alone: two runs have equal dumps",
    )
    parser.add_argument(
        "--fast-run", action="store_true", help="measure algorithms, and take the fastest"
    )
    parser.add_argument("--cuda", action="store_true", help="run on the GPU (default: on the CPU)")
    parser.add_argument("--cpu", action="store_true", help="run on the CPU; accepted, the default")
    parser.add_argument(
        "--iter", type=int, default=1, metavar="N", help="run so many times (default 1)"
    )
    return parser


def load_and_run(
    model: Path,
    inputs: dict[str, Array],
    *,
    io_dump: str | None = None,
    bin_io_dump: str | None = None,
    is_reproducible: bool = False,
    is_fast_run: bool = False,
    uses_cuda: bool = False,
    times: int = 1,
) -> list[str]:
    """Run a model, and return a line for each output. A network makes one dump at a time: for both it runs
    twice.

    Raises:
        BackendMissingError: megengine is not installed.
        UsageError: the model, a file or an input is wrong.
    """
    lite = _megenginelite()
    if bin_io_dump is not None:
        Path(bin_io_dump).mkdir(parents=True, exist_ok=True)
    dumps = [
        (name, each)
        for name, each in (("io_txt_dump", io_dump), ("io_bin_dump", bin_io_dump))
        if each
    ]
    lines: list[str] = []
    for name, path in dumps or [("", "")]:
        try:
            network = _loaded(lite, model, uses_cuda=uses_cuda)
            if is_reproducible or is_fast_run:
                network.set_network_algo_policy(_policy(lite, is_reproducible, is_fast_run))
            if name:
                getattr(network, name)(str(path))
            _fill(network, inputs)
            for _ in range(max(1, times)):
                network.forward()
                network.wait()
            lines = [_told(network, each) for each in network.get_all_output_name()]
        except (RuntimeError, AssertionError, KeyError) as error:
            raise UsageError(f"MegEngine cannot run {model}: {error}") from None
    return lines


def _megenginelite() -> Any:
    try:
        import megenginelite  # type: ignore[import-not-found]
    except ImportError as error:
        raise BackendMissingError(
            f"megenginelite, which runs models of MegEngine's, cannot be imported ({error}); {_INSTALL}"
        ) from None
    return megenginelite


def _loaded(lite: Any, model: Path, *, uses_cuda: bool) -> Any:
    try:
        open_file(model).close()
    except OSError as error:
        raise UsageError(f"cannot read the model {model}: {error.strerror or error}") from None
    kind = lite.LiteDeviceType.LITE_CUDA if uses_cuda else lite.LiteDeviceType.LITE_CPU
    network = lite.LiteNetwork(config=lite.LiteConfig(device_type=kind))
    network.load(str(model))
    return network


def _policy(lite: Any, is_reproducible: bool, is_fast_run: bool) -> int:
    strategies = lite.LiteAlgoSelectStrategy
    found = strategies.LITE_ALGO_PROFILE if is_fast_run else strategies.LITE_ALGO_HEURISTIC
    return int(found | strategies.LITE_ALGO_REPRODUCIBLE if is_reproducible else found)


def _fill(network: Any, inputs: dict[str, Array]) -> None:
    """Give each input of a network its data.

    Raises:
        UsageError: an input has none, or there is no input of a name.
    """
    names = list(network.get_all_input_name())
    if "" in inputs and len(names) == 1:
        inputs = {names[0]: inputs[""]}
    lacking, unknown = set(names) - set(inputs), set(inputs) - set(names)
    if lacking or unknown:
        word = f"{min(unknown)!r} is none of them" if unknown else f"{min(lacking)!r} has no data"
        raise UsageError(
            f"--input NAME:DATA: the inputs of the model are {', '.join(names)}, and {word}"
        )
    for name in names:
        tensor = network.get_io_tensor(name)
        dtype = tensor.layout.dtype
        tensor.set_data_by_copy(np.ascontiguousarray(inputs[name], dtype=dtype))


def _told(network: Any, name: str) -> str:
    values = network.get_io_tensor(name).to_numpy()
    if not values.size:
        return f"output {name}: shape {list(values.shape)}"
    wide = values.astype(np.float64)
    return (
        f"output {name}: shape {list(values.shape)}, min {wide.min():.6g}, max {wide.max():.6g}, mean"
        f" {wide.mean():.6g}"
    )


def _input(word: str) -> tuple[str, Array]:
    """Return the name and the data of an input, `data:picture.npy`; the name is "" where there is none.

    Raises:
        UsageError: the data cannot be read.
    """
    name, is_named, data = word.partition(":")
    if not is_named:
        name, data = "", word
    try:
        return name.strip(), _data(data.strip())
    except OSError as error:
        raise UsageError(f"--input {word}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"--input {word} is neither a file of values nor JSON: {error}") from None


def _data(text: str) -> Array:
    path = Path(text)
    if path.suffix == ".npy":
        with open_file(path) as file:
            return np.asarray(np.load(file, allow_pickle=False))
    if path.suffix in _PICTURES:
        return _picture(read_file(path))
    found = json.loads(read_file(path) if path.suffix == ".json" else text)
    return np.asarray(found, dtype=np.float32)


def _picture(raw: bytes) -> Array:
    """Return a picture of the formats P5 and P6 (netpbm) as `(1, channels, height, width)` uint8.

    Raises:
        ValueError: it is none, or was cut.
    """
    words: list[bytes] = []
    at = 0
    while len(words) < 4:
        line_end = raw.find(b"\n", at)
        if line_end < 0 or line_end > 4096:
            raise ValueError("it has no head of a picture (P5 or P6)")
        words += raw[at:line_end].partition(b"#")[0].split()
        at = line_end + 1
    channels = {b"P5": 1, b"P6": 3}.get(words[0], 0)
    width, height, largest = (int(each) for each in words[1:4])
    if not channels or largest != _LARGEST_PIXEL or len(raw) - at != width * height * channels:
        raise ValueError(f"{len(raw) - at} bytes follow a head {b' '.join(words[:4])!r}")
    pixels = np.frombuffer(raw, np.uint8, offset=at).reshape(height, width, channels)
    return pixels.transpose(2, 0, 1)[None]


if __name__ == "__main__":
    sys.exit(main())
