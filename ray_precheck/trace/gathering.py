"""The captures of several ranks, made into one: the whole tensors of which each rank holds a part.

Comes in: the open captures of all ranks of a step, in their order, and a folder. Goes out: a dump.json in
that folder, with sketches and files beside it. Called by the session where two runs have other numbers of
ranks.

A capture says of a distributed tensor where its part lies (`placements`, `global_shape`): the sketches of all
parts add up to that of the whole, Max is the largest of all, Norm the root of the sum of squares; of one
dimension of a mesh the files are put together, too. Of a tensor that every rank has for itself the values are
kept where all ranks have the same, and left out where they differ: which part of another run's tensor they
are nobody knows. The calls are those of the first rank.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.dump.tensors import CapturedTensors, SketchFile, read_sketches, sketch_of
from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import read_file
from ray_precheck.numerics.sketch import Array
from ray_precheck.numerics.statistics import FIELDS, MAX, MIN, STATISTICS
from ray_precheck.schema.dtypes import canonical_dtype
from ray_precheck.schema.values import TensorSpec
from ray_precheck.trace.side import CaptureSide, record_from_json

_WHOLE, _COUNTED = "global_shape", "sketch_counted"
# What tells the values of a tensor, and is wrong of the whole of which they are a part.
_OF_VALUES = (*FIELDS, "md5", "data_name", "sketch", "sketch_exponent", "health")
_TENSORS = "dump_tensor_data"


def ranks_of_layout(side: CaptureSide) -> int:
    """Return over how many processes the tensors of a capture are distributed; 0 where it does not say."""
    meshes: set[str] = set()
    for entry in side.entries:
        if f'"{_WHOLE}"'.encode() in side.raw(entry):
            for item in side.items(entry):
                if item.element is not None and _WHOLE in item.element:
                    meshes.add(json.dumps(item.element.get("device_mesh")))
    return max((np.size(json.loads(each)) for each in meshes), default=0)


def gather_ranks(sides: Sequence[CaptureSide], folder: Path) -> Path:
    """Write the capture of all ranks into `folder`, which is made, and return its dump.json.

    The same captures make the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _TENSORS).mkdir(exist_ok=True)
    gathered = _Gathering(sides, folder)
    first = sides[0]
    header = {
        "task": first.header.task,
        "level": first.header.level,
        "framework": first.header.framework,
        "dump_data_dir": None,
    }
    path = folder / "dump.json"
    places = [{entry.key: entry for entry in side.entries} for side in sides[1:]]
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header)[:-1] + ', "data": {')
        for number, entry in enumerate(first.entries):
            others = [
                record_from_json(side.raw(place[entry.key])) if entry.key in place else {}
                for side, place in zip(sides[1:], places, strict=True)
            ]
            record = gathered.value([first.record(entry), *others], entry.key)
            comma = ",\n" if number else "\n"
            file.write(f"{comma}{json.dumps(entry.key)}: {json.dumps(record)}")
        file.write("\n}}\n")
    gathered.finish()
    for name in ("stack.json", "construct.json"):
        if (first.folder / name).is_file():
            (folder / name).write_bytes(read_file(first.folder / name))
    return path


