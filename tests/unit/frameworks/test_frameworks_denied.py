"""Names that are never called."""

import pytest

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.denied import DENIED, denial, require_allowed
from ray_precheck.schema.record import ApiName

pytestmark = pytest.mark.unit


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


def test_every_refusal_has_a_reason_and_is_found_by_its_name() -> None:
    assert len(DENIED) > 80
    assert all(reason and denial(api) == reason for api, reason in DENIED.items())


def test_an_api_that_is_refused_is_not_checkable_and_says_why() -> None:
    require_allowed(ApiName("Torch", "linalg.cond", 0))
    with pytest.raises(
        NotCheckable, match=r"^Tensor\.set_ is refused: it touches more than its tensors$"
    ):
        require_allowed(ApiName("Tensor", "set_", 0))
