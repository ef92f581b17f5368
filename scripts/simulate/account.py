"""The setup of a simulated run, with its faults, and the account of what came of it.

Made by `simulate.main` and `simulate.world`; the actors read the setup and fill the account.
"""

from dataclasses import dataclass, field

from scripts.simulate.ray import MEASURED, DriverCosts


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
