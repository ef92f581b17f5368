"""The gradients of a record are those at the operator's own border."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from ray_precheck.capture.pytorch.elements import autocast_field
from ray_precheck.capture.pytorch.tensors.text import tensors_in

pytestmark = pytest.mark.frameworks


def summary(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "shape": list(tensor.shape),
        "Max": pytest.approx(tensor.max().item(), rel=1e-5, abs=1e-7),
        "Norm": pytest.approx(tensor.double().norm().item(), rel=1e-5),
    }


def shown(element: dict[str, Any]) -> dict[str, Any]:
    return {name: element[name] for name in ("shape", "Max", "Norm")}


def own_gradients(
    function: Callable[..., torch.Tensor], arrived: torch.Tensor, *inputs: torch.Tensor
) -> list[torch.Tensor]:
    """Return what autograd gives for the operator alone."""
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    return list(torch.autograd.grad(function(*leaves), leaves, arrived))


@pytest.mark.parametrize(
    ("key", "function", "shapes"),
    [
        ("Functional.linear.0", torch.nn.functional.linear, [(2, 5, 4), (3, 4)]),
        ("Functional.linear.0", torch.nn.functional.linear, [(2, 5, 4), (3, 4), (3,)]),
        ("Torch.matmul.0", torch.matmul, [(2, 3, 4, 5), (2, 3, 5, 4)]),
        ("Functional.silu.0", torch.nn.functional.silu, [(3, 4)]),
        (
            "Functional.scaled_dot_product_attention.0",
            torch.nn.functional.scaled_dot_product_attention,
            [(1, 2, 4, 8)] * 3,
        ),
        (
            "Functional.layer_norm.0",
            lambda x, w: torch.nn.functional.layer_norm(x, (4,), w),
            [(3, 4), (4,)],
        ),
        ("Torch.einsum.0", lambda x, y: torch.einsum("bij,bjk->bik", x, y), [(2, 3, 4), (2, 4, 5)]),
    ],
)
def test_they_are_those_of_the_operator_alone(
    captured: Any, key: str, function: Callable[..., torch.Tensor], shapes: list[tuple[int, ...]]
) -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
    kept: list[torch.Tensor] = []

    def action() -> None:
        inputs = [leaf * 1.5 for leaf in leaves]
        output = function(*inputs)
        output.register_hook(lambda gradient: kept.append(gradient.clone()))
        # The inputs have other users, whose gradients must not be counted.
        (output.sin().sum() + sum((each**2).sum() for each in inputs)).backward()
        kept.extend(each.detach() for each in inputs)

    record = captured(action)[f"{key}.backward"]
    arrived, *inputs = kept
    expected = own_gradients(function, arrived, *inputs)
    assert shown(record["input"][0]) == summary(arrived)
    by_input = {
        int(place): element
        for place, element in zip(record["gradient_of"], record["output"], strict=True)
        if place is not None
    }
    assert set(by_input) == set(range(len(shapes)))
    for place, gradient in enumerate(expected):
        assert shown(by_input[place]) == summary(gradient)


def test_a_tensor_that_is_given_twice_has_two_gradients(captured: Any) -> None:
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    record = captured(lambda: (x * x).sum().backward())["Tensor.__mul__.0.backward"]
    assert [each["Max"] for each in record["output"]] == [3.0, 3.0]
    assert record["gradient_of"] == ["0", "1"]


@pytest.mark.parametrize(
    ("function", "shapes", "same"),
    [
        (functional.linear, [(3,), (3, 3), (3,)], (0, 2)),  # adds the bias first
        (functional.linear, [(2, 3, 3), (3, 3), (3,)], ()),
        (functional.linear, [(3, 3), (3, 3), (3,)], (0, 1)),
        (torch.matmul, [(2, 3, 3), (2, 3, 3)], (0, 1)),
        (functools.partial(torch.einsum, "ij,jk->ki"), [(3, 3), (3, 3)], (0, 1)),
        (torch.Tensor.__rpow__, [(4,), (4,)], (0, 1)),  # one node with the other order
        (functional.cosine_similarity, [(3, 4), (3, 4)], (0, 1)),  # uses each several times
        (functional.triplet_margin_loss, [(3, 4), (3, 4), (3, 4)], (0, 2)),
        (functional.scaled_dot_product_attention, [(1, 2, 4, 4)] * 3, (0, 1, 2)),
    ],
)
@pytest.mark.parametrize("is_leaf", [True, False])
def test_each_place_of_a_tensor_that_is_given_twice_has_its_own_gradient(
    captured: Any, function: Any, shapes: list[Any], same: tuple[int, ...], is_leaf: bool
) -> None:
    torch.manual_seed(3)
    tensors = [torch.rand(shape).add(0.5).requires_grad_() for shape in shapes]
    if not is_leaf:
        tensors = [tensor * 1 for tensor in tensors]
    given = [tensors[same[0]] if place in same else each for place, each in enumerate(tensors)]
    output = function(*(each.detach() for each in given))
    arriving = torch.rand(output.shape)
    state = torch.get_rng_state()
    records = captured(lambda: function(*given).backward(arriving))
    assert torch.equal(torch.get_rng_state(), state)
    own = [each.detach().clone().requires_grad_() for each in given]
    expected = torch.autograd.grad(function(*own), own, arriving)
    (record,) = (record for key, record in records.items() if key.endswith(".backward"))
    by_input = dict(zip(record["gradient_of"], record["output"], strict=True))
    for place, gradient in enumerate(expected):
        assert shown(by_input[str(place)]) == summary(gradient)


def test_gradients_that_cannot_be_told_apart_are_added_up(captured: Any) -> None:
    """Meta tensors have no values that this function could ask for."""
    x = torch.tensor([0.5, 2.0], requires_grad=True)
    variance = torch.tensor([1.0, 2.0])

    def action() -> None:
        torch.nn.functional.gaussian_nll_loss(x, x, variance).backward()

    record = captured(action)["Functional.gaussian_nll_loss.0.backward"]
    assert record["gradient_of"] == [None, None]
    assert shown(record["output"][0]) == summary(torch.zeros(2))
    assert record["output"][1] is None


def test_a_change_in_place_has_the_gradient_of_the_value_before(captured: Any) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)

    def action() -> None:
        y = x * 1
        y.mul_(5)
        y.sum().backward()

    record = captured(action)["Tensor.mul_.0.backward"]
    assert record["input"][0]["Max"] == 1.0
    assert record["output"][0]["Max"] == 5.0


def test_a_leaf_of_a_call_is_known(captured: Any) -> None:
    layer = torch.nn.Linear(4, 3)
    x = torch.randn(2, 5, 4)
    record = captured(lambda: layer(x).sum().backward())["Functional.linear.0.backward"]
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    by_input = dict(zip(record["gradient_of"], record["output"], strict=True))
    assert shown(by_input["1"]) == summary(layer.weight.grad)
    assert shown(by_input["2"]) == summary(layer.bias.grad)


def test_without_a_gradient_there_is_no_record(captured: Any) -> None:
    x = torch.ones(2, requires_grad=True)

    def action() -> None:
        with torch.no_grad():
            torch.sin(x)
        torch.sin(x.detach())
        torch.sin(x)  # no backward pass goes through it

    assert not [key for key in captured(action) if key.endswith("backward")]


def test_a_second_pass_has_no_second_record(captured: Any) -> None:
    x = torch.ones(2, requires_grad=True)

    def action() -> None:
        y = torch.sin(x).sum()
        y.backward(retain_graph=True)
        y.backward()

    records = captured(action)
    assert sum(key == "Torch.sin.0.backward" for key in records) == 1


def test_what_the_pass_does_not_reach_is_null(captured: Any) -> None:
    x, y = torch.ones(2, 3, 4, requires_grad=True), torch.ones(2, 4, 3, requires_grad=True)

    def action() -> None:
        a, b = x * 1, y * 1
        torch.autograd.grad(torch.matmul(a, b).sum(), [a])

    record = captured(action)["Torch.matmul.0.backward"]
    found = dict(zip(record["gradient_of"], record["output"], strict=True))
    assert found["0"] is not None


def test_values_and_gradients_are_the_same_with_and_without_a_capture(captured: Any) -> None:
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    twin = copy.deepcopy(model)
    x = torch.randn(2, 5, 16)

    def step(net: torch.nn.Module) -> torch.Tensor:
        torch.manual_seed(1)
        loss = net(x).square().mean()
        loss.backward()
        return loss

    plain = step(twin)
    seen: list[torch.Tensor] = []
    captured(lambda: seen.append(step(model)), level="mix", model=model)
    assert torch.equal(plain, seen[0])
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)


def test_node_gradients_are_msprobes(captured: Any) -> None:
    x, w = torch.randn(2, 5, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)

    def action() -> None:
        torch.nn.functional.linear(x, w).sum().backward()

    record = captured(action, gradients="node")["Functional.linear.0.backward"]
    # The last node is the view behind the product of matrices.
    assert [each["shape"] for each in record["output"]] == [[10, 3]]
    assert "gradient_of" not in record


class TestCheckpoints:
    @pytest.mark.parametrize("reentrant", [True, False])
    def test_a_recomputed_call_names_the_first_one(self, captured: Any, reentrant: bool) -> None:
        torch.manual_seed(0)
        layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def action() -> None:
            x = torch.randn(2, 4, requires_grad=True)
            for layer in layers:
                x = checkpoint(lambda y, f=layer: torch.tanh(f(y)), x, use_reentrant=reentrant)  # type: ignore[misc]
            x.sum().backward()

        records = captured(action)
        found = {key: each["recompute"] for key, each in records.items() if "recompute" in each}
        linear = {key: value for key, value in found.items() if "linear" in key}
        # The backward pass goes through the last layer first.
        assert linear == {
            "Functional.linear.3.forward": "Functional.linear.2.forward",
            "Functional.linear.4.forward": "Functional.linear.1.forward",
            "Functional.linear.5.forward": "Functional.linear.0.forward",
        }

    def test_layers_with_the_same_inputs_are_told_apart(self, captured: Any) -> None:
        layer = torch.nn.Linear(4, 4)
        x = torch.randn(2, 4, requires_grad=True)

        def action() -> None:
            # By default a recomputation stops in the middle of its last call, which has no record then.
            with set_checkpoint_early_stop(False):
                first = checkpoint(layer, x, use_reentrant=False)
                second = checkpoint(layer, x + 1, use_reentrant=False)
                (first + second).sum().backward()

        records = captured(action)
        for key in ("Functional.linear.2.forward", "Functional.linear.3.forward"):
            again, first = records[key], records[records[key]["recompute"]]
            assert again["input_args"][0]["Max"] == first["input_args"][0]["Max"]


def test_the_backward_of_an_own_function_is_seen(captured: Any) -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            return torch.cosh(gradient)

    x = torch.ones(2, requires_grad=True)
    records = captured(lambda: Own.apply(x).sum().backward())
    assert {"Torch.sin.0.forward", "Torch.cosh.0.forward"} <= set(records)


class TestModules:
    def test_they_have_records_parents_and_gradients(self, captured: Any) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
        x = torch.randn(2, 4, requires_grad=True)
        records = captured(lambda: model(x).sum().backward(), level="mix", model=model)
        record = records["Module.0.Linear.forward.0"]
        assert [each["shape"] for each in record["input_args"]] == [[2, 4]]
        assert set(record["parameters"]) == {"weight", "bias"}
        assert records["Functional.linear.0.forward"]["parent"] == "Module.0.Linear.forward.0"
        backward = records["Module.0.Linear.backward.0"]
        assert x.grad is not None
        assert shown(backward["output"][0]) == summary(x.grad)
        gradients = records["Module.0.Linear.parameters_grad.0"]
        assert model[0].weight.grad is not None
        assert shown(gradients["weight"][0]) == summary(model[0].weight.grad)

    def test_an_input_with_other_users_has_the_gradient_of_this_module(self, captured: Any) -> None:
        class Twice(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x.sin() * 2 + x.cos()

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.twice = Twice()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.twice(x) + x**3  # type: ignore[no-any-return]

        x = torch.tensor([0.5, 1.0], requires_grad=True)
        model = Model()

        def action() -> None:
            model(x * 1).sum().backward()

        for level in ("L0", "mix"):
            record = captured(action, level=level, model=model)["Module.twice.Twice.backward.0"]
            own = 2 * x.detach().cos() - x.detach().sin()
            assert shown(record["output"][0]) == summary(own)

    def test_without_a_model_the_first_one_called_gives_the_names(self, captured: Any) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 3))
        loss = torch.nn.Sequential(torch.nn.ReLU())
        records = captured(lambda: loss(model(torch.ones(1, 4))), level="L0")
        assert {"Module.0.Linear.forward.0", "Module.Sequential.0.ReLU.forward.0"} <= set(records)

    def test_an_exception_in_a_module_leaves_no_parent_behind(self, captured: Any) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 3))

        def action() -> None:
            with pytest.raises(RuntimeError):
                model(torch.ones(1, 5))
            torch.ones(2).sin()

        assert "parent" not in captured(action, level="mix", model=model)["Tensor.sin.0.forward"]


@pytest.mark.filterwarnings("ignore")
class TestCompiledFunctions:
    @pytest.mark.parametrize("warm", [False, True])
    def test_each_call_is_one_record_that_says_so(self, captured: Any, warm: bool) -> None:
        torch._dynamo.reset()

        @torch.compile(backend="eager")
        def compiled(x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x * 2) + 1

        x = torch.tensor([1.0, -1.0], requires_grad=True)
        if warm:
            compiled(x)
        results: list[torch.Tensor] = []

        def action() -> None:
            y = compiled(torch.sin(x))
            results.append(y)
            torch.cos(y).sum().backward()

        records = captured(action)
        (key,) = [key for key in records if key.startswith("Compiled.")]
        assert "compiled" in key
        assert records[key]["compiled"] is True
        assert records[key]["input_args"][0]["shape"] == [2]
        names = {key.rsplit(".", 2)[0] for key in records if key.endswith("forward")}
        assert names >= {"Torch.sin", "Torch.cos"}
        assert "Torch.relu" not in names
        assert torch.equal(results[0], torch.relu(torch.sin(x) * 2) + 1)


def test_autocast_is_named(captured: Any) -> None:
    x, w = torch.randn(2, 4), torch.randn(3, 4)

    def action() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.nn.functional.linear(x, w)

    record = captured(action)["Functional.linear.0.forward"]
    assert record["autocast"] == "torch.bfloat16"
    assert record["input_args"][0]["dtype"] == "torch.float32"
    assert record["output"][0]["dtype"] == "torch.bfloat16"
    assert "autocast_device" not in record


def test_tensors_are_saved_with_their_values(captured: Any, tmp_path: Any) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    view = x.detach().t()

    def action() -> None:
        torch.sin(x).sum().backward()
        torch.neg(view)

    records = captured(action, task="tensor")
    (folder,) = tmp_path.glob("dump*/step0/*/dump_tensor_data")

    def load(element: dict[str, Any]) -> torch.Tensor:
        return torch.load(folder / element["data_name"], weights_only=True)  # type: ignore[no-any-return]

    record = records["Torch.sin.0.forward"]
    assert record["input_args"][0]["data_name"] == "Torch.sin.0.forward.input.0.pt"
    assert torch.equal(load(record["input_args"][0]), x.detach())
    assert torch.equal(load(records["Torch.neg.0.forward"]["input_args"][0]), view)
    gradient = records["Torch.sin.0.backward"]["output"][0]
    assert x.grad is not None
    assert torch.equal(load(gradient), x.grad)
    # The sum's input is the sine's output: one file under two names.
    names = [
        record["output"][0]["data_name"],
        records["Tensor.sum.0.forward"]["input_args"][0]["data_name"],
    ]
    assert (folder / names[0]).samefile(folder / names[1])


def test_what_the_capture_computes_itself_has_no_record(captured: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3)).bfloat16()
    x = torch.ones(2, 4, dtype=torch.bfloat16, requires_grad=True)
    records = captured(lambda: model(x).sum().backward(), level="mix", model=model)
    calls = {key.split(".")[1] for key in records if not key.startswith("Module.")}
    assert calls == {"linear", "sum"}


class _Stages(torch.nn.Module):
    """Gives each stage, of which the next one is made, as models with hidden states do."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = torch.tanh(x)
        second = first * 2
        return second, first, second + first, first.view(-1)


