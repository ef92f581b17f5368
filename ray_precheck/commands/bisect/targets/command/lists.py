"""Ready lists of switches.

Comes in: the name of a list with its files, the command, and the environment. Goes out: the words of its
switches, with how often each did something where a log says so. Called by `switches`.

All on is the command as the user has it, so that a list only switches off what is there.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from ray_precheck.errors import UsageError
from ray_precheck.foreign import from_json, read_file
from ray_precheck.formats.ascend_flags import read_fusions

# The kind of words `list:...`, and of the switches of a fusion_switch.cfg.
LIST, PASS = "list", "pass"


class Listed(NamedTuple):
    """A switch of a list: its word, how often it did something (None: not known), and its file."""

    word: str
    hits: int | None = None
    file: str = ""


# Set to False for off, and left as they are for on. Source: https://docs.pytorch.org/docs/stable/backends.html;
# torch 2.13 takes each of them without a device, too.
_TORCH = (
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_fp16_accumulation",
    "torch.backends.cudnn.allow_tf32",
    "torch.backends.cudnn.benchmark",
    "torch.backends.cudnn.enabled",
    "torch.backends.mkldnn.enabled",
)
# The values of these variables for off. Source:
# https://developer.nvidia.com/blog/accelerating-ai-training-with-tf32-tensor-cores/
_NVIDIA = {"NVIDIA_TF32_OVERRIDE": "0"}
# Naive kernels. Source: https://github.com/MegEngine/Documentation, "lar-accuracy-analysis".
_MEGENGINE_VARIABLES = {"MGB_USE_MEGDNN_DBG": "2"}
# Options of load_and_run that optimise, and those that are given for off. Source:
# https://github.com/MegEngine/MegEngine, lite/load_and_run/src/options/*.cpp.
_MEGENGINE_OPTIONS = frozenset(
    "enable_nchw4 enable_chwn4 enable_nchw44 enable_nchw88 enable_nchw32 enable_nchw64 enable_nhwcd4"
    " enable_nchw44_dot enable_fuse_preprocess weight_preprocess enable_fuse_conv_bias_nonlinearity"
    " enable_fuse_conv_bias_with_z enable_ioc16 fast_run full_run enable_jit tensorrt const_shape"
    " record_comp_seq record_comp_seq2".split()
)
_MEGENGINE_GIVEN = ("--reproducible",)


def _torch(
    files: Sequence[str], command: Sequence[str], env: Mapping[str, str]
) -> Iterator[Listed]:
    for name in _TORCH:
        yield Listed(f"py:{name}=|False")


def _nvidia(
    files: Sequence[str], command: Sequence[str], env: Mapping[str, str]
) -> Iterator[Listed]:
    return _variables(_NVIDIA, env)


def _variables(off: Mapping[str, str], env: Mapping[str, str]) -> Iterator[Listed]:
    for name, value in off.items():
        if env.get(name, "") != value:
            yield Listed(f"env:{name}={env.get(name, '')}|{value}")


def _megengine(
    files: Sequence[str], command: Sequence[str], env: Mapping[str, str]
) -> Iterator[Listed]:
    yield from _variables(_MEGENGINE_VARIABLES, env)
    for word in command:
        name = word.lstrip("-").partition("=")[0].replace("-", "_")
        if word.startswith("-") and name in _MEGENGINE_OPTIONS:
            yield Listed(f"arg:{shlex.quote(word)}")
    for word in _MEGENGINE_GIVEN:
        if word not in command:
            yield Listed(f"arg:|{word}")


# Passes by their names. Source: https://www.hiascend.com/document/detail/en/canncommercial/850/devaids/atctool,
# "--fusion_switch_file", and the reference of graph and UB fusion patterns: `"ALL": "off"` switches off what
# can be, a pass by its name wins over it, and `"ALL": "on"` is not valid.
def _ascend(
    files: Sequence[str], command: Sequence[str], env: Mapping[str, str]
) -> Iterator[Listed]:
    if not 1 <= len(files) <= 2:
        raise UsageError(
            "--switch list:ascend needs a file: list:ascend:fusion_switch.cfg[:fusion_result.json]"
        )
    path = Path(files[0])
    passes = _passes(path)
    beside = path.with_name("fusion_result.json")
    results = [Path(each) for each in files[1:]] or [each for each in (beside,) if each.is_file()]
    hits = _hits(results[0]) if results else {}
    names = dict.fromkeys([*passes, *hits])
    for kind, name in names:
        if passes.get((kind, name)) != "off":
            times = hits.get((kind, name), 0) if results else None
            yield Listed(f"{PASS}:{kind}.{name}", times, str(path))
    for kind in ("GraphFusion", "UBFusion"):
        if (kind, "ALL") not in passes:
            yield Listed(f"{PASS}:{kind}.ALL", None, str(path))


def _passes(path: Path) -> dict[tuple[str, str], str]:
    """Return the passes that a fusion_switch.cfg names: `on` or `off` by kind and name.

    Raises:
        UsageError: it cannot be read, or is no such file.
    """
    content = _json(path)
    switch = content.get("RungSwitch") if isinstance(content, dict) else None
    if not isinstance(switch, dict) or not all(isinstance(each, dict) for each in switch.values()):
        raise UsageError(
            f'{path} is no fusion_switch.cfg; expected {{"Switch": {{"GraphFusion": {{"NAME": "on"}}}}}}'
        )
    return {
        (kind, name): str(side).lower()
        for kind, passes in switch.items()
        for name, side in passes.items()
    }


def _json(path: Path) -> object:
    try:
        return from_json(_text(path))
    except ValueError as error:
        raise UsageError(f"cannot read {path}: it is no JSON: {error}") from None


def _hits(path: Path) -> dict[tuple[str, str], int]:
    """Return how often the passes of a fusion_result.json fused something, over all graphs."""
    kinds = {"graph_fusion": "GraphFusion", "ub_fusion": "UBFusion"}
    found: dict[tuple[str, str], int] = {}
    try:
        for each in read_fusions(_text(path)):
            key = kinds[each.kind], each.name
            found[key] = found.get(key, 0) + each.effect_times
    except ValueError as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    return found


def _text(path: Path) -> str:
    try:
        return read_file(path).decode(errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


Maker = Callable[[Sequence[str], Sequence[str], Mapping[str, str]], Iterator[Listed]]
_LISTS: Mapping[str, Maker] = {
    "ascend": _ascend,
    "megengine": _megengine,
    "nvidia": _nvidia,
    "torch": _torch,
}


def listed_switches(
    asked: str, command: Sequence[str], env: Mapping[str, str]
) -> tuple[Listed, ...]:
    """Return the switches of a list, of `NAME[:FILE...]`.

    Raises:
        UsageError: there is no such list, a file of it cannot be read, or it has nothing to switch off.
    """
    name, *files = asked.split(":")
    if name not in _LISTS:
        near = get_close_matches(name, _LISTS, 1)
        told = f"the nearest is {near[0]}" if near else f"there are {', '.join(_LISTS)}"
        raise UsageError(f"--switch list:{asked}: there is no list {name!r}; {told}")
    if files and name != "ascend":
        raise UsageError(f"--switch list:{asked}: the list {name} takes no file")
    found = tuple(_LISTS[name](files, command, env))
    if not found:
        raise UsageError(f"--switch list:{asked}: all of it is off already; leave the list out")
    return found
