"""The page of the docs: its sentences, and what stands in which of its tables.

Comes in: the uses and facts, and the sightings of each release. Goes out: the page's text, and, of a page, the
rows that it has. Called by the command, and by a test that holds the page against the sources.
"""

import datetime
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scripts.measuring import markdown_table
from scripts.npu_calls.evaluate import OR, Use
from scripts.npu_calls.everything import Everything
from scripts.npu_calls.explained import ACCEPTED, ACL_REFERENCE, EXPLAINED
from scripts.npu_calls.facts import Fact
from scripts.npu_calls.lookup import Presence, Sighting

_MOST_PLACES = 3
# Of a release, by its version: what was found of each use or fact.
Sightings = Mapping[str, Mapping[Use | Fact, Sighting]]
Row = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page: its title, the sentences before it, and its columns and rows."""

    title: str
    words: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        rows = markdown_table(self.columns, self.rows)
        return f"## {self.title}\n\n{self.words.strip()}\n\n{rows}\n"


def rows_of(things: Iterable[Use | Fact]) -> list[tuple[Row, list[Use | Fact]]]:
    """Return the first two cells of each row, what is used and where, with what stands behind them."""
    groups: dict[str, list[Use | Fact]] = defaultdict(list)
    for thing in sorted(things, key=lambda each: (each.text, each.where)):
        groups[thing.text].append(thing)
    return [((_code(text), _places(group)), group) for text, group in groups.items()]


def _code(text: str) -> str:
    return OR.join(f"`{part}`" for part in text.split(OR)) if OR in text else f"`{text}`"


def _places(group: Iterable[Use | Fact]) -> str:
    places = sorted({thing.where for thing in group})
    shown = ", ".join(f"`{place}`" for place in places[:_MOST_PLACES])
    more = len(places) - _MOST_PLACES
    return f"{shown} and {more} more" if more > 0 else shown


def page_rows(text: str) -> set[Row]:
    """Return the first two cells of every row of a page's tables."""
    found = re.findall(r"(?m)^\| (`.*?`) \| (`[^|]*) \|", text)
    return {(first, second) for first, second in found}


def used_table(title: str, words: str, uses: Iterable[Use], sightings: Sightings) -> Table:
    """Return the table of names: what is used, where, in which file it was found, and in which versions."""
    rows = []
    for cells, group in rows_of(uses):
        found = {
            version: _worst(each[thing] for thing in group) for version, each in sightings.items()
        }
        rows.append([*cells, _files(found), _versions(found), _arguments(group, found)])
    columns = ("we use", "in", "it stands in", "releases that have it", "arguments")
    return Table(title, words, columns, rows)


def operator_table(title: str, words: str, uses: Iterable[Use], sightings: Sightings) -> Table:
    """Return the table of operators; the last column has the parameters that no bench takes."""
    rows = []
    for cells, group in rows_of(uses):
        found = {
            version: _worst(each[thing] for thing in group) for version, each in sightings.items()
        }
        rows.append([*cells, _versions(found), _not_taken(group, sightings)])
    columns = ("operator", "in", "releases that have it", "parameters that its bench does not take")
    return Table(title, words, columns, rows)


def fact_table(
    title: str, words: str, facts: Iterable[Fact], both: Mapping[str, Sightings]
) -> Table:
    """Return the table of texts: what each is, and which releases of which package name it."""
    rows = []
    for cells, group in rows_of(facts):
        what = group[0].what  # type: ignore[union-attr]
        is_sought = any(fact.sought or fact.is_pattern for fact in group)  # type: ignore[union-attr]
        named = [
            f"{package} {_versions({v: _worst(e[t] for t in group) for v, e in found.items()})}"
            for package, found in both.items()
        ]
        rows.append([*cells, what, "; ".join(named) if is_sought else "not sought"])
    return Table(title, words, ("text", "in", "what it is", "releases that name it"), rows)


def _worst(sightings: Iterable[Sighting]) -> Sighting:
    """Return the sighting of a row: that of the use that fares worst."""
    order = list(Presence)
    return max(sightings, key=lambda sighting: order.index(sighting.found))


