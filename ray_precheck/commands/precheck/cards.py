"""The cards of a precheck: each of the worst outputs, and of the calls that the device could not run.

Comes in: the worst of the rows, and what stands beside them: the dump, saved errors, `heat_{timestamp}.npz`.
Goes out: a `Card` for each. Called by `report`. What is not on this machine is told as a sentence.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ray_precheck.accuracy.heat import Heat, bin_edges
from ray_precheck.accuracy.standards.base import HONEST_BY_HEADING, ROUNDING, STANDARD_HEADING
from ray_precheck.accuracy.standards.published import RATIO_HEADINGS, ratio_limits
from ray_precheck.accuracy.thresholds import (
    COSINE_LIMIT,
    MAX_ABS_ERR_LIMIT,
    RATIO_LIMITS,
    THOUSANDTH_SHARE,
    ULP_MEAN_LIMIT,
    ULP_SHARE_LIMIT,
    limit_of,
)
from ray_precheck.commands.precheck.summary import (
    TIMES,
    Row,
    WorstOutput,
    measure_beyond,
    number_in,
)
from ray_precheck.descriptors.descriptor import read_dtype
from ray_precheck.running.capture_views import row_link
from ray_precheck.running.recorded import record_in, value_facts
from ray_precheck.running.views import (
    FoundRun,
    code_around,
    named_and_more,
    rounded_times,
    shown_times,
)
from ray_precheck.schema.environment import Environment
from ray_precheck.schema.view import (
    Bar,
    BlockMaxima,
    Card,
    Fact,
    Histogram,
    Tone,
)
from ray_precheck.store.error_data import saved_json
from ray_precheck.store.heat import MOST_OUTPUTS, heat_file, read_heat
from ray_precheck.store.results import ResultRow
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import RunFiles, call_of_detail
from ray_precheck.trace.items import INPUT
from ray_precheck.trace.sources import source_lines

_LIKELY = "likely cause: "
_CAUSE = re.compile(rf"; (?={_LIKELY}|{ROUNDING})")
# Cells of the details that are no metrics.
_WORDS = ("API Name", "Bench Dtype", "Tested Dtype", "Shape", "Status", "Message", STANDARD_HEADING)
_SETTINGS = ("Reference", "HonestRMSE", "HonestMaxAbsErr", HONEST_BY_HEADING)
_FACTS = ("Tested Dtype", "Bench Dtype", "Shape", STANDARD_HEADING, *_SETTINGS)
_SHOWN_FACTS = (
    "Dtype",
    "Dtype of the bench",
    "Shape",
    "Standard",
    "Reference",
    "RMSE of the worst honest implementation",
    "Largest error of the worst honest implementation",
    "Judged by",
)


@dataclass(frozen=True)
class RunBeside:
    """What stands beside the rows of one run; read when the first card asks for it. `modules` are those
    around its suspects, by the keys of their records."""

    found: FoundRun
    files: RunFiles
    environment: Environment
    settings: RunSettings | None = None
    modules: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def heats(self) -> Mapping[str, Heat]:
        """Where the outputs in error are wrong, by their names."""
        path = heat_file(self.files.result)
        return {} if path is None else read_heat(path)

    @cached_property
    def dump(self) -> Path | None:
        """The dump, None where it is not on this machine."""
        path = Path(self.environment.dump)
        return path if self.environment.dump and path.is_file() else None


@dataclass(frozen=True, slots=True)
class FoundOutput:
    """An output in error, and the run that has it."""

    run: RunBeside
    output: WorstOutput


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call that the device could not run, and the run that has it."""

    run: RunBeside
    call: ResultRow


