"""Calls that draw because of their arguments."""

import pytest

from ray_precheck.bench.checkable import is_random, seed_of, shows_mask, without_drawing
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import Constant, TensorSpec, ValueSpec

TENSOR = TensorSpec("float32", (2, 2), -1.0, 1.0)
# query ... add_zero_attn, before dropout_p, of multi_head_attention_forward
_BEFORE = [*[TENSOR] * 3, Constant(8), Constant(2), TENSOR, TENSOR]
_BEFORE += [Constant(None), Constant(None), Constant(False)]


def call(api: str, *args: ValueSpec, **kwargs: ValueSpec) -> ApiRecord:
    prefix, _, name = api.partition(".")
    return ApiRecord(ApiName(prefix, name, 0), args, tuple(kwargs.items()), ())


def heads(dropout: object, training: object) -> ApiRecord:
    name = "Functional.multi_head_attention_forward"
    return call(name, *_BEFORE, Constant(dropout), TENSOR, TENSOR, Constant(training))


def lstm(layers: int, dropout: float, train: bool, *, packed: bool = False) -> ApiRecord:
    before = [TENSOR] * (4 if packed else 3)
    rest = [Constant(True), Constant(layers), Constant(dropout), Constant(train), Constant(False)]
    return call("VF.lstm", *before, *rest)


@pytest.mark.parametrize(
    ("record", "draws"),
    [
        (heads(0.1, True), True),
        (heads(0.1, False), False),
        (heads(0.0, True), False),
        (lstm(2, 0.5, True), True),
        (lstm(2, 0.5, False), False),
        (lstm(2, 0.0, True), False),
        (lstm(1, 0.5, True), False),  # it drops between layers
        (lstm(2, 0.5, True, packed=True), True),
        (lstm(2, 0.0, True, packed=True), False),
        (lstm(2, 0.5, False, packed=True), False),
        (call("Functional.dropout", TENSOR, p=TENSOR), True),
        (call("Functional.alpha_dropout", TENSOR), False),  # its flag is false unless it is given
        (call("Functional.scaled_dot_product_attention", *[TENSOR] * 3, dropout_p=TENSOR), True),
        (call("Functional.batch_norm", *[TENSOR] * 3, training=Constant(True)), False),
    ],
)
def test_a_call_draws_where_its_arguments_say_so(record: ApiRecord, draws: bool) -> None:
    assert is_random(record) == draws


@pytest.mark.parametrize(
    "record",
    [
        heads(0.1, True),
        lstm(2, 0.5, True),
        lstm(3, 0.5, True, packed=True),
        call("Functional.scaled_dot_product_attention", *[TENSOR] * 3, dropout_p=Constant(0.3)),
        call("Functional.dropout", TENSOR),
    ],
)
def test_drawing_can_be_switched_off(record: ApiRecord) -> None:
    quiet = without_drawing(record)
    assert is_random(record)
    assert not is_random(quiet)
    assert len(quiet.args) == len(record.args)


def test_a_call_without_a_probability_stays_as_it_is() -> None:
    for api in ("Torch.add", "Functional.rrelu"):
        record = call(api, TENSOR)
        assert without_drawing(record) is record


def test_seeds_are_whole_numbers_of_31_bits_and_differ() -> None:
    seeds = {seed_of(seed, f"Torch.rand.{i}") for seed in range(10) for i in range(100)}
    assert len(seeds) == 1000
    assert 0 <= min(seeds) < 2**27
    assert 2**30 < max(seeds) < 2**31


@pytest.mark.parametrize(
    ("api", "shown"),
    [
        ("Functional.dropout", True),
        ("Functional.scaled_dot_product_attention", False),
        ("Torch.add", False),
    ],
)
def test_dropout_alone_shows_which_elements_were_dropped(api: str, shown: bool) -> None:
    assert shows_mask(call(api, TENSOR)) is shown
