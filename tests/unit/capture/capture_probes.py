"""A framework that only counts what a session asks of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray_precheck.capture.recording.scope import Scope
from ray_precheck.capture.settings import CaptureSettings


class CountingStep:
    """A step whose dump is one file with the words of what happened."""

    def __init__(self, settings: CaptureSettings, folder: Path) -> None:
        self.scope = Scope(settings.scope, settings.chosen)
        self.settings = settings
        self.folder = folder
        self.records = 0
        self.dark: dict[str, object] | None = {"count": 0, "places": []}
        self.words: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def call(self, key: str, size: int = 1) -> None:
        """A call of an operator."""
        if self.scope.wants(key):
            self.records += 1
            with (self.folder / "dump.json").open("a") as file:
                file.write("x" * size)

    def pause(self) -> None:
        self.words.append("pause")

    def resume(self) -> None:
        self.words.append("resume")

    def finish(self, cut_short: str = "") -> None:
        self.words.append("finish")
        (self.folder / "dump.json").touch()

    def abandon(self) -> None:
        self.words.append("abandon")


class CountingMeasures:
    """What the test measures of each step, which comes at its end, or with `late` at the next one's."""

    def __init__(self, late: bool = False) -> None:
        self.failure = ""
        self.numbers: dict[str, float | int | None] = {}
        self._waiting: list[dict[str, float | int | None]] = []
        self._late = late

    def end_step(self) -> list[dict[str, float | int | None]]:
        self._waiting.append(dict(self.numbers))
        return [self._waiting.pop(0)] if len(self._waiting) > self._late else []

    def close(self) -> list[dict[str, float | int | None]]:
        return self._waiting

    def leave(self) -> None:
        self.failure = "forked"


class CountingProbe:
    """A framework whose steps and calls the test makes."""

    framework = "pytorch"
    why_unseen = ""

    def __init__(self, rank: int | None = None) -> None:
        self.rank_now = rank
        self.loads = False
        self.measures: CountingMeasures | None = CountingMeasures()
        self.steps: list[CountingStep] = []
        self.is_watched = False
        self.stepped: Callable[[], None] = lambda: None
        self.called: Callable[[], None] = lambda: None

    @property
    def now(self) -> CountingStep:
        return self.steps[-1]

    def rank(self) -> int | None:
        return self.rank_now

    def ranks(self) -> int:
        return 1

    def measure(self, models: Any) -> CountingMeasures | None:
        return self.measures

    def is_loader(self) -> bool:
        return self.loads

    def watch_steps(self, on_step: Callable[[], None], on_forward: Callable[[], None]) -> None:
        self.is_watched = True
        self.stepped, self.called = on_step, on_forward

    def unwatch_steps(self) -> None:
        self.is_watched = False
        self.stepped = self.called = lambda: None

    def begin(
        self,
        settings: CaptureSettings,
        folder: Path,
        models: Any,
        on_failure: Callable[[str], None],
    ) -> CountingStep:
        self.fail = on_failure
        self.steps.append(CountingStep(settings, folder))
        return self.now
