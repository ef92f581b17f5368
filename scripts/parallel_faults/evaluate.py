"""What the commands say of captured faults and of honest runs, and whether it is what they are.

Comes in: the folder of the captures, the cells. Goes out: `JudgedCell`, one for each cell and way, and
`Honest`, one for each pair of right runs. Called by `main.py`. What a command printed is kept in
said/NAME.txt, and read from there the next time.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ray_precheck.cli.command_line import main as command_line
from scripts.measuring import markdown_table
from scripts.parallel_faults.pairs import FoundPairs, judged_pairs
from scripts.parallel_faults.table import ACROSS, FAULTS, LAYOUTS, ParallelFault, cells, variants_of

WAYS = {"ranks": "without a golden run", "same": "same layout", "one": "one process"}
GOALS = {"ranks": 0.70, "same": 0.95, "one": 0.90}
PLACES = 3  # the findings of a list of which one must name the fault
_OF_RANKS = "  step"  # so begin the findings of ranks against each other
_NOTHING, _NOT_CHECKED = 0, 4


@dataclass(frozen=True)
class Question:
    """A command about a capture: `name` is that of the file in which its answer is kept. `axes` are those of
    the target and of the golden run, "" where they are of one layout."""

    name: str
    command: str
    target: Path
    golden: Path | None = None
    axes: tuple[str, str] = ("", "")

    @property
    def words(self) -> list[object]:
        """The words of the command."""
        if self.golden is None:
            return [self.command, self.target]
        words: list[object] = [self.command, "-tp", self.target, "-gp", self.golden]
        for option, axes in zip(("--layout", "--golden-layout"), self.axes, strict=True):
            words += [option, axes] if axes else []
        return [*words, "--standard", "auto"] if self.command == "compare" else words


@dataclass(frozen=True)
class Said:
    """What a command said of a capture: its exit code and its text, and where its tables are."""

    code: int
    text: str
    out: Path

    @property
    def findings(self) -> list[str]:
        """The findings (of `locate` numbered, of `ranks` with step and group), each with the lines that
        belong to it, but no lines of the programs, which name their faults."""
        found: list[list[str]] = []
        for line in re.sub(r"(\.py:\d+, in \w+): .*", r"\1", self.text).splitlines():
            if re.match(r"\d+\. |  step \d+, .*\[", line):
                found.append([line])
            elif found and line.startswith(" "):
                found[-1].append(line.strip())
        return [" ".join(lines) for lines in found]


@dataclass(frozen=True)
class JudgedCell:
    """A cell in one way: the exit code, and the place of the first finding that names it, 0 for none."""

    layout: str
    fault: ParallelFault
    way: str
    code: int
    place: int


@dataclass(frozen=True)
class Honest:
    """What a command said of right runs, and the pairs that `compare` found between layouts."""

    name: str
    command: str
    said: Said
    found: FoundPairs | None = None

    @property
    def accused(self) -> bool:
        """Whether it says that something is wrong; a check of ranks may find nothing to check."""
        right = (_NOTHING, _NOT_CHECKED) if self.command == "ranks" else (_NOTHING,)
        return self.said.code not in right


def answered(question: Question, folder: Path) -> Said:
    """Return what a command says, now or before."""
    kept = folder / "said" / f"{question.name}.txt"
    out = kept.with_suffix(".out")
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(out, ignore_errors=True)
        code, printed = _ran_in_fork([*map(str, question.words), "-o", str(out)], kept)
        if question.command != "compare":
            shutil.rmtree(out, ignore_errors=True)
        kept.write_text(f"{code}\n{printed}")
    first, _, text = kept.read_text().partition("\n")
    return Said(int(first), text, out)


def _ran_in_fork(words: list[str], kept: Path) -> tuple[int, str]:
    """Run a command in a fork of this process, which has imported all of it: 0.3 s of a core for 0.9."""
    printed = kept.with_suffix(".part")
    import_module(f"ray_precheck.commands.{words[0]}.run")
    child = os.fork()
    if child == 0:
        code = 70  # that of an internal error, should main raise
        with printed.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            sys.stdout = sys.stderr = file  # a test runner has put its own there
            try:
                code = command_line(words)
            finally:
                file.flush()
                os._exit(code)
    _, status = os.waitpid(child, 0)
    text = printed.read_text()
    printed.unlink()
    return os.waitstatus_to_exitcode(status), text


def golden_of(variant: str, way: str) -> str:
    """Return the name of the golden case of a variant; one process has no microbatches to accumulate."""
    name = "one" if way == "one" else "honest"
    whole = variant == "plain" or (way == "one" and variant == "accumulate")
    return name if whole else f"{name}-{variant}"


def honest_target(variant: str, way: str) -> str:
    """Return the name of the right run that stands in the place of the wrong one."""
    name = golden_of(variant, "same")
    return name.replace("honest", "honest_again") if way == "same" else name


def question_of(layout: str, target: str, golden: str, way: str, folder: Path) -> Question:
    """Return the question about a case in one way."""
    captures = folder / "captures" / layout
    name = f"{layout}/{target}.{way}"
    if way == "ranks":
        return Question(name, "ranks", captures / target)
    axes = (LAYOUTS[layout].axes if way == "one" else "", "")
    return Question(name, "locate", captures / target, captures / golden, axes)


def place_of(
    fault: ParallelFault, layout: str, way: str, findings: list[str], idle: Iterable[str] = ()
) -> int:
    """Return the place of the first finding that says what a fault is and where, 0 for none.

    `locate` prints two lists, each with the likeliest cause first: what ranks tell of each other, then where
    errors begin; the place is that in its list. A finding of the same call as one of `idle`, which are said
    of the right run, names nothing.
    """
    calls = {_call_of(each) for each in idle}
    lists = [
        [each for each in findings if each.startswith(_OF_RANKS) is is_of_ranks]
        for is_of_ranks in (True, False)
    ]
    places = [
        place
        for each in lists
        for place, finding in enumerate(each[:PLACES], 1)
        if _call_of(finding) not in calls
        and all(re.search(word, finding, re.IGNORECASE) for word in fault.said(layout, way))
    ]
    return min(places, default=0)


def _call_of(finding: str) -> str:
    """Return what a finding is of, and its verdict, without the step."""
    if finding.startswith(_OF_RANKS):
        kind, _, rest = finding.partition("] ")
        return kind.partition("[")[2] + rest.partition(": ")[0]
    return finding.partition(". ")[2].partition(" (step")[0]


def judged(
    folder: Path, layouts: Iterable[str], faults: Iterable[str], ways: Iterable[str]
) -> Iterator[JudgedCell]:
    """Yield the judgement of each captured cell in each way."""
    chosen = {*faults} or {fault.name for fault in FAULTS}
    for layout, fault in cells(tuple(layouts)):
        captures = folder / "captures" / layout
        if fault.name not in chosen or not (captures / fault.name).exists():
            continue
        for way in ways:
            golden = golden_of(fault.variant, way)
            if way != "ranks" and not (captures / golden).exists():
                continue
            said = answered(question_of(layout, fault.name, golden, way, folder), folder)
            right = honest_target(fault.variant, way)
            idle = answered(question_of(layout, right, golden, way, folder), folder).findings
            place = place_of(fault, layout, way, said.findings, idle)
            yield JudgedCell(layout, fault, way, said.code, place)


def honest_of(folder: Path, layouts: Iterable[str], ways: Iterable[str]) -> Iterator[Honest]:
    """Yield what is said of right runs: alone, against a second run, one process, and other layouts."""
    chosen, ways = tuple(layouts), tuple(ways)
    for layout in chosen:
        for variant in variants_of(layout):
            yield from _honest_variant(folder, layout, variant, ways)
    if "one" in ways:
        for one, other in ACROSS:
            if one in chosen and other in chosen:
                yield from _honest_across(folder, one, other)


def _honest_variant(
    folder: Path, layout: str, variant: str, ways: Iterable[str]
) -> Iterator[Honest]:
    captures = folder / "captures" / layout
    for way in ways:
        golden = golden_of(variant, way)
        target = honest_target(variant, way)
        if not ((captures / golden).exists() and (captures / target).exists()):
            continue
        question = question_of(layout, target, golden, way, folder)
        yield Honest(question.name, question.command, answered(question, folder))
        if question.golden is not None:
            yield _compared(question, folder)


def _honest_across(folder: Path, one: str, other: str) -> Iterator[Honest]:
    target, golden = (folder / "captures" / each / "honest" for each in (one, other))
    if target.exists() and golden.exists():
        axes = LAYOUTS[one].axes, LAYOUTS[other].axes
        question = Question(f"across/{one}-{other}", "locate", target, golden, axes)
        yield Honest(question.name, "locate", answered(question, folder))
        yield _compared(question, folder)


def _compared(question: Question, folder: Path) -> Honest:
    assert question.golden is not None
    name = f"{question.name}.compare"
    said = answered(
        Question(name, "compare", question.target, question.golden, question.axes), folder
    )
    tables = sorted(said.out.rglob("compare_calls_*.csv"))
    found = None
    if any(question.axes) and tables:
        target, golden = (
            min((each / "step0").glob("*")) for each in (question.target, question.golden)
        )
        whole = next(tables[0].parent.glob("gathered_*"))
        # Stages of a pipeline, and parts of a batch, stand in the whole captures alone.
        found = max(
            judged_pairs(target, golden, tables[0]),
            judged_pairs(whole / "target", whole / "golden", tables[0]),
            key=lambda each: each.right + each.missed,
        )
    return Honest(name, "compare", said, found)


def table_of_cells(found: Iterable[JudgedCell]) -> str:
    """Return a table in Markdown: a row for each fault and layout, and the totals against their goals."""
    rows: dict[tuple[str, str], dict[str, JudgedCell]] = {}
    for each in found:
        rows.setdefault((each.layout, each.fault.name), {})[each.way] = each
    ways = [way for way in WAYS if any(way in row for row in rows.values())]
    table = markdown_table(
        ["layout", "fault", *(WAYS[way] for way in ways)],
        [[*names, *(_mark(row.get(way)) for way in ways)] for names, row in rows.items()],
    )
    totals = []
    for way in ways:
        counted = [row[way] for row in rows.values() if way in row]
        right = sum(each.place > 0 for each in counted)
        totals.append(
            f"{WAYS[way]}: {right} of {len(counted)} named, {right / max(1, len(counted)):.1%}"
            f" (goal {GOALS[way]:.0%})"
        )
    return "\n".join([table, "", *totals])


def _mark(one: JudgedCell | None) -> str:
    if one is None:
        return "-"
    if one.place:
        return str(one.place)
    sight = f" ({one.fault.sight})" if one.way == "ranks" and one.fault.sight else ""
    return {0: "nothing", 1: "other", 2: "refused"}.get(one.code, f"exit {one.code}") + sight
