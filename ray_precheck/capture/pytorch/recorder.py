"""The records of one captured step.

Comes in: calls, modules and gradients, while they happen. Goes out: their records, in the step's log. Made
by `probe` for each captured step.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import torch

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.calls import Aside, CallMode, Resharding
from ray_precheck.capture.pytorch.elements import Elements, autocast_field, marks_field
from ray_precheck.capture.pytorch.gradients import (
    MODULE,
    Edge,
    PassedGradients,
    edges_of,
    input_places,
    watch,
)
from ray_precheck.capture.pytorch.randomness import draws, generator_field
from ray_precheck.capture.pytorch.tensors.files import CapturedFiles
from ray_precheck.capture.pytorch.tensors.many import (
    MORE,
    QuickTexts,
    SmallTensors,
    quick_texts,
)
from ray_precheck.capture.pytorch.tensors.memory import Glimpses, SeenTensors
from ray_precheck.capture.pytorch.tensors.sketching import Sketching
from ray_precheck.capture.pytorch.tensors.text import TensorTexts, address_of, tensors_in
from ray_precheck.capture.pytorch.tensors.values import (
    MARK,
    DeviceValues,
    sliced,
    statistics,
    structure,
    values_look,
)
from ray_precheck.capture.recording.arguments import (
    BUFFER,
    PARAMETER,
    Given,
    GivenNames,
    name_field,
    root_of,
    shared_field,
    without_names,
)
from ray_precheck.capture.recording.recorder import CallName, SeenCall, StepRecorder, T
from ray_precheck.capture.recording.stacks import Stacks
from ray_precheck.capture.settings import RAISE, STATISTICS, STRUCTURE, CaptureSettings
from ray_precheck.capture.writing.elements import (
    HAS_NAN,
    NULL,
    index_field,
    mapping,
    quoted,
    statistics_text,
)
from ray_precheck.capture.writing.log import TENSORS
from ray_precheck.capture.writing.shared_writer import SharedWriter, TensorNotWritten
from ray_precheck.foreign import caught_with
from ray_precheck.frameworks.pytorch.switches import KINDS, computed_in, formats_of
from ray_precheck.schema.dtypes import Float32, header_field

_NO_VERSION = -1  # of inference tensors
GivenParts: TypeAlias = tuple[torch.Tensor, int, str, str]  # what a `Given` is made of
# The same tensor requires a gradient in the second run of a checkpointed region only.
_NEEDS_GRADIENT = re.compile(r', "(?:requires_grad": (?:true|false)|data_name": "[^"]*")')


class TorchRecorder(StepRecorder):
    """Writes the records of a step of a PyTorch program."""

    framework_folder = str(Path(torch.__file__).parent)
    module_call = "_call_impl"
    framework = "pytorch"
    elements: Elements

    def __init__(
        self,
        settings: CaptureSettings,
        folder: Path,
        stacks: Stacks,
        on_failure: Callable[[str], None],
        writer: SharedWriter | None = None,
    ) -> None:
        super().__init__(settings, folder, stacks, on_failure)
        self.mode: CallMode | None = None
        self.resharding = Resharding()
        self._raises_born = settings.overflow == RAISE
        self.knows_compiled = False
        self._device = DeviceValues(self._arrived)
        self._look, ordered = values_look(settings.summary_mode)
        self._glimpses = Glimpses(
            waits=settings.saves_tensors or settings.summary_mode != STATISTICS
        )
        glimpse = self._glimpses.of
        self._seen = SeenTensors(self._values, ordered=ordered, glimpse=glimpse)
        # What is more than the statistics of the whole is made for each by itself.
        is_plain = self._look is statistics and not (settings.sketch or settings.slices)
        self._texts = TensorTexts(self._seen.of, glimpse)
        self.elements = Elements(
            self._part if settings.slices else self._element,
            self._elements_of_many if is_plain and not settings.saves_tensors else None,
        )
        self._files = self._sketching = None
        if settings.saves_tensors:
            self._files = CapturedFiles(
                folder / TENSORS, glimpse, as_safetensors=settings.as_safetensors, writer=writer
            )
            if writer is not None:
                self._log.share(writer)
        if self.sketches is not None:
            self._sketching = Sketching(self.sketches, self._device, glimpse)
        self._quick = self._quick_texts(is_plain)
        # What the sketch says of the tensor that was written last, where that was quick.
        self._more = ""
        holders = [each for each in (self._files, self._sketching) if each is not None]
        self._caches: list[SeenTensors | QuickTexts] = [
            self._seen,
            *(each.seen for each in holders),
        ]
        if self._quick is not None:
            self._caches.append(self._quick)
        # Which there are beside the CPU, and the formats of float32 products when the step began.
        self._accelerators: set[str] = set()
        self._float32 = {kind: formats_of(kind) for kind in KINDS.values()}
        self._changed = False
        self._says_changed = settings.wants("forward", "output")
        self.given_names = GivenNames(
            self.module_call,
            lambda value: isinstance(value, torch.nn.Module),
            lambda module: module.forward,
            _states_of,
        )
        # Where the tensors are noted that the call at hand gets.
        self._given: list[GivenParts] | None = None
        # Of files the extension knows nothing.
        if isinstance(self._quick, SmallTensors) or self._files is not None:
            self.elements.compiled = None
        else:
            self.elements.compiled = self._quick
        self._written: torch.Tensor | None = None
        self._in_backward = private_parts.find(private_parts.GRAPH_TASK)
        # `quiet` alone would do, but each question to a tensor would still ask the mode.
        self._unseen = private_parts.find(private_parts.NO_FUNCTION_MODE) or nullcontext
        self._aside = aside = Aside()
        self._transform, self._trace, self._dispatch_modes = aside.onlookers
        self.note_origins(None)

    def _quick_texts(self, is_plain: bool) -> QuickTexts | None:
        """Return what writes most tensors, where it can say all that the settings ask for."""
        if is_plain:
            return quick_texts()
        is_sketched = self._look is statistics and not (
            self.settings.saves_tensors or self.settings.slices
        )
        if self._sketching is None or not is_sketched:
            return None
        return quick_texts(self._sketching.look, self._sketching.take)

    def call(self, call: SeenCall) -> Any:
        """Make a call, record it, and return what it gives."""
        name = call.name.key
        key = f"{name}.{self.number(name)}"
        forward = f"{key}.forward"
        if self.stopped or not self.scope.wants(forward):
            return call.run()
        given: list[GivenParts] = []
        if self.darkness:
            self.darkness.begin_asking(call)
        before = self.guarded(forward, self._before_noted, forward, call, given)
        darkness = self.darkness
        if darkness:
            darkness.asks = False
            if darkness.unknown:
                darkness.name_unknown(call)
        edges = self.edges(forward, call.args, call.kwargs)
        drawn = ""
        if self.settings.task != STRUCTURE and draws(call):
            drawn = self.guarded(forward, generator_field, call) or ""
        resharding = self.resharding
        resharding.is_on = True
        try:
            result = call.run()
        finally:
            resharding.is_on = False
        if not self.stopped:
            self.guarded(
                forward, self._called, call, key, before or "", edges, result, given, drawn
            )
        return result

    def _called(
        self,
        call: SeenCall,
        key: str,
        before: str,
        edges: list[Any],
        result: Any,
        given: list[GivenParts],
        drawn: str,
    ) -> None:
        """Write the record of a call that has ended, and wait for its gradients."""
        name, frame, args, kwargs, run = call
        touched = _touched_by(name, given)
        if name.in_place or touched or "out" in kwargs:
            first = args[0] if name.in_place and args else kwargs.get("out")
            self.forget((first, [each.tensor for each in touched]))
        write = functools.partial(self.before, frame=frame)
        before = self.resharding.again(before, write, f"{key}.forward", args, kwargs, result)
        # A kernel in place on a list may return nothing.
        is_first = name.returns_nothing or (name.in_place and result is None and args)
        output = args[0] if is_first else result
        found = self._stacks.of(frame)
        stack = found.number if self.settings.stacks else None
        fields = before + self.after(f"{key}.forward", output, changed=name.in_place)
        if touched and self._says_changed:
            fields += self._changes(
                touched, _outputs_among(name, args, kwargs, output), bool(name.silent)
            )
        if found.inner:
            # The call at the same place of the checkpointed region, with the same inputs.
            region = name.key, found.inner, without_names(_NEEDS_GRADIENT.sub("", before))
            again = self._in_backward is not None and self._in_backward() >= 0
            fields += self.recomputed(region, f"{key}.forward", again=again)
        fields += autocast_field(result) + index_field(name.key, args) + drawn
        self.write(f"{key}.forward", fields, stack, self.parent)
        if any(edges) and self.wants_backward:
            self.watch(f"{key}.backward", edges, output, stack, run)

    def _before_noted(self, key: str, call: SeenCall, given: list[GivenParts]) -> str:
        """Return the fields of what a call gets, and note its tensors."""
        self._given = given
        try:
            return self.before(key, call.args, call.kwargs, call.frame)
        finally:
            self._given = None
            self.look_as_ever()

    def _changes(self, touched: list[Given], outputs: frozenset[int], is_silent: bool) -> str:
        """Return the field of the tensors that a call has changed, but for the memory of its outputs."""
        found = []
        for each in touched:
            is_output = address_of(each.tensor) in outputs
            if not is_output and self._fields(each.tensor) != each.known:
                found.append((each.path, self._element(each.tensor, each.place_after)))
        self._written = None
        # Of operators that change their arguments it is said that nothing was changed, too.
        return f', "changed": {mapping(found)}' if found or is_silent else ""

    def compiled(self, frame: FrameType) -> None:
        """Record the call of a compiled function, which is made by a frame of torch's."""
        local = frame.f_locals
        name = CallName.of_region(local.get("fn"))
        key = f"{name.key}.{self.number(name.key)}.forward"
        args, kwargs = tuple(local.get("args", ())), dict(local.get("kwargs", {}))

        def record() -> None:
            fields = self.before(key, args, kwargs, frame) + ', "compiled": true'
            self.write(key, fields, self.stack_of(frame.f_back), self.parent)
            (self.darkness or self).note_dark(f"the compiled function {name.name}", frame.f_back)

        self.guarded(key, record)

    def guarded(self, key: str, action: Callable[..., T], *args: Any) -> T | None:
        """Return what an action of the capture gives; a fault in it ends the capture, not the training.

        What the action itself calls has no records.
        """
        mode = self.mode
        quiet = mode is not None and mode.quiet
        if mode is not None:
            mode.quiet = True
        if self._transform() is not None or self._trace() is not None or self._dispatch_modes():
            action = self._aside(action)
        with self._unseen():
            result, error = caught_with(action, *args)
        if mode is not None:
            mode.quiet = quiet
        if error is not None:
            self.fault(key, error)
        if not quiet and self._raises_born:
            self._log.raise_born()
        return result

    def after(self, key: str, output: Any, *, changed: bool = False) -> str:
        """Return the fields of what a call gave, with its version if the call has changed it."""
        if not changed:
            return super().after(key, output)
        self._changed = True
        self.look_anew()
        fields = super().after(key, output)
        self._changed = False
        self.look_as_ever()
        return fields

    def edges(self, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Edge | None]:
        """Return where the gradients of the inputs go."""
        if not torch.is_grad_enabled():
            return []
        given = tensors_in(args)
        return edges_of(given + tensors_in(kwargs) if kwargs else given)

    def watch(
        self,
        key: str,
        edges: list[Any],
        output: Any,
        stack: int | None,
        run: Callable[[], Any] | None = None,
    ) -> None:
        """Record the gradients of a call, which `run` made, when they have passed through it."""
        outputs, parent = tensors_in(output), self.backward_parent
        border = watch(
            # Of a module msprobe has the gradients at the border, too, one for each input.
            MODULE if key.startswith("Module.") else self.settings.gradients,
            edges,
            outputs,
            functools.partial(self._passed, key, stack, parent),
            functools.partial(input_places, run, edges, outputs),
        )
        if border is not None:
            self._borders.append(border)

    def _passed(
        self, key: str, stack: int | None, parent: str | None, seen: PassedGradients
    ) -> None:
        self.guarded(key, self._backward, key, seen, stack, parent)

    def _backward(
        self, key: str, seen: PassedGradients, stack: int | None, parent: str | None
    ) -> None:
        if self.stopped:
            return
        fields = self.around(key, seen.from_outside(), seen.passed_on)
        if fields and seen.gradient_of:
            # Texts, as msprobe's `compare` looks for a word in each of them.
            indices = [NULL if index is None else f'"{index}"' for index in seen.gradient_of]
            fields += f', "gradient_of": [{", ".join(indices)}]'
        self.write(key, fields, stack, parent)

    def write(self, key: str, fields: str, stack: int | None, parent: str | None) -> None:
        """Write a record, when its statistics have arrived; if it cannot be written the capture ends."""
        if MARK in fields:
            self._device.record(fields, key, stack, parent)
        else:
            super().write(key, fields, stack, parent)

    def _arrived(self, fields: str, key: str, stack: int | None, parent: str | None) -> None:
        super().write(key, fields, stack, parent)

    @property
    def tensor_bytes(self) -> int:
        """How many bytes of tensors the step has in files."""
        return self._files.written_bytes if self._files is not None else 0

    def _part(self, tensor: torch.Tensor, place: str) -> str:
        return self._element(sliced(tensor, self.settings.slices), place)

    def look_anew(self) -> None:
        """Let the extension know what is said of tensors from now on; it takes no looks of its own."""
        elements = self.elements
        if elements.compiled is None or self._looks:
            elements.wishes = None
            return
        names, darkness = self._names, self.darkness
        elements.wishes = (
            self._given,
            self._memory,
            None if names is None else names.inputs,
            None if names is None else names.states,
            darkness.met_new if darkness is not None and darkness.asks else None,
            None if darkness is None else darkness.known,
            self._changed,
            name_field,
            shared_field,
            self._rest,
            elements.one,
        )

    def look_as_ever(self) -> None:
        """Let the extension say no more of tensors than of gradients."""
        if self.elements.compiled is not None:  # verifying has elements of its own
            self.elements.wishes = self._usual

    def note_origins(self, darkness: Any) -> None:
        """Let `darkness` have the tensors that are looked at."""
        self.darkness = darkness
        self.look_anew()
        self._usual = self.elements.wishes

    def _element(self, tensor: torch.Tensor, place: str) -> str:
        if self.elements.wishes is None:
            return self._rest(tensor, place, "")
        text: str = self.elements.compiled.element(tensor, place, self.elements.wishes)
        return text

    def _rest(self, tensor: torch.Tensor, place: str, known: str) -> str:
        """Return an element with what the extension does not know of it, which has found `known`, if any."""
        fields = self._fields(tensor, known)
        more = self._more
        if self._given is not None:
            version = _NO_VERSION if tensor.is_inference() else tensor._version
            self._given.append((tensor, version, place, fields))
        if self._memory is not None:
            fields += self.shared(tensor, place) + self.named(tensor)
        if type(tensor) is torch.nn.Parameter:
            fields += marks_field(tensor)
        if self._changed and not tensor.is_inference():  # which has no version
            fields += f', "version": {tensor._version}'
        if self._looks or HAS_NAN in fields:
            fields += self._structure(tensor, self.look_at(place), HAS_NAN in fields)
        if more or (self._files is None and self._sketching is None):
            self._written = None  # autograd copies a gradient that somebody holds
            return f"{{{fields}{more}}}"
        dense = self._texts.dense(tensor)
        if self._sketching is not None:
            fields += self._sketching.fields(tensor, dense)
        is_saved = self._files is not None and self.settings.wants_tensors(self.place)
        if self._files is not None and is_saved:
            whole = self._texts.saved(tensor, dense)
            if whole is not None:
                fields += self._saved(self._files, whole, f"{self.place}.{place}")
        self._written = None
        return f"{{{fields}}}"

    def _fields(self, tensor: torch.Tensor, known: str = "") -> str:
        """Return what is said of a tensor wherever it is written."""
        self._written = tensor
        self._glimpses.begin()
        if self._quick is not None:
            darkness = self.darkness
            met = None if darkness is None else darkness.met_itself
            fields = known or self._quick.fields(tensor, met)
            if fields:
                fields, _, self._more = fields.partition(MORE)
                return fields
        self._more = ""
        return self._texts.fields(tensor)

    def _elements_of_many(self, values: Sequence[Any], place: str) -> list[str]:
        """Return most tensors of a list as `_element` does, and "" for what else is in it."""
        is_bare = self._given is None and self._names is None and not (self._changed or self._looks)
        if self._quick is None or self._sketching is not None or not is_bare:
            return [""] * len(values)
        texts, memory = self._quick.fields_of_many(values), self._memory
        if self.darkness is not None:
            self.darkness.met_many([each for each, text in zip(values, texts, strict=True) if text])
        for index, fields in enumerate(texts):
            if not fields:
                continue
            if HAS_NAN in fields:
                texts[index] = ""
                continue
            each = values[index]
            if memory is not None:
                fields += self.shared(each, f"{place}.{index}")
            if type(each) is torch.nn.Parameter:
                fields += marks_field(each)
            texts[index] = f"{{{fields}}}"
        return texts

    def _structure(self, tensor: torch.Tensor, look: str | None, nan: bool) -> str:
        """Return what a look at a tensor on the CPU shows; of others only statistics are read."""
        if look is None and not nan:
            return ""
        dense = self._texts.dense(tensor) if tensor.is_cpu else None
        return "" if dense is None else structure(dense, look, nan)

    memory_of = staticmethod(address_of)

    def _saved(self, files: CapturedFiles, dense: torch.Tensor, name: str) -> str:
        """Save a tensor, and return the field that names its file."""
        try:
            return f', "data_name": {quoted(files.save(dense, name))}'
        except TensorNotWritten as error:
            self.fail_to_write(error)
            return ""
        except (OSError, RuntimeError) as error:
            self.fail(f"the tensor {name} cannot be written to {self.folder}: {error}")
            return ""

    def _values(self, tensor: torch.Tensor) -> str:
        """Return the statistics of a dense tensor, or a mark for those that a device computes."""
        if self.darkness is not None:
            self.darkness.met(tensor, is_itself=tensor is self._written)
        if tensor.is_cpu:
            if self._sketching is None or self._look is not statistics:
                return self._look(tensor)
            return statistics_text(self._sketching.summary(tensor))
        self._accelerators.add(tensor.device.type)
        if self.settings.summary_mode != STATISTICS:
            return self._look(tensor)
        return self._device.text(tensor)

    def forget(self, changed: Any) -> None:
        """Forget what is known of tensors that a call has changed."""
        self._texts.forget_all()
        for tensor in tensors_in(changed):
            for cache in self._caches:
                cache.forget(tensor)

    def forget_all(self) -> None:
        """Forget what is known of all tensors, because any of them may have changed unseen."""
        self._texts.forget_all()
        for cache in self._caches:
            cache.forget_all()

    def end_tensors(self) -> None:
        """Wait for what an accelerator computes, and for the process that writes files."""
        self._written = None
        self.forget_all()
        if not self.stopped:
            self.guarded("the end of the step", self._device.finish)
        try:
            self._log.settle()
        except OSError as error:
            self.fail_to_write(error)

    def note_float32(self) -> None:
        """Say in the header in which formats of fewer bits the step computed float32 products.

        A step with an accelerator computes there; what the settings say of the CPU is not asked then.
        """
        for each in sorted(self._accelerators) or ["cpu"]:
            kind = KINDS.get(each, each)
            found = header_field(
                computed_in(kind, self._float32.get(kind, Float32())),
                computed_in(kind, formats_of(kind)),
            )
            if found:
                self.noted["float32"] = found


