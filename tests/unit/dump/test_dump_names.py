"""The grammar of the keys of a dump."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.dump.scan import LONGEST_NAME, ApiKey, ForeignKey, parse_key, split_key
from ray_precheck.schema.record import ApiName

pytestmark = pytest.mark.unit

PARTS = st.text(
    alphabet=st.characters(exclude_characters=".", exclude_categories=("Cs",)), min_size=1
)


@pytest.mark.parametrize(
    ("key", "prefix", "api", "number", "direction"),
    [
        ("Mint.add.0.forward", "Mint", "add", 0, "forward"),
        ("Tensor.__add__.3.forward", "Tensor", "__add__", 3, "forward"),
        ("Torch.linalg.inv.12.backward", "Torch", "linalg.inv", 12, "backward"),
        ("A.b.c.d.e.1.forward", "A", "b.c.d.e", 1, "forward"),
        ("Tensor.1.2.forward", "Tensor", "1", 2, "forward"),
        ("Tensor.forward.2.forward", "Tensor", "forward", 2, "forward"),
    ],
)
def test_a_key_names_prefix_api_number_and_direction(
    key: str, prefix: str, api: str, number: int, direction: str
) -> None:
    assert parse_key(key) == ApiKey(ApiName(prefix, api, number), direction)


@pytest.mark.parametrize(
    "key",
    [
        "Module.conv1.Conv2d.forward.0",
        "Module.conv1.Conv2d.0.forward",
        "Cell.network.Dense.backward.0",
        "Module.layer.parameters_grad",
        "anything.parameters_grad",
    ],
)
def test_modules_and_their_gradients_are_no_apis(key: str) -> None:
    found = parse_key(key)
    assert isinstance(found, ForeignKey)
    assert found.is_module
    assert found.reason.startswith("not an API")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("", "does not end in .forward or .backward"),
        ("Torch.add.0", "does not end in"),
        ("Torch.add.0.Forward", "does not end in"),
        ("forward", "too few parts"),
        ("add.0.forward", "too few parts"),
        ("Torch.add.x.forward", "'x' is no call number"),
        ("Torch.add.-1.forward", "'-1' is no call number"),
        ("Torch.add.1e3.forward", "no call number"),
        ("Torch.add.\u0663.forward", "no call number"),
        ("Torch.add.\u00b2.forward", "no call number"),
        ("Torch..0.forward", "no call number"),
        (".add.0.forward", "no call number"),
    ],
)
def test_other_keys_are_foreign_with_the_reason(key: str, says: str) -> None:
    found = parse_key(key)
    assert isinstance(found, ForeignKey)
    assert not found.is_module
    assert says in found.reason


@settings(deadline=None, max_examples=100)
@given(
    prefix=PARTS.filter(lambda text: text not in ("Module", "Cell")),
    api=st.lists(PARTS, min_size=1, max_size=4).map(".".join),
    number=st.integers(0, 10**9),
    direction=st.sampled_from(["forward", "backward"]),
)
def test_a_key_that_is_written_from_a_name_reads_back_as_that_name(
    prefix: str, api: str, number: int, direction: str
) -> None:
    name = ApiName(prefix, api, number)
    assert parse_key(f"{name}.{direction}") == ApiKey(name, direction)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.one_of(st.text(max_size=5), st.sampled_from(["forward", "0", "Torch"])), max_size=6)
)
def test_any_text_is_an_api_or_foreign_with_a_reason(parts: list[str]) -> None:
    found = parse_key(".".join(parts))
    assert isinstance(found, ApiKey) or found.reason.startswith("not an API")


def test_a_call_number_of_thousands_of_digits_is_foreign() -> None:
    found = parse_key(f"Torch.add.{'1' * 5000}.forward")
    assert isinstance(found, ForeignKey)


def test_numbers_that_are_spelt_differently_stay_different_names() -> None:
    found = parse_key("Torch.add.007.forward")
    same = isinstance(found, ApiKey) and found.name == ApiName("Torch", "add", 7)
    assert not same


LONGEST_API = "a" * (LONGEST_NAME - len("Torch..0.forward"))
KEYS = [
    "Torch.add.0.forward",
    "Torch.linalg.inv.12.backward",
    "Tensor.1.2.forward",
    f"Torch.{LONGEST_API}.0.forward",
    f"Torch.{LONGEST_API}a.0.forward",
    f"Torch.add.{10**17}.forward",
    f"Torch.add.{10**18}.forward",
    "Torch.add.10.forward",
    "Torch.add.00.forward",
    "Torch.add.007.forward",
    "Torch.add.\u0663.forward",
    "Torch.add.\u00b2.forward",
    "Torch.add.x.forward",
    "Torch.add..forward",
    "Torch.add.0",
    "Torch.add.0.Forward",
    "Torch..0.forward",
    ".add.0.forward",
    "add.0.forward",
    "0.forward",
    "forward",
    "",
    "Module.conv1.Conv2d.0.forward",
    "Module.0.forward",
    "Cell.network.Dense.0.backward",
    "Torch.Module.0.forward",
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key[:20])
def test_a_key_is_split_where_it_names_a_call(key: str) -> None:
    found = parse_key(key)
    expected = (str(found.name), found.direction) if isinstance(found, ApiKey) else None
    assert split_key(key) == expected


def test_names_and_numbers_may_be_as_long_as_this() -> None:
    assert [key[6:9] for key in KEYS[3:7] if split_key(key)] == ["aaa", "add"]
