"""The descriptor of a framework under test, which all other modules ask about it.

Comes in: a framework's name; the folder of a framework, or a package of its own, makes its `Framework`. Goes
out: names, tables, and parts that are loaded on demand, written "module:attribute"; or an error of one
sentence. It is data alone: reading a dump or a command line imports no framework, and no NumPy. Built-in
frameworks need no metadata, so that a checkout works. All others are entry points of the group
`ray_precheck.frameworks`: an entry point has the framework's name, and is loaded only when this framework is
asked for, so that a broken package fails only the runs that use it.
"""

import functools
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

from ray_precheck.errors import UsageError
from ray_precheck.foreign import caught

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


# msprobe gives these prefixes to every framework; all others belong to one package.
COMMON_PREFIXES = frozenset({"Tensor", "Functional"})
_COLLECTIVE = "a collective operator needs its other ranks"
_COMPILED = (
    "it is the one record of a compiled function, whose operators have none; to check these, capture"
    " without the compiler (PyTorch: TORCH_COMPILE_DISABLE=1 in the environment; MindSpore: MS_JIT=0)"
)
REFUSED_PREFIXES = {
    "Distributed": _COLLECTIVE,
    "MintDistributed": _COLLECTIVE,
    "Compiled": _COMPILED,
}
# How the kinds of values that are no tensors are described in a dump (`dump.decode`).
VALUE_KINDS = ("dtype", "device", "memory_format", "size")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PART = re.compile(r"[\w.]+:\w+")
GROUP = "ray_precheck.frameworks"
# In the order in which messages list them; each has its own folder beside this file.
BUILT_IN = ("mindspore", "pytorch", "mindtorch")
_THIS_PACKAGE = "ray_precheck"
# The package that computes the bench for every framework under test.
BENCH_PACKAGE = "torch"
# How a newer protobuf refuses files that were generated for protobuf 3.
_OLD_PROTOBUF = "Descriptors cannot be created directly"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A kind of device, npu or gpu, and how the files of a machine tell that it can be used there.

    `package` must be installed. `files` is a pattern of file names in its folder, of which one must
    exist; `text` is a regular expression that must match in one of them; "" for no such condition.
    `plugin` names the whole condition, such as pytorch:npu. If a machine has the device and does not
    meet the condition, the error has the sentences `lacks` and `remedy`, in which `{version}` is the
    version of the framework's package, and `{release}` that without its suffix (2.13.0 of 2.13.0+cpu).
    """

    kind: str
    plugin: str
    package: str
    lacks: str
    remedy: str
    files: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How `repro` writes a call of the framework as a Python script.

    `writer` makes the script, "module:function" of `commands.repro.text.Needs`. `roots` has the text
    before an API's name by prefix, `module` is the object in the script whose attributes are dtypes,
    `symbols` has the dtypes whose names differ there. `takes_tuples`: sequences of constants are
    written as tuples. `note` tells the reader of the script what to do by hand.
    """

    writer: str
    roots: Mapping[str, str]
    module: str
    symbols: Mapping[str, str] = field(default_factory=dict)
    takes_tuples: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capturing:
    """How scripts that use the framework are captured: parts, written "module:attribute".

    `model` is the class of models as messages name it (torch.nn.Module). `probe` is a class of
    `capture.probe.Probe`, `saved_values` makes the `FrameworkValues` of `capture.writing.elements`, and
    `tracing_probe` is a class of `capture.verifying.step.TracingProbe`; "" where scripts save no values by
    name, or no step can be verified.
    """

    model: str
    probe: str
    saved_values: str = ""
    tracing_probe: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A framework under test. Fields are explained one by one in the README of this folder.

    Raises:
        ValueError: a field is wrong; names the field, its value and the value to write.
    """

    # Its names.
    name: str
    title: str
    package: str
    asked_as: tuple[str, ...] = ()
    # How a dump shows it.
    prefixes: tuple[str, ...]
    tensor_types: tuple[str, ...]
    namespaces: Mapping[str, str] = field(default_factory=dict)
    told_by: str = ""
    value_types: Mapping[str, str] = field(default_factory=dict)
    dtype_names: Mapping[str, str] = field(default_factory=dict)
    node_gradients: bool = False
    autocast_is_told: bool = False
    # The packages that must be installed.
    needs: tuple[str, ...] = ()
    install: str = ""
    distributions: tuple[str, ...] = ()
    require: str = ""
    # Where it runs.
    backend: str
    accelerators: tuple[Accelerator, ...] = ()
    switches: str = ""
    # Its bench.
    bench: str
    fused: tuple[str, ...] = ()
    unlisted: Mapping[str, str] = field(default_factory=dict)
    is_bench: bool = False
    # The APIs that are not checked.
    refused_prefixes: Mapping[str, str] = field(default_factory=lambda: REFUSED_PREFIXES)
    refused: Mapping[str, str] = field(default_factory=dict)
    # How it is captured; None where it is not.
    capturing: Capturing | None = None
    # How people are told.
    frames: tuple[str, ...] = ()
    script: Script | None = None

    def __post_init__(self) -> None:
        _require_kinds(self)
        _require(bool(_NAME.fullmatch(self.name)), "name", self.name, "a word like pytorch")
        for name in ("title", "package", "prefixes", "tensor_types"):
            _require(bool(getattr(self, name)), name, getattr(self, name), "something in it")
        for prefix in self.prefixes:
            _require(prefix.isidentifier(), "prefixes", prefix, "words like Torch")
        named = filter(None, [self.require, self.switches])
        for part in (self.backend, self.bench, *self.fused, *named):
            _require(bool(_PART.fullmatch(part)), "a part", part, '"module:attribute"')
        for kind in self.value_types.values():
            _require(kind in VALUE_KINDS, "value_types", kind, f"one of {', '.join(VALUE_KINDS)}")

    @property
    def modules(self) -> tuple[str, ...]:
        """The packages that must be there to import where the framework runs."""
        return self.needs or (self.package,)

    @property
    def versioned(self) -> tuple[str, ...]:
        """The distributions whose versions a run tells."""
        return self.distributions or (self.package,)

    @property
    def how_to_install(self) -> str:
        """The command that installs the framework."""
        return self.install or f"pip install {self.package}"

    def accelerator(self, kind: str) -> Accelerator | None:
        """Return how it uses a kind of device, None where it does not run on it."""
        return next((each for each in self.accelerators if each.kind == kind), None)

    def dtype_name(self, dtype: str) -> str:
        """Return how the framework spells a canonical dtype, such as `torch.float32`."""
        return self.dtype_names.get(dtype, dtype)


def _require_kinds(framework: Framework) -> None:
    for name, hint in get_type_hints(type(framework)).items():
        kind = hint if isinstance(hint, UnionType) else get_origin(hint) or hint
        value = getattr(framework, name)
        _require(isinstance(value, kind), name, value, f"a {getattr(kind, '__name__', kind)}")


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} of its Framework is {value!r}; expected {expected}")


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


def installed_points(group: str) -> "tuple[EntryPoint, ...]":
    """Return the entry points of a group that installed packages have; the disk is read once."""
    return _points_of(group, tuple(sys.path))


@functools.lru_cache(8)
def _points_of(group: str, path: tuple[str, ...]) -> "tuple[EntryPoint, ...]":
    return tuple(_all_points(path).select(group=group))


@functools.lru_cache(1)
def _all_points(path: tuple[str, ...]) -> Any:
    """Return all entry points along this process's path; to read them takes 5 to 10 ms."""
    # Imported here: it brings the parser of e-mails, which --help does without.
    from importlib.metadata import entry_points

    return entry_points()


def _installed() -> "tuple[EntryPoint, ...]":
    return installed_points(GROUP)


@functools.cache
def _loaded(point: "EntryPoint") -> Framework:
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


def _package(point: "EntryPoint") -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "of an unknown name"


def _clash(what: str, one: str, other: str) -> UsageError:
    return UsageError(f"{what} is declared by two packages, {one} and {other}; uninstall one")


def framework_dtype(dtype: str, framework: str) -> str:
    """Return how a framework spells a canonical dtype: `Float32` in MindSpore, `torch.float32`."""
    return find_framework(framework).dtype_name(dtype)


def read_dtype(text: str, framework: str = "") -> str | None:
    """Return the canonical name of a dtype as a framework's dumps spell it, as any of those known
    does where none is named; None where it is unknown."""
    # It loads NumPy, which the parser of the command line does without.
    from ray_precheck.schema.dtypes import canonical_dtype

    found = canonical_dtype(text)
    if found is None:
        for each in [find_framework(framework)] if framework else known_frameworks():
            found = found or next(
                (own for own, name in each.dtype_names.items() if name == text), None
            )
    return found
