"""The script of `repro` for MindSpore.

Comes in: `Needs`. Goes out: the text. Called by `repro`. bfloat16 is saved as its bits; MindSpore on the
CPU has no fp8.
"""

from collections.abc import Iterator

from ray_precheck.commands.repro.text import (
    Aim,
    Needs,
    end_lines,
    flat_lines,
    head_lines,
    loaded,
    outputs_line,
    show_lines,
)

_BFLOAT16 = "ms.bfloat16"
_HF32 = [
    f"ms.device_context.ascend.op_precision.{name}_allow_hf32(False)" for name in ("matmul", "conv")
]


def mindspore_script(needs: Needs) -> str:
    """Return the script of a call of MindSpore."""
    return "\n".join(_lines(needs)) + "\n"


def _lines(needs: Needs) -> Iterator[str]:
    yield from head_lines(needs, "CPU, Ascend")
    yield from ("import mindspore as ms", "")
    if needs.runs_call:
        yield "ms.set_context(mode=ms.PYNATIVE_MODE)"
        named = {"cpu": '"CPU"', "npu": '"Ascend"'}.get(needs.device)
        device = f"(sys.argv[1:] or [{named}])[0]" if named else "sys.argv[1]"
        yield (
            f"ms.set_device({device})"
            if named
            else f"if sys.argv[1:]:\n    ms.set_device({device})"
        )
        if needs.device == "npu" and "float32" in needs.inputs:
            formats = needs.float32.products, needs.float32.convolutions
            for setting, found in zip(_HF32, formats, strict=True):  # as the run had it
                yield setting.replace("False", str(found == "hf32"))
    yield needs.files_line
    if needs.aim is Aim.COMPARE:
        yield 'np.seterr(all="ignore")'
    yield from _load_lines(needs)
    if needs.places and needs.runs_call:
        yield from _PLACE_LINES.splitlines()
    yield from flat_lines(needs)
    if needs.rows:
        yield from show_lines(needs, list(_to_numpy(needs)))
    yield from ("", "")
    saved = [
        _form(needs).replace("NAME", f'"{row.file("device")}"').replace("BITS", _bits(row.dtype))
        for row in needs.rows
    ]
    yield from end_lines(needs, list(_run_lines(needs)), saved)


def _load_lines(needs: Needs) -> Iterator[str]:
    """Yield the functions that load an array and a tensor of bfloat16, where the script loads any."""
    if needs.inputs or needs.cotangents or needs.rows:
        yield from ("", "", "def load(name):", '    return np.load(f"{FILES}.{name}.npy")')
    if "bfloat16" in needs.dtypes:
        yield from _BFLOAT16_LINES.splitlines()


_BFLOAT16_LINES = """

def tensor(name, dtype=None):
    data = load(name)
    if dtype is not None:  # bfloat16 is saved as its bits, the upper half of a float32.
        data = np.asarray(data.astype(np.uint32) << 16).view(np.float32)
    return ms.Tensor(data, dtype)"""


_PLACE_LINES = """

def place(tensors, layouts, count):
    # They lie in one memory as in the run, each with its (stride, offset).
    dtype = tensors[0].dtype
    plain = ms.float32 if dtype == ms.bfloat16 else dtype
    arrays = [tensor.astype(plain).asnumpy() for tensor in tensors]
    memory = np.zeros(count, arrays[0].dtype)
    for array, (stride, offset) in zip(arrays, layouts):
        steps = [step * memory.itemsize for step in stride]
        np.lib.stride_tricks.as_strided(memory[offset:], array.shape, steps)[...] = array
    memory, as_strided = ms.Tensor(memory, dtype), ms.ops.auto_generate.as_strided
    return [as_strided(memory, a.shape, *layout) for a, layout in zip(arrays, layouts)]"""


def _form(needs: Needs) -> str:
    return "tensor(NAMEBITS)" if "bfloat16" in needs.dtypes else "ms.Tensor(load(NAME))"


def _bits(dtype: str) -> str:
    return f", {_BFLOAT16}" if dtype == "bfloat16" else ""


