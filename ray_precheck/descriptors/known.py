"""The known frameworks: those of this package, and those that installed packages add.

Comes in: a framework's name. Goes out: its `Framework`, or an error of one sentence. Called by all modules
that need the names, dumps or parts of a framework. Built-in frameworks need no metadata, so that a
checkout works. All others are entry points of the group `ray_precheck.frameworks`: an entry point has the
framework's name, and is loaded only when this framework is asked for, so that a broken package fails
only the runs that use it.
"""

import functools
import importlib
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ray_precheck.descriptors.descriptor import COMMON_PREFIXES, Framework
from ray_precheck.errors import UsageError
from ray_precheck.foreign import caught

GROUP = "ray_precheck.frameworks"
# In the order in which messages list them; each has its own folder beside this file.
BUILT_IN = ("mindspore", "pytorch", "mindtorch")
_THIS_PACKAGE = "ray_precheck"
# The package that computes the bench for every framework under test.
BENCH_PACKAGE = "torch"
# How a newer protobuf refuses files that were generated for protobuf 3.
_OLD_PROTOBUF = "Descriptors cannot be created directly"


def find_framework(name: str) -> Framework:
    """Return the descriptor of a framework.

    Raises:
        UsageError: no package declares it, two packages do, or its descriptor cannot be used.
    """
    if name in BUILT_IN:
        return _built_in(name)
    declared = [point for point in _installed() if point.name == name]
    if not declared:
        raise UsageError(
            f"{name!r} is no framework that is known here; there are {', '.join(framework_names())}"
        )
    if len(declared) > 1:
        raise _clash(f"the framework {name}", _package(declared[0]), _package(declared[1]))
    return _loaded(declared[0])


def require_sole(name: str) -> None:
    """Require that no other package claims the name of a framework, or one of its prefixes.

    Raises:
        UsageError: another package claims it; names both packages.
    """
    own = find_framework(name)
    home = _home(name)
    for point in _installed():
        package = _package(point)
        if point.name == name and package != home:
            raise _clash(f"the framework {name}", home, package)
    for other in known_frameworks():
        package = _home(other.name)
        both = sorted({*own.prefixes} & {*other.prefixes} - COMMON_PREFIXES)
        if both and package != home:
            raise _clash(f"the prefix {both[0]}", home, package)


def framework_names() -> tuple[str, ...]:
    """Return the names of all frameworks, those of this package first; none is loaded."""
    return tuple(dict.fromkeys([*BUILT_IN, *sorted(point.name for point in _installed())]))


def is_framework(name: str) -> bool:
    """Return whether a package declares a framework of this name; it is not loaded."""
    return name in BUILT_IN or name in framework_names()


def built_in_frameworks() -> tuple[Framework, ...]:
    """Return the frameworks of this package."""
    return tuple(_built_in(name) for name in BUILT_IN)


def known_frameworks() -> tuple[Framework, ...]:
    """Return all frameworks whose descriptors can be used, those of this package first."""
    return (*built_in_frameworks(), *added_frameworks())


def added_frameworks() -> Iterator[Framework]:
    """Yield the frameworks that other packages add, those whose descriptors can be used."""
    for name in framework_names()[len(BUILT_IN) :]:
        try:
            yield find_framework(name)
        except UsageError:
            continue  # Runs that use this framework get the error.


def package_of(name: str) -> str:
    """Return the name of a framework's package; the framework's name if no package declares it."""
    try:
        return find_framework(name).package
    except UsageError:
        return name  # The files of a run may name a framework that is not installed any more.


def versioned_distributions() -> tuple[str, ...]:
    """Return the distributions whose versions are told: the bench's, the frameworks' and NumPy."""
    found = [name for each in known_frameworks() for name in each.versioned]
    return tuple(dict.fromkeys([BENCH_PACKAGE, *found, "numpy"]))


def load_part(part: str) -> Any:
    """Import and return a part of a descriptor, written "module:attribute".

    Raises:
        UsageError: the framework was made for protobuf 3 (MindSpore 2.7), and this process has loaded a
            newer one, as Ray does. Check processes load no Ray.
    """
    module, _, attribute = part.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except TypeError as error:
        if _OLD_PROTOBUF not in str(error):
            raise
        raise UsageError(
            f"{module} cannot be loaded in this process: its framework was made for protobuf 3, and Ray "
            "or another package has loaded a newer protobuf before; import the framework first, or set "
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python before the program starts"
        ) from None


@functools.cache
def _built_in(name: str) -> Framework:
    return load_part(f"ray_precheck.frameworks.{name}.descriptor:FRAMEWORK")  # type: ignore[no-any-return]


def installed_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group that installed packages have; the disk is read once."""
    return _points_of(group, tuple(sys.path))


@functools.lru_cache(8)
def _points_of(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    return tuple(_all_points(path).select(group=group))


@functools.lru_cache(1)
def _all_points(path: tuple[str, ...]) -> Any:
    """Return all entry points along this process's path; to read them takes 5 to 10 ms."""
    return entry_points()


def _installed() -> tuple[EntryPoint, ...]:
    return installed_points(GROUP)


@functools.cache
def _loaded(point: EntryPoint) -> Framework:
    """Import and return the descriptor of an entry point.

    Raises:
        UsageError: it cannot be imported, or is no descriptor of this name.
    """
    where = f"{_package(point)} ({point.value}, entry point group {GROUP})"
    found, error = caught(point.load)
    if error is not None:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(
            f"the framework {point.name} of the package {where} cannot be loaded: {text}; mend or"
            " uninstall that package"
        ) from error
    if not isinstance(found, Framework):
        raise UsageError(
            f"the framework {point.name} of the package {where} is a {type(found).__name__};"
            " expected a ray_precheck.descriptors.descriptor.Framework"
        )
    if found.name != point.name:
        raise UsageError(
            f"the framework {point.name} of the package {where} calls itself {found.name};"
            " its entry point must have the same name"
        )
    return found


def _home(name: str) -> str:
    """Return the package that has declared a framework."""
    if name in BUILT_IN:
        return _THIS_PACKAGE
    return next(_package(point) for point in _installed() if point.name == name)


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "of an unknown name"


def _clash(what: str, one: str, other: str) -> UsageError:
    return UsageError(f"{what} is declared by two packages, {one} and {other}; uninstall one")
