"""Lists the calls of a dump, with their costs and the reasons of those that a run would skip.

Comes in: a `RunConfig` and the dumps that -api_info names. Goes out: text, and an exit code. Called by
`run_ut --list`. No Ray is started, no device is opened and no file is made. Only the run itself shows which
calls are skipped because the device lacks a kernel.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ray_precheck.accuracy.standards.base import Standard
from ray_precheck.accuracy.standards.user_file import load_standard
from ray_precheck.bench.checkable import is_random, skip_by_record
from ray_precheck.bench.declared import read_bench_modules
from ray_precheck.bench.run import References
from ray_precheck.check.decode import needed_bytes
from ray_precheck.commands.precheck.closing import shown_name, shown_text
from ray_precheck.dump.decode import decode_record
from ray_precheck.dump.folders import FoundDumps
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.errors import NotCheckable, PrecheckError
from ray_precheck.frameworks.mindtorch.paths import prefer_native
from ray_precheck.options.commands import NOTHING_CHECKED, PASSED, note
from ray_precheck.replay.config import RunConfig
from ray_precheck.replay.planner import plan_tasks
from ray_precheck.replay.selected import framework_of, tests_captured
from ray_precheck.replay.selection import select_calls, selection_of
from ray_precheck.running.run import resumed_table
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.task import Task
from ray_precheck.store.resume import load_done
from ray_precheck.store.settings import load_settings
from ray_precheck.store.tables import API_TABLES, run_files

FindBench = Callable[[ApiName], object]


@dataclass(frozen=True, slots=True)
class ListedCall:
    """A call of a dump.

    `cost_s` is its estimated cost, device and bench together, in seconds on one CPU core. `reason` says
    why it would not be checked, "" if it would. `is_done`: its row is there already.
    """

    name: str
    directions: str
    cost_s: float = 0.0
    reason: str = ""
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The calls of a dump that are selected, in its order; made as they are asked for.

    `total` counts all calls of the dump. `bench` is the version of torch that was asked for benches, ""
    where torch is not installed here.
    """

    framework: str
    task: str
    total: int
    selected: int
    bench: str
    warnings: list[str]
    calls: Iterator[ListedCall]


@contextmanager
def list_calls(config: RunConfig, *, demands: bool = True) -> Iterator[Listing]:
    """Yield the listing of a dump, which is open until the block ends.

    With `demands` names that the user asked for must be in this dump, as in a run over a single dump.

    Raises:
        PrecheckError: an option or the dump is wrong; devices are not looked at.
    """
    config.validate()
    standard = load_standard(config.standard)
    with open_dump(config.dump) as dump:
        total = len(dump.calls)
        warnings = select_calls(dump, selection_of(config), standard if demands else None)
        framework = dump.framework = framework_of(config, dump)
        tests_captured(config, dump)
        find_bench, version = _bench(config, framework)
        yield Listing(
            framework,
            dump.task,
            total,
            len(dump.calls),
            version,
            warnings,
            _listed(config, dump, framework, standard, find_bench),
        )


def _bench(config: RunConfig, framework: str) -> tuple[FindBench | None, str]:
    """Return how benches are found and the version of torch, None and "" where torch is not installed."""
    prefer_native()
    try:
        # Imported here, as it loads torch.
        from ray_precheck.bench.run import Bench
    except ModuleNotFoundError:
        return None, ""
    bench = Bench(framework, References(framework, read_bench_modules(config.bench_modules)))
    return bench.resolve, bench.version


def _listed(
    config: RunConfig,
    dump: Dump,
    framework: str,
    standard: Standard,
    find_bench: FindBench | None,
) -> Iterator[ListedCall]:
    done = _done(config, dump)
    plan = plan_tasks(dump, framework, done, filter_alike=config.filter_alike)
    tasks = {task.index: task for task in plan.tasks}
    reasons = {result.index: result.message for result in plan.skipped}
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit_bytes = config.memory_limit_bytes(machine_bytes)
    for index, call in enumerate(dump.calls):
        directions = "forward, backward" if call.backward is not None else "forward"
        task = tasks.get(index)
        if task is None:
            yield ListedCall(
                call.name, directions, reason=reasons.get(index, ""), is_done=call.name in done
            )
            continue
        reason = _reason(dump, framework, task, standard, limit_bytes, find_bench)
        yield ListedCall(call.name, directions, 0.0 if reason else task.cost_s, reason)


