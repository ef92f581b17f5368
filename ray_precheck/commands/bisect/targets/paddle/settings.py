"""The rungs of Paddle Inference's settings, and the passes that a log names.

Comes in: the log of a model that was loaded with all of it on. Goes out: rungs in the order of Paddle's guide
to precision tracing, with the lines of Python and C++ that switch each of them off. Called by the target.

Of Paddle 3.3.1, measured: oneDNN is on by default on the CPU, and puts operators on its kernels by a pass of
its own. A model of the old format hears `switch_ir_optim` alone, one of the new format (PIR) the level alone;
`enable_memory_optim` raises on the new one. Passes that run at level 0 too are structural: without some of
them no model loads. A pass that is unknown is ignored in silence.
"""

import re
from collections.abc import Mapping, Sequence

from ray_precheck.searching.bisection import Rung, RungSwitch

ALL_OFF, ONEDNN, MEMORY, PASSES = "all off", "oneDNN", "memory", "passes"
BF16, TENSORRT = "bf16", "TensorRT"
# With this pass alone oneDNN is on; it belongs to that rung, and stays in the others.
PLACEMENT = "onednn_placement_pass"
_RUNNING = re.compile(r"--- Running (?:PIR|IR) pass \[(\w+)\]")
_HITS = (
    re.compile(r"--- +detected \[(\d+)"),  # PIR: the first of two numbers is what was done.
    re.compile(r"--- +detected (\d+) subgraphs"),
    re.compile(r"--- +fused (\d+) "),
)
_PYTHON, _CPP = "Python", "C++"
Code = tuple[tuple[str, str], ...]


def passes_in(log: str) -> dict[str, int | None]:
    """Return the passes that a log names, in their order, and how often each of them found something; None
    for a pass that says nothing. A pass that runs twice stands once."""
    found: dict[str, int | None] = {}
    name = ""
    for line in log.splitlines():
        running = _RUNNING.search(line)
        if running:
            name = running.group(1)
            found.setdefault(name, None)
        elif "optimization completed" in line or "Running analysis" in line:
            name = ""
        elif name:
            hits = [int(each.group(1)) for pattern in _HITS if (each := pattern.search(line))]
            if any(hits):
                found[name] = (found[name] or 0) + hits[0]
    return found


def switch_names(name: str) -> tuple[str, ...]:
    """Return the names that may delete a pass of the log, the likeliest first: some passes write the old name
    of oneDNN into the log and are deleted by the new one."""
    new = name.replace("mkldnn", "onednn")
    return (name,) if new == name else (new, name)


def off_lines(rung: str, *, is_new: bool) -> Code:
    """Return the lines that switch a whole rung off."""
    optimisation = (
        ("config.set_optimization_level(0)", "config.SetOptimizationLevel(0);")
        if is_new
        else ("config.switch_ir_optim(False)", "config.SwitchIrOptim(false);")
    )
    onednn = ("config.disable_onednn()", "config.DisableONEDNN();")
    lines = {
        ALL_OFF: (optimisation, onednn),
        ONEDNN: (onednn,),
        MEMORY: (("# leave out config.enable_memory_optim()", "config.EnableMemoryOptim(false);"),),
        PASSES: (optimisation,),
        BF16: (
            (
                "# leave out config.enable_onednn_bfloat16()",
                "// leave out config.EnableOnednnBfloat16();",
            ),
        ),
    }
    return tuple(line for python, cpp in lines[rung] for line in ((_PYTHON, python), (_CPP, cpp)))


def pass_lines(name: str, *, is_new: bool) -> Code:
    """Return the lines that delete a pass."""
    cpp = "config.DeletePass" if is_new else "config.pass_builder()->DeletePass"
    return (_PYTHON, f'config.delete_pass("{name}")'), (_CPP, f'{cpp}("{name}");')


