"""The gradients at the border of MindSpore's calls."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn

from ray_precheck import private_parts

Captured = Callable[..., dict[str, Any]]
RNG = np.random.default_rng(5)
X = RNG.standard_normal((4, 6)).astype(np.float32)
W = RNG.standard_normal((6, 5)).astype(np.float32)


def gradients(tmp_path: Path, record: dict[str, Any], side: str) -> list[Any]:
    """Return the gradients of a backward record from their files."""
    (folder,) = tmp_path.glob("dump/step0/*/dump_tensor_data")
    found = record[side]
    return [None if each is None else np.load(folder / each["data_name"]) for each in found]


# Each has an operator and its inputs. A function in a table is not seen, so each is called by its name.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "Mint.matmul": (lambda x, w: mint.matmul(x, w), (X, W)),
    "MintFunctional.linear": (
        lambda x, w: mint.nn.functional.linear(x, w),
        (X, np.ascontiguousarray(W.T)),
    ),
    "MintFunctional.softmax": (lambda x: mint.nn.functional.softmax(x, dim=-1), (X,)),
    "Tensor.__mul__": (lambda a, b: a * b, (X, X[:1].copy())),
    "Mint.transpose": (lambda x: mint.transpose(x, 0, 1), (X,)),
    "Mint.cat": (lambda a, b: mint.cat([a, b], dim=1), (X, 2 * X)),
    "Tensor.__getitem__": (lambda x: x[1:3], (X,)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_operator_alone(
    name: str, captured: Captured, tmp_path: Path
) -> None:
    """The inputs have other users besides the operator, whose gradients are not part of it."""
    operator, values = CASES[name]
    inputs = tuple(Tensor(each) for each in values)
    direction = Tensor(RNG.standard_normal(operator(*inputs).shape).astype(np.float32))

    def program(*given: Tensor) -> Tensor:
        between = [mint.mul(each, 1.0) for each in given]
        others = sum(mint.sum(mint.exp(each)) for each in between)
        return mint.sum(mint.mul(operator(*between), direction)) + others

    action = ms.grad(program, tuple(range(len(inputs))))
    records = captured(lambda: action(*inputs), task="tensor")
    record = records[f"{name}.0.backward"]
    alone = ms.grad(
        lambda *a: mint.sum(mint.mul(operator(*a), direction)), tuple(range(len(inputs)))
    )
    expected = alone(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    passed_on = gradients(tmp_path, record, "output")
    assert len(passed_on) == len(expected)
    for seen, wanted in zip(passed_on, expected, strict=True):
        np.testing.assert_allclose(seen, wanted.asnumpy(), rtol=1e-6, atol=1e-7)
    (arrived,) = gradients(tmp_path, record, "input")
    np.testing.assert_array_equal(arrived, direction.asnumpy())


def test_each_output_has_the_gradient_that_arrives_at_it(
    captured: Captured, tmp_path: Path
) -> None:
    def program(x: Tensor) -> Tensor:
        left, right = mint.split(x, 3, dim=1)
        return mint.sum(mint.sub(mint.mul(right, 2.0), mint.mul(left, right)))

    records = captured(lambda: ms.grad(program)(Tensor(X)), task="tensor")
    left, right = X[:, :3], X[:, 3:]
    arrived = gradients(tmp_path, records["Mint.split.0.backward"], "input")
    np.testing.assert_allclose(arrived[0], -right, rtol=1e-6)
    np.testing.assert_allclose(arrived[1], 2 - left, rtol=1e-6)
    # The second product gets the outputs of one node in the other order than the first.
    product = gradients(tmp_path, records["Mint.mul.1.backward"], "output")
    np.testing.assert_allclose(product[0], -right, rtol=1e-6)
    np.testing.assert_allclose(product[1], -left, rtol=1e-6)


def test_outputs_of_one_node_may_be_given_in_any_order(captured: Captured, tmp_path: Path) -> None:
    def program(x: Tensor) -> Tensor:
        left, right = mint.split(x, 3, dim=1)
        return mint.sum(mint.mul(right, mint.exp(left)) + mint.mul(right, left))

    records = captured(lambda: ms.grad(program)(Tensor(X)), task="tensor")
    product = gradients(tmp_path, records["Mint.mul.1.backward"], "output")
    np.testing.assert_allclose(product[0], X[:, :3], rtol=1e-6)
    np.testing.assert_allclose(product[1], X[:, 3:], rtol=1e-6)


def test_a_tensor_given_twice_has_a_gradient_at_each_place(
    captured: Captured, tmp_path: Path
) -> None:
    def program(x: Tensor) -> Tensor:
        y = mint.mul(x, 1.0)
        return mint.sum(mint.sub(y, y, alpha=3))

    records = captured(lambda: ms.grad(program)(Tensor(X)), task="tensor")
    first, second = gradients(tmp_path, records["Mint.sub.0.backward"], "output")
    assert np.all(first == 1)
    assert np.all(second == -3)


def test_a_tensor_that_is_handed_on_as_it_is_has_its_own_gradient(captured: Captured) -> None:
    def program(x: Tensor) -> Tensor:
        return mint.sum(mint.mul(mint.mul(x, 2.0).to(ms.float32), 3.0))

    records = captured(lambda: ms.grad(program)(Tensor(X)))
    record = records["Tensor.to.0.backward"]
    assert [each["Max"] for each in record["input"] + record["output"]] == [3.0, 3.0]


def test_inputs_that_get_no_gradient_have_none(captured: Captured) -> None:
    constant = Tensor(X)
    records = captured(lambda: ms.grad(lambda x: mint.sum(mint.mul(x, constant)))(Tensor(X)))
    passed_on = records["Mint.mul.0.backward"]["output"]
    assert passed_on[0] is not None
    assert passed_on[1] is None


def test_calls_outside_of_a_gradient_have_no_backward_record(captured: Captured) -> None:
    assert list(captured(lambda: mint.exp(Tensor(X)))) == ["Mint.exp.0.forward"]


def test_looking_changes_neither_loss_nor_gradients(captured: Captured) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        y = mint.matmul(x, w)
        y[0] = 0.5
        y = mint.nn.functional.softmax(y, dim=-1).astype(ms.float16).astype(ms.float32)
        return mint.mean(mint.square(y)) + mint.sum(mint.max(y, dim=1)[0])

    step = ms.value_and_grad(program, (0, 1))
    plain, seen = step(Tensor(X), Tensor(W)), []
    captured(lambda: seen.append(step(Tensor(X), Tensor(W))))
    (value, grads), (seen_value, seen_grads) = plain, seen[0]
    assert value.asnumpy() == seen_value.asnumpy()
    for one, other in zip(grads, seen_grads, strict=True):
        assert np.array_equal(one.asnumpy(), other.asnumpy())


def test_without_nodes_there_are_the_gradients_that_arrive(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MindSpore 2.7 shows no graph to Python."""
    find = private_parts.find
    missing = private_parts.MINDSPORE_NODE
    monkeypatch.setattr(private_parts, "find", lambda part: None if part is missing else find(part))

    def program(x: Tensor) -> Tensor:
        left, right = mint.split(mint.mul(x, 2.0), 3, dim=1)
        return mint.sum(mint.mul(left, 3.0)) + mint.sum(right)

    records = captured(lambda: [ms.grad(program)(Tensor(X)), mint.exp(Tensor(X))])
    record = records["Mint.split.0.backward"]
    assert [each["Max"] for each in record["input"]] == [3.0, 1.0]
    assert record["output"] == []
    assert "Mint.exp.0.backward" not in records


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_cell_computes_again_names_its_first_call(
    reentrant: bool, captured: Captured
) -> None:
    net = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 4))
    net.recompute(use_reentrant=reentrant)
    x = Tensor(np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32))
    head = nn.Dense(4, 2)
    weights = [*net.trainable_params(), *head.trainable_params()]
    step = ms.value_and_grad(lambda: (head(net(x)) ** 2).sum(), None, weights)
    records = captured(step)
    again = {key: record["recompute"] for key, record in records.items() if "recompute" in record}
    expected = {
        "Primitive.MatMul.3.forward": "Primitive.MatMul.0.forward",
        "Primitive.BiasAdd.3.forward": "Primitive.BiasAdd.0.forward",
        "Primitive.ReLU.1.forward": "Primitive.ReLU.0.forward",
    }
    # Where MindSpore takes up the saved tensors, it stops at the last one that is needed.
    assert expected.items() <= again.items()
    assert all(key.split(".")[1] == first.split(".")[1] for key, first in again.items())
