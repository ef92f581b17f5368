"""The words of `inspect`: plain functions over an opened capture, each with its own options.

Comes in: an `InspectSession` and the words of a line. Goes out: a `WordAnswer`. Called by the command line,
the shell and `tools.precision_tool`. The words that compute something are in `judged`; those here look.
"""

import argparse
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ray_precheck.commands.inspect import judged
from ray_precheck.commands.inspect.answers import Table, WordAnswer
from ray_precheck.commands.inspect.opened import WINDOW, OpenedCapture, likest_names, module_path
from ray_precheck.commands.inspect.options import WORDS
from ray_precheck.commands.inspect.session import InspectSession
from ray_precheck.commands.inspect.tensors import (
    compared_items,
    histogram,
    printed,
    statistics_line,
)
from ray_precheck.errors import UsageError
from ray_precheck.foreign import shown
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.flow import Flow, FlowRecord
from ray_precheck.trace.items import GRADIENTS, OUTPUT, Item

_MOST_LISTED = 10_000
_MOST_LIKE = 5
# In a capture of so many records `ni` also says who gave the inputs, which it has to read them for.
_SMALL = 2000
_GRAPH_WINDOW = 2000
_MOST_FRAMES = 12


class _WordParser(argparse.ArgumentParser):
    """Parses the rest of a line; a wrong option is a sentence."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (`help {self.prog}` has its options)")


@dataclass(frozen=True, slots=True)
class Word:
    """A word: its options, and what it does with them. `needs_capture`: it looks into a capture."""

    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[InspectSession, argparse.Namespace], WordAnswer]
    needs_capture: bool = True


def answer_of(session: InspectSession, words: Sequence[str]) -> tuple[WordAnswer, bool]:
    """Run a word with its arguments; returns its answer, and whether that is wanted as JSON.

    Raises:
        UsageError: there is no such word, or an option of it is wrong.
    """
    name, *rest = words
    if name == "run" and rest[:1] not in (["-h"], ["--help"]):
        return run_shell(" ".join(rest)), False
    word = TABLE.get(name)
    if word is None:
        raise UsageError(unknown_word(name))
    if rest[:1] in (["-h"], ["--help"]):
        return WordAnswer(None, (usage_of(name),)), False
    given = _parser(name).parse_args(rest)
    return word.run(session, given), given.json


def unknown_word(name: str) -> str:
    """Return the sentence about a word that there is not."""
    near = likest_names(name, tuple(TABLE), 1)
    told = f"; did you mean {near[0]}?" if near else ""
    return f"{shown(name)} is no word of inspect{told} (`help` lists them, `! CMD` runs a shell command)"


def usage_of(name: str) -> str:
    """Return the options of a word."""
    return _parser(name).format_help().rstrip()


def options_of_word(name: str) -> list[str]:
    """Return the options of a word, for completion."""
    if name not in TABLE:
        return []
    return [option for action in _parser(name)._actions for option in action.option_strings]


def _parser(name: str) -> argparse.ArgumentParser:
    parser = _WordParser(prog=name, description=WORDS[name], add_help=False, allow_abbrev=False)
    TABLE[name].arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    return parser


def _of_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="a key, a call (Torch.add.3), an operator or a module"
    )


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="", metavar="NAME", help="the same as -n")
    parser.add_argument(
        "-n", "--name", default="", help="part of the name of an operator or a module"
    )
    parser.add_argument("-t", "--type", default="", help="part of the type of an operator")
    parser.add_argument("-f", "--fusion", default="", help="part of the name of its fusion pass")
    parser.add_argument("-k", "--kernel", default="", help="part of the name of its kernel")
    parser.add_argument(
        "-l",
        "--limit",
        type=int,
        default=_MOST_LISTED,
        help="list so many (default %(default)s; 0: all)",
    )


def list_operators(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """List operators by name and type; without either, count the types."""
    capture, name = session.capture, given.name or given.pattern
    if not (name or given.type or given.fusion or given.kernel):
        return _types(capture)
    notes: list[str] = []
    chosen = _fitting(capture, name, given.type, notes)
    rows = np.flatnonzero(chosen).tolist()
    if given.fusion or given.kernel:
        rows = [row for row in rows if _is_fused(capture, row, given.fusion, given.kernel)]
    kept = rows[: given.limit] if given.limit > 0 else rows
    data = [_listed(capture, row) for row in kept]
    lines = [_list_line(each) for each in data]
    if len(kept) < len(rows):
        notes.append(f"... and {len(rows) - len(kept)} more (-l 0 lists all)")
    if not rows:
        notes.append("no operator fits")
    return WordAnswer(data, (*lines, *notes))


def _types(capture: OpenedCapture) -> WordAnswer:
    counts: dict[str, int] = {}
    if capture.operators:
        for row in range(len(capture.index)):
            kind = capture.type_name(row)
            counts[kind] = counts.get(kind, 0) + 1
    else:
        for pattern, count in zip(
            capture.index.all_patterns, capture.index.counts.tolist(), strict=True
        ):
            counts[pattern.type_name] = counts.get(pattern.type_name, 0) + count
    ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    table = Table(
        ("Type", "Records"), [(kind, str(count)) for kind, count in ranked], "", frozenset((1,))
    )
    return WordAnswer(dict(ranked), (table, f"{len(capture.index)} records of {len(ranked)} types"))


def _fitting(capture: OpenedCapture, name: str, kind: str, notes: list[str]) -> Array:
    """Return which records fit, `(N,)` bool: the names that hold a text, else those that are like it."""
    index = capture.index
    kinds = _holding(kind, sorted(_type_names(capture)), notes)
    if capture.operators:
        names = _holding(name, [each.name for each in capture.operators], notes)
        return np.array(
            [
                capture.type_name(row) in kinds
                and (not name or capture.operators[row].name in names)
                for row in range(len(index))
            ]
        )
    by_type = np.array([pattern.type_name in kinds for pattern in index.all_patterns])
    if not name:
        return np.asarray(by_type[index.patterns])
    places = map(index.row, (name, f"{name}.forward", f"{name}.backward"))
    exact = [place for place in places if place is not None]
    if exact:
        chosen = np.zeros(len(index), np.bool_)
        chosen[exact] = True
        return np.asarray(chosen & by_type[index.patterns])
    names = _holding(name, capture.names, notes)
    by_name = np.array([pattern.name in names for pattern in index.all_patterns])
    by_module = np.array([module_path(each) in names for each in index.all_modules])
    by_module[0] = False  # which is none
    fits = by_name[index.patterns] | by_module[index.modules]
    return np.asarray(fits & by_type[index.patterns])


def _type_names(capture: OpenedCapture) -> set[str]:
    if capture.operators:
        return {capture.type_name(row) for row in range(len(capture.index))}
    return {pattern.type_name for pattern in capture.index.all_patterns}


def _holding(text: str, names: Sequence[str], notes: list[str]) -> set[str]:
    """Return the names that hold a text, whatever the case; where none does, those that are like it."""
    lower = text.lower()
    found = {name for name in names if lower in name.lower()}
    if found or not text:
        return found
    near = likest_names(text, sorted(set(names)), _MOST_LIKE)
    if near:
        notes.append(f"nothing is called {shown(text)}; like it are: {', '.join(near)}")
    return set(near)


def _is_fused(capture: OpenedCapture, row: int, fusion: str, kernel: str) -> bool:
    passes, kernels = _passes(capture, row)
    return fusion.lower() in passes.lower() and kernel.lower() in kernels.lower()


def _passes(capture: OpenedCapture, row: int) -> tuple[str, str]:
    """Return the fusion passes and the kernels of an operator, by the attributes that GE gives it."""
    attributes = capture.operator(row).attributes
    passes = [value for name, value in attributes.items() if name.lower().endswith("pass_name")]
    kernels = [
        value
        for name, value in attributes.items()
        if name.lower().replace("_", "").endswith("kernelname")
    ]
    return _flat_text(passes), _flat_text(kernels)


def _flat_text(values: Sequence[Any]) -> str:
    found = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return ",".join(map(str, found))


def _listed(capture: OpenedCapture, row: int) -> dict[str, str]:
    passes = _passes(capture, row)[0] if capture.has_operators else ""
    return {
        "type": capture.type_name(row),
        "fusion": passes,
        "name": capture.name(row),
        "key": capture.index.key(row),
        "module": module_path(capture.index.module(row)),
    }


def _list_line(each: Mapping[str, str]) -> str:
    fusion = f"[{each['fusion']}]" if each["fusion"] else ""
    module = f"  ({each['module']})" if each["module"] else ""
    return f"[{each['type']}]{fusion} {each['name']}{module}"


def _node_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="", metavar="NAME", help="the same as -n")
    parser.add_argument(
        "-n", "--name", default="", help="a key, a call (Torch.add.3) or an operator"
    )
    parser.add_argument(
        "-g", "--graph", default="", help="the operators of the graphs whose name holds this"
    )
    parser.add_argument(
        "-a", "--attributes", action="store_true", help="all attributes and arguments"
    )
    parser.add_argument(
        "-s",
        "--save",
        type=int,
        metavar="DEPTH",
        help="write the operators around it as Graphviz text",
    )


def node_information(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """Tell of an operator: type, inputs, outputs, attributes, files, and those of its partner."""
    capture, name = session.capture, given.name or given.pattern
    rows = capture.rows_of(name) if name else []
    if given.graph:
        rows = [
            row
            for row in (rows or range(len(capture.index)))
            if given.graph.lower() in capture.operator(row).graph.lower()
        ]
        if not rows:
            raise UsageError(
                f"no operator of {capture.path} is in a graph like {shown(given.graph)}"
            )
        if not name:
            listed = [_listed(capture, row) for row in rows]
            return WordAnswer(listed, tuple(map(_list_line, listed)))
    if not rows:
        raise UsageError("ni wants the name of an operator: ni NAME, or -g GRAPH")
    told = [_node(session, row, all_attributes=given.attributes) for row in rows]
    parts = [line for each in told for line in each.parts]
    data: list[dict[str, Any]] = [each.data for each in told]
    if given.save is not None:
        path = _saved_graph(session, rows[0], max(0, given.save))
        parts.append(f"Sub graph saved to {path}")
        data[0]["graph_file"] = path
    return WordAnswer(data, tuple(parts))


def _node(session: InspectSession, row: int, *, all_attributes: bool) -> WordAnswer:
    capture = session.capture
    operator, key, items = capture.operator(row), capture.index.key(row), capture.items(row)
    lines = [f"[{capture.type_name(row)}] {capture.name(row)}"]
    facts = {
        "Key": key if operator.name else "",
        "Graph": operator.graph,
        "Module": " < ".join(capture.modules_around(row)),
        "Origins": ", ".join(operator.origins),
        "Fusion": _passes(capture, row)[0],
    }
    lines += [f"{name}: {text}" for name, text in facts.items() if text]
    givers = _givers(capture, row)
    titles = {True: "Output:", False: "Input:"}
    for is_output in (False, True):
        shown_items = [item for item in items if (item.part in (OUTPUT, GRADIENTS)) == is_output]
        tensors = [item for item in shown_items if item.is_tensor]
        lines.append(titles[is_output])
        for number, item in enumerate(tensors):
            named = f" {item.model_name}" if item.model_name else ""
            giver = f" <- {givers[item.path]}" if item.path in givers else ""
            lines.append(
                f" -[{number}][{item.dtype}]{list(item.shape or ())} {item.path}{named}{giver}"
            )
            lines.append(f"   |- {statistics_line(item)}")
            lines += [f"   |- {item.file}"] if item.file else []
    others = [item for item in items if not item.is_tensor and item.element is not None]
    attributes = {item.path: _value(item) for item in others} | dict(operator.attributes)
    shown_attributes = list(attributes.items())[: None if all_attributes else 8]
    if shown_attributes:
        lines.append("Attributes:")
        lines += [f" -{name}: {_short(value, all_attributes)}" for name, value in shown_attributes]
        more = len(attributes) - len(shown_attributes)
        lines += [f" ... and {more} more (-a shows all)"] if more else []
    lines += _partner_lines(session, row)
    data = {
        "type": capture.type_name(row),
        "name": capture.name(row),
        "key": key,
        **{name.lower(): text for name, text in facts.items() if text and name != "Key"},
        "values": [
            {"path": item.path, "from": givers.get(item.path, ""), **(item.element or {})}
            for item in items
        ],
        "attributes": attributes,
    }
    return WordAnswer(data, tuple(lines))


def _value(item: Item) -> Any:
    element = item.element or {}
    return element.get("value", element.get("type"))


def _short(value: Any, whole: bool) -> str:
    return str(value) if whole else shown(value)


def _givers(capture: OpenedCapture, row: int) -> dict[str, str]:
    """Return who gave each input, in a small capture."""
    if len(capture.index) > _SMALL:
        return {}
    _, flow = capture.window(row, _SMALL, 0)
    key = capture.index.key(row)
    found = ((item.path, flow.producer(key, item.path)) for item in capture.items(row))
    return {path: f"{each.key}.{each.path}" for path, each in found if each is not None}


def _partner_lines(session: InspectSession, row: int) -> Iterator[str]:
    """Yield the outputs of the operator of the other capture."""
    if session.golden is None:
        return
    golden = session.golden
    for other in judged.partners(session, row):
        yield f"In {golden.path}: [{golden.type_name(other)}] {golden.name(other)}"
        for item in golden.items(other):
            if item.is_tensor and item.part == OUTPUT:
                yield f" -{item.path}"
                yield f"   |- {statistics_line(item)}"
                yield from [f"   |- {item.file}"] if item.file else []


def _saved_graph(session: InspectSession, row: int, depth: int) -> Path:
    """Write the operators around one, up to so many steps up and down, as Graphviz text; returns its path."""
    capture = session.capture
    records, flow = capture.window(row, _GRAPH_WINDOW, _GRAPH_WINDOW)
    own = capture.index.key(row)
    arrows = {(producer.key, key) for (key, _), producer in flow.producers.items()}
    found = {own}
    for forwards in (True, False):
        edge = {own}
        for _ in range(depth):
            edge = {
                (pair[1] if forwards else pair[0])
                for pair in arrows
                if pair[0 if forwards else 1] in edge
            } - found
            found |= edge
    lines = [f"  {_quoted(key)};" for record in records if (key := record.entry.key) in found]
    lines += [
        f"  {_quoted(a)} -> {_quoted(b)};" for a, b in sorted(arrows) if a in found and b in found
    ]
    session.state.mkdir(parents=True, exist_ok=True)
    stem = "".join(each if each.isalnum() or each in "._-" else "_" for each in own)[:150]
    path = session.state / f"{stem}.{depth}.gv"
    path.write_text("digraph {\n" + "\n".join(lines) + "\n}\n", encoding="utf-8")
    return path


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _tensor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="", metavar="FILE", help="the same as -n")
    parser.add_argument(
        "-n", "--name", default="", help="a file, or a value (Torch.add.0.forward.input.0)"
    )


def print_tensor(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """Show a tensor, and write it as text."""
    name = given.name or given.file
    if not name:
        raise UsageError("pt wants a file or the name of a value: pt FILE")
    return printed(session.tensor(name), session.state)


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="two files or values, left and right"
    )
    parser.add_argument("-n", "--name", nargs=2, metavar=("LEFT", "RIGHT"), help="the same")
    parser.add_argument(
        "-p", "--print", type=int, default=20, help="items in each table (default %(default)s)"
    )
    parser.add_argument(
        "-al", "--atol", type=float, default=0.001, help="absolute tolerance (default %(default)s)"
    )
    parser.add_argument(
        "-rl", "--rtol", type=float, default=0.001, help="relative tolerance (default %(default)s)"
    )
    parser.add_argument("-s", "--save", action="store_true", help="write both as text, too")


def compare_tensors(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """Compare two tensors item by item."""
    names = given.name or given.files
    if len(names) != 2:
        raise UsageError("cp wants two files or values: cp LEFT RIGHT")
    left, right = session.tensor(names[0]), session.tensor(names[1], of_golden=True)
    if given.save:
        for each in (left, right):
            printed(each, session.state)
    return compared_items(left, right, given.atol, given.rtol, max(0, given.print))


def _histogram_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tensor", metavar="TENSOR", help="a value (Torch.add.0.forward.input.0), or a file"
    )


def show_histogram(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """Show how the values of a tensor are spread; without a file, what its statistics say."""
    try:
        tensor = session.tensor(given.tensor)
    except UsageError:
        row, item = session.capture.item(given.tensor)
        name = f"{session.capture.index.key(row)}.{item.path}"
        if not item.is_tensor:
            raise UsageError(f"{name} is no tensor: {shown(_value(item))}") from None
        line = f"no file of it was captured; {statistics_line(item)}"
        return WordAnswer({"name": name, **(item.element or {})}, (name, line))
    return histogram(tensor.name, tensor.values)


def where_it_is(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """Tell the line of source and the modules of a call."""
    capture, told, parts = session.capture, [], []
    for row in capture.rows_of(given.name):
        key, line, around = capture.index.key(row), capture.source(row), capture.modules_around(row)
        stack = capture.side.stacks.get(key) or []
        frames = [frame.strip() for frame in map(str, stack)][:_MOST_FRAMES]
        told.append({"key": key, "source": line, "modules": around, "stack": frames})
        parts += [key, f"  source: {line or 'not known (the capture has no stack of it)'}"]
        parts.append(
            f"  module: {' < '.join(around) or 'not known (captures of level mix have modules)'}"
        )
        parts += [f"  stack:  {' '.join(frame.split())}" for frame in frames]
    return WordAnswer(told, tuple(parts))


def _flow_arguments(parser: argparse.ArgumentParser) -> None:
    _of_name(parser)
    parser.add_argument(
        "-w",
        "--window",
        type=int,
        default=WINDOW,
        help="records that are looked at (default %(default)s)",
    )


def look_up(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """List who gave each input of a call."""
    capture = session.capture
    row = capture.rows_of(given.name)[0]
    _, flow = capture.window(row, max(1, given.window), 0)
    key = capture.index.key(row)
    found = []
    for item in capture.items(row):
        if item.is_tensor and item.part != OUTPUT:
            giver = flow.producer(key, item.path)
            source = (
                f"{giver.key}.{giver.path}" if giver else _from_outside(item, row, given.window)
            )
            found.append((item, source, giver.key if giver else ""))
    return _flow_answer(key, found, "From")


def _from_outside(item: Item, row: int, window: int) -> str:
    if item.model_name:
        return f"{item.model_name} of the model"
    within = f" of the last {window}" if row > window else ""
    return f"no record{within} gave it: an input of the program, or a parameter"


def look_down(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """List who got each output of a call."""
    capture = session.capture
    row = capture.rows_of(given.name)[0]
    records, flow = capture.window(row, 0, max(1, given.window))
    key = capture.index.key(row)
    getters = _getters(records, flow, key)
    found = []
    for item in capture.items(row):
        if item.is_tensor and item.part == OUTPUT:
            for getter in getters.get(item.path) or ["no record got it"]:
                found.append((item, getter, getter))
    return _flow_answer(key, found, "To")


def _getters(records: Sequence[FlowRecord], flow: Flow, key: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for record in records:
        for item in record.inputs:
            giver = flow.producer(record.entry.key, item.path)
            if giver is not None and giver.key == key and record.entry.key != key:
                found.setdefault(giver.path, []).append(f"{record.entry.key}.{item.path}")
    return found


def _flow_answer(key: str, found: Sequence[tuple[Item, str, str]], heading: str) -> WordAnswer:
    rows = [(item.path, item.dtype, str(list(item.shape or ())), other) for item, other, _ in found]
    data = {
        "key": key,
        "values": [
            {
                "path": item.path,
                "dtype": item.dtype,
                "shape": list(item.shape or ()),
                heading.lower(): other,
            }
            for item, other, _ in found
        ],
    }
    return WordAnswer(data, (Table(("Value", "Dtype", "Shape", heading), rows, key),))


def run_shell(command: str) -> WordAnswer:
    """Run a shell command in the foreground.

    Raises:
        UsageError: there is none.
    """
    if not command.strip():
        raise UsageError("run wants a command: run CMD, or ! CMD")
    code = subprocess.run(command, shell=True, check=False).returncode
    return WordAnswer({"exit_code": code}, (f"exit code {code}",) if code else ())


def _help_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", nargs="?", default="", metavar="WORD")


def show_help(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """List the words, or the options of one."""
    if given.word:
        if given.word not in TABLE:
            raise UsageError(unknown_word(given.word))
        return WordAnswer({given.word: WORDS[given.word]}, (usage_of(given.word),))
    return WordAnswer(dict(WORDS), (Table(("Word", "What it does"), list(WORDS.items())),))


def open_console(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """Open a console with the tensors: IPython's, where it is installed."""
    capture = session.capture

    def tensor(name: str) -> Array:
        """Return the values of a tensor by the name of a value or a file."""
        return session.tensor(name).values

    def record(name: str) -> list[Mapping[str, Any]]:
        """Return the records of a call."""
        return [capture.record(row) for row in capture.rows_of(name)]

    names = {
        "capture": capture,
        "golden": session.golden,
        "tensor": tensor,
        "record": record,
        "np": np,
    }
    banner = "tensor(NAME), record(NAME), capture, golden, np; Ctrl-D goes back"
    try:
        from IPython import embed
    except ImportError:
        import code

        code.interact(banner, local=names, exitmsg="")
    else:
        embed(banner1=banner, user_ns=names, colors="neutral")
    return WordAnswer(None)


