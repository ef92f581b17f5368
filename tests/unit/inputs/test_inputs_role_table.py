"""Which arguments of which APIs have a role, whatever the framework calls and orders them."""

from dataclasses import replace

import pytest

from ray_precheck.inputs.generate import build_call, generated_tensors
from ray_precheck.inputs.roles.role import (
    Classes,
    Coordinates,
    Distinct,
    DistinctTogether,
    Indices,
    Lengths,
    Matrix,
    Parts,
    Probabilities,
    Ranked,
    Role,
    Same,
    Sorted,
    Within,
    index_into,
)
from ray_precheck.inputs.roles.rowwise import Causal
from ray_precheck.inputs.roles.rules import Arguments
from ray_precheck.inputs.roles.table import TABLE, roles_of
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import Constant, HostTensor, SequenceSpec, TensorSpec, ValueSpec

pytestmark = pytest.mark.unit


def floats(*shape: int) -> TensorSpec:
    return TensorSpec("float32", shape, -1.0, 1.0)


def ints(*shape: int) -> TensorSpec:
    return TensorSpec("int64", shape)


def spec(value: object) -> ValueSpec:
    if isinstance(value, list):
        return SequenceSpec(tuple(map(spec, value)))
    return value if isinstance(value, TensorSpec | SequenceSpec) else Constant(value)


def record(api: str, *args: object, out: TensorSpec | None = None, **kwargs: object) -> ApiRecord:
    prefix, _, name = api.partition(".")
    named = tuple((key, spec(value)) for key, value in kwargs.items())
    outputs = () if out is None else (out,)
    return ApiRecord(ApiName(prefix, name, 0), tuple(map(spec, args)), named, outputs)