def _files(found: Mapping[str, Sighting]) -> str:
    """Return the module of the newest release in which it stands."""
    files = [sighting.file for sighting in found.values() if sighting.file]
    if not files:
        return "-"
    module = re.sub(r"(/__init__)?\.pyi?$", "", files[-1]).replace("/", ".")
    return f"`{module}`"


def _versions(found: Mapping[str, Sighting]) -> str:
    missing = [version for version, each in found.items() if each.found is Presence.MISSING]
    if all(each.found is Presence.NOT_TOLD for each in found.values()):
        return "not told by a file"
    if not missing:
        return f"all {len(found)}"
    if len(missing) == len(found):
        return "**none**"
    return f"{len(found) - len(missing)}; missing in {', '.join(missing)}"


def _arguments(group: Sequence[Use | Fact], found: Mapping[str, Sighting]) -> str:
    wrong = [version for version, each in found.items() if each.found is Presence.ARGUMENTS]
    if wrong:
        return f"**not taken** in {', '.join(wrong)}"
    if not any(isinstance(use, Use) and use.how == "call" for use in group):
        return "-"
    kinds = {each.found for each in found.values()}
    if kinds == {Presence.ANY}:
        return "it takes any"
    if Presence.NATIVE in kinds:
        return "not known: C++"
    return "not known" if Presence.NOT_TOLD in kinds else "taken"


def _not_taken(group: Sequence[Use | Fact], sightings: Sightings) -> str:
    """Return the parameters that no bench takes, each with the first release that has it."""
    first: dict[str, str] = {}
    wrong, native = [], False
    for version, each in sightings.items():
        for thing in group:
            sighting = each[thing]
            native = native or sighting.found is Presence.NATIVE
            if sighting.found is Presence.ARGUMENTS:
                wrong.append(version)
            for name in sighting.more:
                first.setdefault(name, version)
    if wrong:
        return f"**other order or names** in {', '.join(wrong)}"
    if not any(isinstance(use, Use) and use.rows for use in group):
        return "it has no bench"
    if native:
        return "not known: C++"
    since = defaultdict(list)
    for name, version in first.items():
        since[version].append(name)
    return "; ".join(f"`{'`, `'.join(n)}` (from {v})" for v, n in since.items()) or "none"


_HEAD = """\
# What is used of torch_npu, MindSpore for Ascend and acl

No NPU was at hand: **nothing on this page was run on one.** What can be known without one was looked up
in the releases themselves, on {date}, by `python -m scripts.npu_calls --write`. The script finds by the
syntax trees of the package every use that the package makes of these libraries, and seeks each in the
Python files of the wheels. It does not import them. A test fails if the package uses a name that this page
lacks, and the script fails if it cannot follow a use.

- torch_npu, the first and the newest release of each minor version: {torch_npu}
- MindSpore: {mindspore}. These wheels, for Linux on x86-64, hold MindSpore's Python files for all devices
  and the libraries for Ascend: the same package runs on the CPU and on an NPU.
- Ray {ray}, for what it asks of acl.

What is written in place of an argument is `_`; `()` inside a name is the result of the call or an instance
of the class.
"""
_TORCH_NPU = """\
`torch.npu` is `torch_npu.npu`. An argument is *taken* if the call binds to the parameters of the `def` that
was found. `matmul` and `conv` are objects whose class answers for `allow_hf32` in `__getattr__` and
`__setattr__`. torch itself makes the calls "through torch.manual_seed", of an NPU's module.
"""
_OPERATORS = """\
torch_npu registers its operators from C++. Their parameters were read from the schemas in
`libtorch_npu.so`, and its Python files make each of them an attribute of `torch_npu`. The parameters that a
bench takes by position have the schema's names and order in every release. A recorded call that gives a
parameter that its bench does not take is SKIP, with that reason. The values that the bench takes of the
newer parameters are those that do nothing: no sink, no mask, no rope.
"""
_MINDSPORE = """\
Runs on the CPU use these too, so the tests run them there, but for what stands below `device_context.ascend`,
for `ascend_config`, for the name `Ascend` and for the formats that the CPU lacks (float8). What comes from C++ stands in
`mindspore._c_expression`, or in a class that is derived from one there; its signatures no file tells.
"""
_MINDSPORE_OPERATORS = """\
They are looked for in `mindspore.ops` and then in `mindspore.ops.auto_generate`, as the backend does.
"""
_FACTS = """\
Variables, files, commands and parts of messages. Of the wheels the Python files were searched, and the texts
in MindSpore's common and Ascend libraries and in `libtorch_npu.so`; of Ray, its detection of accelerators. What no package
names belongs to the driver or to CANN, which were not at hand. A message counts as one about memory if it
has one of the texts, in upper or lower case.
"""
_ACL = """\
The package itself does not import `acl` (pyACL, part of CANN). Ray does, to count the NPUs of a node that
joins a cluster; if that fails, it counts `/dev/davinci*`. No package with `acl` or stubs of it was found
on the index: `ascend-cann-nnrt` 8.0.0 holds neither, `ascend-cann-toolkit` 0.0.1.dev1 could not be built and was not looked
into. So these calls were compared with the published reference of pyACL alone: `get_device_count` with its pages for CANN 6.0.1, 7.0.0,
8.0.0 and 9.0.0, `get_soc_name` with one page of unknown release. The name of the chip that Ray asks for is not used.
"""
_LEFT = """\
## What this does not tell

Whether an NPU computes what these calls ask for; whether the option that was set has an effect; what a
library does with arguments that it takes; which of CANN's messages a failing operator brings.
"""


