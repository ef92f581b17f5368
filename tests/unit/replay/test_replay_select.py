"""What can be checked, and the reason for what cannot."""

import pytest

from ray_precheck.bench.checkable import (
    changes_its_input,
    is_random,
    skip_by_name,
    skip_by_record,
    unsupported_prefix,
)
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import (
    Constant,
    SequenceSpec,
    Symbol,
    TensorSpec,
    UnknownSpec,
    ValueSpec,
)

pytestmark = pytest.mark.unit

TENSOR = TensorSpec("float32", (2,))


def call(type_name: str, *args: ValueSpec, **kwargs: ValueSpec) -> ApiRecord:
    prefix, api = type_name.split(".", 1)
    return ApiRecord(ApiName(prefix, api, 0), args, tuple(kwargs.items()), ())


@pytest.mark.parametrize(
    ("framework", "prefixes"),
    [
        ("mindspore", ("Mint", "MintFunctional", "Tensor", "Functional")),
        ("pytorch", ("Functional", "Tensor", "Torch", "VF", "NPU")),
    ],
)
def test_the_prefixes_of_a_framework_may_be_checked(
    framework: str, prefixes: tuple[str, ...]
) -> None:
    assert {skip_by_name(ApiName(prefix, "add", 0), framework) for prefix in prefixes} == {""}


@pytest.mark.parametrize("framework", ["mindspore", "pytorch"])
@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        ("Distributed", "needs its other ranks"),
        ("MintDistributed", "needs its other ranks"),
    ],
)
def test_prefixes_without_a_bench_say_what_is_missing(
    framework: str, prefix: str, says: str
) -> None:
    assert says in skip_by_name(ApiName(prefix, "add", 0), framework)


@pytest.mark.parametrize("prefix", ["Aten", "MindSpeed", "MyOps"])
def test_a_prefix_of_no_framework_may_be_one_that_a_users_bench_declares(prefix: str) -> None:
    assert skip_by_name(ApiName(prefix, "add", 0), "pytorch") == ""
    assert "is not supported for pytorch" in unsupported_prefix(ApiName(prefix, "a", 0), "pytorch")


@pytest.mark.parametrize("prefix", ["=1", "My-Ops", "two words", "\0"])
def test_a_prefix_that_no_python_file_can_declare_is_refused_by_name(prefix: str) -> None:
    assert "is not supported for pytorch" in skip_by_name(ApiName(prefix, "add", 0), "pytorch")


@pytest.mark.parametrize(
    ("framework", "prefix"), [("mindspore", "Torch"), ("pytorch", "Mint"), ("mindspore", "NPU")]
)
def test_other_prefixes_are_named_with_the_supported_ones(framework: str, prefix: str) -> None:
    reason = skip_by_name(ApiName(prefix, "add", 0), framework)
    assert reason.startswith(f"prefix {prefix} is not supported for {framework} (supported: ")
    assert "Functional, " in reason


@pytest.mark.parametrize(
    "api",
    ["Torch.rand", "Torch.randn_like", "Tensor.normal_", "Mint.randperm", "Torch.bernoulli"],
)
def test_random_apis_are_judged_by_statistics(api: str) -> None:
    record = call(api, TENSOR)
    assert (is_random(record), skip_by_record(record)) == (True, "")


@pytest.mark.parametrize(
    "api", ["Torch.add", "Torch.linalg.norm", "Functional.relu", "Tensor.rand2"]
)
def test_other_apis_are_compared(api: str) -> None:
    assert (is_random(call(api, TENSOR)), skip_by_record(call(api, TENSOR))) == (False, "")


@pytest.mark.parametrize(
    "record",
    [
        call("Functional.fractional_max_pool2d", TENSOR),
        call("Torch.svd_lowrank", TENSOR),
        call("Torch.nn.init.xavier_uniform_", TENSOR),
        call("Tensor.view", TENSOR, Symbol("dtype", "int32")),
    ],
)
def test_what_neither_bench_nor_statistic_can_judge_has_a_reason(record: ApiRecord) -> None:
    assert skip_by_record(record)
    assert not is_random(record)


