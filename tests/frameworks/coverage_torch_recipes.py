"""Sample arguments of the functions of torch that its own table of samples (OpInfo) lacks.

Goes out: for each name, as a dump has it, one sample. The table has the names that take the same
arguments as words of one key.
"""

from contextlib import suppress
from typing import Any

import torch
from coverage_arguments import Call, at, f, i, p
from coverage_records import Sample
from coverage_samples import sampled

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.pytorch.names import resolve_torch
from ray_precheck.schema.record import ApiName


def _cell(gates: int) -> Call:
    hidden = (p(2, 4), p(2, 4)) if gates == 4 else p(2, 4)
    return at(f(2, 3), hidden, f(4 * gates, 3), f(4 * gates, 4), f(4 * gates), f(4 * gates))


def _network(gates: int) -> Call:
    state = [p(1, 2, 4), p(1, 2, 4)] if gates == 4 else p(1, 2, 4)
    weights = [f(4 * gates, 3), f(4 * gates, 4), f(4 * gates), f(4 * gates)]
    return at(f(5, 2, 3), state, weights, True, 1, 0.0, True, False, False)


IMAGE = (2, 4, 6, 6)
_X, _PAIR = (3, 4), at(f(3, 4), f(3, 4))

CALLS: dict[str, Call] = {
    # Pooling, convolution, resampling
    "Torch.adaptive_avg_pool1d Torch.adaptive_max_pool1d": at(f(2, 3, 8), 4),
    "Functional.adaptive_max_pool1d_with_indices": at(f(2, 3, 8), 4),
    "Functional.adaptive_max_pool2d_with_indices": at(f(*IMAGE), (2, 3)),
    "Functional.adaptive_max_pool3d_with_indices": at(f(1, 2, 4, 4, 4), 2),
    "Torch.avg_pool1d Torch.max_pool1d Torch.max_pool1d_with_indices": at(f(2, 3, 8), 2),
    "Functional.max_pool1d_with_indices": at(f(2, 3, 8), 2),
    "Torch.max_pool2d Functional.max_pool2d_with_indices": at(f(*IMAGE), 2),
    "Torch.max_pool3d Functional.max_pool3d_with_indices": at(f(1, 2, 4, 4, 4), 2),
    "Functional.lp_pool1d": at(f(2, 3, 8), 2.0, 2),
    "Functional.lp_pool2d": at(f(*IMAGE), 2.0, 2),
    "Functional.lp_pool3d": at(f(1, 2, 4, 4, 4), 2.0, 2),
    "Functional.unfold": at(f(*IMAGE), 2),
    "Functional.fold": at(f(2, 12, 9), (4, 4), 2),
    "Functional.affine_grid": at(f(2, 2, 3), [2, 1, 3, 4], align_corners=False),
    "Torch.affine_grid_generator": at(f(2, 2, 3), [2, 1, 3, 4], False),
    "Torch.grid_sampler": at(f(*IMAGE), f(2, 3, 3, 2, low=-1.0), 0, 0, False),
    "Torch.conv_tbc Functional.conv_tbc": at(f(6, 2, 3), f(2, 3, 4), f(4)),
    "Torch.convolution": at(
        f(*IMAGE), f(3, 4, 2, 2), f(3), (1, 1), (0, 0), (1, 1), False, (0, 0), 1
    ),
    "Torch.pixel_shuffle": at(f(*IMAGE), 2),
    "Torch.pixel_unshuffle": at(f(*IMAGE), 2),
    "Torch.channel_shuffle Torch.native_channel_shuffle": at(f(*IMAGE), 2),
    "Functional.native_channel_shuffle": at(f(*IMAGE), 2),
    # Networks
    "Torch.lstm": _network(4),
    "Torch.gru": _network(3),
    "Torch.rnn_tanh Torch.rnn_relu": _network(1),
    "Torch.lstm_cell": _cell(4),
    "Torch.gru_cell": _cell(3),
    "Torch.rnn_tanh_cell Torch.rnn_relu_cell": _cell(1),
    "Torch.bilinear": at(f(3, 4), f(3, 5), f(2, 4, 5), f(2)),
    "Torch.embedding": at(f(5, 3), i(0, 4, 2), -1, False, False),
    "Functional.embedding": at(i(0, 4, 2), f(5, 3)),
    "Torch.embedding_renorm_": at(p(5, 3), i(0, 2, 4), 0.5, 2.0),
    "Torch.embedding_bag": at(f(5, 3), i(0, 4, 2, 1), i(0, 2)),
    "Torch.prelu": at(f(3, 4, low=-1.0), f(4)),
    "Torch.celu Torch.celu_ Torch.selu Torch.selu_ Torch.relu Torch.relu_": at(f(*_X, low=-1.0)),
    "Torch.hardshrink": at(f(*_X, low=-1.0)),
    "Torch.threshold Torch.threshold_ Functional.threshold_": at(f(*_X), 0.5, 0.1),
    "Torch.dropout Torch.dropout_ Torch.feature_dropout Torch.feature_dropout_": at(
        f(2, 3, 4), 0.3, False
    ),
    "Torch.alpha_dropout Torch.alpha_dropout_": at(f(2, 3, 4), 0.3, False),
    "Torch.feature_alpha_dropout Torch.feature_alpha_dropout_": at(f(2, 3, 4), 0.3, False),
    "Functional.dropout1d": at(f(2, 3, 4), 0.3, False),
    "Torch.native_dropout": at(f(3, 4), 0.3, False),
    "Torch.rrelu Torch.rrelu_ Functional.rrelu Functional.rrelu_": at(f(*_X, low=-1.0), 0.1, 0.3),
    # Norms
    "Torch.batch_norm": at(f(4, 3, 5), f(3), f(3), p(3), p(3), True, 0.1, 1e-5, False),
    "Torch.instance_norm": at(f(4, 3, 5), f(3), f(3), p(3), p(3), True, 0.1, 1e-5, False),
    "Torch.batch_norm_stats": at(p(4, 3, 5), 1e-5),
    "Torch.batch_norm_update_stats": at(p(4, 3, 5), p(3), p(3), 0.1),
    "Torch.norm_except_dim": at(f(3, 4), 2, 0),
    "Torch.native_norm": at(p(3, 4), 2),
    "Torch.frobenius_norm": at(f(3, 4), [0, 1]),
    "Torch.nuclear_norm": at(f(3, 4)),
    # Losses and distances
    "Torch.binary_cross_entropy_with_logits": at(f(*_X, low=-1.0), p(*_X), None, None, 1),
    "Torch.cosine_embedding_loss": at(f(3, 4), f(3, 4), i(1, -1, 1)),
    "Torch.cosine_similarity Torch.pairwise_distance": _PAIR,
    "Torch.hinge_embedding_loss": at(f(3), i(1, -1, 1)),
    "Torch.margin_ranking_loss": at(f(3), f(3), i(1, -1, 1)),
    "Torch.kl_div": at(f(*_X, low=-3.0, high=-1.0), p(*_X)),
    "Torch.poisson_nll_loss": at(f(*_X), p(*_X), True, False, 1e-8, 1),
    "Torch.triplet_margin_loss": at(f(3, 4), f(3, 4), f(3, 4)),
    "Functional.triplet_margin_with_distance_loss": at(f(3, 4), f(3, 4), f(3, 4)),
    "Torch.ctc_loss": at(
        torch.log_softmax(p(6, 2, 5), 2).requires_grad_(), i([1, 2], [3, 4]), [6, 6], [2, 2]
    ),
    "Torch.pdist Functional.pdist": at(f(4, 3)),
    # Algebra
    "Torch.chain_matmul": at(f(3, 4), f(4, 2), f(2, 5)),
    "Torch.einsum": at("ij,jk->ik", f(3, 4), f(4, 2)),
    "Torch.slogdet": at(f(3, 3, low=0.1, high=4.0)),
    "Torch.vander": at(f(4), 3, False),
    "Torch.searchsorted": at(i(1.0, 2.0, 3.0), p(3, 4, high=4.0)),
    "Torch.segment_reduce": at(f(6, 2), "sum", lengths=i(2, 1, 3), axis=0),
    # Of OpInfo's samples torch makes NaN.
    "Torch.igamma Torch.igammac Tensor.igamma Tensor.igammac Tensor.igamma_ Tensor.igammac_": at(
        p(*_X, high=4.0), p(*_X, high=4.0)
    ),
    "Torch.special.zeta": at(p(*_X, low=1.5, high=3.0), p(*_X)),
    "Torch.special.gammainc Torch.special.gammaincc": at(p(*_X, high=4.0), p(*_X, high=4.0)),
    "Torch.special.polygamma Torch.polygamma": at(2, f(*_X, low=1.0, high=3.0)),
    "Torch.where": at(p(*_X) > 0.5, f(3, 4), f(3, 4)),
    "Torch.sparse_coo_tensor": at(i([0, 1, 1], [2, 0, 2]), i(3.0, 4.0, 5.0), [2, 3]),
    # Quantisation that is simulated in floats
    "Torch.fake_quantize_per_tensor_affine": at(f(3, 4), 0.1, 3, 0, 15),
    "Torch.fake_quantize_per_channel_affine": at(
        f(3, 4), i(0.1, 0.2, 0.3), torch.zeros(3, dtype=torch.int32), 0, 0, 15
    ),
    "Torch.fused_moving_avg_obs_fake_quant": at(
        f(3, 4),
        *(i(1), i(1), torch.tensor(0.1), torch.tensor(0.9), torch.tensor([0.1])),
        *(torch.zeros(1, dtype=torch.int32), 0.01, 0, 15, 0, False, False),
    ),
    "Torch.choose_qparams_optimized": at(p(16), 16, 20, 0.16, 8),
    "Torch.dequantize Tensor.dequantize": at(p(3, 4)),
    # Copies, views and casts
    "Torch.as_tensor Torch.detach Torch.detach_ Torch.detach_copy": at(p(3, 4)),
    "Tensor.detach Tensor.detach_ Tensor.cpu": at(p(3, 4)),
    "Torch.slice_copy": at(f(3, 4), 1, 0, 3, 2),
    "Torch.slice_inverse Tensor.slice_inverse": at(p(3, 2), p(3, 4), 1, 0, 2, 1),
    "Torch.select_copy": at(f(3, 4), 1, 2),
    "Torch.split_copy": at(f(3, 4), 2, 1),
    "Torch.unsafe_split_with_sizes Tensor.unsafe_split_with_sizes": at(f(3, 4), [1, 3], 1),
    "Torch.view_as_complex_copy": at(f(3, 2)),
    "Torch.view_as_real_copy": at(torch.complex(p(3), p(3))),
    "Torch.conj_physical_ Tensor.conj_physical_": at(torch.complex(p(3), p(3))),
    "Tensor.copy_": at(f(3, 4), f(3, 4)),
    "Tensor.type_as Tensor.resize_as": at(p(3, 4), p(3, 4)),
    "Tensor.fill_diagonal_": at(f(3, 4), 0.5),
    "Tensor.to_dense Tensor.to_mkldnn Tensor.to_sparse Tensor.to_sparse_coo": at(p(3, 4)),
    "Tensor.to_sparse_csr Tensor.to_sparse_csc": at(p(3, 4)),
    "Tensor.to_sparse_bsr Tensor.to_sparse_bsc": at(p(4, 4), (2, 2)),
    "Torch.fill": at(f(3, 4), 0.5),
    "Torch.as_strided Tensor.as_strided": at(f(3, 4), [2, 2], [1, 2], 1),
    "Torch.as_strided_ Tensor.as_strided_": at(f(3, 4), [2, 2], [1, 2], 1),
    "Tensor.float_power_": at(p(3, 4).double(), 2),
    # What describes a tensor
    "Torch.get_device Tensor.get_device Torch.numel Tensor.numel Tensor.nelement": at(p(3, 4)),
    "Torch.is_complex Torch.is_conj Torch.is_distributed Torch.is_floating_point": at(p(3)),
    "Torch.is_inference Torch.is_neg Torch.is_signed Tensor.is_complex Tensor.is_conj": at(p(3)),
    "Tensor.is_distributed Tensor.is_floating_point Tensor.is_inference Tensor.is_neg": at(p(3)),
    "Tensor.is_signed Tensor.is_contiguous Tensor.is_pinned Tensor.dim Tensor.ndimension": at(p(3)),
    "Torch.is_nonzero Tensor.is_nonzero Tensor.__bool__ Tensor.__nonzero__ Tensor.item": at(p()),
    "Torch.is_same_size Tensor.is_same_size Tensor.is_set_to": at(p(3), p(3)),
    "Tensor.size Tensor.stride Tensor.dim_order Tensor.__len__ Tensor.tolist": at(p(3, 4)),
    "Tensor.__complex__ Tensor.__float__ Tensor.__int__ Tensor.__long__": at(p()),
    "Tensor.__index__": at(torch.tensor(3)),
    "Tensor.__contains__": at(p(3), 2.0),
    # Python's operators
    "Tensor.__pos__ Tensor.__reversed__": at(f(3, 4)),
    "Tensor.__truediv__ Tensor.__div__ Tensor.__rtruediv__ Tensor.__rdiv__": _PAIR,
    "Tensor.__idiv__ Tensor.__itruediv__": _PAIR,
    "Tensor.__floordiv__ Tensor.__rfloordiv__ Tensor.__ifloordiv__": at(p(3, 4), p(3, 4)),
    "Tensor.__setitem__": at(f(3, 4), 1, f(4)),
    "Torch.normal": at(p(3, 4), 0.5),
    "Tensor.random_ Torch.poisson": at(p(3, 4)),
    "Torch.binomial": at(i(4.0, 9.0), p(2)),
    "Functional.gumbel_softmax": at(f(3, 4)),
    "Tensor.cuda Tensor.npu Tensor.xpu Tensor.ipu Tensor.mtia": at(f(3, 4)),
    "Tensor.index": at(p(3, 4), [i(0, 2), i(1, 3)]),
    "Torch.dsmm Torch.spmm": at(p(3, 4), p(4, 2)),
    "Tensor.mm": at(f(3, 4), f(4, 2)),
    "Torch.quantize_per_tensor": at(p(3, 4), 0.1, 3, torch.quint8),
    "Torch.quantize_per_tensor_dynamic": at(p(3, 4), torch.quint8, False),
    "Torch.quantize_per_channel": at(p(3, 4), i(0.1, 0.2, 0.3), i(0, 0, 0), 0, torch.quint8),
    "Functional.multi_head_attention_forward": at(
        *(f(3, 1, 4), f(3, 1, 4), f(3, 1, 4), 4, 2, f(12, 4), f(12)),
        *(None, None, False, 0.0, f(4, 4), f(4)),
    ),
    # These have kernels for CUDA alone.
    "Torch.batch_norm_elemt": at(p(2, 3, 4), p(3), p(3), p(3), p(3), 1e-5),
    "Torch.batch_norm_gather_stats": at(p(2, 3, 4), p(2, 3), p(2, 3), p(3), p(3), 0.1, 1e-5, 4),
    "Torch.batch_norm_gather_stats_with_counts": at(
        p(2, 3, 4), p(2, 3), p(2, 3), p(3), p(3), 0.1, 1e-5, i(4.0, 4.0)
    ),
    "Torch.batch_norm_backward_reduce": at(
        p(2, 3, 4), p(2, 3, 4), p(3), p(3), p(3), True, True, True
    ),
    "Torch.batch_norm_backward_elemt": at(
        p(2, 3, 4), p(2, 3, 4), p(3), p(3), p(3), p(3), p(3), torch.tensor([8], dtype=torch.int32)
    ),
    "Torch.sym_max Torch.sym_min": at(3, 4),
    "Torch.sym_float Torch.sym_int Torch.sym_sqrt": at(4),
    "Torch.sym_not": at(True),
    "Torch.sym_ite": at(True, 3, 4),
    "Torch.sym_sum": at([3, 4]),
}


def recipes() -> dict[str, list[Sample]]:
    """Return the sample of each name of the table that the installed torch has."""
    found = {}
    for names, (args, kwargs) in CALLS.items():
        for name in names.split():
            with suppress(NotCheckable):
                found[name] = [_sample(name, args, kwargs)]
    return found


def names_of_recipes() -> set[str]:
    """Return all names of the table."""
    return {name for names in CALLS for name in names.split()}


def _sample(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sample:
    """Return a sample; its gradients come in where the function itself is differentiable."""
    prefix, _, api = name.partition(".")
    in_place = api.endswith("_") or api in ("__setitem__", "__itruediv__", "__idiv__")
    given = tuple(a.clone() if in_place and torch.is_tensor(a) else a for a in args)
    function = resolve_torch(ApiName(prefix, api, 0))
    made = sampled(function, given, kwargs)
    return Sample(args, kwargs, made.grads if made else None)