def page(
    everything: Everything,
    of_ray: Iterable[Use],
    sightings: Mapping[str, Sightings],
    date: datetime.date,
) -> str:
    """Return the page. `sightings` has those of ray besides those of the wheels."""
    uses: dict[tuple[str, bool], list[Use]] = {}
    for use in everything.uses:
        uses.setdefault((use.library, use.how == "operator"), []).append(use)
    releases = {package: ", ".join(found) for package, found in sightings.items()}
    tables = [
        used_table("torch_npu", _TORCH_NPU, uses["torch_npu", False], sightings["torch_npu"]),
        operator_table(
            "Operators of torch_npu", _OPERATORS, uses["torch_npu", True], sightings["torch_npu"]
        ),
        used_table("MindSpore", _MINDSPORE, uses["mindspore", False], sightings["mindspore"]),
        operator_table(
            "Fused operators of MindSpore",
            _MINDSPORE_OPERATORS,
            uses["mindspore", True],
            sightings["mindspore"],
        ),
        fact_table("Texts about NPUs", _FACTS, everything.facts, sightings),
        _acl(of_ray),
    ]
    parts = [
        _HEAD.format(date=date.isoformat(), **releases),
        *(table.text() for table in tables),
        _varying(),
        _accepted(),
        _LEFT,
    ]
    return "\n".join(_filled(part) for part in parts)


def _acl(of_ray: Iterable[Use]) -> Table:
    rows = [
        [*cells, ACL_REFERENCE.get(group[0].text, "**not in the reference that was read**")]
        for cells, group in rows_of(of_ray)
    ]
    return Table("acl", _ACL, ("Ray calls", "in", "the reference says"), rows)


def _varying() -> str:
    lines = [f"- `{where}`: {told.words}" for where, told in sorted(EXPLAINED.items())]
    words = "Places of the package where a name varies, and which names it has:"
    return "\n".join(["## Names that vary", "", words, "", *lines]) + "\n"


def _accepted() -> str:
    lines = [f"- `{text}`: {reason}." for text, reason in sorted(ACCEPTED.items())]
    return "\n".join(["## What some releases lack", "", *lines]) + "\n"


def _filled(text: str) -> str:
    """Return a text with its paragraphs filled; tables, lists and titles stay as they are."""
    paragraphs = text.strip("\n").split("\n\n")
    return (
        "\n\n".join(
            p if p.startswith(("#", "|", "- ")) else textwrap.fill(" ".join(p.split()), 110)
            for p in paragraphs
        )
        + "\n"
    )
