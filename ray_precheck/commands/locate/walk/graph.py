"""The affected part of the data flow, as Graphviz dot and as JSON.

Comes in: what was found in the dumps. Goes out: text. Called by the session for `--graph`.
"""

import json
from collections.abc import Callable, Iterable

from ray_precheck.commands.locate.walk.places import DumpRoots, RootPlace, shown_error

# A larger drawing shows nothing; the JSON has all.
_MOST_DRAWN = 400


def graph_json(dumps: Iterable[DumpRoots], places: Iterable[RootPlace]) -> str:
    """Return all affected records with their links.

    `{dump: {"records": {key: facts}, "links": [[from, to], ..]}}`
    """
    place_of = {(found.dump.step, found.root.name): found.place for found in places}
    content = {}
    for dump in dumps:
        located = dump.located
        records: dict[str, dict[str, object]] = {}
        for root in located.roots:
            records[root.name] = {
                "place": place_of.get((dump.step, root.name)),
                "verdict": root.kind.value,
                "own": shown_error(root.own),
                "inherited": shown_error(root.inherited),
            }
        for each in located.passed:
            facts = {"verdict": each.verdict, "own": shown_error(each.own)}
            records.setdefault(each.key, {**facts, "inherited": shown_error(each.inherited)})
        content[dump.label] = {"records": records, "links": [list(edge) for edge in located.edges]}
    return json.dumps(content, indent=1) + "\n"


def graph_dot(dumps: Iterable[DumpRoots], places: Iterable[RootPlace]) -> str:
    """Return a drawing: roots red with their places, what passes an error on grey; data flows downwards."""
    place_of = {(found.dump.step, found.root.name): found.place for found in places}
    lines = ["digraph located {", "  node [shape=box, fontname=monospace];"]
    drawn = 0
    for number, dump in enumerate(dumps):
        names: dict[str, str] = {}
        for root in dump.located.roots:
            place = place_of.get((dump.step, root.name), "?")
            own = f"\\nown {shown_error(root.own)}" if root.own is not None else ""
            label = f"{place}: {_quoted(root.name)}\\n{root.kind.value}{own}"
            names[root.name] = f'  n{number}_{len(names)} [label="{label}", color=red, penwidth=2];'
        for edge in dump.located.edges:
            for key in edge:
                if key not in names:
                    names[key] = f'  n{number}_{len(names)} [label="{_quoted(key)}", color=grey];'
        ids = {key: line.split()[0] for key, line in names.items()}
        for line in list(names.values())[: _MOST_DRAWN - drawn]:
            lines.append(line)
        shown = set(list(names)[: max(0, _MOST_DRAWN - drawn)])
        lines += [
            f"  {ids[one]} -> {ids[two]};"
            for one, two in dump.located.edges
            if one in shown and two in shown
        ]
        drawn += len(shown)
        if drawn >= _MOST_DRAWN:
            lines.append(
                f'  more [label="the first {_MOST_DRAWN} affected records; the JSON has all"];'
            )
            break
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def reached_from(edges: Iterable[tuple[str, str]]) -> Callable[[str], int]:
    """Return a function that counts the records downstream of one, by the links between records."""
    below: dict[str, list[str]] = {}
    for one, two in edges:
        below.setdefault(one, []).append(two)

    def count(key: str) -> int:
        seen, waiting = {key}, [key]
        while waiting:
            for each in below.get(waiting.pop(), ()):
                if each not in seen:
                    seen.add(each)
                    waiting.append(each)
        return len(seen) - 1

    return count
