"""What a capture records, and where.

Comes in: options of the command line, arguments of `Capture`, or a configuration of msprobe. Goes out: a
validated `CaptureSettings`, also as JSON for the processes of a script. Called by all ways to start a
capture. The options of the command are declared here, with the fields that hold their values.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from ray_precheck.capture.rules import triggers_of
from ray_precheck.errors import UsageError
from ray_precheck.options.declared import REQUIRED, Number, OneOf, Takes, option, require_valid

STATISTICS, TENSOR, STRUCTURE = "statistics", "tensor", "structure"
TASKS = (STATISTICS, TENSOR, STRUCTURE)
LEVELS = ("L0", "L1", "mix")
SUMMARY_MODES = ("statistics", "md5", "xor")
BORDER = "border"
GRADIENTS = (BORDER, "node")
BY_OPTIMIZER, BY_FORWARD, BY_HAND = "optimizer", "forward", "manual"
STEP_ENDS = (BY_OPTIMIZER, BY_FORWARD, BY_HAND)
RAISE, LOG_ONLY = "raise", "log"
OVERFLOWS = (RAISE, LOG_ONLY)
NATIVE, SAFETENSORS = "native", "safetensors"
TENSOR_FORMATS = (NATIVE, SAFETENSORS)
ALL_RISKS, FOCUS, CORE = "ALL", "FOCUS", "CORE"
RISK_LEVELS = (ALL_RISKS, FOCUS, CORE)
MODES = ("all", "forward", "backward", "input", "output")
BYTES_OF_GB = 1_000_000_000
# The reason that a probe gives when a step has as many bytes as `max_bytes` allows.
FULL = "the step has reached its limit"
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST_STEPS = 1_000_000


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Elements `begin` to `end` (None: the last) of a dimension, of tensors that have `size` there."""

    dim: int = 0
    begin: int = 0
    end: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """The settings of a capture.

    `steps` are the numbers of the steps that are captured, None for all. `gradients` is `border` (those at
    the operator's own border) or `node` (those of the last autograd node, as msprobe has them). `chosen`
    is msprobe's `list`. `tensor_list` has parts of the names of calls whose tensors are saved although the
    task is `statistics`. `risk_level` leaves out calls where neither scope nor list is given.
    """

    section: ClassVar[str] = "what is captured"

    path: Path = option(
        REQUIRED,
        "-o",
        "--out_path",
        help="folder of the dumps, made if missing: step{S}/rank{R}/dump.json",
        more="Without a rank `step{S}/proc{PID}/`. The same settings again replace the earlier dumps",
        metavar="DUMP",
        becomes=Path,
    )
    level: str = option(
        "L1",
        "--level",
        help="{choices}: calls of operators (L1), of modules (L0), or both (default {default})",
        rule=OneOf(LEVELS),
    )
    task: str = option(
        STATISTICS,
        "--task",
        help="{choices} (default {default})",
        more="`tensor` saves every tensor, too; `structure` has the names of calls and modules alone",
        rule=OneOf(TASKS),
    )
    tensor_format: str = option(
        NATIVE,
        "--tensors",
        help="how tensors are saved; {choices} (default {default})",
        more="`native`: `.pt` files of PyTorch, `.npy` files of MindSpore; `safetensors`: files that other"
        " programs read without either, bfloat16 as it is. What that format lacks (complex128, sparse and"
        " quantized tensors) stays native",
        rule=OneOf(TENSOR_FORMATS),
    )
    sketch: bool = option(
        False,
        "--sketch",
        help="add to each tensor's statistics its sketch and its health",
        takes=Takes.NOTHING,
    )
    summary_mode: str = option(
        "statistics",
        "--summary-mode",
        help="what is said of a tensor's values; {choices} (default {default})",
        more="`md5` adds the CRC-32 of the bytes, which msprobe calls so; `xor` has the exclusive or of"
        " the bytes' 64-bit words alone",
        rule=OneOf(SUMMARY_MODES),
    )
    data_mode: frozenset[str] = option(
        frozenset({"all"}),
        "--data-mode",
        help="parts of the records: all, or some of forward,backward,input,output (default all)",
        metavar="PART,...",
        becomes=lambda text: modes_of(_parts(text)),
    )
    gradients: str = option(
        BORDER,
        "--gradients",
        help="{choices}: at the operator's border, or as msprobe has them (default {default})",
        more="`node`: those of the last autograd node of the call",
        rule=OneOf(GRADIENTS),
    )
    stacks: bool = option(
        True,
        "--no-stacks",
        help="leave out the lines of the program that led to each call",
        takes=Takes.NOTHING,
        becomes=lambda given: not given,
    )
    updates: bool = option(
        True,
        "--no-updates",
        help="leave out what optimizers do: parameters and states, before and after (PyTorch)",
        takes=Takes.NOTHING,
        becomes=lambda given: not given,
    )
    steps: frozenset[int] | None = option(
        None,
        "--steps",
        help="numbers of the steps, as 0-2,5 (default: all)",
        more="Step 0 begins with the first call of a model",
        becomes=lambda text: numbers_of("--steps", text),
    )
    ranks: frozenset[int] | None = option(
        None,
        "--ranks",
        help="numbers of the ranks, as 0-3,8 (default: all)",
        becomes=lambda text: numbers_of("--ranks", text),
    )
    step_by: str = option(
        BY_OPTIMIZER,
        "--step-by",
        help="what ends a step; {choices} (default {default})",
        more="`optimizer`: the `step` of the optimizer that steps first; `forward`: the next call of the"
        " model; `manual`: `ray_precheck.capture.step()` in the script",
        rule=OneOf(STEP_ENDS),
    )
    scope: tuple[str, ...] = option(
        (),
        "--scope",
        help="two keys of a dump: record from the first call to the second",
        metavar="BEGIN,END",
        becomes=_parts,
    )
    chosen: tuple[str, ...] = option(
        (),
        "--list",
        help="a part of a key, or name-regex(PATTERN): record these calls only; repeatable",
        more="A module of the list is recorded with all calls in it",
        takes=Takes.EACH,
        metavar="NAME",
    )
    max_bytes: int | None = option(
        None,
        "--max-gb",
        help="stop capturing when the dumps of a process have this size; the script goes on",
        type=float,
        metavar="GB",
        becomes=lambda gb: _bytes_of(gb),
    )
    keep_steps: int | None = option(
        None,
        "--keep-steps",
        help="keep the last N captured steps only",
        type=int,
        metavar="N",
        rule=Number("the count of steps that are kept", least=1),
    )
    overflow: str = option(
        "",
        "--overflow",
        help="{choices}: stop the script at the first operator of a step that makes NaN or infinity of"
        " finite values, or note it",
        more="The note is a line on stderr, and one of `overflow.jsonl` beside the dump, also of what"
        " stops. The dump up to there stays readable",
        rule=OneOf(OVERFLOWS, may_be_empty=True),
    )
    watch: bool = option(
        False,
        "--watch",
        help="write one row a step into DUMP/watch_{rank}.csv, for the whole training, and capture only the"
        " steps that --trigger or --steps asks for",
        more="Loss, norms of gradients and parameters in all and by module, counts of NaN and infinity, the"
        " step's time; where TensorBoard is installed also its event file. PyTorch only",
        takes=Takes.NOTHING,
    )
    triggers: tuple[str, ...] = option(
        (),
        "--trigger",
        help='with --watch: a rule, such as "grad_norm > 10 * median"; after a step in which it becomes true'
        " the next one is captured; repeatable",
        more="`@FILE` names a file with a rule on each line; lines that begin with # are comments",
        metavar="RULE",
        takes=Takes.EACH,
    )
    trigger_most: int = option(
        3,
        "--trigger-most",
        help="at most so many captures by rules in a run (default {default})",
        type=int,
        metavar="N",
        rule=Number("the count of captures by rules"),
    )
    tensor_list: tuple[str, ...] = ()
    custom_op_namespaces: tuple[str, ...] = ()
    slices: tuple[TensorSlice, ...] = ()
    risk_level: str = ALL_RISKS

    def wants(self, *words: str) -> bool:
        """Return whether a part of a record is wanted: `forward` or `backward`, `input` or `output`."""
        modes = self.data_mode
        if "all" in modes:
            return True
        directions, sides = {"forward", "backward"}, {"input", "output"}
        for word in words:
            group = directions if word in directions else sides
            if word not in modes and modes & group:
                return False
        return True

    def wants_tensors(self, key: str) -> bool:
        """Return whether the tensors of a call are saved."""
        return self.task == TENSOR or any(part in key for part in self.tensor_list)

    @property
    def saves_tensors(self) -> bool:
        """Whether tensors of some call are saved."""
        return self.task == TENSOR or bool(self.tensor_list)

    @property
    def as_safetensors(self) -> bool:
        """Whether files of tensors are those of safetensors, where that format has the dtype."""
        return self.tensor_format == SAFETENSORS

    @property
    def modules(self) -> bool:
        """Whether modules have records."""
        return self.level in ("L0", "mix")

    @property
    def calls(self) -> bool:
        """Whether calls of operators have records."""
        return self.level in ("L1", "mix")


