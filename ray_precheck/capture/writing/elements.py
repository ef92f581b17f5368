"""One argument or output of a call as JSON, in msprobe's form.

Comes in: any Python value, and the place of it ("input.0") for the name of a tensor's file. Goes out: its
JSON, with NaN and the infinities as the bare words that Python's own reader takes. Called for each argument,
output and gradient of each call, so that texts are put together without building objects first; what belongs
to one framework is added by its folder.

A list, a tuple and a range become an array, a named tuple, a dataclass and a dict an object, tensors an
object with dtype, shape and statistics; what msprobe has no form for is null, as there, but for a complex
number.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import orjson

from ray_precheck.numerics.statistics import FIELDS, MAX, Health, TensorSummary

_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
quoted = json.encoder.encode_basestring_ascii
_DEEPEST = 10
NULL = "null"
NO_STATISTICS = ", ".join(f'"{name}": null' for name in FIELDS)
# What stands in the fields of a tensor with a NaN in it.
HAS_NAN = f'"{MAX}": NaN'
Write = Callable[[Any], str]


def number(value: float) -> str:
    """Return a float as JSON; what is not finite is `NaN`, `Infinity` or `-Infinity`."""
    text = repr(value)
    return text if text[-1] not in "nf" else _WORDS[text]


def scalar(value: float | int | bool | None) -> str:
    """Return a Python number, a truth value or None as JSON."""
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    return number(value) if isinstance(value, float) else repr(value)


def array(texts: Iterable[str]) -> str:
    """Return a JSON array of values that are texts already."""
    return f"[{', '.join(texts)}]"


def mapping(items: Iterable[tuple[str, str]]) -> str:
    """Return a JSON object of names and of values that are texts already."""
    return "{" + ", ".join(f"{quoted(name)}: {text}" for name, text in items) + "}"


def statistics_text(summary: TensorSummary | None) -> str:
    """Return the fields of a tensor's statistics."""
    if summary is None:
        return NO_STATISTICS
    fields = summary.fields()
    text = orjson.dumps(fields)
    if b"null" not in text:
        return text.decode()[1:-1]
    # JSON proper has no NaN and no infinities.
    return ", ".join([f'"{name}": {scalar(value)}' for name, value in fields.items()])


def health_field(health: Health) -> str:
    """Return the field of an element's `health`: counts that are not 0, and the headroom in powers of two.

    `{"nan": 3, "+inf": 1, "-inf": 2, "zero": 7, "subnormal": 4, "headroom": 12.3}`; "" where nothing
    but the headroom could be said, and that follows from Max, Min and dtype.
    """
    counts = {
        "nan": health.nan,
        "+inf": health.positive_infinity,
        "-inf": health.negative_infinity,
        "zero": health.zero,
        "subnormal": health.subnormal,
    }
    items = [(name, str(count)) for name, count in counts.items() if count]
    if not items:
        return ""
    if health.headroom is not None:
        items.append(("headroom", number(round(health.headroom, 1))))
    return f', "health": {mapping(items)}'


def _slice(value: slice) -> str:
    ends = [_whole(end) for end in (value.start, value.stop, value.step)]
    return f'{{"type": "slice", "value": {array(ends)}}}'


def _whole(end: Any) -> str:
    """Return an end of a slice, which may be a tensor of one element."""
    try:
        return NULL if end is None else repr(int(end))
    except (TypeError, ValueError, RuntimeError):
        return NULL


def _numpy(value: Any) -> str:
    plain = value.item()
    shown = scalar(plain) if isinstance(plain, bool | int | float) else quoted(str(plain))
    return f'{{"type": {quoted(type(value).__name__)}, "value": {shown}}}'


def _array(value: np.ndarray[Any, Any]) -> str:
    """Return an array of numpy; those of texts and objects have no statistics."""
    header = (
        f'"type": "numpy.ndarray", "dtype": {quoted(str(value.dtype))},'
        f' "shape": {list(value.shape)}'
    )
    if not value.size or value.dtype.kind not in "biuf":
        return f"{{{header}, {NO_STATISTICS}}}"
    wide = value.astype(np.float64)
    mean, norm = float(wide.mean()), float(np.linalg.norm(wide.reshape(-1)))
    found = TensorSummary(value.max().item(), value.min().item(), mean, norm)
    return f"{{{header}, {statistics_text(found)}}}"


