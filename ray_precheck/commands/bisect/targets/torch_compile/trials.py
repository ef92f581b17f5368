"""Trials of torch.compile: what is compiled, and with what switched off.

Comes in: settings and requests. Goes out: answers of plain values; outputs travel as .npz files. Used by
`inside.py`, in the interpreter that has torch.

What a trial compiles is decided where torch asks `CompilerBisector.disable_subsystem` before each
decomposition, graph pass and lowering. The bisector's own command, which deletes the user's caches, is never
called.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch._dynamo
import torch._inductor.config
from torch._inductor.compiler_bisector import CompilerBisector
from torch._inductor.virtualized import V

from .programs import COMPILE, OFF, ProgramError, arrays_of, open_program, taken_over

# What is set while a switch is off.
_CONFIGS: dict[str, dict[str, Any]] = {
    "setting layout_optimization": {"layout_optimization": False},
    "setting comprehensive_padding": {"comprehensive_padding": False},
    "setting rounding between fused casts": {"emulate_precision_casts": True},
    "code fusion": {"max_fusion_size": 1, "epilogue_fusion": False},
    "code reused buffers": {"allow_buffer_reuse": False, "inplace_buffers": False},
    "code vector instructions": {"cpp.simdlen": 1},
}


class TrialBench:
    """Runs the program as a request says."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.program: Any = None
        self.is_warm = False
        hooked: Any = CompilerBisector
        hooked.disable_subsystem = classmethod(_disabled)
        # The files in which torch's own bisector keeps its state are none of ours.
        hooked.get_backend = hooked.get_subsystem = classmethod(lambda cls: None)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return {"problem": text} of a check, the outputs of a run, or what a look found."""
        if request["kind"] == "check":
            return self._checked()
        if self.program is None:
            self.program = open_program(self.settings)
        if request["kind"] == "look_at_compile":
            return self._looked(request["out"])
        outputs, _ = self.outputs(request["rung"], request["on"], request["off"])
        np.savez(request["out"], **outputs)
        return {"outputs": request["out"]}

    def _checked(self) -> dict[str, Any]:
        try:
            self.program = open_program(self.settings)
            _, dtypes = self.outputs(OFF, (), ())
        except ProgramError as error:
            return {"problem": str(error)}
        return {"problem": "", "torch": torch.__version__, "dtypes": dtypes}

    def outputs(
        self, rung: str, on: Sequence[str], off: Sequence[str]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Run the program; return its outputs as arrays, and the dtypes that numpy does not have, by name."""
        if rung != OFF:
            self.warm()
        _STATE.decide = Decisions(on, off)
        patches: dict[str, Any] = {
            "fallback_random": True
        }  # Else dropout draws other numbers than eager.
        for name in off:
            patches.update(_CONFIGS.get(name) or {})
        _reset()
        with torch._inductor.config.patch(patches), taken_over(rung) as calls:
            found = self.program.run(calls)
        return arrays_of(found)

    def warm(self) -> None:
        """Compile something small once: patterns of graph passes are made by the first compile of a process,
        with decompositions of their own, which would be counted as the program's."""
        if not self.is_warm:
            self.is_warm = True
            COMPILE(torch.mm)(torch.ones(2, 2), torch.ones(2, 2))  # It needs no C++ compiler.

    def _looked(self, out: str) -> dict[str, Any]:
        from .looking import look_at_compile

        return look_at_compile(self, _STATE, self.settings["floors"], out)


class Decisions:
    """What is off in a trial: an occurrence of a name, or all of them where its group is off. A name that the
    look did not see, since what is off changes what comes after it, is as the last one of its kind was."""

    def __init__(self, on: Sequence[str], off: Sequence[str]) -> None:
        self.on, self.off = frozenset(on), frozenset(off)
        self.counts: Counter[str] = Counter()
        self.last: dict[str, bool] = {}

    def of(self, kind: str, name: str, group: str) -> tuple[str, bool]:
        """Return the switch of the next occurrence of a name, and whether it is off."""
        plain = f"{kind} {name}"
        self.counts[plain] += 1
        full = plain if self.counts[plain] == 1 else f"{plain} #{self.counts[plain]}"
        for each in (full, f"{kind} {group} (all)"):
            if each in self.off or each in self.on:
                self.last[kind] = each in self.off
                return full, self.last[kind]
        is_listed = any(
            each.startswith(f"{kind} ") and "(all)" not in each for each in self.off | self.on
        )
        return full, is_listed and self.last.get(kind, False)


@dataclasses.dataclass
class _State:
    """What the place where torch asks needs to know: a process has one torch. `told` hears of each place that
    is asked in a look; `is_alone` is on while operators are compiled alone."""

    decide: Decisions = dataclasses.field(default_factory=lambda: Decisions((), ()))
    told: Callable[[str, str, Any], None] | None = None
    is_alone: bool = False


def _disabled(cls: type, backend: str, subsystem: str, debug_info: Any = None) -> bool:
    """Stand for `CompilerBisector.disable_subsystem`: whether what comes next is off."""
    if _STATE.is_alone:
        return subsystem.endswith("passes")
    if subsystem == "pre_grad_graph":
        return False  # Off, a graph is not compiled at all: whatever is found would need it, too.
    info = debug_info() if debug_info is not None else ""
    node: Any = None
    if subsystem == "lowerings":
        node = V.get_current_node()
        kind, name, group = "lowering", f"{node.target} {node.name}", str(node.target)
    elif subsystem == "decomposition":
        # <OpOverload(op='aten.gelu', overload='default')>
        words = info.split("'")
        kind, name = "decomposition", ".".join(words[1:4:2])
        group = name
    else:
        kind, name = "pass", f"{subsystem} {info}".strip()
        group = name
    full, is_off = _STATE.decide.of(kind, name, group)
    if _STATE.told is not None:
        _STATE.told(kind, full, node)
    return is_off


def _reset() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


_STATE = _State()
