"""The texts of the scripts that `repro` prints, one for each framework.

Comes in: nothing. Goes out: texts with places to fill in. Used by `repro`. What both compare by is the
same, and stands in each script, since a script needs nothing of this package. Lines that end with
`#if WORD` are only in the scripts that need them (`only_needed`).
"""

import re
from collections.abc import Collection

_MARK = re.compile(r"^(.*?) *#if (\w+)$")


def only_needed(script: str, words: Collection[str]) -> str:
    """Return a script without the lines whose mark is none of these words, and without marks."""
    lines = []
    for line in script.splitlines():
        marked = _MARK.match(line)
        if marked is None:
            lines.append(line)
        elif marked[2] in words:
            lines.append(marked[1])
    return re.sub(r"\n{2,}", "\n\n", "\n".join(lines)) + "\n"


_COMPARE = '''

def compare(row, got, want, limit):
    """Say where an output is farthest from the bench; return whether it is in error."""
    if got.shape != want.shape:
        print(f"{{row}}: shape {{got.shape}}, the bench has {{want.shape}}: IN ERROR")
        return True
    if not got.size:
        return False
    with np.errstate(all="ignore"):
        same = (got == want) | ((got != got) & (want != want))
        error = np.where(same, 0.0, np.nan_to_num(abs(got - want), nan=np.inf, posinf=np.inf))
        a, b = got[np.isfinite(want)].ravel(), want[np.isfinite(want)].ravel()
        cosine = np.vdot(b, a).real / (np.linalg.norm(a) * np.linalg.norm(b))
    at = np.unravel_index(error.argmax(), error.shape)
    wrong = error[at] >= limit or (BY_DEFAULT and got.size > 1 and cosine <= 0.99)
    where = list(map(int, at))
    print(f"{{row}}: worst at {{where}}: {{got[at]}}, the bench has {{want[at]}}; error {{error[at]:.6g}},"
          f" limit {{limit:.6g}}; cosine {{cosine:.6f}}: {{'IN ERROR' if wrong else 'ok'}}")
    return wrong


def judge(row, got):
    """Compare an output of this machine with the bench's, which is rounded to its dtype."""
    want = rounded(load(bench_of(row)), got)
    limit = 1e-4  # msprobe's #if default
    device = load(bench_of(row).replace("bench", "device"))  #if other
    with np.errstate(all="ignore"):  #if other
        error = abs(host(device) - host(rounded(load(bench_of(row)), device)))  #if other
    # Half as far off as in the run: its rule needs more than this script has.  #if other
    limit = 0.5 * float(np.nan_to_num(error, nan=np.inf, posinf=np.inf).max(initial=0.0)) or 1e-4  #if other
    return compare(row, host(got), host(want), limit)


def bench_of(row):
    direction, _, number = row.split(".")
    return f"{{STEM}}.{{direction}}.output.bench.{{number}}.npy"
'''

_MAIN = """

wrong = []
for row in (row for row in FAILING if bench_of(row) in DTYPES):  #if captured
    print("captured ", end="")  # What the run has judged; below is what this machine makes.  #if captured
    wrong.append(judge(row, load(bench_of(row).replace("bench", "device"))))  #if captured
try:
    found = run()
    for row, got in found.items():
        if row in FAILING and bench_of(row) in DTYPES:
            result = judge(row, got)
            wrong += [] if CAPTURED else [result]
except Exception as error:
    print(f"the call raises {{type(error).__name__}}: {{error}}")
    wrong.append(not CAPTURED)
print("the failure is shown" if any(wrong) else "no failure here")
raise SystemExit(int(any(wrong)))
"""

_HEAD = '''"""{name}: in error. The run said: {message}

Run it with python; an argument names the device ({devices}). It ends with 1 where it shows the failure.
"""
import sys
import numpy as np
'''

_FACTS = """
FOLDER = {folder!r}
STEM = {stem!r}
DTYPES = {dtypes}
FAILING, DIFFERENTIABLE = {failing}, {differentiable}
IN_PLACE, CAPTURED, BY_DEFAULT = {in_place}, {captured}, {by_default}
"""

