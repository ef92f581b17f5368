"""The configuration of a diagnosis."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.commands.compare.options import CAPTURE_STANDARDS
from ray_precheck.options.declared import OneOf, option
from ray_precheck.options.shared import (
    CoreJobOptions,
    LayoutOptions,
    OutFolderOptions,
    golden_capture,
    noise_capture,
    pairing,
    target_capture,
)


@dataclass(frozen=True, kw_only=True)
class DiagnosisConfig(LayoutOptions, OutFolderOptions, CoreJobOptions):
    """The settings of a diagnosis."""

    section: ClassVar[str] = "what is diagnosed"

    target: Path = target_capture("the capture of the wrong run")
    golden: Path | None = golden_capture(
        None,
        "the capture of a run that is right",
        "Without it nothing is compared, and other inputs, weights and random masks are not found",
    )
    noise: Path | None = noise_capture(", as in `compare`")
    match: str = pairing(", as in `compare`")
    standard: str = option(
        "auto",
        "--standard",
        help="{choices} (default: {default}): what is an error of the comparison",
        more="The precheck of the suspects is always by `auto`",
        rule=OneOf(CAPTURE_STANDARDS),
    )
