"""References of quantized operators, of fake quantization and of products of scaled fp8 numbers.

Quantized tensors are `Exact`: float64 numbers that are rounded to steps only where they are compared. Named
by the tables of references.
"""

from typing import Any

import torch
from torch.nn import functional

from ray_precheck import private_parts
from ray_precheck.accuracy.ambiguous import observed
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.pytorch.storages import Exact, rounded_to
from ray_precheck.schema.values import Quantized

Tensor = torch.Tensor


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(value.reshape(-1).tolist()) if torch.is_tensor(value) else (float(value),)


def quantize_per_tensor(input: Tensor, scale: Any, zero_point: Any, dtype: torch.dtype) -> Exact:
    """Return numbers that are to be rounded to steps of one scale."""
    return rounded_to(input.detach(), Quantized(_numbers(scale), _numbers(zero_point)), dtype)


def quantize_per_channel(
    input: Tensor, scales: Tensor, zero_points: Tensor, axis: int, dtype: torch.dtype
) -> Exact:
    """Return numbers that are to be rounded to steps of a scale for each place of a dimension."""
    storage = Quantized(_numbers(scales), _numbers(zero_points), axis % max(input.dim(), 1))
    return rounded_to(input.detach(), storage, dtype)


def quantize_per_tensor_dynamic(input: Tensor, dtype: torch.dtype, reduce_range: bool) -> Exact:
    """Return numbers that are to be rounded to steps of the scale that their extremes ask for."""
    if dtype not in (torch.quint8, torch.qint8):
        raise NotCheckable(f"the bench has no range of {dtype}")
    scale, zero_point = _steps_of(input.float(), reduce_range)
    shift = 0 if dtype is torch.quint8 else (64 if reduce_range else 128)
    return quantize_per_tensor(input, scale, zero_point - shift, dtype)


def _steps_of(numbers: Tensor, reduce_range: bool) -> Any:
    """Return the scale and the zero point that the extremes of numbers ask for."""
    return private_parts.demanded(private_parts.QUANTIZATION)(numbers, reduce_range)


def dequantize(input: Exact) -> Tensor:
    """Return what whole numbers mean."""
    return input.values


def int_repr(input: Exact) -> Tensor:
    """Return the whole numbers."""
    assert input.whole is not None
    return input.whole


def scales(input: Exact) -> Tensor:
    """Return the scales along the axis."""
    return torch.tensor(input.storage.scale, dtype=torch.float64)


def zero_points(input: Exact) -> Tensor:
    """Return the zero points along the axis."""
    return torch.tensor(input.storage.zero_point).long()


def _as_asked(
    result: Tensor, scale: Any, zero_point: Any, like: Exact, slack: float = 0.0
) -> Exact:
    storage = Quantized(_numbers(scale), _numbers(zero_point), slack=slack)
    return rounded_to(result, storage, like.stored)


def _product(x: Exact, parts: Any, scale: Any, zero_point: Any, result: Tensor) -> Exact:
    # Some engines round the bias to steps of the products.
    finest = max(x.storage.scale) * max(parts["weight"].storage.scale)
    slack = 0.5 * finest / _numbers(scale)[0] if parts.get("bias") is not None else 0.0
    return _as_asked(result, scale, zero_point, x, slack)


def linear(x: Exact, packed: Any, scale: Any, zero_point: Any) -> Exact:
    """Return a linear layer of what the numbers mean."""
    result = functional.linear(x.values, packed["weight"].values, packed.get("bias"))
    return _product(x, packed, scale, zero_point, result)


def linear_relu(x: Exact, packed: Any, scale: Any, zero_point: Any) -> Exact:
    """Return the same where it is positive, else 0."""
    result = functional.linear(x.values, packed["weight"].values, packed.get("bias")).relu()
    return _product(x, packed, scale, zero_point, result)


def linear_dynamic(x: Tensor, packed: Any, reduce_range: bool = False) -> Tensor:
    """Return a linear layer whose input is rounded to steps that its extremes ask for, as in float32."""
    narrow = x.detach().float()
    scale, zero_point = _steps_of(narrow, reduce_range)
    whole = torch.quantize_per_tensor(narrow, scale, int(zero_point), torch.quint8).int_repr()
    meant = (whole.double() - zero_point) * scale
    return functional.linear(meant, packed["weight"].values, packed.get("bias"))


def linear_relu_dynamic(x: Tensor, packed: Any, reduce_range: bool = False) -> Tensor:
    """Return the same where it is positive, else 0."""
    return linear_dynamic(x, packed, reduce_range).relu()


def _convolved(x: Exact, packed: Any) -> Tensor:
    dimensions = x.values.dim() - 2
    function: Any = (functional.conv1d, functional.conv2d, functional.conv3d)[dimensions - 1]
    # Packed weights of one dimension have the ways of two.
    ways = [list(packed[key])[-dimensions:] for key in ("stride", "padding", "dilation")]
    weight = packed["weight"].values
    weight = weight.squeeze(2) if weight.dim() > x.values.dim() else weight
    found: Tensor = function(x.values, weight, packed.get("bias"), *ways, packed["groups"])
    return found


def convolution(x: Exact, packed: Any, scale: Any, zero_point: Any) -> Exact:
    """Return a convolution of what the numbers mean."""
    return _product(x, packed, scale, zero_point, _convolved(x, packed))


