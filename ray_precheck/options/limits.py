"""The options of time, memory and processes. A group of a command's configuration."""

from dataclasses import dataclass
from typing import ClassVar

from ray_precheck.options.declared import option
from ray_precheck.options.rules import Number

_LONGEST_S = 1e7
_PROCESSES = Number("the count of processes", most=4096)


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """The limits of a record, and the numbers of processes.

    `max_memory_gib` 0 is a share of the machine's memory. `spares` and `bench_workers` None are the
    defaults that their help names.
    """

    section: ClassVar[str] = "time, memory, processes"

    timeout_s: float = option(
        300.0,
        "--timeout",
        help="seconds for a record (default {default})",
        more="A record without an answer by then is an error; costly records have more time. The time"
        " that its threads wait for a processor on a busy machine is not counted",
        type=float,
        metavar="S",
        rule=Number("the time of a record in seconds", 0, _LONGEST_S, whole=False, above=True),
    )
    max_memory_gib: float = option(
        0.0,
        "--max-memory",
        help="memory for the tensors of one record (default: a worker's share of 70 % of the machine's)",
        more="A record whose estimate is larger is SKIP before it allocates; a record that turns out"
        " larger is an error",
        type=float,
        metavar="GIB",
        rule=Number("the memory of a record in GiB", 0, 1e6, whole=False),
    )
    spares: int | None = option(
        None,
        "--spares",
        help="processes that each device keeps ready to replace a broken one (default: 1 on the CPU,"
        " else 0)",
        more="They start after a minute or the first crash. On an accelerator a second process takes"
        " memory of the device",
        type=int,
        metavar="N",
        rule=Number("the count of spare processes", most=_PROCESSES.most),
    )
    bench_workers: int | None = option(
        None,
        "--bench-workers",
        help="processes that compute benches beside the devices' own (default: one for each spare"
        " core of the cluster; 0: none)",
        type=int,
        metavar="N",
        rule=_PROCESSES,
    )
    bench_budget_s: float = option(
        600.0,
        "--bench-budget",
        help="seconds that the bench of a record may take, else it is SKIP (default {default})",
        type=float,
        metavar="S",
        rule=Number("the time of a bench in seconds", 0, _LONGEST_S, whole=False, above=True),
    )
