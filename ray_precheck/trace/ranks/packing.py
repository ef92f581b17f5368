"""Summaries as text, on their way from a worker to the driver.

Comes in: a `RankTrace`. Goes out: two lines of text, one for the keys of the records, which most ranks
share, and one for the rest; and back. Called by the job of the command `ranks`.
"""

import base64
import hashlib
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from ray_precheck.numerics.sketch import BUCKETS
from ray_precheck.trace.flow import Meeting
from ray_precheck.trace.ranks.nouns import (
    ExchangeFact,
    RankTrace,
    RestsOn,
    TensorFact,
    UpdateFact,
)

_HEADER_BYTES = 8
_NAMED = ("parameters", "buffers", "gradients", "inputs")
_PLAIN = ("uses", "losses", "masks", "marks")
# Checksums do not shrink, and names shrink by any level.
_LEVEL = 1


class PackedSummary(NamedTuple):
    """A summary as text: `keys` are those of its records, whose digest is `digest`, `rest` all else."""

    digest: str
    keys: str
    rest: str


def pack(summary: RankTrace) -> PackedSummary:
    """Return a summary as text of letters, digits, +, / and =."""
    keys = orjson.dumps(summary.keys)
    facts = _Facts(summary)
    body: dict[str, Any] = {
        "step": summary.step, "rank": summary.rank, "name": summary.name, "count": len(summary.keys),
        "rests_on": summary.rests_on.value, "note": summary.note, "options": summary.options,
        "reduced": sorted(summary.reduced), "call_meshes": summary.call_meshes,
        "own_meshes": summary.own_meshes, "has_tensors": summary.has_tensors,
    }  # fmt: skip
    body |= {name: getattr(summary, name) for name in _PLAIN}
    for name in _NAMED:
        body[name] = {each: facts.add(fact) for each, fact in getattr(summary, name).items()}
    body["updates"] = {
        name: [*map(facts.add, update[:3]), update.state, update.options]
        for name, update in summary.updates.items()
    }
    body["exchanges"] = [
        [each.key, each.place, [*each.meeting], each.raw.decode("utf-8", "replace")]
        for each in summary.exchanges
    ]
    body["facts"] = facts.told
    arrays = [
        summary.got.astype("<u4"), summary.gave.astype("<u4"), summary.settings.astype("<u4"),
        np.array(facts.statistics, "<f8").reshape(-1, 4), summary.sketches.astype("<f4"),
    ]  # fmt: skip
    said = orjson.dumps(body)
    raw = b"".join(
        [len(said).to_bytes(_HEADER_BYTES, "little"), said, *(a.tobytes() for a in arrays)]
    )
    digest = hashlib.sha256(keys).hexdigest()[:32]
    return PackedSummary(digest, _text(keys), _text(raw))


class Unpacker:
    """Makes summaries of text again; what many ranks have in common is kept once."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[str, ...]] = {}
        self._facts: dict[tuple[Any, ...], TensorFact] = {}

    def summary(self, packed: PackedSummary) -> RankTrace:
        """Return the summary.

        Raises:
            ValueError: the text is no summary.
        """
        if packed.digest not in self._keys:
            self._keys[packed.digest] = tuple(orjson.loads(_bytes(packed.keys)))
        raw = _bytes(packed.rest)
        length = int.from_bytes(raw[:_HEADER_BYTES], "little")
        at = _HEADER_BYTES + length
        body = orjson.loads(raw[_HEADER_BYTES:at])
        count, told = body["count"], body["facts"]
        checksums = np.frombuffer(raw, "<u4", 3 * count, at).reshape(3, count)
        at += checksums.nbytes
        statistics = np.frombuffer(raw, "<f8", 4 * len(told), at).reshape(-1, 4)
        at += statistics.nbytes
        sketches = np.frombuffer(raw[at:], "<f4").reshape(-1, BUCKETS)
        facts = [
            self._fact(each, numbers, sketches)
            for each, numbers in zip(told, statistics.tolist(), strict=True)
        ]
        named = {name: _named(body[name], facts) for name in _NAMED}
        return RankTrace(
            body["step"],
            body["rank"],
            body["name"],
            self._keys[packed.digest],
            checksums[0],
            checksums[1],
            checksums[2],
            parameters=named["parameters"],
            buffers=named["buffers"],
            gradients=named["gradients"],
            inputs=named["inputs"],
            reduced=frozenset(body["reduced"]),
            updates={name: _update(each, facts) for name, each in body["updates"].items()},
            options=tuple(body["options"]),
            uses=body["uses"],
            losses=body["losses"],
            masks=body["masks"],
            marks=body["marks"],
            call_meshes=tuple(body["call_meshes"]),
            own_meshes=tuple(body["own_meshes"]),
            exchanges=tuple(
                ExchangeFact(key, place, Meeting(*meeting), raw_record.encode())
                for key, place, meeting, raw_record in body["exchanges"]
            ),
            sketches=sketches,
            rests_on=RestsOn(body["rests_on"]),
            has_tensors=body["has_tensors"],
            note=body["note"],
        )

    def _fact(self, told: Any, statistics: Any, sketches: Any) -> TensorFact:
        dtype, shape, checksum, row, placements, mesh, zeros, content = told
        key = dtype, tuple(shape), checksum, tuple(placements), mesh, zeros, content
        if key not in self._facts:
            sketch = sketches[row].copy() if row >= 0 else None
            self._facts[key] = TensorFact(
                dtype,
                tuple(shape),
                tuple(statistics),
                checksum,
                sketch,
                tuple(placements),
                mesh,
                zeros,
                content,
            )
        return self._facts[key]


class _Facts:
    """The tensors of a summary, each told once."""

    def __init__(self, summary: RankTrace) -> None:
        self.told: list[list[Any]] = []
        self.statistics: list[tuple[float, ...]] = []
        self._places: dict[int, int] = {}
        self._rows = {row.tobytes(): place for place, row in enumerate(summary.sketches)}

    def add(self, fact: TensorFact | None) -> int:
        """Return the place of a tensor, -1 for none."""
        if fact is None:
            return -1
        if id(fact) not in self._places:
            self._places[id(fact)] = len(self.told)
            row = -1 if fact.sketch is None else self._rows.get(fact.sketch.tobytes(), -1)
            self.told.append([
                fact.dtype, fact.shape, fact.checksum, row, fact.placements, fact.mesh, fact.zeros,
                fact.content,
            ])  # fmt: skip
            self.statistics.append(fact.statistics)
        return self._places[id(fact)]


def _update(told: Any, facts: list[TensorFact]) -> UpdateFact:
    *places, state, options = told
    before, gradient, after = (facts[place] if place >= 0 else None for place in places)
    return UpdateFact(before, gradient, after, tuple((n, v) for n, v in state), options)


def _named(places: Mapping[str, int], facts: list[TensorFact]) -> dict[str, TensorFact]:
    return {name: facts[place] for name, place in places.items()}


def _text(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, _LEVEL)).decode()


def _bytes(text: str) -> bytes:
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError(str(error)) from None