def output_card(found: Sequence[FoundOutput]) -> Card:
    """Return the card of an operator in error: that of its worst output, which is the first, and what else of
    it is in error, in other directions, steps and ranks."""
    run, output = found[0].run, found[0].output
    row, name = output.row, output.name
    why, cause = told_in(row["Message"])
    worst = worst_measure(row, output.beyond)
    heat = run.heats.get(name)
    missing = [] if heat is not None else [_no_heat(run, name)]
    headings = dict(zip(_FACTS, _SHOWN_FACTS, strict=True))
    facts = [Fact(shown, row.get(heading, "")) for heading, shown in headings.items()]
    facts.append(Fact("Also in error", _others(found)))
    return replace(
        _card(
            run,
            call_of_output(name),
            _direction(name),
            output.source,
            missing,
            name=name,
            why=f"{why[:1].upper()}{why[1:]}." if why else "Its numbers are beyond their limit.",
            times=rounded_times(worst.times),
            facts=tuple(fact for fact in facts if fact.value),
            bars=worst.bars,
            histogram=None if heat is None else histogram_of(heat),
            blocks=None if heat is None else blocks_of(heat),
            cause=cause,
        ),
        unit=worst.unit,
    )


def call_of_output(name: str) -> str:
    """Return the call of an output, or of what was measured over all of its outputs."""
    return name.rpartition(f".{_direction(name)}.")[0] or call_of_detail(name)


def told_in(message: str) -> tuple[str, str]:
    """Return why an output is in error, and the likely cause or "", of its Message."""
    cut = _CAUSE.search(message)
    if cut is None:
        return message, ""
    return message[: cut.start()], message[cut.end() :].removeprefix(_LIKELY)


def _others(found: Sequence[FoundOutput]) -> str:
    """Return the other calls that a card stands for, the worst first, each by its worst output."""
    times: dict[tuple[str, str], float] = {}
    for each in found:
        outputs = [(each.output.name, each.output.beyond), *each.output.others]
        for name, beyond in outputs:
            call = f"{call_of_output(name)} {_direction(name)}"
            key = each.run.found.label, call
            times[key] = max(beyond, times.get(key, 0.0))
    own = found[0].output.name
    times.pop((found[0].run.found.label, f"{call_of_output(own)} {_direction(own)}"), None)
    ordered = sorted(times.items(), key=lambda each: -each[1])
    names = [
        f"{' '.join(filter(None, key))} ({shown_times(beyond)} times)"
        if beyond > 1
        else " ".join(key)
        for key, beyond in ordered
    ]
    return named_and_more(names, _outputs_left_out(found))


def _outputs_left_out(found: Sequence[FoundOutput]) -> int:
    """Return how many outputs in error no name is known of."""
    return sum(each.output.more - len(each.output.others) for each in found)


@dataclass(frozen=True, slots=True)
class WorstMeasure:
    """By which measure an output is `times` beyond its limit, in words; it has the first of the `bars`."""

    times: float
    unit: str
    bars: tuple[Bar, ...]


def worst_measure(row: Row, beyond: float) -> WorstMeasure:
    """Return the measure that orders outputs, and the other metrics behind it. That number looks at relative
    errors, too: where it is within its limit, the metric that is farthest beyond its own comes first."""
    bars = list(bars_of(row))
    if beyond > 1:
        measure = measure_beyond(row)
        limit = measure.limit
        value = beyond if math.isnan(limit) else beyond * limit
        return WorstMeasure(beyond, measure.unit, (Bar(measure.name, value, limit), *bars))
    ratios = {
        bar.value / bar.limit: bar
        for bar in bars
        if bar.limit > 0 and not bar.is_least and bar.value > bar.limit
    }
    if not ratios:
        return WorstMeasure(math.nan, TIMES, tuple(bars))
    most = max(ratios)
    rest = (bar for bar in bars if bar is not ratios[most])
    return WorstMeasure(most, TIMES, (ratios[most], *rest))


def broken_card(found: Sequence[FoundCall]) -> Card:
    """Return the card of an operator that the device could not run: that of its first call."""
    run, call = found[0].run, found[0].call
    direction = "forward" if call.forward_broke else "backward"
    key = f"{call.name}.{direction}"
    source = source_lines(run.dump, {key}).get(key, "") if run.dump is not None else ""
    return _card(
        run,
        call.name,
        direction,
        source,
        [],
        name=call.name,
        why=f"The device could not run it: {call.message}.",
        facts=(Fact("Direction", direction), *_other_calls(found[1:])),
    )


def _other_calls(found: Sequence[FoundCall]) -> Iterator[Fact]:
    if found:
        names = [" ".join(filter(None, [each.run.found.label, each.call.name])) for each in found]
        yield Fact("Also could not be run", named_and_more(names))


