"""`compare`, which compares two dumps of `wrap_acc_cmp_hook`. The logic stands in `trace.hook_lines`."""

import os
from pathlib import Path

from ray_precheck.trace.hook_lines import compare_lines


def compare(
    pkl_path1: str | os.PathLike[str],
    pkl_path2: str | os.PathLike[str],
    output_path: str | os.PathLike[str],
    shape_flag: bool = False,
) -> None:
    """Compare the lines of an NPU (`pkl_path1`) with those of a reference and write a CSV.

    With `shape_flag` tensors of other shapes are not compared; see `trace.hook_lines.compare_lines`.

    Raises:
        UsageError: a file cannot be read or written, or a line is none of a hook's.
    """
    paths = (Path(os.fspath(each)) for each in (pkl_path1, pkl_path2, output_path))
    compare_lines(*paths, same_shapes=shape_flag)
