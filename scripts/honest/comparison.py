"""Every tensor of a dump against what the independent recorder saw of the same program.

Comes in: a dump.json (with files of tensors, or statistics alone) and the calls of the recorder. Goes
out: how many tensors were looked at, and a line for each that is another one.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from scripts.honest.recorder import UNWRITTEN, SeenCall

_ROUNDING = 1e-5
Json = dict[str, Any]
# The part of a forward record, the number in it, and the tensor's element.
Place = tuple[str, int, Json]


@dataclass
class Compared:
    """What a comparison came to."""

    records: int = 0
    tensors: int = 0
    gradients: int = 0
    unseen: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def compare_dump(
    path: Path, calls: Sequence[SeenCall], updates: Sequence[SeenCall] = ()
) -> Compared:
    """Compare all API records of a dump with the calls and updates of a run of the same program."""
    dump = json.loads(path.read_bytes())
    data: dict[str, Json] = dump["data"]
    found = Compared()
    folder = path.parent / "dump_tensor_data" if dump["task"] == "tensor" else None
    records = {key: [*_elements(data[key])] for key in data if _is_call(key)}
    found.records = len(records)
    pairs = _paired({key: each for key, each in records.items() if each}, calls, folder)
    for key, call in pairs.items():
        if call is None:
            found.unseen.append(key)
            continue
        _compare_forward(found, key, records[key], call, folder)
        backward = f"{key.removesuffix('.forward')}.backward"
        if backward in data:
            _compare_backward(found, backward, data[backward], call, folder)
    keys = [key for key in data if key.startswith("Optimizer.")]
    for key, update in zip(keys, updates, strict=False):
        _compare_update(found, key, data[key], update, folder)
    return found


def _compare_update(
    found: Compared, key: str, record: Json, update: SeenCall, folder: Path | None
) -> None:
    """Compare an optimizer's record: each of its tensors must be one that the optimizer held."""
    for part, number, element in _elements(record):
        held = update.inputs if part == "input" else update.outputs
        found.tensors += 1
        if not any(_same(element, each, folder) for each in held):
            found.wrong.append(f"{key} {part}.{number}: the optimizer held no such tensor")


def _is_call(key: str) -> bool:
    return key.endswith(".forward") and not key.startswith(("Module.", "Optimizer."))


def _paired(
    records: Mapping[str, Sequence[Place]], calls: Sequence[SeenCall], folder: Path | None
) -> dict[str, SeenCall | None]:
    """Return the call of each record: that with its name and values, with its values alone, or, where as many
    calls of a name were seen as recorded, the one at its place among them."""
    by_name: dict[str, list[SeenCall]] = defaultdict(list)
    for call in calls:
        by_name[_plain(call.name)].append(call)
    keys: dict[str, list[str]] = defaultdict(list)
    for key in records:
        keys[_name_of(key)].append(key)
    found: dict[str, SeenCall | None] = dict.fromkeys(records)
    left = {id(call): call for call in calls}

    def take(key: str, candidates: Iterable[SeenCall]) -> None:
        for call in candidates:
            if id(call) in left and _agrees(call, records[key], folder):
                found[key] = left.pop(id(call))
                return

    for key in records:
        take(key, by_name[_name_of(key)])
    for key in [key for key, call in found.items() if call is None]:
        take(key, list(left.values()))
    for name, same in keys.items():
        if len(same) == len(by_name[name]):
            for key, call in zip(same, by_name[name], strict=True):
                if found[key] is None:
                    found[key] = call
    return found


def _name_of(key: str) -> str:
    return _plain(key.split(".")[-3])


def _plain(name: str) -> str:
    """Return a name of a function without what tells a dunder, and one in place, from the others."""
    name = re.sub(r"^__(.*)__$", r"\1", name).strip("_")
    return {"truediv": "div", "rtruediv": "rdiv", "itruediv": "idiv", "invert": "bitwise_not"}.get(
        name, name
    )


