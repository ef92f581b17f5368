"""A check of the ranks of one run against each other, from its configuration to its report.

Comes in: a `RanksConfig`. Goes out: a `RankChecks`. Called by the command line, by programs that import the
package, and by `locate` and `diagnose`, which run it as a part. Each dump is a piece of the job
`commands.ranks.job`, of which a worker makes a summary; what ranks tell of each other is said at the end.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray_precheck.commands.ranks.job import (
    FINDING_COLUMNS,
    KEYS,
    RANK_TABLES,
    SUMMARY,
    RankPayload,
    rank_number,
    ranks_job,
)
from ray_precheck.commands.ranks.options import RanksConfig
from ray_precheck.dump.folders import FoundDumps
from ray_precheck.errors import UsageError
from ray_precheck.formats.conversion import find_captures
from ray_precheck.running.dumps_run import DumpsFeature
from ray_precheck.running.run import RunEnd, RunSession, resumed_table, run_job, session_of_one
from ray_precheck.runtime.places.choice import on_cores
from ray_precheck.schema.result import Verdict, verdict_in
from ray_precheck.store.journal import decoded_rows
from ray_precheck.store.settings import (
    load_settings,
    mark_completed,
)
from ray_precheck.store.tables import (
    RunFiles,
    decode_name,
    encode_name,
    encode_row,
    encode_text,
    header,
    replace_file,
)
from ray_precheck.trace.ranks.checks import check_rank_traces
from ray_precheck.trace.ranks.dumps import OpenDumps
from ray_precheck.trace.ranks.layout import layout_of_axes, parse_layout
from ray_precheck.trace.ranks.nouns import RankFault, RankFinding, RanksOutcome, RankTrace
from ray_precheck.trace.ranks.packing import PackedSummary, Unpacker
from ray_precheck.trace.side import without_collector

# `ranks_layout_{timestamp}.csv`: what is known of the groups, and what was and was not checked.
_SAID_COLUMNS = ("Part", "Sentence")
_NAMED = 3
_GROUP, _CHECKED, _NOT_CHECKED = "group", "checked", "not checked"


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
    or on request; then ranks were not compared. `findings` have the likeliest cause first; `groups`,
    `checked` and `not_checked` are sentences, `layout` the file that has them."""

    files: RunFiles
    dumps: tuple[SummarizedDump, ...]
    findings: tuple[RankFinding, ...]
    groups: tuple[str, ...]
    checked: tuple[str, ...]
    not_checked: tuple[str, ...]
    layout: Path
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
    config.validate()
    config = on_cores(config)
    found = find_captures(config.dump)
    processes = tuple(each.label for each in found.dumps if each.rank.startswith("proc"))
    if processes:
        found = replace(
            found, dumps=tuple(each for each in found.dumps if each.label not in processes)
        )
    if not found.dumps:
        raise UsageError(
            f"{config.dump} has no dumps but those of processes without a rank ({processes[0]}); expected"
            " rank{R}/dump.json: start the program by torchrun, or name the folders rank0, rank1, ..."
        )
    if axes := parse_layout(config.layout):
        layout_of_axes(axes, (rank_number(each.rank) for each in found.dumps))
    resumed = resumed_table(config.resume_csv, RANK_TABLES)
    with session_of_one(config, session, show=show_progress, on_files=on_files) as session:
        if session.goes_on and resumed is None:
            resumed = session.resumed(config.out, RANK_TABLES)
        return run_job(
            _RanksRun(config, found, processes, session), config, session, config.out, resumed
        )


class _RanksRun(DumpsFeature[RankPayload, RankChecks]):
    """The dumps of a folder, each summarized, and their ranks compared."""

    def __init__(
        self,
        config: RanksConfig,
        found: FoundDumps,
        processes: Sequence[str],
        session: RunSession,
    ) -> None:
        job = ranks_job(found.dumps, shared_fs=config.shared_fs, is_alone=not config.joins)
        super().__init__(config, config.dump, found, job, session)
        self._config, self._processes = config, processes

    def report(self, files: RunFiles, end: RunEnd) -> RankChecks:
        """Compare the ranks.

        Raises:
            DumpError: none of the dumps could be read; a new run leaves no file.
        """
        dumps = tuple(_dump_rows(files.result))
        self.require_one(files, end, dumps)
        if end.completed and not end.is_new and _has_findings(files):
            mark_completed(files.settings, files.result, files.details)
            return replace(read_rank_checks(files), completed=True, without=self._found.without)
        outcome: RanksOutcome | None = None
        if end.completed:
            outcome = self._compared(files)
            _write(files, outcome)
            mark_completed(files.settings, files.result, files.details)
        said = _Said() if outcome is None else _said_of(outcome)
        return RankChecks(
            files, dumps, () if outcome is None else outcome.findings, said.groups, said.checked,
            said.not_checked, layout_file(files), end.completed, end.stop_reason,
            self._found.without,
        )  # fmt: skip

    def _compared(self, files: RunFiles) -> RanksOutcome:
        at = {
            (rank_number(each.step), rank_number(each.rank)): each.path
            for each in self._found.dumps
        }
        with without_collector(), closing(OpenDumps(at)) as dumps:
            summaries = list(_summaries(files.details))
            outcome = check_rank_traces(summaries, parse_layout(self._config.layout), dumps)
        if not self._processes:
            return outcome
        names = ", ".join(self._processes[:_NAMED])
        more = ", ..." if len(self._processes) > _NAMED else ""
        said = (
            f"{names}{more}: a folder that is named for a process says no rank, and is not compared"
        )
        return replace(outcome, not_checked=(said, *outcome.not_checked))


