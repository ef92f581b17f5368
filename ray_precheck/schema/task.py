"""The nouns of scheduling: tasks, their payloads for workers, and the slots that run them."""

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

    `node_id` is Ray's node id, `address` the node's address for messages, `visible` the value of the
    worker's visible-devices variable. `host` is part of the label if devices of several machines have
    the same ids. `core` is the core to which the worker is pinned, by its position among the usable
    cores of its machine; None: any core.
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
        """The unit that fails together with the slot: the machine of a CPU, a device itself."""
        return self.node_id if self.kind in ("cpu", BENCH) else self.label
