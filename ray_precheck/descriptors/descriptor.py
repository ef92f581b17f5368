"""The descriptor of a framework under test, which all other modules ask about it.

Comes in: nothing; the folder of a framework, or a package of its own, makes a `Framework`. Goes out:
names, tables, and parts that are loaded on demand, written "module:attribute". Found by
`descriptors.known`. It is data alone: reading a dump or a command line imports no framework.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import get_origin, get_type_hints

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
