"""The table of references: `mindspore.mint` and `mindspore.mint.nn.functional`.

Every name that is not here has a namesake in torch with the same meaning. A row says where names,
order or types of the arguments differ. How a signature is written:
`frameworks.pytorch.signatures`. Checked against MindSpore 2.10 and torch 2.13.
"""

from ray_precheck.frameworks.mindspore.bench import indexed, references
from ray_precheck.frameworks.pytorch.signatures import Row, names, rows

# Elementwise operators of two operands, each of which may be a Python number in MindSpore.
ELEMENTWISE = names(
    """div divide floor_divide fmod remainder pow eq ne lt le gt ge less less_equal greater
    greater_equal not_equal maximum minimum atan2 arctan2 bitwise_and bitwise_or bitwise_xor
    logical_and logical_or logical_xor logaddexp logaddexp2 xlogy float_power mul gcd
    isclose"""
)
# The same, where only Tensor and mindspore.ops have them.
MORE_ELEMENTWISE = names(
    """fmax fmin true_divide hypot lcm nextafter igamma igammac heaviside copysign
    bitwise_left_shift bitwise_right_shift ldexp"""
)
_SECOND = {"pow": "exponent", "float_power": "exponent", "heaviside": "values"}
_EXTRA = {
    "div": " * rounding_mode?",
    "divide": " * rounding_mode?",
    "isclose": " rtol atol equal_nan",
}


def elementwise(name: str, first: str = "input", second: str = "") -> tuple[Row, ...]:
    """Return the rows of an elementwise operator of two operands.

    `second` is MindSpore's name of the second operand, if torch's differs.
    """
    torch_name = _SECOND.get(name, "other")
    operand = f"{second or torch_name}>{torch_name}&"
    return rows(f"Torch.{name}", f"{first}& {operand}{_EXTRA.get(name, '')}")


def alike(target: str, signature: str, text: str) -> dict[str, tuple[Row, ...]]:
    """Return the rows of operators that differ from torch's namesakes in the same way, by their names.

    `target` is where torch has them: `Torch`, `Functional`.
    """
    return {name: rows(f"{target}.{name}", signature) for name in text.split()}


_ADDITIVE = "input& other& * alpha"
_NORM = "dim keepdim * dtype"
_LOSS = "input target reduction"

