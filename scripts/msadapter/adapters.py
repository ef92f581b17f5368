"""The releases of MSAdapter that are tried, each with a MindSpore and a Python that import it.

Goes out: `ADAPTERS`. Called by `main`, `layout` and `trial`.
"""

from dataclasses import dataclass

_TORCH = "torch==2.13.0"
# Nearly MindSpore 2.4, for which MindTorch 0.4.0 was written; no wheel of 2.1 to 2.6 itself is to be had.
_MINDSPORE_DEV = "mindspore-dev==2.5.0.dev20250119"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A release, and the environment in which it is tried.

    `host` are requirements as pip takes them, `module` is the module of the release that stands for
    torch, `own_way` the import by which the release itself puts it there ("" where it has none).
    `lost` are the left and right types of powers whose registrations the release looks up and this
    MindSpore has no more. `runs` says whether this package runs on that Python: elsewhere the captured
    results are checked instead.
    """

    name: str
    requirement: str
    python: str
    host: tuple[str, ...]
    module: str
    own_way: str = ""
    lost: tuple[tuple[str, str], ...] = ()
    runs: bool = True

    @property
    def functional(self) -> str:
        """The file of `torch.nn.functional`, from the folder of packages."""
        return f"{self.module.replace('.', '/')}/nn/functional.py"


_LOST_IN_25 = (("Tuple", "Tensor"), ("Tensor", "Tuple"), ("List", "Tensor"), ("Tensor", "List"))

ADAPTERS = (
    Adapter(
        "msadapter-0.1.0-ms20",
        "msadapter==0.1.0",
        "3.9",
        # It asks for neither; MindSpore 2.0 uses a name that Pillow 10 has no more.
        ("mindspore==2.0.0", "pillow<10", "typing_extensions"),
        "msadapter.pytorch",
        runs=False,
    ),
    Adapter(
        "msadapter-0.1.0",
        "msadapter==0.1.0",
        "3.11",
        (_TORCH, _MINDSPORE_DEV, "numpy<2", "typing_extensions"),
        "msadapter.pytorch",
        lost=_LOST_IN_25,
    ),
    Adapter(
        "mindtorch-0.4.0",
        "mindtorch==0.4.0",
        "3.11",
        (_TORCH, _MINDSPORE_DEV, "numpy<2", "ml_dtypes<0.6"),
        "mindtorch.torch",
        own_way="from mindtorch.tools import mstorch_enable",
        lost=_LOST_IN_25,
    ),
    Adapter(
        "mindnlp-0.5.1",
        "mindnlp==0.5.1",
        "3.11",
        (_TORCH, "mindspore==2.7.0", "numpy<2", "ml_dtypes<0.6", "safetensors"),
        "mindtorch",
        own_way="import mindtorch",
    ),
)
