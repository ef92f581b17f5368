"""Kernels that are wrong only under a condition: which of them does the precheck meet, and find?

    python -m scripts.attack [--standards auto msprobe] [--dtypes float32 ...] [--tasks statistics tensor]
                             [--kinds PART ...] [--write] [-v]

Each kind of `kinds.py` is one kernel of torch, below autograd, that is right but where its condition is
met: a transposed input, an index that occurs twice, a row that is masked. The calls come from captures
of the small programs of `programs.py`, made here, and are checked as a run checks them, with the wrong
kernel on the tested side alone: with inputs generated from statistics, and with captured ones (`--tested
device`). A case is **hit** where the wrong kernel gave a result that differs visibly, and **found**
where a call that was hit is in error. Without the fault nothing may be in error, and each program must
meet the condition of its kinds. Exit code 1 where a case is not hit, fewer than 99 % are found, or
anything is accused. `--write` keeps the tables in ray_precheck/accuracy/VERDICTS.md.
"""

import argparse
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import torch

from ray_precheck.accuracy.standards.user_file import STANDARDS
from scripts.attack.kinds import ALL, HIDDEN, KINDS, WrongKind
from scripts.attack.record import TASKS, Tried, attack, honest, is_met
from scripts.measuring import markdown_table
from scripts.verdicts.table import keep_section

LEAST_FOUND = 0.99


@dataclass
class Attacked:
    """All that was tried with one standard."""

    standard: str
    tried: list[Tried] = field(default_factory=list)
    honest_calls: int = 0
    accused: list[str] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)

    @property
    def hit(self) -> int:
        """How many cases were hit."""
        return sum(each.hits > 0 for each in self.tried)

    @property
    def found(self) -> int:
        """How many cases were found."""
        return sum(each.found for each in self.tried)

    @property
    def is_reached(self) -> bool:
        """Whether all were hit, enough found, and nothing accused."""
        enough = self.found >= LEAST_FOUND * len(self.tried)
        return self.hit == len(self.tried) and enough and not (self.accused or self.unmet)


def attack_kinds(
    kinds: Sequence[WrongKind],
    dtypes: Sequence[str] = ALL,
    tasks: Sequence[str] = TASKS,
    standard: str = "auto",
) -> Attacked:
    """Try every kind in its dtypes, and every program without a fault."""
    found = Attacked(standard)
    for kind, dtype, task in _cases(kinds, dtypes, tasks):
        if not is_met(kind, dtype):
            found.unmet.append(f"{kind.group}: {kind.name}, {dtype}")
        tried = attack(kind, dtype, task, standard)
        found.tried.append(tried)
        found.accused += [f"{tried.title}, not hit: {line}" for line in tried.accused]
    programs = dict.fromkeys(kind.program for kind in kinds)
    for program, dtype, task in product(programs, dtypes, tasks):
        if any(kind.program == program and dtype in kind.dtypes for kind in kinds):
            calls, accused = honest(program, dtype, task, standard)
            found.honest_calls += calls
            found.accused += accused
    return found


def table_of_groups(found: Attacked, dtypes: Sequence[str], tasks: Sequence[str]) -> str:
    """Return the counts by group: kinds, cases that were hit, and found."""
    columns = [f"{dtype}, {task}" for dtype, task in product(dtypes, tasks)]
    rows = []
    for group in dict.fromkeys(each.kind.group for each in found.tried):
        of_group = [each for each in found.tried if each.kind.group == group]
        kinds = len({each.kind.name for each in of_group})
        cells = [_cell([e for e in of_group if f"{e.dtype}, {e.task}" == c]) for c in columns]
        rows.append([group, kinds, *cells])
    return markdown_table((f"`{found.standard}`", "kinds", *columns), rows)


def sums(found: Attacked) -> str:
    """Return the sums as a sentence."""
    cases = len(found.tried)
    kinds = len({(each.kind.group, each.kind.name) for each in found.tried})
    return (
        f"`{found.standard}`: {kinds} kinds, {cases} cases: {found.hit} hit"
        f" ({found.hit / max(1, cases):.1%}), {found.found} found ({found.found / max(1, cases):.1%});"
        f" {len(found.accused)} accused of {found.honest_calls} honest calls"
    )


def missed(found: Attacked) -> str:
    """Return a line for each kind that was not always found, with the reason."""
    lines: dict[str, list[str]] = {}
    for each in found.tried:
        if not each.found:
            name = f"{each.kind.group}: {each.kind.name}"
            lines.setdefault(name, []).append(f"{each.dtype}, {each.task}")
    return "\n".join(
        f"- {name} ({'; '.join(where)}): {HIDDEN.get(name, 'not explained')}."
        for name, where in lines.items()
    )


def _cases(
    kinds: Sequence[WrongKind], dtypes: Sequence[str], tasks: Sequence[str]
) -> Iterator[tuple[WrongKind, str, str]]:
    for dtype, task in product(dtypes, tasks):
        yield from ((kind, dtype, task) for kind in kinds if dtype in kind.dtypes)


def _cell(cases: Sequence[Tried]) -> str:
    if not cases:
        return ""
    hit, found = sum(each.hits > 0 for each in cases), sum(each.found for each in cases)
    return f"{found} of {len(cases)}" + (f" ({hit} hit)" if hit < len(cases) else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack as the command line says."""
    options = _parser().parse_args(arguments)
    kinds = [
        kind
        for kind in KINDS
        if not options.kinds or any(part in f"{kind.group}: {kind.name}" for part in options.kinds)
    ]
    torch.set_num_threads(1)
    is_reached, parts = True, []
    for standard in options.standards:
        found = attack_kinds(kinds, options.dtypes, options.tasks, standard)
        is_reached &= found.is_reached or standard != "auto"
        table = f"{table_of_groups(found, options.dtypes, options.tasks)}\n\n{sums(found)}."
        print(f"{table}\n")
        parts += [table, missed(found)] if standard == "auto" else [table]
        if options.verbose:
            _name(found)
    print(f"torch {torch.__version__}, {platform.machine()}, one thread")
    if options.write:
        tables = "\n\n".join(filter(None, parts))
        keep_section("attack", version=torch.__version__, tables=tables)
    return 0 if is_reached else 1


def _name(found: Attacked) -> None:
    for each in found.tried:
        if not each.found:
            what = "not hit" if not each.hits else "hit, not found"
            print(
                f"{what}: {each.title} ({each.calls} calls of {each.kind.api}): {each.said[:300]}"
            )
    for line in found.unmet:
        print(f"never met by its program: {line}")
    for line in found.accused:
        print(f"accused: {line[:400]}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.attack", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--standards", nargs="+", default=["auto"], choices=list(STANDARDS))
    parser.add_argument("--dtypes", nargs="+", default=list(ALL), choices=ALL)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--kinds", nargs="+", default=[], help="parts of `group: name`")
    parser.add_argument("--write", action="store_true", help="keep the tables in VERDICTS.md")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="name what was missed, and accused"
    )
    return parser
