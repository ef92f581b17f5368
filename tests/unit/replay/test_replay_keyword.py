"""The expressions of -k, which are those of pytest's."""

import pytest

from ray_precheck.errors import UsageError
from ray_precheck.replay.selection import parse_keyword

pytestmark = pytest.mark.unit

NAMES = ["Torch.matmul.0", "Torch.linalg.inv.1", "Tensor.__add__.12", "Tensor.add_.2"]


@pytest.mark.parametrize(
    ("text", "fitting"),
    [
        ("matmul", [0]),
        ("MATMUL", [0]),
        ("Tensor.", [2, 3]),
        (".1", [1, 2]),
        ("add or inv", [1, 2, 3]),
        ("Torch and not matmul", [1]),
        ("not Torch", [2, 3]),
        ("not not Torch", [0, 1]),
        ("not Torch and not add_.2", [2]),
        ("inv or add and 12", [1, 2]),
        ("(inv or add) and 12", [2]),
        ("not (inv or add)", [0]),
        ("  add_.2  ", [3]),
        ("And", []),
        ("nothing", []),
    ],
)
def test_names_that_contain_the_words_fit(text: str, fitting: list[int]) -> None:
    fits = parse_keyword(text).fits
    assert [place for place, name in enumerate(NAMES) if fits(name)] == fitting


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("and", "'and' stands where a word is expected"),
        ("a and", "it ends where a word is expected"),
        ("a b", "'b' stands where 'and' or 'or' is expected"),
        ("not", "it ends where a word is expected"),
        ("(a", "a parenthesis is not closed"),
        ("a)", "')' stands where 'and' or 'or' is expected"),
        ("()", "')' stands where a word is expected"),
        ("(" * 5000, "5000 words; at most 200"),
    ],
)
def test_a_wrong_expression_is_one_sentence(text: str, why: str) -> None:
    with pytest.raises(UsageError) as wrong:
        parse_keyword(text)
    assert str(wrong.value).startswith("-k ")
    assert why in str(wrong.value)


def test_an_expression_has_200_words_at_most() -> None:
    # A hundred words and 99 times "or" between them, and one "not" ahead.
    words = " or ".join(["matmul"] * 100)
    assert parse_keyword(f"not {words}").fits("Torch.add.0")
    with pytest.raises(UsageError, match="has 201 words; at most 200 are read"):
        parse_keyword(f"not not {words}")
