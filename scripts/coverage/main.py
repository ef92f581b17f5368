"""Which functions of the frameworks can be checked: the table, made from what is installed.

`python -m scripts.coverage` prints it, `--write` writes it into the package's docs, `--check` exits with
1 where these are stale, `--names` prints every name with its status. With other versions than those of
the docs `--check` compares only what must be the same.
"""

import argparse
import sys
import textwrap
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence

from ray_precheck.bench.run import Bench
from scripts.coverage.documented import (
    PACKAGES,
    contradictions,
    documented_versions,
    installed_versions,
    told,
)
from scripts.coverage.status import MINDSPORE, TORCH, Kind, Namespace, Status, statuses
from scripts.measuring import ROOT, sections_in

DOCS = ROOT / "ray_precheck" / "bench" / "COVERAGE.md"
Table = dict[Namespace, list[Status]]
_HEAD = sections_in(ROOT / "scripts" / "coverage" / "page.txt")["head"] + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into the docs")
    parser.add_argument("--check", action="store_true", help="exit with 1 where the docs are stale")
    parser.add_argument("--names", action="store_true", help="print every name with its status")
    options = parser.parse_args(argv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = coverage()
    text = rendered(found)
    if options.write:
        if len(installed_versions()) < len(PACKAGES):
            parser.error(f"--write needs torch and MindSpore; here is {told(installed_versions())}")
        DOCS.write_text(text, encoding="utf-8")
        return 0
    if options.check:
        return 0 if is_current(text, found) else 1
    print(every_name(found) if options.names else text)
    return 0


def coverage() -> Table:
    """Return the status of every name of every namespace of the frameworks that are installed."""
    found: Table = {}
    for namespaces in (TORCH, MINDSPORE) if "mindspore" in installed_versions() else (TORCH,):
        bench = Bench(namespaces[0].framework)
        found.update({namespace: statuses(namespace, bench) for namespace in namespaces})
    return found


def is_current(text: str, table: Table) -> bool:
    """Return whether the docs say the same; says on stderr where they do not.

    Where they are of other versions than those that are installed, nothing may contradict them.
    """
    written = DOCS.read_text(encoding="utf-8") if DOCS.exists() else ""
    theirs, here = documented_versions(written), installed_versions()
    if theirs and theirs != here:
        print(f"{DOCS.name} holds for {told(theirs)}; here is {told(here)}", file=sys.stderr)
        found = contradictions(written, table)
        print("\n".join(found), end="\n" if found else "", file=sys.stderr)
        return not found
    if written == text:
        return True
    print(f"{DOCS} is stale: python -m scripts.coverage --write", file=sys.stderr)
    return False


def rendered(table: Table) -> str:
    """Return the docs: shares, then the names that cannot be checked by their reasons."""
    lines = [_row(namespace.title, found) for namespace, found in table.items()]
    for title, namespaces in (("all of torch", TORCH), ("all of MindSpore", MINDSPORE)):
        names = [s for namespace in namespaces for s in table.get(namespace, [])]
        lines += [_row(title, names)] if names else []
    sections = [_section(namespace, found) for namespace, found in table.items()]
    return (
        _HEAD.format(versions=told(installed_versions()))
        + "\n".join(lines)
        + "\n"
        + "".join(sections)
    )


def _row(title: str, found: list[Status]) -> str:
    count = Counter(status.kind for status in found)
    covered = sum(status.is_covered for status in found)
    open_ones = len(found) - count[Kind.EXCLUDED]
    shares = f"{covered / len(found):.1%} | {covered / open_ones:.1%}"
    cells = " | ".join(str(count[kind]) for kind in Kind)
    return f"| {title} | {len(found)} | {cells} | {shares} |"


def _section(namespace: Namespace, found: list[Status]) -> str:
    by_reason = defaultdict(list)
    for status in found:
        if not status.is_covered:
            by_reason[status.reason].append(status.name)
    if not by_reason:
        return ""
    parts = [f"\n## {namespace.title}\n"]
    for reason, names in sorted(by_reason.items()):
        listed = textwrap.fill(" ".join(names), 100, break_on_hyphens=False)
        parts.append(f"\n{reason[0].upper()}{reason[1:]}:\n\n```\n{listed}\n```\n")
    return "".join(parts)


def every_name(table: Table) -> str:
    """Return one line a name: what a dump calls it, its status, the reason."""
    return "\n".join(
        f"{namespace.api(status.name).type_name}\t{status.kind.value}\t{status.reason}"
        for namespace, found in table.items()
        for status in found
    )
