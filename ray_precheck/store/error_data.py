"""The tensors of failing outputs, saved for a closer look and for a rerun.

Comes in: a call, its inputs and both sides' results. Goes out: `.npy` files and one JSON for each
API, in a folder for each run under `error_data`. Called by the checker with `-save_error_data`;
`load_error_data` is called by `session.rerun` and by `repro`. bfloat16 and fp8, which NumPy lacks, are
stored as their bits (uint16, uint8); the JSON has the dtype of every file.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.dump.tensors import UNREADABLE
from ray_precheck.errors import NotCheckable, UsageError
from ray_precheck.foreign import from_json, open_file, read_file
from ray_precheck.schema.dtypes import DTYPES, FULL_FLOAT32, Array, Float32, from_header
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import HostCall, HostTensor, Sparse, TensorSpec

_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Replay:
    """The facts that a script needs besides the tensors: see `frameworks.base.CallPlan` for the
    first two.

    `standard` is the name of the rule of the verdicts, `message` the Message of the call, and
    `device` the kind of device that was tested, "" if it is unknown. `is_transposed`: the call fails with
    inputs that are transposed in memory. `float32` are the formats in which the program computed.
    """

    differentiable: tuple[int, ...] = ()
    in_place: bool = False
    standard: str = "msprobe"
    message: str = ""
    device: str = ""
    is_transposed: bool = False
    float32: Float32 = FULL_FLOAT32


def save_error_data(
    folder: Path,
    payload: TaskPayload,
    framework: str,
    call: HostCall,
    cotangents: list[HostTensor | None],
    pairs: dict[str, tuple[Any, Any]],
    *,
    failing: list[str],
    tested: str = "device",
    seed: int = 0,
    replay: Replay | None = None,
) -> Path:
    """Write inputs, incoming gradients, and both sides of every failing output; return the JSON.

    Files are `{api}.forward.input.{i}.npy`, `{api}.forward.output.{device|bench}.{i}.npy`, likewise
    backward, `{api}.forward.changed.{device|bench}.{name}.npy`, and `{api}.json`. `tested` says whose
    results failed: the device's own, or captured ones (dump), which are saved under `device` too. `seed` is
    the run's, by which a random API draws the same numbers again. `replay` has the facts that a script
    needs to run the call.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = _stem(payload.name)
    dtypes: dict[str, str] = {}

    def save(name: str, leaf: Any) -> None:
        if isinstance(leaf, HostTensor):
            dtypes[f"{name}.npy"] = leaf.dtype
            np.save(folder / f"{name}.npy", _stored(leaf), allow_pickle=False)
            storage = leaf.storage
            every = storage.indices if isinstance(storage, Sparse) else ()
            for number, indices in enumerate(every):
                np.save(folder / f"{name}.indices{number}.npy", indices, allow_pickle=False)

    inputs = input_tensors(call)
    for position, tensor in enumerate(inputs.values()):
        save(f"{stem}.forward.input.{position}", tensor)
    for position, cotangent in enumerate(cotangents):
        save(f"{stem}.backward.input.{position}", cotangent)
    for name in failing:
        place, number = ".".join(name.split(".")[-3:-1]), name.rpartition(".")[2]
        device_out, bench_out = pairs[name]
        save(f"{stem}.{place}.device.{number}", device_out)
        save(f"{stem}.{place}.bench.{number}", bench_out)
    description = {
        "version": _VERSION,
        "api": payload.name,
        "framework": framework,
        "tested": tested,
        "seed": seed,
        "inputs": {path: f"{stem}.forward.input.{i}.npy" for i, path in enumerate(inputs)},
        "dtypes": dtypes,
        "failing": [".".join(name.split(".")[-3:]) for name in failing],
        **asdict(replay or Replay()),
        "forward": (payload.forward or b"").decode("utf-8", errors="replace"),
        "backward": None
        if payload.backward is None
        else payload.backward.decode("utf-8", "replace"),
    }
    file = folder / f"{stem}.json"
    file.write_text(json.dumps(description, indent=1), encoding="utf-8")
    return file


def saved_json(folder: Path, call: str) -> Path:
    """Return the JSON that `save_error_data` makes of a call in a folder."""
    return folder / f"{_stem(call)}.json"


def _stem(call: str) -> str:
    return _UNSAFE.sub("_", call)


