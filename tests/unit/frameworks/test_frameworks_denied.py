"""Names that are never called."""

import pytest

from ray_precheck.errors import NotCheckable
from ray_precheck.operators.refused import REFUSED, refusal, require_allowed
from ray_precheck.schema.record import ApiName

pytestmark = pytest.mark.unit

PREFIXES = [
    *(("pytorch", prefix) for prefix in ("Torch", "Functional", "Tensor", "VF", "NPU")),
    *(("mindtorch", prefix) for prefix in ("Torch", "Functional", "Tensor")),
    ("toy", "Tensor"),
    ("toy", "Toy"),
    ("", "Tensor"),
    *(("mindspore", prefix) for prefix in ("Mint", "MintFunctional", "Tensor", "Functional")),
]


def denial(api: str) -> str:
    """The reason for which a name is refused under every prefix of every framework."""
    (reason,) = {refusal(f"{prefix}.{api}", framework) for framework, prefix in PREFIXES}
    return reason


@pytest.mark.parametrize(
    "api",
    [
        "__reduce_ex__",
        "__reduce__",
        "__setstate__",
        "__getattribute__",
        "__deepcopy__",
        "set_",
        "resize_",
        "register_hook",
        "storage",
        "untyped_storage",
        "share_memory_",
        "numpy",
        "asnumpy",
        "data_ptr",
        "apply_",
        "map_",
        "backward",
        "requires_grad_",
        "record_stream",
        "tensordump",
        "print_",
    ],
)
def test_what_touches_more_than_its_tensors_is_refused(api: str) -> None:
    assert denial(api) == "it touches more than its tensors"


@pytest.mark.parametrize("api", ["empty", "empty_like", "new_empty", "empty_strided"])
def test_uninitialised_memory_is_not_compared(api: str) -> None:
    assert denial(api) == "its result is uninitialised memory"


@pytest.mark.parametrize("api", ["element_size", "type", "result_type", "nbytes", "itemsize"])
def test_what_describes_the_dtype_is_not_compared(api: str) -> None:
    assert "describes the dtype" in denial(api)


@pytest.mark.parametrize(
    "api", ["linalg.storage", "storage.add", "nn.functional.numpy", "a.b.__reduce_ex__", "set_.x"]
)
def test_every_part_of_a_dotted_name_counts(api: str) -> None:
    assert denial(api)


@pytest.mark.parametrize(
    "api", ["_foo", "_C._load", "linalg._inv", "__private", "_", "a.__b", "x._y.z"]
)
def test_private_names_are_refused(api: str) -> None:
    assert denial(api) == "its name is private"


@pytest.mark.parametrize(
    "api",
    [
        "add",
        "add_",
        "linalg.inv",
        "__add__",
        "__iadd__",
        "__getitem__",
        "__matmul__",
        "_foreach_add",
    ],
)
def test_operators_dunders_and_foreach_may_be_called(api: str) -> None:
    assert denial(api) == ""


def test_every_refusal_has_a_reason() -> None:
    assert len(REFUSED.by_name) > 800
    assert all(REFUSED.by_name.values())


def test_namesakes_of_what_is_refused_may_be_called() -> None:
    """torch.cond calls functions of the dump; the others are the condition number of a matrix."""
    assert refusal("Torch.cond", "pytorch") == "it touches more than its tensors"
    assert refusal("Torch.linalg.cond", "pytorch") == ""
    assert refusal("Functional.cond", "mindspore") == ""


def test_an_api_that_is_refused_is_not_checkable_and_says_why() -> None:
    require_allowed(ApiName("Torch", "linalg.cond", 0), "pytorch")
    with pytest.raises(
        NotCheckable, match=r"^Tensor\.set_ is refused: it touches more than its tensors$"
    ):
        require_allowed(ApiName("Tensor", "set_", 0), "mindspore")
