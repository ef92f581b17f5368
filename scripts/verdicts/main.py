"""How good the verdicts are: faults planted in two ways, and honest other implementations.

    python -m scripts.verdicts [--standards auto msprobe ...] [--dtypes float32 ...] [--apis matmul ...]
                        [--seeds 0 1 ...] [--captures DUMP.json ...] [--way tested|kernels|sample]
                        [--write] [-v]

Every call of `verdicts_cases.py`, and of the captures, is run by torch on the CPU in the recorded
dtypes, by all honest implementations of `verdicts_honest.py` that take it (among them MindSpore's
kernels), and with each fault of `verdicts_faults.py`. The float64 bench is never touched.

`--way tested`: the fault is in the tested side alone, as that of an accelerator is, and the CPU's
kernels are right. `--way kernels`: the fault is in a kernel of the CPU, whoever calls it, and the
checker that runs use judges the call (`verdicts_kernels.py`). `--way sample`: a few calls in both
ways, which the tests make anew to see that the document is that of the code.

A fault counts where it moves an output's RMSE or largest error to more than 4 times that of the worst
honest implementation of this output, or makes elements NaN, infinite or unequal that no honest one
does. What is printed: the faults found of those that count, and the honest results that are called an
error, by standard, fault and dtype. `--write` keeps that in ray_precheck/accuracy/VERDICTS.md; -v
names what was missed and what was called an error.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from ray_precheck.accuracy.standards.user_file import STANDARDS
from scripts.measuring import machine
from scripts.verdicts.calls import Call, captured_calls, generated_calls
from scripts.verdicts.cases import DTYPES
from scripts.verdicts.faults import planted
from scripts.verdicts.kernels import KernelCourt
from scripts.verdicts.subject import REFUSALS, Shared
from scripts.verdicts.table import TABLE, as_markdown, keep_section, missed_lines, summary
from scripts.verdicts.tally import Court, Tally

# The sample: of every kind of call one or two, with a seed that no limit was chosen with.
SAMPLE_SEED = 7
SAMPLE_APIS = ("Torch.matmul", "softmax", "layer_norm", "gelu", "Torch.sum", "Torch.exp")
SAMPLE_APIS += ("cross_entropy", "Torch.mul", "embedding", "max_pool2d", "Torch.topk")
SAMPLE_APIS += ("Torch.argmax", "scaled_dot")
SAMPLE_KERNELS = ("Torch.matmul", "softmax", "layer_norm", "Torch.mul", "embedding", "Torch.mean")


@dataclass(frozen=True, slots=True)
class Found:
    """What a run of this script came to: the counts, and how much was run."""

    tally: Tally
    calls: int
    apis: int
    skipped: Sequence[str]
    seconds: float


def examine(
    standards: Sequence[str],
    dtypes: Sequence[str] = DTYPES,
    apis: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    captures: Sequence[Path] = (),
) -> Found:
    """Judge all calls with faults in the tested side alone; `apis` are parts of names."""
    court = Court({name: STANDARDS[name]() for name in standards})
    shared = _shared()

    def judge(call: Call) -> None:
        run = call.run(shared[call.framework])
        run.bench, run.native  # noqa: B018
        court.judge_run(run, call.label, planted(run))

    calls = chain(
        generated_calls(dtypes, apis, seeds),
        *(captured_calls(path, apis, seeds[0]) for path in captures),
    )
    return _judged(court.tally, calls, judge)


def examine_kernels(
    standards: Sequence[str],
    dtypes: Sequence[str] = DTYPES,
    apis: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    captures: Sequence[Path] = (),
) -> Found:
    """Judge all calls with faults in the kernels, whoever calls them."""
    court = KernelCourt({name: STANDARDS[name]() for name in standards}, _shared())
    calls = chain(
        generated_calls(dtypes, apis, seeds),
        generated_calls(dtypes, apis, seeds, as_mindspore=True),
        *(captured_calls(path, apis, seeds[0]) for path in captures),
    )
    return _judged(court.tally, calls, court.judge)


def sample_of_tested() -> Found:
    """Judge the sample with faults in the tested side alone."""
    return examine(["auto", "msprobe"], apis=SAMPLE_APIS, seeds=[SAMPLE_SEED])


def sample_of_kernels() -> Found:
    """Judge the sample with faults in the kernels."""
    dtypes = ["float32", "bfloat16"]
    return examine_kernels(["auto", "benchmark"], dtypes, SAMPLE_KERNELS, [SAMPLE_SEED])


def _shared() -> dict[str, Shared]:
    return {framework: Shared(framework) for framework in ("pytorch", "mindspore")}


def _judged(tally: Tally, calls: Iterable[Call], judge: Callable[[Call], None]) -> Found:
    began = time.process_time()
    names: set[str] = set()
    skipped: list[str] = []
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in calls:
            try:
                judge(call)
            except REFUSALS as reason:
                skipped.append(f"{call.label}: {reason}")
                continue
            count += 1
            names.add(call.payload.name.rpartition(".")[0])
    return Found(tally, count, len(names), skipped, time.process_time() - began)


def main() -> None:
    arguments = _arguments()
    if arguments.way == "sample":
        samples = (sample_of_tested(), sample_of_kernels())
        table = "\n\n".join(summary(found.tally, found.tally.standards) for found in samples)
        print(table)
        if arguments.write:
            command = "python -m scripts.verdicts --way sample --write"
            _keep(arguments, samples, command=command, table=table)
        return
    examine_all = examine if arguments.way == "tested" else examine_kernels
    found = examine_all(
        arguments.standards, arguments.dtypes, arguments.apis, arguments.seeds, arguments.captures
    )
    table = as_markdown(found.tally, arguments.standards)
    print(table)
    print(f"\n{found.calls} calls of {found.apis} APIs in {found.seconds:.0f} s of processor time")
    if arguments.verbose:
        for line in (*found.tally.named(), *(f"not run: {line}" for line in found.skipped)):
            print(line)
    if arguments.write:
        _keep(
            arguments,
            [found],
            command=_command(arguments),
            table=table,
            seeds=", ".join(map(str, arguments.seeds)),
            captures=", ".join(path.parent.name for path in arguments.captures) or "none",
            skipped=len(found.skipped),
            missed=missed_lines(found.tally, "auto"),
        )


def _keep(arguments: argparse.Namespace, samples: Sequence[Found], **told: object) -> None:
    """Write what was found into its section of the document."""
    keep_section(
        arguments.way,
        machine=machine(),
        versions=", ".join(f"{name} {version(name)}" for name in ("torch", "mindspore", "numpy")),
        calls=sum(found.calls for found in samples),
        apis=sum(found.apis for found in samples),
        **told,
    )


def _command(arguments: argparse.Namespace) -> str:
    """Return the command line without the folders of this machine."""
    seeds = " ".join(map(str, arguments.seeds))
    parts = [
        f"python -m scripts.verdicts --way {arguments.way}"
        f" --standards {' '.join(arguments.standards)} --seeds {seeds}"
    ]
    if arguments.captures:
        parts.append("--captures */dump.json")
    return " ".join([*parts, "--write"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--standards", nargs="+", default=list(STANDARDS), choices=list(STANDARDS))
    parser.add_argument(
        "--dtypes",
        nargs="*",
        default=list(DTYPES),
        help="of the generated calls; none: no such calls",
    )
    parser.add_argument("--apis", nargs="+", default=[], help="parts of the names of calls")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--captures", nargs="+", type=Path, default=[], metavar="DUMP.json")
    parser.add_argument(
        "--way",
        default="tested",
        choices=["tested", "kernels", "sample"],
        help="where faults are planted",
    )
    parser.add_argument("--write", action="store_true", help=f"keep the tables in {TABLE.name}")
    parser.add_argument("-v", "--verbose", action="store_true", help="name misses and alarms")
    return parser.parse_args()