def _nothing(parser: argparse.ArgumentParser) -> None:
    """A word without options."""


TABLE: dict[str, Word] = {
    "ls": Word(_list_arguments, list_operators),
    "ni": Word(_node_arguments, node_information),
    "pt": Word(_tensor_arguments, print_tensor, needs_capture=False),
    "cp": Word(_compare_arguments, compare_tensors, needs_capture=False),
    "ac": Word(judged.check_arguments, judged.check_all),
    "vc": Word(judged.vector_arguments, judged.compare_vectors),
    "vcs": Word(judged.summary_arguments, judged.summarise_vectors, needs_capture=False),
    "dc": Word(judged.convert_arguments, judged.convert_dumps, needs_capture=False),
    "where": Word(_of_name, where_it_is),
    "up": Word(_flow_arguments, look_up),
    "down": Word(_flow_arguments, look_down),
    "why": Word(_flow_arguments, judged.explain_error),
    "check": Word(_of_name, judged.check_call),
    "hist": Word(_histogram_arguments, show_histogram),
    "diff": Word(_of_name, judged.difference_of),
    "run": Word(_nothing, lambda session, given: WordAnswer(None), needs_capture=False),
    "help": Word(_help_arguments, show_help, needs_capture=False),
    "python": Word(_nothing, open_console),
}
