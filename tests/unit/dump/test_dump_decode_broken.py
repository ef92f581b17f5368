"""Records that contradict the format: a reason with the place, never another exception."""

import json
import math
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ray_precheck.dump.decode import MAX_DIMENSIONS, MAX_NESTING, decode_record
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import UnknownSpec

pytestmark = pytest.mark.unit

HUGE = 10**400


def broken(forward: bytes | None, backward: bytes | None = None) -> str:
    """Return why a record is not checkable."""
    with pytest.raises(NotCheckable) as reason:
        decode_record("Torch.add.0", forward, backward)
    return str(reason.value)


def broken_element(element: Any) -> str:
    return broken(json.dumps({"input_args": [None, element]}).encode())


@pytest.mark.parametrize(
    "raw", [b"", b"{", b'{"a": }', b"nul", b'{"a": "\xff"}', b"\x00", b"{} {}", b"'a'"]
)
def test_a_record_that_is_no_json_is_broken(raw: bytes) -> None:
    assert broken(raw).startswith("broken forward record: ")
    assert broken(b"{}", raw).startswith("broken backward record: ")


@pytest.mark.parametrize("raw", [b"null", b"[]", b"3", b'"text"', b"NaN", b"true"])
def test_a_record_that_is_no_object_is_broken(raw: bytes) -> None:
    assert "an object is expected, not " in broken(raw)


def test_a_call_with_a_backward_record_alone_is_not_checkable() -> None:
    assert "backward record of this call but no forward record" in broken(None, b"{}")


def test_a_name_that_is_no_api_is_not_checkable() -> None:
    with pytest.raises(NotCheckable, match="not an API"):
        decode_record("Module.conv.Conv2d.0", b"{}", None)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("input_args", {"a": 1}, "input_args must be a list, not {'a': 1}"),
        ("input_kwargs", [1], "input_kwargs must be a dict, not [1]"),
        ("output", "text", "output must be a list, not 'text'"),
    ],
)
def test_fields_of_another_kind_are_broken(field: str, value: Any, says: str) -> None:
    assert broken(json.dumps({field: value}).encode()) == f"broken forward record: {says}"


@pytest.mark.parametrize("field", ["input", "output"])
def test_gradients_that_are_no_list_are_broken(field: str) -> None:
    text = broken(b"{}", json.dumps({field: {"a": 1}}).encode())
    assert text.startswith(f"broken backward record: {field} must be a list")


def test_long_values_are_shown_shortened() -> None:
    text = broken(json.dumps({"input_args": "x" * 10_000}).encode())
    assert len(text) < 200
    assert text.endswith("...")


PLANE = {"type": "torch.Tensor", "dtype": "torch.int8", "shape": [2, 3]}


