"""msprobe's compare on the same pairs: the first row whose Result is `error`.

    python -m scripts.locate_faults.looking.foreign PAIRS ROWS

Comes in: pairs of dump.json, as JSON `[[target, golden], ...]`. Goes out: for each the rows that do not
pass, as JSON `[[[name, result, message], ...], ...]`, null where msprobe raised. `compared` starts it as a
process of its own, whose Python path has msprobe, which is no dependency of this project.
"""

import argparse
import contextlib
import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray_precheck.foreign import caught

MSPROBE = "msprobe"
_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 3600.0
_PARTS = (".input", ".output", ".parameters", ".kwargs")


def compared(
    pairs: Sequence[tuple[Path, Path]], msprobe: Sequence[str]
) -> list[list[list[Any]] | None]:
    """Return for each pair what msprobe names, the first error first; None where it raised."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *msprobe])}
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "pairs.json", Path(folder) / "rows.json"
        asked.write_text(json.dumps([[str(one), str(other)] for one, other in pairs]))
        words = [
            sys.executable,
            "-m",
            "scripts.locate_faults.looking.foreign",
            str(asked),
            str(answered),
        ]
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
        )
        if done.returncode:
            raise SystemExit(f"msprobe's compare failed:\n{(done.stdout + done.stderr)[-2000:]}")
        return json.loads(answered.read_text())  # type: ignore[no-any-return]


def key_of(name: str) -> str:
    """Return the key of a record, with its direction, of the name of an element in a row."""
    for direction in (".forward", ".backward"):
        before, found, _ = name.partition(direction)
        if found:
            return f"{before}{found}"
    return name


def main() -> None:
    """Let msprobe compare each pair."""
    import msprobe.msprobe  # noqa: F401  finds modules of its own
    from msprobe.core.compare.compare_cli import compare_cli
    from msprobe.core.compare.utils import _compare_parser

    parser = argparse.ArgumentParser()
    _compare_parser(parser)
    asked, answered = map(Path, sys.argv[1:])
    found = []
    for target, golden in json.loads(asked.read_text()):
        with tempfile.TemporaryDirectory() as out:
            words = ["--target_path", target, "--golden_path", golden, "--output_path", out]
            with contextlib.redirect_stdout(io.StringIO()):
                _, error = caught(
                    lambda words=words: compare_cli(parser.parse_args(words), ["compare", *words])
                )
            tables = sorted(Path(out).glob("compare_result_*.csv"))
            found.append(None if error is not None or not tables else errors_in(tables[-1]))
    answered.write_text(json.dumps(found))


def errors_in(table: Path) -> list[list[Any]]:
    """Return the keys of the rows with an error, in the order of the table."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["Result"] == "error"]
    keys = dict.fromkeys(key_of(row["NPU Name"]) for row in rows)
    return [[key, 0.0, "", ""] for key in list(keys)[:8]]


if __name__ == "__main__":
    main()