def save_files(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write files that `save_error_data` has made on another machine.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files:
        (folder / Path(name).name).write_bytes(content)


def input_tensors(call: HostCall) -> dict[str, HostTensor]:
    """Return the tensors of a call by argument path, in the order of the arguments."""
    found: dict[str, HostTensor] = {}

    def collect(value: Any, path: str) -> None:
        if isinstance(value, HostTensor):
            found[path] = value
        elif isinstance(value, dict):
            for key, item in value.items():
                collect(item, f"{path}.{key}")
        elif isinstance(value, list | tuple):
            for position, item in enumerate(value):
                collect(item, f"{path}.{position}")

    collect(call.args, "input_args")
    collect(call.kwargs, "input_kwargs")
    return found


def _stored(tensor: HostTensor) -> Array:
    """Return the array for the file: of a format that NumPy lacks, its bits."""
    if DTYPES[tensor.dtype].carrier == tensor.dtype:
        return tensor.data
    import ml_dtypes

    bits = tensor.data.astype(getattr(ml_dtypes, tensor.dtype))
    return np.asarray(bits).view(f"uint{DTYPES[tensor.dtype].bits}")


def _restored(data: Array, dtype: str) -> HostTensor:
    if DTYPES[dtype].carrier == dtype:
        return HostTensor(dtype, data)
    import ml_dtypes

    values = data.view(getattr(ml_dtypes, dtype)).astype(np.float32)
    return HostTensor(dtype, np.asarray(values))


@dataclass(frozen=True, slots=True)
class ErrorData:
    """One failing API as it was saved: its raw records and the tensors to run it with again.

    `failing` are the outputs in error, as "forward.output.0".
    """

    payload: TaskPayload
    framework: str
    source: "SavedTensors"
    tested: str
    seed: int
    failing: tuple[str, ...] = ()
    replay: Replay = Replay()


@dataclass(frozen=True, slots=True, eq=False)
class SavedTensors:
    """The tensors of a saved API; incoming gradients are found by their position.

    Its files lie in `folder` and begin with `stem`; `inputs` are files by argument path, `dtypes` by file.
    `is_transposed`: it failed with inputs that were transposed in memory.
    """

    folder: Path
    inputs: Mapping[str, str]
    stem: str
    dtypes: Mapping[str, str]
    is_transposed: bool = False

    def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
        """Return the saved tensor of an argument path.

        Raises:
            NotCheckable: the file is missing or unreadable.
        """
        backward = f"{self.stem}.backward.input.{path.rsplit('.', 1)[-1]}.npy"
        name = self.inputs.get(path, backward)
        dtype = self.dtypes.get(name, spec.dtype)
        if Path(name).name != name or dtype not in DTYPES:
            raise NotCheckable(f"{path}: {name} of dtype {dtype} is no file of a saved API")
        found = self._load(name, dtype, path)
        if spec.storage is None or path not in self.inputs:
            return found
        storage = spec.storage
        if isinstance(storage, Sparse):
            stem, count = name.removesuffix(".npy"), 1 if storage.layout == "coo" else 2
            files = [f"{stem}.indices{number}.npy" for number in range(count)]
            indices = tuple(self._load(file, "int64", path).data for file in files)
            storage = replace(storage, indices=indices)
        return replace(found, storage=storage)

    def cotangents(self, count: int) -> list[HostTensor | None]:
        """Return the saved incoming gradients of `count` outputs, None where there was none.

        Raises:
            NotCheckable: a file is unreadable.
        """
        names = [f"{self.stem}.backward.input.{position}.npy" for position in range(count)]
        return [
            self._load(name, self.dtypes[name], name) if self.dtypes.get(name) in DTYPES else None
            for name in names
        ]

    def file(self, name: str) -> HostTensor:
        """Return the tensor of a file, such as the bench's of a failing output.

        Raises:
            NotCheckable: the file is missing or unreadable.
        """
        return self._load(name, self.dtypes[name], name)

    def _load(self, name: str, dtype: str, path: str) -> HostTensor:
        try:
            with open_file(self.folder / name) as file:
                data = np.load(file, allow_pickle=False)
        except UNREADABLE as error:
            raise NotCheckable(f"{path}: cannot read {name}: {error}") from None
        if not isinstance(data, np.ndarray):
            raise NotCheckable(f"{path}: {name} is an archive; a single array is expected")
        return _restored(data, dtype)


def load_error_data(path: Path) -> ErrorData:
    """Load one API that was saved under `error_data`, by its JSON file.

    Raises:
        UsageError: the file is missing or is no such JSON.
    """
    try:
        found = from_json(read_file(path))
        backward = found["backward"]
        payload = TaskPayload(
            0,
            found["api"],
            found["forward"].encode(),
            None if backward is None else backward.encode(),
        )
        stem = path.name.removesuffix(".json")
        inputs, dtypes = dict(found["inputs"]), dict(found["dtypes"])
        is_transposed = found.get("is_transposed") is True
        return ErrorData(
            payload,
            found["framework"],
            SavedTensors(path.parent, inputs, stem, dtypes, is_transposed),
            str(found.get("tested", "device")),
            int(found.get("seed", 0)),
            tuple(map(str, found.get("failing", ()))),
            Replay(
                tuple(map(int, found.get("differentiable", ()))),
                found.get("in_place") is True,
                str(found.get("standard", "msprobe")),
                str(found.get("message", "")),
                str(found.get("device", "")),
                is_transposed,
                from_header(found.get("float32")),
            ),
        )
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            f"{path} is not the JSON of a saved API (error_data/<run>/<api>.json)"
        ) from None
