"""One call under default kernels and under plain ones: which side is wrong, and which switch does it.

Comes in: `Inputs`, a checker and a board of switches. Goes out: a `Contrast`. Called by `commands.naive.job`.

A side is wrong by `auto` against the float64 bench: its error is larger than rounding explains. The bench is
computed under plain kernels, too, so that a wrong fast kernel of float64 cannot vouch for itself. Where the
sides differ in verdict, or equal runs in bits, switches are turned one at a time, then in sets.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import comb
from typing import TYPE_CHECKING

from ray_precheck.check.attempt import Measured
from ray_precheck.check.checker import Checker
from ray_precheck.check.inputs import Inputs
from ray_precheck.check.judge import Judged
from ray_precheck.commands.naive.elsewhere import PlainProcesses
from ray_precheck.commands.naive.runs import CallRuns, first_unlike
from ray_precheck.commands.naive.units import OutputContrast, contrasted
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.switches import SwitchBoard
from ray_precheck.schema.result import Verdict, call_verdict
from ray_precheck.searching.search import smallest_set

if TYPE_CHECKING:
    from ray_precheck.dump.tensors import TensorFiles

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
        if sides.is_any_wrong:
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

    @property
    def is_any_wrong(self) -> bool:
        return self.default_is_wrong or self.naive_is_wrong


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
