"""The script of `repro` for torch, native or MSAdapter's.

Comes in: `Needs`. Goes out: the text. Called by `repro`.
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
from ray_precheck.schema.dtypes import DTYPES

_DEVICES = {"cpu": '"cpu"', "gpu": '"cuda"', "npu": '"npu"'}
_ANY_DEVICE = '"cuda" if torch.cuda.is_available() else "cpu"'
# The settings of products and of convolutions, and the format with which each is True.
_FLOAT32 = {
    "gpu": (
        "torch.backends.cuda.matmul.allow_tf32 = False",
        "torch.backends.cudnn.allow_tf32 = False",
        "tf32",
    ),
    "npu": (
        "torch_npu.npu.matmul.allow_hf32 = False",
        "torch_npu.npu.conv.allow_hf32 = False",
        "hf32",
    ),
}


def torch_script(needs: Needs) -> str:
    """Return the script of a call of torch."""
    return "\n".join(_lines(needs)) + "\n"


def _lines(needs: Needs) -> Iterator[str]:
    yield from head_lines(needs, "cpu, npu" if needs.device == "npu" else "cpu, cuda")
    yield "import torch"
    if needs.device == "npu" or needs.needs_npu:
        yield "import torch_npu"
    yield ""
    if needs.runs_call:
        yield f"DEVICE = (sys.argv[1:] or [{_DEVICES.get(needs.device, _ANY_DEVICE)}])[0]"
    yield needs.files_line
    if needs.device in _FLOAT32 and "float32" in needs.inputs and needs.runs_call:
        products, convolutions, name = _FLOAT32[needs.device]
        # As the run had it.
        yield products.replace("False", str(needs.float32.products == name))
        yield convolutions.replace("False", str(needs.float32.convolutions == name))
    if needs.aim is Aim.COMPARE:
        yield 'np.seterr(all="ignore")'
    yield from _load_lines(needs)
    if needs.places and needs.runs_call:
        yield from _PLACE_LINES.splitlines()
    yield from flat_lines(needs)
    if needs.rows:
        wide = f".to(torch.{needs.wide})" if needs.is_complex else ".double()"
        want = "want" if needs.aim is Aim.DRAW else "want.to(got.dtype)"
        to_numpy = f"    got, want = (t.detach().cpu(){wide}.numpy() for t in (got, {want}))"
        yield from show_lines(needs, [to_numpy])
    yield from ("", "")
    saved = [f'load("{row.file("device")}"{_bits(row.dtype)})' for row in needs.rows]
    yield from end_lines(needs, list(_run_lines(needs)), saved)


_PLACE_LINES = """

def place(tensors, layouts, count):
    # They lie in one memory as in the run, each with its (stride, offset).
    memory = torch.zeros(count, dtype=tensors[0].dtype, device=DEVICE)
    for tensor, layout in zip(tensors, layouts):
        where = torch.arange(count, device=DEVICE).as_strided(tensor.shape, *layout)
        memory[where.flatten()] = tensor.flatten()
    return [memory.as_strided(tensor.shape, *layout) for tensor, layout in zip(tensors, layouts)]"""


def _load_lines(needs: Needs) -> Iterator[str]:
    """Yield the function that loads a tensor on the CPU, where the script loads any."""
    if not (needs.inputs or needs.cotangents or needs.rows):
        return
    yield from ("", "")
    if not any(map(_bits, needs.dtypes)):
        yield "def load(name):"
        yield '    return torch.from_numpy(np.load(f"{FILES}.{name}.npy"))'
        return
    yield "def load(name, dtype=None):"
    yield '    data = np.load(f"{FILES}.{name}.npy")  # The bits of a dtype that NumPy lacks.'
    yield "    if dtype is None:"
    yield "        return torch.from_numpy(data)"
    yield '    return torch.from_numpy(data.view(f"i{data.itemsize}")).view(dtype)'


def _bits(dtype: str) -> str:
    """Return the second argument of `load`: a dtype that is saved as its bits."""
    return f", torch.{dtype}" if dtype in DTYPES and DTYPES[dtype].carrier != dtype else ""


def _tensors(dtypes: dict[int, str], kind: str) -> str:
    bits = {i: _bits(dtype).removeprefix(", ") for i, dtype in dtypes.items() if _bits(dtype)}
    return loaded(dtypes, kind, "load(NAMEBITS).to(DEVICE)", bits=bits)


def _run_lines(needs: Needs) -> Iterator[str]:
    """Yield the lines that run the call: x, out, the list outs of its tensors, and grads."""
    if needs.inputs:
        yield f"x = {_tensors(dict(enumerate(needs.inputs)), 'forward')}"
    is_copied = bool(needs.leaves) and needs.in_place
    lines = [each.line("x") for each in needs.layouts]
    yield from [] if is_copied else lines
    yield from needs.built
    if needs.leaves:
        positions = list(needs.leaves)
        each = f"x[i].requires_grad_() for i in {positions}"
        only = f"x[{positions[0]}].requires_grad_()"
        yield f"leaves = [{only if len(positions) == 1 else each}]"
        if needs.in_place:
            yield "x = [tensor.clone() for tensor in x]"
            yield from lines
    if needs.seed is not None:
        yield f"torch.manual_seed({needs.seed})  # The run's seed of this call."
    if needs.autocast:
        kind = 'DEVICE.partition(":")[0]'
        yield f"with torch.autocast({kind}, dtype=torch.{needs.autocast}):"
        yield f"    out = {needs.call}"
    else:
        yield f"out = {needs.call}"
    if needs.in_place:
        first = f"x[:{needs.listed}]" if needs.listed else "x[0]"
        yield f"out = {first} if out is None else out"
    if needs.uses_outputs:
        yield f"outs = {outputs_line(needs)}"
    yield from _gradient_lines(needs)


def _gradient_lines(needs: Needs) -> Iterator[str]:
    if not needs.cotangents:
        return
    incoming = _tensors(dict(needs.cotangents), "backward")
    # One leaf has a part in the output, of several some may have none: their gradients are zeros.
    zeros = ", materialize_grads=True" if len(needs.leaves) > 1 else ""
    if len(needs.cotangents) == 1:
        (position,) = needs.cotangents
        if needs.incoming_layouts:
            yield f"incoming = {incoming}"
            yield from (each.line("incoming") for each in needs.incoming_layouts)
        else:
            yield f"incoming = {incoming[1:-1]}"
        yield f"grads = torch.autograd.grad(outs[{position}], leaves, incoming{zeros})"
        return
    positions = list(needs.cotangents)
    is_all = positions == list(range(len(positions)))
    outs = "outs" if is_all else f"[outs[i] for i in {positions}]"
    yield f"incoming = {incoming}"
    yield from (each.line("incoming") for each in needs.incoming_layouts)
    yield f"pairs = [(o, g) for o, g in zip({outs}, incoming) if o.requires_grad]"
    yield "asked, incoming = zip(*pairs)"
    yield f"grads = torch.autograd.grad(asked, leaves, incoming{zeros})"
