"""Benches of users' own: functions that a file, or an installed package, declares.

Comes in: the files of `--bench-module`, and the packages with an entry point of the group
`ray_precheck.benches`. Goes out: `BenchModule`s, which travel to the workers, and what they declare.
Called by the session, and by the registry in every process that checks. No framework is imported here
but by the modules themselves.

    import ray_precheck

    @ray_precheck.reference("NPU.npu_my_op")
    def my_op(x, scale=1.0):
        return x.exp() * scale

A function gets the arguments of the call as they were recorded, floating tensors as float64 of torch
on the CPU, and returns what the operator returns. Gradients are autograd's. It takes the place of a
built-in bench of that name. A file is sent to every worker as text and run once in each process that
checks: the packages that it imports must be installed there, and files beside it are not sent.

The operator under test is found by its prefix (NPU: torch_npu, Functional, ...: the framework's own
operators). For an operator without such a prefix `tested` is a function of the same module, or a dotted
path, such as `my_package.ops.my_op`. It gets tensors of the framework under test.
"""

import functools
import hashlib
import importlib
import linecache
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

from ray_precheck.descriptors.descriptor import installed_points
from ray_precheck.dump.scan import DIRECTIONS, ApiKey, parse_key
from ray_precheck.errors import UsageError
from ray_precheck.foreign import open_file

GROUP = "ray_precheck.benches"
_DECLARED = "__ray_precheck_references__"
_EXPECTED = 'functions decorated with @ray_precheck.reference("Prefix.api")'
# The exceptions of a user's file while it is run, and of its functions when they are called.
RAISED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Declaration:
    """A function that is the bench of an API, `tested` where its operator is, if not by prefix.

    `origin` names file and function, for messages.
    """

    type_name: str
    function: Callable[..., Any]
    tested: str | Callable[..., Any] | None
    origin: str


@dataclass(frozen=True, slots=True)
class BenchModule:
    """A file by its path and text, or the module of an installed package, with its version."""

    name: str
    text: str = ""
    version: str = ""

    @property
    def is_file(self) -> bool:
        """Whether it is a file, not a package."""
        return not self.version


def reference(
    type_name: str, *, tested: str | Callable[..., Any] | None = None
) -> Callable[[F], F]:
    """Declare a function as the bench of an API of the dump, such as `NPU.npu_my_op`.

    `tested` says where the operator is, if its prefix does not: a function, or its dotted path. A
    function may have several of these decorators.

    Raises:
        UsageError: when a module is loaded; the name is no `Prefix.api`, or `tested` is neither.
    """

    def declare(function: F) -> F:
        # The module that is being run, even if other decorators have wrapped the function.
        namespace = sys._getframe(1).f_globals
        name = getattr(function, "__qualname__", type(function).__name__)
        origin = f"{namespace.get('__file__') or namespace.get('__name__')}: {name}"
        _require_type_name(type_name, origin)
        if not (tested is None or callable(tested) or _is_dotted(tested)):
            raise UsageError(
                f"{origin}: tested={tested!r} is neither a function nor a dotted path, as"
                " my_package.ops.my_op"
            )
        found = Declaration(type_name, function, tested, origin)
        namespace.setdefault(_DECLARED, []).append(found)
        return function

    return declare


def _require_type_name(type_name: str, origin: str) -> None:
    parts = type_name.split(".") if isinstance(type_name, str) else []
    is_name = all(part.isidentifier() and part not in DIRECTIONS for part in parts)
    if not is_name or not parts or not isinstance(parse_key(f"{type_name}.0.forward"), ApiKey):
        raise UsageError(
            f"{origin}: {type_name!r} is no name of an API; expected Prefix.api, as in"
            " NPU.npu_my_op: a key of the dump without its number and direction"
        )


def _is_dotted(path: Any) -> bool:
    parts = path.split(".") if isinstance(path, str) else []
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def read_bench_modules(paths: Sequence[str | Path]) -> tuple[BenchModule, ...]:
    """Return the bench modules of a run: those of installed packages, then these files.

    Raises:
        UsageError: a file cannot be read.
    """
    return (*_installed(), *[_read(Path(path)) for path in paths])


