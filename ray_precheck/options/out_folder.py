"""The option of the folder of the results of commands that compare captures. A group of a configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.options.declared import Takes, option


@dataclass(frozen=True, kw_only=True)
class OutFolderOptions:
    """Where the results go; `--output_path` is msprobe's name."""

    section: ClassVar[str] = "where the results go"

    out: Path = option(
        Path("./"),
        "-o",
        "--out_path",
        "--output_path",
        help="folder of the results, made if missing (default ./)",
        takes=Takes.ONCE,
        metavar="FOLDER",
        becomes=Path,
    )
