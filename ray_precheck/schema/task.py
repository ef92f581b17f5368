"""What is scheduled: tasks, their payload for a worker, and the device slots that run them."""

from dataclasses import dataclass

from ray_precheck.schema.pickling import pickled_by_position

# The kind of a slot that has a processor core for benches and no device.
BENCH = "bench"


@dataclass(frozen=True, slots=True)
class Task:
    """One API call to check: its place in the dump, its name and its expected cost.

    A task has no tensors and no record: the driver may hold a million of them.
    `cost_s` is an estimate in seconds on one CPU core, device and bench together, used only for
    order, batch size and the choice of who does it; `nbytes` are the bytes of its outputs and
    gradients, which a bench elsewhere needs in any case.
    """

    index: int
    name: str
    cost_s: float
    nbytes: int = 0


@pickled_by_position
@dataclass(frozen=True, slots=True)
class TaskPayload:
    """A task on its way to a worker: the raw JSON of its two records, decoded where it is run."""

    index: int
    name: str
    forward: bytes | None
    backward: bytes | None


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """A place where one worker runs: a physical NPU or GPU, or a logical slot of the CPU.

    `node_id` is Ray's node id, `address` the node's address for people, `visible` what the
    visible-devices variable of the worker is set to. `host` is part of the label where devices of
    several machines have the same ids. `core` is the core that it is kept on, by its position among
    those of its machine that may be used; None: any.
    """

    kind: str
    device_id: int
    node_id: str
    address: str
    visible: str
    host: str = ""
    core: int | None = None

    @property
    def label(self) -> str:
        """How the slot is called in messages: `npu:3`, `node-a/npu:3`."""
        name = f"{self.kind}:{self.device_id}"
        return f"{self.host}/{name}" if self.host else name

    @property
    def place(self) -> str:
        """What the slot shares its fate with: a CPU its machine, a device only itself."""
        return self.node_id if self.kind in ("cpu", BENCH) else self.label
