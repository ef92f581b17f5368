"""Reasons for what was not compared: those that differ in numbers and names are one."""

import pytest

from ray_precheck.commands.precheck.summary import Reasons, reason_key, why_not_compared

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("Mint.foo.0", "it needs 3.2 GiB of 2"), ("Mint.bar.7", "it needs 12 GiB of 4.5")),
        (
            ("Mint.a.0", "Mint.a is not an operator of MindSpore 2.10.0 that may be called"),
            ("Mint.b.c.3", "Mint.b.c is not an operator of MindSpore 2.9.0 that may be called"),
        ),
        (
            ("Torch.a.0", "the CPU has no kernel for it: RuntimeError: not for 'Half'"),
            ("Torch.b.0", "the CPU has no kernel for it: ValueError: something else; and more"),
        ),
        (
            ("A.a.0", "backward: the bench raised: RuntimeError: x"),
            ("A.b.0", "backward: the bench raised: ValueError: y"),
        ),
        (("A.a.0", "no file Mint.a.0.npy in /data/x"), ("A.b.0", "no file Mint.b.0.npy in /y")),
        (("A.a.0", "shape [2, 3] is odd"), ("A.b.0", "shape [4] is odd")),
        (("A.longname.0", "longname has no bench"), ("A.othername.0", "othername has no bench")),
    ],
)
def test_numbers_and_names_make_no_other_reason(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert reason_key(*one) == reason_key(*other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("device and bench raised; device: x", "the bench raised: x"),
        ("backward: the bench raised: x", "the bench raised: x"),
        ("backward: the forward pass raised", "backward: no floating tensor among the inputs"),
        ("prefix Aten is not supported", "prefix Primitive is not supported"),
    ],
)
def test_other_words_are_another_reason(one: str, other: str) -> None:
    assert reason_key("Mint.a.0", one) != reason_key("Mint.a.0", other)


def test_the_commonest_come_first_with_the_first_text_and_some_names() -> None:
    reasons = Reasons()
    reasons.add("A.rare.0", "nobody knows")
    for number in range(5):
        reasons.add(f"A.often.{number}", f"it needs {number} GiB")
    first, second = reasons.commonest(5)
    assert (first.text, first.count) == ("it needs 0 GiB", 5)
    assert first.names == ["A.often.0", "A.often.1", "A.often.2"]
    assert (second.text, second.count) == ("nobody knows", 1)
    assert [reason.count for reason in reasons.commonest(1)] == [5]


def test_of_a_backward_that_was_not_compared_only_its_own_words_count() -> None:
    message = "2 NaN agree; backward: the bench raised: x; y"
    assert why_not_compared(message, forward=False) == "backward: the bench raised: x; y"
    assert why_not_compared(message, forward=True) == message
    assert why_not_compared("", forward=True) == "no reason is given"
