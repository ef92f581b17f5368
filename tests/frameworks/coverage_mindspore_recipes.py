"""Sample arguments of MindSpore's functions, where those of their namesakes in torch do not fit.

Goes out: for each name, as a dump has it, samples. The table has the names that take the same
arguments as words of one key. Index tensors are int32 where the CPU has kernels for that alone.
"""

from typing import Any

import torch
from coverage_arguments import Call, at, f, i, i32, p
from coverage_records import Sample
from coverage_samples import sampled

from ray_precheck.bench.run import Bench
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.record import ApiName

BENCH = Bench("mindspore")
_X = at(f(3, 4))
_TWO = at(f(3, 4), f(3, 4))
_WITH_NUMBER = at(f(3, 4), 2.5)
_SIGNED = at(f(3, 4, low=-0.9))
_IMAGE = (1, 2, 5, 6)
_PLACES = i([0, 1, 2, 0], [2, 1, 0, 1])
_POINTS = i32([0, 1], [2, 3], [0, 2])
_UPDATES = at(f(3, 4), _POINTS, f(3))
_ROWS = at(p(3, 4), i32(0, 2), p(2, 4))
_SEGMENTS = at(f(3, 4), i32(1, 0, 1), 2)
_FFT, _FFT2 = at(p(8)), at(p(4, 6))


def _each(prefix: str, text: str) -> str:
    return " ".join(f"{prefix}.{name}" for name in text.split())


