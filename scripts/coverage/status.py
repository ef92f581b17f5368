"""Whether a name of a framework can be checked, asked of the package itself.

Comes in: a namespace and a name. Goes out: a `Status`. Called by `scripts/coverage` and by the
coverage tests.
"""

import re
from dataclasses import dataclass
from enum import Enum

from ray_precheck.bench.run import Bench
from ray_precheck.errors import NotCheckable
from ray_precheck.operators.refused import refusal
from ray_precheck.plan.drawing import is_random
from ray_precheck.plan.select import skip_by_record
from ray_precheck.schema.record import ApiRecord
from scripts.coverage.names import Namespace, function_names

# What the bench says of a name that could be mapped and is not, unlike one with a reason.
_UNKNOWN = re.compile(r".* has no bench: no operator of torch is known")


class Kind(Enum):
    """What a name can count on."""

    BENCH = "bench"
    STATISTICS = "statistics"
    EXCLUDED = "excluded"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Status:
    """What becomes of the calls of a name, and why."""

    name: str
    kind: Kind
    reason: str = ""

    @property
    def is_covered(self) -> bool:
        return self.kind in (Kind.BENCH, Kind.STATISTICS)


def statuses(namespace: Namespace, bench: Bench) -> list[Status]:
    """Return the status of every function of a namespace, by name."""
    return [_status(namespace, name, bench) for name in function_names(namespace)]


def _status(namespace: Namespace, name: str, bench: Bench) -> Status:
    api = namespace.api(name)
    framework = namespace.framework
    record = ApiRecord(api, (), (), (), framework=framework)
    reason = refusal(api.type_name, framework) or skip_by_record(record)
    if reason:
        return Status(name, Kind.EXCLUDED, reason)
    if is_random(record):
        return Status(name, Kind.STATISTICS, "random: judged by statistics")
    try:
        bench.resolve(api)
    except NotCheckable as missing:
        text = str(missing)
        if _UNKNOWN.match(text):
            return Status(name, Kind.MISSING, "no bench is written for it")
        return Status(name, Kind.EXCLUDED, re.sub(r"^[A-Z]\S+ (has no bench: )?", "", text))
    return Status(name, Kind.BENCH)
