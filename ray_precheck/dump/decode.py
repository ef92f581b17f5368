"""One record of a dump, from JSON to `ApiRecord`.

Comes in: the raw JSON of a forward and a backward record. Goes out: an `ApiRecord`, or
`NotCheckable` with the place and the reason. Called in the workers, so that decoding is spread
over them. This is the only module in which bare dicts of the dump are handled.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ray_precheck.descriptors.descriptor import built_in_frameworks, find_framework
from ray_precheck.dump.fields import (
    decode_storage,
    finite,
    layout_of,
    lazy_of,
    require_earlier,
    structure_of,
)
from ray_precheck.dump.scan import ApiKey, loose_json, parse_key
from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import shown
from ray_precheck.numerics.statistics import MAX, MEAN, MIN, NORM
from ray_precheck.schema.dtypes import DTYPES, QUANTIZED, canonical_dtype
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import (
    Bound,
    Constant,
    MappingSpec,
    SequenceSpec,
    Symbol,
    TensorSpec,
    UnknownSpec,
    ValueSpec,
)

# The keys of a record, the present spelling first, then that of older captures: as in torch's hooks
# `grad_output` came in at the outputs (core/data_dump/data_processor/base.py of msprobe's first versions).
_ARGUMENTS = ("input_args", "input")
_GRADS_IN = ("input", "grad_output")
_GRADS_OUT = ("output", "grad_input")
_FINITE_MIN, _FINITE_MAX = f"{MIN}_except_inf_nan", f"{MAX}_except_inf_nan"
MAX_DIMENSIONS = 64
MAX_NESTING = 64
LONGEST_KEYWORD = 256
_MOST_ELEMENTS = 2**63 - 1
# Unions of types, which are made anew each time that they are written in a function.
_NUMBERS = int | float
_BOUNDS = _NUMBERS | None
_PLAIN = _BOUNDS | str
_EXCHANGES = "the call exchanges values with other ranks in its midst; one rank cannot make it"
_MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")


def decode_record(
    name: str, forward: bytes | None, backward: bytes | None, framework: str = ""
) -> ApiRecord:
    """Return the record of one API call of a dump of this framework; "" stands for a built-in one.

    Raises:
        NotCheckable: a record is broken or has no forward part; the text says where and why.
    """
    key = parse_key(f"{name}.forward")
    if not isinstance(key, ApiKey):
        raise NotCheckable(key.reason)
    if forward is None:
        raise NotCheckable("the dump has a backward record of this call but no forward record")
    words = words_of(framework)
    ahead = _load(forward, "forward")
    if ahead.get("exchanges") is True:
        raise NotCheckable(_EXCHANGES)
    grads_in = grads_out = gradient_of = None
    if backward is not None:
        behind = _load(backward, "backward")
        grads_in = _specs(behind, _GRADS_IN, "backward", words)
        grads_out = _specs(behind, _GRADS_OUT, "backward", words)
        gradient_of = _gradient_of(behind, len(grads_out))
    kwargs = _field(ahead, "input_kwargs", "forward", dict)
    record = ApiRecord(
        name=key.name,
        args=_arguments(ahead, words),
        kwargs=tuple(
            (key, decode_value(value, _below("input_kwargs", key), words))
            for key, value in kwargs.items()
        ),
        outputs=_specs(ahead, ("output",), "forward", words),
        grads_in=grads_in,
        grads_out=grads_out,
        gradient_of=gradient_of,
        autocast=_autocast(ahead, words),
        autocast_device=str(ahead.get("autocast_device") or ""),
        framework=framework,
    )
    require_earlier(record.input_tensors())
    told = ahead.get("changed") is not None
    return replace(record, changed=_changed(record, ahead, words)) if told else record


def _arguments(ahead: dict[str, Any], words: "Words") -> tuple[ValueSpec, ...]:
    """Return the positional arguments; of an index that was a list our captures say so."""
    args = _specs(ahead, _ARGUMENTS, "forward", words)
    if ahead.get("index") == "list" and len(args) > 1 and isinstance(args[1], SequenceSpec):
        return (args[0], replace(args[1], is_list=True), *args[2:])
    return args


def _changed(
    record: ApiRecord, ahead: dict[str, Any], words: "Words"
) -> tuple[tuple[str, TensorSpec], ...]:
    """Return the tensors that a call changed, with the paths of the arguments that they are."""
    after = _field(ahead, "changed", "forward", dict)
    arguments = {path for path, _ in record.input_tensors()}
    specs = ((path, decode_value(after[path], path, words)) for path in arguments & after.keys())
    return tuple(sorted((path, spec) for path, spec in specs if isinstance(spec, TensorSpec)))


def _load(raw: bytes, direction: str) -> dict[str, Any]:
    try:
        value = loose_json(raw)
    except (ValueError, RecursionError) as error:
        raise NotCheckable(f"broken {direction} record: {error or 'nested too deep'}") from None
    if not isinstance(value, dict):
        raise NotCheckable(f"broken {direction} record: an object is expected, not {shown(value)}")
    return value


def _field(record: dict[str, Any], key: str, direction: str, kind: type) -> Any:
    value = record.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise NotCheckable(
            f"broken {direction} record: {key} must be a {kind.__name__}, not {shown(value)}"
        )
    return value


def _specs(
    record: dict[str, Any], keys: Sequence[str], direction: str, words: "Words"
) -> tuple[ValueSpec, ...]:
    """Return the elements under the first of some keys that the record has."""
    key = next((key for key in keys if record.get(key) is not None), keys[0])
    items = _field(record, key, direction, list)
    return tuple(
        decode_value(item, f"{direction} {key}.{i}", words) for i, item in enumerate(items)
    )


def _is_index(place: Any) -> bool:
    return (type(place) is int and place >= 0) or (isinstance(place, str) and place.isdecimal())


def _gradient_of(record: dict[str, Any], gradients: int) -> tuple[int | None, ...] | None:
    """Return to which input each gradient belongs, as our captures say it; None without gradients.

    The numbers are texts there ("0"), since msprobe's `compare` takes every field for texts.
    """
    places = record.get("gradient_of")
    if places is None or not gradients:
        return None
    numbers = places if isinstance(places, list) and len(places) == gradients else ["none"]
    if all(place is None or _is_index(place) for place in numbers):
        return tuple(None if place is None else int(place) for place in numbers)
    raise NotCheckable(
        "broken backward record: gradient_of must have the number of an input, or null, for each of"
        f" {gradients} gradients, not {shown(places)}"
    )


def _autocast(record: dict[str, Any], words: "Words") -> str:
    """Return the dtype of autocast, "" for a call without it."""
    value = record.get("autocast")
    dtype = _dtype(value, words)
    if value is not None and (dtype is None or DTYPES[dtype].kind != "float"):
        raise NotCheckable(
            f"broken forward record: autocast must be a dtype of floats, not {shown(value)}"
        )
    return dtype or ""


def decode_value(value: Any, path: str, words: "Words", nesting: int = 0) -> ValueSpec:
    """Return the spec of one element of a record, which the words of its framework describe.

    Raises:
        NotCheckable: the element contradicts the dump's format, e.g. a negative extent.
    """
    if nesting > MAX_NESTING:
        raise NotCheckable(f"{path}: nested deeper than {MAX_NESTING} levels")
    if isinstance(value, _PLAIN):
        return Constant(value)
    if isinstance(value, list):
        return SequenceSpec(
            tuple(
                decode_value(item, f"{path}.{i}", words, nesting + 1)
                for i, item in enumerate(value)
            )
        )
    kind = value.get("type")
    if not isinstance(kind, str):
        if not value:
            return UnknownSpec("the dump has no description of this value ({})")
        pairs = value.items()
        return MappingSpec(
            tuple((k, decode_value(v, _below(path, k), words, nesting + 1)) for k, v in pairs)
        )
    if kind in words.tensor_types or ("dtype" in value and "shape" in value):
        return _decode_tensor(value, path, words)
    if words.value_types.get(kind) == "dtype":
        return _decode_dtype(value, words)
    decoder = _BY_TYPE.get(kind) or _BY_KIND.get(words.value_types.get(kind, ""))
    if decoder is None:
        return UnknownSpec(f"a value of type {shown(kind)} cannot be built from the dump")
    return decoder(value, path)


def _below(path: str, key: str) -> str:
    """Return the path of a value in an object. It is copied for each value below it, and shown."""
    if len(key) > LONGEST_KEYWORD:
        raise NotCheckable(f"{path}: a key of {len(key)} characters ({shown(key)}) names nothing")
    return f"{path}.{key}"


def _decode_tensor(value: dict[str, Any], path: str, words: "Words") -> ValueSpec:
    dtype = _dtype(value.get("dtype"), words)
    if dtype is None:
        return UnknownSpec(f"dtype {shown(value.get('dtype'))} is not supported")
    low, high = _bound(value.get(MIN), path), _bound(value.get(MAX), path)
    if low is not None and high is not None and low > high:
        raise NotCheckable(f"{path}: Min {shown(low)} is larger than Max {shown(high)}")
    requires_grad = value.get("requires_grad")
    data_name = value.get("data_name")
    shape = _shape(value.get("shape"), path)
    stride, offset, shares = layout_of(value, shape, path)
    storage = decode_storage(value, shape, path)
    if isinstance(storage, UnknownSpec):
        return storage
    vmapped = value.get("vmapped")
    samples = vmapped if type(vmapped) is int and 1 < vmapped <= _MOST_ELEMENTS else 1
    norm = _statistic(value.get(NORM))
    if isinstance(norm, float):
        norm /= math.sqrt(samples)
    return TensorSpec(
        dtype=dtype,
        shape=shape,
        low=low,
        high=high,
        requires_grad=requires_grad if isinstance(requires_grad, bool) else None,
        data_name=data_name if isinstance(data_name, str) else None,
        mean=_statistic(value.get(MEAN)),
        norm=norm,
        finite_low=finite(value.get(_FINITE_MIN)),
        finite_high=finite(value.get(_FINITE_MAX)),
        stride=stride,
        offset=offset,
        shares=shares,
        lazy=lazy_of(value, path),
        structure=structure_of(value, shape, path),
        storage=storage,
        vmapped=samples,
    )


def _dtype(value: Any, words: "Words") -> str | None:
    if not isinstance(value, str):
        return None
    return canonical_dtype(value) or words.dtypes.get(value)


def _shape(value: Any, path: str, least: int = 0) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(type(n) is int and n >= least for n in value)
    if not whole:
        raise NotCheckable(
            f"{path}: shape {shown(value)} is not a list of extents of {least} or more"
        )
    if len(value) > MAX_DIMENSIONS:
        raise NotCheckable(
            f"{path}: {len(value)} dimensions, at most {MAX_DIMENSIONS} are possible"
        )
    if math.prod([abs(extent) for extent in value if extent]) > _MOST_ELEMENTS:
        raise NotCheckable(f"{path}: no tensor is as large as shape {shown(value)}")
    return tuple(value)


def _bound(value: Any, path: str) -> Bound:
    if isinstance(value, _BOUNDS):
        return value
    try:
        # Some writers quote what strict JSON cannot express ("nan", "-inf").
        return float(value)
    except (TypeError, ValueError):
        raise NotCheckable(f"{path}: Max or Min {shown(value)} is not a number") from None


def _statistic(value: Any) -> Bound:
    """Return Mean or Norm; None for a value that is no number, because inputs can be drawn without
    them."""
    return value if isinstance(value, _NUMBERS) else None


def _plain(*kinds: type) -> Callable[[dict[str, Any], str], ValueSpec]:
    def decode(value: dict[str, Any], path: str) -> ValueSpec:
        inner = value.get("value")
        if kinds and not isinstance(inner, kinds):
            raise NotCheckable(f"{path}: {shown(inner)} is not of type {value['type']}")
        return Constant(inner)

    return decode


def _decode_float(value: dict[str, Any], path: str) -> ValueSpec:
    bound = _bound(value.get("value"), path)
    if bound is None:
        raise NotCheckable(f"{path}: null is not of type {value['type']}")
    try:
        return Constant(float(bound))
    except OverflowError:
        raise NotCheckable(
            f"{path}: {shown(bound)} is not a number that a float can hold"
        ) from None


def _decode_complex(value: dict[str, Any], path: str) -> ValueSpec:
    inner: Any = value.get("value")
    try:
        return Constant(complex(inner.replace(" ", "") if isinstance(inner, str) else inner))
    except (ValueError, TypeError, OverflowError):
        raise NotCheckable(f"{path}: {shown(inner)} is not a complex number") from None


def _decode_slice(value: dict[str, Any], path: str) -> ValueSpec:
    parts = value.get("value")
    if not isinstance(parts, list) or len(parts) != 3:
        raise NotCheckable(f"{path}: a slice needs [start, stop, step], not {shown(parts)}")
    if not all(part is None or type(part) is int for part in parts):
        return UnknownSpec(f"slice bounds {shown(parts)} are not all whole numbers or null")
    return Constant(slice(*parts))


def _decode_size(value: dict[str, Any], path: str) -> ValueSpec:
    # A size that is asked for (`x.view(x.size()[:-1] + (-1,))`) leaves an extent open by -1.
    return Constant(_shape(value.get("value"), path, least=-1))


# What captures write of `dtype=None` and of Python's types, and the dtypes that frameworks take them for.
_OF_PYTHON: dict[Any, str | None] = {
    "None": None,
    "<class 'bool'>": "bool",
    "<class 'int'>": "int64",
    "<class 'float'>": "float64",
    "<class 'complex'>": "complex128",
}


def _decode_dtype(value: dict[str, Any], words: "Words") -> ValueSpec:
    text = value.get("value")
    if isinstance(text, str) and text in _OF_PYTHON:
        dtype = _OF_PYTHON[text]
        return Constant(None) if dtype is None else Symbol("dtype", dtype)
    dtype = _dtype(value.get("value"), words)
    if dtype is None:
        return UnknownSpec(f"dtype {shown(value.get('value'))} is not supported")
    name = str(value.get("value")).rpartition(".")[2]
    return Symbol("dtype", name if name in QUANTIZED else dtype)


def _decode_device(value: dict[str, Any], path: str) -> ValueSpec:
    text = value.get("value")
    if text is None:  # `device=None`
        return Constant(None)
    if not isinstance(text, str):
        return UnknownSpec("the dump does not say which device this is")
    return Symbol("device", text.rsplit(".", 1)[-1])


def _decode_memory_format(value: dict[str, Any], path: str) -> ValueSpec:
    text = value.get("format", value.get("value"))
    name = text.rsplit(".", 1)[-1] if isinstance(text, str) else None
    if name not in _MEMORY_FORMATS:
        # The name is looked up in torch, so it must not be `torch.load`.
        return UnknownSpec(f"the dump does not say which memory_format this is: {shown(text)}")
    return Symbol("memory_format", name)


# A capture writes the bare names of numpy's types, as msprobe does for PyTorch.
_BARE = ("", "numpy.")
_NUMPY_INTEGERS = [
    f"{before}{sign}int{bits}" for before in _BARE for sign in ("", "u") for bits in (8, 16, 32, 64)
]
_NUMPY_FLOATS = [f"{before}float{bits}" for before in _BARE for bits in (16, 32, 64)]
_BY_TYPE: dict[str, Callable[[dict[str, Any], str], ValueSpec]] = {
    "int": _plain(int),
    "bool": _plain(bool),
    "str": _plain(str),
    "float": _decode_float,
    "complex": _decode_complex,
    "NoneType": lambda value, path: Constant(None),
    "slice": _decode_slice,
    "ellipsis": lambda value, path: Constant(Ellipsis),
    **dict.fromkeys(("bool_", "numpy.bool_"), _plain(bool, int)),
    **dict.fromkeys(_NUMPY_INTEGERS, _plain(int)),
    **dict.fromkeys(_NUMPY_FLOATS, _decode_float),
}
# The kinds of values that frameworks have types of their own for; a dtype is read with its words.
_BY_KIND: dict[str, Callable[[dict[str, Any], str], ValueSpec]] = {
    "size": _decode_size,
    "device": _decode_device,
    "memory_format": _decode_memory_format,
}


@dataclass(frozen=True, slots=True)
class Words:
    """How a dump names types and dtypes: the built-in frameworks' way, and its own framework's.

    `value_types` has the kinds of values by their types, `dtypes` canonical dtypes by their spelling.
    """

    tensor_types: frozenset[str]
    value_types: Mapping[str, str]
    dtypes: Mapping[str, str]


@lru_cache(maxsize=8)
def words_of(framework: str = "") -> Words:
    """Return the words of the dumps of a framework; of "" those of the built-in ones.

    Raises:
        UsageError: the framework is unknown, or its descriptor cannot be used.
    """
    frameworks = [*built_in_frameworks(), *([find_framework(framework)] if framework else [])]
    return Words(
        frozenset(name for each in frameworks for name in each.tensor_types),
        {name: kind for each in frameworks for name, kind in each.value_types.items()},
        {name: dtype for each in frameworks for dtype, name in each.dtype_names.items()},
    )