MINT_ROWS: dict[str, tuple[Row, ...]] = {
    **{f"Mint.{name}": elementwise(name) for name in sorted(ELEMENTWISE)},
    "Mint.add": rows("Torch.add", _ADDITIVE),
    "Mint.sub": rows("Torch.sub", _ADDITIVE),
    "Mint.addcdiv": rows(references.linear_quotient, "input tensor1>left tensor2>right * value"),
    "Mint.addcmul": rows(references.linear_combination, "input tensor1>left tensor2>right * value"),
    "Mint.addr_": rows("Tensor.addr_", "input vec1 vec2 beta alpha"),
    "Mint.all": rows("Torch.all", "input dim? keepdim"),
    "Mint.any": rows("Torch.any", "input dim? keepdim"),
    "Mint.arcsin": rows("Torch.arcsin", "x"),
    "Mint.argsort": rows("Torch.argsort", "input dim=-1 descending=False stable=False"),
    "Mint.batch_norm_stats": rows(references.batch_norm_stats, "input eps"),
    "Mint.batch_norm_elemt": rows(
        references.batch_norm_elemt, "input weight bias mean? invstd? eps"
    ),
    "Mint.broadcast_to": rows("Torch.broadcast_to", "input shape>size"),
    "Mint.count_nonzero": rows("Torch.count_nonzero", "input dim"),
    "Mint.cumprod": rows("Torch.cumprod", "input dim dtype"),
    "Mint.cumsum": rows("Torch.cumsum", "input dim dtype"),
    "Mint.dot": rows("Torch.dot", "input other>tensor"),
    "Mint.eye": rows("Torch.eye", "n m? dtype"),
    "Mint.gather": rows("Torch.gather", "input dim index^"),
    "Mint.index_add": rows("Torch.index_add", "input dim index^ source * alpha"),
    "Mint.isnan": rows("Torch.isnan", "tensor"),
    "Mint.linalg.matrix_norm": rows("Torch.linalg.matrix_norm", f"A ord='fro' {_NORM}"),
    "Mint.linalg.norm": rows("Torch.linalg.norm", f"A ord {_NORM}"),
    "Mint.linalg.vector_norm": rows("Torch.linalg.vector_norm", f"x ord=2 {_NORM}"),
    "Mint.linalg.inv": rows("Torch.linalg.inv", "A", "input"),
    "Mint.max": rows("Torch.max", "input", "input dim:int! keepdim", "input& other&"),
    "Mint.mean": rows("Torch.mean", "input dim=None keepdim=False * dtype"),
    "Mint.median": rows("Torch.median", "input dim? keepdim"),
    "Mint.min": rows("Torch.min", "input", "input dim:int! keepdim", "input& other&"),
    "Mint.npu_gelu": rows("Functional.gelu", "input approximate"),
    "Mint.prod": rows(references.prod, "input dim keepdim * dtype"),
    "Mint.repeat_interleave": rows(
        references.repeat_interleave, "input repeats dim>axis * output_size"
    ),
    "Mint.roll": rows("Torch.roll", "input shifts dims?"),
    "Mint.scatter": rows(indexed.scatter, "input dim index src"),
    "Mint.scatter_add": rows("Torch.scatter_add", "input dim index^ src"),
    "Mint.searchsorted": rows(
        "Torch.searchsorted",
        "sorted_sequence values>input * out_int32=False right=False side? sorter?",
    ),
    "Mint.softmax": rows("Torch.softmax", "input dim * dtype"),
    "Mint.special.log_softmax": rows("Functional.log_softmax", "input dim * dtype"),
    "Mint.special.round": rows("Torch.round", "input * decimals"),
    "Mint.sum": rows("Torch.sum", "input dim=None keepdim=False * dtype"),
    "Mint.take": rows("Torch.take", "input index^"),
    "Mint.triangular_solve": rows("Torch.triangular_solve", "b A upper transpose unitriangular"),
    "Mint.where": rows("Torch.where", "condition input other", "input"),
    # torch's losses have `size_average` and `reduce` before `reduction`.
    "MintFunctional.binary_cross_entropy": rows(
        "Functional.binary_cross_entropy", "input target weight reduction"
    ),
    "MintFunctional.binary_cross_entropy_with_logits": rows(
        "Functional.binary_cross_entropy_with_logits", "input target weight reduction pos_weight"
    ),
    "MintFunctional.broadcast_to": rows("Torch.broadcast_to", "input shape>size"),
    "MintFunctional.cosine_embedding_loss": rows(
        "Functional.cosine_embedding_loss", "input1 input2 target margin reduction"
    ),
    "MintFunctional.cross_entropy": rows(
        references.cross_entropy, "input target weight ignore_index reduction label_smoothing"
    ),
    "MintFunctional.elu_ext": rows("Functional.elu", "input alpha"),
    "MintFunctional.kl_div": rows("Functional.kl_div", f"{_LOSS} log_target"),
    "MintFunctional.l1_loss": rows("Functional.l1_loss", _LOSS),
    "MintFunctional.log_softmax": rows("Functional.log_softmax", "input dim * dtype"),
    "MintFunctional.max_unpool2d": rows(
        "Functional.max_unpool2d", "input indices^ kernel_size stride padding output_size?"
    ),
    "MintFunctional.mse_loss": rows("Functional.mse_loss", _LOSS),
    "MintFunctional.nll_loss": rows(
        references.nll_loss, "input target weight ignore_index reduction"
    ),
    "MintFunctional.one_hot": rows("Functional.one_hot", "tensor^ num_classes"),
    "MintFunctional.sigmoid_": rows("Tensor.sigmoid_", "input"),
    "MintFunctional.smooth_l1_loss": rows("Functional.smooth_l1_loss", f"{_LOSS} beta"),
    "MintFunctional.soft_margin_loss": rows("Functional.soft_margin_loss", _LOSS),
    "MintFunctional.softmax": rows("Functional.softmax", "input dim dtype"),
}
