"""The nouns: a case, its truth, and what was found of it.

Written by the child of a model into `cases.json` of its folder, and read by `main`, `locating` and
`tables`.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.locate_faults.planted import Size

CASES_FILE = "cases.json"
HONEST = "honest"
FORWARD, GRADIENT, UPDATE, HIDDEN = "forward", "gradient", "update", "not captured"
# Where an operator is to blame, and it was captured.
OWN = (FORWARD, GRADIENT, UPDATE)
WEIGHT, MASK, DATA, EPSILON, COLLECTIVE = "weight", "mask", "data", "epsilon", "collective"
# Faults outside of operators.
SETUPS = (WEIGHT, MASK, DATA, EPSILON, COLLECTIVE)


@dataclass(frozen=True)
class FaultCase:
    """A capture, or a pair of captures, with the truth about it.

    `culprits` are the keys that are to be named, with their direction: of a hidden call those that consume
    its result, with `producers` on its other side. `names` are words that a finding of another kind must
    have one of. `moved` is what the fault moves, `honest` the worst honest error beside it.
    """

    model: str
    dtype: str
    family: str
    fault: str
    target: str
    golden: str = ""
    culprits: tuple[str, ...] = ()
    producers: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    moved: Size = field(default_factory=Size)
    honest: Size = field(default_factory=Size)

    @property
    def title(self) -> str:
        """The model, the dtype, what was planted and where."""
        where = self.culprits[0] if self.culprits else ""
        return " ".join(filter(None, (self.model, self.dtype, self.family, self.fault, where)))

    @property
    def counts(self) -> bool:
        """Whether the fault moves more than honest errors do; those outside of operators always count."""
        if self.family == HONEST:
            return False
        return self.family in SETUPS or self.moved.moves_more_than(self.honest)


@dataclass
class Judged:
    """A case, and what each way says of it.

    `ways` has for each way to look the keys that it names, the first one first, each with a number and a
    sentence: `[[key, number, message], ...]`.
    """

    case: FaultCase
    ways: dict[str, list[list[Any]]] = field(default_factory=dict)


def write_cases(folder: Path, judged: Iterable[Judged]) -> None:
    """Write cases and what was found."""
    text = json.dumps([asdict(each) for each in judged], indent=1)
    (folder / CASES_FILE).write_text(text, encoding="utf-8")


def read_cases(folder: Path) -> list[Judged]:
    """Read what `write_cases` has written."""
    found = []
    for each in json.loads((folder / CASES_FILE).read_text(encoding="utf-8")):
        case = each["case"]
        for name in ("moved", "honest"):
            case[name] = Size(**case[name])
        for name in ("culprits", "producers", "names"):
            case[name] = tuple(case[name])
        found.append(Judged(FaultCase(**case), each["ways"]))
    return found
