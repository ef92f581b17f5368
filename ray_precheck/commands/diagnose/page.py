"""The page of a diagnosis: whole sentences in the order in which an engineer needs them.

Comes in: `Findings`. Goes out: text of one page. Called by `run`. Each section is a question; what
could not be done is told in a section of its own, and the last one says what to do next.

What to do next: sentences with the commands that do it.
"""

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from ray_precheck.commands.compare.closing import ERROR, PASSED, UNMATCHED, WARNING, CallRow
from ray_precheck.commands.diagnose.findings import (
    UNSAID,
    Findings,
    SuspectCheck,
    blame_sentences,
    culprits_of,
    rank_sentences,
    spread_sentences,
)
from ray_precheck.commands.locate.search import LocationReport
from ray_precheck.commands.locate.table import row_of_place, saved_call
from ray_precheck.commands.locate.walk.nouns import UNCHECKED, RootKind
from ray_precheck.commands.locate.walk.places import RootPlace
from ray_precheck.commands.precheck.closing import tested_text
from ray_precheck.schema.result import Verdict
from ray_precheck.store.results import ResultRow
from ray_precheck.trace.overflow.rows import OverflowRow

Step: TypeAlias = tuple[str, ...]
_SCRIPT = "-- python train.py"
_ALIKE = {
    RootKind.INPUT: "the same data in the same order",
    RootKind.WEIGHT: "the same weights",
    RootKind.MASK: "the same seed of every generator",
    RootKind.CONFIGURATION: "the same arguments and settings",
}


def next_steps(findings: Findings, page: Path) -> list[Step]:
    """Return the steps, the most urgent first; there is at least one."""
    steps = [
        *_between_ranks(findings),
        *_given(findings),
        *_culprit(findings, page),
        *_more_data(findings),
    ]
    return steps or [_NOTHING]


_NOTHING: Step = (
    "Nothing of these captures needs a look. Where the training goes wrong later, capture the steps in which"
    " it does, and diagnose them:",
    f"ray-precheck capture --steps 100-101 --task tensor --level mix -o later_dump {_SCRIPT}",
)


def _between_ranks(findings: Findings) -> Iterator[Step]:
    """Yield the step of the likeliest fault between ranks: no operator that is searched alone shows it."""
    ranks = findings.location.ranks if findings.location is not None else None
    first = ranks.findings[0] if ranks is not None and ranks.findings else None
    if first is None or ranks is None or first.verdict == WARNING:
        return
    where = first.source or first.module or first.name
    yield (
        f"Look at what the ranks do with each other at {where}: {first.message}. See all that was found"
        " between them:",
        f"ray-precheck report {_quoted(ranks.files.details)}",
    )


def _given(findings: Findings) -> Iterator[Step]:
    location = findings.location
    kinds = [place.root.kind for place in location.places] if location is not None else []
    alike = [text for kind, text in _ALIKE.items() if kind in kinds]
    if alike:
        yield (
            f"Give both runs {' and '.join(alike)}, capture both again, and diagnose them:",
            f"ray-precheck capture --task tensor --level mix -o again_dump {_SCRIPT}",
            f"ray-precheck diagnose -tp again_dump -gp {_quoted(findings.golden)} -o again",
        )


def _culprit(findings: Findings, page: Path) -> Iterator[Step]:
    """Yield the steps of the likeliest culprit: alone, here, on the device, with other kernels."""
    location = findings.location
    found = culprits_of(location) if location is not None else []
    gap = next((place for place in found if place.root.kind is RootKind.GAP), None)
    first = next((place for place in found if place.root.kind is not RootKind.GAP), None)
    if first is not None and first.root.kind is RootKind.CALL:
        yield (
            f"Make both scripts do the same there, or see why they must not: {first.root.message}.",
        )
    if location is not None and first is not None:
        saved = saved_call(first, location.errors or {})
        if saved is not None:
            yield (
                f"See the failure of {_call_of_place(first)} alone, in a script that needs the framework"
                " and NumPy:",
                f"ray-precheck repro {_quoted(saved)} > repro.py && python repro.py",
            )
    yield from _on_the_device(findings, page)
    if gap is not None and gap is found[0] and location is not None:
        yield _gap_step(gap, location)