CALLS: dict[str, Call] = {
    # Operators of one tensor
    _each("Mint", "exp2 fix"): _X,
    "Mint.addr_": at(p(3, 4), p(3), p(4)),
    "Mint.arange Functional.arange": at(0, 5, 1),
    "Mint.full Functional.full": at((2, 3), 1.5),
    "Mint.ones Mint.zeros Functional.ones Functional.zeros": at((2, 3)),
    "Mint.eye Functional.eye": at(3, 4),
    "Functional.cond": at(p(3, 3) + torch.eye(3)),
    "Mint.linspace Functional.linspace": at(0.0, 1.0, 5),
    "Mint.index_add": at(f(3, 4), 0, i32(0, 2), f(2, 4)),
    "Mint.kthvalue Tensor.kthvalue": at(f(3, 4), 2, 1),
    "Mint.permute Tensor.permute Functional.permute": at(f(2, 3, 4), (2, 0, 1)),
    "Mint.select": at(f(3, 4), 1, 2),
    "Mint.tile Tensor.tile Functional.tile": at(f(3, 4), (2, 1)),
    "Mint.unbind": at(f(3, 4), 1),
    "Mint.vdot Functional.vdot": at(f(4), f(4)),
    "Mint.batch_norm_elemt": at(f(2, 3, 4), f(3), f(3), f(3), f(3), 1e-5),
    "Mint.batch_norm_stats": at(p(2, 3, 4), 1e-5),
    "Mint.conv_tbc": at(f(6, 2, 3), f(2, 3, 4), f(4)),
    "Mint.einsum Functional.einsum Functional.einsum_ext": at("ij,jk->ik", f(3, 4), f(4, 2)),
    "Mint.npu_gelu Functional.gelu Functional.fast_gelu": _SIGNED,
    "Mint.searchsorted Functional.searchsorted": at(i(1.0, 2.0, 3.0), p(4, high=4.0)),
    "Tensor.searchsorted": at(i(1.0, 2.0, 3.0), p(4, high=4.0)),
    "Mint.where Functional.where": at(p(3, 4) > 0.5, f(3, 4), f(3, 4)),
    "Mint.item": at(p(1)),
    "Mint.rand Mint.randn": at((3, 4)),
    "Mint.randperm": at(8),
    "Mint.normal": at(0.0, 1.0, (3, 4)),
    "Mint.special.round_op": at(p(3, 4), 1),
    "Tensor.lu_solve Tensor.triangular_solve": at(p(3, 2), torch.eye(3) + 1, i32(1, 2, 3)),
    "Tensor.orgqr": at(p(4, 3), p(3)),
    "Tensor.qr Functional.qr": at(p(3, 3)),
    "Mint.batch_norm_gather_stats_with_counts": at(
        p(2, 3, 4), p(2, 3), p(2, 3), p(3), p(3), 0.1, 1e-5, i(4.0, 4.0)
    ),
    "Tensor.std Functional.std Tensor.var Functional.var": at(f(3, 4), 0),
    "Mint.cdist_": at(f(3, 4), f(2, 4)),
    "Mint.equal_ext_op": at(p(3), p(3)),
    "Mint.flatten_ext": at(f(2, 3, 4), 1),
    "Mint.softmax_ext": at(f(3, 4), 1),
    # mint.nn.functional
    "MintFunctional.elu_ MintFunctional.elu_ext MintFunctional.inplace_elu": _SIGNED,
    "MintFunctional.inplace_silu MintFunctional.silu_func MintFunctional.hardtanh_op": _SIGNED,
    "MintFunctional.hardtanh_ MintFunctional.relu_ MintFunctional.sigmoid_": _SIGNED,
    "MintFunctional.threshold_ MintFunctional.threshold_op": at(f(3, 4), 0.5, 0.1),
    "MintFunctional.embedding Functional.embedding": at(i(0, 4, 2), f(5, 3)),
    "MintFunctional.fold": at(f(2, 12, 9), (4, 4), (2, 2)),
    "Tensor.fold Functional.fold": at(f(2, 12, 9), i32(4, 4), (2, 2)),
    "MintFunctional.upsample Functional.upsample": at(f(*_IMAGE), (10, 12), None, "nearest"),
    "MintFunctional.adaptive_avg_pool3d_ext": at(f(1, 2, 4, 4, 4), (2, 2, 2)),
    "MintFunctional.norm_ext": at(f(3, 4), 2, 1),
    "MintFunctional.prelu Functional.prelu": at(f(2, 3, low=-0.9), f(3)),
    "MintFunctional.max_pool2d Functional.max_pool2d": at(f(*_IMAGE), 2),
    "MintFunctional.dropout2d": at(f(*_IMAGE), 0.5, False),
    "MintFunctional.cosine_embedding_loss Functional.cosine_embedding_loss": at(
        f(3, 4), f(3, 4), i32(1, 1, 1)
    ),
    # Python's operators
    _each("Tensor", "__bool__ __float__ __int__ item is_nonzero"): at(p()),
    "Tensor.__index__": at(torch.tensor(3)),
    "Tensor.__contains__": at(p(3), 2.0),
    _each("Tensor", "__floordiv__ __rfloordiv__ __ifloordiv__ __imod__"): at(p(3, 4), p(3, 4)),
    _each("Tensor", "__iadd__ __isub__ __imul__ __itruediv__ __truediv__ __rtruediv__"): _TWO,
    _each("Tensor", "__len__ __pos__ __round__ dim ndimension nelement numel value tolist"): at(
        p(3, 4)
    ),
    _each(
        "Tensor", "is_complex is_floating_point is_signed copy stride is_contiguous is_pinned"
    ): at(p(3, 4)),
    "Tensor.to_": at(p(3, 4), "CPU"),
    "Tensor.__setitem__": at(f(3, 4), 1, f(4)),
    # In place
    _each("Tensor", "add_ sub_ mul_ div_"): _TWO,
    _each("Tensor", "exp_ floor_ log_ sigmoid_ sign_ tanh_ zero_ erfinv_"): _X,
    "Functional.tanh_ Functional.zero_ Functional.inplace_sigmoid Functional.erfinv_": _X,
    "Tensor.remainder_": at(p(3, 4), 0.3),
    "Tensor.addmm_": at(f(3, 2), f(3, 4), f(4, 2)),
    "Tensor.clamp_ Functional.clamp_": at(f(3, 4), 0.3, 0.6),
    "Tensor.copy_": _TWO,
    "Tensor.fill_ Tensor.fills Functional.fills Tensor.fill_diagonal_": at(p(3, 4), 0.5),
    "Tensor.fill": at(p(3, 4), 0.5),
    "Tensor.fill_diagonal": at(p(3, 4), 0.5),
    "Tensor.index_add_": at(f(3, 4), 0, i32(0, 2), f(2, 4)),
    "Tensor.index_copy_": at(f(3, 4), 0, i(0, 2), f(2, 4)),
    "Tensor.index_fill_ Tensor.index_fill Functional.index_fill": at(f(3, 4), 0, i32(0, 2), 0.5),
    "Tensor.index_put_ Tensor.index_put": at(p(3, 4), [i(0, 2), i(1, 3)], p(2)),
    "Tensor.index": at(p(3, 4), [i(0, 2), i(1, 3)]),
    "Tensor.masked_fill_": at(f(3, 4), p(3, 4) > 0.5, 0.5),
    "Tensor.masked_scatter_": at(p(3, 4), p(3, 4) > 0.5, p(3, 4)),
    "Tensor.put_ Functional.put_": at(p(3, 4), i(0, 5), p(2)),
    "Tensor.scatter_": at(p(3, 4), 0, _PLACES, p(2, 4)),
    "Tensor.scatter_add_": at(p(3, 4), 0, _PLACES, p(2, 4)),
    # Methods
    "Mint.masked_select Tensor.masked_select Functional.masked_select": at(f(3, 4), p(3, 4) > 0.5),
    "Tensor.masked_fill Functional.masked_fill": at(f(3, 4), p(3, 4) > 0.5, 0.5),
    "Tensor.masked_scatter": at(p(3, 4), p(3, 4) > 0.5, p(3, 4)),
    "Tensor.where": at(f(3, 4), p(3, 4) > 0.5, f(3, 4)),
    "Tensor.sum_to_size": at(f(3, 4), (1, 4)),
    "Tensor.addmv Functional.addmv": at(f(3), f(3, 4), f(4)),
    "Functional.mv": at(f(3, 4), f(4)),
    "Tensor.dot Functional.dot": at(f(3, 4), f(4, 2)),
    "Tensor.index_add": at(f(3, 4), i32(0, 2), f(2, 4), 0),
    "Tensor.repeat": at(f(3, 4), 2, 1),
    "Tensor.new_full": at(p(3), (2, 2), 1.5),
    "Tensor.select": at(f(3, 4), 1, 2),
    "Tensor.approximate_equal Functional.approximate_equal": at(p(3, 4), p(3, 4), 0.5),
    _each("Tensor", "argmax_with_value argmin_with_value"): at(f(3, 4), 1),
    "Tensor.astype Functional.cast": at(p(3, 4), torch.float16),
    "Tensor.to": at(p(3, 4), torch.int32),
    "Tensor.type_as Functional.type_as": at(p(3, 4), i32(1, 2)),
    "Tensor.expand_dims Functional.expand_dims": at(f(3, 4), 1),
    "Tensor.gather_elements Functional.gather_elements Functional.gather_d": at(
        f(3, 4), 0, _PLACES
    ),
    "Tensor.gather_nd Functional.gather_nd": at(f(3, 4), _POINTS),
    "Functional.gather": at(f(3, 4), i32(0, 2), 1),
    "Tensor.invert Functional.invert": at(torch.tensor([3, 0, -2], dtype=torch.int16)),
    "Tensor.log_matrix_determinant Functional.log_matrix_determinant": at(f(3, 3)),
    "Tensor.matrix_determinant Functional.matrix_determinant": at(f(3, 3)),
    "Functional.slogdet": at(f(3, 3)),
    "Tensor.ptp": at(f(3, 4), 1),
    "Tensor.reverse Functional.reverse": at(f(3, 4), [0]),
    "Tensor.reverse_sequence Functional.reverse_sequence": at(f(3, 4), i32(1, 2, 3), 1),
    _each("Tensor", "scatter_div scatter_max scatter_min scatter_mul scatter_sub"): _UPDATES,
    "Tensor.scatter_add": _UPDATES,
    "Tensor.soft_shrink Functional.soft_shrink": at(f(3, 4, low=-0.9), 0.3),
    "Tensor.svd Functional.svd": at(p(3, 4), False, False),
    "Tensor.lstsq Functional.lstsq": at(f(4, 2), f(4, 3)),
    "Tensor.tensor_split Functional.tensor_split": at(f(4, 4), 2, 1),
    "Tensor.top_k Functional.top_k": at(f(3, 4), 2),
    "Tensor.xdivy Functional.xdivy": _TWO,
    _each("Tensor", "unsorted_segment_prod unsorted_segment_max unsorted_segment_min"): _SEGMENTS,
    "Tensor.choose": at(i32(0, 1, 0), [i(1, 2, 3), i(10, 20, 30)]),
    "Tensor.col2im Functional.col2im": at(f(1, 2, 4, 9), i32(4, 4), (2, 2), (1, 1), (0, 0), (1, 1)),
    "Tensor.inplace_update Functional.inplace_update": at(f(3, 4), f(2, 4), (0, 2)),
    "Functional.inplace_add Functional.inplace_sub": at(f(3, 4), f(2, 4), (0, 2)),
    "Functional.inplace_index_add": at(p(3, 4), i32(0, 2), p(2, 4), 0),
    "Tensor.eigvals Functional.eigvals Functional.eig": at(p(3, 3)),
    "Tensor.unique_with_pad Functional.unique_with_pad": at(i(3, 1, 3, 2), 0),
    # mindspore.ops: the same under other names
    _each("Functional", "tensor_add tensor_sub tensor_mul tensor_div tensor_pow pows"): _TWO,
    _each("Functional", "floor_div floor_mod floordiv floormod tensor_floordiv tensor_mod"): at(
        p(3, 4), p(3, 4)
    ),
    _each("Functional", "truncate_div truncate_mod"): at(p(3, 4, low=-0.9), 0.3),
    _each("Functional", "tensor_ge tensor_gt tensor_le tensor_lt"): at(p(3, 4), p(3, 4)),
    "Functional.tensor_muls": _WITH_NUMBER,
    _each("Functional", "tensor_exp tensor_expm1 inv identity stop_gradient"): _X,
    _each("Functional", "is_complex is_floating_point isnan_ext numel size rank shape shape_"): at(
        p(3, 4)
    ),
    "Functional.is_nonzero": at(p(1)),
    "Functional.addn Functional.accumulate_n": at([f(3, 4), f(3, 4)]),
    "Functional.cat Functional.concat": at([f(3, 4), f(3, 4)], 1),
    "Functional.bias_add": at(f(3, 4), f(4)),
    "Functional.dense": at(f(3, 4), f(2, 4), f(2)),
    "Functional.bidense": at(f(3, 4), f(3, 5), f(2, 4, 5), f(2)),
    "Functional.bucketize": at(p(3, 4, high=4.0), [1.0, 2.0, 3.0]),
    "Functional.cdist": at(f(3, 4), f(2, 4), 2.0),
    "Functional.clip_by_value": at(f(3, 4), 0.3, 0.6),
    "Functional.dsplit": at(f(2, 3, 4), 2),
    "Functional.hsplit": at(f(3, 4), 2),
    "Functional.vsplit": at(f(4, 3), 2),
    "Functional.matrix_band_part": at(f(3, 4), 0, 1),
    "Functional.matrix_norm": at(f(3, 4)),
    "Functional.matrix_solve": at(f(3, 3), f(3, 2)),
    "Functional.one_hot": at(i32(0, 3, 1), 4),
    "Functional.pinv": at(p(3, 4)),
    "Functional.range Functional.tensor_range": at(0, 5, 1),
    _each("Functional", "reduce_max reduce_mean reduce_min reduce_sum"): at(f(3, 4), 1),
    "Functional.repeat_elements": at(f(3, 4), 2, 1),
    "Functional.scatter_nd": at(_POINTS, f(3), (3, 4)),
    "Functional.select": at(p(3, 4) > 0.5, f(3, 4), f(3, 4)),
    "Functional.sequence_mask": at(i32(1, 3, 2), 4),
    "Functional.slice Functional.tensor_slice": at(f(3, 4), (0, 1), (2, 2)),
    "Functional.strided_slice": at(f(3, 4), (0, 1), (2, 3), (1, 1)),
    "Functional.swiglu": at(f(3, 4)),
    "Functional.rms_norm": at(f(3, 4), f(4)),
    "Functional.add_rms_norm": at(f(3, 4), f(3, 4), f(4)),
    "Functional.tensor_dot": at(f(3, 4), f(4, 2), 1),
    _each("Functional", "tensor_scatter_add tensor_scatter_sub tensor_scatter_mul"): _UPDATES,
    _each("Functional", "tensor_scatter_div tensor_scatter_max tensor_scatter_min"): _UPDATES,
    "Functional.tensor_scatter_update": _UPDATES,
    "Functional.tensor_scatter_elements": at(f(3, 4), _PLACES, f(2, 4), 0, "add"),
    # These update a Parameter, which has no gradient.
    _each("Functional", "scatter_add scatter_mul scatter_div scatter_max scatter_min"): _ROWS,
    "Functional.scatter_update": _ROWS,
    _each("Functional", "scatter_nd_add scatter_nd_sub scatter_nd_mul scatter_nd_div"): at(
        p(3, 4), _POINTS, p(3)
    ),
    _each("Functional", "scatter_nd_max scatter_nd_min scatter_nd_update"): at(
        p(3, 4), _POINTS, p(3)
    ),
    "Functional.index_add": at(f(3, 4), i32(0, 2), f(2, 4), 0),
    "Functional.transpose": at(f(2, 3, 4), (2, 0, 1)),
    "Functional.tril_indices Functional.triu_indices": at(3, 4, 0),
    "Functional.unique": at(i(3, 1, 3, 2)),
    _each("Functional", "unsorted_segment_prod unsorted_segment_sum"): _SEGMENTS,
    _each("Functional", "unsorted_segment_max unsorted_segment_min"): _SEGMENTS,
    "Functional.unstack": at(f(3, 4), 1),
    "Functional.vecdot Functional.vector_norm": at(f(3, 4), f(3, 4)),
    "Functional.vector_norm": at(f(3, 4)),
    _each("Functional", "fft ifft rfft irfft hfft ihfft fftshift ifftshift"): _FFT,
    _each("Functional", "fft2 fftn ifft2 ifftn rfft2 rfftn irfft2 irfftn"): _FFT2,
    _each("Functional", "hfft2 hfftn ihfft2 ihfftn"): _FFT2,
    # mindspore.ops: networks
    "Functional.adaptive_avg_pool2d Functional.adaptive_avg_pool2d_ext": at(f(*_IMAGE), 2),
    "Functional.adaptive_avg_pool1d": at(f(1, 2, 6), 2),
    "Functional.flash_attention_score": at(f(1, 4, 8), f(1, 4, 8), f(1, 4, 8), 2),
    "Functional.speed_fusion_attention": at(f(1, 4, 8), f(1, 4, 8), f(1, 4, 8), 2, "BSH"),
    "Functional.rotary_position_embedding": at(f(1, 2, 4, 8), p(1, 1, 4, 8), p(1, 1, 4, 8)),
    "Functional.adaptive_avg_pool3d": at(f(1, 2, 4, 4, 4), 2),
    "Functional.adaptive_max_pool1d": at(f(1, 2, 6), 2),
    "Functional.adaptive_max_pool3d": at(f(1, 2, 4, 4, 4), 2),
    "Functional.avg_pool2d": at(f(*_IMAGE), 2),
    "Functional.avg_pool3d Functional.max_pool3d": at(f(1, 2, 4, 4, 4), 2),
    "Functional.batch_norm": at(f(*_IMAGE), p(2), p(2), f(2), f(2)),
    "Functional.conv1d": at(f(1, 2, 6), f(3, 2, 2)),
    "Functional.conv2d": at(f(*_IMAGE), f(3, 2, 2, 2)),
    "Functional.conv3d": at(f(1, 2, 4, 4, 4), f(3, 2, 2, 2, 2)),
    "Functional.conv3d_transpose": at(f(1, 2, 4, 4, 4), f(2, 3, 2, 2, 2)),
    "Functional.dropout1d": at(f(1, 2, 6), 0.5, False),
    "Functional.hinge_embedding_loss": at(f(3, 4), torch.ones(3, 4)),
    "Functional.kl_div": at(f(3, 4, low=-3.0, high=-1.0), p(3, 4)),
    "Functional.lp_pool1d": at(f(1, 2, 6), 2.0, 2),
    "Functional.lp_pool2d": at(f(*_IMAGE), 2.0, 2),
    "Functional.multi_margin_loss": at(f(3, 4), i(0, 3, 1)),
    "Functional.multilabel_margin_loss": at(f(2, 3), i32([1, 2, -1], [0, -1, -1])),
    "Functional.mse_loss_ext": _TWO,
    # mindspore.ops: rare
    **{
        _each("Functional", f"bessel_{n}"): at(p(3, 4, high=4.0))
        for n in "i0 i0e i1 i1e j0 j1 k0 k0e k1 k1e y0 y1".split()
    },
    "Functional.zeta": at(p(3, 4, low=1.5, high=4.0), p(3, 4, high=4.0)),
    # Of OpInfo's samples these make NaN.
    "Functional.igamma Functional.igammac Tensor.igamma Tensor.igammac": at(
        p(3, 4, high=4.0), p(3, 4, high=4.0)
    ),
    "Functional.affine_grid": at(f(2, 2, 3), (2, 1, 3, 4), False),
    "Functional.assign": at(p(3, 4), p(3, 4)),
    "Functional.assign_add Functional.assign_sub": at(p(3, 4), p(3, 4)),
    "Functional.baddbmm_ext": at(f(2, 3, 5), f(2, 3, 4), f(2, 4, 5)),
    "Functional.bartlett_window Functional.blackman_window": at(torch.tensor(6)),
    "Functional.hamming_window Functional.hann_window Functional.kaiser_window": at(6),
    "Functional.batch_dot": at(f(2, 3, 4), f(2, 4, 5)),
    "Functional.batch_to_space_nd": at(f(4, 1, 2, 3), [2, 2], [[0, 0], [0, 1]]),
    "Functional.space_to_batch_nd": at(f(1, 1, 4, 5), [2, 2], [[0, 0], [0, 1]]),
    "Functional.channel_shuffle": at(p(1, 4, 3, 3), 2),
    "Functional.clip_by_global_norm": at([f(3, 4), f(2)], 1.0),
    "Functional.clip_by_norm": at(f(3, 4), 1.0),
    "Functional.diff_ext": at(f(3, 4)),
    "Functional.expand": at(f(1, 4), i32(3, 4)),
    "Functional.fftfreq Functional.rfftfreq": at(6),
    "Functional.fill": at(torch.float32, (2, 3), 1.5),
    "Functional.float_power_ext": _WITH_NUMBER,
    "Functional.geqrf Tensor.geqrf": at(p(3, 3)),
    "Functional.intopk": at(p(3, 4), i32(0, 3, 1), 2),
    "Functional.logspace": at(0.0, 2.0, 5),
    "Functional.lrn": at(f(1, 4, 3, 3)),
    "Functional.lu_solve": at(p(3, 2), torch.eye(3) + 1, i32(1, 2, 3)),
    "Functional.lu_unpack": at(torch.eye(3) + 1, i32(1, 2, 3)),
    "Functional.matrix_diag": at(f(3, 4)),
    "Functional.max_unpool1d": at(f(1, 2, 3), i([[0, 2, 4], [1, 3, 5]]), 2),
    "Functional.max_unpool2d": at(f(1, 1, 2, 2), i([[[0, 3], [9, 14]]]), 2),
    "Functional.max_unpool3d": at(f(1, 1, 1, 1, 2), i([[[[1, 6]]]]), 2),
    "Functional.mirror_pad": at(f(3, 4), i([1, 1], [2, 2]), "REFLECT"),
    "Functional.orgqr": at(p(4, 3), p(3)),
    "Functional.ormqr": at(p(4, 3), p(3), p(4, 2)),
    "Functional.padding": at(f(3, 1), 4),
    "Functional.polygamma": at(torch.tensor(1, dtype=torch.int32), p(3, 4, low=1.0, high=3.0)),
    "Functional.population_count": at(torch.tensor([3, 0, 7], dtype=torch.int16)),
    "Functional.reshape_": at(f(3, 4), (4, 3)),
    "Functional.stft": at(p(32), 8, return_complex=False),
    "Functional.stop_gradient_": at(p(3, 4)),
    "Functional.vander": at(p(4), 3),
}


def recipes() -> dict[str, list[Sample]]:
    """Return the sample of each name of the table."""
    return {
        name: [sample_of(name, args, kwargs)]
        for names, (args, kwargs) in CALLS.items()
        for name in names.split()
    }


def sample_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sample:
    """Return a sample whose gradients come in where the reference is differentiable."""
    prefix, _, api = name.partition(".")
    given = tuple(arg * 1 if torch.is_tensor(arg) else arg for arg in args)
    try:
        made = sampled(BENCH.resolve(ApiName(prefix, api, 0)), given, kwargs)
    except NotCheckable:
        made = None
    return Sample(args, kwargs, made.grads if made else None, made is not None)
