"""Two result sets of one dump compared: the errors of one device beside those of another.

Comes in: two details files, of the device that is judged and of the reference device. Goes out: a
CSV with the ratios of their errors, and the lines of the summary. Called by the command line
(`compare_results`). Both errors are against float64, so neither device needs to be there; the
limits of the ratios are those of `--standard benchmark`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ray_precheck.accuracy.standards.base import ERROR_HEADINGS, OLD_HEADINGS, shown_ratio
from ray_precheck.accuracy.standards.published import (
    METRIC_NAMES,
    RATIO_HEADINGS,
    level_of,
    ratio_limits,
)
from ray_precheck.accuracy.thresholds import SMALLEST_REFERENCE_ERR, limit_of
from ray_precheck.commands.precheck.closing import shown_name
from ray_precheck.commands.precheck.summary import times_cell
from ray_precheck.descriptors.descriptor import read_dtype
from ray_precheck.errors import ResumeError, UsageError
from ray_precheck.foreign import open_text
from ray_precheck.schema.result import Verdict
from ray_precheck.store.settings import load_settings
from ray_precheck.store.tables import (
    DETAIL_COLUMNS,
    RESULT_COLUMNS,
    call_of_detail,
    cells_of,
    decode_name,
    encode_name,
    encode_row,
    header,
    run_files,
)

# The settings that must agree in both runs, so that their rows are of the same numbers.
_SAME = ("dump", "seed", "distribution", "tested", "benches")
# The words for settings whose keys people do not know.
_CALLED = {"benches": "digest of the --bench-module files"}
_OWN_COLUMNS = ("API Name", "Dtype", "Shape", "Level")
_LIMITED = "MaxRelativeErrRatio"
COLUMNS = (*_OWN_COLUMNS, *RATIO_HEADINGS.values(), _LIMITED, "Status", "Message")
_NUMBERS = ("MaxAbsErr", "MaxRelativeErr", *ERROR_HEADINGS)
_ERROR, _SKIP = Verdict.ERROR.value, Verdict.SKIP.value


@dataclass(frozen=True, slots=True)
class DetailRow:
    """The cells of a detail row that are compared; `numbers` are its metrics by heading."""

    dtype: str
    shape: str
    status: str
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RatioRow:
    """One output compared: the ratios by their headings, how far it is beyond its limits (up to 1:
    within), the verdict, and why."""

    name: str
    dtype: str
    shape: str
    level: str
    ratios: Mapping[str, float]
    verdict: Verdict
    message: str = ""
    excess: float = 0.0


@dataclass(slots=True)
class ResultComparison:
    """The counts of all rows. `only_in` are the rows that one file lacks, by the file that has them;
    `limited` counts the outputs of which a file lacks some errors."""

    path: Path
    rows: list[RatioRow] = field(default_factory=list)
    only_in: dict[Path, list[str]] = field(default_factory=dict)
    limited: int = 0

    def count(self, verdict: Verdict) -> int:
        """Return how many rows have a verdict."""
        return sum(row.verdict is verdict for row in self.rows)


def compare_results(device: Path, reference: Path, folder: Path, stamp: str) -> ResultComparison:
    """Compare the details file of a device with that of a reference; write a CSV into `folder`.

    Raises:
        UsageError: a file is no details file or cannot be read, they are of different dumps, seeds
            or tested results, or the folder cannot be written. Nothing is written then.
    """
    _require_same_run(device, reference)
    theirs = dict(_read_details(reference))
    comparison = ResultComparison(folder / f"compare_results_{stamp}.csv")
    mine: set[str] = set()
    comparison.only_in = {device: [], reference: []}
    for name, row in _read_details(device):
        mine.add(name)
        other = theirs.get(name)
        if other is None:
            comparison.only_in[device].append(name)
            message = f"not in {reference.name}"
            comparison.rows.append(_not_compared(name, row, message))
        else:
            compared, limited = _compare(name, row, other)
            comparison.rows.append(compared)
            comparison.limited += limited
    for name, row in theirs.items():
        if name not in mine:
            comparison.only_in[reference].append(name)
            comparison.rows.append(_not_compared(name, row, f"not in {device.name}"))
    if mine and theirs and not mine & theirs.keys():
        raise UsageError(
            f"{device} and {reference} have no output in common: they are of different dumps"
        )
    comparison.path = _write(comparison)
    return comparison


def _require_same_run(device: Path, reference: Path) -> None:
    """Raise where the settings beside the files say that the runs differ; without any, go on."""
    one, other = (_fingerprint(path) for path in (device, reference))
    for key in _SAME:
        if key in one and key in other and one[key] != other[key]:
            called = _CALLED.get(key, key)
            raise UsageError(
                f"{device} and {reference} cannot be compared: the {called} of the first is"
                f" {one[key]}, that of the second {other[key]}; run both with the same"
            )


def _fingerprint(details: Path) -> dict[str, str]:
    result = details.with_name(details.name.replace("_details_", "_result_", 1))
    try:
        settings = load_settings(run_files(result).settings)
    except (ResumeError, OSError):  # No run of ours, or no readable settings: the rows alone count.
        return {}
    return {} if settings is None else settings.made_with


def _read_details(path: Path) -> Iterator[tuple[str, DetailRow]]:
    """Yield the rows of a details file by name; of those that are there twice the first counts."""
    wanted = [heading.lower() for heading in DETAIL_COLUMNS]
    seen: set[str] = set()
    try:
        with open_text(path) as file:
            rows = cells_of(file)
            headings = [cell.strip() for cell in next(rows, [])]
            if [heading.lower() for heading in headings[: len(wanted)]] != wanted:
                raise _no_details(path, headings)
            # As ours are written: msprobe has "API name".
            headings[: len(wanted)] = DETAIL_COLUMNS
            headings = [OLD_HEADINGS.get(heading, heading) for heading in headings]
            for cells in filter(None, rows):
                found = dict(zip(headings, cells, strict=False))
                name = decode_name(found["API Name"])
                if name not in seen:
                    seen.add(name)
                    yield name, _detail_row(path, name, found)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _no_details(path: Path, headings: list[str]) -> UsageError:
    hint = ""
    if [heading.lower() for heading in headings] == [each.lower() for each in RESULT_COLUMNS]:
        hint = "; it is a result file, the details file stands beside it"
    return UsageError(
        f"{path} is no details file: its first line must begin with"
        f" {', '.join(DETAIL_COLUMNS)}{hint}"
    )


def _detail_row(path: Path, name: str, cells: Mapping[str, str]) -> DetailRow:
    numbers = {}
    for heading in _NUMBERS:
        text = cells.get(heading, "").strip()
        try:
            if text:
                numbers[heading] = float(text)
        except ValueError:
            raise UsageError(
                f"{path}, {name}: {heading} is {text!r} where a number is expected"
            ) from None
    tested = cells.get("Tested Dtype", "")
    dtype = read_dtype(tested) or tested
    return DetailRow(dtype, cells.get("Shape", ""), cells.get("Status", "").lower(), numbers)


def _not_compared(name: str, row: DetailRow, message: str) -> RatioRow:
    return RatioRow(name, row.dtype, row.shape, "", {}, Verdict.SKIP, message)


def _compare(name: str, mine: DetailRow, theirs: DetailRow) -> tuple[RatioRow, bool]:
    """Compare one output; also returns whether a file lacks errors that would have been compared."""
    for what, one, other in (
        ("shape", mine.shape, theirs.shape),
        ("dtype", mine.dtype, theirs.dtype),
    ):
        if one != other:
            return _not_compared(name, mine, f"{what} {one} here, {other} in the reference"), False
    if _mismatches(mine):
        verdict = Verdict.PASS if _mismatches(theirs) else Verdict.ERROR
        whose = "both files" if verdict is Verdict.PASS else "the first file only"
        message = f"NaN or infinities stand elsewhere than in the bench, in {whose}"
        excess = 0.0 if verdict is Verdict.PASS else math.inf
        return RatioRow(name, mine.dtype, mine.shape, "", {}, verdict, message, excess), False
    whole = all(heading in row.numbers for heading in ERROR_HEADINGS for row in (mine, theirs))
    if whole:
        pairs = {heading: RATIO_HEADINGS[metric] for heading, metric in ERROR_HEADINGS.items()}
        return _by_ratios(name, mine, theirs, pairs), False
    if "MaxRelativeErr" in mine.numbers and "MaxRelativeErr" in theirs.numbers:
        return _by_ratios(name, mine, theirs, {"MaxRelativeErr": _LIMITED}), True
    verdict = Verdict.ERROR if mine.status == _ERROR else Verdict.PASS
    message = "the files have no errors of it to compare: the verdict is that of the first file"
    excess = math.inf if verdict is Verdict.ERROR else 0.0
    return RatioRow(name, mine.dtype, mine.shape, "", {}, verdict, message, excess), False


def _mismatches(row: DetailRow) -> bool:
    """Return whether NaN or infinities were not where the bench has them."""
    return not math.isfinite(row.numbers.get("MaxAbsErr", 0.0))


def _by_ratios(name: str, mine: DetailRow, theirs: DetailRow, pairs: Mapping[str, str]) -> RatioRow:
    """Compare by the ratios of the errors in these columns, to the headings of their ratios."""
    level = level_of(call_of_detail(name).rsplit(".", 1)[0])
    limits = ratio_limits(level)
    smallest = limit_of(SMALLEST_REFERENCE_ERR, mine.dtype)
    ratios: dict[str, float] = {}
    reasons: list[str] = []
    excess = 0.0
    for heading, ratio_heading in pairs.items():
        metric = ERROR_HEADINGS.get(heading, "max_rel_err")
        error, other = mine.numbers[heading], theirs.numbers[heading]
        ratio = ratios[ratio_heading] = error / max(other, smallest)
        limit = limits[metric]
        excess = max(excess, ratio / limit if ratio == ratio else math.inf)
        if not ratio <= limit:
            floor = (
                f" (of which less than {smallest:.4g} does not count)" if other < smallest else ""
            )
            reasons.append(
                f"{METRIC_NAMES[metric]} {error:.4g} is {shown_ratio(ratio)} times that of the reference,"
                f" {other:.4g}{floor}; at most {limit:g} times passes"
            )
    verdict = Verdict.ERROR if reasons else Verdict.PASS
    return RatioRow(
        name, mine.dtype, mine.shape, level, ratios, verdict, "; ".join(reasons), excess
    )


def _write(comparison: ResultComparison) -> Path:
    """Write the CSV under a name that is not taken; returns its path."""
    wanted, number = comparison.path, 0
    path = wanted
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                with path.open("xb") as file:
                    file.write(header(COLUMNS))
                    file.writelines(encode_row(_cells(row)) for row in comparison.rows)
                return path
            except FileExistsError:
                number += 1
                path = wanted.with_name(f"{wanted.stem}_{number}{wanted.suffix}")
    except OSError as error:
        raise UsageError(
            f"cannot write to the out path {wanted.parent}: {error.strerror}"
        ) from None


def _cells(row: RatioRow) -> Iterator[str]:
    yield from (encode_name(row.name), row.dtype, row.shape, row.level)
    for heading in (*RATIO_HEADINGS.values(), _LIMITED):
        yield repr(row.ratios[heading]) if heading in row.ratios else ""
    yield from (row.verdict.value, row.message)


WORST = 10
LISTED = 10


def format_comparison(comparison: ResultComparison) -> str:
    """Return counts, the worst outputs, the rows that are in one file only, and where the CSV is."""
    passes, errors, skips = (
        comparison.count(verdict) for verdict in (Verdict.PASS, Verdict.ERROR, Verdict.SKIP)
    )
    lines = [f"{passes + errors} outputs compared: {passes} pass, {errors} error"]
    if skips:
        lines[0] += f"; {skips} not compared"
    worst = sorted(comparison.rows, key=lambda row: (-row.excess, row.name))[:WORST]
    shown = [row for row in worst if row.excess > 0]
    if shown:
        lines += ["", "Nearest to their limits, or beyond (error as a multiple of the limit):"]
        lines += [_line(row) for row in shown]
    for path, names in comparison.only_in.items():
        if names:
            lines += ["", f"{len(names)} outputs are in {path} only:"]
            lines += [f"  {shown_name(name)}" for name in names[:LISTED]]
            lines += [f"  ... and {len(names) - LISTED} more"] if len(names) > LISTED else []
    if comparison.limited:
        lines += ["", _limited_note(comparison.limited)]
    return "\n".join([*lines, "", f"Comparison: {comparison.path}"])


def _line(row: RatioRow) -> str:
    tensor = f"{shown_name(row.name)} ({row.dtype}, {row.shape})"
    return f"  {row.verdict.value:6} {times_cell(row.excess):>10}  {tensor}"


def _limited_note(count: int) -> str:
    return (
        f"Of {count} outputs only MaxRelativeErr was compared: mean, RMSE and small values are"
        " written by runs with another --standard than msprobe, as --standard benchmark."
    )