# Types by identity, which is faster than asking for a base; the bases are asked after these.
PLAIN: Mapping[type, Write] = {
    bool: lambda v: '{"type": "bool", "value": true}' if v else '{"type": "bool", "value": false}',
    int: lambda v: f'{{"type": "int", "value": {v!r}}}',
    float: lambda v: f'{{"type": "float", "value": {number(v)}}}',
    complex: lambda v: f'{{"type": "complex", "value": "{v!r}"}}',
    str: lambda v: f'{{"type": "str", "value": {quoted(v)}}}',
    slice: _slice,
    type(Ellipsis): lambda _: '{"type": "ellipsis", "value": "..."}',
}

BASES: tuple[tuple[type, Write], ...] = (
    (np.ndarray, _array),
    (np.generic, _numpy),
    (bool, PLAIN[bool]),
    (int, lambda v: f'{{"type": {quoted(type(v).__name__)}, "value": {int(v)}}}'),
    (float, lambda v: f'{{"type": {quoted(type(v).__name__)}, "value": {number(float(v))}}}'),
    (str, lambda v: f'{{"type": {quoted(type(v).__name__)}, "value": {quoted(str(v))}}}'),
)


class PlainElements:
    """Writes values; what is to be said of a tensor's values is said by `of_tensor`.

    A framework names its tensors' class, and the types that it has besides Python's: `plain` by identity,
    `bases` by inheritance.
    """

    tensor: ClassVar[type[Any]] = type(None)
    plain: ClassVar[Mapping[type, Write]] = PLAIN
    bases: ClassVar[tuple[tuple[type, Write], ...]] = BASES

    def __init__(self, of_tensor: Callable[[Any, str], str]) -> None:
        self.of_tensor = of_tensor

    def arguments(self, values: tuple[Any, ...], place: str) -> str:
        """Return an array of arguments."""
        tensor, of_tensor, one = self.tensor, self.of_tensor, self.one
        return array(
            [
                (of_tensor if type(value) is tensor else one)(value, f"{place}.{index}")
                for index, value in enumerate(values)
            ]
        )

    def keywords(self, values: dict[str, Any], place: str) -> str:
        """Return an object of keyword arguments."""
        if not values:
            return "{}"
        return mapping([(name, self.keyword(name, each, place)) for name, each in values.items()])

    def outputs(self, value: Any) -> str:
        """Return an array of outputs; a tuple or list has one element for each."""
        values = tuple(value) if isinstance(value, tuple | list) else (value,)
        return self.arguments(values, "output")

    def one(self, value: Any, place: str, depth: int = 0) -> str:
        """Return one value."""
        if value is None:
            return NULL
        if isinstance(value, self.tensor):
            return self.of_tensor(value, place)
        write = self.plain.get(type(value))
        if write is not None:
            return write(value)
        if depth >= _DEEPEST:
            return NULL
        return self.nested(value, place, depth)

    def keyword(self, name: str, value: Any, place: str) -> str:
        """Return the value of a keyword argument."""
        return self.one(value, f"{place}.{name}")

    def nested(self, value: Any, place: str, depth: int) -> str:
        """Return a value that holds others, or one of a type that is not in the table."""
        if isinstance(value, tuple | list | range) and not hasattr(value, "_fields"):
            return array(
                [self.one(x, f"{place}.{index}", depth + 1) for index, x in enumerate(value)]
            )
        named = _fields_of(value)
        if named is not None:
            return mapping(
                [
                    (str(key), self.one(each, f"{place}.{key}", depth + 1))
                    for key, each in named.items()
                ]
            )
        for base, write in self.bases:
            if isinstance(value, base):
                return write(value)
        return NULL


def index_field(api: str, args: tuple[Any, ...]) -> str:
    """Return the field that says of an index that it was a list or a range: `x[[0, 1]]` looks like `x[0, 1]`
    else."""
    is_index = api.endswith(("__getitem__", "__setitem__")) and len(args) > 1
    return ', "index": "list"' if is_index and type(args[1]) in (list, range) else ""


def _fields_of(value: Any) -> dict[Any, Any] | None:
    """Return the fields of a dict, a named tuple or a dataclass.

    A dataclass that is a dict, too, as the outputs of transformers' models, leaves out in the latter what is
    None; msprobe has its fields.
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in value._fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return value if isinstance(value, dict) else None


class FrameworkValues:
    """What a framework says of saved values; `elements` writes them."""

    framework: ClassVar[str]
    elements: PlainElements

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def on_gradient(self, tensor: Any, take: Callable[[Any], None]) -> None:
        """Let `take` have the gradient of a tensor when it arrives; where none does it is never called."""
        self._handles.append(tensor.register_hook(take))

    def close(self) -> None:
        """Wait for no gradient any more; hooks of parameters would stay for all steps."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
