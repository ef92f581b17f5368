"""What a person looks at of the files of a command, whatever the command: a `View`.

Comes in: nothing. Each command's `report.py` makes one of its files; `commands/report` draws it as a page,
writes it as Markdown and as data, `--json` and `--plot` of each command use it. Who draws a `View` knows none
of the columns of a command. Large numbers stand in NumPy arrays, rows of tables in the file where they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


class Tone(Enum):
    """What a color says of a thing; a word always stands beside it."""

    PASS = "pass"
    WARNING = "warning"
    ERROR = "error"
    SKIP = "skip"
    UNMATCHED = "unmatched"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and its value, as text."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Count:
    """How many pieces of a run have a verdict: `12 error`."""

    name: str
    number: int
    tone: Tone


@dataclass(frozen=True, slots=True)
class NotCompared:
    """Why `count` pieces were not compared, with the names of some of them."""

    text: str
    count: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do next: a sentence, and the commands that do it."""

    sentence: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A metric beside its limit. `is_least`: the value must not be below the limit (a cosine), else not above
    it. `limit` is NaN where the metric has none. `value` may be NaN or infinite."""

    name: str
    value: float
    limit: float
    is_least: bool = False


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many elements have an error in each bin.

    `edges` `(N + 1,)` rise, `counts` `(N,)`; `limit` is drawn as a line, NaN for none. `unit` names what the
    edges measure; with `is_log` they are equally far apart on a logarithmic scale.
    """

    title: str
    unit: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    limit: float = float("nan")
    is_log: bool = True


@dataclass(frozen=True, slots=True)
class BlockMaxima:
    """Where in a tensor its errors are: the largest of each block.

    The tensor of `shape` is taken as a matrix: its last dimension is the columns, all others together the
    rows. `values` `(R, C)` are the maxima of blocks that divide them evenly, in units of `unit`; NaN where a
    block is empty. `above`: a larger value is an error; NaN where that is unknown.
    """

    title: str
    unit: str
    shape: tuple[int, ...]
    values: Floats
    above: float = float("nan")


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of a source file; `is_here`: it is the one that made the call."""

    number: int
    text: str
    is_here: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """One suspect, with everything that is known of it. The likeliest culprit has the first card.

    `name` is the call, `row` the name in a table of the view to which the card is linked ("" for none),
    `label` its step and rank. `why` says why it is suspected, in a sentence with the metric, its number and
    the limit. `times` is how many times it is beyond its limit, or another measure, which `unit` names; NaN
    where that is not known. `inputs` are the arguments, each with dtype, shape, layout and statistics.
    `missing` are sentences on what could not be shown, such as a dump that is not on this machine.
    `reproduce` is the command that runs the call alone.
    """

    name: str
    tone: Tone
    why: str
    row: str = ""
    label: str = ""
    times: float = float("nan")
    facts: tuple[Fact, ...] = ()
    inputs: tuple[Fact, ...] = ()
    bars: tuple[Bar, ...] = ()
    histogram: Histogram | None = None
    blocks: BlockMaxima | None = None
    cause: str = ""
    module: str = ""
    source: str = ""
    code: tuple[CodeLine, ...] = ()
    reproduce: str = ""
    case: str = ""
    missing: tuple[str, ...] = ()
    unit: str = "times its limit"


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A heat map: `values` `(R, C)` with a name for each row and column; NaN where there is nothing.

    `links` has for a cell, as (row, column), the name of a row of a table that it opens. `above`: larger
    values are errors, 1 being the limit itself; NaN where there is no limit.
    """

    title: str
    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Floats
    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    above: float = 1.0
    row_title: str = ""
    column_title: str = ""


@dataclass(frozen=True, slots=True)
class ModuleNode:
    """A module: `parent` is the index of its parent in the tree, -1 of a root; parents stand before their
    children. `tone` is the worst verdict of its own calls and those below it, `errors` how many of `calls`
    are in error, `link` the row of the worst one."""

    name: str
    parent: int
    tone: Tone
    calls: int
    errors: int
    link: str = ""


@dataclass(frozen=True, slots=True)
class ModuleTree:
    """The modules of a model, as a tree."""

    title: str
    nodes: tuple[ModuleNode, ...]


