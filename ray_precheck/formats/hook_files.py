"""What hooks of torch_npu have written: a file of JSON lines, or a folder of arrays.

    ["0_Functional_linear_forward_input.0", [0.5, -1.25], "torch.float32", [1, 2]]
    16_Functional_relu_backward_input0_shape[2,1]_stride[1,1]_offset[0]_format[2].npy

Comes in: the path of the file or the folder, as torch_npu.hooks or `ray_precheck.hooks` make them. Goes out:
the calls and their tensors; as a capture, called by `formats.conversion`, or line by line, called by the
comparison of two files (`trace.hook_lines`). Lines of samples (10 values, then max, min and mean) become
statistics, lines of all values tensors.

Hooks call the gradients of a call's inputs `input` and those that arrived `output`; a record has them the
other way round. They say nothing of which forward call a backward pass is of: it is taken for that of the
last call of the operator, with outputs of these shapes, that has none.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ray_precheck.dump.mapped import npy_array
from ray_precheck.dump.tensors import FolderFiles
from ray_precheck.errors import DumpError, NotCheckable, PrecheckError, UsageError
from ray_precheck.foreign import from_json, open_file, shown
from ray_precheck.formats.conversion import CaptureWriter, Element, Format, described, listed
from ray_precheck.schema.dtypes import DTYPES, Array

_LINE_NAME = re.compile(r"\d+_(.+)_(input|output)((?:\.\d{1,4}){0,12})")
_LINE_BEGIN = re.compile(rb'\["\d+_[^"\\]{1,1000}_(?:input|output)[.\d]*", ?\[')
_FILE_NAME = re.compile(
    r"(?P<group>\d{1,18})_(?P<call>.+_(?:forward|backward))_(?P<part>input|output)(?P<place>\d{1,4})"
    r"_shape\[(?P<shape>[\d,]*)\]_stride\[(?P<stride>[\d,]*)\]_offset\[(?P<offset>\d{1,18})\]"
    r"_format\[-?\d+\]\.npy"
)
_CALL_NAME = re.compile(r"(?P<prefix>[A-Za-z]+)_(?P<api>.+)_(?P<direction>forward|backward)")
_SHOWN = 60
_BEGIN_BYTES = 1 << 12
# torch_npu.hooks and ours sample so many values, and add so many statistics.
_SAMPLED, _STATISTICS = 10, 3
_SHOWN_GAPS = 3


@dataclass(frozen=True, slots=True)
class LineTensor:
    """One line: the whole name, the part of the call that the tensor is in ("input.0"), and its place."""

    name: str
    part: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(slots=True)
class LineCall:
    """The lines of one call; `norm` is that of the values of its last output."""

    name: str
    tensors: list[LineTensor] = field(default_factory=list)
    norm: float = math.nan


def open_lines(path: Path) -> BinaryIO:
    """Open a file of lines.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return open_file(path)
    except OSError as error:
        raise UsageError(f"cannot read the lines of {path}: {error.strerror}") from None


def calls_of_lines(file: BinaryIO, path: Path) -> Iterator[tuple[LineCall, list[Array]]]:
    """Yield the calls in a file, with the values of their lines, `(N,)` float64. A call ends where its
    outputs do, or where a part comes once more.

    Raises:
        UsageError: a line is none of a hook's, or there is none.
    """
    call: LineCall | None = None
    seen: set[str] = set()
    values: list[Array] = []
    for tensor, operator, found in _lines(file, path):
        begins_anew = tensor.part in seen or (
            tensor.part.startswith("input") and any(part.startswith("output") for part in seen)
        )
        if call is None or call.name != operator or begins_anew:
            if call is not None:
                yield call, values
            call, seen, values = LineCall(operator), set(), []
        seen.add(tensor.part)
        call.tensors.append(tensor)
        values.append(found)
        if tensor.part.startswith("output"):
            with np.errstate(over="ignore"):
                call.norm = float(np.linalg.norm(found))
    if call is None:
        raise UsageError(
            f"{path} has no line of a hook; was set_dump_path called before the model?"
        )
    yield call, values


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[LineTensor, str, Array]]:
    """Yield each line's tensor, its call and its values."""
    offset = 0
    for number, line in enumerate(file, 1):
        start, offset = offset, offset + len(line)
        if not line.endswith(b"\n"):
            break  # It was being written when the process was killed.
        if line.strip():
            yield _parsed(line, start, path, number)