def _to_numpy(needs: Needs) -> Iterator[str]:
    """Yield the lines of `show` that make arrays of got, a tensor, and want."""
    wide = f"np.{needs.wide}"
    if needs.aim is Aim.DRAW:
        cast = ".astype(ms.float32)" if "bfloat16" in needs.dtypes else ""
        yield f"    got, want = (t{cast}.asnumpy().astype({wide}) for t in (got, want))"
        return
    if "bfloat16" in needs.dtypes:
        yield f"    if got.dtype == {_BFLOAT16}:"
        yield f"        want = ms.Tensor(want.astype(np.float32), {_BFLOAT16})"
        yield "        got, want = got.astype(ms.float32), want.astype(ms.float32).asnumpy()"
    yield "    got = got.asnumpy()"
    yield f"    got, want = got.astype({wide}), want.astype(got.dtype).astype({wide})"


def _tensors(needs: Needs, dtypes: dict[int, str], kind: str) -> str:
    bits = {i: _BFLOAT16 for i, dtype in dtypes.items() if dtype == "bfloat16"}
    return loaded(dtypes, kind, _form(needs), bits=bits)


def _run_lines(needs: Needs) -> Iterator[str]:
    """Yield the lines that run the call: x, out, the list outs of its tensors, and grads."""
    if needs.inputs:
        yield f"x = {_tensors(needs, dict(enumerate(needs.inputs)), 'forward')}"
        yield from (each.line("x") for each in needs.layouts)
    if needs.seed is not None:
        yield f"ms.set_seed({needs.seed})  # The run's seed of this call."
        yield f"ms.manual_seed({needs.seed})"
    if needs.cotangents:
        yield from _gradient_lines(needs)
        return
    yield from _cast_lines(needs)
    yield f"out = {needs.call}"
    if needs.in_place:
        yield "out = x[0] if out is None else out"
    if needs.uses_outputs:
        yield f"outs = {outputs_line(needs)}"


def _cast_lines(needs: Needs) -> Iterator[str]:
    """Yield the line that casts the arguments, where MindSpore did so for the captured call."""
    if needs.autocast:
        cast = f"each.astype(ms.{needs.autocast}) if each.is_floating_point() else each"
        these = "x[1:]" if needs.in_place else "x[:]"
        yield f"{these} = [{cast} for each in {these}]"


def _gradient_lines(needs: Needs) -> Iterator[str]:
    """Yield the lines that run the call in a function of the tensors that require a gradient."""
    targets = ", ".join(f"x[{i}]" for i in needs.leaves) + ("," if len(needs.leaves) == 1 else "")
    copies = "(leaf * 1 for leaf in leaves)" if needs.in_place else "leaves"
    yield from ("", "", "def forward(*leaves):", f"    {targets} = {copies}")
    yield from (f"    {line}" for line in _cast_lines(needs))
    yield f"    out = {needs.call}"
    if needs.in_place:
        yield "    out = x[0] if out is None else out"
    yield f"    outs[:] = {outputs_line(needs)}"
    incoming = _tensors(needs, dict(needs.cotangents), "backward")
    is_float = "o.is_floating_point()"
    if needs.is_complex:
        is_float = "(o.is_floating_point() or o.is_complex())"
    if needs.float_outputs is None:
        is_float = f"isinstance(o, ms.Tensor) and {is_float}"
    # Nothing is picked where the dump says that every output has a gradient.
    is_plain = needs.float_outputs == needs.outputs
    yield (
        "    return tuple(outs)" if is_plain else f"    return tuple(o for o in outs if {is_float})"
    )
    leaves = ", ".join(f"x[{i}]" for i in needs.leaves)
    if needs.incoming_layouts:
        yield from ("", "", f"sens = {incoming}")
        yield from (each.line("sens") for each in needs.incoming_layouts)
        incoming = "sens"
    yield from ("", "", "outs = []", f"_, pull_back = ms.vjp(forward, {leaves})")
    if needs.float_outputs != len(needs.cotangents):
        yield f"incoming = dict(zip({list(needs.cotangents)}, {incoming}))"
        yield "incoming = [incoming.get(i, o * 0) for i, o in enumerate(outs)"
        yield f"            if {is_float}]"
        incoming = "incoming"
    yield f"grads = pull_back(tuple({incoming}))"
    if len(needs.leaves) == 1:
        yield "grads = grads if isinstance(grads, tuple) else (grads,)"
