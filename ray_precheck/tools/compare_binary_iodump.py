"""`compare_binary_iodump`: which variables differ in two folders of `--bin-io-dump`.

    python -m ray_precheck.tools.compare_binary_iodump FOLDER FOLDER [-e MAX_ERR] [-s]

Comes in: two folders, or two files of variables. Goes out: a text, in the form of MegEngine 1.13's tool of
this name, that `accuracy_shake_var_tree` reads; the smallest variable comes first. What one folder lacks, and
files that cannot be read, are said on standard error, and the others are compared. `compare --standard
megengine` of `ray-precheck` tells more of the same folders.
"""

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.errors import DumpError, PrecheckError, UsageError
from ray_precheck.foreign import open_file, printable
from ray_precheck.formats.megengine_variables import TornError, read_variable
from ray_precheck.options.commands import IN_ERROR, PASSED, UNUSABLE
from ray_precheck.options.shared import MAX_ERR
from ray_precheck.schema.dtypes import Array

_NUMBER = re.compile(r"[0-9a-f]+")
_SHOWN = 5


def load_tensor_binary(fobj: str | os.PathLike[str] | BufferedReader) -> tuple[Array, str]:
    """Return the values and the title of a variable, of a path or of a file that is open.

    Raises:
        DumpError: it is no file of a variable.
    """
    try:
        if isinstance(fobj, str | os.PathLike):
            with open_file(fobj) as file:
                stored = read_variable(file)
        else:
            stored = read_variable(fobj)
    except (TornError, OSError) as error:
        name = fobj if isinstance(fobj, str | os.PathLike) else fobj.name
        raise DumpError(
            f"{name} is no file of a variable, as --bin-io-dump writes it: {error}"
        ) from None
    if stored.values is None:
        raise DumpError(
            f"{stored.title[:80]} has elements of less than 8 bits ({stored.dtype}), which are not read"
        )
    return stored.values, stored.title


def check(v0: Any, v1: Any, name: str, max_err: float) -> None:
    """Require that no element is off by more than `max_err`: |v0 - v1| / max(|v0|, |v1|, 1) in float32.

    Raises:
        AssertionError: an element is, or the shapes differ, or a sum is not finite; `name` stands first.
    """
    one, other = (np.ascontiguousarray(each, dtype=np.float32) for each in (v0, v1))
    with np.errstate(all="ignore"):
        sums = one.sum(), other.sum()
        if not np.isfinite(sums).all():
            raise AssertionError(f"{name} not finite: sum={float(sums[0])} vs sum={float(sums[1])}")
        if one.shape != other.shape:
            raise AssertionError(f"{name} shape mismatch: {one.shape} vs {other.shape}")
        scale = np.maximum(np.maximum(np.abs(one), np.abs(other)), np.float32(1))
        error = np.abs(one - other) / scale
    beyond = error > max_err
    if not beyond.any():
        return
    index = tuple(int(each) for each in np.unravel_index(int(np.argmax(beyond)), one.shape))
    raise AssertionError(
        f"{name} not equal: shape={one.shape} nonequal_idx={index} v0={float(one[index])}"
        f" v1={float(other[index])} err={float(error[index])}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code: 0 whatever differs, as MegEngine's, 1 with -s where
    a variable does, 2 where nothing can be read."""
    parser = argparse.ArgumentParser(
        "compare_binary_iodump", description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument("input0", type=Path, help="a folder of --bin-io-dump, or a file of it")
    parser.add_argument("input1", type=Path, help="the folder, or file, that it is compared with")
    parser.add_argument(
        "-e",
        "--max-err",
        type=float,
        default=MAX_ERR,
        help="the largest error allowed (default %(default)s)",
    )
    parser.add_argument(
        "-s", "--stop-on-error", action="store_true", help="stop at the first variable that differs"
    )
    given = parser.parse_args(arguments)
    try:
        for told in _differences(given.input0, given.input1, given.max_err):
            print(printable_lines(told))
            if given.stop_on_error:
                return IN_ERROR
    except PrecheckError as error:
        print(printable(f"compare_binary_iodump: error: {error}"), file=sys.stderr)
        return UNUSABLE
    return PASSED


def printable_lines(text: str) -> str:
    """Return a text of several lines without control sequences."""
    return "\n".join(map(printable, text.split("\n")))


def _differences(one: Path, other: Path, max_err: float) -> Iterator[str]:
    """Yield the text of each variable that differs."""
    read = 0
    for left, right in _pairs(one, other):
        try:
            (value, title), (value_of_other, title_of_other) = map(
                load_tensor_binary, (left, right)
            )
        except DumpError as error:
            _warn(str(error))
            continue
        read += 1
        both = ("\n  ".join(textwrap.wrap(each)) for each in (title, title_of_other))
        try:
            check(value, value_of_other, f"{left}: \n{next(both)}\n{next(both)}\n", max_err)
        except AssertionError as found:
            yield str(found)
    if not read:
        raise DumpError(
            f"nothing of {one} could be compared with {other}; are both folders of --bin-io-dump?"
        )


def _pairs(one: Path, other: Path) -> list[tuple[Path, Path]]:
    """Return the files of one name in both folders, the smallest variable first."""
    if not one.is_dir() and not other.is_dir():
        return [(one, other)]
    for path in (one, other):
        if not path.is_dir():
            raise UsageError(
                f"{path} is no folder; two folders of --bin-io-dump or two files of them are compared"
            )
    names, names_of_other = ({entry.name for entry in path.iterdir()} for path in (one, other))
    for path, lacking in ((one, names_of_other - names), (other, names - names_of_other)):
        if lacking:
            more = ", ..." if len(lacking) > _SHOWN else ""
            _warn(
                f"{path} lacks {', '.join(sorted(lacking)[:_SHOWN])}{more} ({len(lacking)} files)"
            )
    return [(one / name, other / name) for name in sorted(names & names_of_other, key=_order)]


def _order(name: str) -> tuple[int, str]:
    """Return the number of a variable, which may have more than the 6 digits of nearly all, and its name."""
    found = _NUMBER.match(name)
    return int(found[0], 16) if found else -1, name


def _warn(text: str) -> None:
    print(printable(f"compare_binary_iodump: warning: {text}"), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
