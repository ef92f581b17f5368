"""Drive the package's own driver through simulated time, with 8 to 4,096 devices.

    python -m scripts.simulate                                     the table: sizes by workloads
    python -m scripts.simulate --faults                            with slow devices, crashes, lost nodes
    python -m scripts.simulate --cost send_s=200e-6 write_s=0      with the costs of another machine
    python -m scripts.simulate --target-batch-s 2                  with larger batches
    python -m scripts.simulate --profile 4096                      where the scheduler's time goes

Workloads: `tiny` calls of 1.2 ms, `typical` ones drawn from a capture's estimates, `20ms`, `heavy`
and `heavy20ms` ones of which 1 % take half of the time. Actual times are off by 30 %. Everything is
drawn by --seed; the time of the driver's own code is measured while it runs and differs from run to
run, unless --free counts it as 0.

Columns: useful device time / (wall x devices), without records that were done twice; wall over its
lower bound, max(total / speed, longest); how much of the wall the driver computes, waits for the
writer, and the writer writes; the driver's microseconds for each record, and the part of its own
code in them. Where the driver computes or waits for the writer over 90 % of the wall, the busier of the
two is the limit; else the devices are.
"""

import argparse
import cProfile
import pstats
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ray_precheck.runtime.scheduling import task_queue
from scripts.simulate.account import Account, DriverCosts, Faults, Setup
from scripts.simulate.costs import WORKLOADS, draw_workload
from scripts.simulate.world import World

ROOT = Path(__file__).resolve().parents[2]

SIZES = (8, 64, 256, 1024, 4096)
BUSY = 0.9
# At least this many records for each device, and at most this many in all where that suffices.
LEAST_PER_DEVICE = 100
MOST_RECORDS = 300_000
WORK_S = 20.0
SAMPLE = 10_000


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of the table."""

    workload: str
    account: Account

    @property
    def shares(self) -> dict[str, float]:
        """How much of the wall each server is busy."""
        wall_s = self.account.wall_s
        return {"writer": self.account.writer_s / wall_s, "driver": self.account.driver_s / wall_s}

    @property
    def limit(self) -> str:
        """Where the driver computes or waits for the writer nearly all the time, the busier of the
        two; else the devices."""
        taken_s = self.account.driver_s + self.account.blocked_s
        if taken_s < BUSY * self.account.wall_s:
            return "devices"
        return max(self.shares, key=lambda name: self.shares[name])

    def text(self) -> str:
        """Return the line."""
        a = self.account
        return (
            f"{self.workload:10} {a.setup.devices:7} {a.records:8} {a.wall_s:8.2f}"
            f" {a.efficiency:10.3f} {a.wall_s / a.bound_s:10.2f} {self.shares['driver']:7.1%}"
            f" {a.blocked_s / a.wall_s:8.1%} {self.shares['writer']:7.1%}"
            f" {a.driver_s / a.records * 1e6:9.1f} {a.own_s / a.records * 1e6:9.1f}"
            f" {a.records / a.wall_s:9.0f}  {self.limit}"
        )


HEADER = (
    f"{'costs':10} {'devices':>7} {'records':>8} {'wall s':>8} {'efficiency':>10} {'wall/bound':>10}"
    f" {'driver':>7} {'blocked':>8} {'writer':>7} {'us/record':>9} {'own':>9}"
    f" {'records/s':>9}  limit"
)


def main() -> int:
    """Print the table; returns 1 where a record was not recorded exactly once."""
    given = _parser().parse_args()
    task_queue.TARGET_BATCH_S = given.target_batch_s
    task_queue.MAX_BATCH_RECORDS = given.max_batch_records
    costs = replace(DriverCosts(), **dict(given.cost))
    values = ((f.name.removesuffix("_s"), getattr(costs, f.name) * 1e6) for f in fields(costs))
    print("microseconds: " + ", ".join(f"{name} {us:.3g}" for name, us in values))
    if given.profile:
        return _profile(given, costs)
    print(HEADER)
    rows = []
    for name in given.costs:
        for devices in given.devices:
            rows.append(_row(name, devices, costs, given))
            print(rows[-1].text(), flush=True)
    print()
    for name in given.costs:
        print(_saturation(name, [row for row in rows if row.workload == name]))
    return 0 if all(set(row.account.recorded) == {1} for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, nargs="+", default=SIZES)
    parser.add_argument(
        "--costs", nargs="+", choices=WORKLOADS, default=["tiny", "typical", "20ms", "heavy20ms"]
    )
    parser.add_argument("--benches", type=int, default=0, help="bench workers for each device")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--cost", type=_cost, nargs="+", default=[], metavar="NAME=SECONDS")
    parser.add_argument("--free", action="store_true", help="the driver's own code takes no time")
    parser.add_argument("--target-batch-s", type=float, default=task_queue.TARGET_BATCH_S)
    parser.add_argument("--max-batch-records", type=int, default=task_queue.MAX_BATCH_RECORDS)
    parser.add_argument("--work-s", type=float, default=WORK_S, help="for each device, if possible")
    parser.add_argument("--most-records", type=int, default=MOST_RECORDS)
    parser.add_argument("--profile", type=int, metavar="DEVICES")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _cost(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    if name not in DriverCosts.__slots__:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(DriverCosts.__slots__)}")
    return name, float(seconds)


def _row(name: str, devices: int, costs: DriverCosts, given: argparse.Namespace) -> TableRow:
    sample = draw_workload(name, SAMPLE, given.seed).actual_s
    wanted = round(given.work_s * devices / statistics.mean(sample))
    least = LEAST_PER_DEVICE * devices
    workload = draw_workload(name, max(least, min(wanted, given.most_records)), given.seed)
    faults = Faults()
    if given.faults:
        third_s = workload.total_s / devices / 3
        nodes = max(1, devices // 256) if devices > 8 else 0
        faults = Faults(10, 3.0, 2000, 1.5, third_s, nodes, 5.0, 10.0)
    own_s = 0.0 if given.free else None
    benches = given.benches * devices
    setup = Setup(devices, benches, faults, costs, own_s, given.seed)
    return TableRow(name, World(workload, setup).run())


def _saturation(name: str, rows: Sequence[TableRow]) -> str:
    """Say at which simulated size the driver or the writer becomes the limit."""
    row = next((row for row in rows if row.limit != "devices"), None)
    if row is None:
        return f"{name}: the devices are the limit at every size"
    account = row.account
    below = max((r.account.setup.devices for r in rows if r.limit == "devices"), default=0)
    return (
        f"{name}: above {below} and at most {account.setup.devices} devices the {row.limit} becomes"
        f" the limit, at {account.records / account.wall_s:.0f} records/s"
    )


def _profile(given: argparse.Namespace, costs: DriverCosts) -> int:
    """Print the time of the scheduler's functions with this many devices, the costliest first."""
    devices, seed = given.profile, given.seed
    workload = draw_workload(given.costs[0], LEAST_PER_DEVICE * devices, seed)
    world = World(workload, Setup(devices, given.benches * devices, costs=costs, seed=seed))
    profile = cProfile.Profile()
    profile.runcall(world.run)
    stats = pstats.Stats(profile)
    stats.sort_stats("tottime").print_stats("ray_precheck", 20)
    return 0


if __name__ == "__main__":
    sys.exit(main())
