"""The capture of one side of a pair of dumps: that of its dump, or of the dumps of all ranks put together.

Comes in: the paths of the dumps. Goes out: an open `CaptureSide`. Called by the session.
"""

import contextlib
import hashlib
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ray_precheck.trace.gathering import gather_ranks
from ray_precheck.trace.side import CaptureSide, open_side


def opened_side(paths: Sequence[Path], own: Path, held: ExitStack) -> CaptureSide:
    """Open a dump, or that of all ranks, which is made in a folder beside the results (`own`).

    The folder is named for its dumps and gets its name when it is whole: another run that is gone on with,
    or runs at the same time, has the same one.
    """
    if len(paths) == 1:
        return held.enter_context(open_side(paths[0]))
    with ExitStack() as ranks:
        sides = [ranks.enter_context(open_side(path)) for path in paths]
        digests = "".join(side.digest() for side in sides)
        folder = own / f"gathered_{hashlib.sha256(digests.encode()).hexdigest()[:12]}"
        if not folder.is_dir():
            own.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=own, prefix=".gathering_") as made:
                gather_ranks(sides, Path(made, "whole"))
                with contextlib.suppress(OSError):
                    Path(made, "whole").rename(folder)
    return held.enter_context(open_side(folder / "dump.json"))