_TORCH = (
    _HEAD.replace("{devices}", "cpu, cuda, npu")
    + "import torch\n{imports}"
    + _FACTS
    + """
DEVICE = (sys.argv[1:] or ["cuda" if torch.cuda.is_available() else "cpu"])[0]
if DEVICE == "npu":
    import torch_npu


def load(name):
    data, dtype = np.load(f"{{FOLDER}}/{{name}}"), getattr(torch, DTYPES[name])
    if data.dtype == np.uint16:
        data = data.view(np.int16)
    return torch.from_numpy(data).view(dtype).to(DEVICE)


def host(tensor):
    return tensor.detach().cpu().to(torch.complex128 if tensor.is_complex() else torch.float64).numpy()


def rounded(want, like):
    return want.to(like.dtype)
"""
    + _COMPARE
    + """

def flat(value):
    value = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(value, (list, tuple)):
        return [value]
    leaves = [leaf for item in value for leaf in flat(item)]
    return leaves if any(map(torch.is_tensor, leaves)) else [value]


def run():
    x = [{inputs}]
    leaves = [x[i].requires_grad_() for i in DIFFERENTIABLE]
    x = [tensor.clone() for tensor in x] if IN_PLACE else x{note}
    result = {call}
    outputs = flat(x[0] if result is None else result)
    found = {{f"forward.output.{{i}}": leaf for i, leaf in enumerate(outputs) if torch.is_tensor(leaf)}}
    names = [f"{{STEM}}.backward.input.{{i}}.npy" for i in range(len(outputs))]  #if backward
    pairs = [(o, load(n)) for o, n in zip(outputs, names) if n in DTYPES and o.requires_grad]  #if backward
    if pairs:  #if backward
        grads = torch.autograd.grad(  #if backward
            [o for o, _ in pairs], leaves, [g.to(o.dtype) for o, g in pairs], allow_unused=True)  #if backward
        found |= {{f"backward.output.{{i}}": torch.zeros_like(leaves[i]) if grad is None else grad  #if backward
                  for i, grad in enumerate(grads)}}  #if backward
    return found
"""
    + _MAIN
)

_MINDSPORE = (
    _HEAD.replace("{devices}", "CPU, Ascend")
    + "import mindspore as ms\n{imports}"
    + _FACTS
    + """
ms.set_context(mode=ms.PYNATIVE_MODE)
if sys.argv[1:]:
    ms.set_device(sys.argv[1])


def load(name):
    data = np.load(f"{{FOLDER}}/{{name}}")
    if DTYPES[name] == "bfloat16":
        return ms.Tensor(np.asarray(data.astype(np.uint32) << 16).view(np.float32), ms.bfloat16)
    return ms.Tensor(data)


def host(tensor):
    data = tensor.astype(ms.float32).asnumpy() if tensor.dtype == ms.bfloat16 else tensor.asnumpy()
    return data.astype(np.complex128 if np.iscomplexobj(data) else np.float64)


def rounded(want, like):
    if like.dtype == ms.bfloat16:
        return ms.Tensor(want.asnumpy().astype(np.float32), ms.bfloat16)
    return ms.Tensor(want.asnumpy().astype(like.asnumpy().dtype))
"""
    + _COMPARE
    + """

def flat(value):
    value = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(value, (list, tuple)):
        return [value]
    leaves = [leaf for item in value for leaf in flat(item)]
    return leaves if any(isinstance(leaf, ms.Tensor) for leaf in leaves) else [value]


def run():
    inputs, outputs = [{inputs}], []

    def forward(*leaves):
        x = list(inputs)
        for i, leaf in zip(DIFFERENTIABLE, leaves):
            x[i] = leaf * 1 if IN_PLACE else leaf{note}
        result = {call}
        outputs[:] = flat(x[0] if result is None else result)
        return tuple(o for o in outputs if isinstance(o, ms.Tensor) and o.dtype in FLOATS)

    leaves, grads = [inputs[i] for i in DIFFERENTIABLE], ()
    if not leaves or CAPTURED:
        forward(*leaves)
    else:
        _, pull_back = ms.vjp(forward, *leaves)
        names = [f"{{STEM}}.backward.input.{{i}}.npy" for i in range(len(outputs))]
        incoming = [load(n) if n in DTYPES else ms.Tensor(np.zeros(o.shape, np.float32), o.dtype)
                    for o, n in zip(outputs, names) if isinstance(o, ms.Tensor) and o.dtype in FLOATS]
        grads = flat(pull_back(tuple(incoming))) if incoming else ()
    found = {{f"forward.output.{{i}}": o for i, o in enumerate(outputs) if isinstance(o, ms.Tensor)}}
    return found | {{f"backward.output.{{i}}": grad for i, grad in enumerate(grads)}}


FLOATS = (ms.float16, ms.bfloat16, ms.float32, ms.float64, ms.complex64, ms.complex128)
"""
    + _MAIN
)

FRAMES = {"pytorch": _TORCH, "mindspore": _MINDSPORE}
