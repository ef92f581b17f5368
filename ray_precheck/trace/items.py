"""The values of one record, under the names that comparisons give them.

Comes in: the JSON of a record, decoded. Goes out: an `Item` for each tensor and each other value. Called
by whatever compares records. The names are msprobe's: `input.0`, `input.1.0` for a value in a list,
`input.dim` for a keyword, `output.0`, `parameters.weight`. An argument that the call has changed is an
output, too: `changed.1` is `input.1` after the call.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from ray_precheck.dump.fields import decode_storage
from ray_precheck.errors import NotCheckable
from ray_precheck.numerics.statistics import MAX, MEAN, MIN, NORM
from ray_precheck.schema.values import TensorSpec, UnknownSpec

# The parts of a record in the order in which a comparison has them, and what their names begin with.
PARTS = {
    "input_args": "input",
    "input_kwargs": "input",
    "input": "input",
    "parameters": "parameters",
    "output": "output",
    "changed": "output",
}
INPUT, PARAMETERS, OUTPUT, GRADIENTS, SAVED = (
    "input",
    "parameters",
    "output",
    "parameters_grad",
    "debug",
)
# The names of the first values of each part: a dump has millions of values.
_NUMBERED = {part: [f"{part}.{number}" for number in range(64)] for part in PARTS.values()}
# The ends of their paths.
NUMBERS = [str(number) for number in range(64)]
# Deeper nests than any program's: a record that was made to overflow the stack is cut here.
_DEEPEST = 400
_CHANGED = "changed."
_P2P = "torch.distributed.P2POp"


class Item(NamedTuple):
    """A value of a record: its name behind the key of the record, the part of the record that it is in
    (`INPUT`, ...), and its element in the dump, None for null."""

    path: str
    part: str
    element: Mapping[str, Any] | None

    @property
    def is_changed(self) -> bool:
        """Whether it is an argument as the call has left it."""
        return self.path.startswith(_CHANGED)

    @property
    def type_name(self) -> str:
        """The type in the dump: `torch.Tensor`, `int`; "" for null."""
        return self._word("type")

    @property
    def is_tensor(self) -> bool:
        """Whether it has a dtype and a shape."""
        element = self.element
        if not element:
            return False
        dtype, shape = element.get("dtype"), element.get("shape")
        if type(dtype) is not str or not dtype or type(shape) is not list:
            return False
        # A loop is twice as fast as `all`, and a dump has millions of shapes.
        for size in shape:  # noqa: SIM110
            if type(size) is not int:
                return False
        return True

    @property
    def state_name(self) -> str:
        """The model's name for one of its parameters or buffers, `layers.0.weight`; "" for others."""
        return self._word("parameter") or self._word("buffer")

    @property
    def model_name(self) -> str:
        """The model's name for one of its parameters, buffers or inputs (`attention_mask`); "" for others."""
        return self.state_name or self._word("argument")

    @property
    def bucket_name(self) -> str:
        """The parameter whose gradient it is in a bucket, or that it is in a broadcast of several; "" for
        others."""
        return self._word("of_parameter")

    @property
    def mark(self) -> tuple[object, ...]:
        """What tells the values of a tensor from those of others in the same run."""
        return (math.prod(self.shape or ()), *self.ends, self.norm, self.digest)

    @property
    def put_together(self) -> str:
        """How it was put together of the ranks of a run that another layout is compared with; else ""."""
        return self._word("gathered")

    @property
    def is_left_out(self) -> bool:
        """Whether it has no values, because those of other layouts could not be put together."""
        return self.is_tensor and self.norm is None and bool(self.put_together)

    def _word(self, field: str) -> str:
        found = self.element.get(field) if self.element else None
        return found if isinstance(found, str) else ""

    @property
    def dtype(self) -> str:
        """The dtype in the framework's spelling, `torch.float32`; "" for what is no tensor."""
        found = self.element.get("dtype") if self.element else None
        return found if isinstance(found, str) else ""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of a tensor; None for what is none."""
        found = self.element.get("shape") if self.element else None
        if type(found) is not list:
            return None
        for size in found:
            if type(size) is not int:
                return None
        return tuple(found)

    def spec(self, dtype: str) -> TensorSpec:
        """Return what a reader of its file wants to know, of its canonical dtype.

        Raises:
            NotCheckable: the dump's description contradicts itself.
        """
        shape = self.shape or ()
        storage = decode_storage(self.element or {}, shape, self.path)
        if isinstance(storage, UnknownSpec):
            raise NotCheckable(storage.reason)
        return TensorSpec(dtype, shape, data_name=self.file or None, storage=storage)

    @property
    def file(self) -> str:
        """The name of its file in the folder of tensors; "" where it has none."""
        return self._word("data_name")

    @property
    def variable(self) -> str:
        """The identity of a tensor in its run, which captures of graphs have (`formats`); "" for unknown."""
        return self._word("variable")

    @property
    def origin(self) -> str:
        """The tensor of the model that it is, whatever operator gave it on the device: captures of compiled
        graphs say so (`formats.precision_tool`); "" for unknown."""
        return self._word("origin")

    @property
    def digest(self) -> str:
        """The digest of its bytes (`md5`, which is a CRC-32, or `xor`); "" where it has none."""
        return self._word("md5")

    def statistic(self, name: str) -> Any:
        """Return a field, such as a statistic, as it stands in the dump; None where it is missing."""
        return self.element.get(name) if self.element else None

    def number(self, name: str) -> float | None:
        """Return a statistic as a number, NaN and infinities too; None for anything else.

        The statistics of truth values are True and False, which are 1 and 0.
        """
        found = self.element.get(name) if self.element else None
        if type(found) is float:  # nearly all are
            return found
        if isinstance(found, bool | int | float):
            try:
                return float(found)
            except OverflowError:  # more digits than a statistic has
                return None
        if isinstance(found, str):
            return _WORDS.get(found.lower())
        return None

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """Max and Min."""
        return self.number(MAX), self.number(MIN)

    @property
    def mean(self) -> float | None:
        """Mean."""
        return self.number(MEAN)

    @property
    def norm(self) -> float | None:
        """Norm, the L2 norm."""
        return self.number(NORM)

    @property
    def is_finite(self) -> bool | None:
        """Whether Max and Min are finite; None where neither is known."""
        known = [each for each in self.ends if each is not None]
        return all(map(math.isfinite, known)) if known else None


# Item(path, part, element) takes three times as long as tuple.__new__.
_item = partial(tuple.__new__, Item)
_WORDS = {
    "nan": math.nan,
    "inf": math.inf,
    "infinity": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
}


# What wrappers of torch add to the names of modules and parameters.
_WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))


def bare_name(name: str) -> str:
    """Return the name of a parameter or module without what `DistributedDataParallel`, `torch.compile` and
    other wrappers of a model add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


