"""The table of references against MindSpore itself, on the CPU: same arguments, same numbers.

Every API here has a kernel on MindSpore's CPU. Arguments are NumPy arrays, turned into float32
Tensors for MindSpore and into float64 tensors for the bench; a dtype is given as its name.
"""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from versions import lacking

from ray_precheck.bench.run import Bench
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import flatten_outputs, map_leaves
from ray_precheck.frameworks.mindspore.bench.mapping import resolve_mindspore
from ray_precheck.schema.record import ApiName

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ms = pytest.importorskip("mindspore")
    from mindspore import mint, ops

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

Array = npt.NDArray[Any]
_ROOTS = {
    "Mint": mint,
    "MintFunctional": mint.nn.functional,
    "Tensor": ms.Tensor,
    "Functional": ops,
}
BENCH = Bench("mindspore")
_rng = np.random.default_rng(7)


def _floats(*shape: int) -> Array:
    return _rng.uniform(0.1, 0.9, shape).astype(np.float32)


X, Y, VEC = _floats(3, 4), _floats(3, 4), _floats(4)
CUBE, IMAGE, SQUARE = _floats(2, 3, 4), _floats(1, 2, 5, 6), _floats(3, 3)
SIGNED = _floats(3, 4) - np.float32(0.5)
INDEX = np.array([0, 2], np.int64)
INDEX32 = INDEX.astype(np.int32)
# No place twice in a column: which of two updates stays is nobody's promise.
PLACES = np.array([[0, 1, 2, 0], [2, 0, 0, 1]], np.int64)
POINTS = np.array([[0, 1], [2, 3], [0, 1]], np.int32)
LABELS = np.array([0, 3, 1], np.int32)
INTS, OTHER_INTS = np.array([5, 6, 12], np.int32), np.array([3, 4, 8], np.int32)


class Dtype(str):
    """A dtype by name, as a dump has it."""


F32, I32 = Dtype("float32"), Dtype("int32")
Case = tuple[str, tuple[Any, ...], dict[str, Any]]


def case(name: str, *args: Any, **kwargs: Any) -> Case:
    return name, args, kwargs