def tensorrt_lines(shapes: Mapping[str, Sequence[int]]) -> Code:
    """Return the settings of TensorRT's rung, with the shapes of the inputs that the trials saw."""
    listed = ", ".join(f'"{name}": {list(shape)}' for name, shape in shapes.items())
    python = f"{{{listed}}}"
    braced = ", ".join(
        f'{{"{name}", {{{", ".join(map(str, shape))}}}}}' for name, shape in shapes.items()
    )
    cpp = f"{{{braced}}}"
    return (
        (_PYTHON, 'config.collect_shape_range_info("shapes.pbtxt")  # in a run of its own, first'),
        (_PYTHON, "config.enable_tensorrt_engine(min_subgraph_size=3)"),
        (_PYTHON, 'config.enable_tuned_tensorrt_dynamic_shape("shapes.pbtxt", True)'),
        (_PYTHON, f"config.set_trt_dynamic_shape_info({python}, {python}, {python})  # instead"),
        (_PYTHON, 'config.exp_disable_tensorrt_ops(["OPERATOR"])  # keeps an operator out'),
        (_CPP, 'config.CollectShapeRangeInfo("shapes.pbtxt");  // in a run of its own, first'),
        (_CPP, "config.EnableTensorRtEngine(1 << 30, 1, 3);"),
        (_CPP, 'config.EnableTunedTensorRtDynamicShape("shapes.pbtxt", true);'),
        (_CPP, f"config.SetTRTDynamicShapeInfo({cpp}, {cpp}, {cpp});  // instead"),
        (_CPP, 'config.Exp_DisableTensorRtOPs({"OPERATOR"});  // keeps an operator out'),
    )


def ladder_of(
    passes: Mapping[str, int | None],
    structural: Sequence[str],
    aliases: Mapping[str, str],
    *,
    is_new: bool,
    with_bf16: bool,
    in_tensorrt: Sequence[str],
) -> tuple[Rung, ...]:
    """Return the rungs of a model: `passes` are those of the log with their hits, `structural` those that run
    with everything off or cannot be deleted, `aliases` the names that delete a pass where they differ,
    `in_tensorrt` the types of operators that TensorRT may take, () for no such rung."""
    stays = {*structural, PLACEMENT}
    switches = tuple(
        RungSwitch(
            aliases.get(name, name),
            stays=name in stays,
            hits=hits,
            lines=pass_lines(aliases.get(name, name), is_new=is_new),
        )
        for name, hits in passes.items()
    )
    rungs = [Rung(ALL_OFF, title="no optimisation", lines=off_lines(ALL_OFF, is_new=is_new))]
    if PLACEMENT in passes:
        rungs.append(_single(ONEDNN, "oneDNN's kernels", rungs[-1].name, is_new=is_new))
    if not is_new:
        rungs.append(_single(MEMORY, "memory optimisation", rungs[-1].name, is_new=is_new))
    lines = off_lines(PASSES, is_new=is_new)
    title = "the passes of the intermediate representation"
    rungs.append(Rung(PASSES, switches, rungs[-1].name, title=title, lines=lines))
    if with_bf16:
        rungs.append(_single(BF16, "bfloat16 on oneDNN", PASSES, is_new=is_new))
    if in_tensorrt:
        types = tuple(RungSwitch(name, lines=_kept_out(name)) for name in in_tensorrt)
        rungs.append(Rung(TENSORRT, types, PASSES, title="operators in TensorRT"))
    return tuple(rungs)


def _kept_out(operator: str) -> Code:
    python = f'config.exp_disable_tensorrt_ops(["{operator}"])'
    return (_PYTHON, python), (_CPP, f'config.Exp_DisableTensorRtOPs({{"{operator}"}});')


def _single(name: str, title: str, over: str, *, is_new: bool) -> Rung:
    lines = off_lines(name, is_new=is_new)
    return Rung(name, (RungSwitch(name, lines=lines),), over, title=title, lines=lines)
