"""The sketch and the health of torch tensors are those that numpy computes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ray_precheck.capture.pytorch.tensors import sketching as on_device  # noqa: E402
from ray_precheck.capture.recording.measures import local_part  # noqa: E402
from ray_precheck.numerics.sketch import sketch  # noqa: E402
from ray_precheck.numerics.statistics import health_of  # noqa: E402

pytestmark = pytest.mark.frameworks
DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool", "complex64"]
# Of blocks of 8,144 elements, 256 in a chunk.
SIZES = [1, 5_000, 8_144, 8_145, 256 * 8_144 - 3, 256 * 8_144 + 8_150]


def host_values(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).resolve_conj().numpy()


def assert_same(tensor: torch.Tensor) -> None:
    values = host_values(tensor)
    finite = np.where(np.isfinite(values), values, 0).astype(np.complex128)
    found = on_device.buckets_of(on_device.device_sketch(tensor).numpy())
    norm = float(np.linalg.norm(finite.reshape(-1)))
    np.testing.assert_allclose(found, sketch(values), rtol=0, atol=3e-7 * norm)
    dtype = str(tensor.dtype)[6:]
    health = on_device.health_from(on_device.device_health(tensor).numpy(), dtype)
    assert health == health_of(values, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_a_tensor_has_the_sketch_of_numpy(dtype: str, size: int) -> None:
    drawn = torch.randn(size, generator=torch.Generator().manual_seed(0)) * 10
    assert_same(
        drawn.abs().to(torch.uint8) if dtype == "uint8" else drawn.to(getattr(torch, dtype))
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64"])
@pytest.mark.parametrize(
    "scale", [2.0**120, 2.0**-130, 2.0**-146, 2.0**1000, 2.0**600, 2.0**-600, 2.0**-1040]
)
def test_values_near_a_dtypes_limits_have_an_exponent(dtype: str, scale: float) -> None:
    if dtype != "float64" and not 2.0**-149 < scale < 2.0**127:
        scale = {True: 2.0**121, False: 2.0**-140}[scale > 1]
    whole = torch.arange(9_000, dtype=torch.float64) % 9 - 4
    tensor = (whole * scale).to(getattr(torch, dtype))
    assert_same(tensor)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "complex64"])
def test_nan_and_infinity_count_as_zero(dtype: str) -> None:
    tensor = torch.randn(9_000).to(getattr(torch, dtype))
    tensor[3], tensor[77], tensor[8_999], tensor[50] = np.nan, np.inf, -np.inf, 0.0
    assert_same(tensor)
    assert_same(torch.full((20,), np.nan, dtype=getattr(torch, dtype)))


def test_views_are_taken_in_row_major_order() -> None:
    tensor = torch.randn(60, 100)
    for view in (tensor.T, tensor[:, ::3], tensor[:1].expand(50, 100), tensor.reshape(3, 4, -1)):
        assert_same(view)
    assert_same(torch.view_as_complex(torch.randn(500, 2)).conj())
    assert_same(torch.tensor(3.5))


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64"])
def test_nothing_has_an_empty_sketch(dtype: str) -> None:
    assert_same(torch.zeros((4, 0), dtype=getattr(torch, dtype)))


def test_neither_a_matrix_product_nor_a_wait_for_the_device() -> None:
    """Devices compute products in TF32 or HF32; a value on the host waits for all work before."""
    from torch.overrides import TorchFunctionMode

    seen = set()

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.add(func.__name__)
            return func(*args, **(kwargs or {}))

    tensor = torch.randn(30_000)
    with Watch():
        on_device.device_sketch(tensor)
        on_device.device_health(tensor)
    assert {"gather", "sum", "amax"} <= seen
    products = {"matmul", "__matmul__", "mm", "bmm", "mv", "dot", "einsum", "addmm", "linear"}
    waits = {"item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__float__", "__int__"}
    assert not seen & (products | waits)


def test_the_parts_of_a_mesh_are_those_of_dtensor() -> None:
    utils = pytest.importorskip("torch.distributed.tensor._utils")
    compute = getattr(utils, "_compute_local_shape_and_global_offset", None)
    if compute is None:
        pytest.skip("this torch has another function")
    from torch.distributed.tensor import Replicate, Shard

    mesh = (2, 3, 2)
    for whole in ((7, 5), (1, 12), (13, 4, 3), (24,), (5, 0)):
        for placings in (
            (0, 0, 0),
            (0, None, 0),
            (len(whole) - 1, 0, None),
            (0, 0, len(whole) - 1),
        ):
            placements = [Replicate() if each is None else Shard(each) for each in placings]
            for coordinate in np.ndindex(*mesh):
                try:
                    shape, offsets = compute(whole, mesh, list(coordinate), placements)
                except TypeError:
                    pytest.skip("this torch's function takes other arguments")
                part = local_part(whole, mesh, coordinate, placings)
                assert part.shape == tuple(shape)
                if 0 not in part.shape:  # where an empty part begins says nothing
                    assert part.offsets == tuple(offsets)