CASES: list[Case] = [
    case("Mint.add", X, Y, alpha=2),
    case("Mint.add", 2, X),
    case("Mint.sub", 2.5, X),
    case("Mint.mul", X, 3),
    case("Mint.pow", 2, X),
    case("Mint.matmul", X, X.T.copy()),
    case("Mint.cat", [X, Y], 1),
    case("Mint.split", X, 2, 1),
    case("Mint.split", X, [1, 3], dim=1),
    case("Mint.chunk", X, 2, 1),
    case("Mint.transpose", CUBE, 0, 2),
    case("Mint.permute", CUBE, (2, 0, 1)),
    case("Mint.broadcast_to", VEC, (3, 4)),
    case("Mint.broadcast_to", input=VEC, shape=(3, 4)),
    case("Mint.where", X > 0.5, X, 0.0),
    case("Mint.sum", X, 0, True),
    case("Mint.sum", X, dim=None, keepdim=True),
    case("Mint.mean", X, 1),
    case("Mint.max", X),
    case("Mint.max", X, 1, True),
    case("Mint.max", X, Y),
    case("Mint.min", X, dim=0),
    case("Mint.linalg.norm", SQUARE, 2),
    case("Mint.gather", X, 0, PLACES),
    case("Mint.scatter", X, 0, PLACES, SIGNED[:2]),
    case("Mint.clamp", X, 0.3, 0.6),
    case("Mint.eye", 3, 4, F32),
    case("Mint.searchsorted", np.sort(VEC), Y[0]),
    case("MintFunctional.linear", X, Y, VEC[:3]),
    case("MintFunctional.softmax", X, 0),
    case("MintFunctional.silu", SIGNED),
    case("MintFunctional.smooth_l1_loss", X, SIGNED, "sum", 0.5),
    case("MintFunctional.nll_loss", SIGNED, LABELS, None, -100, "sum"),
    case("Tensor.__add__", X, 2),
    case("Tensor.__rsub__", X, 2),
    case("Tensor.__rfloordiv__", X, 2),
    case("Tensor.__rmod__", X, 2),
    case("Tensor.__req__", X, 2),
    case("Tensor.__contains__", X, 2.0),
    case("Tensor.__getitem__", CUBE, (0, slice(None), slice(1, None, 2))),
    case("Tensor.__getitem__", CUBE, INDEX[:1]),
    case("Tensor.std", X),
    case("Tensor.std", X, 0),
    case("Tensor.std", X, 0, 1, True),
    case("Tensor.var", X, axis=1, ddof=1),
    case("Tensor.max", X),
    case("Tensor.max", X, axis=0),
    case("Tensor.max", X, axis=0, return_indices=True),
    case("Tensor.min", X, axis=1, keepdims=True),
    case("Tensor.sum", X, 0, True),
    case("Tensor.sum", X, 0, F32),
    case("Tensor.sum", X, axis=(0, 1), keepdims=True),
    case("Tensor.mean", X, axis=0, keep_dims=True),
    case("Tensor.median", X, 0),
    case("Tensor.argmax", X, axis=0, keepdims=True),
    case("Tensor.argmin", X, 1),
    case("Tensor.all", X > 0.2, axis=0, keep_dims=True),
    case("Tensor.amax", X, 1, True),
    case("Tensor.aminmax", X),
    case("Tensor.ptp", X, 0),
    case("Tensor.trace", X, 1),
    case("Tensor.norm", SQUARE, 2),
    case("Tensor.norm", X, 1, 0),
    case("Tensor.split", X, 2, 1),
    case("Tensor.split", X, split_size_or_sections=[1, 2], axis=0),
    case("Tensor.cumsum", X),
    case("Tensor.cumsum", X, axis=1),
    case("Tensor.flatten", CUBE, 1),
    case("Tensor.flatten", CUBE, "F"),
    case("Tensor.sort", X, axis=0, descending=True),
    case("Tensor.argsort", X, 0),
    case("Tensor.topk", X, 2),
    case("Tensor.transpose", X),
    case("Tensor.transpose", X, 0, 1),
    case("Tensor.transpose", X, (0, 1)),
    case("Tensor.transpose", CUBE, 2, 0, 1),
    case("Tensor.permute", CUBE, (2, 0, 1)),
    case("Tensor.swapaxes", CUBE, 0, 2),
    case("Tensor.view", X, 4, 3),
    case("Tensor.expand_dims", X, 1),
    case("Tensor.squeeze", IMAGE, 0),
    case("Tensor.take", X, INDEX),
    case("Tensor.take", X, INDEX, 1),
    case("Tensor.gather", X, INDEX, 1),
    case("Tensor.gather_elements", X, 0, PLACES),
    case("Tensor.gather_nd", X, POINTS),
    case("Tensor.scatter", X, 0, PLACES, SIGNED[:2]),
    case("Tensor.scatter_sub", X, POINTS, VEC[:3]),
    case("Tensor.scatter_max", X, POINTS, VEC[:3]),
    case("Tensor.index_fill", X, 0, INDEX32, 2.0),
    case("Tensor.select", X, X > 0.5, Y),
    case("Tensor.where", X, X > 0.5, Y),
    case("Tensor.astype", X, I32),
    case("Tensor.astype", X, "float16"),
    case("Tensor.to", X, F32),
    case("Tensor.int", 9 * SIGNED),
    case("Tensor.half", X),
    case("Tensor.inv", X),
    case("Tensor.equal", X, X),
    case("Tensor.fill_diagonal", X, 3.0),
    case("Tensor.remainder", SIGNED, -0.3),
    case("Tensor.repeat_interleave", X, 2, 0),
    case("Tensor.count_nonzero", X, axis=0),
    case("Functional.add", 2, X),
    case("Functional.floor_mod", SIGNED, -0.3),
    case("Functional.truncate_mod", SIGNED, -0.3),
    case("Functional.truncate_div", SIGNED, 0.3),
    case("Functional.xdivy", X, Y),
    case("Functional.equal", X, X),
    case("Functional.inv", X),
    case("Functional.gather", CUBE, INDEX[:1], 1),
    case("Functional.gather", CUBE, PLACES[:, :1], 1, 1),
    case("Functional.gather_nd", X, POINTS),
    case("Functional.transpose", CUBE, (2, 0, 1)),
    case("Functional.softmax", X),
    case("Functional.log_softmax", X, 0),
    case("Functional.split", X, 2, 1),
    case("Functional.concat", [X, Y], 1),
    case("Functional.stack", [X, Y], axis=1),
    case("Functional.cast", X, I32),
    case("Functional.sum", X, 0, True),
    case("Functional.mean", X, 0, True),
    case("Functional.max", X),
    case("Functional.min", X, 1),
    case("Functional.std", X, 0),
    case("Functional.var", X, 1, 1),
    case("Functional.norm", SQUARE, 2),
    case("Functional.clip_by_value", X, 0.3, 0.6),
    case("Functional.one_hot", LABELS, 4),
    case("Functional.one_hot", LABELS, 4, 2.0, 1.0, 0),
    case("Functional.bmm", CUBE, CUBE.swapaxes(1, 2).copy()),
    case("Functional.addn", [X, Y]),
    case("Functional.select", X > 0.5, X, 3.0),
    case("Functional.topk", X, 2),
    case("Functional.sort", X),
    case("Functional.median", X),
    case("Functional.unique", INDEX),
    case("Functional.gelu", SIGNED),
    case("Functional.gelu", SIGNED, "tanh"),
    case("Functional.fast_gelu", SIGNED),
    case("Functional.leaky_relu", SIGNED),
    case("Functional.hardswish", 8 * SIGNED),
    case("Functional.threshold", X, 0.5, 2.0),
    case("Functional.glu", X),
    case("Functional.prelu", SIGNED, VEC),
    case("Functional.smooth_l1_loss", X, SIGNED),
    case("Functional.cross_entropy", X, LABELS),
    case("Functional.nll_loss", SIGNED, LABELS),
    case("Functional.kl_div", SIGNED, X),
    case("Functional.binary_cross_entropy", X, Y),
    case("Functional.binary_cross_entropy_with_logits", SIGNED, X),
    case("Functional.meshgrid", INDEX, INDEX32.astype(np.int64) + 1),
    case("Functional.meshgrid", INDEX, INDEX + 1, indexing="ij"),
    case("Functional.range", 0, 5, 1),
    case("Functional.matrix_band_part", X, 0, 1),
    case("Functional.sequence_mask", INDEX, 4),
    case("Functional.slice", X, (0, 1), (2, 2)),
    case("Functional.strided_slice", X, (0, 1), (2, 3), (1, 1)),
    case("Functional.reverse", X, [0]),
    case("Functional.repeat_elements", X, 2, 1),
    case("Functional.repeat_interleave", X, (1, 2, 1), 0),
    case("Functional.flatten", CUBE),
    case("Functional.pad", X, (1, 2), "constant", 3.0),
    case("Functional.avg_pool2d", IMAGE, 2),
    case("Functional.max_pool2d", IMAGE, 2),
    case("Functional.conv2d", IMAGE, _floats(3, 2, 2, 2)),
    case("Functional.conv2d", IMAGE, _floats(3, 2, 3, 3), pad_mode="pad", padding=1),
    case("Functional.batch_norm", IMAGE, VEC[:2], VEC[2:], VEC[:2], VEC[2:]),
    case("Functional.bias_add", X, VEC),
    case("Functional.dense", X, Y),
    case("Functional.tensor_dot", X, Y, 2),
    case("Functional.tensor_scatter_elements", X, PLACES, SIGNED[:2], 0, "add"),
    case("Functional.tensor_scatter_add", X, POINTS, VEC[:3]),
    case("Functional.tensor_scatter_update", X, POINTS[:2], VEC[:2]),
    case("Functional.tensor_scatter_div", X, POINTS, VEC[:3]),
    case("Functional.scatter_nd", POINTS, VEC[:3], (3, 4)),
    case("Functional.unsorted_segment_sum", X, np.array([1, 0, 1], np.int32), 2),
    case("Functional.unsorted_segment_prod", X, np.array([1, 0, 1], np.int32), 3),
    case("Functional.reverse_sequence", X, np.array([1, 2, 3], np.int32), 1),
    case("Functional.cumsum", X, 1),
    case("Functional.index_add", X.copy(), INDEX32, Y[:2], 0),
    case("Functional.trapz", X),
    case("Functional.lp_pool1d", CUBE, 2, 2),
    case("Functional.gcd", INTS, OTHER_INTS),
    case("Functional.cond", SQUARE + 2 * np.eye(3, dtype=np.float32)),
    case("Functional.cond", SQUARE + 2 * np.eye(3, dtype=np.float32), 1),
]


