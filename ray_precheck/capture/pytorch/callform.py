"""How a call of one of torch's Python functions was written.

Comes in: the frame of the caller, and the arguments as torch hands them to a function mode: with all
defaults filled in, and most of them by keyword. Goes out: the arguments as they stand in the source, as a
wrapper around the function would have got them. Called for each such call.

The number of arguments by position and the names of the others stand in the caller's bytecode. Where
they cannot be read there (`f(*args)`, a call out of C), what equals its default is left out.
"""

import dis
import inspect
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple


class CallForm(NamedTuple):
    """A call in the source: how many arguments have no name, and the names of the others."""

    positional: int
    keywords: tuple[str, ...]


class _Parameters(NamedTuple):
    names: tuple[str, ...]
    defaults: dict[str, Any]


class CallForms:
    """Remembers the form of each call by its place in the bytecode."""

    def __init__(self) -> None:
        # By the identity of the code, whose own hash takes longer than the look; the code is kept alive.
        self._forms: dict[tuple[int, int], tuple[CodeType, CallForm | None]] = {}
        self._parameters: dict[Callable[..., Any], _Parameters | None] = {}

    def written(
        self,
        function: Callable[..., Any],
        caller: FrameType | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_method: bool,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as the caller wrote them; `is_method` if the first is the object."""
        parameters = self._of(function)
        if parameters is None:
            return args, kwargs
        given = dict(zip(parameters.names, args, strict=False)) | kwargs
        form = None if caller is None else self._form(caller)
        if form is not None:
            positional = form.positional + is_method
            names = parameters.names[:positional]
            if (
                positional >= 1
                and len(names) == positional
                and all(name in given for name in (*names, *form.keywords))
            ):
                return (
                    tuple(given[name] for name in names),
                    {name: given[name] for name in form.keywords},
                )
        defaults = parameters.defaults
        return args, {
            name: value
            for name, value in kwargs.items()
            if not (name in defaults and _same(defaults[name], value))
        }

    def _of(self, function: Callable[..., Any]) -> _Parameters | None:
        if function not in self._parameters:
            self._parameters[function] = _parameters_of(function)
        return self._parameters[function]

    def _form(self, frame: FrameType) -> CallForm | None:
        code, offset = frame.f_code, frame.f_lasti
        known = self._forms.get((id(code), offset))
        if known is None:
            known = self._forms[id(code), offset] = (code, form_at(code, offset))
        return known[1]


def _same(default: Any, value: Any) -> bool:
    return default is value or (type(default) in (int, float, str, bool) and default == value)


def _parameters_of(function: Callable[..., Any]) -> _Parameters | None:
    """Return the parameters of a function, None where it takes any.

    One that chooses between two by a flag (`max_pool2d`) hands on what it got; the parameters are those of
    either.
    """
    closure = getattr(function, "__closure__", None)
    chosen = inspect.getclosurevars(function).nonlocals.get("if_false") if closure else None
    try:
        signature = inspect.signature(function if chosen is None else chosen)
    except (TypeError, ValueError):
        return None
    parameters = signature.parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return _Parameters(tuple(p.name for p in parameters), defaults)


def form_at(code: CodeType, offset: int) -> CallForm | None:
    """Return the form of the call at an offset of the bytecode, None for another instruction.

    Python 3.10 has CALL_FUNCTION, CALL_METHOD and CALL_FUNCTION_KW, 3.11 and 3.12 KW_NAMES before CALL,
    later ones CALL and CALL_KW; the names of keywords are a constant in all of them. The offset of a call
    of a Python function may lie behind the instruction, in the caches that belong to it.
    """
    names: tuple[str, ...] = ()
    constant: Any = None
    form: CallForm | None = None
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset:
            break
        form = _form_of(instruction, names, constant)
        if instruction.opname == "KW_NAMES":
            names = code.co_consts[instruction.arg or 0]
        elif instruction.opname.startswith("CALL"):
            names = ()
        constant = instruction.argval if instruction.opname == "LOAD_CONST" else None
    return form


def _form_of(
    instruction: dis.Instruction, names: tuple[str, ...], constant: Any
) -> CallForm | None:
    count = instruction.arg or 0
    if instruction.opname in ("CALL", "CALL_FUNCTION", "CALL_METHOD"):
        return CallForm(count - len(names), names)
    if instruction.opname in ("CALL_FUNCTION_KW", "CALL_KW") and isinstance(constant, tuple):
        return CallForm(count - len(constant), constant)
    return None