ARGS = "input_args"
GRAD = TensorSpec("float32", (50,), -1.0, 1.0, mean=0.0, norm=3.0)
ROOT = TensorSpec("float32", (50,), 1e-8, 1.0, mean=0.1, norm=3.0)
X, INDEX = floats(5, 7), ints(3, 4)
AT_7 = index_into(7)
CASES: dict[str, tuple[ApiRecord, dict[str, Role]]] = {
    "torch gather": (record("Torch.gather", X, 1, INDEX), {"2": AT_7}),
    "gather along the first dimension": (
        record("Torch.gather", X, -2, INDEX),
        {"2": index_into(5)},
    ),
    "tensor gather by keywords": (record("Tensor.gather", X, dim=-1, index=INDEX), {"index": AT_7}),
    "mindspore gather": (record("Functional.gather", X, INDEX, 1), {"1": AT_7}),
    "mindspore gather along the first dimension": (
        record("Functional.gather", X, INDEX, -2),
        {"1": index_into(5)},
    ),
    "mindspore gather by keywords": (
        record("Functional.gather", input_params=X, input_indices=INDEX, axis=1),
        {"input_indices": AT_7},
    ),
    "mindspore gather_d": (record("Functional.gather_d", X, 1, INDEX), {"2": AT_7}),
    "gather_nd": (record("Functional.gather_nd", X, ints(3, 2)), {"1": Coordinates((5, 7))}),
    "take": (record("Torch.take", X, ints(3)), {"1": index_into(35)}),
    "mindspore take": (record("Tensor.take", X, ints(3), 1), {"1": AT_7}),
    "take_along_dim": (record("Torch.take_along_dim", X, INDEX, 1), {"1": AT_7}),
    "index_select": (record("Mint.index_select", X, 1, ints(3)), {"2": AT_7}),
    "index_add in place": (record("Tensor.index_add_", X, 1, ints(3), X), {"2": AT_7}),
    "mindspore index_add": (record("Functional.index_add", X, ints(3), X, 1), {"1": AT_7}),
    "embedding": (
        record("MintFunctional.embedding", ints(3), X),
        {"0": Indices(0, 4)},
    ),
    "torch.embedding": (record("Torch.embedding", X, ints(3)), {"1": Indices(0, 4)}),
    "one_hot": (record("Functional.one_hot", ints(3), 9), {"0": Indices(0, 8)}),
    "one_hot of its output": (
        record("Functional.one_hot", ints(3), -1, out=ints(3, 6)),
        {"0": Indices(0, 5)},
    ),
    "segments": (
        record("Functional.unsorted_segment_max", X, ints(5), 3, out=floats(3, 7)),
        {"1": Indices(0, 2)},
    ),
    "segments of a number that is not known": (
        record("Functional.unsorted_segment_max", X, ints(5), ints(), out=floats(3, 7)),
        {},
    ),
    "scatter": (record("Torch.scatter", X, 1, INDEX, X), {"2": Distinct(7, 1)}),
    "scatter that adds": (record("Torch.scatter", X, 1, INDEX, X, reduce="add"), {"2": AT_7}),
    "scatter_add": (record("Tensor.scatter_add_", X, 1, INDEX, X), {"2": AT_7}),
    "mindspore scatter_add": (
        record("Functional.scatter_add", X, INDEX, X),
        {"1": Indices(0, 4)},
    ),
    "tensor_scatter_elements": (
        record("Functional.tensor_scatter_elements", X, INDEX, X, 1),
        {"1": Distinct(7, 1)},
    ),
    "scatter_nd_update": (
        record("Functional.scatter_nd_update", X, ints(3, 2), floats(3)),
        {"1": Coordinates((5, 7), distinct=True)},
    ),
    "scatter_nd": (
        record("Functional.scatter_nd", ints(3, 2), floats(3), (5, 7)),
        {"0": Coordinates((5, 7))},
    ),
    "index_put": (
        record("Tensor.index_put_", X, [ints(3), ints(3)], floats(3)),
        {
            "1.0": DistinctTogether((5, 7), 0, "subscript"),
            "1.1": DistinctTogether((5, 7), 1, "subscript"),
        },
    ),
    "index_put that adds": (
        record("Torch.index_put", X, [ints(3), ints(3)], floats(3), True),
        {"1.0": index_into(5), "1.1": AT_7},
    ),
    "x[i]": (record("Tensor.__getitem__", X, ints(3)), {"1": index_into(5)}),
    "x[..., i]": (record("Tensor.__getitem__", X, [Ellipsis, ints(3)]), {"1.1": AT_7}),
    "x[None, :, i]": (
        record("Tensor.__getitem__", X, [None, slice(None), ints(3)]),
        {"1.2": AT_7},
    ),
    "x[mask, i]": (
        record("Tensor.__getitem__", X, [TensorSpec("bool", (5,)), ints(3)]),
        {"1.1": AT_7},
    ),
    "x[i, j] = y with rows and columns": (
        record("Tensor.__setitem__", X, [ints(3, 1), ints(1, 4)], floats(3, 4)),
        {
            "1.0": DistinctTogether((5,), 0, f"{ARGS}.1.0"),
            "1.1": DistinctTogether((7,), 0, f"{ARGS}.1.1"),
        },
    ),
    "x[i] = y": (
        record("Tensor.__setitem__", X, ints(3), X),
        {"1": DistinctTogether((5,), 0, "subscript")},
    ),
    "cross_entropy": (
        record("Functional.cross_entropy", X, ints(5), ignore_index=-1),
        {"1": Classes(7, -1)},
    ),
    "cross_entropy of mint": (
        record("MintFunctional.cross_entropy", X, ints(5), None, 3),
        {"1": Classes(7, 3)},
    ),
    "cross_entropy of probabilities": (
        record("Functional.cross_entropy", X, X),
        {"1": Probabilities(1)},
    ),
    "kl_div": (record("Functional.kl_div", X, X), {"1": Probabilities()}),
    "kl_div of logarithms": (record("Functional.kl_div", X, X, log_target=True), {}),
    "inverse": (record("Torch.linalg.inv", floats(4, 4)), {"0": Matrix()}),
    "cholesky": (record("Tensor.cholesky", floats(4, 4)), {"0": Matrix(symmetric=True)}),
    "bucketize": (record("Torch.bucketize", X, floats(4)), {"1": Sorted()}),
    "searchsorted with a sorter": (
        record("Torch.searchsorted", floats(4), X, sorter=ints(4)),
        {},
    ),
    "masked_fill of scores": (
        record("Tensor.masked_fill", X, TensorSpec("bool", (7, 7)), float("-inf")),
        {"1": Causal()},
    ),
    "masked_fill of others": (record("Tensor.masked_fill", X, TensorSpec("bool", (7, 7)), 0.0), {}),
    "fused attention": (
        record(
            "NPU.npu_fusion_attention",
            *(floats(20, 4, 8),) * 3,
            4,
            "TND",
            atten_mask=TensorSpec("bool", (9, 9)),
            actual_seq_qlen=ints(3),
        ),
        {"atten_mask": Causal(), "actual_seq_qlen": Parts(20, running=True)},
    ),
    "pack_padded": (
        record("VF._pack_padded_sequence", floats(9, 3, 2), ints(3), False),
        {"1": Lengths(9, falling=True)},
    ),
    "pack_padded without a batch": (
        record("VF._pack_padded_sequence", floats(9), ints(3), True),
        {},
    ),
    "repeat_interleave along a dimension too many": (
        record("Torch.repeat_interleave", X, ints(5), dim=2, out=floats(12, 7)),
        {},
    ),
    "pack_padded with the batch first": (
        record("VF._pack_padded_sequence", floats(3, 9, 2), ints(3), True),
        {"1": Lengths(9, falling=True)},
    ),
    "ctc_loss": (
        record("Functional.ctc_loss", floats(9, 4, 5), ints(4, 3), ints(4), ints(4)),
        {"1": Within(1, 4, whole=True), "2": Lengths(9), "3": Lengths(3)},
    ),
    "ctc_loss with the blank last": (
        record("Functional.ctc_loss", floats(9, 4, 5), ints(4, 8), ints(4), ints(4), blank=4),
        {"1": Within(0, 3, whole=True), "2": Lengths(9), "3": Lengths(4)},
    ),
    "repeat_interleave": (
        record("Torch.repeat_interleave", X, ints(5), dim=0, out=floats(12, 7)),
        {"1": Parts(12)},
    ),
    "a squared gradient": (
        record("Tensor.addcmul_", GRAD, GRAD, GRAD),
        {"2": Same(f"{ARGS}.1", GRAD)},
    ),
    "two other factors": (record("Tensor.addcmul_", GRAD, GRAD, replace(GRAD, norm=2.0)), {}),
    "the step of an optimiser": (
        record("Tensor.addcdiv_", GRAD, GRAD, ROOT),
        {"2": Ranked(f"{ARGS}.1", GRAD)},
    ),
    "a division by what may be 0": (record("Torch.addcdiv", GRAD, GRAD, GRAD), {}),
    "an API without a row": (record("Torch.add", X, INDEX), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_argument_has_the_role_that_its_api_gives_it(name: str) -> None:
    call, expected = CASES[name]
    found = {path.split(".", 1)[1]: role for path, role in roles_of(call).items()}
    assert found == expected


BROKEN = [
    record("Torch.gather", X, 9, INDEX),
    record("Torch.gather", X, "one", INDEX),
    record("Torch.gather", X),
    record("Torch.gather", 3, 1, INDEX),
    record("Functional.embedding", ints(3), floats()),
    record("Functional.embedding", ints(3), floats(0, 4)),
    record("Torch.scatter", X, 1, ints(), X),
    record("Tensor.__getitem__", floats(), [ints(3), ints(3)]),
    record("Tensor.__getitem__", X, [ints(3)] * 5),
    record("Torch.index_put", X, ints(3), X),
    record("Functional.scatter_nd", ints(3, 2), floats(3), "shape"),
    record("Functional.ctc_loss", floats(), ints(3), ints(2), ints(2)),
    record("Torch.repeat_interleave", X, ints(5), dim=9, out=floats(12, 7)),
    record("Functional.cross_entropy", floats(), ints()),
]


@pytest.mark.parametrize("call", BROKEN, ids=str)
def test_a_call_that_makes_no_sense_is_drawn_all_the_same(call: ApiRecord) -> None:
    assert build_call(call, generated_tensors(0, call, "recorded"))


@pytest.mark.parametrize(
    ("out", "subscript"),
    [(floats(2, 7), [0, 1]), (floats(), (0, 1)), (None, (0, 1))],
)
def test_whole_numbers_are_a_list_where_the_output_keeps_the_dimensions(
    out: TensorSpec | None, subscript: object
) -> None:
    call = record("Tensor.__getitem__", X, [0, 1], out=out)
    assert build_call(call, generated_tensors(0, call, "recorded")).args[1] == subscript


def test_a_subscript_with_another_part_than_whole_numbers_is_a_tuple() -> None:
    call = record("Tensor.__setitem__", X, [0, None], 1.0, out=floats(5, 7))
    assert build_call(call, generated_tensors(0, call, "recorded")).args[1] == (0, None)


@pytest.mark.parametrize("api", sorted(TABLE.by_name))
def test_every_ruled_argument_is_found_under_a_name_of_its_row(api: str) -> None:
    for candidate in TABLE.by_name[api]:
        named = {name for names in candidate.names for name in names.split("|")}
        # Masks and lengths of attention are keywords.
        keywords = {"attn_mask", "key_padding_mask", "atten_mask"}
        keywords |= {"actual_seq_qlen", "actual_seq_kvlen"}
        assert set(candidate.rules) <= named | keywords


def test_arguments_are_found_by_position_and_by_each_of_their_names() -> None:
    names = ("input", "dim|axis", "index")
    by_position = Arguments(record("Torch.gather", X, 1, INDEX), names)
    by_name = Arguments(record("Torch.gather", X, axis=1, index=INDEX), names)
    assert by_position.value("axis") == by_name.value("dim") == 1
    assert by_position.find("index") == ("input_args.2", INDEX)
    assert by_name.find("index") == ("input_kwargs.index", INDEX)
    assert by_name.tensor("dim") is None
    assert by_name.find("nothing") is None


def test_the_ignored_class_is_found_where_its_framework_has_it() -> None:
    """torch has `size_average` before `ignore_index`, MindSpore has it not."""
    arguments = (floats(8, 5), ints(8), None, 3)
    of_mindspore = replace(record("Functional.cross_entropy", *arguments), framework="mindspore")
    (role,) = roles_of(of_mindspore).values()
    assert role == Classes(5, 3)
    of_torch = replace(
        record("Functional.cross_entropy", *arguments[:3], None, 3), framework="pytorch"
    )
    assert list(roles_of(of_torch).values()) == [Classes(5, 3)]


def test_an_inverse_of_each_element_is_no_inverse_of_a_matrix() -> None:
    square = TensorSpec("float32", (3, 3))
    of_mindspore = replace(record("Functional.inv", square), framework="mindspore")
    assert list(roles_of(of_mindspore).values()) == [Within(0.5, 1.5, only_unknown=True)]
    assert list(roles_of(record("Torch.linalg.inv", square)).values()) == [Matrix()]


def test_the_bias_of_a_batch_norm_without_statistics_has_no_role() -> None:
    weight = floats(3)
    call = record("Torch.batch_norm", floats(2, 3), weight, weight, None, None, True, 0.1, 1e-5)
    assert roles_of(call).keys() == {"input_args.0"}


def test_the_uniform_distribution_knows_no_role() -> None:
    call = record("Torch.gather", X, 1, TensorSpec("int64", (3, 4), 90, 99))
    uniform = build_call(call, generated_tensors(0, call, "uniform")).args[2]
    recorded = build_call(call, generated_tensors(0, call, "recorded")).args[2]
    assert isinstance(uniform, HostTensor)
    assert uniform.data.min() >= 90
    assert recorded.data.max() < 7
