"""What an expression of our sources may stand for: a name of a library, a text, one of our functions.

Comes in: an expression and what the names around it stand for. Goes out: a `Value`. Called by the
collector. It follows assignments, loops over constants, f-strings, getattr and calls of our own functions,
as far as this package writes such things; what it cannot follow is UNKNOWN, and the collector says so.
"""

import ast
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from scripts.npu_calls.sources import UNKNOWN, Value, named, texts_of

# The last part of a name that is a class, a number format, or one of Python's own attributes.
_LEAF = re.compile(r"\w*[A-Z\d]\w*|__\w+__|bool_?")


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """One use of a library.

    `name` is dotted, `()` in it the result of a call. `text` is how the docs show the use. `how` is call,
    read, set, text (a name in a string) or operator. Of a call, `positional` counts the arguments, `keywords`
    names them; `is_open` says that it has `*args` or `**kwargs` besides. `where` is the file and the
    function.
    """

    text: str
    name: str
    where: str
    how: str
    positional: int = 0
    keywords: tuple[str, ...] = ()
    is_open: bool = False
    # Of an operator, the signatures of its bench.
    rows: tuple[str, ...] = ()

    @property
    def library(self) -> str:
        """The package that has it."""
        return self.name.split(".")[0]


def use_of(name: str, where: str, how: str, call: ast.Call | None) -> Use:
    """Return the use of a name; of a call, with the shape of its arguments."""
    if call is None:
        return Use(extended(name, " = _") if how == "set" else name, name, where, how)
    starred = [a for a in call.args if isinstance(a, ast.Starred)]
    keywords = tuple(sorted(k.arg for k in call.keywords if k.arg is not None))
    doubled = [k for k in call.keywords if k.arg is None]
    positional = len(call.args) - len(starred)
    shown = ["_"] * positional + ["*_"] * len(starred)
    shown += [f"{keyword}=_" for keyword in keywords] + ["**_"] * len(doubled)
    text = extended(name, f"({', '.join(shown)})")
    return Use(text, name, where, how, positional, keywords, bool(starred or doubled))


def has_parts(name: str) -> bool:
    """Return whether a name may be a module or a function, of which later uses are to be followed."""
    return "()" not in name and not _LEAF.fullmatch(name.rpartition(".")[2])


Names = Mapping[str, Value]
# The libraries whose uses are collected; of torch only what lies below torch.npu.
LIBRARIES = ("torch_npu", "mindspore", "acl", "torch")
_MOST_TEXTS = 64
# "A or B": the places of a private part, of which one suffices.
OR = " or "
# What makes a private part out of its places, and what finds it.
_MAKES_PART, FINDS_PART = ("private_parts", "PrivatePart"), ("private_parts", "find")
# What stands in a text for a part that is not known.
HOLE = "_"
# Annotations whose parts are what iterating or calling next gives.
_CONTAINERS = ("list", "tuple", "Sequence", "Iterator", "Iterable", "Optional")


def value_of(node: ast.expr | None, names: Names) -> Value:
    """Return what an expression may stand for."""
    match node:
        case ast.Name(id=name):
            return names.get(name, UNKNOWN)
        case ast.Constant(value=str() as text):
            return texts_of(text)
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return texts_of(str(number))  # for the f-strings that have it
        case ast.JoinedStr():
            return _joined(node, names)
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
            return names.get(f"self.{attribute}", UNKNOWN)
        case ast.Attribute(value=ast.Name(id=module), attr=attribute) if (
            f"{module}.{attribute}" in names
        ):
            return names[f"{module}.{attribute}"]  # a name of a module of ours
        case ast.Attribute(value=base, attr=attribute):
            found = value_of(base, names)
            if attribute == "places" and found.texts and not found.names:
                return found  # of another private part
            return _attributes(found, [attribute])
        case ast.Call():
            return _called(node, names)
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id="sys"), attr="modules"), slice=key
        ):
            return _modules(key, names)
        case ast.Subscript(value=base):
            return value_of(base, names).one()
        case ast.Dict(keys=keys, values=values):
            inside = _union([value for key, value in zip(keys, values, strict=True) if key], names)
            merged = _union(
                [value for key, value in zip(keys, values, strict=True) if not key], names
            )
            texts = _union([key for key in keys if key is not None], names).texts
            return replace(inside | merged, keys=texts | merged.keys, is_many=True)
    return _compound(node, names)


def _compound(node: ast.expr | None, names: Names) -> Value:
    match node:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return _union(parts, names).many()
        case ast.IfExp(body=first, orelse=second):
            return _union([first, second], names)
        case ast.BoolOp(values=parts):
            return _union(parts, names)
        case ast.NamedExpr(value=inner):
            return value_of(inner, names)
        case ast.Starred(value=inner):
            return value_of(inner, names).items()
        case ast.ListComp(elt=part) | ast.SetComp(elt=part) | ast.GeneratorExp(elt=part):
            return value_of(part, _looped(node.generators, names)).many()
        case ast.DictComp(key=key, value=value):
            inside = _looped(node.generators, names)
            keys = value_of(key, inside).texts
            return replace(value_of(value, inside), keys=keys, is_many=True)
    return UNKNOWN


