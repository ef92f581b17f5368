"""What the recorders of all frameworks share: which calls have records, their text, and what they show.

Comes in: calls, modules and gradients, from the recorder of a framework. Goes out: their records, in the log
of a step; and, with `--overflow`, a line in `overflow.jsonl` and on stderr about the first birth of NaN or
infinity, which is judged as `overflow_check` judges it, record by record, or an error for the script.
`capture.pytorch.recorder` and `capture.mindspore.recorder` derive from it.
"""

import itertools
import json
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from ray_precheck.capture.account import DarkPlaces
from ray_precheck.capture.recording.arguments import CallNames, GivenNames, shared_field
from ray_precheck.capture.recording.scope import Scope
from ray_precheck.capture.recording.stacks import Stacks, modules_around, place_of, program_frame
from ray_precheck.capture.settings import ALL_RISKS, FULL, RAISE, STRUCTURE, CaptureSettings
from ray_precheck.capture.writing.elements import PlainElements, quoted
from ray_precheck.capture.writing.log import TENSORS, StepLog
from ray_precheck.capture.writing.shared_writer import TensorNotWritten
from ray_precheck.dump.scan import ByteRange
from ray_precheck.dump.tensors import SketchFile
from ray_precheck.errors import OverflowBornError
from ray_precheck.inputs.roles.table import looks_of
from ray_precheck.trace.overflow.births import SUSPICIOUS, Walk
from ray_precheck.trace.overflow.rows import Birth, OverflowFinding
from ray_precheck.trace.side import BACKWARD, entry_of, record_from_json
from ray_precheck.trace.sources import Modules, model_line

_OVERFLOW_LOG = "overflow.jsonl"
_BORN = (Birth.BORN, Birth.CAST)
Lines = Callable[[int], list[str]]
T = TypeVar("T")
_NOTHING: Mapping[str, str] = {}
# Files in this folder are no part of the program that is captured.
_OWN = str(Path(__file__).parents[2])


class CallName(NamedTuple):
    """The prefix and the name of an API, and how it changes its arguments.

    `in_place` says that the first argument is changed; `returns_nothing` that the changed argument is
    recorded as the output; `collective` that the arguments are, too, as they hold what has arrived from other
    ranks. `is_python` is true of a function that torch wrote in Python: it hands on its arguments with the
    defaults filled in. `silent` are the arguments that it may change without a new version: "input.1",
    "kwargs.running_mean".
    """

    prefix: str
    name: str
    in_place: bool = False
    returns_nothing: bool = False
    is_python: bool = False
    silent: frozenset[str] = frozenset()
    collective: bool = False

    @property
    def key(self) -> str:
        """The name without the number of the call."""
        return f"{self.prefix}.{self.name}"

    @classmethod
    def of_region(cls, function: Any) -> "CallName":
        """Return the name of a function that the framework's compiler compiles."""
        label = getattr(function, "__qualname__", "") or type(function).__name__
        return cls("Compiled", label.replace("<locals>.", "").replace(".", "_"))


class SeenCall(NamedTuple):
    """A call of a recorded function: its name, the frame that makes it, what it gets as it is written there,
    and `run`, which makes it."""

    name: CallName
    frame: FrameType
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    run: Callable[[], Any]