def capture_settings(**given: Any) -> CaptureSettings:
    """Return the settings that arguments of `Capture` stand for.

    Raises:
        UsageError: an argument is unknown or wrong; the sentence lists what there is.
    """
    names = sorted(each.name for each in fields(CaptureSettings))
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise UsageError(
            f"{', '.join(unknown)}: no option of a capture; there are {', '.join(names)}"
        )
    given["path"] = folder_of(given["path"])
    for name, allowed in _ALLOWED.items():
        if name in given and given[name] not in allowed:
            raise UsageError(f"{name} is {given[name]!r}; expected one of {', '.join(allowed)}")
    for name in ("steps", "ranks"):
        given[name] = numbers_of(name, given.get(name))
    for name in ("scope", "chosen", "tensor_list", "custom_op_namespaces", "slices", "triggers"):
        if name in given:
            given[name] = _several(given[name])
    if len(given.get("scope", ())) == 1:
        given["scope"] = _parts(given["scope"][0])
    Number("the size of the dumps in bytes", least=1)("max_bytes", given.get("max_bytes"))
    if "data_mode" in given:
        given["data_mode"] = modes_of(given["data_mode"])
    if given.get("task") == STRUCTURE and given.get("level", "L1") == "L1":
        raise UsageError("task structure records modules and calls; give it level L0 or mix")
    if "triggers" in given:
        given["triggers"] = triggers_of(given["triggers"])
        if given["triggers"] and not given.get("watch"):
            raise UsageError("--trigger needs --watch, which has the numbers that rules ask for")
    settings = CaptureSettings(**given)
    require_valid(settings)
    if settings.overflow and not _shows_overflows(settings):
        raise UsageError(
            "--overflow compares the statistics of what each call gets and gives; leave out --task"
            " structure, --summary-mode xor, and --data-mode without input or output"
        )
    return settings


