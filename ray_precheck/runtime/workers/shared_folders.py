"""The folders that --shared-fs says that all machines see.

Called by the openers of jobs on workers of other machines than the driver's: without the folder every piece
would have the rows of missing files there, and the right ones elsewhere.
"""

from collections.abc import Iterable
from pathlib import Path

from ray_precheck.errors import DeviceError
from ray_precheck.schema.task import DeviceSlot


def seen_folders(folders: Iterable[Path | None], *, is_home: bool) -> tuple[Path, ...]:
    """Return which of these folders another machine has to see: those that are here."""
    return () if is_home else tuple(folder for folder in folders if folder and folder.is_dir())


def require_folders(slot: DeviceSlot, folders: Iterable[Path], what: str) -> None:
    """Refuse a machine that lacks a folder; `what` would be sent to it without --shared-fs.

    Raises:
        DeviceError: one of them is not there.
    """
    for folder in folders:
        if not folder.is_dir():
            raise DeviceError(
                f"{slot.address} has no folder {str(folder)!r}, which --shared-fs says that all"
                f" machines share; without --shared-fs {what} are sent to it"
            )
