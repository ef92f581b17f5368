"""Products as equations: their axes, what each result is added up from, and sums of rows."""

import numpy as np
import pytest

from ray_precheck.bench.products import INCOMING, Product, product_of, sums_of_rows
from ray_precheck.schema.values import HostCall, HostTensor


def tensor(*shape: int) -> HostTensor:
    return HostTensor("float32", np.zeros(shape, np.float32))


def product(name: str, out: tuple[int, ...], *args: object, framework: str = "") -> Product | None:
    return product_of(name, framework, HostCall(args, {}), out)


@pytest.mark.parametrize(
    ("name", "args", "out", "equation", "macs"),
    [
        ("Functional.linear", [(2, 64, 32), (80, 32), (80,)], (2, 64, 80), "abk,nk,n->abn", 327680),
        ("Torch.matmul", [(4, 70, 32), (32, 65)], (4, 70, 65), "abk,kn->abn", 582400),
        ("Torch.matmul", [(4, 70, 32), (4, 32, 65)], (4, 70, 65), "amk,akn->amn", 582400),
        ("Tensor.__matmul__", [(70, 32), (32, 65)], (70, 65), "ak,kn->an", 145600),
        ("Torch.addmm", [(65,), (70, 32), (32, 65)], (70, 65), "n,mk,kn->mn", 145600),
        ("Torch.baddbmm", [(4, 70, 65), (4, 70, 32), (4, 32, 65)], (4, 70, 65),
         "bmn,bmk,bkn->bmn", 582400),
        ("Functional.conv2d", [(2, 8, 9, 9), (64, 8, 3, 3), (64,)], (2, 64, 7, 7),
         "ziXY,oiUV,o->zoPQ", 64 * 8 * 9 * 2 * 49),
        ("Functional.conv_transpose2d", [(2, 8, 9, 9), (8, 64, 2, 2)], (2, 64, 18, 18),
         "ziXY,ioUV->zoPQ", 8 * 64 * 4 * 2 * 81),
    ],
)  # fmt: skip
def test_an_equation_names_the_axes(name, args, out, equation, macs):
    found = product(name, out, *(tensor(*shape) for shape in args))

    assert found is not None
    assert f"{','.join(found.tensors)}->{found.out}" == equation
    assert found.macs == macs


def test_einsum_has_its_own_letters():
    given = [tensor(2, 64, 8), tensor(8, 3, 4)]

    found = product("Torch.einsum", (2, 3, 64, 4), "bqd,dhk->bhqk", given)
    assert found is not None
    assert found.tensors == ("bqd", "dhk")
    assert found.inner == "d"

    assert product("Torch.einsum", (2, 3, 64, 4), "...d,dhk->...hk", given) is None
    assert product("Torch.einsum", (64, 3), "bqd,dhk->qh", given) is None, "b and k are added up"


@pytest.mark.parametrize(
    ("name", "args", "out"),
    [
        ("Functional.conv2d", [(2, 8, 9, 9), (64, 4, 3, 3)], (2, 64, 7, 7)),  # two groups
        ("Torch.matmul", [(4, 70, 32), (1, 32, 65)], (4, 70, 65)),  # broadcast samples
        ("Torch.matmul", [(32,), (32, 65)], (65,)),
        ("Torch.mul", [(70, 32), (70, 32)], (70, 32)),
    ],
)
def test_other_calls_are_no_product(name, args, out):
    assert product(name, out, *(tensor(*shape) for shape in args)) is None


def test_each_result_is_cut_along_the_axis_that_reads_least():
    found = product(
        "Functional.linear", (64, 4096), tensor(64, 512), tensor(4096, 512), tensor(4096)
    )
    assert found is not None

    output, data, weight, bias = found.output(), *map(found.gradient, range(3))
    assert output is not None
    assert (output.axis, output.terms) == ("n", ((0, 1), (2,)))
    assert data is not None
    assert (data.axis, data.terms) == ("k", ((1, INCOMING),)), "not the 64 tokens: all weights"
    assert weight is not None
    assert (weight.axis, weight.terms) == ("n", ((0, INCOMING),))
    assert bias is not None
    assert bias.is_sum


def test_short_axes_are_not_cut():
    found = product("Torch.matmul", (32, 32), tensor(32, 512), tensor(512, 32))
    assert found is not None
    assert found.output() is None


@pytest.mark.parametrize("length", [12, 10, 9, 5])
def test_rows_of_a_block_are_added_with_their_signs(length):
    rng = np.random.default_rng(length)
    array, signs = rng.normal(size=(3, length, 2)), rng.choice([-1.0, 1.0], (4, 3))

    expected = np.zeros((3, 3, 2))
    for row in range(length):
        expected[:, row % 3] += signs[row // 3, row % 3] * array[:, row]

    assert np.allclose(sums_of_rows(array, 1, signs), expected, rtol=0, atol=1e-12)
