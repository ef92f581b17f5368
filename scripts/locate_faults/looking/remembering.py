"""Replays of calls that earlier captures of the process had, so that a fault costs what it changes.

Comes in: nothing; `remembered` stands around searches. Goes out: the same results. Called by `locating`.
`locate` itself replays every call of each capture; here hundreds of captures of one step differ in some of
its calls. A call is the same where its records, and the contents of all files that they name, are.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.locate_faults.looking.replaying import digest_of

_known: dict[bytes, Any] = {}


class _Remembering:
    """A runner that looks up what it has done before."""

    def __init__(self, runner: Any, folders: Mapping[str, Path | None]) -> None:
        self._runner = runner
        self._folders = folders

    def run(self, payload: Any, *args: Any, **kwargs: Any) -> Any:
        state = hashlib.blake2b(f"{payload.index} {payload.is_replayed}".encode())
        for side, folder in self._folders.items():
            records = getattr(payload, side)
            if folder is not None:
                state.update(b"-" if records is None else digest_of(records, folder))
            state.update(b"|")
        key = state.digest()
        if key not in _known:
            _known[key] = self._runner.run(payload, *args, **kwargs)
        return _known[key]

    def damage(self) -> Any:
        return self._runner.damage()


def forget() -> None:
    """Forget what was replayed, because another model follows."""
    _known.clear()


@contextmanager
def remembered() -> Iterator[None]:
    """Let searches in this process look up calls that were replayed before."""
    from ray_precheck.locating import dump

    original: Callable[..., Any] = dump.open_runner

    def opened(settings: Any, *args: Any, **kwargs: Any) -> Any:
        folders = {"target": settings.target.data_folder, "golden": settings.golden_folder}
        return _Remembering(original(settings, *args, **kwargs), folders)

    dump.open_runner = opened
    try:
        yield
    finally:
        dump.open_runner = original
