"""The places of a captured step that have no record: what a capture could not see.

Comes in: a note for each call that ran out of the recorder's sight (compiled code, an extension, another
thread), from the recorder of either framework. Goes out: the field `dark` in the header of dump.json, which
msprobe ignores, and the words of the closing sentence. Each `StepRecorder` has a `DarkPlaces` as `dark`:

    recorder.dark.note("the compiled function f", module="blocks.0", place=place_of(frame, left_out))

    "dark": {"count": 1, "places": [{"what": "the compiled function f", "module": "blocks.0",
                                     "place": "train.py:12", "times": 3}]}

A count of 0 says that every call of the step has a record. The field is missing where calls are not
recorded at all (L0) or only chosen ones are, and nothing dark was met.
"""

import concurrent.futures
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

# A header has so many places; further ones are counted. A sentence names fewer.
MOST_PLACES = 100
NAMED_PLACES = 3
_LONGEST_TEXT = 200
COMPLETE = "it is complete"
_THREADS = (threading.__file__, os.path.dirname(concurrent.futures.__file__))


@dataclass(slots=True)
class DarkPlace:
    """What ran unseen: in which module, at which line (`file:line`) of the program, and how often."""

    what: str
    module: str = ""
    place: str = ""
    times: int = 1

    def __str__(self) -> str:
        often = f"{self.times:,} times" if self.times > 1 else ""
        where = ", ".join(filter(None, (self.module, self.place, often)))
        return f"{self.what} ({where})" if where else self.what


class DarkPlaces:
    """Places by what ran there, each counted; the first `MOST_PLACES` are kept."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, str], DarkPlace] = {}
        self._others = 0

    def __len__(self) -> int:
        return len(self._places) + self._others

    def note(self, what: str, *, module: str = "", place: str = "", times: int = 1) -> None:
        """Take note that something ran unseen at a place, once more where it is known."""
        key = what[:_LONGEST_TEXT], module[:_LONGEST_TEXT], place[-_LONGEST_TEXT:]
        found = self._places.get(key)
        if found is not None:
            found.times += times
        elif len(self._places) < MOST_PLACES:
            self._places[key] = DarkPlace(*key, times)
        else:
            self._others += 1

    def header(self) -> dict[str, object]:
        """Return the field of a dump's header, and of an account."""
        return {"count": len(self), "places": [asdict(each) for each in self._places.values()]}

    def add(self, header: Mapping[str, Any]) -> None:
        """Add the places of another process or step, as `header` has them."""
        for each in header.get("places", ()):
            self.note(**each)
        self._others += max(0, header.get("count", 0) - len(header.get("places", ())))


def added(
    header: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> dict[str, object] | None:
    """Return the places of two steps together, None where neither can know."""
    if header is None and other is None:
        return None
    total = DarkPlaces()
    for each in (header, other):
        total.add(each or {})
    return total.header()


def dark_sentence(headers: Iterable[Mapping[str, Any] | None]) -> str:
    """Return what several steps or processes say of their dark places; None is of one that cannot know."""
    total, knows = DarkPlaces(), True
    for header in headers:
        knows = knows and header is not None
        total.add(header or {})
    if not len(total):
        return COMPLETE if knows else ""
    places = [str(each) for each in total._places.values()]
    is_one = len(total) == 1
    begin = "1 place is dark" if is_one else f"{len(total)} places are dark"
    rest = len(total) - len(places[:NAMED_PLACES])
    more = f", and {rest} more in the headers of the dumps" if rest else ""
    return f"{begin} (what ran there has no record): {'; '.join(places[:NAMED_PLACES])}{more}"


def in_thread(thread: threading.Thread, name: str) -> str:
    """Return the words for operators that run in another thread, of which `name` is the first."""
    target = getattr(thread, "_target", None)
    label = getattr(target, "__qualname__", "") or type(thread).__name__
    return f"operators in another thread ({label}), {name} the first of them"


def modules_around(frame: FrameType | None, entry: str) -> list[Any]:
    """Return the modules that a frame runs in, the innermost first: `self` of the method `entry` through
    which the framework calls modules."""
    found = []
    while frame is not None:
        if frame.f_code.co_name == entry and "self" in frame.f_code.co_varnames:
            found.append(frame.f_locals.get("self"))
        frame = frame.f_back
    return found


def program_frame(frame: FrameType | None, left_out: Sequence[str]) -> FrameType | None:
    """Return the innermost frame whose file begins with none of `left_out` (the framework, this package), and
    is no module of Python's for threads; else the first one."""
    first = frame
    while frame is not None and frame.f_code.co_filename.startswith((*left_out, *_THREADS)):
        frame = frame.f_back
    return frame or first


def place_of(frame: FrameType | None, left_out: Sequence[str]) -> str:
    """Return the line of the program that a frame belongs to, as `file:line`."""
    frame = program_frame(frame, left_out)
    return "" if frame is None else f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def _shown(path: str) -> str:
    """Return a path as seen from the folder of the process, where it lies in that."""
    here = os.path.join(_folder(), "")
    return path.removeprefix(here)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return sys.prefix