# How a tensor was put together of ranks (`put_together`): of tokens by numbers that do not show their order,
# and not at all, of experts of which this was said of another tensor.
UNORDERED = "Max, Min, Mean and Norm do not show the order of these tokens"
SAID_BEFORE = "each rank has tokens of its own here, too: not compared"

# The lists in the record of an update that have an entry for each parameter.
_OF_PARAMETERS = frozenset(("names", "params", "grads", "state"))


def parameter_names(items: Iterable[Item]) -> dict[tuple[str, str], str]:
    """Return the names of the parameters of an update by the places of their group and of themselves in it,
    as texts; none for other records."""
    found = {}
    for item in items:
        _, _, place = item.path.partition(".")
        group, _, number = place.partition(".names.")
        name = item.element.get("value") if item.element and number else None
        if isinstance(name, str):
            found[group, number] = bare_name(name)
    return found


def parameter_place(item: Item) -> tuple[str, str] | None:
    """Return of which parameter of an update a value is, as `parameter_names` has it; None for others."""
    parts = item.path.split(".")
    if len(parts) < 4 or parts[2] not in _OF_PARAMETERS:
        return None
    return parts[1], parts[-1]


def items_of(record: Mapping[str, Any], key: str = "") -> list[Item]:
    """Return the values of a record in the order of a comparison: inputs, parameters, outputs.

    Of a record of gradients of parameters (`*.parameters_grad`) and of saved values (level `debug`) `key`
    tells; the other records need none.
    """
    *before, last = key.rsplit(".", 2) if key else [""]
    if last == GRADIENTS or (before and before[-1] == GRADIENTS):
        return list(_leaves(record, "", GRADIENTS, 0, in_lists=False))
    if last == SAVED:
        return list(_leaves(record, "", SAVED, 0))
    found: list[Item] = []
    for name, part in PARTS.items():
        if name not in record:
            continue
        values = record[name]
        if f"{name}." == _CHANGED and isinstance(values, dict):
            for path, each in values.items():
                found += _leaves(each, f"{_CHANGED}{path.partition('.')[2]}", part, 1)
            continue
        if not isinstance(values, list):
            found += _leaves(values, part, part, 0)
            continue
        names = _NUMBERED[part]
        if len(values) > len(names):
            names = [f"{part}.{number}" for number in range(len(values))]
        # Nearly all of them are tensors or numbers, not nested.
        for path, each in zip(names, values, strict=False):
            if type(each) is dict and type(each.get("type")) is str and "class_type" not in each:
                found.append(_item((path, part, each)))
            else:
                found += _leaves(each, path, part, 1)
    carried = record.get("parameters")
    return _with_names(found, carried) if isinstance(carried, list) and carried else found


def _with_names(items: list[Item], names: list[Any]) -> list[Item]:
    """Return the values of a collective with the parameters that they are of, where each has one: the
    tensors of its first list, before and after it."""
    for begin in (f"{INPUT}.0.", f"{OUTPUT}.0."):
        places = [place for place, item in enumerate(items) if item.path.startswith(begin)]
        if len(places) != len(names):
            continue
        for place, name in zip(places, names, strict=True):
            item = items[place]
            if item.element is not None and isinstance(name, str):
                items[place] = item._replace(
                    element={**item.element, "of_parameter": bare_name(name)}
                )
    return items


def unfolded(values: Any, name: str) -> tuple[list[str], list[Any]]:
    """Return the values of a field of a record, `input_args`, as `items_of` has them: the ends of their
    paths, `0` for `input.0`, and their elements in the dump."""
    items = items_of({name: values})
    begin = f"{PARTS[name]}."
    return [item.path.removeprefix(begin) for item in items], [item.element for item in items]


def _leaves(
    value: Any, path: str, part: str, depth: int, *, in_lists: bool = True
) -> Iterator[Item]:
    if value is None:
        yield Item(path, part, None)
    elif depth > _DEEPEST:
        return
    elif isinstance(value, list):
        for number, each in enumerate(value):
            inner = _below(path, str(number)) if in_lists else path
            yield from _leaves(each, inner, part, depth + 1, in_lists=in_lists)
    elif isinstance(value, dict):
        if value.get("class_type") == _P2P:
            yield from _leaves(value.get("tensor"), path, part, depth + 1)
        elif isinstance(value.get("type"), str):
            yield Item(path, part, value)
        else:
            for name, each in value.items():
                inner = _below(path, str(name))
                yield from _leaves(each, inner, part, depth + 1, in_lists=in_lists)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