@pytest.mark.parametrize(
    ("element", "says"),
    [
        ({"type": "torch.Tensor", "dtype": "torch.int8"}, "shape None is not a list of extents"),
        ({"type": "torch.Tensor", "dtype": "torch.int8", "shape": [2, -1]}, "shape [2, -1]"),
        ({"type": "torch.Tensor", "dtype": "torch.int8", "shape": [2.0]}, "shape [2.0]"),
        ({"type": "torch.Tensor", "dtype": "torch.int8", "shape": [True]}, "shape [True]"),
        ({"type": "torch.Tensor", "dtype": "torch.int8", "shape": "2"}, "shape '2'"),
        (
            {"type": "torch.Tensor", "dtype": "torch.int8", "shape": [1] * (MAX_DIMENSIONS + 1)},
            f"at most {MAX_DIMENSIONS} are possible",
        ),
        (
            {"type": "torch.Tensor", "dtype": "torch.int8", "shape": [1], "Min": 2, "Max": 1},
            "Min 2 is larger than Max 1",
        ),
        (
            {"type": "torch.Tensor", "dtype": "torch.int8", "shape": [1], "Max": "much"},
            "Max or Min 'much' is not a number",
        ),
        (
            {"type": "torch.Tensor", "dtype": "torch.int8", "shape": [1], "Max": [1]},
            "Max or Min [1] is not a number",
        ),
        (
            {**PLANE, "layout": "torch.sparse_csr", "sparse": {"nnz": 5, "most": 2}},
            "no sparse tensor of shape [2, 3] is",
        ),
        (
            {**PLANE, "dtype": "torch.qint8", "scale": math.nan, "zero_point": 0},
            "scale [nan] is no finite number, or list of them",
        ),
        (
            {**PLANE, "dtype": "torch.qint8", "scale": 0.5, "zero_point": 0, "axis": 0},
            "scale 0.5 is no finite number, or list of them",
        ),
        ({**PLANE, "stride": [3]}, "stride [3] is not a list of 2 steps of 0 or more"),
        ({**PLANE, "stride": [1, -2]}, "stride [1, -2] is not a list"),
        ({**PLANE, "stride": [1, True]}, "stride [1, True] is not a list"),
        ({**PLANE, "stride": [1, 2**63]}, "stride [1, 9223372036854775808] is not a list"),
        ({**PLANE, "stride": "1, 2"}, "stride '1, 2' is not a list"),
        ({**PLANE, "offset": -1}, "offset -1 is not a count of elements"),
        ({**PLANE, "offset": 1.5}, "offset 1.5 is not a count of elements"),
        ({**PLANE, "shares": 0}, "shares 0 is not the path of an argument"),
        ({**PLANE, "lazy": "real"}, "lazy 'real' is neither conj nor neg"),
        ({"type": "int", "value": None}, "None is not of type int"),
        ({"type": "int", "value": 0.5}, "0.5 is not of type int"),
        ({"type": "bool", "value": 1}, "1 is not of type bool"),
        ({"type": "str", "value": 1}, "1 is not of type str"),
        ({"type": "float"}, "null is not of type float"),
        ({"type": "float", "value": "much"}, "'much' is not a number"),
        ({"type": "complex", "value": "1+"}, "'1+' is not a complex number"),
        ({"type": "slice", "value": [1, 2]}, "a slice needs [start, stop, step], not [1, 2]"),
        ({"type": "slice"}, "a slice needs [start, stop, step], not None"),
        ({"type": "torch.Size", "value": [-2]}, "shape [-2]"),
        ({"type": "numpy.int32", "value": "1"}, "'1' is not of type numpy.int32"),
    ],
)
def test_an_element_that_contradicts_the_format_is_named_with_its_place(
    element: Any, says: str
) -> None:
    text = broken_element(element)
    assert text.startswith("forward input_args.1: ")
    assert says in text


@pytest.mark.parametrize(
    "path", ["input_args.1", "input_args.2.0", "input_args.0", "x", "output.0"]
)
def test_a_tensor_shares_the_memory_of_an_earlier_one(path: str) -> None:
    arguments = [{"type": "int", "value": 1}, {**PLANE, "shares": path}, [PLANE]]
    text = broken(json.dumps({"input_args": arguments, "output": [PLANE]}).encode())
    assert text == f"forward input_args.1: shares {path!r} names no tensor before it"


def test_the_place_of_a_nested_element_is_its_whole_path() -> None:
    element = {"options": [{"type": "int", "value": "x"}]}
    text = broken(json.dumps({"input_kwargs": {"how": element}}).encode())
    assert text.startswith("input_kwargs.how.options.0: ")


@pytest.mark.parametrize("depth", [MAX_NESTING + 3, 1_000, 100_000])
def test_nesting_without_end_is_not_checkable(depth: int) -> None:
    raw = b'{"input_args": ' + b"[" * depth + b"]" * depth + b"}"
    assert re.search("nested deeper|nested too deep|recursion depth", broken(raw))


def test_mappings_are_nested_no_deeper_than_lists() -> None:
    depth = MAX_NESTING + 3
    raw = b'{"input_args": [' + b'{"a":' * depth + b"[]" + b"}" * depth + b"]}"
    assert "nested deeper" in broken(raw)


