"""The options of inputs, bench and standard. A group of a command's configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.accuracy.standards import STANDARD_NAMES
from ray_precheck.inputs import DISTRIBUTIONS, RECORDED
from ray_precheck.options.declared import Number, OneOf, Takes, option

TESTED = ("auto", "device", "dump")
# The names of files for --standard end so; everything else is a standard's own name.
STANDARD_FILES = (".yaml", ".yml")
AUTO, ALWAYS, NEVER = "auto", "on", "off"
EXACT, SAMPLED = "exact", "sampled"


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The inputs, the tested results, the bench and the standard."""

    section: ClassVar[str] = "what is compared with what"

    seed: int = option(
        0,
        "--seed",
        help="seed of the generated inputs (default {default})",
        type=int,
        rule=Number("the seed of the inputs", most=2**63 - 1),
        rows="seed",
    )
    tested: str = option(
        "auto",
        "--tested",
        help="whose results; {choices} (default: auto: captured in real mode)",
        more="`device`: the device's own, `dump`: those in the dump, `auto`: the captured ones where"
        " the dump has tensors",
        rule=OneOf(TESTED),
        rows="tested",
    )
    # The settings hold the rules of a file, not its name.
    standard: str = option(
        "msprobe",
        "--standard",
        help="the rule of the verdicts, {choices} (default: {default}), or a YAML file",
        more="`auto` is recommended; [standards](../accuracy/README.md#standards)",
        metavar="RULE",
        rule=OneOf(tuple(STANDARD_NAMES), STANDARD_FILES, "a YAML file (NAME.yaml)"),
        rows="standard",
    )
    bench: str = option(
        AUTO,
        "--bench",
        help="how large products are computed for `--standard auto`; {choices} (default: {default})",
        more="`auto`: a sample and random sums of all results, and the whole where these leave a doubt;"
        " `exact`: always the whole; `sampled`: only where there are NaN or infinities. Other standards have"
        " `exact`",
        rule=OneOf((AUTO, EXACT, SAMPLED)),
        rows="bench",
    )
    distribution: str = option(
        RECORDED,
        "--distribution",
        help="of generated inputs; {choices} (default: recorded: mean, norm, meaning)",
        more="`recorded`: with the mean, norm and extremes of the record, and valid for the meaning of"
        " the argument; `uniform`: between the extremes",
        rule=OneOf(DISTRIBUTIONS),
        rows="distribution",
    )
    layouts: str = option(
        AUTO,
        "--layouts",
        help="run each call again with transposed inputs: on (as without a word), off, auto (default)",
        more="A kernel may be wrong for some strides alone. `auto`: with the standard `auto`, cheap calls of"
        " a dump that does not say how its tensors lay in memory (captures of this package do): the first"
        " call of each operator, and some later ones",
        takes=Takes.PERHAPS,
        metavar="WHEN",
        becomes=lambda word: word or ALWAYS,
        rule=OneOf((AUTO, ALWAYS, NEVER)),
        rows="layouts",
    )
    # The session adds a digest of the files to the settings.
    bench_modules: tuple[str | Path, ...] = option(
        (),
        "--bench-module",
        help="a Python file with benches of your own, @ray_precheck.reference(...); repeatable",
        more="[How](../bench/README.md#benches-of-your-own)",
        takes=Takes.EACH,
        metavar="FILE",
    )