def _elements(record: Json) -> Iterator[Place]:
    """Yield the tensors of a forward record, numbered as the arguments and the outputs are."""
    inputs = [("input_args." + p, e) for p, e in _tensors(record.get("input_args"))]
    inputs += [("input_kwargs." + p, e) for p, e in _tensors(record.get("input_kwargs"))]
    for number, (_, element) in enumerate(inputs):
        yield "input", number, element
    for number, (_, element) in enumerate(_tensors(record.get("output"))):
        yield "output", number, element
    numbers = {path: number for number, (path, _) in enumerate(inputs)}
    for path, element in (record.get("changed") or {}).items():
        if path in numbers:
            yield "changed", numbers[path], element


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict) and "dtype" in value and "shape" in value:
        yield path, value
    elif isinstance(value, dict) and "type" not in value:
        for key, item in value.items():
            yield from _tensors(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{path}.{number}" if path else str(number))


def _agrees(call: SeenCall, elements: Sequence[Place], folder: Path | None) -> bool:
    """Return whether a call has all tensors of a record, with their values."""
    if call.name in UNWRITTEN:
        elements = [each for each in elements if each[0] != "output"]
    for part, number, element in elements:
        seen = _seen(call, part, number)
        if part == "input" and number in call.unwritten:
            continue
        if seen is None or not _same(element, seen, folder):
            return False
    return True


def _seen(call: SeenCall, part: str, number: int) -> torch.Tensor | None:
    among = {"input": call.inputs, "changed": call.after, "output": call.outputs}[part]
    return among[number] if number < len(among) else None


def _compare_forward(
    found: Compared,
    key: str,
    elements: Sequence[Place],
    call: SeenCall,
    folder: Path | None,
) -> None:
    for part, number, element in elements:
        seen = _seen(call, part, number)
        if call.name in UNWRITTEN or (part == "input" and number in call.unwritten):
            continue
        found.tensors += 1
        if seen is None:
            # What is received is there when it has been waited for; calls that use it tell.
            found.unseen.append(f"{key} {part}.{number}")
        elif not _same(element, seen, folder):
            found.wrong.append(f"{key} {part}.{number}: {_told(element, seen, folder)}")


def _compare_backward(
    found: Compared, key: str, record: Json, call: SeenCall, folder: Path | None
) -> None:
    places: Sequence[str | None] = record.get("gradient_of") or []
    for number, (place, element) in enumerate(zip(places, record["output"], strict=False)):
        seen = call.passed.get(int(place)) if place is not None else None
        if seen and isinstance(element, dict):
            _compare_gradient(found, f"{key} output.{number}", element, seen, folder)
    for number, element in enumerate(record["input"]):
        if isinstance(element, dict) and call.arrived.get(number):
            name = f"{key} input.{number}"
            _compare_gradient(found, name, element, call.arrived[number], folder)


def _compare_gradient(
    found: Compared, where: str, element: Json, seen: Sequence[torch.Tensor], folder: Path | None
) -> None:
    """Compare a gradient with those of all backward passes; a sum's order may round it otherwise."""
    if "dtype" not in element:
        return
    found.gradients += 1
    if not any(_same(element, each, folder, rounding=_ROUNDING) for each in seen):
        found.wrong.append(f"{where}: {_told(element, seen[0], folder)}")


def _same(element: Json, seen: torch.Tensor, folder: Path | None, *, rounding: float = 0.0) -> bool:
    if list(seen.shape) != element["shape"]:
        # Inside of vmap a record has one shape and the statistics of all that is mapped over.
        is_mapped = "data_name" not in element and list(seen.shape)[1:] == element["shape"]
        return is_mapped and _statistics_agree(element, seen)
    if folder is not None and "data_name" in element:
        return _equal(_loaded(folder, element), seen, rounding)
    return _statistics_agree(element, seen)


def _loaded(folder: Path, element: Json) -> torch.Tensor:
    loaded = torch.load(folder / element["data_name"], weights_only=True)
    assert torch.is_tensor(loaded)
    if loaded.is_quantized:
        return loaded.int_repr()
    return loaded if loaded.layout is torch.strided else loaded.to_dense()


def _equal(saved: torch.Tensor, seen: torch.Tensor, rounding: float) -> bool:
    if saved.shape != seen.shape or saved.dtype != seen.dtype:
        return False
    if not (seen.is_floating_point() or seen.is_complex()):
        return torch.equal(saved, seen)
    kind = torch.complex128 if seen.is_complex() else torch.float64
    one, two = saved.to(kind), seen.to(kind)
    largest = float(two.abs().nan_to_num(0, 0, 0).max()) if two.numel() else 0.0
    return torch.allclose(one, two, rtol=rounding, atol=rounding * largest, equal_nan=True)


def _statistics_agree(element: Json, seen: torch.Tensor) -> bool:
    # Statistics of a sparse tensor are those of its values, whose files are compared.
    if "sparse" in str(element.get("layout")) or element.get("Max") is None:
        return True
    if not seen.numel() or not seen.is_floating_point():
        return True
    wide = seen.double()
    if not bool(wide.isfinite().all()):
        return True
    expected = {"Max": wide.max(), "Min": wide.min(), "Mean": wide.mean(), "Norm": wide.norm()}
    if seen.dtype is torch.float64:
        # A dump has no sums of these.
        del expected["Mean"], expected["Norm"]
    elif not seen.dim():
        expected["Norm"] = wide
    largest = float(wide.abs().max())
    for name, value in expected.items():
        recorded = element.get(name)
        limit = 1e-5 * largest * (math.sqrt(seen.numel()) if name == "Norm" else 1)
        if recorded is None or abs(float(recorded) - float(value)) > limit:
            return False
    return True


def _told(element: Json, seen: torch.Tensor, folder: Path | None) -> str:
    if folder is None or "data_name" not in element:
        recorded = {name: element.get(name) for name in ("Max", "Min", "Mean", "Norm")}
        wide = seen.double() if not seen.is_complex() else seen.abs().double()
        values = [float(f(wide)) for f in (torch.max, torch.min, torch.mean, torch.norm)]
        return f"{recorded}, seen {values}"
    saved = _loaded(folder, element)
    if saved.shape != seen.shape or saved.dtype != seen.dtype:
        return f"{saved.dtype} {list(saved.shape)}, seen {seen.dtype} {list(seen.shape)}"
    kind = torch.complex128 if seen.is_complex() else torch.float64
    apart = (saved.to(kind) - seen.to(kind)).abs()
    return f"{int((apart > 0).sum())} of {apart.numel()} elements, by {float(apart.max()):.3g}"
