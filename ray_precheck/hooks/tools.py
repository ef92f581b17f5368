"""The place of `compare`, which compares two dumps of `wrap_acc_cmp_hook`.

Scripts written for torch_npu.hooks import it at their top, so the name is here already.
"""

import os

from ray_precheck.errors import UsageError


def compare(
    pkl_path1: str | os.PathLike[str],
    pkl_path2: str | os.PathLike[str],
    output_path: str | os.PathLike[str],
    shape_flag: bool = False,
) -> None:
    """Say that this comparison does not exist yet.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        f"compare({os.fspath(pkl_path1)!r}, {os.fspath(pkl_path2)!r}, ..) was called, and this version"
        " cannot compare dumps of hooks yet; both files are complete and can be compared later"
    )
