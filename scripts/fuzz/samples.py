"""Small captures of every format, and their mutations, for `fuzz.foreign`.

Comes in: a case's generator. Goes out: the files of a capture, by their names in its folder. Samples of tools
that run in environments of their own are those of the tests (`tests/data`).
"""

import io
import json
import os
import pickle
import re
import sys
import tarfile
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ray_precheck.dump.safetensors import written
from ray_precheck.formats.conversion import format_of
from ray_precheck.formats.plain_folders import FORMAT as PLAIN_FOLDER
from scripts.fuzz.byte_mutations import BYTE_KINDS
from scripts.measuring import ROOT

Files = dict[str, bytes]
# What stands in place of a file: a link, by where it leads, or a pipe. None leads out of the fuzzer's folder
# to anything that could be harmed: a mistake would be made with the rights of who runs this.
LINKS = (b"->/dev/zero", b"->loop", b"->../secret.npy", b"->../aside", b"->..", b"->pipe")
# The captures of these that the tests have are read below them.
_OF_TESTS = ("megengine",)
_OF_TENSORFLOW = ("eager", "graph", "health_nan", "session")
_TENSORFLOW = ROOT / "tests" / "data" / "tensorflow" / "dumps.tar.xz"
_PRECISION_TOOL = ROOT / "tests" / "unit" / "formats" / "precision_data.py"
_MOST_BYTES = 1 << 20
_X = np.arange(6, dtype=np.float32).reshape(2, 3)
_NUMBER = re.compile(rb"-?\d+")
_EXTREMES = (
    b"0",
    b"-1",
    b"1",
    b"13",
    b"9999",
    b"4294967296",
    b"9223372036854775807",
    b"1" * 40,
    b"1e999",
)
_NAMES = (
    "..",
    ".",
    "x" * 250,
    "a\nb",
    "\x1b[31m",
    "=1+1",
    "x.npy",
    "x.pt",
    "dump.json",
    "\udcff",
    "-o",
)


def samples() -> dict[str, Files]:
    """Return a capture of each format that can be read, by what it is called."""
    found = {
        "hook lines": {"npu.pkl": _lines(sampled=False)},
        "hook samples": {"npu.pkl": _lines(sampled=True)},
        "hook arrays": _hook_arrays(),
        "plain folder": _plain(),
        "safetensors": {"model.safetensors": _safetensors()},
        "checkpoint": {"model.pt": _checkpoint()},
        "dump": _dump(),
    }
    for folder in (ROOT / "tests" / "data" / name for name in _OF_TESTS):
        for place in sorted(folder.glob("*")):
            found_format = format_of(place)
            files = _files_of(place)
            if (
                found_format
                and found_format.title != PLAIN_FOLDER.title
                and files
                and sum(map(len, files.values())) <= _MOST_BYTES
            ):
                found[f"{folder.name} {place.name}"] = files
    return (
        found
        | _tensorflow()
        | {f"precision_tool {layout}": _precision_data(layout) for layout in ("guide", "v0.1.11")}
    )


def _tensorflow() -> dict[str, Files]:
    with TemporaryDirectory() as name, tarfile.open(_TENSORFLOW) as archive:
        archive.extractall(name, filter="data")
        return {f"tensorflow {each}": _files_of(Path(name) / each) for each in _OF_TENSORFLOW}


def _precision_data(layout: str) -> Files:
    """Return what the tests write in the place of precision_tool."""
    spec = spec_from_file_location("precision_data", _PRECISION_TOOL)
    assert spec is not None
    assert spec.loader is not None
    writer: Any = module_from_spec(spec)
    sys.modules[spec.name] = writer  # Where its dataclasses look for it.
    spec.loader.exec_module(writer)
    operator = writer.NpuOperator(
        "MatMul", "net/fc/MatMul", [_X], [_X], originals=["net/fc/MatMul"]
    )
    nodes = [("net/x", "Placeholder", []), ("net/fc/MatMul", "MatMul", ["net/x"])]
    with TemporaryDirectory() as name:
        root = Path(name) / "precision_data"
        writer.Capture(layout, [operator], {"net/fc/MatMul:0": _X}, nodes).write(root)
        return {f"{root.name}/{each}": raw for each, raw in _files_of(root).items()}


def _files_of(place: Path) -> Files:
    paths = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    base = place.parent if place.is_file() else place
    return {str(path.relative_to(base)): path.read_bytes() for path in paths}


def _lines(*, sampled: bool) -> bytes:
    values = _X.reshape(-1).tolist()
    if sampled:
        values += [5.0, 0.0, 2.5]
    names = ["Functional_relu_forward_input.0", "Functional_relu_forward_output",
             "Torch_cat_forward_input.0.1", "Torch_cat_forward_output",
             "Functional_relu_backward_input.0", "Functional_relu_backward_output.0"]  # fmt: skip
    lines = [[f"{n}_{name}", values, "torch.float32", [2, 3]] for n, name in enumerate(names)]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _npy(values: Any, *, pickled: bool = False) -> bytes:
    held = io.BytesIO()
    np.save(held, values, allow_pickle=pickled)
    return held.getvalue()


