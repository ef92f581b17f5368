"""The options of `bisect onnx`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ray_precheck.commands.bisect.options import ModelConfig
from ray_precheck.errors import UsageError
from ray_precheck.options.declared import REQUIRED, Takes, option


def sized_dimensions(option_name: str, value: Any) -> None:
    """Require words like `batch=4`.

    Raises:
        UsageError: names the first that is none.
    """
    for word in value:
        name, _, size = word.partition("=")
        if not (name and size.isdecimal() and int(size) > 0):
            raise UsageError(
                f"{option_name} {word!r} is wrong: write the dimension's name and its size, batch=4"
            )


@dataclass(frozen=True, kw_only=True)
class OnnxOptions:
    """The model, and how it is deployed."""

    section: ClassVar[str] = "the model"

    model: Path = option(
        REQUIRED, "model", help="an .onnx file", metavar="MODEL", becomes=Path, rows="model"
    )
    input: Path | None = option(
        None,
        "--input",
        help="its inputs by name, an .npz file (default: random ones)",
        metavar="FILE",
        becomes=Path,
    )
    shape: tuple[str, ...] = option(
        (),
        "--shape",
        help="the size of a dimension that has a name, for random inputs (default: 1 in front, else 16)",
        metavar="NAME=N",
        takes=Takes.EACH,
        becomes=tuple,
        rule=sized_dimensions,
        rows="shape",
    )
    provider: tuple[str, ...] = option(
        (),
        "--provider",
        help="an execution provider of the deployed session, the first one first (default: all there are)",
        metavar="NAME",
        takes=Takes.EACH,
        becomes=tuple,
        rows="provider",
    )
    disabled: tuple[str, ...] = option(
        (),
        "--disabled",
        help="an optimizer that the deployed session disables: it is off in every trial",
        metavar="NAME",
        takes=Takes.EACH,
        becomes=tuple,
        rows="disabled",
    )


@dataclass(frozen=True)
class OnnxConfig(OnnxOptions, ModelConfig):
    """The settings of a search in the optimizers of ONNX Runtime."""
