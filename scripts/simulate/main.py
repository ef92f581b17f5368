"""Drive the package's own driver through simulated time, with 8 to 4,096 devices.

    python -m scripts.simulate                                     the table: sizes by workloads
    python -m scripts.simulate --faults                            with slow devices, crashes, lost nodes
    python -m scripts.simulate --cost send_s=200e-6 write_s=0      with the costs of another machine

Workloads: `tiny` calls of 1.2 ms, `typical` ones drawn from a capture's estimates, `20ms`, `heavy`
and `heavy20ms` ones of which 1 % take half of the time; `locate` has 1,000 pairs of dumps. Actual
times are off by 30 %. Everything is drawn by --seed; the time of the driver's own code is measured
while it runs and differs from run to run, unless --free counts it as 0.

Columns: useful device time / (wall x devices), without records that were done twice; wall over its
lower bound, max(total / speed, longest); how much of the wall the driver computes, waits for the
writer, and the writer writes; the driver's microseconds for each record, and the part of its own
code in them. Where the driver computes or waits for the writer over 90 % of the wall, the busier of the
two is the limit; else the devices are.
"""

import argparse
import statistics
import sys
from dataclasses import fields, replace

from scripts.measuring import markdown_table
from scripts.simulate.account import Account, DriverCosts, Faults, Setup
from scripts.simulate.costs import COUNTS, WORKLOADS, draw_workload
from scripts.simulate.world import World

SIZES = (8, 64, 256, 1024, 4096)
BUSY = 0.9
# At least this many records for each device, and at most this many in all where that suffices.
LEAST_PER_DEVICE = 100
MOST_RECORDS = 300_000
WORK_S = 20.0
SAMPLE = 10_000
COLUMNS = (
    *("costs", "devices", "records", "wall s", "efficiency", "wall/bound", "driver", "blocked"),
    *("writer", "us/record", "own", "records/s", "limit"),
)


def row_of(name: str, account: Account) -> list[str]:
    """Return a line of the table; where the driver computes or waits for the writer nearly all the time, the
    busier of the two is the limit, else the devices are."""
    wall_s, records = account.wall_s, account.records
    busiest = "writer" if account.writer_s > account.driver_s else "driver"
    is_busy = account.driver_s + account.blocked_s >= BUSY * wall_s
    shares = (each / wall_s for each in (account.driver_s, account.blocked_s, account.writer_s))
    return [
        *(name, str(account.setup.devices), str(records), f"{wall_s:.2f}"),
        *(f"{account.efficiency:.3f}", f"{wall_s / account.bound_s:.2f}"),
        *(f"{share:.1%}" for share in shares),
        *(f"{each / records * 1e6:.1f}" for each in (account.driver_s, account.own_s)),
        *(f"{records / wall_s:.0f}", busiest if is_busy else "devices"),
    ]


def simulated(name: str, devices: int, costs: DriverCosts, given: argparse.Namespace) -> Account:
    """Run a workload on so many devices."""
    sample = draw_workload(name, SAMPLE, given.seed).actual_s
    wanted = round(given.work_s * devices / statistics.mean(sample))
    least = LEAST_PER_DEVICE * devices
    count = COUNTS.get(name) or max(least, min(wanted, given.most_records))
    workload = draw_workload(name, count, given.seed)
    faults = Faults()
    if given.faults:
        third_s = workload.total_s / devices / 3
        nodes = max(1, devices // 256) if devices > 8 else 0
        faults = Faults(10, 3.0, 2000, 1.5, third_s, nodes, 5.0, 10.0)
    own_s = 0.0 if given.free else None
    benches = given.benches * devices
    return World(workload, Setup(devices, benches, faults, costs, own_s, given.seed)).run()


def _cost(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    if name not in DriverCosts.__slots__:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(DriverCosts.__slots__)}")
    return name, float(seconds)


def main() -> int:
    """Print the table; returns 1 where a record was not recorded exactly once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--devices", type=int, nargs="+", default=SIZES)
    usual = ["tiny", "typical", "20ms", "heavy20ms"]
    add("--costs", nargs="+", choices=WORKLOADS, default=usual)
    add("--benches", type=int, default=0, help="bench workers for each device")
    add("--faults", action="store_true")
    add("--cost", type=_cost, nargs="+", default=[], metavar="NAME=SECONDS")
    add("--free", action="store_true", help="the driver's own code takes no time")
    add("--work-s", type=float, default=WORK_S, help="for each device, if possible")
    add("--most-records", type=int, default=MOST_RECORDS)
    add("--seed", type=int, default=0)
    given = parser.parse_args()
    costs = replace(DriverCosts(), **dict(given.cost))
    values = ((f.name.removesuffix("_s"), getattr(costs, f.name) * 1e6) for f in fields(costs))
    print("microseconds: " + ", ".join(f"{name} {us:.3g}" for name, us in values))
    rows, is_whole = [], True
    for name in given.costs:
        for devices in given.devices:
            account = simulated(name, devices, costs, given)
            is_whole = is_whole and set(account.recorded) == {1}
            rows.append(row_of(name, account))
            print(*rows[-1], file=sys.stderr, flush=True)
    print(markdown_table(COLUMNS, rows))
    return 0 if is_whole else 1
