"""A capture from its first step to its last, in the process that trains.

Comes in: settings, and the steps of the training as they end. Goes out: a folder for each captured step,
`step{S}/rank{R}` or, in a process without a rank, `step{S}/proc{PID}`, and an `Account` of what was seen.
Made by `Capture`, by the debugger under msprobe's name, and in each process of a script by `process`.

A capture never ends a training: what goes wrong in it is one sentence on stderr, after which nothing is
captured any more.
"""

import os
import shutil
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_precheck.capture.account import Account, added
from ray_precheck.capture.probe import Probe, StepMeasures, StepProbe
from ray_precheck.capture.settings import (
    BY_FORWARD,
    BY_HAND,
    BY_OPTIMIZER,
    BYTES_OF_GB,
    FULL,
    CaptureSettings,
)
from ray_precheck.capture.watching.watch import Watch
from ray_precheck.capture.writing.claim import (
    claim,
    new_folder,
    remove_earlier,
    require_unwritten,
    size_of,
)
from ray_precheck.errors import UsageError
from ray_precheck.foreign import caught, first_line


def say(text: str) -> None:
    """Print a sentence about a capture on stderr."""
    print(f"ray-precheck capture: {text}", file=sys.stderr, flush=True)


def raised(error: BaseException | None) -> str:
    """Return why a step was cut short that an exception has ended; "" without one."""
    if error is None or isinstance(error, SystemExit):
        return ""
    return f"the step raised {type(error).__name__}"


