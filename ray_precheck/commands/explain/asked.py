"""The operators that a user's name means.

Comes in: a full name (`torch.nn.functional.softmax`), a name in a dump (`Functional.softmax`), or a key
of a dump (`Functional.softmax.0.forward`), and the framework, if it is given. Goes out: `AskedOperator`s.
Called by `commands.explain.explanation`. A framework that is installed is asked whether it has the operator.
"""

import difflib
import importlib
import importlib.util
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ray_precheck.check.random.rules import RULES
from ray_precheck.descriptors.descriptor import find_framework
from ray_precheck.errors import UsageError
from ray_precheck.inputs.roles.table import TABLE as ROLES
from ray_precheck.operators.accuracy import ALLOWANCE, LEVEL, PUBLISHED_STANDARD
from ray_precheck.operators.drawing import DRAWING, UNSEEDED
from ray_precheck.operators.effects import (
    AUGMENTED,
    CHANGES,
    MULTILINEAR,
    OF_A_STORAGE,
    READS_BITS,
    SIZED_BY_VALUES,
)
from ray_precheck.operators.exact import AMBIGUOUS
from ray_precheck.operators.refused import REFUSED
from ray_precheck.operators.table import (
    NAMESPACES,
    FactTable,
    full_name,
    is_known_prefix,
    type_names,
)

TABLES: tuple[FactTable[Any], ...] = (
    REFUSED,
    DRAWING,
    UNSEEDED,
    AMBIGUOUS,
    AUGMENTED,
    CHANGES,
    READS_BITS,
    OF_A_STORAGE,
    SIZED_BY_VALUES,
    MULTILINEAR,
    PUBLISHED_STANDARD,
    LEVEL,
    ALLOWANCE,
)

_NEAREST = 5
_LIKENESS = 0.6
# The rest of a key of a dump after the name of the operator.
_CALL = re.compile(r"\.\d+(\.(forward|backward)(\..*)?)?$")


@dataclass(frozen=True, slots=True)
class AskedOperator:
    """An operator by its full name, in dumps of `framework`, which call it `type_names`."""

    name: str
    framework: str
    type_names: tuple[str, ...]


def asked_operators(
    given: str, framework: str = "", declared: Collection[str] = ()
) -> list[AskedOperator]:
    """Return the operators that a name may mean: one for each framework whose dumps have the prefix.

    `declared` are names in dumps for which users' modules have a bench.

    Raises:
        UsageError: the name has no prefix or namespace that is known, or not with this framework.
    """
    text = _CALL.sub("", given.strip())
    found = _by_prefix(text, framework) or _by_namespace(text, framework)
    if not found and text in declared:
        return [AskedOperator(text, framework or "pytorch", (text,))]
    if not found:
        of = f" of {framework}" if framework else ""
        raise UsageError(
            f"{given!r} is no name of an operator{of}: expected a full name, such as"
            f" torch.nn.functional.softmax, or a key of a dump, such as Functional.softmax.0.forward;"
            f" {_nearest(text)}"
        )
    return found


def require_known(given: str, operators: list[AskedOperator], known: list[AskedOperator]) -> None:
    """Require that one of the operators of a name is known.

    Raises:
        UsageError: none of them is known; names the nearest operators.
    """
    if not known:
        names = " or ".join(_with_version(operator) for operator in operators)
        raise UsageError(f"{given!r}: nothing is known of {names}; {_nearest(operators[0].name)}")


def _with_version(operator: AskedOperator) -> str:
    package, version = operator.name.split(".")[0], installed_version(operator)
    if not version:
        return f"{operator.name} ({package} is not installed here)"
    return f"{operator.name} ({package} {version} is here and does not have it)"


def _by_prefix(text: str, framework: str) -> list[AskedOperator]:
    prefix, _, api = text.partition(".")
    # A dump of MSAdapter has the names of torch: its framework must be asked for.
    frameworks = [framework] if framework else [name for name in NAMESPACES if name != "mindtorch"]
    return [
        _operator(full_name(text, each), each, text)
        for each in frameworks
        if api and is_known_prefix(prefix, each)
    ]


def _by_namespace(text: str, framework: str) -> list[AskedOperator]:
    for each, type_name in type_names(text):
        if each == (framework or each):
            return [_operator(full_name(type_name, each), each, type_name)]
    return []


def _operator(name: str, framework: str, given: str) -> AskedOperator:
    prefixes = find_framework(framework).prefixes
    spelled = [type_name for each, type_name in type_names(name) if each == framework]
    # VF is a prefix of torch alone, though MSAdapter has the same namespaces.
    own = [type_name for type_name in spelled if type_name.partition(".")[0] in prefixes]
    spelled = own or spelled or [given]
    # Torch.nn.functional.softmax is a name, too; dumps have the shortest.
    shortest = min(type_name.count(".") for type_name in spelled)
    short = [type_name for type_name in spelled if type_name.count(".") == shortest]
    return AskedOperator(name, framework, tuple(short))


def has_facts(operator: AskedOperator) -> bool:
    """Return whether a table has a row for an operator."""
    return any(operator.name in table.by_name for table in (*TABLES, RULES, ROLES))


def installed_version(operator: AskedOperator) -> str:
    """Return the version of the operator's package here, "" where it is not installed."""
    package = operator.name.split(".")[0]
    if importlib.util.find_spec(package) is None:
        return ""
    return str(getattr(importlib.import_module(package), "__version__", "of an unknown version"))


def is_installed(name: str) -> bool:
    """Return whether the package of a full name is installed here and has the operator."""
    root, *parts = name.split(".")
    if importlib.util.find_spec(root) is None:
        return False
    found: Any = importlib.import_module(root)
    for part in parts:
        found = getattr(found, part, None)
    return found is not None and not isinstance(found, ModuleType)


def _nearest(text: str) -> str:
    """Say which known operators are spelled most like a name."""
    by_last: dict[str, list[str]] = {}
    for name in sorted(_known_names(text)):
        by_last.setdefault(name.rpartition(".")[2], []).append(name)
    last = text.rpartition(".")[2]
    close = difflib.get_close_matches(last, list(by_last), _NEAREST, _LIKENESS)
    names = [name for word in close for name in sorted(by_last[word], key=_unlike(text))]
    if not names:
        return "no operator is spelled like it"
    return f"the nearest names are {', '.join(names[:_NEAREST])}"


def _unlike(text: str) -> Any:
    return lambda name: -difflib.SequenceMatcher(None, text, name).ratio()


def _known_names(text: str) -> Iterable[str]:
    """Return the names of all rows, and of the namespace where a full name should be."""
    names = {name for table in (*TABLES, RULES, ROLES) for name in table.by_name}
    namespace = text.rpartition(".")[0]
    known = {each for prefixes in NAMESPACES.values() for each in prefixes.values()}
    root, *parts = namespace.split(".")
    if namespace in known and importlib.util.find_spec(root) is not None:
        found: Any = importlib.import_module(root)
        for part in parts:
            found = getattr(found, part)
        names |= {f"{namespace}.{name}" for name in dir(found) if not name.startswith("_")}
    return names