def _looped(loops: Iterable[ast.comprehension], names: Names) -> Names:
    """Return the names with those that a comprehension binds."""
    found = dict(names)
    for loop in loops:
        value = value_of(loop.iter, found).items()
        for target in ast.walk(loop.target):
            if isinstance(target, ast.Name):
                found[target.id] = value
    return found


def _union(nodes: Iterable[ast.expr], names: Names) -> Value:
    found = UNKNOWN
    for node in nodes:
        found |= value_of(node, names)
    return found


def _attributes(base: Value, attributes: Iterable[str]) -> Value:
    if base.is_many:
        return UNKNOWN
    return named(*(extended(n, f".{attribute}") for n in base.names for attribute in attributes))


def extended(name: str, end: str) -> str:
    """Return a name with an end; of alternatives, each with it.

    What a call gave and the same call on that (`x.values().values()`, of a function that calls itself on
    what it holds) have one name, or no end would be found.
    """
    return OR.join(_once(part, end) for part in name.split(OR))


def _once(name: str, end: str) -> str:
    whole = name + end
    if end != "()":
        return whole
    before, _, last = whole.rpartition(".")
    return before if before.endswith(f".{last}") else whole


def _called(node: ast.Call, names: Names) -> Value:
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[base, name, *default]):
            found = _attributes(value_of(base, names), value_of(name, names).texts)
            return found | _union(default, names)
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module")
        ):
            return _modules(node.args[0], names)
        case ast.Call(func=ast.Attribute(value=base, attr="split" | "strip"), args=[]):
            words = (text.split() for text in value_of(base, names).texts)
            return texts_of(*itertools.chain.from_iterable(words)).many()
        case ast.Call(func=ast.Attribute(value=base, attr="items"), args=[]):
            found = value_of(base, names)
            return replace(found.one(), texts=found.texts | found.keys, is_many=True)
        case ast.Call(func=ast.Attribute(value=base, attr="get" | "pop"), args=[_, *rest]):
            found = value_of(base, names)
            if found.is_many:
                return found.one() | _union(rest, names)
    function = value_of(node.func, names)
    results = named(*(extended(name, "()") for name in function.names))
    for module, name in function.functions:
        if (module.rpartition(".")[2], name) == _MAKES_PART and node.args:
            return Value(texts=value_of(node.args[0], names).texts)
        if (module.rpartition(".")[2], name) == FINDS_PART and node.args:
            return _private(value_of(node.args[0], names))
        results |= names.get(f"{module}:{name}()", UNKNOWN)
    return results


def _modules(node: ast.expr, names: Names) -> Value:
    """Return the modules of libraries that a text names."""
    texts = value_of(node, names).texts
    return named(*(text for text in texts if text.split(".")[0] in LIBRARIES))


def _private(part: Value) -> Value:
    """Return what a private part is, by its places; of several, one suffices."""
    places = sorted(text.replace(":", ".") for text in part.texts)
    if places and all(place.split(".")[0] in LIBRARIES for place in places):
        return named(OR.join(places))
    return UNKNOWN


def _joined(node: ast.JoinedStr, names: Names) -> Value:
    """Return the texts of an f-string; a part that is not known stands there as a hole."""
    choices = [sorted(_part(part, names)) for part in node.values]
    products = itertools.islice(itertools.product(*choices), _MOST_TEXTS)
    return texts_of(*("".join(product) for product in products))


def _part(part: ast.expr, names: Names) -> frozenset[str]:
    if isinstance(part, ast.FormattedValue):
        return value_of(part.value, names).texts or frozenset({HOLE})
    return value_of(part, names).texts


def is_whole(node: ast.expr, names: Names) -> bool:
    """Return whether all texts that an expression may be are known."""
    match node:
        case ast.IfExp(body=first, orelse=second):
            return is_whole(first, names) and is_whole(second, names)
        case ast.BoolOp(values=parts):
            return all(is_whole(part, names) for part in parts)
    return bool(value_of(node, names).texts)


def annotated(node: ast.expr | None, names: Names) -> Value:
    """Return what an annotation says of a value: an instance of a library's class, or several."""
    match node:
        case ast.Attribute() | ast.Name():
            return named(*(f"{name}()" for name in value_of(node, names).names))
        case ast.Constant(value=str() as text):
            try:
                return annotated(ast.parse(text, mode="eval").body, names)
            except SyntaxError:
                return UNKNOWN
        case ast.Subscript(value=ast.Name(id=container), slice=inside) if container in _CONTAINERS:
            return annotated(inside, names).many()
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return annotated(left, names) | annotated(right, names)
        case ast.Tuple(elts=parts):
            return annotated(parts[0], names) if parts else UNKNOWN
    return UNKNOWN