def _on_the_device(findings: Findings, page: Path) -> Iterator[Step]:
    """Yield what follows from the precheck: other kernels where it errs here, else the device itself."""
    for check in findings.checks:
        wrong = [row.name for row in check.rows if row.is_error]
        passes = any(row.verdict is Verdict.PASS for row in check.rows)
        kind = check.report.summary.environment.kind
        if wrong:
            yield _wrong_here(check, wrong, page)
            return
        if passes and kind == "cpu":
            yield (
                "It passes on the CPU of this machine. Run it on the device that made the capture (a machine"
                " that has the NPU, or gpu for npu):",
                _run_ut(check, page),
            )
            return
        if passes:
            yield (
                f"It passes on this machine's {kind} when it runs alone. See whether it gives the same twice,"
                " and which kernel it depends on:",
                f"ray-precheck naive {_quoted(check.dump.path)} -o {_quoted(page.parent / 'naive')}",
            )
            return


def _wrong_here(check: SuspectCheck, wrong: list[str], page: Path) -> Step:
    files = [check.report.files.errors / f"{name}.json" for name in wrong]
    saved = next((file for file in files if file.exists()), None)
    return (
        f"{wrong[0]} errs on this machine{'' if check.is_whole else ', too'}. See that alone, and find the"
        " kernel or switch that does it:",
        *([f"ray-precheck repro {_quoted(saved)}"] if saved is not None else []),
        f"ray-precheck naive {_quoted(check.dump.path)} -o {_quoted(page.parent / 'naive')}",
    )


def _run_ut(check: SuspectCheck, page: Path) -> str:
    names = [row.name for row in check.rows][:3]
    keywords = " ".join(f"-k {shlex.quote(name)}" for name in names) if not check.is_whole else ""
    out = page.parent / "on_device"
    return " ".join(
        f"ray-precheck run_ut -api_info {_quoted(check.dump.path)} {keywords} --tested device"
        f" --standard auto -save_error_data --device-type npu -o {_quoted(out)}".split()
    )


def _gap_step(gap: RootPlace, location: LocationReport) -> Step:
    root = gap.root
    between = f"between {root.before} and {root.key}" if root.before else f"before {root.key}"
    has_modules = bool(row_of_place(gap, location.table)[0])
    if has_modules and location.errors:
        return (
            f"Read the code {between}: tensors and modules were captured, and no operator was seen there."
            " An operator of your own is captured once it is a custom operator of the framework.",
        )
    return (
        f"Capture what lies {between}: with the modules, too, and operators of your own as custom operators"
        " of the framework:",
        f"ray-precheck capture --task tensor --level mix -o more_dump {_SCRIPT}",
    )


def _more_data(findings: Findings) -> Iterator[Step]:
    """Yield the captures that would tell what this diagnosis could not."""
    location = findings.location
    replayed = bool(location is not None and location.errors)
    is_wrong = bool(findings.suspects) or (location is not None and bool(location.places))
    if not replayed and (is_wrong or location is None):
        why = (
            "Own errors are estimates here. Capture the same step with its tensors, so that each call is"
            " replayed on the very inputs that it got:"
            if location is not None
            else "Capture the step with its tensors, so that each call can be replayed on its inputs:"
        )
        golden = f" -gp {_quoted(findings.golden)}" if findings.golden is not None else ""
        yield (
            why,
            f"ray-precheck capture --task tensor --level mix -o tensor_dump {_SCRIPT}",
            f"ray-precheck diagnose -tp tensor_dump{golden} -o tensor_diagnosis",
        )
    if findings.golden is None:
        yield (
            "Capture the same step of a run that is right (another device or version), which tells other"
            " inputs, weights and masks, and operators that were not captured:",
            f"ray-precheck capture --task tensor -o golden_dump {_SCRIPT}",
            f"ray-precheck diagnose -tp {_quoted(findings.target)} -gp golden_dump -o with_golden",
        )


def _call_of_place(place: RootPlace) -> str:
    return place.root.key.removesuffix(f".{place.root.direction}")


def _quoted(path: Path | None) -> str:
    return shlex.quote(str(path))


_WIDTH = 100
_SHOWN = 3


def page_sections(findings: Findings) -> list[tuple[str, list[str]]]:
    """Return the questions of a diagnosis that came to its end, each with its sentences; those without any
    are left out."""
    sections = (
        ("Were both runs given the same?", _given_sentences(findings)),
        ("Do the ranks agree with each other?", list(rank_sentences(findings))),
        ("Was there a NaN or an infinity?", _overflow_sentences(findings)),
        ("Where do the runs differ?", _difference_sentences(findings)),
        ("Which operator is to blame?", blame_sentences(findings)),
        ("How far did it spread?", spread_sentences(findings)),
        ("What does this machine say of the suspects?", precheck_sentences(findings)),
        ("What could not be checked?", _gap_sentences(findings)),
    )
    found = ((title, list(map(_of_one_line, sentences))) for title, sentences in sections)
    return [(title, sentences) for title, sentences in found if sentences]