@pytest.fixture(scope="module", autouse=True)
def _on_the_cpu() -> None:
    ms.runtime.launch_blocking()
    ms.set_device("CPU")
    torch.set_num_threads(1)


def _api(name: str) -> ApiName:
    prefix, _, api = name.partition(".")
    return ApiName(prefix, api, 0)


def _mindspore_argument(value: Any) -> Any:
    if isinstance(value, Dtype):
        return getattr(ms, value)
    return ms.Tensor(value.copy()) if isinstance(value, np.ndarray) else value


def _bench_argument(value: Any) -> Any:
    if isinstance(value, Dtype):
        return torch.float64 if value.startswith("float") else getattr(torch, value)
    if not isinstance(value, np.ndarray):
        return value
    tensor = torch.tensor(value)
    return tensor.double() if tensor.is_floating_point() else tensor


def _run_mindspore(name: str, args: Any, kwargs: Any) -> list[Any]:
    prefix, _, api = name.partition(".")
    function = _ROOTS[prefix]
    for part in api.split("."):
        function = getattr(function, part)
    arguments = map_leaves([args, kwargs], _mindspore_argument)
    result = function(*arguments[0], **arguments[1])
    leaves = flatten_outputs(result, lambda leaf: isinstance(leaf, ms.Tensor))
    return [leaf.asnumpy() if isinstance(leaf, ms.Tensor) else leaf for leaf in leaves]


