"""From a dump to tasks.

Comes in: an open dump and the names that are done. Goes out: the tasks that are left, the costly
ones first, and the SKIP results of calls whose name already rules them out. Called by the session.
"""

from collections.abc import Set
from dataclasses import dataclass

from ray_precheck.dump.names import ApiKey, parse_key
from ray_precheck.dump.parse import Dump, DumpCall
from ray_precheck.plan.cost import estimate_cost
from ray_precheck.plan.select import skip_by_name
from ray_precheck.schema.result import TaskResult, skipped
from ray_precheck.schema.task import Task


@dataclass(frozen=True, slots=True)
class Plan:
    """What is left to do: tasks in the order to run them, and results that need no run."""

    tasks: tuple[Task, ...]
    skipped: tuple[TaskResult, ...]


def plan_tasks(dump: Dump, framework: str, done: Set[str]) -> Plan:
    """Plan every call of the dump that is not done, costly ones first, ties in dump order."""
    tasks: list[Task] = []
    skips: list[TaskResult] = []
    for index, call in enumerate(dump.calls):
        if call.name in done:
            continue
        name = parse_key(f"{call.name}.forward")
        reason = _reason(call, name, framework)
        if reason or not isinstance(name, ApiKey):
            skips.append(skipped(index, call.name, reason, call.backward is not None))
            continue
        cost = estimate_cost(name.name, dump.raw(call.forward) or b"", dump.raw(call.backward))
        tasks.append(Task(index, call.name, cost))
    tasks.sort(key=lambda task: (-task.cost_s, task.index))
    return Plan(tuple(tasks), tuple(skips))


def _reason(call: DumpCall, name: object, framework: str) -> str:
    if call.foreign or not isinstance(name, ApiKey):
        return call.foreign
    if call.forward is None:
        return "the dump has a backward record of this call but no forward record"
    return skip_by_name(name.name, framework)
