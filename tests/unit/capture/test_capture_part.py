"""The part of a tensor that is looked at, and the checksums of its bytes."""

import numpy as np
import pytest

from ray_precheck.capture.recording.measures import chosen_part, crc32_text, raw_bytes, xor_text
from ray_precheck.capture.settings import TensorSlice

pytestmark = pytest.mark.unit
WHOLE = slice(None)


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ([TensorSlice(dim=1, begin=1, end=3)], (WHOLE, slice(1, 3))),
        ([TensorSlice(dim=1, size=5)], None),
        ([TensorSlice(dim=2)], None),
        ([TensorSlice(dim=0, begin=-1), TensorSlice(dim=1, size=5)], (slice(-1, None), WHOLE)),
        ([], None),
    ],
)
def test_a_slice_counts_where_the_dimension_and_its_size_fit(
    slices: list[TensorSlice], expected: tuple[slice, ...] | None
) -> None:
    assert chosen_part((4, 6), slices) == expected


def test_bytes_are_in_the_order_of_the_elements() -> None:
    values = np.arange(6, dtype=np.int16).reshape(2, 3).T
    assert raw_bytes(values).tobytes() == values.tobytes()
    assert raw_bytes(np.float32(1)).tobytes() == b"\0\0\x80?"


def test_checksums_of_bytes() -> None:
    raw = np.frombuffer(b"123456789", np.uint8)
    assert crc32_text(raw) == '"cbf43926"'  # the check value of CRC-32 (ISO 3309)
    assert xor_text(raw) == f'"0x{int.from_bytes(b"12345678", "little") ^ ord("9"):016x}"'
    assert xor_text(raw[:0]) == "null"


def test_a_value_without_dimensions_stands_for_itself() -> None:
    raw = np.zeros(8, np.uint8)
    assert xor_text(raw, True) == "true"
    assert xor_text(raw, float("nan")) == "NaN"
    assert xor_text(raw, -1) == '"0xffffffffffffffff"'
    assert xor_text(raw, 1j) == '"0x0000000000000000"'
