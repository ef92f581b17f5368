"""The parts of the scripts of `repro` that do not depend on the framework.

Comes in: `Needs`, the content of one script. Goes out: lines of it. Used by `repro_torch` and
`repro_mindspore`. A script has only lines that its call needs.
"""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import PurePath

from ray_precheck.schema.dtypes import FULL_FLOAT32, Float32

_WIDTH = 100


class Aim(Enum):
    """The purpose of a script: COMPARE with the bench, DRAW random numbers again, RAISE the exception of
    the run again, or LOOK at the results, if no bench was saved to compare with."""

    COMPARE = auto()
    DRAW = auto()
    RAISE = auto()
    LOOK = auto()


@dataclass(frozen=True, slots=True)
class FailingOutput:
    """A failing output: its direction and number, the limit of its error, the dtype that was tested.

    `place` is that of a gradient among those that the script computes. `changed` is the name of a tensor
    that the call changes, "" for an output; its number is that of the input.
    """

    direction: str
    number: int
    limit: float
    dtype: str
    place: int = 0
    changed: str = ""

    @property
    def name(self) -> str:
        """As in the detail rows: forward.output.0."""
        return self.file("").replace("..", ".")

    def file(self, side: str) -> str:
        """The name of its file: forward.output.bench.0."""
        if self.changed:
            return f"{self.direction}.changed.{side}.{self.changed}"
        return f"{self.direction}.output.{side}.{self.number}"

    @property
    def value(self) -> str:
        """What the script has computed for it."""
        if self.direction == "backward":
            return f"grads[{self.place}]"
        return f"{'x' if self.changed else 'outs'}[{self.number}]"


@dataclass(frozen=True, slots=True)
class Placed:
    """Tensors that lie in one buffer of `extent` elements: their positions, steps and offsets."""

    extent: int
    members: tuple[tuple[int, tuple[int, ...], int], ...]

    def line(self, names: str) -> str:
        """Return the line that places them; they are the elements of a list of this name."""
        tensors = ", ".join(f"{names}[{position}]" for position, _, _ in self.members)
        layouts = [(stride, offset) for _, stride, offset in self.members]
        return f"{tensors}, = place([{tensors}], {layouts}, {self.extent})"


@dataclass(frozen=True, slots=True)
class Needs:
    """The contents of a script.

    `files` is the beginning of the path of every file, `device` the kind that was tested ("" if the
    JSON does not say). `inputs` are the dtypes of x, `leaves` the positions in x that require a
    gradient, `cotangents` the dtypes of incoming gradients by output (none: no gradient is computed).
    `nested`: an output may be a list of tensors; `outputs` is their number in the dump and
    `float_outputs` the number of those with gradients, None if it is unknown. `captured`: the results
    of the dump were judged. `autocast` is the dtype of PyTorch's autocast, "" without it. `seed` is the seed
    of the run's draws. `layouts` are those of x that are not contiguous, `incoming_layouts` those of the list
    of incoming gradients. `built` are lines of torch that make sparse, quantized and lazy tensors of what was
    saved; `listed` is the number of tensors in the first argument, if it is a list. `float32` are the formats
    of the operands of products. `is_beside`: the files lie beside the script.
    """

    name: str
    message: str
    files: str
    device: str
    aim: Aim
    rule: str
    captured: bool
    seed: int | None
    call: str
    note: str
    needs_npu: bool
    rows: tuple[FailingOutput, ...]
    inputs: tuple[str, ...]
    leaves: tuple[int, ...]
    in_place: bool
    nested: bool
    outputs: int
    float_outputs: int | None
    is_complex: bool
    autocast: str
    cotangents: Mapping[int, str] = field(default_factory=dict)
    layouts: tuple[Placed, ...] = ()
    incoming_layouts: tuple[Placed, ...] = ()
    built: tuple[str, ...] = ()
    listed: int = 0
    float32: Float32 = FULL_FLOAT32
    is_beside: bool = False

    @property
    def files_line(self) -> str:
        """The line that says where the files are."""
        if not self.is_beside:
            return f"FILES = {self.files!r}"
        name = PurePath(self.files).name
        return f"FILES = os.path.join(os.path.dirname(os.path.abspath(__file__)), {name!r})"

    @property
    def places(self) -> bool:
        """Whether tensors do not lie in memory as they are loaded."""
        return bool(self.layouts or self.incoming_layouts)

    @property
    def dtypes(self) -> set[str]:
        """The dtypes of everything that the script loads into the framework."""
        return {*self.inputs, *self.cotangents.values(), *(row.dtype for row in self.rows)}

    @property
    def by_default(self) -> bool:
        """Whether the run judged by msprobe's rule, which the script can apply."""
        return self.rule == "msprobe"

    @property
    def wide(self) -> str:
        """The dtype in which results are compared."""
        return "complex128" if self.is_complex else "float64"

    @property
    def uses_outputs(self) -> bool:
        """Whether the script needs the list of the outputs."""
        return self.aim in (Aim.COMPARE, Aim.DRAW) or bool(self.cotangents)

    @property
    def runs_call(self) -> bool:
        """Whether this machine has to run the call: not where captured gradients alone are judged."""
        return not self.captured or any(row.direction == "forward" for row in self.rows)


