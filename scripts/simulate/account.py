"""The setup of a simulated run, with its costs and faults, and the account of what came of it.

Made by `simulate.main` and `simulate.world`; the actors read the setup and fill the account.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DriverCosts:
    """Seconds of the driver for each message and record, of Ray for the way, and of the writer.

    A step of the driver waits once, over all pending calls, then gets, schedules, and sends. The defaults are
    rounded medians of four measurements of Ray's calls (2026-11, by a script that is no longer here) on 2
    cores of an Intel Xeon (2.5 GHz) with a load of 4 to 5, Python 3.11, Ray 2.60. What the driver does with
    messages is its thread's own time; waits and writes are by the clock, and the two fsyncs of a write on a
    virtual disk that nobody else used took 0.2 ms, 5 ms and more while others did.
    """

    wait_s: float = 200e-6
    wait_per_call_s: float = 1.2e-6
    get_s: float = 55e-6
    get_per_record_s: float = 2.9e-6
    send_s: float = 120e-6
    send_per_record_s: float = 7.8e-6
    record_s: float = 105e-6
    record_per_record_s: float = 2e-6
    acknowledge_s: float = 34e-6
    one_way_s: float = 500e-6
    write_s: float = 0.2e-3
    write_per_record_s: float = 8e-6


MEASURED = DriverCosts()
FREE = DriverCosts(**dict.fromkeys(DriverCosts.__slots__, 0.0))


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a run. Zero is never.

    One device in `slow_every` is `slow_factor` times as slow; one record in `crash_every` kills its
    process, which takes `restart_s` to replace. At `loss_at_s` the devices of `lost_nodes` machines
    are gone, which Ray notices `notice_s` later; machines of the same names join after `return_s`.
    """

    slow_every: int = 0
    slow_factor: float = 3.0
    crash_every: int = 0
    restart_s: float = 1.5
    loss_at_s: float = 0.0
    lost_nodes: int = 0
    notice_s: float = 5.0
    return_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Setup:
    """The simulated cluster. `own_s`: the time of the driver's own code, None to measure it."""

    devices: int
    benches: int = 0
    faults: Faults = Faults()
    costs: DriverCosts = MEASURED
    own_s: float | None = None
    seed: int = 0


@dataclass(slots=True)
class Account:
    """The outcome of a run, in seconds.

    `useful_s` is the time of workers whose records counted, `away_s` the time that they were gone.
    `driver_s` is the time that the driver computed, Ray's part included; `own_s` is the part of its
    own code. `blocked_s` is how long the driver waited for the writer alone.
    """

    setup: Setup
    records: int
    bound_s: float
    wall_s: float = 0.0
    useful_s: float = 0.0
    away_s: float = 0.0
    driver_s: float = 0.0
    own_s: float = 0.0
    blocked_s: float = 0.0
    writer_s: float = 0.0
    steps: int = 0
    messages: int = 0
    batches: int = 0
    recorded: list[int] = field(default_factory=list)

    @property
    def efficiency(self) -> float:
        """Useful time / (wall x workers that were there)."""
        workers = self.setup.devices + self.setup.benches
        return self.useful_s / (self.wall_s * workers - self.away_s)
