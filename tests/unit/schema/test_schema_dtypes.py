"""The names of number formats."""

import pytest

from ray_precheck.descriptors.descriptor import framework_dtype
from ray_precheck.schema.dtypes import DTYPES, canonical_dtype, is_differentiable

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("Float32", "float32"),
        ("mindspore.float32", "float32"),
        ("torch.bfloat16", "bfloat16"),
        ("BFloat16", "bfloat16"),
        ("torch.half", "float16"),
        ("torch.double", "float64"),
        ("torch.float", "float32"),
        ("torch.long", "int64"),
        ("torch.int", "int32"),
        ("torch.short", "int16"),
        ("Bool", "bool"),
        ("bool_", "bool"),
        ("UInt8", "uint8"),
        ("torch.cfloat", "complex64"),
        ("Complex128", "complex128"),
        ("Float8E4M3FN", "float8_e4m3fn"),
        ("torch.float8_e5m2", "float8_e5m2"),
        (" int8 ", "int8"),
    ],
)
def test_spellings_of_dtypes_are_understood(spelt: str, name: str) -> None:
    assert canonical_dtype(spelt) == name


@pytest.mark.parametrize("spelt", ["", "None", "torch.quint4x2", "string", "object", "float7", "."])
def test_unknown_dtypes_are_none(spelt: str) -> None:
    assert canonical_dtype(spelt) is None


@pytest.mark.parametrize("framework", ["mindspore", "pytorch"])
@pytest.mark.parametrize("name", sorted(DTYPES))
def test_a_spelling_for_people_reads_back_as_the_same_dtype(name: str, framework: str) -> None:
    assert canonical_dtype(framework_dtype(name, framework)) == name


@pytest.mark.parametrize(
    ("name", "mindspore"),
    [("float32", "Float32"), ("bfloat16", "BFloat16"), ("uint8", "UInt8"), ("bool", "Bool")],
)
def test_dtypes_are_spelt_as_each_framework_does(name: str, mindspore: str) -> None:
    assert framework_dtype(name, "mindspore") == mindspore
    assert framework_dtype(name, "pytorch") == f"torch.{name}"


def test_only_floats_and_complex_numbers_have_gradients() -> None:
    having = {name for name in DTYPES if is_differentiable(name)}
    assert having == {name for name in DTYPES if "float" in name} | {"complex64", "complex128"}