@pytest.mark.parametrize(
    "record",
    [
        call("VF.lstm", *[TENSOR] * 3, Constant(True), Constant(2), Constant(0.5), Constant(False)),
        call("VF.lstm", *[TENSOR] * 3, Constant(True), Constant(2), Constant(0.0), Constant(True)),
        call("Functional.rrelu", TENSOR),
        call("Tensor.view", TENSOR, Constant(2)),
    ],
)
def test_what_draws_nothing_is_compared(record: ApiRecord) -> None:
    assert (is_random(record), skip_by_record(record)) == (False, "")


def test_the_last_part_of_a_dotted_name_says_whether_it_is_random() -> None:
    assert is_random(call("Torch.nn.init.uniform_", TENSOR))
    assert not is_random(call("Torch.normal.add", TENSOR))


@pytest.mark.parametrize(
    ("record", "random"),
    [
        (call("Functional.dropout", TENSOR), True),
        (call("Functional.dropout", TENSOR, Constant(0.1)), True),
        (call("Functional.dropout", TENSOR, Constant(0.0)), False),
        (call("Functional.dropout", TENSOR, Constant(0)), False),
        (call("Functional.dropout", TENSOR, p=Constant(0.0)), False),
        (call("Functional.dropout", TENSOR, p=Constant(0.5)), True),
        (call("Functional.dropout", TENSOR, Constant(0.1), Constant(False)), False),
        (call("Functional.dropout", TENSOR, Constant(0.1), Constant(True)), True),
        (call("Functional.dropout", TENSOR, Constant(0.1), training=Constant(False)), False),
        (call("VF.dropout", TENSOR, Constant(0.1), train=Constant(False)), False),
        (call("MintFunctional.dropout", TENSOR, p=UnknownSpec("why")), True),
        (call("Functional.alpha_dropout", TENSOR, training=Constant(False)), False),
        (call("Functional.scaled_dot_product_attention", *[TENSOR] * 3), False),
        (call("Functional.scaled_dot_product_attention", dropout_p=Constant(0.1)), True),
        (
            call(
                "Functional.scaled_dot_product_attention",
                *[TENSOR] * 3,
                Constant(None),
                Constant(0.2),
            ),
            True,
        ),
        (call("Functional.scaled_dot_product_attention", *[TENSOR] * 4, Constant(0.0)), False),
    ],
)
def test_dropout_is_random_unless_it_drops_nothing(record: ApiRecord, random: bool) -> None:
    assert is_random(record) == random


@pytest.mark.parametrize(
    "record",
    [
        call("Tensor.add_", TENSOR, TENSOR),
        call("Tensor.__iadd__", TENSOR, TENSOR),
        call("Tensor.__setitem__", TENSOR, Constant(0), TENSOR),
        call("Torch.nn.init.zeros_", TENSOR),
        call("Functional.relu", TENSOR, inplace=Constant(True)),
        call("Torch.relu", TENSOR, inplace=Constant(True)),
        call("Functional.relu", TENSOR, Constant(True)),
    ],
)
def test_calls_that_write_into_their_first_argument_are_known(record: ApiRecord) -> None:
    assert changes_its_input(record)


@pytest.mark.parametrize(
    "record",
    [
        call("Tensor.add", TENSOR, TENSOR),
        call("Tensor.__add__", TENSOR, TENSOR),
        call("Tensor.__getitem__", TENSOR, Constant(0)),
        call("Functional.relu", TENSOR, inplace=Constant(False)),
        call("Functional.relu", TENSOR, Constant(False)),
        call("Functional.relu", TENSOR, SequenceSpec((Constant(True),))),
        call("Torch.sort", TENSOR, Constant(True)),
    ],
)
def test_other_calls_leave_their_arguments_alone(record: ApiRecord) -> None:
    assert not changes_its_input(record)


@pytest.mark.parametrize(
    "record",
    [
        call("Functional.softmax", TENSOR, Constant(1)),
        call("Functional.leaky_relu", TENSOR, Constant(1.0)),
    ],
)
def test_the_number_one_is_no_inplace_flag(record: ApiRecord) -> None:
    assert not changes_its_input(record)
