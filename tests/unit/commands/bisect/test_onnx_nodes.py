"""Where a difference begins in an optimised graph, and which nodes of the model were replaced there."""

import numpy as np
import pytest

from ray_precheck.commands.bisect.targets.onnx.inputs import random_inputs
from ray_precheck.commands.bisect.targets.onnx.nodes import (
    Beginning,
    OnnxGraph,
    beginning_at,
    beginnings,
    parse_graph,
)
from ray_precheck.errors import UsageError

pytestmark = pytest.mark.unit


def graph(*nodes: str) -> OnnxGraph:
    """Return a graph of nodes like "conv: Conv x w -> c"; what begins with w is a constant."""
    rows = []
    for node in nodes:
        name, _, rest = node.partition(": ")
        (op, *inputs), outputs = (part.split() for part in rest.split(" -> "))
        rows.append({"name": name, "op": op, "inputs": inputs, "outputs": outputs})
    names = {name for row in rows for name in row["inputs"] if name.startswith("w")}
    return parse_graph({"nodes": rows, "constants": sorted(names)})


def names(found: Beginning) -> list[str]:
    return [node.name for node in found.nodes]


MODEL = graph(
    "first: Relu x -> a",
    "conv: Conv a w1 -> c",
    "norm: BatchNormalization c w2 -> n",
    "relu: Relu n -> r",
    "sum: Add r a -> y",
)
FUSED = graph("first: Relu x -> a", "conv: FusedConv a w9 -> r", "sum: Add r a -> y")


def test_it_begins_where_what_a_wrong_value_is_made_of_is_right() -> None:
    (found,) = beginnings(MODEL, FUSED, {"a": 0.1, "r": 60.0, "y": 30.0}, 1.0)
    assert (found.value, found.inputs, names(found)) == ("r", ("a",), ["conv", "norm", "relu"])
    assert found.replaced == (
        "conv (Conv), norm (BatchNormalization), relu (Relu) became conv (FusedConv)"
    )


def test_each_of_several_places_is_a_beginning() -> None:
    model = graph("one: A x -> a", "two: B x -> b", "three: C a b -> c")
    found = beginnings(model, model, {"a": 5.0, "b": float("nan"), "c": 9.0}, 1.0)
    assert [each.value for each in found] == ["a", "b"]


def test_what_is_right_has_no_beginning() -> None:
    assert beginnings(MODEL, FUSED, {"a": 0.0, "r": 1.0, "y": 0.2}, 1.0) == []


def test_a_wider_part_goes_back_to_other_values_and_names_what_brings_it_out() -> None:
    distances = {"a": 0.0, "r": 0.5, "y": 60.0}
    (found,) = beginnings(MODEL, FUSED, distances, 1.0)
    assert names(found) == ["sum"]
    assert found.replaced == "sum (Add)"
    wider = beginning_at("y", MODEL, FUSED, distances, ["a"])
    assert names(wider) == ["conv", "norm", "relu", "sum"]
    assert wider.replaced.endswith("became conv (FusedConv), and sum (Add) brings it out")
    assert beginning_at("y", MODEL, FUSED, distances, ()).inputs == ("x",)


def test_what_is_made_of_constants_belongs_to_the_part_and_is_no_input() -> None:
    model = graph("dq: DequantizeLinear w1 -> q", "conv: Conv x q -> c")
    (found,) = beginnings(model, model, {"q": 0.0, "c": 3.0}, 1.0)
    assert (found.inputs, names(found)) == (("x",), ["dq", "conv"])


def test_dimensions_without_a_size_are_small_and_of_one_name_equal() -> None:
    described = [
        {"name": "ids", "type": "tensor(int64)", "shape": ["batch", "length"]},
        {"name": "hidden", "type": "tensor(float16)", "shape": ["batch", "length", 8]},
    ]
    arrays, said = random_inputs(described, ())
    assert {name: (each.shape, str(each.dtype)) for name, each in arrays.items()} == {
        "ids": ((1, 16), "int64"),
        "hidden": ((1, 16, 8), "float16"),
    }
    assert set(np.unique(arrays["ids"])) == {0, 1}
    assert "batch=1, length=16" in said
    assert random_inputs(described, ("length=3",))[0]["hidden"].shape == (1, 3, 8)
    again, _ = random_inputs(described, ())
    assert all(np.array_equal(again[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize(
    ("kind", "sizes", "sentence"),
    [
        ("tensor(string)", (), "give the inputs with --input"),
        ("seq(tensor(float))", (), "give the inputs with --input"),
        ("tensor(float)", ("width=3",), "there are length"),
    ],
)
def test_inputs_that_cannot_be_made_are_refused(
    kind: str, sizes: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        random_inputs([{"name": "x", "type": kind, "shape": ["length"]}], sizes)
