"""The references of optimizers' updates against torch's own optimizers in float64."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from optimizer_records import Lion

from ray_precheck.bench.optimizers import OPTIMIZER_ROWS, update_groups
from ray_precheck.bench.rounded import rounded_arithmetic
from ray_precheck.bench.run import References
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.pytorch.optimizers import resolve_optimizer
from ray_precheck.schema.record import ApiName

pytestmark = pytest.mark.frameworks

Tensor = torch.Tensor
SHAPES = ((3, 4), (5,), (), (2, 3, 4))
DECAYS = {"weight_decay": (0.0, 0.1), "maximize": (False, True)}
COMBINATIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "SGD": {"momentum": (0.0, 0.9), "dampening": (0.0, 0.3), "nesterov": (False, True), **DECAYS},
    "Adam": {"amsgrad": (False, True), "eps": (1e-8, 1e-2), "betas": ((0.9, 0.99),), **DECAYS},
    "AdamW": {"amsgrad": (False, True), "eps": (1e-8, 1e-2), "betas": ((0.7, 0.8),), **DECAYS},
    "RMSprop": {"centered": (False, True), "momentum": (0.0, 0.9), "alpha": (0.9,), **DECAYS},
    "Adafactor": {
        "d": (1.0, 1.5),
        "eps": ((None, 1e-3), (1e-2, 1.0)),
        "beta2_decay": (-0.8, -0.3),
        **DECAYS,
    },
    "Lion": {"betas": ((0.9, 0.99), (0.5, 0.8)), **DECAYS},
}


def combinations() -> Iterator[Any]:
    for api, options in COMBINATIONS.items():
        for values in itertools.product(*options.values()):
            chosen = dict(zip(options, values, strict=True))
            if chosen.get("nesterov") and (not chosen["momentum"] or chosen["dampening"]):
                continue
            yield pytest.param(api, chosen, id=f"{api}-{'-'.join(map(str, values))}")


def made(api: str, options: dict[str, Any], dtype: torch.dtype = torch.float64) -> Any:
    """Return an optimizer of random parameters."""
    generator = torch.Generator().manual_seed(2)
    params = [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in SHAPES
    ]
    kind = Lion if api == "Lion" else getattr(torch.optim, api)
    return kind(params, lr=0.05, **options)


def groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the groups of a record, one for each parameter."""
    found = []
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key != "params"}
        for param in group["params"]:
            state = {
                name: [value.clone()]
                for name, value in optimizer.state.get(param, {}).items()
                if value is not None
            }
            found.append(
                {
                    **options,
                    "param_dtype": str(param.dtype),
                    "params": [param.detach().clone()],
                    "grads": [param.grad.clone()],
                    **({"state": state} if state else {}),
                }
            )
    return found


def assert_equal(ours: list[Any], optimizer: Any, tolerance: float = 1e-12) -> None:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for mine, param in zip(ours, params, strict=True):
        torch.testing.assert_close(
            mine["params"][0], param.detach(), rtol=tolerance, atol=tolerance
        )
        state = {n: v for n, v in optimizer.state.get(param, {}).items() if v is not None}
        assert set(mine.get("state", {})) == set(state)
        for name, value in state.items():
            close = mine["state"][name][0].to(value.dtype)
            torch.testing.assert_close(close, value, rtol=tolerance, atol=tolerance)


