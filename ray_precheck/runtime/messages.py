"""What goes through the pipe between a check process and the one who started it."""

from dataclasses import dataclass

from ray_precheck.check.settings import CheckSettings
from ray_precheck.schema.casualty import Cause
from ray_precheck.schema.result import TaskResult
from ray_precheck.schema.task import DeviceSlot


@dataclass(frozen=True, slots=True)
class Start:
    """What a process is told first."""

    slot: DeviceSlot
    settings: CheckSettings


@dataclass(frozen=True, slots=True)
class Started:
    """The process is ready, or cannot be: then `failure` says why, and it ends."""

    failure: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one record. Where it broke the process `cause` says how, and the process ends."""

    result: TaskResult
    cause: Cause | None = None