def head_lines(needs: Needs, devices: str) -> Iterator[str]:
    """Yield the docstring of the script and its first imports."""
    is_wrong = ", a call of a dump." if needs.is_beside else " is in error."
    said = f'"""{needs.name}{is_wrong} The run said: {needs.message}'
    yield from textwrap.wrap(said, _WIDTH, break_long_words=False, break_on_hyphens=False)
    yield ""
    yield _ENDS[needs.aim]
    if needs.runs_call:
        yield f"An argument names another device: {devices}."
    yield '"""'
    yield from ["import os"] if needs.is_beside else []
    yield from ("import sys", "", "import numpy as np")


_ENDS = {
    Aim.COMPARE: "It ends with 1 where it shows the failure.",
    Aim.DRAW: "It ends with 1 where it draws what the run found in error, else with 2: it cannot judge.",
    Aim.RAISE: "It ends with 1 where the call raises.",
    Aim.LOOK: "It ends with 1 where the call raises, else with 2: it has nothing to compare with.",
}


def show_lines(needs: Needs, to_numpy: list[str]) -> Iterator[str]:
    """Yield the function that prints and judges one result; `to_numpy` makes got and want arrays."""
    yield from ("", "")
    if needs.aim is Aim.DRAW:
        yield "def show(row, got, want):"
        yield '    """Print what was drawn; return whether the run judged the same draws."""'
        yield from to_numpy
        yield from _DRAWN.splitlines()
        return
    yield "def show(row, got, want, limit):"
    yield '    """Print where a result is farthest from the bench, which is rounded to its dtype."""'
    yield from to_numpy
    yield from _WORST.splitlines()
    rule, shown = "", ""
    if needs.by_default:
        yield "    a, b = got[np.isfinite(want)], want[np.isfinite(want)]"
        yield "    cosine = np.vdot(a, b).real / np.linalg.norm(a) / np.linalg.norm(b)"
        rule, shown = " or (want.size > 1 and cosine <= 0.99)", "; cosine {cosine:.6f}"
    yield f"    wrong = bool(error[at] >= limit{rule})"
    yield '    print(f"{row}: worst at {[int(i) for i in at]}: {got[at]}, the bench has {want[at]}; error"'
    verdict = "{'IN ERROR' if wrong else 'ok'}"
    yield f'          f" {{error[at]:.6g}}, limit {{limit:.6g}}{shown}: {verdict}")'
    yield "    return wrong"


_WORST = """\
    if got.shape != want.shape or not want.size:
        print(f"{row}: shape {got.shape}, the bench has {want.shape}")
        return got.shape != want.shape
    equal = (got == want) | (np.isnan(got) & np.isnan(want))
    error = np.where(equal, 0, np.nan_to_num(abs(got - want), nan=np.inf, posinf=np.inf))
    at = np.unravel_index(error.argmax(), error.shape)"""

_DRAWN = """\
    same = np.array_equal(got, want, equal_nan=True)
    print(f"{row}: shape {got.shape}, {'the same' if same else 'other'} draws as in the run:")
    if got.size:
        print(f"  min {got.min():.6g}, max {got.max():.6g}, mean {got.mean():.6g},"
              f" std {got.std():.6g}, share of zeros {np.mean(got == 0):.6g}")
    return same"""

_FLAT = """

def flat(value):
    value = list(value.values()) if isinstance(value, dict) else value
    return sum(map(flat, value), []) if isinstance(value, (list, tuple)) else [value]"""


def flat_lines(needs: Needs) -> list[str]:
    """Return the function that flattens outputs, where some are lists."""
    return _FLAT.splitlines() if needs.nested and needs.uses_outputs else []


def outputs_line(needs: Needs) -> str:
    """Return the expression of the list of outputs, which `out` may be or not."""
    return "flat(out)" if needs.nested else "out if isinstance(out, (list, tuple)) else [out]"


