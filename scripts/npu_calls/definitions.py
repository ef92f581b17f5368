"""What a release's Python files define under a dotted name.

Comes in: the folder of an unpacked wheel, and a dotted name. Goes out: a `Definition`, or None where
there is none. Called by the look-up. Nothing is imported: the files are parsed, imports are followed from
file to file, star imports too. Stubs (`.pyi`) are read where there is no `.py`.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.npu_calls.sources import Function

_DEEPEST = 40
_KINDS = inspect.Parameter


@dataclass(frozen=True, slots=True)
class Definition:
    """What stands under a name.

    `kind` is module, function, class, instance, value, result of a call whose type no file tells, or native
    for a name that comes from a C++ extension. `file` is where it stands, below the wheel's folder.
    `signature` has the parameters of a function or a class without `self`; None where they are not known.
    `node` and `home` are its own.
    """

    kind: str
    file: str
    signature: inspect.Signature | None = None
    node: ast.AST | None = None
    home: str = ""


class Wheel:
    """The Python files of an unpacked wheel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._trees: dict[Path, ast.Module] = {}

    def find(self, name: str) -> Definition | None:
        """Return what a dotted name stands for; `()` in it is the instance of a class."""
        root, *parts = name.split(".")
        found = self._module(root)
        for part in parts:
            attribute, *calls = part.split("()")
            found = self._member(found, attribute, 0)
            if found is None:
                return None
            for _ in calls:
                kind = "instance" if found.kind == "class" else "result"
                found = Definition(kind, found.file, None, found.node, found.home)
        return found

    def _module(self, name: str) -> Definition | None:
        base = self.folder.joinpath(*name.split("."))
        for path in (base / "__init__.py", base.with_suffix(".py"), base / "__init__.pyi"):
            if path.is_file():
                return self._at(path, name)
        stub = base.with_suffix(".pyi")
        if stub.is_file():
            return self._at(stub, name)
        if base.is_dir() and any(base.glob("*.py")):
            return Definition("module", self._shown(base), None, ast.Module([], []), name)
        return None

    def _at(self, path: Path, name: str) -> Definition:
        if path not in self._trees:
            text = path.read_text(encoding="utf-8", errors="replace")
            self._trees[path] = ast.parse(text)
        return Definition("module", self._shown(path), None, self._trees[path], name)

    def _shown(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _member(self, owner: Definition | None, name: str, depth: int) -> Definition | None:
        """Return what an attribute of a definition stands for."""
        if owner is None or depth > _DEEPEST:
            return None
        if owner.kind in ("native", "result"):
            return Definition(owner.kind, owner.file)
        if owner.kind == "module":
            return self._of_module(owner, name, depth)
        if owner.kind in ("class", "instance"):
            return self._of_class(owner, name, depth)
        return None

    def _of_module(self, owner: Definition, name: str, depth: int) -> Definition | None:
        assert isinstance(owner.node, ast.Module)
        stars: list[str] = []
        found: Definition | None = None
        for statement in _statements(owner.node.body):
            if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                stars.append(self._home(owner, statement))
                continue
            bound = self._bound(owner, statement, name, depth)
            found = bound or found
        if found is not None:
            return found
        for star in reversed(stars):
            found = self._member(self._module(star), name, depth + 1)
            if found is not None:
                return found
        return self._module(f"{owner.home}.{name}")

    def _bound(
        self, owner: Definition, statement: ast.stmt, name: str, depth: int
    ) -> Definition | None:
        """Return what a statement of a module binds the name to, None if it does not."""
        match statement:
            case ast.FunctionDef(name=each) | ast.AsyncFunctionDef(name=each) if each == name:
                return _function(statement, owner, is_method=False)
            case ast.ClassDef(name=each) if each == name:
                return self._class(statement, owner, depth)
            case ast.Import(names=aliases):
                for alias in aliases:
                    if (alias.asname or alias.name.split(".")[0]) == name:
                        return self._imported(alias.name if alias.asname else name, owner)
            case ast.ImportFrom(names=aliases):
                for alias in aliases:
                    if (alias.asname or alias.name) == name:
                        return self._from(owner, statement, alias.name, depth)
            case ast.Assign(targets=targets, value=value):
                if any(_binds(target, name) for target in targets):
                    return self._value(owner, value, depth)
            case ast.AnnAssign(target=target, value=value):
                if _binds(target, name):
                    return self._value(owner, value, depth)
        return None

    def _imported(self, name: str, owner: Definition) -> Definition:
        return self._module(name) or Definition("native", owner.file)

    def _from(
        self, owner: Definition, statement: ast.ImportFrom, name: str, depth: int
    ) -> Definition | None:
        home = self._home(owner, statement)
        module = self._module(home)
        if module is None:
            # An extension, or a package outside of this wheel.
            return Definition("native", home)
        if home == owner.home:
            return self._module(f"{home}.{name}")
        return self._member(module, name, depth + 1)

    def _home(self, owner: Definition, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        is_package = owner.file.rpartition("/")[2].startswith("__init__.")
        parts = owner.home.split(".")
        parts = parts[: len(parts) - statement.level + is_package]
        return ".".join([*parts, *filter(None, [statement.module])])

    def _value(self, owner: Definition, value: ast.expr | None, depth: int) -> Definition | None:
        """Return what an assigned expression is: an alias, an instance, a lambda or some value."""
        match value:
            case ast.Name() | ast.Attribute():
                found = self._chain(owner, value, depth + 1)
                if found is not None:
                    return found
            case ast.Call(func=ast.Name() | ast.Attribute() as function):
                made = self._chain(owner, function, depth + 1)
                if made is not None and made.kind == "class":
                    return Definition("instance", made.file, None, made.node, made.home)
            case ast.Lambda(args=arguments):
                return Definition("function", owner.file, _signature(arguments))
        return Definition("value", owner.file)

    def _chain(self, owner: Definition, node: ast.expr, depth: int) -> Definition | None:
        if isinstance(node, ast.Name):
            return self._member(owner, node.id, depth)
        if isinstance(node, ast.Attribute):
            return self._member(self._chain(owner, node.value, depth), node.attr, depth)
        return None

    def _class(self, node: ast.ClassDef, owner: Definition, depth: int) -> Definition:
        made = Definition("class", owner.file, None, node, owner.home)
        for maker in ("__init__", "__new__"):
            found = self._of_class(made, maker, depth + 1)
            if found is not None and found.signature is not None:
                return Definition("class", owner.file, found.signature, node, owner.home)
        return made

    def _of_class(self, owner: Definition, name: str, depth: int) -> Definition | None:
        if not isinstance(owner.node, ast.ClassDef) or depth > _DEEPEST:
            return None
        if name in ("__mro__", "__name__", "__module__"):
            return Definition("value", owner.file)
        for statement in _statements(owner.node.body):
            match statement:
                case ast.FunctionDef(name=each) if each == name:
                    if any(_last(d) in ("property", "setter") for d in statement.decorator_list):
                        return Definition("value", owner.file)
                    return _function(statement, owner, is_method=True)
                case ast.Assign(targets=targets) if any(_binds(t, name) for t in targets):
                    return Definition("value", owner.file)
                case ast.AnnAssign(target=target) if _binds(target, name):
                    return Definition("value", owner.file)
        if _is_answered(owner.node, name):
            return Definition("value", owner.file)
        return self._inherited(owner, name, depth)

    def _inherited(self, owner: Definition, name: str, depth: int) -> Definition | None:
        assert isinstance(owner.node, ast.ClassDef)
        module = self._module(owner.home)
        for base in owner.node.bases:
            parent = self._chain(module, base, depth + 1) if module is not None else None
            if parent is not None and parent.kind == "native":
                return Definition("native", owner.file)
            found = self._member(parent, name, depth + 1)
            if found is not None:
                return found
        return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, and those in its branches."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.ClassDef | Function):
                yield from _statements(getattr(statement, part, []))
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)


def _binds(target: ast.expr, name: str) -> bool:
    if isinstance(target, ast.Tuple):
        return any(_binds(part, name) for part in target.elts)
    return isinstance(target, ast.Name) and target.id == name


def _last(decorator: ast.expr) -> str:
    return ast.unparse(decorator).partition("(")[0].rpartition(".")[2]


def _is_answered(node: ast.ClassDef, name: str) -> bool:
    """Return whether the class answers for an attribute by its name: in `__getattr__`, or as `self.x`."""
    for each in ast.walk(node):
        match each:
            case ast.FunctionDef(name="__getattr__"):
                texts = [part.value for part in ast.walk(each) if isinstance(part, ast.Constant)]
                if name in texts:
                    return True
            case ast.Attribute(value=ast.Name(id="self"), attr=attribute, ctx=ast.Store()):
                if attribute == name:
                    return True
    return False


def _function(node: Function, owner: Definition, *, is_method: bool) -> Definition:
    signature = _signature(node.args)
    is_static = any(_last(each) == "staticmethod" for each in node.decorator_list)
    if is_method and not is_static:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return Definition("function", owner.file, signature, node, owner.home)


def _signature(arguments: ast.arguments) -> inspect.Signature:
    """Return the parameters of a def: their names, kinds, and whether they have a default."""
    places = [*arguments.posonlyargs, *arguments.args]
    needed = len(places) - len(arguments.defaults)
    found = []
    for number, each in enumerate(places):
        is_only = number < len(arguments.posonlyargs)
        kind = _KINDS.POSITIONAL_ONLY if is_only else _KINDS.POSITIONAL_OR_KEYWORD
        default = _KINDS.empty if number < needed else None
        found.append(inspect.Parameter(each.arg, kind, default=default))
    if arguments.vararg is not None:
        found.append(inspect.Parameter(arguments.vararg.arg, _KINDS.VAR_POSITIONAL))
    for each, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        default = _KINDS.empty if given is None else None
        found.append(inspect.Parameter(each.arg, _KINDS.KEYWORD_ONLY, default=default))
    if arguments.kwarg is not None:
        found.append(inspect.Parameter(arguments.kwarg.arg, _KINDS.VAR_KEYWORD))
    return inspect.Signature(found)
