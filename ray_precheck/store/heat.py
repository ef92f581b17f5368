"""The file `heat_{timestamp}.npz` beside the tables of a precheck: where outputs in error are wrong.

Comes in: the `Heat` of each output in error, as lines that travel with the rows of its call. Goes out: one
file of arrays, and each `Heat` by the name of its output. Written by the journal, repaired by resume, read by
the report.

While a run goes on the lines are appended to `heat_{timestamp}.log`, before the rows of their call, so that
every call with a row has its lines after a `kill -9`; a call that is done again by another writer appends
them again, and the later ones count. At the end of the run they become the arrays, in the order of the dump;
the log is removed then, and as long as it is there, it alone counts. Only the first 2,000 outputs of the dump
are kept, whichever end first: the same rows give the same arrays. The log is not synced before the rows are:
after a power loss some outputs may lack theirs, which a report says.
"""

import contextlib
import io
import os
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ray_precheck.accuracy.heat import BINS, MOST_BLOCKS, Heat
from ray_precheck.foreign import caught, open_file
from ray_precheck.schema.task import Done
from ray_precheck.store.tables import (
    RESULT_STEM,
    call_of_detail,
    decode_name,
    encode_name,
    remove_leftover,
    replace_file,
)

MOST_OUTPUTS = 2000
# So that an output takes at most 2 KB.
_LONGEST_NAME_BYTES = 400
_MOST_DIMENSIONS = 16
# What the arrays of 2,000 outputs take is less than 6 MB; a file from elsewhere may unfold to any size.
_LARGEST_BYTES = 1 << 24
_ABOUT = (
    f"Block maxima and histograms of the errors of outputs in error, of the first {MOST_OUTPUTS} outputs in"
    " error in the order of the dump; beside accuracy_checking_result of the same time."
)


def heat_file(result: Path) -> Path | None:
    """Return the file of arrays that belongs to a result table, None for a table of another command."""
    name = result.name
    if not (name.startswith(RESULT_STEM) and name.endswith(".csv")):
        return None
    return result.with_name(f"heat_{name.removeprefix(RESULT_STEM).removesuffix('.csv')}.npz")


def heat_line(heat: Heat) -> bytes:
    """Return a `Heat` as a line of JSON, b"" for one whose name or shape is too long to be kept."""
    name = encode_name(heat.name)
    if len(name.encode("utf-8", "replace")) > _LONGEST_NAME_BYTES:
        return b""
    if len(heat.shape) > _MOST_DIMENSIONS:
        return b""
    where = np.flatnonzero(heat.counts)
    fields = {
        "name": name,
        "shape": heat.shape,
        "unit": heat.unit,
        "above": heat.above,
        "grid": heat.blocks.shape,
        "blocks": b64encode(heat.blocks.astype("<f4").tobytes()).decode(),
        "bins": where.tolist(),
        "counts": heat.counts[where].tolist(),
        "zeros": heat.zeros,
        "nonfinite": heat.nonfinite,
    }
    return orjson.dumps(fields) + b"\n"


def _heat(line: bytes) -> Heat:
    found = orjson.loads(line)
    rows, columns = found["grid"]
    counts = np.zeros(BINS, np.int64)
    counts[found["bins"]] = found["counts"]
    above = found["above"]
    return Heat(
        decode_name(found["name"]),
        tuple(found["shape"]),
        found["unit"],
        float("nan") if above is None else above,
        np.frombuffer(b64decode(found["blocks"]), "<f4").reshape(rows, columns),
        counts,
        found["zeros"],
        found["nonfinite"],
    )


