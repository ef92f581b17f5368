"""Records that are meant to break a worker: a record, or one short sentence with the place."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.bench.checkable import skip_by_record
from ray_precheck.check.decode import needed_bytes
from ray_precheck.dump.decode import decode_record
from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import LONGEST, shown
from ray_precheck.inputs.generate import GeneratedTensors, assign_cotangents, build_call
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import HostTensor, Symbol, TensorSpec, UnknownSpec

pytestmark = pytest.mark.unit

LONGEST_REASON = 1000
# As deep as a decoder of JSON goes; Python writes no list that is nested as deeply.
NESTED = "nested"
DEPTH = 1000


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def record_of(*elements: Any, **kwargs: Any) -> ApiRecord:
    text = json.dumps({"input_args": elements, "input_kwargs": kwargs, "output": []})
    text = text.replace(f'"{NESTED}"', "[" * DEPTH + "]" * DEPTH)
    return decode_record("Torch.add.0", text.encode(), None)


def reason(*elements: Any, **kwargs: Any) -> str:
    """Return why a call cannot be built: when it is decoded, or when its arguments are made."""
    with pytest.raises(NotCheckable) as error:
        build_call(record_of(*elements, **kwargs), GeneratedTensors(0, "Torch.add.0"))
    text = str(error.value)
    assert len(text) < LONGEST_REASON
    return text


def tensor(shape: Any, dtype: Any = "torch.float32", **fields: Any) -> dict[str, Any]:
    return {"type": "torch.Tensor", "dtype": dtype, "shape": shape, "Max": 1, "Min": 0, **fields}


class TestShapes:
    @pytest.mark.parametrize(
        "shape",
        [
            [-1],
            [2, -(10**30)],
            [2.5],
            [2.0],
            ["3"],
            [[3]],
            [None],
            [True],
            3,
            "3",
            {"0": 3},
            [2**64],
            [10**25],
        ],
    )
    def test_extents_that_are_negative_floats_or_no_numbers_are_named(self, shape: Any) -> None:
        assert "shape" in reason(tensor(shape))

    def test_100_000_dimensions_are_counted_and_not_made(self) -> None:
        assert "100000 dimensions, at most 64" in reason(tensor([1] * 100_000))

    @pytest.mark.parametrize("dimensions", [33, 64])
    def test_more_dimensions_than_numpy_has_are_named(self, dimensions: int) -> None:
        assert f"a tensor of {dimensions} dimensions cannot be made" in reason(
            tensor([1] * dimensions)
        )

    @pytest.mark.parametrize(
        "dtype", ["torch.float32", "torch.int8", "torch.bool", "torch.cdouble"]
    )
    @pytest.mark.parametrize(
        "shape", [[0, 10**18], [2**62, 0, 1], [10**9, 10**9, 0], [0, 2**63 - 1]]
    )
    def test_no_elements_in_extents_too_large_for_numpy_are_named_or_made(
        self, shape: list[int], dtype: str
    ) -> None:
        call, why = built(record_of(tensor(shape, dtype)))
        assert "cannot be made" in why or call.args[0].shape == tuple(shape)

    @pytest.mark.parametrize("shape", [[2**62, 2**62], [10**18] * 64, [2**32, 2**31], [10**6] * 4])
    def test_more_elements_than_can_be_counted_are_named(self, shape: list[int]) -> None:
        assert "no tensor is as large as shape [" in reason(tensor(shape))

    @pytest.mark.parametrize("shape", [[10**6, 10**6], [2**31, 2**31], [2**62]])
    def test_what_a_large_tensor_needs_is_a_number_that_can_be_shown(
        self, shape: list[int]
    ) -> None:
        needed = needed_bytes(record_of(tensor(shape)))
        assert needed > math.prod(shape) * 12
        assert f"{needed / 2**30:.3g}"


class TestTexts:
    @pytest.mark.parametrize("field", ["dtype", "type", "Max", "Min", "shape", "data_name"])
    @pytest.mark.parametrize(
        "value",
        ["a" * 10**7, "\x1b[31m", "\ud800", "\n" * 1000, NESTED, 10**4000],
        ids=["long", "escape", "surrogate", "lines", "nested", "number"],
    )
    def test_any_field_of_a_tensor_may_be_anything(self, field: str, value: Any) -> None:
        assert shown_reason({**tensor([2]), field: value}).isprintable()

    @pytest.mark.parametrize(
        "kind", "int float bool complex slice torch.Size torch.dtype torch.device x".split()
    )
    @pytest.mark.parametrize(
        "value",
        ["a" * 10**7, NESTED, {"a": NESTED}, [10**400], [[]] * 10**5],
        ids=["long", "nested", "nested object", "number", "wide"],
    )
    def test_any_value_of_any_type_may_be_anything(self, kind: str, value: Any) -> None:
        assert shown_reason({"type": kind, "value": value}).isprintable()

    def test_an_unknown_type_is_shown_shortened(self) -> None:
        assert "a value of type 'aaa" in reason({"type": "a" * 10**7})

    def test_a_keyword_of_ten_million_characters_is_named(self) -> None:
        text = reason(**{"a" * 10**7: [{}] * 1000})
        assert text.startswith("input_kwargs: a key of 10000000 characters ('aaa")
        assert "a key of 300 characters" in reason({"x": {"b" * 300: [1]}})

    def test_a_text_of_ten_million_characters_is_a_value_like_any_other(self) -> None:
        record = record_of({"type": "str", "value": "a" * 10**7})
        assert len(build_call(record, GeneratedTensors(0, "x")).args[0]) == 10**7

    @given(st.one_of(st.text(), st.integers(), st.binary(), st.lists(st.text())))
    def test_what_is_shown_is_short_and_printable(self, value: Any) -> None:
        assert len(shown(value)) <= LONGEST
        assert shown(value).isprintable()

    @pytest.mark.parametrize(
        "value", [nested(5000), 10**5000, "x" * 10**7], ids=["nested", "number", "long"]
    )
    def test_what_python_cannot_write_is_shown_too(self, value: Any) -> None:
        assert 0 < len(shown(value)) <= LONGEST


def shown_reason(element: Any) -> str:
    """Return why a value cannot be built, "" where it can."""
    try:
        return built(record_of(element))[1]
    except NotCheckable as error:
        return short(error)


def built(record: ApiRecord) -> tuple[Any, str]:
    """Return the arguments of a call, or None and why it cannot be built."""
    try:
        return build_call(record, GeneratedTensors(0, str(record.name))), ""
    except NotCheckable as error:
        return None, short(error)


def short(error: NotCheckable) -> str:
    text = str(error)
    assert len(text) < LONGEST_REASON
    return text


class TestSymbols:
    """What is looked up in a framework by its name must be one of a list."""

    @pytest.mark.parametrize(
        "text", ["load", "torch.load", "os", "__builtins__", "", "ops", None, 5, []]
    )
    def test_only_memory_formats_are_memory_formats(self, text: Any) -> None:
        [spec] = record_of({"type": "torch.memory_format", "format": text}).args
        assert isinstance(spec, UnknownSpec)
        assert "which memory_format" in spec.reason

    @pytest.mark.parametrize("text", ["torch.channels_last_3d", "preserve_format"])
    def test_the_others_are(self, text: str) -> None:
        [spec] = record_of({"type": "torch.memory_format", "format": text}).args
        assert spec == Symbol("memory_format", text.removeprefix("torch."))

    @pytest.mark.parametrize("text", ["torch.load", "torch.Tensor", "__class__", "torch.bits8"])
    def test_only_dtypes_are_dtypes(self, text: str) -> None:
        [spec] = record_of({"type": "torch.dtype", "value": text}).args
        assert isinstance(spec, UnknownSpec)


class TestDuplicates:
    def test_of_two_fields_of_an_element_the_last_counts(self) -> None:
        raw = b'{"input_args": [{"type": "int", "value": 1, "value": 2, "type": "str", "type": "int"}]}'
        [spec] = decode_record("Torch.add.0", raw, None).args
        assert spec.value == 2  # type: ignore[union-attr]

    def test_a_keyword_is_passed_once(self) -> None:
        raw = b'{"input_kwargs": {"dim": 1, "dim": 2}}'
        record = decode_record("Torch.add.0", raw, None)
        assert build_call(record, GeneratedTensors(0, "x")).kwargs == {"dim": 2}


NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.sampled_from([10**400, -(10**400), "nan"]),
)
DTYPES = (
    "float16 bfloat16 float32 float64 float8_e4m3fn int8 uint8 int64 uint64 bool complex64".split()
)


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3) | st.sampled_from([0, 10**9, 10**18, -1]), max_size=5),
    NUMBERS,
    NUMBERS,
)
def test_any_tensor_is_made_or_refused(dtype: str, shape: list[int], low: Any, high: Any) -> None:
    raw = {"input_args": [tensor(shape, f"torch.{dtype}", Min=low, Max=high)]}
    record, why = decoded("Torch.add.0", json.dumps(raw).encode(), None)
    if record is None or needed_bytes(record) > 1 << 20:
        assert why or record is not None
        return
    call, why = built(record)
    assert why or call.args[0].shape == tuple(shape)
    assert why or isinstance(call.args[0].data, np.ndarray)


def decoded(name: str, forward: bytes, backward: bytes | None) -> tuple[ApiRecord | None, str]:
    """Return a record, or None and why it is none."""
    try:
        return decode_record(name, forward, backward), ""
    except NotCheckable as error:
        return None, short(error)


KEYS = st.sampled_from("type value dtype shape Max Min format data_name requires_grad x".split())
LEAVES = st.one_of(
    NUMBERS,
    st.text(max_size=5),
    st.sampled_from(["torch.Tensor", "int", "slice", "torch.Size", "torch.device", "torch.bool"]),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=15,
)


@settings(deadline=None, max_examples=200)
@given(st.lists(JSON, max_size=3), st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_any_arguments_are_made_or_refused(args: list[Any], kwargs: dict[str, Any]) -> None:
    raw = json.dumps({"input_args": args, "input_kwargs": kwargs, "output": args}).encode()
    record, why = decoded("Tensor.__getitem__.0", raw, raw)
    if record is None:
        assert why
        return
    skip_by_record(record)
    if needed_bytes(record) < 1 << 20:
        call, why = built(record)
        assert why or len(call.args) == len(args)


def test_a_spec_of_no_elements_and_huge_extents_has_no_bytes() -> None:
    assert TensorSpec("float32", (0, 10**18)).nbytes == 0


@pytest.mark.parametrize(
    "dtype", ["torch.complex64", "torch.complex128", "torch.int64", "torch.bool"]
)
def test_a_gradient_of_another_kind_than_its_output_takes_the_output_s(dtype: str) -> None:
    raw = json.dumps({"input": [tensor([2], dtype)]}).encode()
    record = decode_record("Torch.add.0", b"{}", raw)
    output = HostTensor("float32", np.zeros(2, np.float32))
    source = GeneratedTensors(0, "Torch.add.0")
    [cotangent] = assign_cotangents(record, [output], source, may_reshape=True)
    assert cotangent is not None
    assert (cotangent.dtype, cotangent.data.dtype) == ("float32", np.float32)
