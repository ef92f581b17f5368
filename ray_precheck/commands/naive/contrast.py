"""One call under default kernels and under plain ones: which side is wrong, and which switch does it.

Comes in: `Inputs`, a checker and a board of switches. Goes out: a `Contrast`. Called by `commands.naive.job`.

A side is wrong by `auto` against the float64 bench: its error is larger than rounding explains. The bench is
computed under plain kernels, too, so that a wrong fast kernel of float64 cannot vouch for itself. Where the
sides differ in verdict, or equal runs in bits, switches are turned one at a time, then in sets.

The runs of one call under any set of switches, here or in another process, and whether they gave the same
bits.

The errors of both sides of a call in units of what rounding explains, and how far the sides are apart. The
unit is the error of the worst honest implementation that `auto` has estimated for this output, root mean
square and largest error each by itself; an error counts by the larger of its two shares.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from ray_precheck.accuracy.metrics import is_measurable
from ray_precheck.accuracy.outputs import same_value
from ray_precheck.accuracy.standards.honest import Distance, distance
from ray_precheck.check.attempt import Measured
from ray_precheck.check.checker import Checker
from ray_precheck.check.inputs import Inputs
from ray_precheck.check.judge import Compared, Judged
from ray_precheck.commands.naive.elsewhere import PlainProcesses, PlainRun
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Leaf
from ray_precheck.frameworks.switches import SwitchBoard
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Verdict, call_verdict
from ray_precheck.schema.values import HostTensor
from ray_precheck.searching.strategy import smallest_set

if TYPE_CHECKING:
    from ray_precheck.dump.tensors import TensorFiles


def first_unlike(one: Measured, other: Measured) -> str:
    """Return where two results differ first, such as `forward.output.0 [1, 2]`; "" where no bit does.

    NaN equals NaN whatever its bits. That one run raised and the other did not is a difference, too.
    """
    mine, theirs = dict(_leaves(one)), dict(_leaves(other))
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        if (name in mine) != (name in theirs):
            return f"{name}, which one of them alone gave"
        found = _unlike(mine[name], theirs[name])
        if found is not None:
            return f"{name}{found}"
    failures = zip_longest((one.error, one.gradient_error), (other.error, other.gradient_error))
    if any((mine is None) != (theirs is None) for mine, theirs in failures):
        return "an error, which one of them alone raised"
    return ""


def _leaves(measured: Measured) -> Iterator[tuple[str, Leaf]]:
    for position, leaf in enumerate(measured.outputs or ()):
        yield f"forward.output.{position}", leaf
    for position, leaf in enumerate(measured.gradients or ()):
        yield f"backward.output.{position}", leaf


def _unlike(one: Leaf, other: Leaf) -> str | None:
    """Return the index of the first difference, "" where the leaves differ as a whole, None for none."""
    if not (isinstance(one, HostTensor) and isinstance(other, HostTensor)):
        return None if same_value(one, other) else ""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return ""
    differs = _differs(one.data, other.data)
    if not differs.any():
        return None
    index = np.unravel_index(int(np.argmax(differs)), one.shape)
    return f" {[int(each) for each in index]}"


def _differs(one: Array, other: Array) -> Array:
    """Return flags, `(N,)` bool, of the elements whose bits differ; `(0,)` where none does."""
    mine, theirs = np.ascontiguousarray(one).reshape(-1), np.ascontiguousarray(other).reshape(-1)
    bits = mine.view(np.uint8), theirs.view(np.uint8)
    if np.array_equal(*bits):
        return np.zeros(0, bool)
    width = mine.itemsize
    flags = (bits[0].reshape(-1, width) != bits[1].reshape(-1, width)).any(axis=1)
    if mine.dtype.kind in "fc":
        flags &= ~(np.isnan(mine) & np.isnan(theirs))
    return np.asarray(flags)


@dataclass(frozen=True, slots=True)
class CallRuns:
    """The runs of a call. `count` is how many equal runs must give the same bits.

    `safer` is the reason for safer inputs, "" for none; `files` are the captured tensors, where the dump's
    folder cannot be read on this machine. `elsewhere` runs calls with switches of the environment.
    """

    checker: Checker
    board: SwitchBoard
    count: int
    elsewhere: PlainProcesses
    inputs: Inputs
    safer: str = ""
    files: "TensorFiles | None" = None

    def run(self, plain: Collection[str]) -> Measured:
        """Run the call once with these switches at their plain side and all others at their default.

        Raises:
            NotCheckable: the process that has these switches of the environment cannot run it.
        """
        environment = self.board.environment(plain)
        if environment:
            wanted = PlainRun(self.inputs.payload, tuple(plain), self.safer, self.files)
            with self.checker.on_device():
                return self.elsewhere.run(environment, wanted)
        with self.board.turned(plain):
            return self.checker.run(self.inputs)

    def unlike(self, plain: Collection[str], first: Measured) -> str:
        """Return where another one of several equal runs differs from the first, "" for none."""
        again = (first_unlike(first, self.run(plain)) for _ in range(self.count - 1))
        return next(filter(None, again), "")

    def judged(self, measured: Measured) -> Judged:
        """Judge results against the bench, which is computed with all switches of this process at their plain
        side.

        Raises:
            NotCheckable: they cannot be judged.
        """
        with self.board.turned(self.board.names):
            return self.checker.judge(self.inputs, measured, is_whole=True)


@dataclass(frozen=True, slots=True)
class OutputContrast:
    """An output, or a gradient, of a call under default and under plain kernels.

    `name` is that of a detail row. `default_error` and `naive_error` are the errors against the bench,
    `difference` the distance of the two, in units of what rounding explains: 0 where honest results are equal
    and so are these, infinite where they are not, or for NaN and infinity at other places; None where it
    could not be measured. `index` is where the worse of the two sides errs most. `message` says why it is an
    error.
    """

    name: str
    dtype: str
    shape: str
    default_error: float | None
    naive_error: float | None
    difference: float | None
    verdict: Verdict
    index: tuple[int, ...] = ()
    message: str = ""


def contrasted(default: Sequence[Compared], naive: Sequence[Compared]) -> list[OutputContrast]:
    """Return a row for each output that either side was judged by, in the order of the default side."""
    others = {row.check.name: row for row in naive}
    mine = {row.check.name: row for row in default}
    names = [*mine, *(name for name in others if name not in mine)]
    return [_contrast(mine.get(name), others.get(name)) for name in names]


def _contrast(default: Compared | None, naive: Compared | None) -> OutputContrast:
    both = [row for row in (default, naive) if row is not None]
    honest = _honest(both)
    difference = None if len(both) < 2 else _difference(both[0].tested, both[1].tested, honest)
    worse = max(
        both, key=lambda row: (row.check.verdict is Verdict.ERROR, _error(row, honest) or 0)
    )
    metrics, errs = worse.check.metrics, bool(_error(worse, honest))
    verdicts = {row.check.verdict for row in both}
    verdict = next(
        (each for each in (Verdict.ERROR, Verdict.PASS) if each in verdicts), Verdict.SKIP
    )
    return OutputContrast(
        worse.check.name,
        worse.check.tested_dtype,
        worse.check.shape,
        None if default is None else _error(default, honest),
        None if naive is None else _error(naive, honest),
        difference,
        verdict,
        metrics.worst_index if metrics is not None and errs else (),
        worse.check.message,
    )


def _honest(rows: Sequence[Compared]) -> Distance:
    """Return the error that rounding explains: the larger of what the standard found for both sides."""
    found = [_estimated(row.check.columns) for row in rows]
    known = [each for each in found if each is not None]
    if known:
        return Distance(max(each.rmse for each in known), max(each.largest for each in known))
    for row in rows:
        if _is_measured(row.tested, row.bench):
            dtype = row.tested.dtype
            return distance(round_to_dtype(row.bench.data, dtype), row.bench.data, dtype)
    return Distance()


def _estimated(columns: Sequence[tuple[str, float | str]]) -> Distance | None:
    cells: Mapping[str, float | str] = dict(columns)
    if "HonestRMSE" not in cells:
        return None
    return Distance(float(cells["HonestRMSE"]), float(cells["HonestMaxAbsErr"]))


def _error(row: Compared, honest: Distance) -> float | None:
    if row.check.verdict is Verdict.SKIP:
        return None
    if not _is_measured(row.tested, row.bench):
        return 0.0 if row.check.verdict is Verdict.PASS else math.inf
    return _units(distance(row.tested.data, row.bench.data, row.tested.dtype), honest)


def _difference(default: object, naive: object, honest: Distance) -> float | None:
    if not isinstance(default, HostTensor) or not isinstance(naive, HostTensor):
        return None
    if (default.dtype, default.shape) != (naive.dtype, naive.shape):
        return math.inf
    if not _is_measured(default, naive):
        return 0.0 if np.array_equal(default.data, naive.data) else math.inf
    return _units(distance(default.data, _wide(naive.data), default.dtype), honest)


def _wide(data: Array) -> Array:
    return data.astype(np.complex128 if data.dtype.kind == "c" else np.float64)


def _is_measured(tested: object, other: object) -> bool:
    """Return whether two leaves are tensors of floats of one shape."""
    if not isinstance(tested, HostTensor) or not isinstance(other, HostTensor):
        return False
    kinds = {tested.data.dtype.kind, other.data.dtype.kind}
    return is_measurable(tested.dtype) and kinds <= {"f", "c"} and tested.shape == other.shape


def _units(error: Distance, honest: Distance) -> float:
    if error.strange:
        return math.inf
    pairs = ((error.rmse, honest.rmse), (error.largest, honest.largest))
    return max(own / theirs if theirs else (math.inf if own else 0.0) for own, theirs in pairs)


DEFAULT, NAIVE, BOTH = "default", "naive", "both"
# How likely luck may be where it would explain that a race ended with switches, and the rounds to show it in.
_LUCK = 1e-3
_MOST_ROUNDS = 300
# By whether the default side is wrong, and the naive one.
_WRONG = {
    (False, False): "",
    (True, False): DEFAULT,
    (False, True): NAIVE,
    (True, True): BOTH,
}


@dataclass(frozen=True, slots=True)
class Contrast:
    """What was found of a call.

    `wrong` is the side that errs: "default", "naive", "both", "" for none. `switches` are the names of the
    switches that make the difference, () where there is none or it is not known. `unlike` is the place where
    equal runs under default kernels differed, "" where they did not. `said` are sentences for the Message.
    """

    verdict: Verdict
    outputs: tuple[OutputContrast, ...] = ()
    wrong: str = ""
    switches: tuple[str, ...] = ()
    unlike: str = ""
    said: tuple[str, ...] = ()

    @property
    def worst(self) -> OutputContrast | None:
        """The output with the largest error, one in error before all others."""
        return max(self.outputs, key=_badness, default=None)


def _badness(output: OutputContrast) -> tuple[bool, float]:
    errors = (output.default_error, output.naive_error, output.difference)
    return output.verdict is Verdict.ERROR, max(each or 0.0 for each in errors)


class _TooRare(Exception):
    """Too few of many equal runs differed to tell luck from what a switch does."""


class Contraster:
    """Contrasts calls; `count` is how many equal runs of each must give the same bits."""

    def __init__(
        self, checker: Checker, board: SwitchBoard, elsewhere: PlainProcesses, count: int
    ) -> None:
        self.checker = checker
        self._make = partial(CallRuns, checker, board, count, elsewhere)

    def contrast(
        self, inputs: Inputs, safer: str = "", *, files: "TensorFiles | None" = None
    ) -> Contrast:
        """Run a call under default and plain kernels and judge both; see `CallRuns`.

        Raises:
            NotCheckable: neither side can be judged.
        """
        return _Contrasting(self._make(inputs, safer, files)).contrast()


@dataclass(frozen=True, slots=True)
class _Contrasting:
    """The contrast of one call."""

    runs: CallRuns

    def contrast(self) -> Contrast:
        runs = self.runs
        default = runs.run(())
        unlike = runs.unlike((), default)
        if runs.inputs.is_random:
            return _of_random(default, unlike, runs.count)
        judged = runs.judged(default)
        naive: Measured | None = None
        other: Judged | None = None
        reason = ""
        try:
            naive = runs.run(runs.board.names)
            other = judged if not first_unlike(default, naive) else runs.judged(naive)
        except NotCheckable as error:
            reason = f"under plain kernels it cannot be judged: {error}"
        found = self._concluded(_Sides(default, naive, judged, other, unlike))
        return replace(found, said=(*found.said, *filter(None, [reason])))

    def _concluded(self, sides: "_Sides") -> Contrast:
        judged, naive = sides.default_judged, sides.naive_judged
        outputs = tuple(contrasted(judged.rows, () if naive is None else naive.rows))
        wrong = _WRONG[sides.default_is_wrong, sides.naive_is_wrong]
        guilty = self._guilty(sides, wrong)
        switches = guilty or ()
        verdict = call_verdict(judged.forward.verdict, judged.backward.verdict)
        if wrong or sides.unlike:
            verdict = Verdict.ERROR
        said = (*self._of_wrong(sides, wrong, switches), *self._of_unlike(sides, guilty))
        if guilty is None:
            said = (*said, f"in {_MOST_ROUNDS} runs too few differ to tell which switch ends that")
        if verdict is Verdict.SKIP:
            said = (*said, *judged.forward.messages, *judged.backward.messages)
        return Contrast(verdict, outputs, wrong, switches, sides.unlike, said)

    def _guilty(self, sides: "_Sides", wrong: str) -> tuple[str, ...] | None:
        """Return the switches that make the difference, () for none, None where it is too rare to tell."""
        names = self.runs.board.names
        if sides.naive is None or wrong == BOTH or (wrong and sides.naive_judged is None):
            if not wrong:
                return ()
            right = (name for name in names if self._is_right(sides, [name]))
            return tuple([name] if (name := next(right, "")) else ())
        repeats = not self.runs.unlike(names, sides.naive)
        if not wrong and not (sides.unlike and repeats):
            return ()

        def holds(plain: frozenset[str]) -> bool:
            if wrong and self._errs(sides, plain) != (wrong == NAIVE):
                return False
            if not repeats:
                return True
            # A race that one run has won by luck is lost in another.
            return not self._differs(plain) and (wrong == NAIVE or self._mend(plain))

        try:
            found = smallest_set(names, holds)
        except _TooRare:
            return None
        return tuple(name for name in names if name in found)

    def _is_right(self, sides: "_Sides", plain: Collection[str]) -> bool:
        """Return whether no one of several equal runs with these switches at their plain side is wrong."""
        return not any(self._errs(sides, plain) for _ in range(self.runs.count))

    def _errs(self, sides: "_Sides", plain: Collection[str]) -> bool:
        """Return whether results with these switches at their plain side are wrong, or cannot be judged."""
        try:
            measured = self.runs.run(plain)
            naive = None if sides.naive_judged is None else sides.naive
            if naive is not None and not first_unlike(measured, naive):
                return sides.naive_is_wrong
            if not first_unlike(measured, sides.default):
                return sides.default_is_wrong
            return is_wrong(self.runs.judged(measured))
        except NotCheckable:
            return True

    def _differs(self, plain: Collection[str]) -> bool:
        """Return whether equal runs with these switches at their plain side differ."""
        try:
            return bool(self.runs.unlike(plain, self.runs.run(plain)))
        except NotCheckable:
            return True

    def _mend(self, plain: Collection[str]) -> bool:
        """Return whether these switches at their plain side end what is wrong or unlike, and not luck does.

        A race may be won for a while, as other work of the machine decides, so runs with and without the
        switches take turns. All with them must be equal. Those without that differ from these are d of n;
        that all d fall on one side by luck has the chance C(n, d) / C(2n, d) (Fisher's exact test, one-sided,
        The Design of Experiments, 1935, chapter 2): 6 rounds where each run differs, 10 differences where few
        do.

        Raises:
            _TooRare: so few runs without them differ that luck cannot be told.
        """
        differed = 0
        try:
            mended = self.runs.run(plain)
            for rounds in range(1, _MOST_ROUNDS + 1):
                differed += bool(first_unlike(mended, self.runs.run(())))
                if first_unlike(mended, self.runs.run(plain)):
                    return False
                if comb(rounds, differed) < _LUCK * comb(2 * rounds, differed):
                    return True
        except NotCheckable:
            return False
        raise _TooRare

    def _of_wrong(self, sides: "_Sides", wrong: str, switches: tuple[str, ...]) -> Iterable[str]:
        """Yield the sentences about the side that is wrong."""
        if not wrong:
            return
        judged = sides.naive_judged if wrong == NAIVE else sides.default_judged
        assert judged is not None
        errors = "; ".join([*judged.forward.messages, *judged.backward.messages])
        if wrong == DEFAULT:
            others = " and the plain ones right" if sides.naive_judged else ""
            yield f"the default kernels are wrong{others}: {errors}"
            if switches:
                yield f"it is right without {self._titles(switches)}: {self._advice(switches)}"
        elif wrong == NAIVE:
            yield f"the plain kernels are wrong and the default ones right: {errors}"
            if switches:
                yield f"it is wrong without {self._titles(switches)}"
        elif switches:
            yield f"default and plain kernels are wrong: {errors}"
            yield f"it is right where {self._titles(switches)} alone is off: {self._advice(switches)}"
        else:
            yield f"default and plain kernels are wrong, and no single switch mends it: {errors}"

    def _of_unlike(self, sides: "_Sides", switches: tuple[str, ...] | None) -> Iterable[str]:
        """Yield the sentences about equal runs that differed."""
        if not sides.unlike:
            return
        yield f"{self.runs.count} equal runs differ in bits, first at {sides.unlike}"
        if sides.default_is_wrong or sides.naive_is_wrong:
            return  # The switches are those of the wrong side.
        if switches:
            yield f"they do not without {self._titles(switches)}: {self._advice(switches)}"
        elif switches is not None:
            yield "no switch makes them equal"

    def _titles(self, switches: tuple[str, ...]) -> str:
        return " and ".join(
            each.title for each in self.runs.board.switches if each.name in switches
        )

    def _advice(self, switches: tuple[str, ...]) -> str:
        return "; ".join(each.advice for each in self.runs.board.switches if each.name in switches)


@dataclass(frozen=True, slots=True)
class _Sides:
    """The results of both sides, and what was judged of them; None for what cannot be run or judged."""

    default: Measured
    naive: Measured | None
    default_judged: Judged
    naive_judged: Judged | None
    unlike: str

    @property
    def default_is_wrong(self) -> bool:
        return is_wrong(self.default_judged)

    @property
    def naive_is_wrong(self) -> bool:
        return self.naive_judged is not None and is_wrong(self.naive_judged)


def is_wrong(judged: Judged) -> bool:
    """Return whether a direction of a call is in error."""
    return Verdict.ERROR in (judged.forward.verdict, judged.backward.verdict)


def _of_random(measured: Measured, unlike: str, runs: int) -> Contrast:
    """Return what is found of a random call: whether it repeats itself with its seed restored.

    Raises:
        NotCheckable: it cannot be run.
    """
    failure = measured.error or measured.gradient_error
    if failure is not None:
        raise NotCheckable(f"the device raised: {failure.text}")
    if unlike:
        said = f"it draws random numbers, other ones in each of {runs} runs with the same seed: {unlike}"
        return Contrast(Verdict.SKIP, unlike=unlike, said=(said,))
    said = "it draws random numbers: it repeats itself with its seed restored, its values are not compared"
    return Contrast(Verdict.PASS, said=(said,))
