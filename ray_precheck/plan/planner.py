"""From a dump to tasks.

Comes in: an open dump and the names that are done. Goes out: the tasks that are left, the costly
ones first, and the SKIP results of calls whose name already rules them out. Called by the session.
"""

from collections.abc import Set
from dataclasses import dataclass

from ray_precheck.dump.names import ApiKey, parse_key
from ray_precheck.dump.parse import LARGEST_RECORD_BYTES, Dump, DumpCall
from ray_precheck.plan.cost import estimate_cost
from ray_precheck.plan.select import skip_by_name
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.result import TaskResult, skipped
from ray_precheck.schema.task import Task

_MOST_KINDS = 10_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What is left to do: tasks in the order to run them, and results that need no run."""

    tasks: tuple[Task, ...]
    skipped: tuple[TaskResult, ...]


def plan_tasks(dump: Dump, framework: str, done: Set[str]) -> Plan:
    """Plan every call of the dump that is not done, costly ones first, ties in dump order."""
    tasks: list[Task] = []
    skips: list[TaskResult] = []
    kinds: dict[str, tuple[ApiName | None, str]] = {}
    for index, call in enumerate(dump.calls):
        if call.name in done:
            continue
        # Thousands of calls are of one API: its name is read, and judged, once.
        kind = call.name.rpartition(".")[0]
        if kind not in kinds:
            if len(kinds) >= _MOST_KINDS:
                kinds.clear()
            kinds[kind] = _judged(call.name, framework)
        name, reason = kinds[kind]
        reason = call.foreign or _broken(call) or reason
        if reason or name is None:
            skips.append(skipped(index, call.name, reason, call.backward is not None))
            continue
        cost = estimate_cost(name, dump.raw(call.forward) or b"", dump.raw(call.backward))
        tasks.append(Task(index, call.name, cost))
    tasks.sort(key=lambda task: (-task.cost_s, task.index))
    return Plan(tuple(tasks), tuple(skips))


def _judged(call: str, framework: str) -> tuple[ApiName | None, str]:
    """Return the API that a call is of, and why its name rules it out ("" where it does not)."""
    key = parse_key(f"{call}.forward")
    if not isinstance(key, ApiKey):
        return None, key.reason
    return key.name, skip_by_name(key.name, framework)


def _broken(call: DumpCall) -> str:
    for member in (call.forward, call.backward):
        if member is not None and member.end - member.start > LARGEST_RECORD_BYTES:
            return (
                f"a record of it has {member.end - member.start} bytes;"
                f" at most {LARGEST_RECORD_BYTES >> 20} MiB are read"
            )
    if call.forward is None:
        return "the dump has a backward record of this call but no forward record"
    return ""
