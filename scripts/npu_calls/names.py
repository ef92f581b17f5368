"""What the names of a scope of our sources stand for.

Comes in: a module or a function of it. Goes out: `Value`s by name. Called by the collector. A name that is
bound several times stands for all of its values, so that no branch is forgotten.
"""

import ast
from collections.abc import Iterable, Iterator

from scripts.npu_calls.evaluate import LIBRARIES, annotated, value_of
from scripts.npu_calls.sources import (
    UNKNOWN,
    Function,
    SourceModule,
    Sources,
    Value,
    named,
    own_nodes,
)


class Scopes:
    """The names of every module, class and function of the sources."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._modules: dict[str, dict[str, Value]] = {}
        self._classes: dict[tuple[str, str], dict[str, Value]] = {}
        self._returns: dict[str, Value] | None = None

    def of_module(self, name: str) -> dict[str, Value]:
        """Return the names at the top of a module."""
        if name not in self._modules:
            found = self._modules[name] = {}
            module = self.sources.modules[name]
            for qualified in (*module.functions, *module.classes):
                if "." not in qualified:
                    found[qualified] = Value(functions=frozenset({(name, qualified)}))
            self.bind(own_nodes(module.tree), found)
            for owner, node in module.classes.items():
                inside = dict(found)
                self.bind(own_nodes(node), inside)
                for each in _assigned_names(node):
                    found[f"{owner}.{each}"] = inside.get(each, UNKNOWN)
        return self._modules[name]

    def of_top(self, module: SourceModule) -> dict[str, Value]:
        """Return the names at the top of a module, those too that a function of ours returns."""
        found = {**self.of_module(module.name), **self._returned()}
        self.bind(own_nodes(module.tree), found)
        return found

    def of_function(
        self, module: SourceModule, name: str, given: Iterable[tuple[str, Value]] = ()
    ) -> dict[str, Value]:
        """Return the names in a function, whose parameters have these values."""
        outer, _, _ = name.rpartition(".")
        if outer in module.functions:
            found = self.of_function(module, outer)
        else:
            found = {**self.of_module(module.name), **self._returned()}
            if outer in module.classes:
                found |= self._of_class(module, outer)
        self._bind_function(module.functions[name], found, dict(given))
        return found

    def _of_class(self, module: SourceModule, name: str) -> dict[str, Value]:
        """Return the attributes of `self`: the methods, and what the methods assign."""
        if (module.name, name) in self._classes:
            return self._classes[module.name, name]
        names = {**self.of_module(module.name), **self._returned()}
        for base in module.classes[name].bases:
            for home, parent in value_of(base, names).functions:
                if (home, parent) != (module.name, name):
                    owner = self.sources.modules[home]
                    names |= self._of_class(owner, parent) if parent in owner.classes else {}
        names |= {
            f"self.{each}": names[f"{name}.{each}"]
            for each in _assigned_names(module.classes[name])
        }
        for qualified, function in module.functions.items():
            method = qualified.removeprefix(f"{name}.")
            if method != qualified and "." not in method:
                value = Value(functions=frozenset({(module.name, qualified)}))
                if any(ast.unparse(d).endswith("property") for d in function.decorator_list):
                    value = self._returned().get(f"{module.name}:{qualified}()", UNKNOWN)
                names[f"self.{method}"] = value
        for _ in range(2):
            for qualified, function in module.functions.items():
                if qualified.rpartition(".")[0] == name:
                    inside = dict(names)
                    self._bind_function(function, inside, {})
                    names |= {k: v for k, v in inside.items() if k.startswith("self.")}
        found = {key: value for key, value in names.items() if key.startswith("self.")}
        self._classes[module.name, name] = found
        return found

    def _returned(self) -> dict[str, Value]:
        """Return what our functions return by `module:name()`: what their annotations say, and the
        parts of libraries that they return."""
        if self._returns is None:
            self._returns = {}
            for module in self.sources.modules.values():
                names = self.of_module(module.name)
                has_library = _has_library(module)
                for name, function in module.functions.items():
                    value = annotated(function.returns, names)
                    if has_library:
                        value |= self._given_back(module, name)
                    if value != UNKNOWN:
                        self._returns[f"{module.name}:{name}()"] = value
            self._classes.clear()  # Their properties are known now.
        return self._returns

    def _given_back(self, module: SourceModule, name: str) -> Value:
        """Return the parts of libraries, but no results of calls, that a function returns."""
        inside = self.of_function(module, name)
        found: set[str] = set()
        for node in own_nodes(module.functions[name]):
            if isinstance(node, ast.Return | ast.Yield):
                found |= value_of(node.value, inside).names
        return named(*(each for each in found if not each.endswith("()")))

    def _bind_function(
        self, function: Function, names: dict[str, Value], given: dict[str, Value]
    ) -> None:
        arguments = function.args
        rest = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest):
            names[each.arg] = given.get(each.arg, annotated(each.annotation, names))
        _bind_defaults(arguments, names)
        for _ in range(2):  # A loop may use what stands below.
            self.bind(own_nodes(function), names)

    def bind(self, nodes: Iterable[ast.AST], names: dict[str, Value]) -> None:
        """Add what the nodes bind to the names."""
        for node in nodes:
            match node:
                case ast.Import(names=aliases):
                    for alias in aliases:
                        whole = alias.name if alias.asname else alias.name.split(".")[0]
                        if whole.split(".")[0] in LIBRARIES:
                            _add(names, alias.asname or whole, named(whole))
                case ast.ImportFrom(module=str() as home, names=aliases, level=0):
                    for alias in aliases:
                        name = alias.asname or alias.name
                        _add(names, name, self._imported(home, alias.name))
                        if f"{home}.{alias.name}" in self.sources.modules:
                            self._bind_module(f"{home}.{alias.name}", name, names)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        _assign_parts(target, value, names)
                case ast.Lambda(args=arguments):
                    _bind_defaults(arguments, names)
                case ast.AnnAssign(target=target, value=value, annotation=annotation):
                    found = value_of(value, names) | annotated(annotation, names)
                    _assign(target, found, names)
                case ast.NamedExpr(target=target, value=value):
                    _assign(target, value_of(value, names), names)
                case (
                    ast.For(target=target, iter=value)
                    | ast.comprehension(target=target, iter=value)
                ):
                    _assign(target, value_of(value, names).items(), names)
                case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                    _assign(target, value_of(value, names), names)

    def _bind_module(self, module: str, shown: str, names: dict[str, Value]) -> None:
        """Add the names of a module of ours, such as `private_parts.find`."""
        for name, value in list(self.of_module(module).items()):
            if "." not in name:
                _add(names, f"{shown}.{name}", value)

    def _imported(self, home: str, name: str) -> Value:
        if home.split(".")[0] in LIBRARIES:
            return named(f"{home}.{name}")
        module = self.sources.modules.get(home)
        if module is None:
            return UNKNOWN
        if name in module.functions or name in module.classes:
            return Value(functions=frozenset({(home, name)}))
        return self.of_module(home).get(name, UNKNOWN)


def _has_library(module: SourceModule) -> bool:
    """Return whether a module imports a library anywhere."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=aliases):
                if any(alias.name.split(".")[0] in LIBRARIES for alias in aliases):
                    return True
            case ast.ImportFrom(module=str() as home, level=0):
                if home.split(".")[0] in LIBRARIES:
                    return True
    return False