def _installed() -> Iterable[BenchModule]:
    points = sorted(installed_points(GROUP), key=lambda point: (point.value, point.name))
    return [BenchModule(point.module, version=_version(point)) for point in points]


def _version(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "of an unknown version"


def _read(path: Path) -> BenchModule:
    try:
        with TextIOWrapper(open_file(path), "utf-8") as file:
            return BenchModule(str(path), file.read())
    except OSError as error:
        why = error.strerror or str(error)
    except UnicodeDecodeError:
        why = "it is no text in UTF-8"
    raise UsageError(
        f"--bench-module {path} cannot be read: {why}; expected a Python file with {_EXPECTED}"
    )


def bench_digest(modules: Sequence[BenchModule]) -> str:
    """Return a digest of the texts and versions of the users' benches, "none" if there are none.

    Runs with different benches have different digests; the folder of a file does not count.
    """
    if not modules:
        return "none"
    digest = hashlib.blake2b(digest_size=8)
    for module in modules:
        known = module.text if module.is_file else f"{module.name} {module.version}"
        digest.update(hashlib.blake2b(known.encode("utf-8", "replace")).digest())
    return digest.hexdigest()


def load_declarations(modules: Sequence[BenchModule]) -> dict[str, Declaration]:
    """Run modules, each once in a process, and return their declarations by API.

    A file's declaration takes the place of a package's.

    Raises:
        UsageError: a module cannot be run or declares nothing, or two modules declare the same API.
    """
    found: dict[str, Declaration] = {}
    for of_files in (False, True):
        here: dict[str, Declaration] = {}
        for module in modules:
            if module.is_file is of_files:
                _add(here, _declarations(module))
        found |= here
    return found


def _add(found: dict[str, Declaration], declarations: Iterable[Declaration]) -> None:
    for declaration in declarations:
        twin = found.setdefault(declaration.type_name, declaration)
        if twin is not declaration:
            raise UsageError(
                f"{declaration.type_name} has two benches, {twin.origin} and"
                f" {declaration.origin}; keep one"
            )


@functools.cache
def _declarations(module: BenchModule) -> tuple[Declaration, ...]:
    namespace = vars(_run_file(module) if module.is_file else _import_package(module))
    declared = tuple(namespace.get(_DECLARED, ()))
    if not declared:
        raise UsageError(f"{_shown(module)} declares no bench; expected {_EXPECTED}")
    return declared


def _shown(module: BenchModule) -> str:
    if module.is_file:
        return f"--bench-module {module.name}"
    return f"the package {module.version} ({module.name}, entry point group {GROUP})"


def _run_file(module: BenchModule) -> types.ModuleType:
    """Run a file's text as a module of its own, which tracebacks can show wherever it runs."""
    try:
        code = compile(module.text, module.name, "exec")
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f", line {line}" if line else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"{_shown(module)}{place} is no Python: {message}") from None
    made = types.ModuleType(f"ray_precheck_bench_{bench_digest([module])}")
    made.__file__ = module.name
    lines = module.text.splitlines(keepends=True)
    linecache.cache[module.name] = (len(module.text), None, lines, module.name)
    sys.modules[made.__name__] = made
    try:
        exec(code, vars(made))
    except RAISED as error:
        raise UsageError(f"{_shown(module)} cannot be run: {_told(error, module.name)}") from error
    return made


def _import_package(module: BenchModule) -> types.ModuleType:
    try:
        return importlib.import_module(module.name)
    except RAISED as error:
        raise UsageError(
            f"{_shown(module)} cannot be imported here: {_told(error, module.name)}; it must be"
            " installed on every node"
        ) from error


def _told(error: Exception, file: str) -> str:
    """Return an exception as one line, with the last line of the file that it came through."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == file else line
        trace = trace.tb_next
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"line {line}: {text}" if line else text
