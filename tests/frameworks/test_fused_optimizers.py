"""One step of the fused optimizers against a step of torch's own."""

from typing import Any

import pytest
import torch
from fused_pairs import assert_same, fused, randn

from ray_precheck.errors import NotCheckable

pytestmark = pytest.mark.frameworks

Tensor = torch.Tensor
BETA1, BETA2, LR, EPS, STEP = 0.9, 0.99, 0.01, 1e-3, 4


def state() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return variable, m, v, the largest v so far, and a gradient."""
    made = [randn(3, 4, seed=seed, grad=False) for seed in range(5)]
    return made[0], made[1], made[2].square(), made[3].square(), made[4]


def torchs_step(optimizer: type[torch.optim.Optimizer], **options: Any) -> list[Tensor]:
    """Return variable, m and v after step number STEP of torch's optimizer."""
    variable, m, v, largest, grad = state()
    parameter = torch.nn.Parameter(variable.clone())
    parameter.grad = grad.clone()
    made = optimizer([parameter], lr=LR, betas=(BETA1, BETA2), eps=EPS, **options)  # type: ignore[call-arg]
    made.state[parameter] = {
        "step": torch.tensor(float(STEP - 1)),
        "exp_avg": m.clone(),
        "exp_avg_sq": v.clone(),
        "max_exp_avg_sq": largest.clone(),
    }
    made.step()
    after = made.state[parameter]
    return [parameter.detach(), after["exp_avg"], after["exp_avg_sq"]]


def test_adam_is_torchs_with_epsilon_beside_the_uncorrected_root() -> None:
    variable, m, v, _, grad = state()
    power2 = BETA2**STEP
    # torch adds epsilon after it has divided the root by sqrt(1 - beta2^t).
    epsilon = EPS * (1 - power2) ** 0.5
    ours = fused("NPU.npu_apply_adam")(
        BETA1**STEP, power2, LR, BETA1, BETA2, epsilon, grad, None, False, out=[variable, m, v]
    )
    assert_same(ours, torchs_step(torch.optim.Adam))


def test_adam_with_nesterov_looks_one_gradient_ahead() -> None:
    variable, m, v, _, grad = state()
    ours = fused("NPU.npu_apply_adam")(
        BETA1**STEP, BETA2**STEP, LR, BETA1, BETA2, EPS, grad, False, True, out=(variable, m, v)
    )
    expected = []
    for w, m1, v1, g in zip(*[x.flatten().tolist() for x in (variable, m, v, grad)], strict=True):
        m2, v2 = BETA1 * m1 + (1 - BETA1) * g, BETA2 * v1 + (1 - BETA2) * g * g
        rate = LR * (1 - BETA2**STEP) ** 0.5 / (1 - BETA1**STEP)
        expected.append(w - rate * (BETA1 * m2 + (1 - BETA1) * g) / (v2**0.5 + EPS))
    assert_same(ours[0].flatten(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_adam_w_is_torchs_with_the_powers_of_the_step_before(amsgrad: bool, maximize: bool) -> None:
    variable, m, v, largest, grad = state()
    ours = fused("NPU.npu_apply_adam_w")(
        BETA1 ** (STEP - 1), BETA2 ** (STEP - 1), LR, 0.1, BETA1, BETA2, EPS, grad,
        largest if amsgrad else None, amsgrad, maximize, out=[variable, m, v],
    )  # fmt: skip
    options = {"weight_decay": 0.1, "amsgrad": amsgrad, "maximize": maximize}
    assert_same(ours, torchs_step(torch.optim.AdamW, **options))


def test_a_step_without_its_variables_is_not_checked() -> None:
    grad = state()[4]
    with pytest.raises(NotCheckable, match="does not know these arguments"):
        fused("NPU.npu_apply_adam")(0.1, 0.1, LR, BETA1, BETA2, EPS, grad, None, None)
