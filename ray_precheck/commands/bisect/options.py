"""The options that all targets of `bisect` share, and those of targets that are models."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.options.declared import Number, OneOf, Takes, option
from ray_precheck.options.shared import CoreJobOptions, OutFolderOptions

# What is looked for: a wrong result, or trials that end without one.
WRONG, RAISE = "wrong", "raise"
HALVES, HITS = "halves", "hits"
METRICS = ("max", "mean", "rms", "cosine", "abs")


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """How it is searched. `trials` and `minutes` 0 are no limit, `repeats` 0 is as many as are needed."""

    section: ClassVar[str] = "how it is searched"

    order: str = option(
        HALVES,
        "--order",
        help="{choices} (default: {default}): what is switched off first",
        more="`halves` halves the switches; `hits` switches those off one by one that did something by the"
        " log, and halves them where no single one suffices",
        rule=OneOf((HALVES, HITS)),
        rows="order",
    )
    fail_on: str = option(
        WRONG,
        "--fail-on",
        help="{choices} (default: {default}): what a trial that failed is",
        more="With `wrong` a trial that raised, crashed or hung is UNRESOLVED; with `raise` it is what is"
        " looked for, and every other one is PASS",
        rule=OneOf((WRONG, RAISE)),
        rows="fail on",
    )
    trials: int = option(
        0,
        "--trials",
        help="at most so many trials (default: no limit)",
        more="Then the best set so far is given, with what is not known",
        type=int,
        metavar="N",
        rule=Number("the count of trials", 0, 1e6),
    )
    minutes: float = option(
        0.0,
        "--minutes",
        help="at most so many minutes (default: no limit)",
        type=float,
        metavar="M",
        rule=Number("the time in minutes", 0, 1e5, whole=False),
    )
    repeats: int = option(
        0,
        "--repeats",
        help="how often an end is tried before a rung is called right or wrong (default: 6, or 1 where two"
        " runs gave the same bits: then nothing is tried twice)",
        type=int,
        metavar="N",
        rule=Number("the count of equal trials", 0, 100),
        rows="repeats",
    )
    confidence: float = option(
        0.995,
        "--confidence",
        help="of each decision, where equal trials disagree (default {default})",
        type=float,
        metavar="P",
        rule=Number("the confidence of a decision", 0.5, 0.999999, whole=False),
        rows="confidence",
    )
    dry_run: bool = option(
        False,
        "--dry-run",
        help="list the rungs and their switches, and try none",
        takes=Takes.NOTHING,
    )


@dataclass(frozen=True)
class BisectConfig(TrialOptions, OutFolderOptions, CoreJobOptions):
    """The settings of a search."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model's outputs are judged, and where its framework lives."""

    section: ClassVar[str] = "what is right"

    golden: Path | None = option(
        None,
        "--golden",
        help="the right outputs, an .npz file (default: those of the model with everything off)",
        metavar="FILE",
        becomes=Path,
        rows="golden",
    )
    metric: str = option(
        "",
        "--metric",
        help="{choices}: how far an output is from the golden one (default: max, in units of what honest"
        " runs differ by)",
        more="`max`, `mean` and `rms` are relative to the golden output, `abs` is not, `cosine` is 1 less the"
        " cosine",
        rule=OneOf(METRICS, may_be_empty=True),
        rows="metric",
    )
    tolerance: float | None = option(
        None,
        "--tolerance",
        help="above this a trial is wrong (default 1, in those units; with --metric give a number)",
        type=float,
        metavar="D",
        rule=Number("the tolerance", 0, whole=False),
        rows="tolerance",
    )
    check: tuple[str, ...] = option(
        (),
        "--check",
        help="a command that judges the outputs instead: exit code 0 right, 125 cannot tell, else wrong",
        more="It finds them in the .npz files $BISECT_OUTPUTS and $BISECT_GOLDEN",
        metavar="CMD",
        becomes=_words,
        rows="check",
    )
    python: str = option(
        "",
        "--python",
        help="the interpreter in which the framework lives (default: this one)",
        metavar="PATH",
    )


@dataclass(frozen=True)
class ModelConfig(ModelOptions, BisectConfig):
    """The settings of a search whose trials run a model."""