@dataclass(frozen=True, slots=True)
class FlowGraph:
    """Calls in the order of the run, and what flows between them; up to 1,000,000 of them.

    `names` `(N,)`, `tones` `(N,)` as indices into `Tone`'s members in their order, `own` and `inherited`
    `(N,)` errors in units of `unit`, NaN where unknown, `texts` `(N,)` a sentence for each or "". `edges`
    `(E, 2)` are indices (from, to); `pairs` `(P, 2)` link calls that stand for each other (fused, split).
    `starts` are the indices at which the page opens, the first difference first. `links` `(N,)` are the rows
    of tables that the calls open, () where these have the names of the calls.
    """

    title: str
    unit: str
    names: tuple[str, ...]
    tones: NDArray[np.uint8]
    own: Floats
    inherited: Floats
    edges: Integers
    pairs: Integers
    starts: tuple[int, ...]
    texts: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineChart:
    """What ran where and when: span i ran on `lanes[lane[i]]` from `begin[i]` for `length[i]` seconds,
    counted from the first; its name is `names[name[i]]`, its stage `stages[stage[i]]`. `marks` are moments
    with a sentence: a crash, a worker that was started anew."""

    title: str
    lanes: tuple[str, ...]
    lane: Integers
    begin: Floats
    length: Floats
    names: tuple[str, ...]
    name: Integers
    stages: tuple[str, ...]
    stage: Integers
    marks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line: `x` and `y` `(N,)`; a NaN in `y` interrupts it."""

    name: str
    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True)
class LineChart:
    """LineChart over one axis, such as headroom over steps. `limit` is drawn as a line, NaN for none."""

    title: str
    x_title: str
    y_title: str
    series: tuple[ChartLine, ...]
    limit: float = float("nan")
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class ChartStep:
    """One bar of `StepChart`: a trial of a bisect, with a sentence for it."""

    name: str
    value: float
    tone: Tone
    text: str = ""


@dataclass(frozen=True, slots=True)
class StepChart:
    """Bars in the order in which they happened: how a set of suspects shrank from trial to trial."""

    title: str
    unit: str
    steps: tuple[ChartStep, ...]


Chart: TypeAlias = (
    HeatMap | ModuleTree | FlowGraph | TimelineChart | LineChart | StepChart | Histogram
)


class CellKind(Enum):
    """How a column is shown, sorted and filtered."""

    NAME = "name"  # a name, as `store.tables.encode_name` writes it
    TEXT = "text"
    NUMBER = "number"
    TONE = "tone"  # a verdict; `RowTable.tones` says which words are which


@dataclass(frozen=True, slots=True)
class RowColumn:
    """A column of a table."""

    heading: str
    kind: CellKind


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows that can be searched: those of the CSV file `path`, or `rows` where there is none.

    `key` is the column whose cells name the rows, for links: `{label}/{cell}` where the table has a label,
    the step and rank of its run. `tones` are the words of columns of verdicts. Where such a cell stands in
    several rows, `name_parts` and `name_ends` are the columns that tell these apart: the name of a row is
    `{part}/{part}/{cell}.{end}` then, without cells that are empty. `repeats`: its rows stand in another
    table of the view, too.
    """

    title: str
    columns: tuple[RowColumn, ...]
    path: Path | None = None
    rows: tuple[tuple[str, ...], ...] = ()
    key: int = 0
    tones: Mapping[str, Tone] = field(default_factory=dict)
    label: str = ""
    name_parts: tuple[int, ...] = ()
    name_ends: tuple[int, ...] = ()
    repeats: bool = False


class ViewState(Enum):
    """Whether a run came to its end."""

    FINISHED = "finished"
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class View:
    """What the files of one command say.

    `command` is its name, `sentence` the verdict in one sentence, `tone` that verdict. `facts` are device,
    versions, standard, seed and the like; `invocation` is the command that makes these files again, "" where
    that is unknown. `exit_code` is what the command ends with, -1 while it runs. `reasons` say what was not
    compared, `notes` what else has to be known (a capture that was cut off, a torn file). Cards are at most
    ten. `overview` are charts of the result, `model` of the model, `run` of how the run went. `files` are
    the files that the view was made of. `more_cards` is how many suspects have no card.
    """

    command: str
    title: str
    sentence: str
    tone: Tone
    state: ViewState
    exit_code: int = -1
    facts: tuple[Fact, ...] = ()
    invocation: str = ""
    counts: tuple[Count, ...] = ()
    reasons: tuple[NotCompared, ...] = ()
    notes: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()
    more_cards: int = 0
    overview: tuple[Chart, ...] = ()
    model: tuple[Chart, ...] = ()
    run: tuple[Chart, ...] = ()
    tables: tuple[RowTable, ...] = ()
    advice: tuple[Advice, ...] = ()
    files: tuple[str, ...] = ()
