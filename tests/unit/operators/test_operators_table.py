"""A fact about an operator is claimed once, under its full name."""

import pytest

from ray_precheck.operators.table import (
    NAMESPACES,
    FactTable,
    full_name,
    full_names,
    one_table,
    operators,
    table_of_names,
    type_names,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("type_name", "framework", "expected"),
    [
        ("Functional.dropout", "pytorch", "torch.nn.functional.dropout"),
        ("Functional.dropout", "mindspore", "mindspore.ops.dropout"),
        ("Functional.dropout", "mindtorch", "torch.nn.functional.dropout"),
        ("Tensor.sort", "pytorch", "torch.Tensor.sort"),
        ("Tensor.sort", "mindspore", "mindspore.Tensor.sort"),
        ("Torch.linalg.inv", "pytorch", "torch.linalg.inv"),
        ("VF.lstm", "pytorch", "torch.lstm"),
        ("Torch.functional.einsum", "pytorch", "torch.einsum"),
        ("Torch.nn.functional.softmax", "pytorch", "torch.nn.functional.softmax"),
        ("Mint.linalg.inv", "mindspore", "mindspore.mint.linalg.inv"),
        ("MintFunctional.gelu", "mindspore", "mindspore.mint.nn.functional.gelu"),
        ("NPU.npu_rms_norm", "pytorch", "torch_npu.npu_rms_norm"),
        ("MyOps.gelu", "pytorch", "MyOps.gelu"),
    ],
)
def test_a_name_in_a_dump_stands_for_one_operator(
    type_name: str, framework: str, expected: str
) -> None:
    assert full_name(type_name, framework) == expected
    assert full_names(type_name, framework) == (expected,)


def test_without_a_framework_a_name_stands_for_an_operator_of_each() -> None:
    assert full_names("Functional.gelu") == ("torch.nn.functional.gelu", "mindspore.ops.gelu")


@pytest.mark.parametrize("framework", NAMESPACES)
def test_an_operator_is_found_back_under_its_names_in_dumps(framework: str) -> None:
    for prefix in NAMESPACES[framework]:
        name = full_name(f"{prefix}.sort", framework)
        assert (framework, f"{prefix}.sort") in set(type_names(name))


def test_the_names_of_a_text_are_in_each_namespace_of_their_group() -> None:
    text = """
    torch torch.Tensor: sort
        topk
    mindspore.ops: top_k
    """
    assert operators(text) == (
        "torch.sort",
        "torch.Tensor.sort",
        "torch.topk",
        "torch.Tensor.topk",
        "mindspore.ops.top_k",
    )


def test_a_name_without_a_namespace_is_refused() -> None:
    with pytest.raises(ValueError, match="no namespace stands before 'sort'"):
        operators("sort")


@pytest.mark.parametrize("text", ["torch: sort sort", "torch: sort\ntorch torch.Tensor: sort"])
def test_a_name_that_stands_in_a_row_twice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"stand in one row twice: torch\.sort$"):
        operators(text)


def test_two_rows_that_claim_the_same_are_an_error_that_names_the_operator() -> None:
    rows = [("torch torch.Tensor: sort", 1), ("torch: topk sort", 2)]
    with pytest.raises(ValueError, match=r"two rows of the table 'colour' claim torch\.sort; keep"):
        FactTable("colour", rows)


def test_a_fact_holds_for_the_operators_of_its_row_alone() -> None:
    facts = FactTable("colour", [("torch: inv", "red"), ("mindspore.ops: inv", "blue")])
    assert facts.of("Torch.inv", "pytorch") == "red"
    assert facts.of("Functional.inv", "mindspore") == "blue"
    assert facts.of("Functional.inv", "pytorch") is None
    assert facts.of("Torch.linalg.inv", "pytorch") is None
    assert facts.get("torch.inv") == "red"


def test_where_the_framework_is_unknown_the_first_one_with_a_row_counts() -> None:
    facts = FactTable(
        "colour", [("mindspore.ops: inv gelu", "blue"), ("torch.nn.functional: gelu", "red")]
    )
    assert facts.of("Functional.inv") == "blue"
    assert facts.of("Functional.gelu") == "red"
    assert facts.of("Functional.none") is None


def test_a_table_of_names_says_yes_or_nothing() -> None:
    facts = table_of_names("odd", "torch: sort")
    assert (facts.of("Torch.sort"), facts.of("Torch.topk")) == (True, None)


def test_tables_that_claim_the_same_make_no_table() -> None:
    assert one_table("colours", {"a": 1}, {"b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="two rows of colours claim a, c; keep one"):
        one_table("colours", {"a": 1, "b": 2, "c": 3}, {"c": 3, "a": 4})