def loaded(names: Mapping[int, str], kind: str, form: str, *, bits: Mapping[int, str]) -> str:
    """Return the expression of a list of tensors: `{kind}.input.{i}` for each i of `names`.

    `form` makes one of them, with the places NAME and BITS; `bits` are the dtypes of those that NumPy
    lacks, in the script's words.
    """
    positions = list(names)
    all_bits = [bits.get(position, "") for position in positions]
    if len(positions) == 1:
        return f"[{_filled(form, _quoted(kind, positions[0]), all_bits[0])}]"
    name = f'f"{kind}.input.{{i}}"'
    if len(set(all_bits)) == 1:
        each = f"range({len(positions)})" if positions == list(range(len(positions))) else positions
        return f"[{_filled(form, name, all_bits[0])} for i in {each}]"
    listed = ", ".join(f"({i}, {bits.get(i, None)})" for i in positions)
    return f"[{_filled(form, name, 'dtype')} for i, dtype in [{listed}]]"


def _quoted(kind: str, position: int) -> str:
    return f'"{kind}.input.{position}"'


def _filled(form: str, name: str, bits: str) -> str:
    return form.replace("NAME", name).replace("BITS", f", {bits}" if bits else "")


def end_lines(needs: Needs, run: list[str], saved: list[str]) -> Iterator[str]:
    """Yield the part that runs the call by the lines `run`, and judges.

    `saved` are the expressions of the results that the run judged, for each row.
    """
    if needs.note:
        run = [f"# {needs.note}", *run]
    if needs.aim in (Aim.RAISE, Aim.LOOK):
        yield from _tried(needs, run)
    elif needs.captured:
        yield from _captured(needs, run, saved)
    else:
        yield from run
        yield from _judged(needs, [row.value for row in needs.rows], saved)
        yield from _ENDINGS[needs.aim].splitlines()


_ENDINGS = {
    Aim.COMPARE: """\
print("the failure is shown" if any(wrong) else "no failure here")
sys.exit(int(any(wrong)))""",
    Aim.DRAW: """\
print(__doc__)
print("the failure is shown" if all(same) else "cannot judge: statistics of other draws need the run")
sys.exit(1 if all(same) else 2)""",
    Aim.RAISE: """\
print(f"no failure here: the call gives {result}")""",
    Aim.LOOK: """\
print(__doc__)
print(f"cannot judge: the call gives {result}")
sys.exit(2)""",
}


def _judged(needs: Needs, tested: list[str], saved: list[str], label: str = "") -> Iterator[str]:
    """Yield the lines that judge the rows, whose values are the expressions `tested`."""
    if not needs.by_default and needs.aim is Aim.COMPARE:
        yield f"# Half of the run's error is the limit: the rule {needs.rule} needs more than this."
    result = "wrong" if needs.aim is Aim.COMPARE else "same"
    shows = [
        f'show("{label}{row.name}", {value}, {_against(needs, row, old)})'
        for row, value, old in zip(needs.rows, tested, saved, strict=True)
    ]
    if len(shows) == 1:
        yield f"{result} = [{shows[0]}]"
    else:
        yield from (f"{result} = [", *(f"    {show}," for show in shows), "]")


def _against(needs: Needs, row: FailingOutput, saved: str) -> str:
    """Return the expression that a row is compared with: the bench, or the draws that the run judged."""
    if needs.aim is Aim.DRAW:
        return saved
    limit = "np.inf" if row.limit == float("inf") else f"{row.limit:.6g}"
    return f'load("{row.file("bench")}"), {limit}'


def _captured(needs: Needs, run: list[str], saved: list[str]) -> Iterator[str]:
    """Yield the lines that judge captured results by the saved pair, and print the result of this
    machine."""
    yield "# The dump's results are judged from the saved pair; gradients are not made again here."
    yield from _judged(needs, saved, saved, "captured ")
    if needs.runs_call:
        yield "# What this machine makes of the call is only printed."
        yield from run
        yield from (
            f'show("{row.name}", {row.value}, {_against(needs, row, old)})'
            for row, old in zip(needs.rows, saved, strict=True)
            if row.direction == "forward"
        )
    else:
        yield f"# The call: {needs.call}"
    yield from _ENDINGS[needs.aim].splitlines()


def _tried(needs: Needs, run: list[str]) -> Iterator[str]:
    """Yield a call with nothing to compare with."""
    yield "try:"
    yield from textwrap.indent("\n".join(run), "    ").splitlines()
    yield f"    result = str({'grads' if needs.cotangents else 'out'})"
    yield "except Exception as error:"
    yield '    print(f"the call raises {type(error).__name__}: {error}")'
    yield "    sys.exit(1)"
    yield from _ENDINGS[needs.aim].splitlines()
