"""The hook that writes each call as lines of JSON.

Comes in: calls and gradients. Goes out: lines in the file that `set_dump_path` names, first those of what
the call got, then those of what it gave. Called by the sink of `register_hook`.
"""

from typing import Any

from ray_precheck.capture.pytorch.classic.errors import HookUsageError
from ray_precheck.capture.pytorch.classic.kinds import Place, is_written
from ray_precheck.capture.pytorch.classic.lines import DUMP_FILE, Line
from ray_precheck.capture.pytorch.classic.said import tell_user
from ray_precheck.capture.pytorch.classic.values import float_lines
from ray_precheck.capture.pytorch.names import CallName


class AccuracyLines:
    """Writes samples of the values, or with `sample=False` all of them."""

    def __init__(self, sample: bool) -> None:
        self._sample = sample

    def wants(self, name: CallName, got_tensor: bool) -> bool:
        """Return whether the calls of a function have lines."""
        return is_written(name, got_tensor)

    def ready(self, place: Place, in_model: bool) -> bool:
        """Return whether a file was set.

        Raises:
            HookUsageError: it was not, and the call belongs to a registered model.
        """
        if not DUMP_FILE.is_set and in_model:
            raise HookUsageError(
                f"{place.name} was called by the registered model and there is no file to write it to;"
                " call set_dump_path before the model"
            )
        return DUMP_FILE.is_set and not DUMP_FILE.failure

    def before(self, args: Any) -> list[Line]:
        """Take the values of the arguments."""
        return float_lines(args, "_input", sample=self._sample)

    def after(self, place: Place, taken: Any, args: Any, output: Any) -> None:
        """Write the lines of a call."""
        for line in (*taken, *float_lines(output, "_output", sample=self._sample)):
            DUMP_FILE.write(place.name, line)
            if DUMP_FILE.failure:
                tell_user(
                    f"{DUMP_FILE.failure}; nothing is dumped any more, and the script goes on"
                )
                return

    def close(self) -> None:
        """Leave the file open: it belongs to `set_dump_path`."""