def _several(value: Any) -> tuple[Any, ...]:
    """Return the values of an argument that may be a single text, or None for no value."""
    return (value,) if isinstance(value, str) else tuple(value or ())


def _shows_overflows(settings: CaptureSettings) -> bool:
    has_statistics = settings.task != STRUCTURE and settings.summary_mode != "xor"
    return has_statistics and settings.wants("input") and settings.wants("output")


_ALLOWED = {
    "task": TASKS,
    "level": LEVELS,
    "summary_mode": SUMMARY_MODES,
    "gradients": GRADIENTS,
    "step_by": STEP_ENDS,
    "risk_level": RISK_LEVELS,
}


def modes_of(given: Any) -> frozenset[str]:
    """Return the parts of records that are wanted.

    Raises:
        UsageError: there is no such part.
    """
    modes = frozenset([given] if isinstance(given, str) else given)
    wrong = sorted(str(mode) for mode in modes if mode not in MODES)
    if wrong:
        raise UsageError(f"data_mode has {', '.join(wrong)}; expected some of {', '.join(MODES)}")
    if "all" in modes and len(modes) > 1:
        raise UsageError("data_mode has all and other words; give all alone, or the others")
    return modes or frozenset({"all"})


def _bytes_of(gigabytes: float) -> int:
    Number("the size of the dumps in gigabytes", most=1e9, whole=False, above=True)(
        "--max-gb", gigabytes
    )
    return max(1, int(gigabytes * BYTES_OF_GB))


def folder_of(path: str | os.PathLike[str]) -> Path:
    """Return the folder of captures, as an absolute path.

    Raises:
        UsageError: it is a file, or lies in one.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"captures are written into a folder, but {path!r} is no path")
    folder = Path(path).absolute()
    for part in (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            raise UsageError(f"captures are written into a folder, but {part} is a file")
    return folder


def numbers_of(name: str, given: object) -> frozenset[int] | None:
    """Return the numbers of a text such as "0-2,5", of a number, or of an iterable of both.

    Raises:
        UsageError: something in it is no number or range.
    """
    if given is None:
        return None
    parts: Iterable[object]
    if isinstance(given, str):
        parts = [part.strip() for part in given.split(",")]
    elif isinstance(given, Iterable):
        parts = given
    else:
        parts = [given]
    found: set[int] = set()
    for part in parts:
        if isinstance(part, int) and not isinstance(part, bool) and part >= 0:
            found.add(part)
            continue
        match = _RANGE.fullmatch(part.strip()) if isinstance(part, str) else None
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if match is None or last < first or last - first > _MOST_STEPS:
            raise UsageError(f"{name} has {part!r}; expected numbers and ranges such as 0-2,5")
        found.update(range(first, last + 1))
    return frozenset(found) or None


def settings_to_json(settings: CaptureSettings) -> dict[str, Any]:
    """Return settings as values of JSON, which `settings_from_json` reads."""
    found = {**asdict(settings), "path": str(settings.path)}
    for name, value in found.items():
        if isinstance(value, frozenset | tuple):
            found[name] = sorted(value) if isinstance(value, frozenset) else list(value)
    return found


def settings_from_json(found: dict[str, Any]) -> CaptureSettings:
    """Return the settings that `settings_to_json` has written.

    Raises:
        UsageError: they are of another version of this package.
    """
    slices = tuple(TensorSlice(**part) for part in found.get("slices", ()))
    return capture_settings(**{**found, "slices": slices})
