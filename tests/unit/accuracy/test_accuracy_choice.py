"""Which standards there are, and which one is published for which API."""

import pickle

import pytest

from ray_precheck.accuracy.standards import STANDARD_NAMES
from ray_precheck.accuracy.standards.base import added_headings
from ray_precheck.accuracy.standards.published import published_standard
from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.operators.accuracy import PUBLISHED_STANDARD

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("api", "standard"),
    [
        ("Torch.mul", "absolute"),
        ("Tensor.__add__", "absolute"),
        ("Mint.rsqrt", "absolute"),
        ("Torch.transpose", "binary"),
        ("Functional.relu", "binary"),
        ("Mint.matmul", "ulp"),
        ("Functional.linear", "ulp"),
        ("Functional.conv2d", "thousandth"),
        ("Torch.exp", "benchmark"),
        ("MintFunctional.layer_norm", "benchmark"),
        ("Torch.linalg.inv", "benchmark"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "complex64"])
def test_an_api_has_the_standard_that_is_published_for_it(
    api: str, standard: str, dtype: str
) -> None:
    assert published_standard(api, dtype, "forward") == standard


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_integers_and_booleans_are_binary_whatever_the_api(dtype: str) -> None:
    assert published_standard("Torch.mul", dtype, "forward") == "binary"


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_is_judged_by_units_in_the_last_place(dtype: str) -> None:
    assert published_standard("Torch.exp", dtype, "forward") == "ulp"


def test_the_gradient_of_data_movement_is_not_binary() -> None:
    assert published_standard("Torch.gather", "float32", "backward") == "benchmark"
    assert published_standard("Torch.mul", "float32", "backward") == "absolute"


def test_every_listed_standard_exists() -> None:
    assert set(PUBLISHED_STANDARD.by_name.values()) | {"benchmark"} < set(STANDARDS)


def test_every_standard_has_the_name_by_which_it_is_found() -> None:
    assert [STANDARDS[name]().name for name in STANDARD_NAMES] == [*STANDARD_NAMES]


@pytest.mark.parametrize("name", STANDARDS)
def test_a_standard_is_small_and_crosses_processes(name: str) -> None:
    standard = STANDARDS[name]()
    data = pickle.dumps(standard)
    assert pickle.loads(data) == standard
    assert len(data) < 1000
    assert standard.name == name


@pytest.mark.parametrize("name", STANDARDS)
def test_headings_are_told_apart_and_can_be_listed(name: str) -> None:
    headings = added_headings(STANDARDS[name]())
    assert len(set(headings)) == len(headings)
    assert not any("," in heading or heading != heading.strip() for heading in headings)
