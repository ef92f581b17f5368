"""The process in which calls run with settings that a framework reads when it starts.

Comes in: `PlainStart`, then `PlainRun`s, through a pipe. Goes out: a `Measured` for each, or a sentence that
says why there is none. Started by `commands.naive.elsewhere`, which gives it the variables.
"""

import os
import signal
import sys
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from ray_precheck.bench.declared import load_declarations
from ray_precheck.check.attempt import Measured
from ray_precheck.commands.naive.elsewhere import PlainRun, PlainStart
from ray_precheck.foreign import caught
from ray_precheck.frameworks.mindtorch.paths import prefer_native
from ray_precheck.processes import end_with_parent


def main() -> None:
    """Serve a pipe until it is closed. The arguments: its descriptor, and the parent's process id."""
    end_with_parent(int(sys.argv[2]))
    # Ctrl-C on a terminal is for the driver.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe: Connection[Any, Any] = Connection(int(sys.argv[1]))
    start: PlainStart = pipe.recv()
    runner, error = caught(partial(PlainRunner, start))
    try:
        while True:
            wanted: PlainRun = pipe.recv()
            found: Measured | str | None = None
            if runner is not None:
                found, error = caught(partial(runner.run, wanted))
            pipe.send(str(error) if found is None else found)
    except (EOFError, BrokenPipeError):
        # Frameworks may hang while they are unloaded, and there is nothing left to write.
        os._exit(0)


class PlainRunner:
    """Runs calls once each, with a checker and a board of its own."""

    def __init__(self, start: PlainStart) -> None:
        prefer_native()
        load_declarations(start.settings.bench_modules)
        from ray_precheck.check.checker import Checker
        from ray_precheck.frameworks.switches import SwitchBoard, switches_of

        self._board = SwitchBoard(switches_of(start.settings.framework), start.kind)
        self._checker = Checker(start.settings, start.kind)
        self._checker.prove()

    def run(self, wanted: PlainRun) -> Measured:
        """Run a call; raises whatever its inputs or the framework raise."""
        inputs = self._checker.inputs(wanted.payload, wanted.files, wanted.safer)
        with self._board.turned(wanted.plain):
            return self._checker.run(inputs)


if __name__ == "__main__":
    main()