def page_text(
    findings: Findings, sections: Sequence[tuple[str, Sequence[str]]], steps: Sequence[Step]
) -> str:
    """Return the page of a diagnosis, of its sections and its next steps."""
    golden = f"\nagainst {findings.golden}" if findings.golden is not None else ""
    lines = [f"Diagnosis of {findings.target}{golden}"]
    for title, sentences in sections:
        lines += ["", title, *(line for sentence in sentences for line in _wrapped(sentence))]
    lines += ["", "What to do next"]
    for number, step in enumerate(steps, 1):
        first, *commands = step
        lines += textwrap.wrap(
            first,
            _WIDTH,
            initial_indent=f"  {number}. ",
            subsequent_indent="     ",
            break_on_hyphens=False,
        )
        lines += [f"       {command}" for command in commands]
    lines += ["", "Files", *(f"  {path}" for path in _files(findings))]
    return "\n".join(lines) + "\n"


def _of_one_line(sentence: str) -> str:
    text = " ".join(sentence.split())
    return text[:-1] if text.endswith("..") and not text.endswith("...") else text


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(
        sentence,
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _given_sentences(findings: Findings) -> Iterator[str]:
    found = findings.location
    if findings.golden is None:
        yield "This cannot be said of one run alone: a golden run (-gp) tells it."
        return
    if found is None:
        yield UNSAID
        return
    others = [place for place in found.places if place.root.kind.differs_from_start]
    if not others:
        yield (
            f"Yes: in {_count(found.compared, 'record')} that both runs have, no input, weight, random mask"
            " or setting that came from outside is another one."
        )
        return
    yield "No. No operator is to blame for what follows from this:"
    for place in others[:_SHOWN]:
        label = f"{place.dump.label}: " if len(findings.dumps) > 1 else ""
        yield f"- {label}{place.root.message}."
    if len(others) > _SHOWN:
        yield f"{len(others) - _SHOWN} more are in the table of locate."


def _overflow_sentences(findings: Findings) -> Iterator[str]:
    report = findings.overflow
    if report is None:
        yield UNSAID
        return
    born = [row for row in report.rows if row.is_born]
    for row in born[:1]:
        yield f"Yes: the first was {_born(row)}"
    if len(born) > 1:
        others = ", ".join(_where(row) for row in born[1 : 1 + _SHOWN])
        yield f"{_count(len(born) - 1, 'more birth')}: {others}{', ...' if len(born) > 4 else ''}."
    if born:
        return
    came = next((row for row in report.rows if row.birth == "came in"), None)
    records = sum(each.records or 0 for each in report.dumps)
    if any(each.verdict is Verdict.ERROR for each in report.dumps):
        where = f" at {_where(came)}: {came.message}" if came is not None else ""
        yield f"Yes, but none was born in an operator: it came in from outside{where}."
    elif all(each.verdict is Verdict.SKIP for each in report.dumps):
        yield f"This could not be said: {_count(records, 'record')} have no statistics."
    else:
        yield f"No: none was born in {_count(records, 'record')} of {_count(len(report.dumps), 'dump')}."


def _where(row: OverflowRow) -> str:
    rank = f" of rank {row.rank}" if row.rank.isdigit() else ""
    step = f" in step {row.step}" if row.step and row.step != "0" else ""
    return f"{row.api}.{row.tensor}{rank}{step}"


def _born(row: OverflowRow) -> str:
    module = f", in {row.module}" if row.module else ""
    source = f" ({row.source})" if row.source else ""
    return f"{row.kind} in {_where(row)}, {row.dtype}{module}{source}: {row.message}."


def _difference_sentences(findings: Findings) -> Iterator[str]:
    reports = findings.comparison
    if reports is None:
        if findings.golden is not None:
            yield UNSAID
        return
    for report in reports.reports:
        summary = report.summary
        results = summary.results
        label = f"{report.label}: of" if len(reports.reports) > 1 else "Of"
        yield (
            f"{label} {_count(summary.done, 'pair')} of records {results[PASSED]} pass,"
            f" {results[WARNING]} only differ as their inputs do (warning), {results[ERROR]} differ by more"
            f" (error), and {results[UNMATCHED]} are without a partner."
        )
        for row in summary.first[:1]:
            yield f"The first error in the order of the run is {_call(row)}."
        for row in summary.lone[:1]:
            yield f"The first without a partner is {_call(row)}."
    errors = sum(report.summary.results[ERROR] for report in reports.reports)
    location = findings.location
    if errors and location is not None and not location.places and location.judged:
        yield (
            "Each of these operators is right on the inputs that it got (see below): what rounding made of"
            " the inputs has grown there, for instance in sums that nearly cancel."
        )


def _call(row: CallRow) -> str:
    module = f" in {row.module}" if row.module else ""
    return f"{row.name}{module}: {row.message}"


def _gap_sentences(findings: Findings) -> Iterator[str]:
    """Yield all that this diagnosis says nothing about."""
    found = False
    for sentence in _unchecked(findings):
        found = True
        yield sentence
    if not found:
        yield "Nothing: all parts came to their ends, and all records were judged."


def _unchecked(findings: Findings) -> Iterator[str]:
    for part, reason in findings.not_done.items():
        yield f"{part.value} could not be done: {reason}."
    for reason in findings.unchecked:
        yield f"Suspects could not be prechecked: {reason}."
    location, overflow = findings.location, findings.overflow
    if location is not None:
        left = [
            each
            for dump in location.dumps
            for each in dump.located.passed
            if each.verdict == UNCHECKED
        ]
        for each in left[:1]:
            yield (
                f"{_count(len(left), 'record')} could not be judged by"
                f" {'itself' if len(left) == 1 else 'themselves'}; the first is {each.key}: {each.message}."
            )
        records = sum(dump.located.records for dump in location.dumps)
        rest = records - location.judged - len(left)
        if rest > 0:
            yield (
                f"{rest} of {records} records have no error of their own to judge: nothing of them was"
                " replayed, or they have no partner in the golden run to estimate it by."
            )
    notes = [*(location.notes if location is not None else ())]
    if findings.comparison is not None:
        notes += [
            f"{label} has no partner on the other side and is left out"
            for label in findings.comparison.without
        ]
    if overflow is not None:
        notes += [f"{path} has no dump.json and is left out" for path in overflow.without]
        notes += [
            f"{each.name} cannot be read: {each.message}"
            for each in overflow.dumps
            if each.records is None
        ]
    yield from (f"{note}." for note in dict.fromkeys(notes))
    if findings.left_out:
        yield (
            f"{_count(findings.left_out, 'more suspect')} were not prechecked: the likeliest"
            f" {len(findings.suspects)} were."
        )


def _files(findings: Findings) -> Iterable[Path]:
    if findings.comparison is not None:
        yield from (report.files.details for report in findings.comparison.reports)
    if findings.overflow is not None:
        yield findings.overflow.files.details
    if findings.location is not None:
        yield findings.location.table
        if findings.location.ranks is not None:
            yield findings.location.ranks.files.details
    yield from (check.report.files.result for check in findings.checks)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


_SHOWN_ROWS = 5
_LONGEST = 300


def precheck_sentences(findings: Findings) -> Iterator[str]:
    """Yield what the device of this machine made of each suspect."""
    if not findings.checks:
        if findings.unchecked:
            yield UNSAID
        else:
            yield "There is no suspect to run here."
        return
    for check in findings.checks:
        yield from _checked(check, len(findings.dumps) > 1)


def _checked(check: SuspectCheck, is_many: bool) -> Iterator[str]:
    summary = check.report.summary
    tested = tested_text(summary.environment) or "the device of this machine"
    label = f"{check.dump.label}: " if is_many else ""
    inputs = "captured inputs" if has_files(check) else "inputs made from the statistics"
    if check.is_whole:
        yield (
            f"{label}No part could name suspects, so all {summary.total} calls ran on {tested}, with"
            f" {inputs}: {summary.passes} pass, {summary.errors} are in error, {summary.skips} could not be"
            " checked."
        )
    else:
        yield f"{label}The suspects ran on {tested}, with {inputs}:"
    for row in check.rows[:_SHOWN_ROWS]:
        yield f"- {row.name} {_verdict(row, is_suspect=not check.is_whole)}"
    if len(check.rows) > _SHOWN_ROWS:
        yield f"{len(check.rows) - _SHOWN_ROWS} more are in {check.report.files.result.name}."
    wrong = any(row.is_error for row in check.rows)
    if check.is_whole or wrong or not summary.passes:
        return
    if has_files(check):
        yield (
            "So the operator is right here: the captured results were made by another device or version, or"
            " by code around it that this run does not have."
        )
    else:
        yield (
            "So the operator is right here, on inputs like the captured ones; a fault that these very values"
            " bring about is not seen without captured inputs."
        )


def has_files(check: SuspectCheck) -> bool:
    """Return whether a dump has its tensors in files, so that calls run on captured inputs."""
    return (check.dump.path.parent / "dump_tensor_data").is_dir()


def _verdict(row: ResultRow, *, is_suspect: bool) -> str:
    message = row.message if len(row.message) <= _LONGEST else f"{row.message[: _LONGEST - 3]}..."
    if row.is_error:
        return f"is in error{' here, too' if is_suspect else ''}: {message}."
    if row.verdict is Verdict.PASS:
        return "passes."
    return f"could not be checked: {message}."