def with_gradients(optimizer: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.randn(param.shape, generator=generator, dtype=param.dtype)


@pytest.mark.parametrize(("api", "options"), list(combinations()))
def test_a_reference_takes_the_steps_of_the_optimizer(api: str, options: dict[str, Any]) -> None:
    optimizer = made(api, options)
    for step in range(3):
        with_gradients(optimizer, step)
        ours = update_groups(api, *groups_of(optimizer))
        optimizer.step()
        assert_equal(ours, optimizer)


@pytest.mark.parametrize("api", ["Adam", "AdamW", "SGD"])
def test_both_parts_of_a_complex_parameter_are_updated(api: str) -> None:
    optimizer = made(api, {"weight_decay": 0.1}, torch.complex128)
    for step in range(2):
        with_gradients(optimizer, step)
        ours = update_groups(api, *groups_of(optimizer))
        optimizer.step()
        assert_equal(ours, optimizer)


def test_the_states_that_a_step_does_not_use_stay() -> None:
    optimizer = made("SGD", {"momentum": 0.9})
    with_gradients(optimizer, 0)
    optimizer.step()
    optimizer.param_groups[0]["momentum"] = 0.0
    with_gradients(optimizer, 1)
    ours = update_groups("SGD", *groups_of(optimizer))
    optimizer.step()
    assert_equal(ours, optimizer)


@pytest.mark.parametrize("api", sorted(OPTIMIZER_ROWS))
def test_the_device_runs_the_same_step(api: str) -> None:
    name = api.partition(".")[2]
    options = {"weight_decay": 0.1, **({"momentum": 0.9} if name == "SGD" else {})}
    optimizer = made(name, options)
    run = resolve_optimizer(ApiName("Optimizer", name, 0))
    for step in range(3):
        with_gradients(optimizer, step)
        groups = groups_of(optimizer)
        ours = run(*groups, without_gradient=3)
        assert run(*groups)[0]["params"][0].equal(ours[0]["params"][0])  # nothing was changed
        optimizer.step()
        assert_equal(ours, optimizer)


@pytest.mark.parametrize("way", [{"foreach": True}, {"fused": True}, {"capturable": True}])
def test_a_device_without_the_recorded_kernels_takes_its_own(way: dict[str, bool]) -> None:
    optimizer = made("AdamW", {})
    with_gradients(optimizer, 0)
    groups = [{**group, **way} for group in groups_of(optimizer)]
    ours = resolve_optimizer(ApiName("Optimizer", "AdamW", 0))(*groups)
    optimizer.step()
    assert_equal(ours, optimizer)


def test_fused_kernels_that_refuse_the_device_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoFused(torch.optim.AdamW):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            if self.param_groups[0]["fused"]:
                raise RuntimeError("`fused=True` requires all the params to be on cuda")
            super().step()

    monkeypatch.setattr(torch.optim, "AdamW", NoFused)
    optimizer = made("Adam", {"weight_decay": 0.0})
    with_gradients(optimizer, 0)
    groups = [{**group, "fused": True} for group in groups_of(optimizer)]
    ours = resolve_optimizer(ApiName("Optimizer", "AdamW", 0))(*groups)
    optimizer.step()
    assert_equal(ours, optimizer)


def test_gradients_are_divided_by_the_scale_of_the_loss() -> None:
    optimizer = made("AdamW", {})
    with_gradients(optimizer, 0)
    groups = groups_of(optimizer)
    for group in groups:
        group["grads"] = [grad * 1024 for grad in group["grads"]]
    scale = torch.tensor(1024.0)
    ours = update_groups("AdamW", *groups, grad_scale=scale)
    device = resolve_optimizer(ApiName("Optimizer", "AdamW", 0))(*groups, grad_scale=scale)
    optimizer.step()
    assert_equal(ours, optimizer)
    assert_equal(device, optimizer)


def one_group(**changes: Any) -> dict[str, Any]:
    options = {"lr": 0.1, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.0}
    return {**options, "params": [torch.ones(2)], "grads": [torch.ones(2)], **changes}


@pytest.mark.parametrize(
    ("api", "group", "record", "reason"),
    [
        ("AdamW", {}, {"optimizer": "bitsandbytes.optim.adamw.AdamW"}, "not of torch.optim.AdamW"),
        ("AdamW", {}, {"sparse": ["embedding"]}, "the gradient of embedding is sparse"),
        ("Adafactor", {}, {"sharded": True}, "its parameters are sharded"),
        ("AdamW", {"grads": []}, {}, "grads of a group does not have a value for each"),
        ("AdamW", {"grads": [torch.ones(3)]}, {}, r"has shape \[3\]; expected \[2\]"),
        ("AdamW", {"params": 3}, {}, "params of a group is no list of tensors"),
        ("AdamW", {"state": {"state1": [None]}}, {}, "the state state1 is none of the AdamW"),
        ("AdamW", {"state": {"step": []}}, {}, "step of a group does not have a value"),
        ("AdamW", {"state": 3}, {}, "the state of a group is no dict"),
        ("AdamW", {"state": {"step": [3.0]}}, {}, "parameter 0 has states, but no exp_avg"),
        ("SGD", {"state": {"momentum_buffer": [3.0]}}, {}, "momentum_buffer of .* is no tensor"),
        ("SGD", {"state": {"momentum_buffer": [torch.ones(3)]}}, {}, "buffer of .* has shape"),
        ("AdamW", {"params": [torch.ones(2).int()]}, {}, "parameter 0 is torch.int32"),
        ("AdamW", {"lr": None}, {}, "the record has no number lr, but None"),
        ("AdamW", {"betas": 0.9}, {}, "the record has no two numbers betas"),
        ("Adafactor", {"eps": [None, 1], "d": 1, "beta2_decay": -1}, {}, "tell the dtype"),
        ("Lion", {"eps": None, "cautious_factor": 0.5}, {}, "cautious_factor=0.5 of this Lion is unknown"),
        ("Lion", {}, {"options": {"decoupled_wd": True}, "optimizer": "x.Lion"}, "of x.Lion is"),
    ],
)  # fmt: skip
def test_what_the_reference_does_not_know_is_not_checked(
    api: str, group: dict[str, Any], record: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NotCheckable, match=reason):
        update_groups(api, one_group(**group), **record)


def test_a_plain_lion_of_any_package_is_checked() -> None:
    idle = {
        "eps": None,
        "cautious_factor": 1.0,
        "caution": False,
        "use_triton": False,
        "initial_lr": 0.1,
    }
    about = {"optimizer": "lion_pytorch.lion_pytorch.Lion", "options": {"decoupled_wd": False}}
    (found,) = update_groups("Lion", one_group(**idle), **about)
    assert found["params"][0].tolist() == pytest.approx([0.9, 0.9])


def test_the_device_takes_no_gradients_of_another_dtype() -> None:
    run = resolve_optimizer(ApiName("Optimizer", "AdamW", 0))
    with pytest.raises(NotCheckable, match=r"gradient is torch.float64 and its parameter torch.fl"):
        run(one_group(grads=[torch.ones(2, dtype=torch.float64)]))


def test_an_older_torch_without_a_hyperparameter_does_not_take_another_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Adam(torch.optim.Adam):
        def __init__(self, params: Any, lr: float = 0.1) -> None:
            super().__init__(params, lr)
            for group in self.param_groups:
                del group["decoupled_weight_decay"]

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                group["decoupled_weight_decay"] = False
            super().step()

    monkeypatch.setattr(torch.optim, "Adam", Adam)
    run = resolve_optimizer(ApiName("Optimizer", "Adam", 0))
    run(one_group(decoupled_weight_decay=False))
    with pytest.raises(NotCheckable, match="has no decoupled_weight_decay of"):
        run(one_group(decoupled_weight_decay=True))


def test_an_optimizer_without_a_reference_has_no_bench() -> None:
    with pytest.raises(NotCheckable, match="has no bench: the updates of SGD, Adam, AdamW"):
        References("pytorch").find(ApiName("Optimizer", "LBFGS", 0))
    with pytest.raises(NotCheckable, match="not an optimizer that is run here"):
        resolve_optimizer(ApiName("Optimizer", "Optimizer", 0))


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_composed_first_step_in_bfloat16_errs_as_much_as_torchs(seed: int, foreach: bool) -> None:
    """It divides the root by that of the bias correction, as torch does: two roundings."""
    generator = torch.Generator().manual_seed(seed)
    param = torch.nn.Parameter(torch.zeros(4000, dtype=torch.bfloat16))
    param.grad = torch.randn(4000, generator=generator).mul(1e-3).bfloat16()
    optimizer = torch.optim.AdamW([param], 1e-3, foreach=foreach)
    (group,) = groups_of(optimizer)
    wide = {**group, **{name: [group[name][0].double()] for name in ("params", "grads")}}
    (exact,) = update_groups("AdamW", wide)
    with rounded_arithmetic("bfloat16"):
        (composed,) = update_groups("AdamW", wide)
    optimizer.step()
    torchs, ours = (
        (each - exact["params"][0]).square().mean().sqrt()
        for each in (param.double(), composed["params"][0])
    )
    assert 0.7 < torchs / ours < 1.2