def _hook_arrays() -> Files:
    layout = "_shape[2,3]_stride[3,1]_offset[0]_format[2].npy"
    names = ["0_Functional_relu_forward_input0", "1_Functional_relu_forward_output0",
             "2_Functional_relu_backward_input0", "3_Functional_relu_backward_output0"]  # fmt: skip
    return {f"{name}{layout}": _npy(_X) for name in names}


def _safetensors() -> bytes:
    bits = np.array([[1, 0x7F80, 0xFFFF]], np.uint16)
    return written({"w.0": ("float32", _X), "w.1": ("bfloat16", bits), "w.2": ("bool", _X > 2)})


def _plain() -> Files:
    return {
        "layers.0.out.npy": _npy(_X),
        "conv_input0.npy": _npy(_X.T),
        "conv_output0.npy": _npy(_X.astype(np.complex64)),
        "sub/Torch.add.0.forward.input.0.npy": _npy(np.int64(3)),
        "w.safetensors": _safetensors(),
        "x.pt": _checkpoint(),
    }


def _checkpoint() -> bytes:
    import torch

    held = io.BytesIO()
    weight = torch.from_numpy(_X)
    torch.save({"w": weight, "half": weight.bfloat16(), "view": weight.t(), "step": [3]}, held)
    return held.getvalue()


def _dump() -> Files:
    """Return a dump of ours with files of safetensors."""
    one = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2, 3],
        "Max": 5.0,
        "Min": 0.0,
    }
    parts = {
        part: [{**one, "data_name": f"{part}.safetensors"}] for part in ("input_args", "output")
    }
    records = {"Torch.exp.0.forward": {**parts, "input_kwargs": {}}}
    whole = {"task": "tensor", "level": "L1", "framework": "pytorch", "data": records}
    files = {
        f"dump_tensor_data/{part}.safetensors": written({"tensor": ("float32", _X)})
        for part in parts
    }
    return {"dump.json": json.dumps(whole).encode(), **files}


def mutated(sample: Files, random: Random) -> Files:
    """Return a capture with one to three changes."""
    files = dict(sample)
    for _ in range(random.choice((1, 1, 2, 3))):
        if files:
            random.choice(_CHANGES)(files, random)
    return files


def _chosen(files: Files, random: Random) -> str:
    return random.choice(sorted(files))


def _bytes(files: Files, random: Random) -> None:
    name = _chosen(files, random)
    files[name] = random.choice(list(BYTE_KINDS.values()))(files[name], random)


def _word(files: Files, random: Random) -> None:
    """Write an extreme number over some bytes, mostly near the beginning, where headers are."""
    name = _chosen(files, random)
    raw = files[name]
    if not raw:
        return
    size = random.choice((1, 2, 4, 8))
    at = random.randrange(min(len(raw), random.choice((16, 128, 1 << 30))))
    number = random.choice((0, 1, 255, 2 ** (8 * size - 1) - 1, 2 ** (8 * size) - 1, 2**40))
    word = (number % 2 ** (8 * size)).to_bytes(size, "little")
    files[name] = raw[:at] + word + raw[at + size :]


def _number(files: Files, random: Random) -> None:
    """Replace a number that is written in digits, of a file or of its name."""
    name = _chosen(files, random)
    in_name = random.random() < 0.3
    text = os.fsencode(name) if in_name else files[name]
    matches = list(_NUMBER.finditer(text[: 1 << 16]))
    if not matches:
        return
    match = random.choice(matches)
    text = text[: match.start()] + random.choice(_EXTREMES) + text[match.end() :]
    if in_name:
        files[os.fsdecode(text)] = files.pop(name)
    else:
        files[name] = text


def _rename(files: Files, random: Random) -> None:
    name = _chosen(files, random)
    folder, _, last = name.rpartition("/")
    new = random.choice((*_NAMES, last * 2, last[1:], last[: len(last) // 2]))
    new = new.replace("/", "_").replace("\x00", "_")
    if new not in ("", ".", ".."):
        files[f"{folder}/{new}" if folder else new] = files.pop(name)


def _remove(files: Files, random: Random) -> None:
    del files[_chosen(files, random)]


def _double(files: Files, random: Random) -> None:
    name = _chosen(files, random)
    files[f"{name}.{random.randrange(100)}{Path(name).suffix}"] = files[name]


def _swap(files: Files, random: Random) -> None:
    one, two = _chosen(files, random), _chosen(files, random)
    files[one], files[two] = files[two], files[one]


def _link(files: Files, random: Random) -> None:
    files[_chosen(files, random)] = random.choice(LINKS)


def _pickle(files: Files, random: Random) -> None:
    """Put an object whose unpickling opens a file to write, which the watch hears."""
    bad = Opens("/tmp/ran")
    files[_chosen(files, random)] = random.choice(
        (pickle.dumps(bad, protocol=2), _npy(np.array([bad]), pickled=True))
    )


class Opens:
    """An object whose unpickling opens a file to write."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (self.marker, "w")


_CHANGES = (_bytes, _bytes, _bytes, _word, _word, _number, _number, _rename, _remove, _double, _swap,
            _link, _pickle)  # fmt: skip