def _parsed(line: bytes, offset: int, path: Path, number: int) -> tuple[LineTensor, str, Array]:
    try:
        name, values, dtype, shape = from_json(line)
        match = _LINE_NAME.fullmatch(name)
        found = np.asarray(values, np.float64)
        sizes = tuple(int(each) for each in shape)
    except (ValueError, TypeError, OverflowError, RecursionError):
        match = None
    if match is None or found.ndim != 1 or any(size < 0 for size in sizes):
        raise UsageError(
            f"line {number} of {path} is {line[:_SHOWN]!r}; expected is a line of a hook, such as"
            ' ["0_Functional_linear_forward_input.0", [0.5], "torch.float32", [1]]'
        )
    part = match[2] + match[3]
    return LineTensor(name, part, str(dtype), sizes, offset), match[1], found


def _is_here(path: Path, names: Sequence[str]) -> bool:
    if names:
        return any(map(_FILE_NAME.fullmatch, names))
    try:
        if not path.is_file():
            return False
        with open_file(path) as file:
            return _LINE_BEGIN.match(file.read(_BEGIN_BYTES).lstrip()) is not None
    except OSError:
        return False


def _read(path: Path, out: CaptureWriter) -> None:
    """Read lines or arrays; what does not fit together is a gap, which is noted.

    Raises:
        DumpError: nothing can be read.
    """
    gaps: list[str] = []
    numbers = _Numbers()
    # Not PyTorch's: hooks record tensors alone, so that no call can be made again of what they have.
    out.framework = "hooks"
    try:
        for call, tensors in (_of_lines if path.is_file() else _of_arrays)(path, out, gaps):
            key = numbers.key(
                call, [tuple(t.element["shape"]) for t in tensors if t.part == "output"]
            )
            out.record(key, _record(key, tensors))
    except PrecheckError as error:
        raise DumpError(str(error)) from None
    if gaps:
        more = f" and {len(gaps) - _SHOWN_GAPS} more" if len(gaps) > _SHOWN_GAPS else ""
        out.notes.append(f"left out: {'; '.join(gaps[:_SHOWN_GAPS])}{more}")


class _Tensor(NamedTuple):
    """A tensor of a call: the part as the hook names it, where in it (0, or 1 and 0), and its element."""

    part: str
    place: tuple[int, ...]
    element: Element


_Call = tuple[str, list[_Tensor]]


