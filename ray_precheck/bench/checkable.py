"""What a call does, as far as its record tells: whether it can be checked, what it changes, whether it draws.

Comes in: names and records. Goes out: a reason for a SKIP row, or "". `skip_by_name` needs the
name alone and is called by the planner; `skip_by_record` is called where the record is decoded.

What a call changes beside its outputs (running statistics, the states of an optimizer) has rows of its own
(`X.0.forward.changed.running_mean`). A dump of ours tells it. For one that does not, the table of operators
does: they may change these tensors, and whether they did is seen when they have run.

Calls draw random numbers always, or because of their arguments. Every operator of torch and MindSpore that
takes a probability to drop, a `training` flag, a seed or a generator stands in the table `operators.drawing`;
a test reads the signatures of the installed frameworks and names what is missing.
"""

import functools
import hashlib
import re
from dataclasses import replace
from typing import NamedTuple

from ray_precheck.descriptors.descriptor import built_in_frameworks, find_framework
from ray_precheck.operators.drawing import (
    DRAWING,
    PACKED_RNN,
    RNN,
    Always,
    Drawing,
    DrawsIf,
    Unjudged,
)
from ray_precheck.operators.effects import (
    AUGMENTED,
    CHANGES,
    OF_A_STORAGE,
    READS_BITS,
    READS_LAYOUT,
)
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import Constant, Symbol, TensorSpec, UnknownSpec, ValueSpec

_PATH = re.compile(r"input_(?:args\.(?P<position>\d+)|kwargs\.(?P<name>[^.]*))(?P<rest>.*)")


def skip_by_name(name: ApiName, framework: str) -> str:
    """Return why calls of this name cannot be checked, "" where they may be.

    A prefix that no framework has may belong to a user's own bench if it is a Python name; the
    bench decides.
    """
    own = find_framework(framework)
    refused = own.refused_prefixes.get(name.prefix) or own.refused.get(name.type_name)
    if refused:
        return refused
    if not name.prefix.isidentifier() or name.prefix in _built_in_prefixes():
        return unsupported_prefix(name, framework)
    return ""


@functools.cache
def _built_in_prefixes() -> frozenset[str]:
    return frozenset(prefix for each in built_in_frameworks() for prefix in each.prefixes)


def unsupported_prefix(name: ApiName, framework: str) -> str:
    """Return the reason if the framework does not have a prefix, "" if it does."""
    known = find_framework(framework).prefixes
    if name.prefix in known:
        return ""
    supported = ", ".join(known)
    return f"prefix {name.prefix} is not supported for {framework} (supported: {supported})"


def skip_by_record(record: ApiRecord) -> str:
    """Return why this call cannot be checked, "" where it can: it depends on the bits of its input, or
    is random in a way that neither a bench nor a statistic can judge."""
    type_name = record.name.type_name
    if READS_BITS.of(type_name, record.framework) and any(
        isinstance(spec, Symbol) and spec.kind == "dtype"
        for spec in (*record.args, *dict(record.kwargs).values())
    ):
        return "it reads the bits of its input as another dtype, but the bench has float64 bits"
    if OF_A_STORAGE.of(type_name, record.framework):
        leaves = [spec for _, spec in record.input_leaves()]
        if not any(_has_storage(spec) for spec in leaves):
            return "its input is a sparse, quantized or nested tensor, which the dump does not describe"
    if READS_LAYOUT.of(type_name, record.framework) and _reads_beyond_its_input(record):
        return "it reads memory around its input, which the dump does not hold"
    drawing = DRAWING.of(type_name, record.framework)
    return drawing.reason if isinstance(drawing, Unjudged) else ""


def _reads_beyond_its_input(record: ApiRecord) -> bool:
    """Return whether the output is a view (`as_strided`) of memory before or behind the input."""
    given = next((spec for _, spec in record.input_tensors()), None)
    out = record.outputs[0] if record.outputs else None
    if record.name.api.rstrip("_") != "as_strided" or given is None:
        return False
    if not isinstance(out, TensorSpec) or not out.size:
        return False
    (begin, end), (first, last) = _places(given), _places(out)
    return first < begin or last > end


def _places(spec: TensorSpec) -> tuple[int, int]:
    """Return the places of the first and the last element of a tensor in its memory."""
    steps = zip(spec.shape, spec.stride or (), strict=False)
    span = spec.size - 1 if spec.stride is None else sum((n - 1) * step for n, step in steps)
    return spec.offset, spec.offset + span


def _has_storage(spec: ValueSpec) -> bool:
    """Return whether a tensor's storage is described, or its reason says that it is not."""
    return isinstance(spec, UnknownSpec) or (
        isinstance(spec, TensorSpec) and spec.storage is not None
    )


def changes_its_input(record: ApiRecord) -> bool:
    """Return whether the API writes into its first argument.

    Names with one trailing underscore, augmented assignments, and calls with `inplace`. The flag
    may be positional in torch.nn.functional; a positional True there counts, at the price of a
    needless copy.
    """
    api = record.name.api
    if AUGMENTED.of(record.name.type_name, record.framework):
        return True
    if api.endswith("_") and not api.endswith("__"):
        return True
    flagged = dict(record.kwargs).get("inplace") == Constant(True)
    positional = any(isinstance(arg, Constant) and arg.value is True for arg in record.args)
    return flagged or (record.name.prefix == "Functional" and positional)


