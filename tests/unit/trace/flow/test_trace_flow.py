"""Who gave each value that a record gets."""

import pytest

from ray_precheck.trace.flow import FlowRecord, flow_of, writes_in_place
from ray_precheck.trace.items import items_of
from ray_precheck.trace.side import entry_of
from tests.unit.commands.locate.run_records import WHERE, record, tensor

ONE, TWO, THREE = "Torch.exp.0.forward", "Torch.log.0.forward", "Torch.add.0.forward"


def _giver(records, path="input.0", content=None):
    found = flow_of(records, content).producer(records[-1].entry.key, path)
    return None if found is None else (found.key, found.path)


def test_equal_statistics_link_a_value_with_its_giver():
    run = [record(ONE, [tensor(1.0)], [tensor(2.0)]), record(TWO, [tensor(2.0)], [tensor(3.0)])]
    assert _giver(run) == (ONE, "output.0")


def test_what_a_call_changes_comes_from_it():
    raw = {"input_args": [tensor(1), tensor(2)], "changed": {"input_args.1": tensor(3)}}
    norm = FlowRecord(entry_of("Functional.batch_norm.0.forward", WHERE), items_of(raw))
    later = record("Functional.batch_norm.1.forward", [tensor(4), tensor(3)], [tensor(5)])
    found = flow_of([norm, later]).producer("Functional.batch_norm.1.forward", "input.1")
    assert found is not None
    assert (found.key, found.path) == ("Functional.batch_norm.0.forward", "changed.1")


def test_a_view_with_sums_in_another_order_is_the_same_value():
    moved = tensor(2.0, shape=(2, 8))
    moved["Mean"] *= 1 + 1e-7
    moved["Norm"] *= 1 - 1e-7
    assert _giver([record(ONE, [], [tensor(2.0)]), record(TWO, [moved], [])]) == (ONE, "output.0")


def test_another_norm_is_another_value():
    other = tensor(2.0, norm=4.01)
    assert _giver([record(ONE, [], [tensor(2.0, norm=4.0)]), record(TWO, [other], [])]) is None


def test_the_last_of_several_givers_counts():
    run = [
        record(ONE, [], [tensor(2.0)]),
        record(TWO, [], [tensor(2.0)]),
        record(THREE, [tensor(2.0)], []),
    ]
    assert _giver(run) == (TWO, "output.0")


def test_equal_contents_count_more_than_equal_statistics():
    run = [
        record(ONE, [], [tensor(2.0)]),
        record(TWO, [], [tensor(2.0)]),
        record(THREE, [tensor(2.0)], []),
    ]
    contents = {(ONE, "output.0"): "a", (TWO, "output.0"): "b", (THREE, "input.0"): "a"}
    assert _giver(run, content=lambda key, path: contents[key, path]) == (ONE, "output.0")


def test_digests_link_values_without_statistics():
    def digest(text):
        return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "md5": text}

    run = [record(ONE, [], [digest("ab")]), record(TWO, [digest("ab"), digest("cd")], [])]
    assert _giver(run) == (ONE, "output.0")
    assert _giver(run, "input.1") is None


def test_a_value_that_no_record_gave_is_known_by_its_first_use():
    run = [record(ONE, [tensor(5.0)], []), record(TWO, [tensor(5.0)], [])]
    assert flow_of(run).first[TWO, "input.0"] == (ONE, "input.0")


def test_values_that_nothing_gets_are_not_among_the_used():
    run = [record(ONE, [], [tensor(2.0), tensor(3.0)]), record(TWO, [tensor(2.0)], [])]
    assert flow_of(run).used == {(ONE, "output.0")}


def test_tensors_of_nan_alone_are_linked():
    nan = tensor(float("nan"))
    assert _giver([record(ONE, [], [nan]), record(TWO, [nan], [])]) == (ONE, "output.0")


@pytest.mark.parametrize(
    ("call", "writes"),
    [
        ("Tensor.bernoulli_.0", True),
        ("Tensor.__setitem__.3", True),
        ("Tensor.__iadd__.0", True),
        ("Tensor.__int__.0", False),
        ("Tensor.__getitem__.0", False),
        ("Torch.add.0", False),
    ],
)
def test_the_name_of_a_call_tells_whether_it_changes_its_first_argument(
    call: str, writes: bool
) -> None:
    assert writes_in_place(call) == writes