class HeatLog:
    """Appends the lines of a run to its log; the file is made when the first one comes.

    One process at a time has it: the one that has the tables.
    """

    def __init__(self, result: Path) -> None:
        self._arrays = heat_file(result)
        self._fd = -1
        self._count = 0
        # Calls behind this place of the dump are not among the first 2,000 outputs.
        self._last = -1

    def append(self, finished: Sequence[Done]) -> None:
        """Append the lines of calls that are finished.

        Raises:
            OSError: they cannot be written; the log has none of them.
        """
        lines = [
            b"%d %s" % (done.index, line)
            for done in finished
            for line in done.heats
            if self._last < 0 or done.index <= self._last
        ]
        if not lines or self._arrays is None:
            return
        if self._fd < 0:
            self._open(self._arrays)
        end = os.fstat(self._fd).st_size
        try:
            view = memoryview(b"".join(lines))
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, end)
            raise
        self._count += len(lines)
        if self._count > 2 * MOST_OUTPUTS:
            self._shorten(self._arrays)

    def _open(self, arrays: Path) -> None:
        log = _log(arrays)
        lines = _first(_lines(arrays))
        # What a killed run has torn is cut off, and what a finished one has kept comes back.
        if lines or log.exists():
            replace_file(log, lines)
        self._count = len(lines)
        self._fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def _shorten(self, arrays: Path) -> None:
        """Leave the first 2,000 outputs of the dump in the log."""
        self.close()
        lines = _first(_lines(arrays))
        replace_file(_log(arrays), lines)
        self._count, self._last = len(lines), _place(lines[-1])
        self._fd = os.open(_log(arrays), os.O_WRONLY | os.O_APPEND, 0o644)

    def close(self) -> None:
        """Close the log; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def finish_heats(result: Path, order: Sequence[str]) -> None:
    """Make the arrays of the log, where there is one, in the order of these calls, the others last.

    Raises:
        OSError: they cannot be written; the log is as it was.
    """
    arrays = heat_file(result)
    if arrays is None or not _log(arrays).exists():
        return
    heats = [(place, _heat(line)) for place, line in map(_parted, _first(_lines(arrays)))]
    if heats:
        rank = {name: place for place, name in enumerate(order)}
        heats.sort(key=lambda found: rank.get(call_of_detail(found[1].name), len(rank)))
        replace_file(arrays, [_archive(*zip(*heats, strict=True))])
    else:
        arrays.unlink(missing_ok=True)
    _log(arrays).unlink()


def keep_heats(result: Path, done: Collection[str]) -> None:
    """Keep what belongs to the calls that are done, and drop the rest: they are done again.

    Raises:
        OSError: the file cannot be written; it is as it was.
    """
    arrays = heat_file(result)
    if arrays is None:
        return
    log = _log(arrays)
    for path in (arrays, log):
        with contextlib.suppress(OSError):
            remove_leftover(path)
    there = list(_lines(arrays))
    kept = [line for line in there if call_of_detail(_name(line)) in done]
    if len(kept) < len(there):
        replace_file(log, kept)
        arrays.unlink(missing_ok=True)


def remove_heats(result: Path) -> None:
    """Remove both files of a run of which nothing is to be kept."""
    arrays = heat_file(result)
    if arrays is not None:
        arrays.unlink(missing_ok=True)
        _log(arrays).unlink(missing_ok=True)


def read_heat(path: Path) -> Mapping[str, Heat]:
    """Return what `heat_{timestamp}.npz` has, by the names of outputs; also of a run that still goes on, or
    was killed. Empty where there is nothing, or nothing that can be read."""
    return {heat.name: heat for heat in (_heat(line) for _, line in map(_parted, _lines(path)))}


def _log(arrays: Path) -> Path:
    return arrays.with_suffix(".log")


def _lines(arrays: Path) -> Iterator[bytes]:
    """Yield the whole lines of the log, each behind the place of its call, or, where there is none, those
    that the arrays were made of."""
    log = _log(arrays)
    if not log.exists():
        for place, heat in _from_archive(arrays):
            yield b"%d %s" % (place, heat_line(heat))
        return
    with open_file(log) as file:
        for line in file:
            if _is_whole(line):
                yield line


def _is_whole(line: bytes) -> bool:
    """Return whether a line can be read: a crash tears the last one."""
    heat, _ = caught(lambda: _heat(_parted(line)[1]))
    return heat is not None and line.endswith(b"\n")


def _first(lines: Iterable[bytes]) -> list[bytes]:
    """Return the first 2,000 outputs in the order of the dump; of one that came twice the later line."""
    by_name = {_name(line): line for line in lines}
    return sorted(by_name.values(), key=_place)[:MOST_OUTPUTS]


def _parted(line: bytes) -> tuple[int, bytes]:
    place, _, rest = line.partition(b" ")
    return int(place), rest


def _place(line: bytes) -> int:
    return _parted(line)[0]


def _name(line: bytes) -> str:
    return decode_name(orjson.loads(_parted(line)[1])["name"])


def _archive(places: Sequence[int], heats: Sequence[Heat]) -> bytes:
    """Return the file of arrays; the same outputs, of calls at the same places of the dump, give the same
    bytes."""
    count = len(heats)
    blocks = np.full((count, MOST_BLOCKS, MOST_BLOCKS), np.nan, np.float32)
    shapes = np.full((count, _MOST_DIMENSIONS), -1, np.int64)
    for place, heat in enumerate(heats):
        rows, columns = heat.blocks.shape
        blocks[place, :rows, :columns] = heat.blocks
        shapes[place, : len(heat.shape)] = heat.shape
    arrays: dict[str, Any] = {
        "about": _text([_ABOUT]),
        "names": _text(encode_name(heat.name) for heat in heats),
        "places": np.array(places, np.int64),
        "units": _text(heat.unit for heat in heats),
        "above": np.array([heat.above for heat in heats], np.float64),
        "shapes": shapes,
        "grids": np.array([heat.blocks.shape for heat in heats], np.int64),
        "blocks": blocks,
        "counts": np.array([heat.counts for heat in heats], np.int64),
        "zeros": np.array([heat.zeros for heat in heats], np.int64),
        "nonfinite": np.array([heat.nonfinite for heat in heats], np.int64),
    }
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _from_archive(path: Path) -> list[tuple[int, Heat]]:
    found, _ = caught(lambda: _read_archive(path))
    return found or []


def _read_archive(path: Path) -> list[tuple[int, Heat]]:
    if not path.exists():
        return []
    with open_file(path) as file, np.load(file, allow_pickle=False) as found:
        if sum(each.file_size for each in found.zip.infolist()) > _LARGEST_BYTES:
            return []
        arrays = {name: found[name] for name in found.files}
    names, units = (bytes(arrays[each]).decode().split("\n") for each in ("names", "units"))
    heats = []
    for place, (name, unit) in enumerate(zip(names, units, strict=True)):
        rows, columns = arrays["grids"][place].tolist()
        shape = arrays["shapes"][place]
        heat = Heat(
            decode_name(name),
            tuple(shape[shape >= 0].tolist()),
            unit,
            float(arrays["above"][place]),
            arrays["blocks"][place, :rows, :columns],
            arrays["counts"][place],
            int(arrays["zeros"][place]),
            int(arrays["nonfinite"][place]),
        )
        heats.append((int(arrays["places"][place]), heat))
    return heats


def _text(lines: Iterable[str]) -> Any:
    """Return lines as an array of bytes: NumPy's own texts take the room of the longest for each."""
    return np.frombuffer("\n".join(lines).encode("utf-8", "backslashreplace"), np.uint8)