_CELL, _LSTM, _GRU = torch.nn.LSTMCell(4, 4), torch.nn.LSTM(4, 4, 2), torch.nn.GRU(4, 4, 2)
_STAGES = torch.nn.Sequential(_Stages())
_SEVERAL: dict[str, Callable[[torch.Tensor], Any]] = {
    "Torch.lstm_cell.0.backward": _CELL,
    "Torch.lstm.0.backward": lambda x: tensors_in(_LSTM(x[None])),
    "Torch.gru.0.backward": lambda x: _GRU(x[None]),
    "Torch.max.0.backward": lambda x: torch.max(x, 1)[:1],
    "Torch.unbind.0.backward": torch.unbind,
    "Torch.linalg.qr.0.backward": torch.linalg.qr,
    "Module.0._Stages.backward.0": _STAGES,
}


@pytest.mark.parametrize("used", ["all", "first", "last"])
@pytest.mark.parametrize("key", _SEVERAL)
def test_an_output_has_the_gradient_from_outside_of_the_call(
    captured: Any, key: str, used: str
) -> None:
    function = _SEVERAL[key]
    torch.manual_seed(1)
    x = torch.randn(4, 4, requires_grad=True)
    given: list[torch.Tensor | None] = []

    def action() -> None:
        outputs = function(x * 1)
        places = {"all": range(len(outputs)), "first": [0], "last": [len(outputs) - 1]}[used]
        given[:] = [
            torch.randn_like(each) if i in places else None for i, each in enumerate(outputs)
        ]
        chosen = [i for i, each in enumerate(given) if each is not None]
        torch.autograd.backward([outputs[i] for i in chosen], [given[i] for i in chosen])

    arrived = captured(action, level="mix", model=_STAGES)[key]["input"]
    assert len(arrived) >= len(given)
    for found, expected in zip(arrived, given, strict=False):
        if expected is None:
            assert found is None or found["Norm"] == 0
        else:
            assert shown(found) == summary(expected)

    def test_its_backward_is_dark_too(self, captured: Any) -> None:
        """Before torch 2.13 autograd calls it like an own function's, and it calls products by name."""

        class CompiledFunction(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x * 2

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
                return torch.mm(grad, torch.eye(2) * 2)

        x = torch.ones(2, 2, requires_grad=True)

        def action() -> None:
            CompiledFunction.apply(x).sum().backward()

        assert "Torch.mm.0.forward" in captured(action)
        CompiledFunction.__module__ = "torch._functorch._aot_autograd.runtime_wrappers"
        assert "Torch.mm.0.forward" not in captured(action)


def test_autocast_of_an_accelerator_is_named_with_it() -> None:
    """Its list of operators is another one than the CPU's."""
    before = torch.is_autocast_enabled("cuda")
    with FakeTensorMode():
        on_gpu = torch.empty(2, device="cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        fields = autocast_field([on_gpu])
    finally:
        torch.set_autocast_enabled("cuda", before)
    assert fields == ', "autocast": "torch.float16", "autocast_device": "cuda"'
