"""A Ray of a run's own that starts only what the run needs.

Comes in: nothing but that `ray.init` is called meanwhile. Called by `runtime.places.cluster`. Ray's
head starts an autoscaler, a dashboard and a reader of its workers' logs too, three Python processes
that took a second of the wait for a run and 1.5 s of processor time (measured, Ray 2.60). Ray has
no public switch for them, so this module uses its private parts. A Ray with other ones starts whole.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.exceptions import RayError

from ray_precheck import private_parts
from ray_precheck.runtime.workers.process_tree import descendants

_PARTS = ("start_monitor", "start_api_server", "start_log_monitor", "start_ray_processes")
_LOOK_S = 0.02
# Ray goes on to wait by itself, so this need not be long enough for a node that is in trouble.
_LONGEST_WAIT_S = 5.0
# Its inner parts have no contract.
_ANOTHER_RAY = (AttributeError, KeyError, TypeError)


@contextmanager
def lean_head(*, reads_logs: bool) -> Iterator[None]:
    """Let `ray.init` start no autoscaler and no dashboard, and the reader of the workers' output only if
    `reads_logs`. Not for two threads at a time."""
    module = private_parts.find(private_parts.NODE)
    whole = getattr(module, "Node", None)
    if module is None or not all(hasattr(whole, part) for part in _PARTS):
        yield
        return
    module.Node = _lean(whole, reads_logs)
    try:
        yield
    finally:
        module.Node = whole


def _lean(whole: Any, reads_logs: bool) -> Any:
    """Return Ray's class of a node with the parts left out."""

    class LeanNode(whole):  # type: ignore[misc]
        def start_monitor(self) -> None:
            """Start no autoscaler: a cluster of one run asks no cloud for machines."""

        def start_api_server(self, **options: Any) -> None:
            """Start no dashboard: only this run can reach its cluster."""

        def start_log_monitor(self) -> None:
            if reads_logs:
                super().start_log_monitor()

        def start_ray_processes(self) -> None:
            super().start_ray_processes()
            _await_node(self.gcs_address)

        def kill_all_processes(self, **options: Any) -> None:
            """End Ray's processes at once: they do not hear SIGTERM (`stop_signal.signals_held`), for which
            Ray itself waits a second each."""
            with contextlib.suppress(*_ANOTHER_RAY):
                started = [
                    each.process.pid for kind in self.all_processes.values() for each in kind
                ]
                for pid in [pid for top in started for pid in (top, *descendants(top))]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            super().kill_all_processes(**options)

    return LeanNode


def _await_node(gcs_address: str) -> None:
    """Wait until the node has told the cluster's table that it is there, which takes 0.6 s.

    Ray itself looks once a second. If the node fails, Ray reports it.
    """
    until = time.monotonic() + _LONGEST_WAIT_S
    with contextlib.suppress(*_ANOTHER_RAY, RayError, RuntimeError):
        state = private_parts.find(private_parts.NODE_TABLE)
        options = private_parts.find(private_parts.CLIENT_OPTIONS)
        if state is None or options is None:
            return
        table = state()
        table._initialize_global_state(options(gcs_address))
        while time.monotonic() < until and not any(e["Alive"] for e in table.node_table()):
            time.sleep(_LOOK_S)