def _run_torch(function: Any, args: Any, kwargs: Any) -> list[Any]:
    arguments = map_leaves([args, kwargs], _bench_argument)
    result = function(*arguments[0], **arguments[1])
    leaves = flatten_outputs(result, torch.is_tensor)
    return [leaf.numpy() if torch.is_tensor(leaf) else leaf for leaf in leaves]


def _identify(value: Any) -> str | None:
    return value if isinstance(value, str) else None


@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=_identify)
def test_the_reference_agrees_with_mindspore(name: str, args: Any, kwargs: Any) -> None:
    try:
        device_out = _run_mindspore(name, args, kwargs)
    except (AttributeError, RuntimeError) as error:
        if reason := lacking(error):
            pytest.skip(reason)
        raise
    bench_out = _run_torch(BENCH.resolve(_api(name)), args, kwargs)
    assert len(device_out) == len(bench_out)
    tolerance = 1e-3 if name.endswith("half") or "float16" in map(str, args) else 2e-5
    for device_leaf, bench_leaf in zip(device_out, bench_out, strict=True):
        assert np.shape(device_leaf) == np.shape(bench_leaf)
        np.testing.assert_allclose(device_leaf, bench_leaf, rtol=tolerance, atol=tolerance)


# Torch's functions of the same name give other results for the same arguments.
DIFFERS: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("Tensor.std", torch.Tensor.std, (X,)),
    ("Tensor.var", torch.Tensor.var, (X, 0)),
    ("Tensor.equal", torch.Tensor.equal, (X, X)),
    ("Tensor.norm", torch.Tensor.norm, (SQUARE, 2)),
    ("Functional.std", torch.std, (X, 0)),
    ("Functional.max", torch.max, (X,)),
    ("Functional.median", torch.median, (X,)),
    ("Functional.range", torch.range, (0, 5, 1)),
    ("Functional.leaky_relu", torch.nn.functional.leaky_relu, (SIGNED,)),
    ("Functional.smooth_l1_loss", torch.nn.functional.smooth_l1_loss, (X, SIGNED)),
    ("Functional.avg_pool2d", torch.nn.functional.avg_pool2d, (IMAGE, 2)),
    ("Functional.flatten", torch.flatten, (CUBE,)),
    ("Functional.meshgrid", torch.meshgrid, (INDEX, INDEX + 1)),
    ("MintFunctional.smooth_l1_loss", torch.nn.functional.smooth_l1_loss, (X, Y, "sum", 0.5)),
]
# Torch's functions of the same name do not take the same arguments.
RAISES: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("Tensor.transpose", torch.Tensor.transpose, (CUBE, 2, 0, 1)),
    ("Tensor.transpose", torch.Tensor.transpose, (X, (0, 1))),
    ("Tensor.cumsum", torch.Tensor.cumsum, (X,)),
    ("Tensor.gather", torch.Tensor.gather, (X, INDEX, 1)),
    ("Tensor.select", torch.Tensor.select, (X, X > 0.5, Y)),
    ("Functional.gather", torch.gather, (X, INDEX, 1)),
    ("Functional.transpose", torch.transpose, (CUBE, (2, 0, 1))),
    ("Functional.select", torch.select, (X > 0.5, X, 3.0)),
    ("Functional.one_hot", torch.nn.functional.one_hot, (LABELS, 4, 2.0, 1.0, 0)),
]


