"""The changes that can be made to a module, and the module with one of them made.

Comes in: the text of a module. Goes out: `Change`s, each with one small change, and the changed text.
Called by `main`. A change is one of: another comparison, `and` for `or`, True for False, another
arithmetic operator, and a condition or a number negated. Annotations, decorators and the inside of
f-strings are left alone: the first two change no behaviour, the last has no positions in the tree.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
# Nodes that are looked into: not contexts and operators, and not f-strings.
_WITH_CODE = (
    ast.expr | ast.stmt | ast.comprehension | ast.arguments | ast.arg | ast.keyword
    | ast.match_case | ast.ExceptHandler | ast.withitem | ast.pattern | ast.Slice
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one expression.

    `function` is the line of the function or lambda around it, and 0 outside of functions, where it runs
    on import. Lines count from 1, columns are in bytes of UTF-8.
    """

    kind: str
    line: int
    column: int
    end_line: int
    end_column: int
    replacement: str
    function: int


def find_changes(text: str) -> list[Change]:
    """Return every change that can be made, in the order of the text."""
    changes = list(_of_node(ast.parse(text), 0))
    return sorted(changes, key=lambda each: (each.line, each.column, each.replacement))


def mutate(text: str, change: Change) -> str:
    """Return the text with one change."""
    lines = text.encode().splitlines(keepends=True)
    first, last = lines[change.line - 1], lines[change.end_line - 1]
    changed = first[: change.column] + change.replacement.encode() + last[change.end_column :]
    return b"".join([*lines[: change.line - 1], changed, *lines[change.end_line :]]).decode()


def _of_node(node: ast.AST, around: int) -> Iterator[Change]:
    """Yield the changes inside a node; `around` is the line of the function around it."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        function = node.lineno if is_function and field == "body" else around  # type: ignore[attr-defined]
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, _WITH_CODE) or _is_left_out(child):
                continue
            yield from _changes(child, function)
            if isinstance(child, ast.expr) and _is_condition(node, field):
                yield _change("negation", child, ast.UnaryOp(ast.Not(), child), function)
            yield from _of_node(child, function)


def _is_left_out(node: ast.AST) -> bool:
    """Whether a node is an f-string, or a statement for type checkers alone."""
    is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    return is_for_types or isinstance(node, ast.JoinedStr)


def _is_condition(parent: ast.AST, field: str) -> bool:
    is_test = field == "test" and isinstance(parent, ast.If | ast.While | ast.IfExp)
    return is_test or (field == "ifs" and isinstance(parent, ast.comprehension))


def _changes(node: ast.AST, function: int) -> Iterator[Change]:
    maker = _MAKERS.get(type(node))
    for kind, changed in maker(node) if maker else ():
        yield _change(kind, node, changed, function)


def _comparisons(node: ast.Compare) -> Iterator[tuple[str, ast.AST]]:
    for number, operator in enumerate(node.ops):
        for other in _COMPARISONS[type(operator)]:
            changed = copy.deepcopy(node)
            changed.ops[number] = other()
            yield "comparison", changed


def _booleans(node: ast.BoolOp) -> Iterator[tuple[str, ast.AST]]:
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield "boolean", ast.BoolOp(other, node.values)


def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.value, bool):
        yield "boolean", ast.Constant(not node.value)


def _sums(node: ast.BinOp) -> Iterator[tuple[str, ast.AST]]:
    for other in _ARITHMETIC.get(type(node.op), ()):
        yield "arithmetic", ast.BinOp(node.left, other(), node.right)


def _updates(node: ast.AugAssign) -> Iterator[tuple[str, ast.AST]]:
    for other in _ARITHMETIC.get(type(node.op), ()):
        yield "arithmetic", ast.AugAssign(node.target, other(), node.value)


def _signs(node: ast.UnaryOp) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.op, ast.Not | ast.USub):
        yield "negation", node.operand


_MAKERS: dict[type[ast.AST], Callable[..., Iterator[tuple[str, ast.AST]]]] = {
    ast.Compare: _comparisons,
    ast.BoolOp: _booleans,
    ast.Constant: _constants,
    ast.BinOp: _sums,
    ast.AugAssign: _updates,
    ast.UnaryOp: _signs,
}


def _change(kind: str, old: ast.AST, new: ast.AST, function: int) -> Change:
    text = ast.unparse(new)
    if not isinstance(new, ast.AugAssign | ast.Constant):
        text = f"({text})"
    where = (old.lineno, old.col_offset, old.end_lineno, old.end_col_offset)  # type: ignore[attr-defined]
    return Change(kind, *where, text, function)