def convolution_relu(x: Exact, packed: Any, scale: Any, zero_point: Any) -> Exact:
    """Return the same where it is positive, else 0."""
    return _product(x, packed, scale, zero_point, _convolved(x, packed).relu())


def add(x: Exact, other: Exact, scale: Any, zero_point: Any) -> Exact:
    """Return a sum."""
    return _as_asked(x.values + other.values, scale, zero_point, x)


def add_relu(x: Exact, other: Exact, scale: Any, zero_point: Any) -> Exact:
    """Return a sum where it is positive, else 0."""
    return _as_asked((x.values + other.values).relu(), scale, zero_point, x)


def mul(x: Exact, other: Exact, scale: Any, zero_point: Any) -> Exact:
    """Return a product, element by element."""
    return _as_asked(x.values * other.values, scale, zero_point, x)


def mul_relu(x: Exact, other: Exact, scale: Any, zero_point: Any) -> Exact:
    """Return a product where it is positive, else 0."""
    return _as_asked((x.values * other.values).relu(), scale, zero_point, x)


def cat(tensors: Any, dim: int, scale: Any = None, zero_point: Any = None) -> Exact:
    """Return tensors one behind the other, with the scale of the first if none is given."""
    first = tensors[0]
    result = torch.cat([each.values for each in tensors], dim)
    if scale is None:
        return rounded_to(result, first.storage, first.stored)
    return _as_asked(result, scale, zero_point, first)


def fake_quantize(
    input: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> Tensor:
    """Return the numbers that are left when others are quantized; the gradient is that of the input, 0 where
    it is beyond the ends."""
    scale, zero_point = _in_float64(scale, zero_point)
    return _faked(input, scale, zero_point, quant_min, quant_max)


def fake_quantize_channels(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    """Return the same with a scale for each place of a dimension."""
    shape = _along(input, axis)
    scale, zero_point = _in_float64(scale, zero_point)
    return _faked(input, scale.reshape(shape), zero_point.reshape(shape), quant_min, quant_max)


def learnable(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    """Return the same, with gradients of scale and zero point (LSQ+, Bhalgat et al. 2020)."""
    fixed, zero = scale.detach(), zero_point.detach().round().clamp(quant_min, quant_max)
    found = _faked(input, fixed, zero, quant_min, quant_max)
    x = input.detach()
    steps = (x / fixed).round() + zero
    beyond = (steps < quant_min) | (steps > quant_max)
    end = steps.clamp(quant_min, quant_max) - zero
    of_scale = torch.where(beyond, end, (found.detach() - x) / fixed)
    of_zero = torch.where(beyond, -fixed, torch.zeros_like(x))
    # They add 0, and have the gradients of the kernel.
    found = found + (scale - fixed) * of_scale * grad_factor
    return found + (zero_point - zero_point.detach()) * of_zero * grad_factor


def learnable_channels(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    """Return the same with a scale for each place of a dimension."""
    shape = _along(input, axis)
    ends = quant_min, quant_max
    return learnable(input, scale.reshape(shape), zero_point.reshape(shape), *ends, grad_factor)


def _along(input: Tensor, axis: int) -> list[int]:
    return [-1 if at == axis % input.dim() else 1 for at in range(input.dim())]


def _in_float64(*values: Any) -> list[Tensor]:
    return [torch.as_tensor(each).to(torch.float64) for each in values]


def _faked(input: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int) -> Tensor:
    x = input.detach()
    steps = (x / scale).round() + zero_point
    inside = (steps >= low) & (steps <= high)
    found = (steps.clamp(low, high) - zero_point) * scale
    passed_on = torch.where(inside, input, x)
    return passed_on + (found - passed_on).detach()


def observed_fake_quantize(
    input: Tensor,
    observer_on: Tensor,
    fake_quant_on: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> Tensor:
    """Return fake quantization in steps of a range that follows the values; what follows is changed."""
    axis = ch_axis if per_row_fake_quant else None
    if observer_on.any():
        before = running_min.numpy(), running_max.numpy()
        ends, x = (quant_min, quant_max), input.detach().numpy()
        found = observed(x, before, averaging_const, ends, axis, symmetric_quant)
        for tensor, values in zip(
            (running_min, running_max, scale, zero_point), found, strict=True
        ):
            tensor.copy_(torch.from_numpy(values).reshape(tensor.shape))
    if not fake_quant_on.any():
        return input.clone()
    if axis is None:
        return fake_quantize(input, scale, zero_point, quant_min, quant_max)
    return fake_quantize_channels(input, scale, zero_point, axis, quant_min, quant_max)


def scaled_mm(
    a: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
) -> Tensor:
    """Return the product of matrices of fp8, each of whose numbers, rows or blocks has a scale."""
    result = (a * _spread(scale_a, a)) @ (mat2 * _spread(scale_b, mat2))
    return result if bias is None else result + bias


def _spread(scale: Tensor, matrix: Tensor) -> Tensor:
    """Return scales of blocks as those of elements."""
    if scale.dim() != 2:
        return scale.reshape(()) if scale.numel() == 1 else scale
    for dim in (0, 1):
        count, size = scale.shape[dim], matrix.shape[dim]
        if count not in (1, size):
            scale = scale.repeat_interleave(-(-size // count), dim).narrow(dim, 0, size)
    return scale