def _has_findings(files: RunFiles) -> bool:
    """Return whether the table of details has the findings already, in the place of the summaries: the run
    that is resumed had come so far. The file of the layout is written before."""
    kinds = {cells[2] for cells in decoded_rows(files.details, FINDING_COLUMNS)}
    return layout_file(files).exists() and not kinds & {KEYS, SUMMARY}


def _summaries(path: Path) -> Iterator[RankTrace]:
    """Yield the summaries that stand in a file of details; those of a run that has ended are gone."""
    unpacker = Unpacker()
    keys: dict[str, tuple[str, str]] = {}
    for cells in decoded_rows(path, FINDING_COLUMNS):
        row = dict(zip(FINDING_COLUMNS, cells, strict=True))
        if row["Kind"] == KEYS:
            keys[row["Dump"]] = row["Name"], row["Message"]
        elif row["Kind"] == SUMMARY:
            yield unpacker.summary(PackedSummary(*keys.pop(row["Dump"]), row["Message"]))


@dataclass(frozen=True, slots=True)
class _Said:
    groups: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()


def _said_of(outcome: RanksOutcome) -> _Said:
    groups = tuple(
        f"{each.kind} {', '.join(map(str, each.ranks))}: {each.basis}"
        for each in outcome.layout.groups
    )
    return _Said(groups, outcome.checked, outcome.not_checked)


def layout_file(files: RunFiles) -> Path:
    """Return the file of the groups, and of what was and was not checked."""
    return files.details.with_name(files.details.name.replace("ranks_", "ranks_layout_", 1))


def _write(files: RunFiles, outcome: RanksOutcome) -> None:
    said = _said_of(outcome)
    lines = [
        encode_row([part, encode_text(each)])
        for part, sentences in (
            (_GROUP, said.groups), (_CHECKED, said.checked), (_NOT_CHECKED, said.not_checked),
        )
        for each in sentences
    ]  # fmt: skip
    replace_file(layout_file(files), [header(_SAID_COLUMNS), *lines])
    replace_file(files.details, [header(FINDING_COLUMNS), *map(_finding_row, outcome.findings)])


def _finding_row(each: RankFinding) -> bytes:
    return encode_row([
        str(each.step), each.verdict, each.kind.value, encode_name(each.name), each.ranks,
        encode_text(each.group), encode_text(each.expected), encode_text(each.found), each.rests_on,
        encode_name(each.module), encode_text(each.source), encode_text(each.message),
        encode_name(each.key), encode_name(each.dump),
    ])  # fmt: skip


def read_rank_checks(files: RunFiles) -> RankChecks:
    """Return the report of a check from its files, as far as they go; folders without a dump are not in
    them.

    Raises:
        ResumeError: a file has other columns.
        OSError: a file cannot be read.
    """
    settings = load_settings(files.settings)
    said: dict[str, list[str]] = {_GROUP: [], _CHECKED: [], _NOT_CHECKED: []}
    path = layout_file(files)
    for part, sentence in decoded_rows(path, _SAID_COLUMNS) if path.exists() else ():
        said.setdefault(part, []).append(sentence)
    rows = decoded_rows(files.details, FINDING_COLUMNS) if files.details.exists() else iter(())
    findings = [_finding_in(cells) for cells in rows if cells[2] not in (KEYS, SUMMARY)]
    return RankChecks(
        files, tuple(_dump_rows(files.result)) if files.result.exists() else (), tuple(findings),
        tuple(said[_GROUP]), tuple(said[_CHECKED]), tuple(said[_NOT_CHECKED]), path,
        settings is None or settings.completed is not None,
    )  # fmt: skip


def _finding_in(cells: Sequence[str]) -> RankFinding:
    (
        step,
        verdict,
        kind,
        name,
        ranks,
        group,
        expected,
        found,
        rests,
        module,
        source,
        message,
        key,
        dump,
    ) = cells
    return RankFinding(
        int(step), verdict, RankFault(kind), decode_name(name), ranks, group, expected, found, rests,
        message, decode_name(module), source, decode_name(dump), decode_name(key),
    )  # fmt: skip


def _dump_rows(path: Path) -> Iterator[SummarizedDump]:
    for cells in decoded_rows(path, RANK_TABLES.result):
        name, verdict, records, _, message = cells
        count = int(records) if records.isdigit() else None
        yield SummarizedDump(decode_name(name), verdict_in(verdict), count, message)