class StepRecorder(ABC):
    """Writes the records of calls into the log of a step.

    Where the log cannot be written any more it tells `on_failure` why, and records nothing from then on.
    """

    # Writes values; made by the framework.
    elements: PlainElements
    # Where the framework's own files are, and its method in which each call of a module runs.
    framework_folder: str
    module_call: str
    framework: ClassVar[str]

    def __init__(
        self,
        settings: CaptureSettings,
        folder: Path,
        stacks: Stacks,
        on_failure: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.stopped, self._stopped_by = False, ""
        self.scope = Scope(settings.scope, settings.chosen, settings.risk_level)
        self.records = 0
        # Which parts of records are wanted, which each call asks for.
        has_values, wants = settings.task != STRUCTURE, settings.wants
        self.wants_given = has_values and wants("forward", "input")
        self.wants_output = has_values and wants("forward", "output")
        self.wants_backward = wants("backward")
        self._wants_arrived = has_values and wants("backward", "input")
        self._wants_passed_on = has_values and wants("backward", "output")
        # What ran in this step without a record.
        self.dark = DarkPlaces()
        # What a sentence calls the first of nested modules; the probe knows their names.
        self.module_shown: Callable[[list[Any]], str] = lambda modules: ""
        self._log = _step_log(settings, folder, self.framework, stacks.lines)
        self.folder = folder
        # The fields of the dump's header that are known during the step only.
        self.noted = self._log.noted
        self._stacks = stacks
        self._on_failure = on_failure
        # The key of the record whose values are written.
        self.place = ""
        # What is looked at of the arguments that are written, by their places.
        self._looks = _NOTHING
        # What the model calls its inputs and states, which the probe knows; and the names of arguments, while
        # those of a call are written.
        self.given_names: GivenNames | None = None
        self._names: CallNames | None = None
        # The places of the arguments of a call by the memory in which they lie, while they are written.
        self._memory: dict[int, str] | None = None
        self._counts: dict[str, Iterator[int]] = defaultdict(itertools.count)
        self._modules: list[str] = []
        # What waits for the gradients of calls; it is told when no more will come.
        self._borders: list[Closing] = []
        self.sketches = SketchFile(folder) if settings.sketch else None
        # The calls of regions that may be computed again, by what tells them apart there.
        self._regions: dict[Hashable, list[str]] = {}

    @property
    @abstractmethod
    def tensor_bytes(self) -> int:
        """How many bytes of tensors the step has in files."""

    def number(self, name: str) -> int:
        """Return the number of the next call of that name."""
        return next(self._counts[name])

    def before(
        self,
        key: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType | None = None,
    ) -> str:
        """Return the fields of what a call gets that a frame makes; without a frame tensors have no names."""
        if not self.wants_given:
            return ""
        self.place = key
        self._looks = looks_of(key.rsplit(".", 2)[0], self.framework)
        self._memory = {}
        if self.given_names is not None and frame is not None:
            self._names = self.given_names.around(frame)
        self.look_anew()
        fields = (
            f'"input_args": {self.elements.arguments(args, "input")},'
            f' "input_kwargs": {self.elements.keywords(kwargs, "kwargs")}'
        )
        self._looks, self._memory, self._names = _NOTHING, None, None
        self.look_as_ever()
        return fields

    def look_anew(self) -> None:  # noqa: B027 (only PyTorch writes elements elsewhere)
        """Take note that more is to be said of tensors from now on, as the attributes above have it."""

    def look_as_ever(self) -> None:  # noqa: B027
        """Take note that no more is to be said of tensors than of gradients."""

    def named(self, tensor: Any) -> str:
        """Return the field of the name that the model has for an argument, "" for others."""
        return "" if self._names is None else self._names.field(tensor)

    def look_at(self, place: str) -> str | None:
        """Return what is to be looked at of the values at a place of the call's arguments."""
        looks = self._looks
        return looks.get(place) or looks.get(place.rpartition(".")[0])

    def shared(self, tensor: Any, place: str) -> str:
        """Return the field of an argument that lies in the memory of an earlier one, "" for others."""
        if self._memory is None:
            return ""
        address = self.memory_of(tensor)
        earlier = self._memory.setdefault(address, place)
        return "" if not address or earlier == place else shared_field(earlier)

    @abstractmethod
    def guarded(self, key: str, action: Callable[..., T], *args: Any) -> T | None:
        """Return what an action of the capture gives; a fault in it ends the capture, not the training."""

    @abstractmethod
    def edges(self, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return where the gradients of what a call gets go; [] where none are wanted.

        It is asked before the call, because one in place gives its argument another node.
        """

    @abstractmethod
    def watch(self, key: str, edges: list[Any], output: Any, stack: int | None) -> None:
        """Record the gradients of a call when they have passed through it."""

    def settle(self) -> None:  # noqa: B027 (most frameworks have nothing to wait for)
        """Wait for the operators that were called so far, where a framework does not run them at once."""

    @abstractmethod
    def memory_of(self, tensor: Any) -> int:
        """Return the address of the memory that a tensor lies in, whole or in part; 0 if it has none."""

    def after(self, key: str, output: Any) -> str:
        """Return the fields of what a call gave, which follow those of `before`."""
        if not self.wants_output:
            return ""
        self.place = key
        return f', "output": {self.elements.outputs(output)}'

    def around(self, key: str, arrived: Sequence[Any], passed_on: Sequence[Any]) -> str:
        """Return the fields of the gradients that arrived at the outputs of a call, and that it passed on."""
        self.place = key
        fields = ""
        if self._wants_arrived:
            fields += f', "input": {self.elements.arguments(tuple(arrived), "input")}'
        if self._wants_passed_on:
            fields += f', "output": {self.elements.arguments(tuple(passed_on), "output")}'
        return fields

    def parameters(self, key: str, values: Mapping[str, Any]) -> str:
        """Return the field of a module's own parameters, which follows others."""
        if self.settings.task == STRUCTURE:
            return ""
        self.place = key
        texts = [
            f"{quoted(name)}: {self.elements.one(each, f'parameters.{name}')}"
            for name, each in values.items()
        ]
        return f', "parameters": {{{", ".join(texts)}}}'

    def gradient_of_parameter(self, key: str, name: str, gradient: Any) -> str:
        """Return the field of the gradient of a parameter."""
        if self.settings.task == STRUCTURE:
            return ""
        self.place = key
        return f"{quoted(name)}: [{self.elements.one(gradient, name)}]"

    @property
    def sees_all(self) -> bool:
        """Whether every call of the step is to have a record: else what has none is no dark place."""
        chosen = self.settings
        is_part = chosen.scope or chosen.chosen or chosen.custom_op_namespaces
        return chosen.calls and not is_part and chosen.risk_level == ALL_RISKS

    def dark_header(self) -> dict[str, object] | None:
        """Return the header's field of dark places; None where it would say nothing."""
        return self.dark.header() if self.sees_all or len(self.dark) else None

    def write(self, key: str, fields: str, stack: int | None, parent: str | None) -> None:
        """Write a record, or end the capture. The first field may begin with a comma."""
        try:
            self._log.record(key, fields.removeprefix(", "), stack, parent)
            self.records += 1
            most = self.settings.max_bytes
            if most is not None and self._log.size + self.tensor_bytes >= most:
                self.fail(FULL)
        except OSError as error:
            self.fail_to_write(error)

    def fail_to_write(self, error: OSError) -> None:
        """Record nothing any more, because a line or a tensor's file could not be written."""
        if isinstance(error, TensorNotWritten):
            self.fail(f"the tensor {error.tensor} cannot be written to {self.folder}: {error}")
        else:
            self.fail(f"{self.folder} cannot be written: {error.strerror or error}")

    def note_dark(self, what: str, frame: FrameType | None) -> None:
        """Take note of what ran without a record where a frame is."""
        module, place = self.where(frame)
        self.dark.note(what, module=module, place=place)

    def where(self, frame: FrameType | None) -> tuple[str, str]:
        """Return the module and the line of the program that a frame belongs to."""
        module = self.module_shown(modules_around(frame, self.module_call))
        return module, place_of(frame, self._left_out)

    def program_frame(self, frame: FrameType) -> FrameType:
        """Return the frame of the program that a frame belongs to."""
        return program_frame(frame, self._left_out) or frame

    def modules_at(self, frame: FrameType | None) -> list[str]:
        """Return the modules that a frame runs in, the innermost first."""
        modules = modules_around(frame, self.module_call)
        return [self.module_shown(modules[place:]) for place in range(len(modules))]

    @property
    def _left_out(self) -> tuple[str, str]:
        return self.framework_folder, _OWN

    def recomputed(self, region: Hashable, key: str, *, again: bool) -> str:
        """Return the field that names the call that a region computes again, of several the last; "" when the
        region is computed for the first time."""
        if not again:
            self._regions.setdefault(region, []).append(key)
            return ""
        first = self._regions.get(region)
        return f', "recompute": {quoted(first.pop())}' if first else ""

    def finish(self, cut_short: str = "") -> None:
        """Write what has not come to its end, and turn the log into the dump; where the capture has stopped
        the log stays."""
        for border in self._borders:
            border.close()
        self._borders.clear()
        self.end_tensors()
        if not self.stopped:
            self.guarded("the formats of float32", self.note_float32)
        if self.sketches is not None:
            self.sketches.close() if self.stopped else self.sketches.finish()
        if self.stopped:
            self._log.close(self._stopped_by)
            return
        dark = self.dark_header()
        if dark is not None:
            self.noted["dark"] = dark
        self.stopped = True  # Cells that enclose the end of the step have no record
        self._log.finish(with_construct=self.settings.modules, cut_short=cut_short)

    def end_tensors(self) -> None:  # noqa: B027 (most frameworks have written all by then)
        """Write what is left of tensors at the end of the step."""

    @abstractmethod
    def note_float32(self) -> None:
        """Say in the header in which formats of fewer bits the step computed float32 products."""

    def abandon(self) -> None:
        """Record nothing any more, and close the files as they are."""
        if not self.stopped:
            self.stopped = True
            self._borders.clear()
            if self.sketches is not None:
                self.sketches.close()
            self._log.close()

    def fault(self, key: str, error: Exception) -> None:
        """End the capture by a fault in it."""
        self.fail(
            f"{key} cannot be recorded, {type(error).__name__}: {error}; this is a fault of ray-precheck,"
            " please report it"
        )

    def fail(self, reason: str) -> None:
        """Record nothing any more."""
        if not self.stopped:
            self.stopped, self._stopped_by = True, reason
            self._on_failure(reason)

    @contextmanager
    def inside(self, key: str) -> Iterator[None]:
        """Name a module as the parent of what is recorded within."""
        self._modules.append(key)
        try:
            yield
        finally:
            self._modules.pop()

    @property
    def parent(self) -> str | None:
        """The innermost module that runs."""
        return self._modules[-1] if self._modules else None

    @property
    def backward_parent(self) -> str | None:
        """The same module in the backward pass."""
        return self._modules[-1].replace(".forward.", ".backward.") if self._modules else None

    def stack_of(self, frame: FrameType | None) -> int | None:
        """Return the number of the stack that ends with a frame."""
        return self._stacks.of(frame).number if self.settings.stacks else None


def _step_log(settings: CaptureSettings, folder: Path, framework: str, lines_of: Lines) -> StepLog:
    """Return the log of a step, which watches for births where the settings ask for it."""
    header: dict[str, object] = {
        "task": settings.task,
        "level": settings.level,
        "framework": framework,
        "dump_data_dir": str((folder / TENSORS).absolute()) if settings.saves_tensors else None,
        "layouts": True,  # a tensor without strides was contiguous
    }
    if not settings.overflow:
        return StepLog(folder, header, lines_of)
    return _WatchedLog(settings, folder, header, lines_of)


class _WatchedLog(StepLog):
    """A log that notes the first birth in its records, and raises it where it is to stop the script."""

    def __init__(
        self, settings: CaptureSettings, folder: Path, header: dict[str, object], lines_of: Lines
    ) -> None:
        super().__init__(folder, header, lines_of)
        self._raises = settings.overflow == RAISE
        self._modules = Modules()
        framework = str(header.get("framework", ""))
        self._walk = Walk(framework, self._modules, has_calls=settings.calls)
        self._is_found = False
        self._error: OverflowBornError | None = None

    def record(self, key: str, fields: str, stack: int | None, parent: str | None) -> None:
        """Write the record of a call, and look whether it has borne NaN or infinity.

        Raises:
            OSError: it cannot be written.
        """
        super().record(key, fields, stack, parent)
        if self._is_found:
            return
        raw = f"{{{fields}}}".encode()
        entry = entry_of(key, ByteRange(0, 0))
        self._modules.learn(key, parent)
        if not SUSPICIOUS.search(raw):
            self._walk.saw_backward |= entry.direction == BACKWARD
            return
        before = len(self._walk.followed.findings)
        self._walk.see(entry, record_from_json(raw))
        new = self._walk.followed.findings[before:]
        found = next((each for each in new if each.birth in _BORN), None)
        if found is not None:
            self._is_found = True
            self._note(found, model_line(self._lines_of(stack)) if stack is not None else "")

    def raise_born(self) -> None:
        """Raise the birth that was found, once.

        Raises:
            OverflowBornError: an operator has made NaN or infinity of finite values.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _note(self, found: OverflowFinding, source: str) -> None:
        module = self._modules.of(found.key)
        note = {
            "api": found.key,
            "tensor": found.tensor,
            "kind": found.found.words,
            "birth": found.birth.value,
            "dtype": found.dtype,
            "module": module,
            "source": source,
            "message": found.message,
        }
        with (self.folder / _OVERFLOW_LOG).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(note)}\n")
        where = "; ".join(filter(None, [module and f"in {module}", source]))
        said = f"{found.found.words} in {found.place} ({found.dtype}): {found.message}"
        said += f"; {where}" if where else ""
        print(f"ray-precheck capture: {self.folder}: {said}", file=sys.stderr, flush=True)
        if self._raises:
            self._error = OverflowBornError(f"{said}; the dump up to here is in {self.folder}")


class Closing(Protocol):
    """What waits for gradients until it is closed."""

    def close(self) -> None:
        """Wait for no more."""


class GradientWait(ABC):
    """Waits for the gradients of one call, until each hook was called.

    A backward pass that does not reach all of them leaves it waiting until `close`; a second pass through the
    same graph is not looked at.
    """

    def __init__(self) -> None:
        self._left = 0
        self._seen = False
        self._handles: list[Any] = []

    @abstractmethod
    def hand_over(self) -> None:
        """Hand over what has arrived so far; it is called once."""

    def wait_for(
        self, register: Callable[[Callable[..., None]], Any], take: Callable[..., bool | None]
    ) -> None:
        """Let `take` have what the first call of a hook brings, which `register` puts on, and wait for it.

        Where `take` returns False the hook has brought nothing yet.
        """
        self._left += 1
        self._handles.append(register(_Awaited(self, take)))

    def took(self) -> None:
        """Take note that a hook has brought what it waits for; after the last one it is handed over."""
        self._seen = True
        self._left -= 1
        if not self._left:
            self.hand_over()

    @property
    def is_waiting(self) -> bool:
        """Whether some hooks have brought nothing yet."""
        return self._left > 0

    def close(self) -> None:
        """Hand over what has arrived so far, because no more will come, and remove the hooks."""
        is_some, self._left = self._seen and self._left > 0, 0
        if is_some:
            self.hand_over()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _Awaited:
    """A hook that is waited for. It is no function in a function: each captured call that requires a gradient
    makes some, and what a function has around it are five objects more for the collector."""

    __slots__ = ("_take", "_wait")

    def __init__(self, wait: GradientWait, take: Callable[..., bool | None]) -> None:
        self._wait = wait
        self._take: Callable[..., bool | None] | None = take

    def __call__(self, *gradients: Any) -> None:
        take = self._take
        if take is None or not self._wait.is_waiting or take(*gradients) is False:
            return
        self._take = None
        self._wait.took()