def test_an_extent_that_is_nested_without_end_is_not_checkable() -> None:
    shape = b"[" * 1_000 + b"]" * 1_000
    raw = (
        b'{"input_args": [{"type": "torch.Tensor", "dtype": "torch.int8", "shape": '
        + shape
        + b"}]}"
    )
    assert "is not a list of extents" in broken(raw)


def test_nesting_up_to_the_limit_is_fine() -> None:
    depth = MAX_NESTING + 1  # the outermost is on level 0
    raw = b'{"input_args": [' + b"[" * depth + b"]" * depth + b"]}"
    assert len(decode_record("Torch.add.0", raw, None).args) == 1


@pytest.mark.parametrize(("length", "is_read"), [(256, True), (257, False)])
def test_a_key_of_an_object_has_256_characters_at_most(length: int, is_read: bool) -> None:
    raw = json.dumps({"input_args": [{"a" * length: 1}]}).encode()
    if is_read:
        assert len(decode_record("Torch.add.0", raw, None).args) == 1
    else:
        assert "a key of 257 characters" in broken(raw)


@pytest.mark.parametrize("fields", [{"dtype": "torch.int8"}, {"shape": [2]}])
def test_a_value_with_a_dtype_or_a_shape_alone_is_no_tensor(fields: dict[str, object]) -> None:
    raw = json.dumps({"input_args": [{"type": "strange", **fields}]}).encode()
    (found,) = decode_record("Torch.add.0", raw, None).args
    assert found == UnknownSpec("a value of type 'strange' cannot be built from the dump")


@pytest.mark.parametrize("kind", ["float", "numpy.float32"])
def test_a_float_beyond_all_floats_is_not_checkable(kind: str) -> None:
    assert "not a number" in broken_element({"type": kind, "value": HUGE})


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=4),
        st.sampled_from(["torch.Tensor", "int", "slice", "float", "torch.bool", "-inf"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "value", "dtype", "shape", "Max", "Min", "x", "format"]),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)
RECORD = st.dictionaries(
    st.sampled_from(["input_args", "input_kwargs", "input", "output"]),
    st.one_of(st.lists(JSON, max_size=3), st.dictionaries(st.text(max_size=3), JSON, max_size=2)),
)


def decoded_or_reason(forward: bytes, backward: bytes | None) -> ApiRecord | str:
    try:
        return decode_record("Torch.add.0", forward, backward)
    except NotCheckable as reason:
        return str(reason)


@settings(deadline=None, max_examples=200)
@given(RECORD, st.one_of(st.none(), RECORD))
@example({"input_args": [{"type": "torch.Tensor", "dtype": "torch.bool", "shape": [1]}]}, None)
def test_any_json_is_a_record_or_a_reason(forward: Any, backward: Any) -> None:
    raw = None if backward is None else json.dumps(backward).encode()
    record = decoded_or_reason(json.dumps(forward).encode(), raw)
    if isinstance(record, str):
        assert record
    else:
        assert record.has_backward == (raw is not None)


@pytest.mark.parametrize(
    "places", [[0, 1], ["0", "1"], [], "0", [-1], ["-1"], ["x"], [True], [0.0], {}]
)
def test_gradients_of_no_input_are_broken(places: Any) -> None:
    raw = json.dumps({"output": [None], "gradient_of": places}).encode()
    with pytest.raises(NotCheckable, match="gradient_of must have the number of an input, or null"):
        decode_record("Torch.add.0", b"{}", raw)


@pytest.mark.parametrize("dtype", ["torch.int64", "bf", 16, ["torch.float16"]])
def test_autocast_to_no_float_is_broken(dtype: Any) -> None:
    with pytest.raises(NotCheckable, match="autocast must be a dtype of floats"):
        decode_record("Torch.add.0", json.dumps({"autocast": dtype}).encode(), None)


@pytest.mark.parametrize("changed", [[], "0", 3])
def test_changed_tensors_stand_under_their_paths(changed: Any) -> None:
    with pytest.raises(NotCheckable, match="changed must be a dict"):
        decode_record("Torch.add.0", json.dumps({"changed": changed}).encode(), None)