def _card(
    run: RunBeside,
    call: str,
    direction: str,
    source: str,
    missing: Sequence[str],
    *,
    name: str,
    why: str,
    times: float = math.nan,
    facts: tuple[Fact, ...] = (),
    bars: tuple[Bar, ...] = (),
    histogram: Histogram | None = None,
    blocks: BlockMaxima | None = None,
    cause: str = "",
) -> Card:
    """Return a card with what the dump, the sources and saved errors say of a call."""
    told = list(missing)
    inputs: tuple[Fact, ...] = ()
    if run.dump is not None:
        # The gradients are computed of the same inputs, and of those that the backward record has.
        inputs = value_facts(record_in(run.dump, f"{call}.forward"), INPUT)
        if direction == "backward":
            given = value_facts(record_in(run.dump, f"{call}.backward"), INPUT)
            inputs += tuple(Fact(f"gradient {fact.name}", fact.value) for fact in given)
        if not inputs:
            told.append(f"{run.dump} has no record of this call now")
        code, why_not = code_around(source)
        told.append(why_not)
    else:
        code = ()
        where = run.environment.dump or "that was checked"
        told.append(
            f"the dump {where} is not on this machine, so that the inputs, the module and the source line"
            " cannot be shown"
        )
    saved = saved_json(run.files.errors, call)
    case = str(saved) if saved.is_file() else ""
    module = run.modules.get(f"{call}.{direction}") or run.modules.get(f"{call}.forward", "")
    return Card(
        name,
        Tone.ERROR,
        why,
        row=row_link(run.found, name),
        label=run.found.label,
        times=times,
        facts=facts,
        inputs=inputs,
        bars=bars,
        histogram=histogram,
        blocks=blocks,
        cause=cause,
        module=module,
        source=source,
        code=code,
        reproduce=f"ray-precheck repro {shlex.quote(case)}" if case else again(run, call),
        case=case,
        missing=tuple(filter(None, told)),
    )


def _direction(name: str) -> str:
    return "backward" if ".backward." in name else "forward"


def _no_heat(run: RunBeside, name: str) -> str:
    if len(run.heats) >= MOST_OUTPUTS:
        return (
            f"only the first {MOST_OUTPUTS:,} outputs in error of the dump have a histogram and block"
            " maxima, and this one comes after them"
        )
    path = heat_file(run.files.result)
    return (
        f"{path.name if path is not None else 'the run'} has no histogram and no block maxima of it: it has"
        " no bench of its shape, or the run is of a version without them"
    )


def again(run: RunBeside, call: str) -> str:
    """Return the command that checks a call alone and saves its tensors, "" where the dump is unknown."""
    there = run.environment
    if not there.dump:
        return ""
    words = ["ray-precheck", "run_ut", "-api_info", there.dump, "-k", call, "-save_error_data"]
    made_with = {} if run.settings is None else run.settings.fingerprint
    standard = there.rule or made_with.get("standard", "")
    if standard not in ("", "msprobe"):
        words += ["--standard", standard]
    if made_with.get("seed", "0") != "0":
        words += ["--seed", made_with["seed"]]
    if there.tests_dump:
        words += ["--tested", "dump"]
    return shlex.join(words)


def histogram_of(heat: Heat) -> Histogram:
    """Return the errors of an output as a histogram, from the smallest to the largest and the limit; elements
    without an error, and those that are NaN or infinite on one side, are named in its title."""
    apart = [f"{heat.zeros:,} elements without an error"]
    if heat.nonfinite:
        apart.append(f"{heat.nonfinite:,} NaN or infinite on one side alone")
    title = f"Errors of its elements (not drawn: {', '.join(apart)})"
    edges, filled = bin_edges(), np.flatnonzero(heat.counts).tolist()
    if heat.above in edges:
        filled.append(edges.index(heat.above))
    first, last = min(filled, default=0), max(filled, default=0) + 1
    counts = tuple(heat.counts[first:last].tolist())
    return Histogram(title, heat.unit, edges[first : last + 1], counts, heat.above)


