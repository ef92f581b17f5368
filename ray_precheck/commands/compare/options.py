"""The configuration of a comparison of two captures."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.options.declared import REQUIRED, OneOf, Takes, option
from ray_precheck.options.shared import (
    MEGENGINE,
    CoreJobOptions,
    LayoutOptions,
    OutFolderOptions,
    golden_capture,
    largest_error,
    noise_capture,
    pairing,
    require_megengine,
    target_capture,
)

CAPTURE_STANDARDS = (
    "msprobe",
    "ptdbg",
    "npu-hooks",
    MEGENGINE,
    "precision_tool",
    "assert-close",
    "auto",
)


def _file(word: str | None) -> Path | None:
    """Return the path that an option was given, None where it was given alone."""
    return Path(word) if word else None


@dataclass(frozen=True, kw_only=True)
class MappingOptions:
    """Files that say which names belong together."""

    section: ClassVar[str] = "names that differ, in msprobe's YAML form"

    api_mapping: Path | None = option(
        None,
        "-am",
        "--api_mapping",
        help="pairs of operators, with the numbers of arguments that belong together",
        more="Without a file nothing changes: operators of MindSpore and PyTorch are paired by name anyway",
        takes=Takes.PERHAPS,
        metavar="YAML",
        becomes=_file,
    )
    cell_mapping: Path | None = option(
        None,
        "-cm",
        "--cell_mapping",
        help="pairs of modules and Cells",
        takes=Takes.PERHAPS,
        metavar="YAML",
        becomes=_file,
    )
    data_mapping: Path | None = option(
        None,
        "-dm",
        "--data_mapping",
        help="pairs of single inputs and outputs",
        takes=Takes.ONCE,
        metavar="YAML",
        becomes=Path,
    )


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig(MappingOptions, LayoutOptions, OutFolderOptions, CoreJobOptions):
    """The settings of a comparison: the captures that are compared, and how their calls are paired."""

    section: ClassVar[str] = "what is compared"

    target: Path = target_capture("the capture that is judged")
    golden: Path = golden_capture(
        REQUIRED,
        "the capture that it is compared with",
        "Folders of ranks are paired by step and number; a single `proc{PID}` on each side is a pair"
        " whatever its number",
    )
    noise: Path | None = noise_capture(
        more="Its relative L2 difference from the golden run stands beside each row; `--standard auto`"
        " allows a tensor a small multiple of it",
    )
    match: str = pairing(
        more="`align` follows inserted, removed, renamed, fused and split calls and shifted numbers;"
        " `exact` pairs the same names and nothing else, as msprobe does",
        rows="match",
    )
    standard: str = option(
        "msprobe",
        "--standard",
        help="{choices} (default: {default}): what is an error",
        more="`auto` is recommended: it knows the dtype, the length of sums, and the noise of `--noise`"
        " ([standards](../trace/difference/README.md#standards))",
        rule=OneOf(CAPTURE_STANDARDS),
        rows="standard",
    )
    max_err: float | None = largest_error()
    strict: bool = option(
        False,
        "--strict",
        help="exit with 1 for warnings, unmatched rows and dumps without a partner, too",
        takes=Takes.NOTHING,
    )

    def validate(self) -> None:
        """Check the values that can be checked without the dumps or the machine.

        Raises:
            UsageError: names the option, its value and the value that is expected.
        """
        super().validate()
        require_megengine(self.max_err, self.standard)