def _done(config: RunConfig, dump: Dump) -> set[str]:
    """Return the names that need not be done again; the files stay as they are."""
    if config.resume_csv is None:
        return set()
    resumed = resumed_table(config.resume_csv, API_TABLES)
    files = run_files(resumed)
    names = {call.name for call in dump.calls}
    return load_done(files, names, load_settings(files.settings), config.retry)


def _reason(
    dump: Dump,
    framework: str,
    task: Task,
    standard: Standard,
    limit_bytes: int,
    find_bench: FindBench | None,
) -> str:
    """Return why a call would be a SKIP row, "" where that is not known before it runs.

    In the order of the checker, `check.checker`.
    """
    payload = dump.payload(task)
    try:
        record = decode_record(payload.name, payload.forward, payload.backward, framework)
        reason = skip_by_record(record)
        needed = needed_bytes(record, with_implementations=standard.name != "msprobe")
        if reason:
            return reason
        if needed > limit_bytes:
            return (
                f"it needs about {needed / 2**30:.3g} GiB of memory, more than the"
                f" {limit_bytes / 2**30:.3g} GiB that a worker may take (--max-memory)"
            )
        if find_bench is not None and not is_random(record):
            find_bench(record.name)
    except NotCheckable as error:
        return str(error)
    return ""


def print_calls(config: RunConfig, found: FoundDumps) -> int:
    """Print the calls of each dump; 4 where none would be checked and none is done already.

    Raises:
        PrecheckError: as the run would raise, for a single dump.
    """
    checked = 0
    for each in found.dumps:
        own = replace(config, dump=each.path)
        if not found.is_many:
            return PASSED if _print_dump(own, demands=True) else NOTHING_CHECKED
        if own.resume_csv is not None:
            own = _of_rank(own, own.resume_csv / each.place)
        print(f"{each.label}:")
        try:
            checked += _print_dump(own, demands=False)
        except PrecheckError as error:
            print(f"not checked: {error}")
        print()
    return PASSED if checked else NOTHING_CHECKED


def _of_rank(config: RunConfig, folder: Path) -> RunConfig:
    """Return the configuration that goes on in the folder of a rank, where there is something."""
    if any(folder.glob("accuracy_checking_result_*.csv")):
        return replace(config, resume_csv=folder)
    return replace(config, resume_csv=None, retry=(), force=False)


def _print_dump(config: RunConfig, *, demands: bool) -> int:
    """Print the calls of one dump; return how many would be checked, or are done already."""
    checked = skipped = done = 0
    cost_s = 0.0
    with list_calls(config, demands=demands) as listing:
        for warning in listing.warnings:
            note(f"warning: {warning}")
        for call in listing.calls:
            if call.is_done:
                done += 1
                print(f"  {shown_name(call.name)}  done already")
            elif call.reason:
                skipped += 1
                print(f"  {shown_name(call.name)}  SKIP: {shown_text(call.reason)}")
            else:
                checked += 1
                cost_s += call.cost_s
                print(f"  {shown_name(call.name)}  {call.directions}, about {call.cost_s:.3g} s")
    left_out = listing.total - listing.selected
    parts = [
        f"{checked} of {listing.total} calls would be checked, about {cost_s:.3g} s on one CPU core",
        f"{skipped} would be SKIP" if skipped else "",
        f"{done} are done already" if done else "",
        f"{left_out} are not selected" if left_out else "",
    ]
    print("; ".join(filter(None, parts)))
    benches = f"benches as torch {listing.bench} has them; " if listing.bench else ""
    print(
        f"({listing.framework}, task {listing.task}; {benches}the run alone shows which kernels the"
        " device lacks)"
    )
    if not listing.bench:
        note("torch is not installed here: calls without a bench are listed as checked")
    return checked + done
