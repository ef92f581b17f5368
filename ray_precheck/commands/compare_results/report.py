"""The `View` of `compare_results`: which outputs of a device err more than those of another.

Comes in: the table that the command has written. Goes out: a `View`. Called by the command.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_precheck.accuracy.standards.published import RATIO_HEADINGS, ratio_limits
from ray_precheck.commands.compare_results.run import COLUMNS
from ray_precheck.options.commands import code_of
from ray_precheck.running.views import MOST_CARDS, FoundRun, file_names, quantity, worst_tone
from ray_precheck.schema.result import Verdict, verdict_in
from ray_precheck.schema.view import (
    Advice,
    Bar,
    Card,
    CellKind,
    Chart,
    Count,
    Fact,
    HeatMap,
    NotCompared,
    RowColumn,
    RowTable,
    Tone,
    View,
    ViewState,
)
from ray_precheck.store.journal import decoded_rows
from ray_precheck.store.tables import call_of_detail, decode_name

_TONES = {Verdict.PASS: Tone.PASS, Verdict.ERROR: Tone.ERROR, Verdict.SKIP: Tone.SKIP}
_LIMITS = {heading: metric for metric, heading in RATIO_HEADINGS.items()}
_NAMED = 5


@dataclass(frozen=True, slots=True)
class _Output:
    """An output: its ratios beside their limits, and `times`, the largest ratio in units of its limit."""

    name: str
    dtype: str
    shape: str
    bars: tuple[Bar, ...]
    verdict: Verdict
    message: str

    @property
    def times(self) -> float:
        if not self.bars:
            return math.inf if self.verdict is Verdict.ERROR else 0.0
        return max(bar.value / bar.limit for bar in self.bars)


def view(found: Sequence[FoundRun]) -> View:
    """Return the view of comparisons, of which each `main` is its `compare_results_{timestamp}.csv`.

    Raises:
        ResumeError: a file has other columns.
        OSError: a file cannot be read.
    """
    paths = [each.main for each in found]
    outputs = [output for path in paths for output in _outputs(path)]
    compared = [each for each in outputs if each.verdict is not Verdict.SKIP]
    wrong = sorted(
        (each for each in outputs if each.verdict is Verdict.ERROR), key=lambda each: -each.times
    )
    verdicts = [each.verdict for each in outputs]
    said = f"Of {quantity(len(compared), 'output')} none errs more than the reference allows."
    if wrong:
        said = (
            f"{len(wrong)} of {quantity(len(compared), 'output')} err more than the reference allows; the"
            f" worst is {wrong[0].name}."
        )
    return View(
        "compare_results",
        "The errors of one device beside those of another",
        said if compared else "No output could be compared.",
        worst_tone(_TONES[each] for each in verdicts),
        ViewState.FINISHED,
        code_of(set(verdicts)),
        counts=tuple(Count(one.value, verdicts.count(one), tone) for one, tone in _TONES.items()),
        reasons=tuple(_not_compared(outputs)),
        cards=tuple(map(_card, wrong[:MOST_CARDS])),
        more_cards=max(0, len(wrong) - MOST_CARDS),
        overview=tuple(_overview(compared)),
        tables=tuple(map(_table, paths)),
        advice=(
            (
                Advice(
                    "Run the worst call alone on the device, with its tensors saved: add `-k` with its name"
                    " and `-save_error_data` to the `ray-precheck run_ut` that made the first file."
                ),
            )
            if wrong
            else ()
        ),
        files=file_names(paths),
    )


def _outputs(path: Path) -> Iterator[_Output]:
    for name, dtype, shape, level, *ratios, status, message in decoded_rows(path, COLUMNS):
        limits = ratio_limits(level) if level else {}
        headings = COLUMNS[4 : 4 + len(ratios)]
        bars = tuple(
            Bar(heading, float(ratio), limits[_LIMITS.get(heading, "max_rel_err")])
            for heading, ratio in zip(headings, ratios, strict=True)
            if ratio and limits
        )
        yield _Output(decode_name(name), dtype, shape, bars, verdict_in(status), message)


def _not_compared(outputs: Sequence[_Output]) -> Iterator[NotCompared]:
    by_reason: dict[str, list[str]] = {}
    for each in outputs:
        if each.verdict is Verdict.SKIP:
            by_reason.setdefault(each.message, []).append(each.name)
    for text, names in by_reason.items():
        yield NotCompared(text, len(names), tuple(names[:_NAMED]))


def _card(output: _Output) -> Card:
    facts = (Fact("Dtype", output.dtype), Fact("Shape", output.shape))
    why = f"{output.message}."
    return Card(
        output.name, Tone.ERROR, why, output.name, "", output.times, facts, bars=output.bars
    )


def _overview(outputs: Sequence[_Output]) -> Iterator[Chart]:
    worst: dict[tuple[str, str], _Output] = {}
    for each in outputs:
        place = call_of_detail(each.name).rpartition(".")[0], each.dtype
        if place not in worst or each.times > worst[place].times:
            worst[place] = each
    if not worst:
        return
    kinds = sorted({kind for kind, _ in worst})
    kinds.sort(key=lambda kind: -max(o.times for (k, _), o in worst.items() if k == kind))
    dtypes = sorted({dtype for _, dtype in worst})
    values = np.full((len(kinds), len(dtypes)), np.nan)
    links = {}
    for (kind, dtype), output in worst.items():
        cell = kinds.index(kind), dtypes.index(dtype)
        values[cell], links[cell] = output.times, output.name
    yield HeatMap(
        "Worst ratio of each operator type and dtype",
        "limits",
        tuple(kinds),
        tuple(dtypes),
        values,
        links,
        row_title="operator",
        column_title="dtype",
    )


def _table(path: Path) -> RowTable:
    kinds = {"API Name": CellKind.NAME, "Status": CellKind.TONE}
    kinds |= dict.fromkeys(("Dtype", "Shape", "Level", "Message"), CellKind.TEXT)
    columns = tuple(RowColumn(each, kinds.get(each, CellKind.NUMBER)) for each in COLUMNS)
    words = {verdict.value: tone for verdict, tone in _TONES.items()}
    return RowTable("Outputs", columns, path, tones=words)
