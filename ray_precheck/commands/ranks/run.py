"""A check of the ranks of one run against each other, from its configuration to its report.

Comes in: a `RanksConfig`. Goes out: a `RankChecks`. Called by the command line, by programs that import the
package, and by `locate` and `diagnose`, which run it as a part. Each dump is a piece of the job
`commands.ranks.job`, of which a worker makes a summary; what ranks tell of each other is said at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_precheck.commands.ranks.options import RanksConfig
from ray_precheck.running.run import RunSession
from ray_precheck.schema.result import Verdict
from ray_precheck.store.tables import RunFiles
from ray_precheck.trace.ranks.nouns import RankFinding, RankLayout


@dataclass(frozen=True, slots=True)
class SummarizedDump:
    """The row of a dump; `records` is None where it could not be read."""

    name: str
    verdict: Verdict
    records: int | None
    message: str


@dataclass(frozen=True, slots=True)
class RankChecks:
    """The report of a check. `completed` is False if it stopped before its end, for the reason `stop_reason`
    or on request; then ranks were not compared. `findings` have the likeliest cause first; `checked` and
    `not_checked` are sentences."""

    files: RunFiles
    dumps: tuple[SummarizedDump, ...]
    findings: tuple[RankFinding, ...]
    layout: RankLayout
    checked: tuple[str, ...]
    not_checked: tuple[str, ...]
    completed: bool
    stop_reason: str = ""
    without: tuple[Path, ...] = ()


def check_ranks(
    dump: str | Path, *, out: str | Path = "./", show_progress: bool = False, **options: Any
) -> RankChecks:
    """Check the ranks of the run that was captured below the folder `dump` against each other.

    `options` are the other fields of `RanksConfig`: `layout`, `devices`, ...

    Raises:
        PrecheckError: the folder or an option is wrong.
    """
    config = RanksConfig(dump=Path(dump), out=Path(out), **options)
    return run_rank_checks(config, show_progress=show_progress)


def run_rank_checks(
    config: RanksConfig,
    *,
    show_progress: bool = True,
    on_files: Callable[[Path], None] = lambda path: None,
    session: RunSession | None = None,
) -> RankChecks:
    """Check the ranks that `config` names against each other.

    A check that is a part of a larger run has the `session` of all parts.

    Raises:
        PrecheckError: a wrong option, no dump, or none that can be read. A check that had to stop is
            reported as not completed, and is resumed with `resume_csv`.
    """
    raise NotImplementedError