class Changed(NamedTuple):
    """A tensor that a call may change: its position among all input tensors, its argument path, and its
    name in rows, which has no dots."""

    position: int
    path: str
    name: str


def changed_tensors(record: ApiRecord) -> tuple[Changed, ...]:
    """Return the tensors that a call may change, but for those that are its outputs, or lie in the memory of
    one: a bench that has them apart does not change them."""
    names, marked = _parameters(record)
    told = {path for path, _ in record.changed or ()}
    if not marked and not told:
        return ()
    in_place = changes_its_input(record)
    found: list[Changed] = []
    first: dict[str, str] = {}
    outputs: set[str] = set()
    for path, spec in record.input_tensors():
        first[path] = first.get(spec.shares, path)
        if path == "input_kwargs.out" or (in_place and path == "input_args.0"):
            outputs.add(first[path])
    for position, (path, _) in enumerate(record.input_tensors()):
        match = _PATH.fullmatch(path)
        assert match is not None
        index = -1 if match["position"] is None else int(match["position"])
        name = match["name"] if index < 0 else names[index] if index < len(names) else ""
        is_output = match["name"] == "out" or (in_place and index == 0) or first[path] in outputs
        if not is_output and (path in told or name in marked):
            label = f"{name}{match['rest']}" if name else path
            found.append(Changed(position, path, re.sub(r"\W", "_", label)))
    return tuple(found)


def _parameters(record: ApiRecord) -> tuple[list[str], set[str]]:
    """Return the names of an operator's first parameters, and those of the tensors that it may change."""
    row = CHANGES.of(record.name.type_name, record.framework)
    words = [word.partition("!") for word in row.split()] if row else []
    names = [word for word, _, _ in words]
    arguments = (*zip(names, record.args, strict=False), *record.kwargs)
    given = {name for name, spec in arguments if spec != Constant(None)}
    marked = {name for name, mark, needed in words if mark and (not needed or needed in given)}
    return names, marked


def is_random(record: ApiRecord) -> bool:
    """Return whether two right runs of a call may differ, so that only statistics can judge it."""
    return isinstance(_drawing(record), Always) or is_dropping(record)


def is_dropping(record: ApiRecord) -> bool:
    """Return whether a call draws because of the arguments with which it was called."""
    switch = _switch_of(record)
    if switch is None:
        return False
    if switch.training and _is(record, switch, switch.training, switch.default_training, False):
        return False
    if switch.needs_layers and _is(record, switch, "num_layers", 2, 1):
        return False
    default = switch.default_probability
    return not (switch.probability and _is(record, switch, switch.probability, default, 0))


def without_drawing(record: ApiRecord) -> ApiRecord:
    """Return the record of a dropping call with the probability to drop set to 0; the record itself
    where it takes none (rrelu)."""
    switch = _switch_of(record)
    if switch is None or switch.probability is None:
        return record
    args = list(record.args)
    position = switch.names.split().index(switch.probability)
    if position < len(args):
        args[position] = Constant(0.0)
        return replace(record, args=tuple(args))
    kwargs = {**dict(record.kwargs), switch.probability: Constant(0.0)}
    return replace(record, kwargs=tuple(kwargs.items()))


def seed_of(seed: int, api_name: str) -> int:
    """Return the seed of one call's draws, 0 to 2^31 - 1: the same on every host, in any order."""
    text = f"{seed}\0{api_name}\0draws".encode("utf-8", errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") % 2**31


def shows_mask(record: ApiRecord) -> bool:
    """Return whether input and output of a call with dropout show which elements were dropped."""
    switch = _switch_of(record)
    return switch is not None and switch.shows_mask


def _drawing(record: ApiRecord) -> Drawing | None:
    return DRAWING.of(record.name.type_name, record.framework)


def _switch_of(record: ApiRecord) -> DrawsIf | None:
    switch = _drawing(record)
    if switch == RNN and _is_packed(record):
        return PACKED_RNN
    return switch if isinstance(switch, DrawsIf) else None


def _is_packed(record: ApiRecord) -> bool:
    """Return whether a recurrent call is that of packed sequences, which has one argument more before
    the flag `has_biases`, or names its `data`."""
    flags = [isinstance(arg, Constant) and isinstance(arg.value, bool) for arg in record.args[:5]]
    return flags[4:] == [True] or "batch_sizes" in dict(record.kwargs)


def _is(record: ApiRecord, switch: DrawsIf, name: str, default: object, value: object) -> bool:
    """Return whether an argument has this value; the value of an argument that is no constant is
    unknown."""
    kwargs: dict[str, ValueSpec] = dict(record.kwargs)
    found = next((kwargs[keyword] for keyword in name.split("|") if keyword in kwargs), None)
    position = switch.names.split().index(name)
    if found is None and position < len(record.args):
        found = record.args[position]
    if found is None:
        return default == value
    return isinstance(found, Constant) and found.value == value
