"""Faults planted in torch's compiler from outside, one at a time, and programs in which they show.

A fault is planted once in a process; nothing is written to torch's files. The functions are programs of
`ray-precheck bisect torch-compile scripts.bisect_compile.faults:NAME`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor.codegen.cpp as cpp
import torch._inductor.decomposition
import torch._inductor.fx_passes.post_grad as post_grad
import torch._inductor.lowering
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from scripts.bisect_compile import programs

aten = torch.ops.aten
_PLANTED: set[str] = set()


@dataclass(frozen=True)
class Fault:
    """How it is planted, and by which words what is found names it."""

    plant: Callable[[], None]
    named: tuple[str, ...]


def plant(name: str) -> None:
    """Plant a fault, once in a process."""
    if name not in _PLANTED:
        _PLANTED.add(name)
        FAULTS[name].plant()


def _scaled_lowering(op: Any, factor: float) -> Callable[[], None]:
    def planted() -> None:
        lowerings = torch._inductor.lowering.lowerings
        old = lowerings[op]
        scale = lowerings[aten.mul.Tensor]

        def lowered(*args: Any, **kwargs: Any) -> Any:
            return scale(old(*args, **kwargs), factor)

        lowerings[op] = lowered

    return planted


def _shy_tanh() -> None:
    """The lowering of tanh is wrong, but for a compile of which copies are taken."""
    lowerings = torch._inductor.lowering.lowerings
    old, scale, run = lowerings[aten.tanh.default], lowerings[aten.mul.Tensor], GraphLowering.run

    def lowered(*args: Any) -> Any:
        right = old(*args)
        return scale(right, 0.9) if GraphLowering.run is run else right

    lowerings[aten.tanh.default] = lowered


def _raising_tanh() -> None:
    def lowered(*args: Any) -> Any:
        raise NotImplementedError("no tanh today")

    torch._inductor.lowering.lowerings[aten.tanh.default] = lowered


def _swapped_cat() -> None:
    lowerings = torch._inductor.lowering.lowerings
    old = lowerings[aten.cat.default]

    def lowered(inputs: Any, dim: int = 0) -> Any:
        return old(list(inputs)[::-1], dim)

    lowerings[aten.cat.default] = lowered


def _scaled_decomposition(op: Any, factor: float) -> Callable[[], None]:
    def planted() -> None:
        table = torch._inductor.decomposition.decompositions
        old = table[op]

        def decomposed(*args: Any, **kwargs: Any) -> Any:
            found = old(*args, **kwargs)
            if isinstance(found, tuple):
                return (found[0] * factor, *found[1:])
            return found * factor

        table[op] = decomposed

    return planted


def _forgetful_noops() -> None:
    old = post_grad.remove_noop_ops

    def removed(graph: torch.fx.Graph) -> Any:
        for node in graph.find_nodes(op="call_function", target=aten.rsqrt.default):
            node.target = aten.reciprocal.default
        return old(graph)

    post_grad.remove_noop_ops = removed


def _swapped_locality() -> None:
    old = post_grad.reorder_for_locality

    def reordered(graph: torch.fx.Graph) -> Any:
        for node in graph.find_nodes(op="call_function", target=aten.sub.Tensor)[:1]:
            node.args = (node.args[1], node.args[0])
        return old(graph)

    post_grad.reorder_for_locality = reordered


def _vector_exp() -> None:
    cpp.CppVecOverrides.exp = staticmethod(lambda x: f"{x}.exp_u20() * decltype({x})(1.01)")


def _all_tanh() -> None:
    for overrides in (cpp.CppVecOverrides, cpp.CppOverrides):
        old = overrides.tanh

        def tanh(x: Any, old: Any = old) -> str:
            return f"({old(x)}) * decltype({x})(0.98)"

        overrides.tanh = staticmethod(tanh)


def _add_behind_exp() -> None:
    """Addition is wrong in a kernel that has computed an exponential: every operator alone is right."""
    for overrides in (cpp.CppVecOverrides, cpp.CppOverrides):
        old_exp, old_add = overrides.exp, overrides.add

        def exp(x: Any, old: Any = old_exp) -> Any:
            V.kernel.has_exp = True
            return old(x)

        def add(x: Any, y: Any, old: Any = old_add) -> Any:
            right = old(x, y)
            is_wrong = getattr(V.kernel, "has_exp", False)
            return f"({right}) * decltype({x})(1.02)" if is_wrong else right

        overrides.exp, overrides.add = staticmethod(exp), staticmethod(add)


FAULTS = {
    "lowering of erf": Fault(_scaled_lowering(aten.erf.default, 0.9), ("lowering aten.erf",)),
    "lowering of mean": Fault(_scaled_lowering(aten.mean.dim, 1.1), ("lowering aten.mean",)),
    "lowering of cat": Fault(_swapped_cat, ("lowering aten.cat",)),
    "shy lowering of tanh": Fault(_shy_tanh, ("lowering aten.tanh",)),
    "raising lowering of tanh": Fault(_raising_tanh, ("lowering aten.tanh",)),
    "decomposition of native_layer_norm": Fault(
        _scaled_decomposition(aten.native_layer_norm.default, 1.05), ("aten.native_layer_norm",)
    ),
    "decomposition of silu": Fault(_scaled_decomposition(aten.silu.default, 1.05), ("aten.silu",)),
    "decomposition of threshold_backward": Fault(
        _scaled_decomposition(aten.threshold_backward.default, 1.1), ("aten.threshold_backward",)
    ),
    "pass remove_noop_ops": Fault(_forgetful_noops, ("remove_noop_ops",)),
    "pass reorder_for_locality": Fault(_swapped_locality, ("reorder_for_locality",)),
    "code of exp in vectors": Fault(_vector_exp, ("lowering aten.exp", "vector instructions")),
    "code of tanh": Fault(_all_tanh, ("lowering aten.tanh",)),
    "code of add behind exp": Fault(_add_behind_exp, ("lowering aten.add", "lowering aten.exp")),
}


def _program(build: Callable[[], Any], fault: str) -> Callable[[], Any]:
    def program() -> Any:
        plant(fault)
        return build()

    return program


lowering_erf = _program(programs.encoder, "lowering of erf")
lowering_mean = _program(programs.decoder, "lowering of mean")
lowering_shy = _program(programs.autoencoder, "shy lowering of tanh")
lowering_raises = _program(programs.autoencoder, "raising lowering of tanh")
lowering_cat = _program(programs.unet, "lowering of cat")
decomposition_norm = _program(programs.encoder, "decomposition of native_layer_norm")
decomposition_silu = _program(programs.decoder, "decomposition of silu")
pass_noop = _program(programs.decoder, "pass remove_noop_ops")
pass_locality = _program(programs.encoder, "pass reorder_for_locality")
code_exp = _program(programs.decoder, "code of exp in vectors")
code_tanh = _program(programs.autoencoder, "code of tanh")
code_add = _program(programs.autoencoder, "code of add behind exp")


@dataclass(frozen=True)
class PlantedCase:
    """A program in which a fault shows; `args` is the word that a script gets."""

    fault: str
    program: str
    words: tuple[str, ...] = ()
    args: str = ""


_HERE = "scripts.bisect_compile.faults"
_SCRIPT = "scripts/bisect_compile/train_digits.py"
CASES = (
    PlantedCase("lowering of erf", f"{_HERE}:lowering_erf"),
    PlantedCase("lowering of mean", f"{_HERE}:lowering_mean"),
    PlantedCase("lowering of cat", f"{_HERE}:lowering_cat"),
    PlantedCase("decomposition of native_layer_norm", f"{_HERE}:decomposition_norm"),
    PlantedCase("decomposition of silu", f"{_HERE}:decomposition_silu"),
    PlantedCase(
        "decomposition of threshold_backward", _SCRIPT, args="decomposition of threshold_backward"
    ),
    PlantedCase("pass remove_noop_ops", f"{_HERE}:pass_noop"),
    PlantedCase("pass reorder_for_locality", f"{_HERE}:pass_locality"),
    PlantedCase("code of exp in vectors", f"{_HERE}:code_exp"),
    PlantedCase("code of tanh", f"{_HERE}:code_tanh"),
    PlantedCase("code of add behind exp", f"{_HERE}:code_add"),
)
_MODELS = ("encoder", "decoder", "resnet", "unet", "autoencoder")
HONEST = (
    *(PlantedCase("", f"scripts.bisect_compile.programs:{each}") for each in _MODELS),
    PlantedCase("", "scripts.bisect_compile.programs:autoencoder", ("--backward",)),
    PlantedCase("", _SCRIPT),
)