@pytest.mark.parametrize(("name", "naive", "args"), DIFFERS, ids=_identify)
def test_the_namesake_in_torch_gives_another_result(
    name: str, naive: Any, args: tuple[Any, ...]
) -> None:
    bench_out = _run_torch(BENCH.resolve(_api(name)), args, {})
    naive_out = _run_torch(naive, args, {})
    same = len(naive_out) == len(bench_out) and all(
        np.shape(left) == np.shape(right) and np.allclose(left, right)
        for left, right in zip(naive_out, bench_out, strict=True)
    )
    assert not same


@pytest.mark.parametrize(("name", "naive", "args"), RAISES, ids=_identify)
def test_the_namesake_in_torch_does_not_take_these_arguments(
    name: str, naive: Any, args: tuple[Any, ...]
) -> None:
    assert _run_torch(BENCH.resolve(_api(name)), args, {})
    with pytest.raises(TypeError, match=r"argument|takes"):
        _run_torch(naive, args, {})


def test_every_row_has_a_target() -> None:
    from ray_precheck.frameworks.mindspore.bench.mapping import ROWS
    from ray_precheck.frameworks.pytorch.signatures import target_of

    rows = [row for rows_of_api in ROWS.values() for row in rows_of_api]
    assert len(rows) > 300
    for row in rows:
        assert callable(target_of(row))


@pytest.mark.parametrize("name", ["Functional.matrix_set_diag", "Functional.iou"])
def test_a_namesake_that_was_not_verified_has_no_bench(name: str) -> None:
    with pytest.raises(NotCheckable, match="no bench"):
        resolve_mindspore(_api(name))


def test_arguments_that_no_row_takes_are_not_checkable() -> None:
    function = resolve_mindspore(_api("Functional.softmax"))
    with pytest.raises(NotCheckable, match="does not know these arguments"):
        function(torch.ones(2, 2), unknown=1)


def test_a_matrix_without_diagonal_is_refused_where_the_devices_differ() -> None:
    with pytest.raises(NotCheckable, match="differs between MindSpore's devices"):
        resolve_mindspore(_api("Tensor.diag"))(torch.ones(2, 2))


def test_embedding_takes_the_indices_first() -> None:
    weight, index = torch.tensor(X), torch.tensor(INDEX)
    # torch.embedding(weight, indices) is the other way round; there is no kernel on the CPU.
    assert torch.equal(
        resolve_mindspore(_api("Functional.embedding"))(index, weight), weight[index]
    )


def test_a_method_that_casts_to_half_stays_in_the_precision_of_the_bench() -> None:
    wide = torch.tensor([1 / 3], dtype=torch.float64)
    assert torch.equal(resolve_mindspore(_api("Tensor.half"))(wide), wide)


def test_in_place_names_change_their_first_argument() -> None:
    tensor = torch.zeros(2, 2, dtype=torch.float64)
    ones = torch.ones(2, dtype=torch.float64)
    resolve_mindspore(_api("Mint.addr_"))(tensor, ones, ones)
    resolve_mindspore(_api("Tensor.sub_"))(tensor, 3.0)
    assert torch.equal(tensor, torch.full((2, 2), -2.0, dtype=torch.float64))
