"""MegEngine's dumps of operators: folders of `--bin-io-dump`, and texts of `--io-dump`.

Comes in: such a folder or text. Goes out: a record for each operator, with its variables as outputs and the
variables that it got as inputs. Called by `conversion`.

A file of a folder is that of a variable; its name is the number in hexadecimal digits. It holds, in little
endian, the length of a title, a code of the dtype, a number of dimensions, the sizes of these (zeros at the
end are none), the title and the values (MegEngine 1.13, src/core/impl/utils/debug.cpp, `dump_tensor`). The
title describes the variable and those that its operator got (src/core/impl/graph/helper.cpp,
`dump_var_info`). With MGB_DUMP_INPUT there are files of inputs, too, `{number}-inp{k}`: as the operator has
left them, which may have written its result over them. So what the producer's file says comes first.

A text has the statistics of each variable with 3 digits and its first 5 values with 4
(src/plugin/impl/opr_io_dump.cpp); `l2` is the root of the mean of the squares.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

from ray_precheck.foreign import open_file
from ray_precheck.formats.conversion import CaptureWriter, Element, Format
from ray_precheck.formats.megengine_variables import (
    LARGEST_COUNT,
    Stored,
    TornError,
    Variable,
    bytes_in,
    dtype_in_title,
    facts_of,
    head_of_variable,
    known_elements,
    read_variable,
    shape_in,
    variables_in,
)
from ray_precheck.numerics.statistics import MAX, MEAN, MIN, NORM
from ray_precheck.schema.dtypes import Array

TITLE = "MegEngine's dump of operators"
# The digits of statistics and of values in a text.
_DIGITS, _DIGITS_OF_VALUES = 3, 4
# Longer lines and more inputs than any operator has.
_LONGEST_LINE, _MOST_INPUTS = 1 << 22, 1 << 16
_FILE = re.compile(r"([0-9a-f]{6,15})(?:-inp([0-9]{1,6}))?")
_TEXT = (b"var", b"==== begin lazy value recording")
_SHOWN = 3


@dataclass(slots=True)
class _Operator:
    """What a dump holds of an operator: its outputs by their slots, and the numbers of its inputs."""

    outputs: dict[int, tuple[Variable, Element]] = field(default_factory=dict)
    inputs: tuple[int, ...] = ()


def _is_here(path: Path, names: Sequence[str]) -> bool:
    """Return whether a text begins as one, or the first file of a folder with such a name has such a head."""
    if not names:
        return _begins_as_text(path)
    first = min((name for name in names if _FILE.fullmatch(name)), default=None)
    if first is None:
        return False
    try:
        with open_file(path / first) as file:
            return head_of_variable(file, bytes_in(file))[0].find("var={id:") in range(8)
    except (OSError, TornError):
        return False


def _begins_as_text(path: Path) -> bool:
    try:
        with open_file(path) as file:
            line = file.readline(1 << 12)
    except OSError:
        return False
    return line.startswith(_TEXT) and (b" produced: name=" in line or line.startswith(_TEXT[1]))


def _read(path: Path, out: CaptureWriter) -> None:
    """Read a capture.

    Raises:
        DumpError: nothing of it could be read.
    """
    out.framework = "megengine"
    torn: list[str] = []
    is_folder = path.is_dir()
    operators = _in_folder(path, out, torn) if is_folder else _in_text(path, out, torn)
    _write(operators, out)
    _note_torn(out, torn, "files" if is_folder else "lines")
    told = {"format": TITLE, "source": str(path), "overflow": [], "fusions": []}
    (out.folder / "tool.json").write_text(json.dumps(told))


FORMAT = Format(TITLE, _is_here, _read)


def _note_torn(out: CaptureWriter, torn: Sequence[str], what: str) -> None:
    if torn:
        more = f", and {len(torn) - _SHOWN} more" if len(torn) > _SHOWN else ""
        out.notes.append(f"{what} that could not be read: {'; '.join(torn[:_SHOWN])}{more}")


def _write(operators: Iterable[_Operator], out: CaptureWriter) -> None:
    """Write the records in the order of the run; an input that the dump does not have is left empty: those
    are shapes, which the host computed."""
    known: dict[int, Element] = {}
    for operator in operators:
        first = min(operator.outputs)
        variable = operator.outputs[first][0]
        known |= {each.number: element for each, element in operator.outputs.values()}
        record = {
            "input_args": [known.get(number) for number in operator.inputs],
            "input_kwargs": {},
            "output": [operator.outputs[slot][1] for slot in sorted(operator.outputs)],
            "operator": {
                "type": variable.kind,
                "name": variable.name,
                "attributes": {"owner": variable.owner},
                "origins": [],
            },
        }
        kind = re.sub(r"\W", "_", variable.kind, flags=re.ASCII) or "Operator"
        out.record(f"MegEngine.{kind}.{variable.number}.forward", record)


# --- folders ---------------------------------------------------------------------------------------------


def _in_folder(path: Path, out: CaptureWriter, torn: list[str]) -> Iterator[_Operator]:
    """Yield the operators of a folder in the order of their numbers, in which a graph is built: an operator
    has a larger number than what it gets."""
    files, inputs = _files_of(path)
    operators: dict[tuple[str, str, int], _Operator] = {}
    for name in files.values():
        try:
            variable, got, element = _variable_in(path / name, out)
        except TornError as error:
            torn.append(f"{name}: {error}")
            continue
        again = 0
        while variable.slot in operators.get((variable.owner, variable.kind, again), _NONE).outputs:
            again += 1  # Two operators that have one name.
        place = variable.owner, variable.kind, again
        operator = operators.setdefault(place, _Operator(inputs=tuple(each.number for each in got)))
        operator.outputs[variable.slot] = variable, element
    there = {each.number for one in operators.values() for each, _ in one.outputs.values()}
    for operator in operators.values():
        for place_of, number in enumerate(operator.inputs):
            if number not in there:
                there.add(number)
                yield from _alone(path, inputs, operator, place_of, out, torn)
        yield operator


_NONE = _Operator()


def _files_of(path: Path) -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    """Return the names of files by the numbers of variables, and those of inputs, with their places."""
    files: dict[int, str] = {}
    inputs: dict[tuple[int, int], str] = {}
    for entry in path.iterdir():
        found = _FILE.fullmatch(entry.name)
        if found is None:
            continue
        if found[2] is None:
            files[int(found[1], 16)] = entry.name
        else:
            inputs[int(found[1], 16), int(found[2])] = entry.name
    return dict(sorted(files.items())), inputs


def _variable_in(path: Path, out: CaptureWriter) -> tuple[Variable, list[Variable], Element]:
    """Return a variable of a file, those that its operator got, and its element."""
    try:
        with open_file(path) as file:
            stored = read_variable(file)
    except OSError as error:
        raise TornError(error.strerror or str(error)) from None
    titled, _, got = stored.title.partition(" owner_opr_inputs=")
    variable = next(variables_in(titled), None)
    if variable is None:
        raise TornError("its title names no variable")
    inputs = list(islice(variables_in(got), _MOST_INPUTS))
    variable = variable._replace(dtype=stored.dtype, shape=_shape_of(stored, variable))
    return variable, inputs, _element(variable, stored.values, out)


def _shape_of(stored: Stored, variable: Variable) -> tuple[int, ...]:
    """Return the shape; of tensors without elements the file loses zeros at the end, which its title has."""
    titled = variable.shape or ()
    is_empty = 0 in stored.shape and 0 in titled and known_elements(titled) <= LARGEST_COUNT
    return titled if is_empty else stored.shape


def _alone(
    path: Path,
    files: dict[tuple[int, int], str],
    operator: _Operator,
    place: int,
    out: CaptureWriter,
    torn: list[str],
) -> Iterator[_Operator]:
    """Yield the operator of an input that has no file of its own, of which there is one as an input."""
    for variable, _ in operator.outputs.values():
        name = files.get((variable.number, place))
        if name is None:
            continue
        try:
            found, _, element = _variable_in(path / name, out)
        except TornError as error:
            torn.append(f"{name}: {error}")
            continue
        yield _Operator({found.slot: (found, element)})
        return


def _element(variable: Variable, values: Array | None, out: CaptureWriter) -> Element:
    facts = facts_of(variable)
    if values is None:
        return {
            "type": "Tensor",
            "dtype": variable.dtype,
            "shape": [*(variable.shape or ())],
            **facts,
        }
    return out.kept(values.reshape(variable.shape or ()), dtype=variable.dtype, **facts)


# --- texts -----------------------------------------------------------------------------------------------

_PRODUCED = re.compile(r"var([0-9]{1,18}) produced: name=")
_INPUT = re.compile(r"  \[i([0-9]{1,6})\]var([0-9]{1,18}): ( <)?")
_LAZY = re.compile(r"  var([0-9]{1,18}): name=")
_STATISTIC = re.compile(r"(min|max|mean|l2|sd)=(\S+)")


def _in_text(path: Path, out: CaptureWriter, torn: list[str]) -> list[_Operator]:
    """Return the operators of a text in the order of their numbers. A variable that was produced several
    times, as by a run that warmed up first, has the last values, as in a folder."""
    reader = _TextReader(torn)
    with open_file(path) as file:
        for line in _lines(file):
            reader.take(line)
    if reader.repeated:
        out.notes.append(
            f"{reader.repeated} times a variable was given again: the last one is kept"
        )
    out.notes.append(
        f"a text holds statistics of {_DIGITS} digits and the first values with {_DIGITS_OF_VALUES}: what"
        " differs by less, or elsewhere, is not seen (--bin-io-dump has all values)"
    )
    given = [operator for operator in reader.operators.values() if operator.outputs]
    # As folders have them: the order of the numbers is one in which they can run, too.
    return sorted(given, key=lambda operator: min(v.number for v, _ in operator.outputs.values()))


def _lines(file: BufferedReader) -> Iterator[str]:
    while line := file.readline(_LONGEST_LINE):
        yield line.decode("utf-8", errors="backslashreplace").rstrip("\n")


@dataclass(slots=True)
class _TextReader:
    """Reads a text line by line. `operators` has them by their numbers, in the order of the run."""

    torn: list[str]
    operators: dict[str, _Operator] = field(default_factory=dict)
    repeated: int = 0
    _variables: dict[int, tuple[Variable, _Operator]] = field(default_factory=dict)
    _now: int = -1
    _inputs: dict[int, int] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """Read a line; one that was cut is noted."""
        if found := _PRODUCED.match(line):
            self._produced(line, int(found[1]), found.end())
        elif found := _INPUT.match(line):
            if not found[3] and int(found[1]) < _MOST_INPUTS:
                self._inputs[int(found[1])] = int(found[2])
        elif line.startswith(" val: ["):
            self._valued(self._now, line)
        elif found := _LAZY.match(line):
            self._valued(int(found[1]), line)

    def _produced(self, line: str, number: int, start: int) -> None:
        name, is_laid_out, rest = line[start:].partition(" layout=")
        layout, is_owned, rest = rest.partition(" owner_opr=")
        owner, is_numbered, operator_number = rest.rpartition(" opr")
        self._now, self._inputs = -1, {}
        if not (is_laid_out and is_owned and is_numbered):
            self.torn.append(f"that of var{number}")
            return
        owner, _, kind = owner.rpartition("{")
        # The dtype stands behind the sizes, and the format of the layout may stand behind it.
        words = re.search(r"\) ([A-Za-z0-9_]{1,40})", layout)
        shape = shape_in(f"layout:{layout}") if words else None
        dtype = dtype_in_title(words[1]) if words else ""
        operator = self.operators.setdefault(operator_number, _Operator())
        if number in self._variables:
            self.repeated += 1
        slot = next(
            (s for s, (v, _) in operator.outputs.items() if v.number == number),
            len(operator.outputs),
        )
        variable = Variable(number, name, dtype, shape, owner, kind.rstrip("}"), slot)
        self._now, self._inputs = number, {}
        self._variables[number] = variable, operator
        if shape is not None:
            operator.outputs[slot] = variable, _element_of_text(variable, "")

    def _valued(self, number: int, line: str) -> None:
        """Take the statistics of a variable, and the inputs that were read before them."""
        if number not in self._variables:
            return
        variable, operator = self._variables[number]
        if variable.shape is None:
            return
        operator.outputs[variable.slot] = variable, _element_of_text(variable, line)
        if self._inputs:
            # A place without a variable is a shape, which the host computed: no number is negative.
            last = max(self._inputs)
            operator.inputs = tuple(self._inputs.get(place, -1) for place in range(last + 1))


def _element_of_text(variable: Variable, line: str) -> Element:
    """Return the element of `[1.5, 2, ...]min=1.5 max=2 mean=1.7 l2=1.8 sd=0.1 s`."""
    shape = variable.shape or ()
    element: dict[str, Any] = {"type": "Tensor", "dtype": variable.dtype, "shape": [*shape]}
    element |= facts_of(variable)
    end = line.rfind("]min=")
    found = (
        {name: _number(text) for name, text in _STATISTIC.findall(line[end + 1 :])}
        if end >= 0
        else {}
    )
    if not found:
        return element
    mean_square = found.get("l2")
    norm = (
        mean_square * math.sqrt(math.prod(map(float, shape))) if mean_square is not None else None
    )
    element |= {MAX: found.get("max"), MIN: found.get("min"), MEAN: found.get("mean"), NORM: norm}
    start = line.rfind("[", 0, end)
    values = [_number(each) for each in line[start + 1 : end].split(", ") if each != "..."]
    return element | {"digits": _DIGITS, "first": [each for each in values if each is not None]}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
