"""What foreign code raises is a value, but for what the caller wants to go through."""

import pytest

from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import caught

pytestmark = pytest.mark.unit


def fail(error: BaseException) -> int:
    raise error


def test_what_is_returned_comes_without_an_error() -> None:
    assert caught(lambda: 3) == (3, None)


def test_what_is_raised_is_a_value() -> None:
    error = RuntimeError("bad")
    assert caught(lambda: fail(error)) == (None, error)


@pytest.mark.parametrize("error", [NotCheckable("no"), KeyboardInterrupt(), SystemExit(2)])
def test_what_is_to_go_through_goes_through(error: BaseException) -> None:
    with pytest.raises(type(error)):
        caught(lambda: fail(error), NotCheckable)
