"""The rules by which a watched training starts a capture: `grad_norm > 10 * median`.

Comes in: the text of a rule. Goes out: a `Trigger`, which is asked after each step. Called by `settings` for
`--trigger`, and by `watch` once a step. A rule is parsed by Python's own parser and translated node by node;
what is not listed here is an error, and nothing of it is ever evaluated by Python.

    grad_norm > 10 * median                     a column against its own earlier rows
    loss > 2 * max(loss, 200) and step > 1000   over the last 200 rows
    nan > 0 or inf > 0
    grad_norm["layers.0"] > 5 * median          a module's column

A value of the step that is NaN counts as infinite: a norm that is no number has jumped. What is not known (no
loss in this step, fewer earlier rows than a function needs, a division by zero) makes a comparison unknown,
and an unknown rule does not fire.
"""

import ast
import math
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from ray_precheck.errors import UsageError
from ray_precheck.foreign import first_line, read_file, shown

# The columns that rules know, by the names that they have in rules.
COLUMNS = {
    "step": "Step",
    "loss": "Loss",
    "grad_norm": "Grad Norm",
    "param_norm": "Param Norm",
    "nan": "NaN",
    "inf": "Inf",
    "skipped": "Skipped",
    "step_seconds": "Step Seconds",
}
OF_MODULES = ("grad_norm", "param_norm")
# So many earlier rows a function looks at where the rule does not say so.
WINDOW = 50
# So many of them there must be: the first steps of a training have gradients of any size.
LEAST_ROWS = 20
_MOST_ROWS = 100_000
_LONGEST, _DEEPEST = 1000, 30

_Known: TypeAlias = float | bool | None
_Row: TypeAlias = Mapping[str, float | None]


class History:
    """The finite values of the rows before, by their columns, as many as the rules look at."""

    def __init__(self, windows: Mapping[str, int]) -> None:
        self._values = {column: deque[float](maxlen=most) for column, most in windows.items()}

    def add(self, row: _Row) -> None:
        """Take a row; what is not finite in it is no history."""
        for column, values in self._values.items():
            value = row.get(column)
            if value is not None and math.isfinite(value):
                values.append(value)

    def last(self, column: str, window: int, least: int) -> list[float] | None:
        """Return the last values of a column, the newest one last; None where there are less than `least`."""
        values = self._values[column]
        if len(values) < least:
            return None
        return list(values)[-window:]


_Ask: TypeAlias = Callable[[_Row, History], _Known]


@dataclass(frozen=True, slots=True)
class Trigger:
    """A rule: its text, the columns that it reads, and how many earlier rows of which columns it needs."""

    text: str
    columns: frozenset[str]
    windows: Mapping[str, int]
    _ask: _Ask

    def fires(self, row: _Row, history: History) -> bool:
        """Return whether the rule is true of a row, given those before it; what is unknown is not."""
        return self._ask(row, history) is True


def windows_of(triggers: Sequence[Trigger]) -> dict[str, int]:
    """Return how many earlier rows some rules need, by columns."""
    found: dict[str, int] = {}
    for trigger in triggers:
        for column, most in trigger.windows.items():
            found[column] = max(most, found.get(column, 0))
    return found


