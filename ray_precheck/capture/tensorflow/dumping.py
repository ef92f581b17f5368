"""TensorFlow's debugger, turned on in a script, and what it leaves out.

Comes in: what the command put into the environment, when TensorFlow was imported. Goes out: event files of
`enable_dump_debug_info`. Called by `start.sitecustomize`; imports nothing that needs a package but
TensorFlow, so that TensorFlow may have an environment of its own.

The debugger writes what operations give. Of what they get it leaves out the constants of eager code, the
arguments of functions, and what loops, branches and calls of functions give: control flow is not
instrumented. Here these are handed to it at their first use, as the outputs of further operations.
"""

import os
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from ray_precheck.foreign import caught

_SKIPPED = ("Identity", "If", "StatelessIf", "StatefulPartitionedCall", "While", "StatelessWhile")
CLAIM = "dump"
# The folders of the debugging sessions of v1, which want empty ones.
SESSION = "session"


def turn_on(found: dict[str, Any]) -> None:
    """Turn the debugger on; a fault is one sentence, and the script goes on."""
    _, error = caught(lambda: _turn_on(found))
    if error is not None:
        print(
            f"ray-precheck: capture: TensorFlow cannot be captured, {type(error).__name__}: {error}; the"
            " script goes on",
            file=sys.stderr,
        )


def _turn_on(found: dict[str, Any]) -> None:
    import tensorflow

    folder = _claimed(Path(found["notes"]), Path(found["folder"]))
    tensorflow.debugging.experimental.enable_dump_debug_info(
        str(folder), tensor_debug_mode=found["mode"], circular_buffer_size=-1
    )
    _complete()
    if found.get("v1"):
        _let_sessions_write(str(folder))


def _let_sessions_write(folder: str) -> None:
    """Have sessions and hooks of v1 write tensors that would open the debugger's prompt."""
    from tensorflow.python import debug

    numbers = count()

    def own_folder() -> str:
        path = os.path.join(folder, f"{SESSION}{next(numbers)}")
        os.makedirs(path, exist_ok=True)
        return path

    def session(inner: Any, *_: Any, **__: Any) -> Any:
        return debug.DumpingDebugWrapperSession(inner, own_folder())

    def hook(*_: Any, **__: Any) -> Any:
        return debug.DumpingDebugHook(own_folder())

    debug.LocalCLIDebugWrapperSession, debug.LocalCLIDebugHook = session, hook


def _claimed(notes: Path, folder: Path) -> Path:
    """Return the folder of this process: the command's for the first one, else one below it."""
    try:
        os.close(os.open(notes / CLAIM, os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return folder / f"proc{os.getpid()}"
    return folder


def _complete() -> None:
    """Let the debugger write what it leaves out, where this TensorFlow has the parts for it; they are
    private: without them the dump is that of `enable_dump_debug_info` alone."""
    try:
        from tensorflow.python.debug.lib import dumping_callback
        from tensorflow.python.framework import op_callbacks

        debugger = dumping_callback._state.dumping_callback
        is_v2 = sys.modules["tensorflow"].compat.v1.executing_eagerly_outside_functions
        completed = _Completed(debugger, is_v2)
        op_callbacks.remove_op_callback(debugger.callback)
    except (ImportError, AttributeError, KeyError):
        return
    # Its own callback is looked up by this name when the debugger is turned off.
    debugger.callback = completed
    op_callbacks.add_op_callback(debugger.callback)


class _Completed:
    """The debugger's callback, with what it leaves out written before it."""

    def __init__(self, debugger: Any, is_v2: Callable[[], bool]) -> None:
        self._debugger = debugger
        self._write = debugger.callback
        self._execution = debugger._dump_eager_tensors
        self._instrument = debugger._instrument_symbolic_tensors
        self._context = debugger._get_context_id
        self._numbers = debugger._get_symbolic_tensor_ids
        # In a graph of v1 nothing runs that no fetch needs.
        self._is_v2 = is_v2
        self._seen: set[int] = set()
        self._graphs: dict[int, set[str]] = {}

    def __call__(
        self,
        op_type: Any,
        inputs: Sequence[Any],
        attrs: Any,
        outputs: Sequence[Any],
        op_name: Any = None,
        graph: Any = None,
    ) -> Any:
        """Do what an op callback of TensorFlow does (`op_callbacks.add_op_callback`)."""
        kind = op_type.decode() if isinstance(op_type, bytes) else str(op_type)
        if graph is None:
            for each in inputs:
                self._require_seen(each)
            self._seen.update(each._id for each in outputs or ())
            if kind in _SKIPPED:
                self._executed(kind, inputs, outputs)
                return None
        elif inputs and self._is_v2():
            self._instrument_inputs(inputs, graph)
        return self._write(op_type, inputs, attrs, outputs, op_name=op_name, graph=graph)

    def _require_seen(self, tensor: Any) -> None:
        """Write an eager tensor that no operation gave, as a constant."""
        if tensor._id not in self._seen and tensor.dtype.is_numpy_compatible:
            self._seen.add(tensor._id)
            self._write("Const", (), (), (tensor,))

    def _executed(self, kind: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        writer = self._debugger.get_writer()
        devices = [writer.RegisterDeviceAndGetId(each.device) for each in outputs]
        identities = [each._id for each in inputs]
        writer.WriteExecution(self._execution(outputs, kind, identities, devices))

    def _instrument_inputs(self, inputs: Sequence[Any], graph: Any) -> None:
        """Have the debugger see arguments of a function, and what control flow gives, in each run of it."""
        known = self._graphs.setdefault(id(graph), set())
        for each in inputs:
            source = each.op
            if source.type != "Placeholder" and source.type not in _SKIPPED[1:]:
                continue
            if each.name in known or each.graph is not graph or not each.dtype.is_numpy_compatible:
                continue
            known.add(each.name)
            name, _, slot = each.name.rpartition(":")
            # The number of the output is told by the place in the list: what stands before is not written.
            before = [_NOTHING] * int(slot)
            self._instrument(
                (*before, each),
                source.type,
                name,
                self._context(graph),
                self._numbers(int(slot) + 1),
            )


class _Nothing:
    """An output that the debugger passes over, as it does with those that hold no numbers."""

    class dtype:  # noqa: N801
        is_numpy_compatible = is_floating = is_integer = is_bool = False


_NOTHING = _Nothing()
