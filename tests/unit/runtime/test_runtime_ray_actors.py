"""What a call of an actor is on its way through Ray: pickled once, in pieces, beside references."""

import pickle
import time

import numpy as np
import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.runtime.ray_actors import _PIECE_BYTES, RayActors, _opened, _packed
from ray_precheck.schema.task import TaskPayload

pytestmark = pytest.mark.unit

# Ray carries arguments up to this size in the call (`max_direct_call_object_size`).
INLINE_BYTES = 100 * 1024


def arrived(args: tuple[object, ...], values: dict[object, object]) -> list[object]:
    """What the actor is called with: Ray puts values in the place of references."""
    packed = _packed(args)
    return list(_opened([values.get(p, p) if isinstance(p, ray.ObjectRef) else p for p in packed]))


@given(st.lists(st.none() | st.integers() | st.text() | st.binary(max_size=300), max_size=5))
def test_arguments_arrive_as_they_were(args: list[object]) -> None:
    assert arrived(tuple(args), {}) == args


def test_a_reference_is_seen_by_ray_and_its_value_is_at_its_place() -> None:
    first, second = ray.ObjectRef.from_random(), ray.ObjectRef.from_random()
    args = ("order", first, None, second)
    assert [p for p in _packed(args) if isinstance(p, ray.ObjectRef)] == [first, second]
    # Values that look like pieces of the message are none.
    assert arrived(args, {first: b"\x01transfer", second: b"files"}) == [
        "order",
        b"\x01transfer",
        None,
        b"files",
    ]


@pytest.mark.parametrize("size", [0, _PIECE_BYTES - 100, _PIECE_BYTES, 5 * _PIECE_BYTES + 7])
def test_no_piece_is_too_large_to_travel_with_the_call(size: int) -> None:
    payload = TaskPayload(3, "Mint.a.3", bytes(range(256)) * (size // 256), None)
    packed = _packed((payload, ray.ObjectRef.from_random()))
    pieces = packed[:-1]
    assert all(type(piece) is bytes and len(piece) < INLINE_BYTES for piece in pieces)
    assert len(pieces) <= 2 + size // _PIECE_BYTES
    assert arrived((payload,), {}) == [payload]


def test_no_arguments_are_no_message() -> None:
    assert _packed(()) == []
    assert list(_opened(())) == []


def test_a_class_that_no_module_has_travels_too() -> None:
    class Local:
        value = 7

    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(Local())
    (made,) = arrived((Local(),), {})
    assert made.value == 7  # type: ignore[attr-defined]


def test_arrays_arrive_as_they_were() -> None:
    (made,) = arrived((np.arange(100_000),), {})
    assert (made == np.arange(100_000)).all()  # type: ignore[attr-defined]


def test_the_time_that_the_driver_was_stopped_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    def wait(answers: list[object], *, num_returns: int, timeout: float) -> tuple[object, object]:
        now[0] += slept_s
        return [], answers

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ray, "wait", wait)
    actors = RayActors(None)  # type: ignore[arg-type]
    for slept_s, clock in ((0.2, 0.2), (3.0, 3.2), (600.0, 3.4)):  # noqa: B007
        actors.wait(["an answer"], 0.2)
        assert actors.clock() == pytest.approx(clock)