class _Gathering:
    def __init__(self, sides: Sequence[CaptureSide], folder: Path) -> None:
        self._sketches = [read_sketches(side.folder) for side in sides]
        self._tensors = [CapturedTensors(side.data_folder) for side in sides]
        self._folder = folder
        has_sketches = any(len(rows) for rows in self._sketches)
        self._file = SketchFile(folder) if has_sketches else None

    def value(self, values: Sequence[Any], path: str) -> Any:
        """Return a value of a record, of the same place on each rank, for all ranks."""
        first = values[0]
        if isinstance(first, list):
            return [
                self.value([_item(each, number) for each in values], f"{path}.{number}")
                for number in range(len(first))
            ]
        if not isinstance(first, dict):
            return first
        if isinstance(first.get("type"), str):
            return self._element(values, path)
        return {
            name: self.value([_member(each, name) for each in values], f"{path}.{name}")
            for name in first
        }

    def finish(self) -> None:
        """Finish the file of sketches."""
        if self._file is not None:
            self._file.finish()

    def _element(self, values: Sequence[Any], path: str) -> dict[str, Any]:
        elements = [each if isinstance(each, dict) else {} for each in values]
        first = dict(elements[0])
        if _WHOLE in first and all(_WHOLE in each for each in elements):
            return self._whole(elements, path)
        if "shape" not in first:
            return first
        names = (*FIELDS, "md5")
        if any(each.get(name) != first.get(name) for each in elements[1:] for name in names):
            return {name: value for name, value in first.items() if name not in _OF_VALUES}
        first.pop("data_name", None)
        row = sketch_of(first, self._sketches[0])
        return self._without_row(first) | self._row(row)

    def _whole(self, elements: Sequence[dict[str, Any]], path: str) -> dict[str, Any]:
        first = {
            name: value
            for name, value in elements[0].items()
            if name not in (*_OF_VALUES, _COUNTED)
        }
        first["shape"] = first[_WHOLE]
        if any(
            "Partial" in each for each in first.get("placements") or () if isinstance(each, dict)
        ):
            return first  # Addends of a sum that is not made yet: nothing is known of it.
        counted = [each for each in elements if each.get(_COUNTED) is not False]
        rows = [sketch_of(each, rows) for each, rows in zip(elements, self._sketches, strict=True)]
        parts = [row for row, each in zip(rows, elements, strict=True) if each in counted]
        known = [row for row in parts if row is not None]
        total = np.sum(known, axis=0) if known and len(known) == len(parts) else None
        return first | _statistics(counted) | self._row(total) | self._file_of(elements, path)

    def _row(self, buckets: Array | None) -> dict[str, Any]:
        if buckets is None or self._file is None:
            return {}
        found: dict[str, Any] = json.loads(f"{{{self._file.append(buckets)}}}")
        return found

    def _without_row(self, element: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in element.items()
            if name not in ("sketch", "sketch_exponent")
        }

    def _file_of(self, elements: Sequence[dict[str, Any]], path: str) -> dict[str, Any]:
        """Put the files of all ranks together, where one dimension of a mesh shards or replicates them."""
        placements = elements[0].get("placements")
        if not isinstance(placements, list) or len(placements) != 1:
            return {}
        dim = placements[0].get("Shard", {}).get("dim") if isinstance(placements[0], dict) else None
        parts = []
        try:
            for element, tensors in zip(elements, self._tensors, strict=True):
                dtype = canonical_dtype(str(element.get("dtype")))
                if dtype is None or not element.get("data_name"):
                    return {}
                spec = TensorSpec(dtype, tuple(element["shape"]), data_name=element["data_name"])
                parts.append(tensors.tensor(spec, path).data)
                if dim is None:
                    break
        except NotCheckable:
            return {}  # The row of the tensor has its statistics and its sketch.
        whole = np.concatenate(parts, axis=dim) if dim is not None else parts[0]
        name = f"{path}.npy"
        np.save(self._folder / _TENSORS / name, whole)
        return {"data_name": name}


def _statistics(elements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of a tensor whose parts have these; None for what is not known of a part."""
    sizes = [math.prod(each.get("shape") or ()) for each in elements]
    filled = [each for each, size in zip(elements, sizes, strict=True) if size]
    found: dict[str, Any] = dict.fromkeys(FIELDS)
    for statistic in STATISTICS:
        name = statistic.field
        numbers = [value for each in filled if isinstance(value := each.get(name), int | float)]
        if numbers and len(numbers) == len(filled):
            found[name] = statistic.joined(numbers, [size for size in sizes if size])
    if found[MAX] is None or found[MIN] is None:
        found |= {MAX: None, MIN: None}
    return found


def _item(value: Any, number: int) -> Any:
    return value[number] if isinstance(value, list) and number < len(value) else None


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
