"""The torch callable that is the reference of a MindSpore API.

Comes in: an `ApiName` of a MindSpore dump. Goes out: a callable that takes MindSpore's arguments.
Called by the bench. `mindspore.mint` was made after torch: the reference is torch's operator of the same
name, and operators that differ have rows. Many Tensor methods and operators of `mindspore.ops` share a
name with a different operator of torch: there only verified names count, all others need rows.
"""

from collections.abc import Callable
from typing import Any

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.denied import require_allowed
from ray_precheck.frameworks.mindspore.bench.rows import MINT_ROWS
from ray_precheck.frameworks.mindspore.bench.rows_ops import OPS_NAMESAKES, OPS_ROWS
from ray_precheck.frameworks.mindspore.bench.rows_primitives import PRIMITIVE_ROWS
from ray_precheck.frameworks.mindspore.bench.rows_rare import RARE_ROWS
from ray_precheck.frameworks.mindspore.bench.rows_tensor import TENSOR_NAMESAKES, TENSOR_ROWS
from ray_precheck.frameworks.mindspore.bench.unmapped import missing_reason
from ray_precheck.frameworks.pytorch.descriptor import NAMESPACES
from ray_precheck.frameworks.pytorch.mapped import mapped
from ray_precheck.frameworks.pytorch.names import absence, resolve_torch
from ray_precheck.operators.table import one_table
from ray_precheck.schema.record import ApiName

_PREFIXES = ("Mint", "MintFunctional", "Tensor", "Functional")
_TORCH_PREFIXES = {
    "Mint": ("Torch", "Functional"),
    "MintFunctional": ("Functional", "Torch"),
    "Tensor": ("Tensor", "Torch"),
    "Functional": ("Torch", "Functional"),
}
_VERIFIED = {"Tensor": TENSOR_NAMESAKES, "Functional": OPS_NAMESAKES}
ROWS = one_table(
    "references of MindSpore", MINT_ROWS, TENSOR_ROWS, OPS_ROWS, RARE_ROWS, PRIMITIVE_ROWS
)


def resolve_mindspore(name: ApiName) -> Callable[..., Any]:
    """Return the reference of a MindSpore API.

    Raises:
        NotCheckable: it is refused by name, or has neither rows nor a verified namesake in torch.
    """
    require_allowed(name, "mindspore")
    rows = ROWS.get(name.type_name)
    if rows is not None:
        return mapped(name.type_name, rows)
    has_namesake = name.prefix in _PREFIXES and name.api in _VERIFIED.get(name.prefix, (name.api,))
    for prefix in _TORCH_PREFIXES[name.prefix] if has_namesake else ():
        try:
            return resolve_torch(ApiName(prefix, name.api, name.number))
        except NotCheckable:
            continue
    reason = missing_reason(name)
    if not reason and has_namesake:
        places = (f"{NAMESPACES[prefix]}.{name.api}" for prefix in _TORCH_PREFIXES[name.prefix])
        reason = absence(" or ".join(places))
    reason = reason or "no operator of torch is known to be the same"
    raise NotCheckable(f"{name.type_name} has no bench: {reason}")