def _states_of(model: torch.nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    kind, base = type(model), torch.nn.Module
    if (kind.named_parameters, kind.named_buffers) != (base.named_parameters, base.named_buffers):
        for name, parameter in model.named_parameters():
            yield PARAMETER, name, parameter
        for name, buffer in model.named_buffers():
            yield BUFFER, name, buffer
        return
    # The same in one walk through the modules, which takes a third of the time of `named_modules`.
    modules: dict[int, tuple[str, torch.nn.Module]] = {}
    left = [("", model)]
    while left:
        prefix, module = left.pop()
        if id(module) not in modules:
            modules[id(module)] = prefix, module
            inner = reversed(module._modules.items())
            left += [(f"{prefix}{name}.", each) for name, each in inner if each is not None]
    for states, word in (("_parameters", PARAMETER), ("_buffers", BUFFER)):
        for prefix, module in modules.values():
            for name, state in getattr(module, states).items():
                if state is not None:
                    yield word, f"{prefix}{name}", state


def _touched_by(name: CallName, given: list[GivenParts]) -> list[Given]:
    """Return the tensors that have another version since the call, and those that it may change without."""
    silent = name.silent
    # Attributes of a named tuple take longer than places, and nearly all calls touch nothing.
    return [
        Given(*each)
        for each in given
        if (_NO_VERSION if each[0].is_inference() else each[0]._version) != each[1]
        or (silent and root_of(each[2]) in silent)
    ]


def _outputs_among(
    name: CallName, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> frozenset[int]:
    """Return the memory of the tensors that a call changes as its outputs: the first argument in place,
    `out`, and what it returns. A view of them has changed with them."""
    first = args[:1] if name.in_place else ()
    return frozenset(map(address_of, tensors_in((first, kwargs.get("out"), output)))) - {0}
