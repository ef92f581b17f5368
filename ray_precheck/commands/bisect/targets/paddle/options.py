"""The options of `bisect paddle`, each declared once."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.commands.bisect.options import ModelConfig
from ray_precheck.options.declared import REQUIRED, Takes, option


@dataclass(frozen=True, kw_only=True)
class PaddleOptions:
    """What is run."""

    section: ClassVar[str] = "the model"

    model: Path = option(
        REQUIRED,
        "model",
        help="a model of Paddle: .json (PIR) or .pdmodel",
        metavar="MODEL",
        becomes=Path,
    )
    params: Path | None = option(
        None,
        "--params",
        help="its parameters (default: the .pdiparams beside it)",
        metavar="FILE",
        becomes=Path,
    )
    input: Path | None = option(
        None,
        "--input",
        help="its inputs, an .npz file with an array for each (default: those of the golden run, or made up)",
        metavar="FILE",
        becomes=Path,
    )
    bf16: bool = option(
        False,
        "--bf16",
        help="it is deployed with enable_onednn_bfloat16(), which is a rung of its own then",
        takes=Takes.NOTHING,
        rows="bf16",
    )
    gpu: bool = option(
        False,
        "--gpu",
        help="it is deployed on the first GPU; TensorRT is a rung of its own then, where Paddle has it",
        takes=Takes.NOTHING,
        rows="gpu",
    )
    library: tuple[str, ...] = option(
        (),
        "--library",
        help="a shared library to load first (own operators, kernels or passes); may be given again",
        takes=Takes.EACH,
        metavar="FILE",
        rows="library",
    )
    save_run: Path | None = option(
        None,
        "--save-run",
        help="write what this run is, its outputs and its operators' values with everything off into DIR",
        more="--golden takes it on another machine or with another version",
        metavar="DIR",
        becomes=Path,
    )
    bundle: Path | None = option(
        None,
        "--bundle",
        help="pack what a report needs into this .zip",
        metavar="FILE",
        becomes=Path,
    )


@dataclass(frozen=True)
class PaddleConfig(PaddleOptions, ModelConfig):
    """The settings of a search in Paddle Inference."""