def triggers_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the rules of `--trigger`. A word `@FILE` stands for those of a file: one on each line, but for
    lines that are empty or begin with #.

    Raises:
        UsageError: one is no rule, or a file cannot be read.
    """
    found: list[str] = []
    for word in words:
        if not word.startswith("@"):
            found.append(word)
            continue
        try:
            text = read_file(Path(word[1:])).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"--trigger {word}: the file of rules cannot be read:"
                f" {getattr(error, 'strerror', None) or 'it is no text in UTF-8'}"
            ) from None
        lines = [line.strip() for line in text.splitlines()]
        found += [line for line in lines if line and not line.startswith("#")]
    for rule in found:
        parse_trigger(rule)
    return tuple(found)


def parse_trigger(text: str) -> Trigger:
    """Return the rule that a text stands for.

    Raises:
        UsageError: it is none; the sentence names the character, and what there is.
    """
    if len(text) > _LONGEST:
        raise UsageError(f"--trigger {shown(text)} has more than {_LONGEST:,} characters; part it")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        place = getattr(error, "offset", None)
        where = f" at character {place}" if place else " at its end"
        raise UsageError(
            f"--trigger {shown(text)} is no rule{where}: {first_line(error).partition(' (')[0]};"
            ' expected something such as "grad_norm > 10 * median"'
        ) from None
    translation = _Translation(text.strip())
    ask = translation.truth(tree, 0)
    return Trigger(text.strip(), frozenset(translation.columns), translation.windows, ask)


class _Translation:
    """Translates one rule into functions."""

    def __init__(self, text: str) -> None:
        self.columns: set[str] = set()
        self.windows: dict[str, int] = {}
        self._text = text

    def truth(self, node: ast.expr, depth: int) -> _Ask:
        """Return what says whether a part of the rule is true."""
        self._require_flat(node, depth)
        if isinstance(node, ast.BoolOp):
            parts = [self.truth(each, depth + 1) for each in node.values]
            decides = isinstance(node.op, ast.Or)
            return lambda row, history: _joined([ask(row, history) for ask in parts], decides)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.truth(node.operand, depth + 1)
            return lambda row, history: _opposite(inner(row, history))
        if isinstance(node, ast.Compare):
            return self._comparison(node, depth)
        raise self._wrong(node, "is no comparison, such as grad_norm > 10 * median")

    def _comparison(self, node: ast.Compare, depth: int) -> _Ask:
        if any(type(each) not in _COMPARISONS for each in node.ops):
            raise self._wrong(node, "compares otherwise than by < <= > >= == !=")
        compare = [_COMPARISONS[type(each)] for each in node.ops]
        own = _only_column(node)
        sides = [self.number(each, own, depth + 1) for each in (node.left, *node.comparators)]

        def ask(row: _Row, history: History) -> _Known:
            values = [side(row, history) for side in sides]
            known: list[_Known] = [
                None if left is None or right is None else holds(left, right)
                for (left, right), holds in zip(pairwise(values), compare, strict=True)
            ]
            return _joined(known, decides=False)

        return ask

    def number(self, node: ast.expr, own: str, depth: int) -> _Ask:
        """Return what gives the number that a part of the rule stands for; `own` is the only column of its
        comparison, "" where it has several."""
        self._require_flat(node, depth)
        if isinstance(node, ast.Constant):
            value = node.value
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._wrong(node, "is no number")
            if not math.isfinite(_as_float(value)):
                raise self._wrong(node, "is no finite number")
            return lambda row, history: float(value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            inner = self.number(node.operand, own, depth + 1)
            sign = -1 if isinstance(node.op, ast.USub) else 1
            return lambda row, history: _computed(operator.mul, sign, inner(row, history))
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            compute = _ARITHMETIC[type(node.op)]
            left, right = (self.number(each, own, depth + 1) for each in (node.left, node.right))
            return lambda row, history: _computed(compute, left(row, history), right(row, history))
        if isinstance(node, ast.Name) and node.id in _FUNCTIONS:
            if not own:
                raise self._wrong(node, f"of which column? Write {node.id}(grad_norm)")
            return self._function(node.id, own, WINDOW)
        if isinstance(node, ast.Call):
            return self._call(node)
        column = self._column(node)
        self.columns.add(column)
        return lambda row, history: _of_step(row.get(column))

    def _call(self, node: ast.Call) -> _Ask:
        called, given = node.func, node.args
        if not isinstance(called, ast.Name) or called.id not in _FUNCTIONS:
            raise self._wrong(called, f"is no function; there are {', '.join(_FUNCTIONS)}")
        if not 1 <= len(given) <= 2 or node.keywords:
            raise self._wrong(
                node,
                f"expected {called.id}(grad_norm), or with a count of rows {called.id}(grad_norm, 200)",
            )
        window = WINDOW
        if len(given) == 2:
            count = given[1].value if isinstance(given[1], ast.Constant) else None
            if type(count) is not int or not 1 <= count <= _MOST_ROWS:
                raise self._wrong(given[1], f"is no count of rows from 1 to {_MOST_ROWS:,}")
            window = count
        return self._function(called.id, self._column(given[0]), window)

    def _function(self, name: str, column: str, window: int) -> _Ask:
        compute = _FUNCTIONS[name]
        window = 1 if name == "last" else window
        least = min(window, LEAST_ROWS)
        self.columns.add(column)
        self.windows[column] = max(window, self.windows.get(column, 0))

        def ask(row: _Row, history: History) -> _Known:
            values = history.last(column, window, least)
            return None if values is None else compute(values)

        return ask

    def _column(self, node: ast.expr) -> str:
        found = _column_of(node)
        if found:
            return found
        if isinstance(node, ast.Name):
            raise self._wrong(node, f"is no column; there are {', '.join(COLUMNS)}")
        raise self._wrong(
            node,
            f"is not known in rules; there are numbers, columns ({', '.join(COLUMNS)};"
            f' grad_norm["layers.0"]), {", ".join(_FUNCTIONS)}, + - * /, comparisons, and, or, not',
        )

    def _require_flat(self, node: ast.expr, depth: int) -> None:
        if depth > _DEEPEST:
            raise self._wrong(node, f"is nested more than {_DEEPEST} deep")

    def _wrong(self, node: ast.expr, what: str) -> UsageError:
        # Python counts the bytes of a line; a rule of several lines has its place in its line.
        part = ast.get_source_segment(self._text, node) or ""
        line = self._text.split("\n")[node.lineno - 1].encode()[: node.col_offset]
        place = len(line.decode(errors="replace")) + 1
        return UsageError(
            f"--trigger {shown(self._text)} is wrong at character {place}: {shown(part)} {what}"
        )


def _column_of(node: ast.AST) -> str:
    """Return the heading of the column that a part of a rule names, "" where it names none."""
    if isinstance(node, ast.Name):
        return COLUMNS.get(node.id, "")
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in OF_MODULES
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    ):
        return f"{COLUMNS[node.value.id]} {node.slice.value}"
    return ""


def _only_column(node: ast.Compare) -> str:
    """Return the column of a comparison, "" where it has none or several."""
    inner = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Subscript)}
    found = {_column_of(each) for each in ast.walk(node) if id(each) not in inner} - {""}
    return found.pop() if len(found) == 1 else ""


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _of_step(value: float | None) -> float | None:
    return math.inf if value is not None and math.isnan(value) else value


def _computed(compute: Callable[[float, float], float], left: _Known, right: _Known) -> _Known:
    if left is None or right is None:
        return None
    try:
        found = compute(left, right)
    except (ZeroDivisionError, OverflowError):
        return None
    return None if math.isnan(found) else found


def _joined(known: Sequence[_Known], decides: bool) -> _Known:
    """Return what `and` (`decides` is False) or `or` makes of truths, some of them unknown."""
    if any(each is decides for each in known):
        return decides
    return None if any(each is None for each in known) else not decides


def _opposite(known: _Known) -> _Known:
    return None if known is None else not known


def _median(values: Sequence[float]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


_FUNCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "median": _median,
    "mean": lambda values: math.fsum(values) / len(values),
    "min": min,
    "max": max,
    "last": lambda values: values[-1],
}
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