def blocks_of(heat: Heat) -> BlockMaxima:
    """Return where in an output its errors are."""
    values = heat.blocks.astype("float64")
    return BlockMaxima("The largest error of each block", heat.unit, heat.shape, values, heat.above)


_NUMBER = r"(?P<limit>[-+.\w]+)"
# The Message that names the limit of a column, as a user's file may have set it.
_TOLD = {
    "Cosine": rf"cosine \S+ is not above {_NUMBER}",
    "MaxAbsErr": rf"(?:MaxAbsErr \S+ at index \[[^\]]*\] is not below|largest error is \S+, must be at most)"
    rf" {_NUMBER}",
    "MaxRelativeErr": rf"largest relative error is \S+, must be at most {_NUMBER}",
    "RMSE": rf"RMSE is \S+, must be at most {_NUMBER}",
    "MeanRelErrAboveSmall": rf"mean relative error is \S+, must be at most {_NUMBER}",
    "UlpErrShare": rf"units in the last place off is \S+, must be below {_NUMBER}",
    "MeanUlpErr": rf"a mean below {_NUMBER} would do",
    "ThousandthShare": rf"a relative error below \S+ is \S+, must be at least {_NUMBER}",
    "DifferentShare": rf"share of elements that differ is \S+, must be at most {_NUMBER}",
}
_COMPILED = {heading: re.compile(text) for heading, text in _TOLD.items()}
_LEAST = ("Cosine", "ThousandthShare")


def bars_of(row: Row) -> Iterator[Bar]:
    """Yield every metric of a row of the details beside its limit: that which its Message names, else the
    published one of its standard, NaN where there is none."""
    standard = row.get(STANDARD_HEADING, "") or "msprobe"
    dtype = read_dtype(row.get("Tested Dtype", "")) or "float32"
    published = _published(standard, dtype)
    for heading, cell in row.items():
        if heading in _WORDS or heading in _SETTINGS or not cell:
            continue
        value = number_in(row, heading)
        if math.isnan(value) and cell.strip().lower() != "nan":
            continue  # Text of a column that another version has added.
        limit = _told(heading, row["Message"])
        if math.isnan(limit):
            limit = published.get(heading, math.nan)
        yield Bar(heading, value, limit, heading in _LEAST)


def _told(heading: str, message: str) -> float:
    sentence = _COMPILED.get(heading)
    found = sentence.search(message) if sentence is not None else None
    try:
        return float(found["limit"].rstrip(".,;")) if found else math.nan
    except ValueError:
        return math.nan


def _of_msprobe(level: str, dtype: str) -> dict[str, float]:
    return {"Cosine": COSINE_LIMIT, "MaxAbsErr": MAX_ABS_ERR_LIMIT}


def _of_benchmark(level: str, dtype: str) -> dict[str, float]:
    limits = ratio_limits(level if level in RATIO_LIMITS else "L0")
    return {RATIO_HEADINGS[metric]: limit for metric, limit in limits.items()}


def _of_ulp(level: str, dtype: str) -> dict[str, float]:
    mean = limit_of(ULP_MEAN_LIMIT, dtype)
    share = limit_of(ULP_SHARE_LIMIT, dtype)
    return {"UlpErrShare": share, "MeanUlpErr": math.nan if mean is None else mean}


def _of_shares(level: str, dtype: str) -> dict[str, float]:
    return dict.fromkeys(("InfNanErrShare", "RelErrShare", "AbsErrShare", "DifferentShare"), 0.0)


_PUBLISHED: dict[str, Callable[[str, str], dict[str, float]]] = {
    "msprobe": _of_msprobe,
    "benchmark": _of_benchmark,
    "ulp": _of_ulp,
    "absolute": _of_shares,
    "binary": _of_shares,
    "thousandth": lambda level, dtype: {"ThousandthShare": THOUSANDTH_SHARE},
}


def _published(standard: str, dtype: str) -> dict[str, float]:
    """Return the published limits by heading for the cell of the column Standard: `benchmark L1`."""
    name, _, level = standard.partition(" ")
    limits = _PUBLISHED.get(name)
    return {} if limits is None else limits(level, dtype)
