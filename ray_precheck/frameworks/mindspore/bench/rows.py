"""The tables of references: `mindspore.mint`, `mindspore.mint.nn.functional`, and methods of Tensor.

Every name that is not here has a namesake in torch with the same meaning. A row says where names,
order or types of the arguments differ. How a signature is written:
`frameworks.pytorch.signatures`. Checked against MindSpore 2.10 and torch 2.13.

Many methods of Tensor have two overloads, one as in NumPy (`axis`, `keepdims`) and one as in torch (`dim`,
`keepdim`); a call means the first row that takes its arguments. `TENSOR_NAMESAKES` were compared with torch
one by one.
"""

import torch

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
        "Functional.cross_entropy", "input target^ weight ignore_index reduction label_smoothing"
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
        "Functional.nll_loss", "input target^ weight ignore_index reduction"
    ),
    "MintFunctional.one_hot": rows("Functional.one_hot", "tensor^ num_classes"),
    "MintFunctional.sigmoid_": rows("Tensor.sigmoid_", "input"),
    "MintFunctional.smooth_l1_loss": rows("Functional.smooth_l1_loss", f"{_LOSS} beta"),
    "MintFunctional.soft_margin_loss": rows("Functional.soft_margin_loss", _LOSS),
    "MintFunctional.softmax": rows("Functional.softmax", "input dim dtype"),
}

TENSOR_NAMESAKES = names(
    """abs absolute acos acosh add_ addbmm addmm addmm_ adjoint allclose angle arccos arccosh arcsin
    arcsinh arctan arctanh argwhere asin asinh atan atanh baddbmm bincount bitwise_not bmm ceil
    cholesky cholesky_inverse cholesky_solve clamp clamp_ clip clone contiguous copy_ cos cosh cov
    cross deg2rad det diagflat diagonal_scatter digamma dim div_ dsplit erf erfc erfinv erfinv_ exp
    exp_ expand expm1 fill_ fill_diagonal_ flip fliplr flipud floor floor_ floor_divide_ frac ger
    hardshrink histc hsplit i0 imag inner inverse is_complex
    is_floating_point is_signed isfinite isinf isneginf isposinf isreal item kthvalue lerp lgamma
    log log10 log1p log2 log_ logdet logical_not logit logsumexp lu_solve masked_fill masked_fill_
    masked_scatter masked_scatter_ masked_select matrix_power mm moveaxis movedim msort mul_
    mvlgamma nan_to_num ndimension neg negative nelement new_full new_ones new_zeros nonzero numel
    orgqr ormqr outer positive qr rad2deg ravel real reciprocal remainder_ repeat reshape
    reshape_as rot90 round rsqrt sgn sigmoid sigmoid_ sign sign_ signbit sin sinc sinh slogdet
    sqrt square sum_to_size swapdims t tan tanh tanh_ triangular_solve tril triu trunc
    type_as unbind unique unique_consecutive view_as vsplit zero_
    __abs__ __add__ __and__ __bool__ __eq__ __float__ __floordiv__ __ge__ __gt__ __iadd__
    __ifloordiv__ __imod__ __imul__ __index__ __int__ __isub__ __itruediv__ __le__
    __len__ __lt__ __matmul__ __mod__ __mul__ __ne__ __neg__ __or__ __pos__ __pow__ __radd__
    __rfloordiv__ __rmatmul__ __rmod__ __rmul__ __rpow__ __rsub__ __rtruediv__ __setitem__ __sub__
    __truediv__ __xor__"""
)

_FLOATS = ("float", "half", "double", "bfloat16")
_WRITES = ("sub", "mul", "div", "max", "min")
_ND = "self indices updates"
_KEEP = "keepdims>keepdim"