def _bind_defaults(arguments: ast.arguments, names: dict[str, Value]) -> None:
    """Add what the defaults of parameters are."""
    places = [*arguments.posonlyargs, *arguments.args]
    for parameter, default in zip(reversed(places), reversed(arguments.defaults), strict=False):
        _add(names, parameter.arg, value_of(default, names))
    for parameter, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        _add(names, parameter.arg, value_of(given, names))


def _assigned_names(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names that the body of a class assigns."""
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            yield from (each.id for each in statement.targets if isinstance(each, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


def _assign_parts(target: ast.expr, value: ast.expr, names: dict[str, Value]) -> None:
    """Assign an expression; the parts of a tuple go to the parts of a target."""
    match target, value:
        case (ast.Tuple(elts=targets), ast.Tuple(elts=values)) if len(targets) == len(values):
            for each, part in zip(targets, values, strict=True):
                _assign_parts(each, part, names)
        case _:
            _assign(target, value_of(value, names), names)


def _assign(target: ast.expr, value: Value, names: dict[str, Value]) -> None:
    match target:
        case ast.Name(id=name):
            _add(names, name, value)
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
            _add(names, f"self.{attribute}", value)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                _assign(part, value.items(), names)
        case ast.Starred(value=inner):
            _assign(inner, value, names)


def _add(names: dict[str, Value], name: str, value: Value) -> None:
    names[name] = names.get(name, UNKNOWN) | value