class Session:
    """Which steps are captured, and where each goes.

    Captures of an earlier run are those that were last changed before `began`, seconds of the epoch.
    `on_change` is called when the account has changed; `on_begin` when the first step begins.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        probe: Probe,
        *,
        models: Any = None,
        began: float | None = None,
        tell: Callable[[str], None] = say,
        on_change: Callable[[Account], None] = lambda account: None,
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.number = 0
        self.captured: list[Path] = []
        self.account = Account(os.getpid(), probe.framework)
        self.models = models
        self._probe = probe
        self._began = time.time() if began is None else began
        self._tell = tell
        self._on_change = on_change
        self._on_begin = on_begin
        # The step that is being captured.
        self.open_step: StepProbe | None = None
        self._folder: Path | None = None
        # False in a child that the process of the session forks.
        self.is_ours = True
        self._is_claimed = False
        self._calls_before = 0
        self._rank: int | None = None
        self._sizes: dict[Path, int] = {}
        self._missing: dict[str, list[str]] | None = None
        self._measures: StepMeasures | None = None
        self._watch: Watch | None = None
        _SESSIONS.add(self)

    def start(self, *, at_first_forward: bool = False) -> None:
        """Begin with step 0, at once or when a model is called for the first time."""
        self._probe.watch_steps(self._on_step, self._on_forward)
        if self.settings.watch:
            self._measures = self._probe.measure(self.models)
        if not at_first_forward:
            self._begin()

    def watch(self) -> None:
        """Let the framework tell what happens, where `resume` and `end_step` make the steps."""
        self._probe.watch_steps(self._on_step, lambda: None)

    def step(self) -> None:
        """End a step; the next one begins, except where `begin` is to say so."""
        self.end_step()
        if self._is_over():
            self._probe.unwatch_steps()
        else:
            self._begin()

    def end_step(self) -> None:
        """End a step; the next one begins with `resume`."""
        if not self.is_ours:
            return
        watch, is_captured = self._watch, self.open_step is not None
        seconds = watch.end_clock() if watch else None
        self._end()
        if watch is not None:
            self._end_row(watch, seconds, is_captured)
        self.number += 1
        self.account.steps += 1

    def _end_row(self, watch: Watch, seconds: float | None, is_captured: bool) -> None:
        self._guard(watch, lambda: watch.end_step(self.number, seconds, is_captured=is_captured))
        is_new = not self.account.rows or self.account.fired != watch.fired
        self.account.rows, self.account.fired = watch.rows, watch.fired
        if is_new:
            self._on_change(self.account)

    def _guard(self, watch: Watch, action: Callable[[], None]) -> None:
        """End the watch where its rows cannot be written, or nothing can be measured any more."""
        _, error = caught(action)
        why = watch.failure
        if isinstance(error, OSError):
            why = f"{watch.path} cannot be written: {error.strerror or error}"
        elif error is not None:
            why = f"the watch has a fault, {type(error).__name__}: {first_line(error)}"
        if why:
            self._watch = None
            watch.leave()
            self.fail(why)

    def pause(self) -> None:
        """Capture nothing until `resume`, which goes on with the same step."""
        if self.open_step is not None:
            self.open_step.pause()

    def resume(self) -> None:
        """Go on with the step, or begin it."""
        if self.open_step is not None:
            self.open_step.resume()
        else:
            self._begin()

    def stop_at_exit(self) -> None:
        """End the capture with its process, which an exception may have ended."""
        self.stop(raised(getattr(sys, "last_value", None)))

    def stop(self, cut_short: str = "") -> None:
        """End the step that is open, and the capture; `cut_short` is why the step did not come to its end."""
        if not self.is_ours:
            return
        if self._is_idle():
            self._drop()
        else:
            self._end(cut_short)
        watch, self._watch = self._watch, None
        if watch is not None:
            self._guard(watch, watch.close)
            self.account.rows = watch.rows
        elif self._measures is not None:
            self._measures.close()
        self._probe.unwatch_steps()
        self.account.why_unseen = self._probe.why_unseen
        self.account.has_ended = True
        self._on_change(self.account)

    def leave(self) -> None:
        """Capture nothing in this process: it was forked, and the capture is its parent's."""
        opened, self.open_step, self._folder = self.open_step, None, None
        self.is_ours = False
        if self._measures is not None:
            self._measures.leave()
        if self._watch is not None:
            self._watch.leave()
        if opened is not None:
            opened.abandon()

    def fail(self, reason: str) -> None:
        """Stop capturing; the training goes on."""
        if self.account.failure:
            return
        self.account.failure = reason
        self._tell(f"{reason}; the capture ends here, and the script goes on")
        self._on_change(self.account)

    def _on_step(self) -> None:
        if self.settings.step_by == BY_OPTIMIZER and self.is_ours:
            if self._has_failed:
                self.stop()
            else:
                self.step()

    def _on_forward(self) -> None:
        if not self.is_ours:
            return
        self.account.model_calls += 1
        if self.settings.step_by == BY_FORWARD and self.account.model_calls > 1:
            self.step()
        elif self.open_step is None and not self.account.steps:
            self._begin()

    def _is_over(self) -> bool:
        """Return whether no step will be captured any more."""
        steps = self.settings.steps
        is_past = steps is not None and self.number > max(steps) and not self.settings.watch
        return self._has_failed or is_past

    @property
    def _has_failed(self) -> bool:
        """Whether nothing is done any more: rows go on where dumps have reached their limit."""
        return bool(self.account.failure) and self._watch is None

    def _is_idle(self) -> bool:
        """Return whether the open step is what follows the last one: no model was called in it, or, where
        the script says when a step ends, nothing at all."""
        if self.open_step is None or not self.account.steps:
            return False
        if self.settings.step_by == BY_OPTIMIZER:
            return self.account.model_calls == self._calls_before
        return self.settings.step_by == BY_HAND and not self.open_step.records

    def claim_step(self) -> Path | None:
        """Return the folder of the step that runs, which is emptied; None where it is not captured."""
        settings = self.settings
        is_unasked = settings.watch if settings.steps is None else self.number not in settings.steps
        if is_unasked and not (self._watch and self._watch.wants(self.number)):
            return None
        name = self._own_name()
        if not name:
            return None
        folder = settings.path / f"step{self.number}" / name
        with self._failing(folder):
            if not self._is_claimed:
                self._claim(name)
            require_unwritten(folder)
            new_folder(folder)
        return None if self.account.failure else folder

    def _own_name(self) -> str:
        """Return the name of this process's folders, "" where it captures nothing."""
        if self.account.failure or not self.is_ours or self._probe.is_loader():
            return ""
        rank = self.account.rank = self.rank
        if rank is None:
            return f"proc{os.getpid()}"
        ranks = self.settings.ranks
        return f"rank{rank}" if ranks is None or rank in ranks else ""

    def _begin_row(self) -> None:
        """Let the row of a step begin; with the first one the table is opened."""
        name = self._own_name() if self._watch is None else ""
        if name and self._measures is None:
            self.fail(
                f"--watch measures PyTorch only, and the model is one of {self._probe.framework}"
            )
        elif name and self._measures is not None:
            chosen, count = self.settings.ranks, self._probe.ranks()
            ranks = count if chosen is None else len(chosen & {*range(count)})
            with self._failing(self.settings.path):
                self._claim(name)
                self._watch = Watch(self.settings, self._measures, self.rank, ranks, self._tell)
        if self._watch is not None:
            self._watch.begin_step()

    @contextmanager
    def _failing(self, folder: Path) -> Iterator[None]:
        """End the capture where a folder cannot be written or claimed."""
        try:
            yield
        except UsageError as error:
            self.fail(str(error))
        except OSError as error:
            self.fail(f"{folder} cannot be written: {error.strerror or error}")

    def _begin(self) -> None:
        if self.settings.watch:
            self._begin_row()
        folder = self.claim_step() if self.open_step is None else None
        if folder is None:
            return
        settings = replace(self.settings, max_bytes=self._bytes_left())
        with self._failing(folder):
            self.open_step = self._probe.begin(settings, folder, self.models, self._failed_within)
        if self.open_step is None:
            return
        self._folder = folder
        self._calls_before = self.account.model_calls
        self.account.is_open = str(folder)
        self._on_change(self.account)

    def _claim(self, name: str) -> None:
        claim(self.settings, self._probe.framework)
        if not self.settings.watch:  # a training that is started again goes on below its rows
            self.account.replaced = remove_earlier(self.settings.path, name, self._began)
        self._is_claimed = True
        self._on_begin()

    @property
    def rank(self) -> int | None:
        """The rank of this process, also after its process group was destroyed."""
        if self._rank is None:
            self._rank = self._probe.rank()
        return self._rank

    @rank.setter
    def rank(self, rank: int) -> None:
        self._rank = rank

    def _bytes_left(self) -> int | None:
        most = self.settings.max_bytes
        return None if most is None else max(1, most - sum(self._sizes.values()))

    def _failed_within(self, reason: str) -> None:
        """Take note that a step cannot go on; a limit on its bytes is told as that of all steps."""
        if reason == FULL and self.settings.max_bytes is not None:
            size = self.settings.max_bytes / BYTES_OF_GB
            reason = f"the dumps of this process have reached {size:g} GB (--max-gb)"
        self.fail(reason)

    def _end(self, cut_short: str = "") -> None:
        opened, folder = self.open_step, self._folder
        self.open_step = self._folder = None
        if opened is None or folder is None or not self.is_ours:
            return
        with self._failing(folder):
            opened.finish(cut_short)
            if not self.account.failure:
                self.account.cut_short = cut_short
                self._take(self._with_rank(folder), opened)
        self._on_change(self.account)

    def _take(self, folder: Path, opened: StepProbe) -> None:
        """Take note of a step that was written, and remove the oldest one where enough are kept."""
        account, keep = self.account, self.settings.keep_steps
        account.is_open = ""
        account.dark = added(account.dark, opened.dark)
        account.captured.append(self.number)
        account.records += opened.records
        missing = opened.scope.missing()
        if self._missing is not None:  # what one step met is found
            missing = {entry: near for entry, near in self._missing.items() if entry in missing}
        self._missing = account.missing = missing
        self.captured.append(folder)
        if self.settings.max_bytes is not None:
            self._sizes[folder] = size_of(folder)
        if keep is not None and len(self.captured) > keep:
            oldest = self.captured.pop(0)
            account.captured.pop(0)
            account.removed += 1
            self._sizes.pop(oldest, None)
            _remove(oldest)

    def _drop(self) -> None:
        """Remove the open step, which has begun and in which nothing happened."""
        opened, folder = self.open_step, self._folder
        self.open_step = self._folder = None
        if opened is not None and folder is not None:
            opened.pause()
            opened.abandon()
            _remove(folder)
            self.account.is_open = ""

    def _with_rank(self, folder: Path) -> Path:
        """Give the folder of a process the name of its rank, if it has got one during the step."""
        rank = self.account.rank = self.rank
        if rank is None or not folder.name.startswith("proc"):
            return folder
        named = folder.with_name(f"rank{rank}")
        shutil.rmtree(named, ignore_errors=True)
        os.replace(folder, named)
        return named


def _remove(folder: Path) -> None:
    """Remove the folder of a rank in a step, and that of the step where it was the last one."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()


_SESSIONS: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_SESSIONS):
        session.leave()


os.register_at_fork(after_in_child=_after_fork)