# Elementwise operators whose methods have overloads, or take no Python number.
OWN_OVERLOADS = names("float_power fmod isclose logical_and logical_or remainder")
TENSOR_ROWS: dict[str, tuple[Row, ...]] = {
    **{
        f"Tensor.{name}": elementwise(name, "self")
        for name in (ELEMENTWISE | MORE_ELEMENTWISE) - OWN_OVERLOADS
    },
    **{f"Tensor.{name}": rows(references.to_float, "self") for name in _FLOATS},
    **{f"Tensor.scatter_{how}": rows(indexed.SCATTER_ND[how], _ND) for how in _WRITES},
    "Tensor.__contains__": rows(references.contains, "self element"),
    "Tensor.__getitem__": rows(references.getitem, "self index"),
    # `~x` is the logical complement in MindSpore, also of integers.
    "Tensor.__invert__": rows("Torch.logical_not", "self"),
    "Tensor.__req__": rows("Torch.eq", "self other&"),
    "Tensor.__round__": rows("Torch.round", "self"),
    "Tensor.add": rows("Torch.add", "self other& * alpha"),
    "Tensor.addcdiv": rows(references.linear_quotient, "self tensor1>left tensor2>right value"),
    "Tensor.addcmul": rows(references.linear_combination, "self tensor1>left tensor2>right value"),
    "Tensor.addmv": rows("Torch.addmv", "self mat vec beta alpha"),
    "Tensor.addr": rows("Torch.addr", "self vec1 vec2 beta alpha"),
    "Tensor.all": rows("Torch.all", "self dim? keepdim", "self axis>dim? keep_dims>keepdim"),
    "Tensor.amax": rows("Torch.amax", f"self axis>dim?=() {_KEEP} * initial>:unused where>:unused"),
    "Tensor.amin": rows("Torch.amin", f"self axis>dim?=() {_KEEP} * initial>:unused where>:unused"),
    "Tensor.aminmax": rows("Torch.aminmax", f"self * axis>dim=0 {_KEEP}"),
    "Tensor.any": rows("Torch.any", "self dim? keepdim", "self axis>dim? keep_dims>keepdim"),
    "Tensor.approximate_equal": rows(references.approximate_equal, "self other tolerance"),
    "Tensor.argmax": rows("Torch.argmax", "self dim keepdim", f"self axis>dim {_KEEP}"),
    "Tensor.argmax_with_value": rows(references.max_with_index, "self axis=0 keep_dims>keepdims"),
    "Tensor.argmin": rows("Torch.argmin", "self dim keepdim", f"self axis>dim {_KEEP}"),
    "Tensor.argmin_with_value": rows(references.min_with_index, "self axis=0 keep_dims>keepdims"),
    "Tensor.argsort": rows(
        "Torch.argsort", "self dim=-1 descending=False stable=False", "self axis>dim descending"
    ),
    "Tensor.astype": rows(references.cast, "self dtype copy"),
    "Tensor.bool": rows("Tensor.bool", "self"),
    "Tensor.broadcast_to": rows("Torch.broadcast_to", "self *shape>size"),
    "Tensor.byte": rows("Tensor.byte", "self"),
    "Tensor.chunk": rows("Torch.chunk", "self chunks dim", "self chunks axis>dim"),
    "Tensor.conj": rows("Torch.conj", "self"),
    "Tensor.copy": rows("Torch.clone", "self"),
    "Tensor.count_nonzero": rows(
        references.count_nonzero, "self dim>axis", "self axis keep_dims dtype"
    ),
    "Tensor.cummax": rows("Torch.cummax", "self axis>dim"),
    "Tensor.cummin": rows("Torch.cummin", "self axis>dim"),
    "Tensor.cumprod": rows("Torch.cumprod", "self dim dtype"),
    "Tensor.cumsum": rows(references.cumsum_flat, "self axis dtype", "self dim>axis * dtype"),
    "Tensor.diag": rows(references.diag, "self diagonal"),
    "Tensor.diagonal": rows("Torch.diagonal", "self offset axis1>dim1 axis2>dim2"),
    "Tensor.diff": rows("Torch.diff", "self n axis>dim prepend append"),
    "Tensor.dot": rows(references.dot, "self other"),
    # mindspore.Tensor.equal compares element by element, torch.Tensor.equal whole tensors.
    "Tensor.equal": rows("Torch.eq", "self other&"),
    "Tensor.expand_as": rows("Tensor.expand_as", "self other", "self x>other"),
    "Tensor.expand_dims": rows("Torch.unsqueeze", "self axis>dim"),
    "Tensor.fill": rows("Torch.full_like", "self value>fill_value?=0"),
    "Tensor.fill_diagonal": rows(references.fill_diagonal, "self fill_value wrap"),
    "Tensor.fills": rows("Torch.full_like", "self value>fill_value?=0"),
    "Tensor.flatten": (
        *rows("Torch.flatten", "self start_dim:int end_dim"),
        *rows(references.flatten_fortran, "self order:str * start_dim end_dim"),
    ),
    "Tensor.float_power": rows("Torch.float_power", "self other>exponent&", "self exponent&"),
    "Tensor.fmod": rows("Torch.fmod", "self other"),
    "Tensor.fold": rows(references.fold, "self output_size kernel_size dilation padding stride"),
    "Tensor.gather": (
        *rows("Torch.gather", "self dim:int! index^"),
        *rows(indexed.gather, "self input_indices>indices:tensor axis batch_dims"),
    ),
    "Tensor.gather_elements": rows("Torch.gather", "self dim index^"),
    "Tensor.gather_nd": rows(indexed.gather_nd, "self indices^"),
    "Tensor.index_add": (
        *rows("Torch.index_add", "self dim:int! index^ source * alpha"),
        *rows(
            "Torch.index_add",
            "self indices>index:tensor y>source axis>dim use_lock> check_index_bound>",
        ),
    ),
    "Tensor.index_add_": rows("Tensor.index_add_", "self dim index^ source * alpha"),
    "Tensor.index_fill_": rows("Tensor.index_fill_", "self dim index^ value"),
    "Tensor.index_copy_": rows("Tensor.index_copy_", "self dim index^ source"),
    "Tensor.index_fill": rows("Torch.index_fill", "self axis>dim index^ value"),
    "Tensor.index_put": rows(indexed.index_put, "self indices values accumulate"),
    "Tensor.index_put_": rows(indexed.index_put_, "self indices values accumulate"),
    "Tensor.index_select": rows("Torch.index_select", "self dim index", "self axis>dim index"),
    "Tensor.int": rows("Tensor.int", "self"),
    # mindspore.Tensor.inv is 1 / x element by element; the matrix's inverse is Tensor.inverse.
    "Tensor.inv": rows("Torch.reciprocal", "self"),
    "Tensor.invert": rows("Torch.bitwise_not", "self"),
    "Tensor.isclose": rows(
        "Torch.isclose", "self other rtol atol equal_nan", "self x2>other rtol atol equal_nan"
    ),
    "Tensor.isnan": rows("Torch.isnan", "self"),
    "Tensor.log_matrix_determinant": rows("Torch.slogdet", "self"),
    "Tensor.logcumsumexp": rows("Torch.logcumsumexp", "self axis>dim"),
    "Tensor.logical_and": rows("Torch.logical_and", "self other&", "self y>other&"),
    "Tensor.logical_or": rows("Torch.logical_or", "self other&", "self y>other&"),
    "Tensor.long": rows("Tensor.long", "self"),
    "Tensor.matmul": rows("Torch.matmul", "self other", "self tensor2>other"),
    "Tensor.matrix_determinant": rows("Torch.det", "self"),
    "Tensor.max": (
        *rows("Torch.max", "self", "self dim:int! keepdim"),
        *rows(
            references.extreme(torch.amax, references.max_with_index),
            "self axis keepdims * initial>:unused where>:unused return_indices",
        ),
    ),
    "Tensor.mean": rows(
        "Torch.mean", "self dim=None keepdim=False * dtype", "self axis>dim=None keep_dims>keepdim"
    ),
    "Tensor.median": (
        *rows("Torch.median", "self dim:int! keepdim", "self axis>dim:int! keepdims>keepdim"),
        *rows(references.median_of_all, "self"),
    ),
    "Tensor.min": (
        *rows("Torch.min", "self", "self dim:int! keepdim"),
        *rows(
            references.extreme(torch.amin, references.min_with_index),
            "self axis keepdims * initial>:unused where>:unused return_indices",
        ),
    ),
    "Tensor.multiply": rows("Torch.mul", "self value>other", "self other"),
    "Tensor.nanmean": rows("Torch.nanmean", f"self axis>dim=None {_KEEP} * dtype"),
    "Tensor.nanmedian": rows("Torch.nanmedian", f"self axis>dim=-1 {_KEEP}=False"),
    "Tensor.nanquantile": rows("Torch.nanquantile", f"self q axis>dim {_KEEP}"),
    "Tensor.nansum": rows(
        "Torch.nansum", "self dim=None keepdim=False * dtype", f"self axis>dim=None {_KEEP} * dtype"
    ),
    "Tensor.narrow": rows("Torch.narrow", "self dim start length", "self axis>dim start length"),
    "Tensor.norm": rows("Torch.linalg.norm", "self ord dim keepdim * dtype"),
    "Tensor.permute": rows("Torch.permute", "self *dims", "self *axis>dims"),
    "Tensor.prod": rows(
        references.prod, "self dim keepdim:bool dtype", "self axis>dim keep_dims>keepdim dtype"
    ),
    "Tensor.ptp": rows(references.peak_to_peak, "self axis keepdims"),
    "Tensor.put_": rows("Tensor.put_", "self index^ source accumulate"),
    "Tensor.quantile": rows("Torch.quantile", f"self q axis>dim {_KEEP}"),
    "Tensor.remainder": rows("Torch.remainder", "self other&", "self divisor>other&"),
    "Tensor.renorm": rows("Torch.renorm", "self p axis>dim maxnorm"),
    "Tensor.repeat_interleave": rows(
        references.repeat_interleave, "self repeats dim>axis * output_size"
    ),
    "Tensor.reverse": rows(references.reverse, "self axis"),
    "Tensor.reverse_sequence": rows(indexed.reverse_sequence, "self seq_lengths seq_dim batch_dim"),
    "Tensor.roll": rows("Torch.roll", "self shifts dims?"),
    "Tensor.scatter": rows(indexed.scatter, "self dim index src reduce", "self axis>dim index src"),
    "Tensor.scatter_": rows(
        indexed.scatter_, "self dim index src * reduce", "self dim index value>src * reduce"
    ),
    "Tensor.scatter_add": (
        *rows("Torch.scatter_add", "self dim:int! index^ src"),
        *rows(indexed.scatter_nd_add, "self indices:tensor updates"),
    ),
    "Tensor.scatter_add_": rows("Tensor.scatter_add_", "self dim index^ src"),
    "Tensor.searchsorted": rows(references.searchsorted, "self v side sorter"),
    "Tensor.select": (
        *rows("Torch.select", "self dim:int! index"),
        *rows("Tensor.where", "self condition y>other"),
    ),
    "Tensor.select_scatter": rows("Torch.select_scatter", "self src axis>dim index"),
    "Tensor.short": rows("Tensor.short", "self"),
    "Tensor.slice_scatter": rows("Torch.slice_scatter", "self src axis>dim start end step"),
    "Tensor.soft_shrink": rows("Functional.softshrink", "self lambd"),
    "Tensor.softmax": rows("Torch.softmax", "self axis>dim dtype"),
    "Tensor.sort": rows("Torch.sort", "self dim=-1 descending=False", "self axis>dim descending")
    + rows("Torch.sort", "self dim=-1 descending=False stable=False"),
    "Tensor.split": rows(
        "Torch.split",
        "self split_size>split_size_or_sections dim",
        "self split_size_or_sections axis>dim",
    ),
    "Tensor.squeeze": rows("Torch.squeeze", "self axis>dim?", "self dim"),
    "Tensor.std": (
        *rows("Torch.std", f"self axis>dim=None ddof>correction=0 {_KEEP}=False"),
        *rows("Torch.std", "self dim=None * correction! keepdim=False"),
        *rows(references.std_by_dim, "self dim * keepdim"),
    ),
    "Tensor.sub": rows("Torch.sub", "self other& * alpha", "self y>other&"),
    "Tensor.sub_": rows("Tensor.sub_", "self other alpha", "self y>other"),
    "Tensor.subtract": rows("Torch.sub", "self other& * alpha"),
    "Tensor.sum": rows(
        "Torch.sum",
        "self dim=None keepdim:bool=False * dtype",
        f"self axis>dim=None dtype:dtype=None {_KEEP}=False initial>:unused",
    ),
    "Tensor.lstsq": rows(references.lstsq, "self A>a"),
    "Tensor.svd": rows(references.singular_values, "self full_matrices compute_uv"),
    "Tensor.swapaxes": rows("Torch.swapaxes", "self axis0 axis1", "self axis1>axis0 axis2>axis1"),
    "Tensor.take": rows(indexed.take, "self indices axis mode", "self index>indices"),
    "Tensor.tensor_split": rows(references.tensor_split, "self indices_or_sections axis"),
    "Tensor.tile": rows("Torch.tile", "self *dims", "self *reps>dims"),
    "Tensor.to": rows(
        references.to,
        "self dtype>target:dtype non_blocking> copy>",
        "self other>target:tensor non_blocking> copy>",
        "self device> dtype>target:dtype non_blocking> copy>",
    ),
    "Tensor.top_k": rows("Torch.topk", "self k sorted"),
    "Tensor.topk": rows("Torch.topk", "self k dim? largest sorted"),
    "Tensor.trace": rows(references.trace, "self offset axis1 axis2 dtype"),
    "Tensor.transpose": (
        *rows("Torch.transpose", "self dim0:int! dim1:int!"),
        *rows(references.transpose, "self *axes"),
    ),
    "Tensor.unfold": rows("Functional.unfold", "self kernel_size dilation padding stride"),
    "Tensor.unsorted_segment_prod": rows(indexed.segment_prod, "self segment_ids num_segments"),
    "Tensor.unsqueeze": rows("Torch.unsqueeze", "self dim", "self axis>dim"),
    "Tensor.value": rows("Torch.clone", "self"),
    "Tensor.var": rows(
        "Torch.var",
        f"self axis>dim=None ddof>correction=0 {_KEEP}=False",
        "self dim=None * correction=1 keepdim=False",
    ),
    "Tensor.view": rows("Torch.reshape", "self *shape"),
    "Tensor.where": rows("Tensor.where", "self condition other", "self condition y>other"),
    "Tensor.xdivy": rows(references.xdivy, "self y>other"),
}