class _Numbers:
    """Numbers the calls of each operator as a capture does."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        # The shapes of the outputs of calls whose backward pass has not come yet.
        self._open: dict[str, list[tuple[int, list[tuple[int, ...]]]]] = {}

    def key(self, call: str, shapes: list[tuple[int, ...]]) -> str:
        """Return the key of a call; `shapes` are those of its outputs, or of the gradients that arrived."""
        match = _CALL_NAME.fullmatch(call)
        prefix, api, direction = match.groups() if match else ("Function", call, "forward")
        kind = f"{prefix}.{'.'.join(part or '_' for part in api.split('.'))}"
        if direction == "backward":
            waiting = self._open.get(kind, [])
            for place in reversed(range(len(waiting))):
                number, outputs = waiting[place]
                if outputs == shapes:
                    del waiting[place]
                    return f"{kind}.{number}.backward"
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        if direction == "forward":
            self._open.setdefault(kind, []).append((number, shapes))
        return f"{kind}.{number}.{direction}"


def _record(key: str, tensors: Iterable[_Tensor]) -> dict[str, Any]:
    """Return the record of a call; what was given first."""
    parts: dict[str, dict[int, Any]] = {"input": {}, "output": {}}
    for tensor in tensors:
        _put(parts[tensor.part], tensor.place, tensor.element)
    given, made = (_nested(parts[part]) for part in parts)
    if key.endswith(".backward"):
        return {"input": made, "output": given}
    return {"input_args": given, "input_kwargs": {}, "output": made}


def _put(values: dict[int, Any], place: tuple[int, ...], element: Element) -> None:
    """Put an element into values by their places, those in a list by their places in there."""
    first, *rest = place or (0,)
    if not rest:
        values[first] = element
        return
    if not isinstance(values.get(first), _Inner):
        values[first] = _Inner()
    _put(values[first], tuple(rest), element)


class _Inner(dict[int, Any]):
    """The values of a list."""


def _nested(values: dict[int, Any]) -> Any:
    return listed(
        {
            place: _nested(each) if isinstance(each, _Inner) else each
            for place, each in values.items()
        }
    )


def _of_lines(path: Path, out: CaptureWriter, gaps: list[str]) -> Iterator[_Call]:
    with open_lines(path) as file:
        is_sampled = any(
            tensor.shape != values.shape and math.prod(tensor.shape) != values.size
            for tensor, _, values in _lines(file, path)
        )
        file.seek(0)
        for call, values in calls_of_lines(file, path):
            tensors = []
            for tensor, found in zip(call.tensors, values, strict=True):
                element = _element_of_line(tensor, found, is_sampled, out)
                if element is None:
                    gaps.append(
                        f"{shown(tensor.name)}, which has {found.size} values for shape {list(tensor.shape)}"
                    )
                else:
                    part, *place = tensor.part.split(".")
                    tensors.append(_Tensor(part, tuple(map(int, place)), element))
            yield call.name, tensors
    if is_sampled:
        out.notes.append("its lines are samples: statistics are compared, not every value")


def _element_of_line(
    tensor: LineTensor, values: Array, is_sampled: bool, out: CaptureWriter
) -> Element | None:
    """Return the element of a line; None where it has as many values as neither a sample nor the tensor."""
    size = math.prod(tensor.shape)
    dtype = tensor.dtype.rpartition(".")[2]
    if not is_sampled:
        if size != values.size:
            return None
        carrier = DTYPES[dtype].carrier if dtype in DTYPES else "float64"
        with np.errstate(all="ignore"):
            return out.kept(values.reshape(tensor.shape).astype(carrier), dtype=tensor.dtype)
    if not size:
        return described(np.zeros(tensor.shape), dtype=tensor.dtype)
    if values.size != min(size, _SAMPLED) + _STATISTICS:
        return None
    top, bottom, mean = values[-_STATISTICS:].tolist()
    shape = list(tensor.shape)
    fields = {"Max": top, "Min": bottom, "Mean": mean}
    return {"type": "Tensor", "dtype": tensor.dtype, "shape": shape, **fields}


def _of_arrays(path: Path, out: CaptureWriter, gaps: list[str]) -> Iterator[_Call]:
    """Yield the calls of a folder: what they got and gave are two groups of files, one after the other."""
    out.data_folder = path.resolve()
    matches = [match for name in _names(path) if (match := _FILE_NAME.fullmatch(name))]
    matches.sort(key=lambda match: (int(match["group"]), match["part"], int(match["place"])))
    call, tensors = "", list[_Tensor]()
    last = -1
    for match in matches:
        group = int(match["group"])
        begins_anew = group != last and (match["part"] == "input" or group != last + 1)
        if tensors and (match["call"] != call or begins_anew):
            yield call, tensors
            tensors = []
        call, last = match["call"], group
        try:
            element = _element_of_array(path, match)
        except NotCheckable as reason:
            gaps.append(str(reason))
        else:
            tensors.append(_Tensor(match["part"], (int(match["place"]),), element))
    if tensors:
        yield call, tensors


def _names(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir()]
    except OSError as error:
        raise DumpError(f"the folder cannot be read: {error.strerror or error}") from None


def _element_of_array(path: Path, match: re.Match[str]) -> Element:
    """Return the element of a file, with the layout that its name says where that is of its shape."""
    name = match[0]
    with FolderFiles(path).open(name) as opened:
        values = npy_array(opened, name)
    element = described(values, name)
    shape, stride = (
        [int(each) for each in match[field].split(",") if each] for field in ("shape", "stride")
    )
    if tuple(shape) == values.shape and len(stride) == len(shape):
        if stride != _row_major(shape):
            element["stride"] = stride
        if int(match["offset"]):
            element["offset"] = int(match["offset"])
    return element


def _row_major(shape: Sequence[int]) -> list[int]:
    return [math.prod(max(1, size) for size in shape[place + 1 :]) for place in range(len(shape))]


FORMAT = Format("files of hooks", _is_here, _read)
