"""Calls that draw random numbers: always, or because of their arguments.

Comes in: a record. Goes out: whether two right runs of the call may differ, and the call with its
drawing switched off. Called by `bench.checkable` and by `check.random.judge`. Every operator of torch
and MindSpore that takes a probability to drop, a `training` flag, a seed or a generator stands in the
table `operators.drawing`; a test reads the signatures of the installed frameworks and names what is
missing.
"""

import hashlib
from dataclasses import replace

from ray_precheck.operators.drawing import DRAWING, PACKED_RNN, RNN, Always, Drawing, Switch
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import Constant, ValueSpec


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


def _switch_of(record: ApiRecord) -> Switch | None:
    switch = _drawing(record)
    if switch == RNN and _is_packed(record):
        return PACKED_RNN
    return switch if isinstance(switch, Switch) else None


def _is_packed(record: ApiRecord) -> bool:
    """Return whether a recurrent call is that of packed sequences, which has one argument more before
    the flag `has_biases`, or names its `data`."""
    flags = [isinstance(arg, Constant) and isinstance(arg.value, bool) for arg in record.args[:5]]
    return flags[4:] == [True] or "batch_sizes" in dict(record.kwargs)


def _is(record: ApiRecord, switch: Switch, name: str, default: object, value: object) -> bool:
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
