"""What a watch measures of trainings of PyTorch."""

import csv
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from ray_precheck.capture import Capture
from ray_precheck.capture.pytorch import measuring, norms
from ray_precheck.capture.pytorch.norms import module_groups, norms_of, readable

pytestmark = pytest.mark.frameworks
Rows = list[dict[str, str]]


@contextmanager
def watched(path: Path, **settings: Any) -> Iterator[Rows]:
    """Watch what runs within, and give its rows at the end."""
    rows: Rows = []
    with Capture(path, watch=True, framework="pytorch", **settings):
        yield rows
    with (path / "watch_0.csv").open(encoding="utf-8-sig", newline="") as file:
        rows += csv.DictReader(file)


def model_of(*sizes: int) -> nn.Sequential:
    torch.manual_seed(0)
    pairs = pairwise(sizes)
    return nn.Sequential(*(nn.Linear(*pair) for pair in pairs))


def norm_of(tensors: Any) -> float:
    found = [each.detach().double().pow(2).sum().item() for each in tensors if each is not None]
    return math.sqrt(sum(found))


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-5)


@pytest.fixture(params=["at once", "late"])
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a test twice: with numbers that are there at once, and as on an accelerator, a step later."""
    is_late = bool(request.param == "late")
    if is_late:
        for module in (measuring, norms):
            monkeypatch.setattr(module, "is_late", lambda tensor: True)
    return is_late


def test_rows_have_loss_and_norms_in_all_and_by_module(tmp_path: Path, late: bool) -> None:
    model = model_of(4, 8, 2)
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    expected = []
    with watched(tmp_path) as rows:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.full((3, 4), step + 1.0)).square().mean()
            loss.backward()
            learned = [p for p in model.parameters() if p.requires_grad]
            found = [norm_of(p.grad for p in learned), norm_of(learned)]
            found += [norm_of([model[0].weight.grad]), norm_of(model[1].parameters())]
            expected.append([loss.item(), *found])
            optimizer.step()
    names = ["Loss", "Grad Norm", "Param Norm", "Grad Norm 0", "Param Norm 1"]
    for row, numbers in zip(rows, expected, strict=True):
        assert [float(row[name]) for name in names] == [near(each) for each in numbers]
        assert (row["NaN"], row["Inf"], row["Skipped"], row["Captured"]) == ("0", "0", "0", "0")
        assert float(row["Step Seconds"]) > 0


@pytest.mark.parametrize("by", ["norm", "value", "name of torch", "generator"])
def test_gradients_are_measured_before_they_are_clipped(
    tmp_path: Path, by: str, late: bool
) -> None:
    model = model_of(4, 4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clip = {
        "norm": lambda: clip_grad_norm_(model.parameters(), 1e-3),
        "value": lambda: clip_grad_value_(list(model.parameters()), 1e-3),
        "name of torch": lambda: nn.utils.clip_grad_norm_([*model[0].parameters()], 1e-3),
        "generator": lambda: clip_grad_norm_((p for p in model.parameters()), 1e-3),
    }[by]
    with watched(tmp_path) as rows:
        (model(torch.ones(1, 4)) * 100).square().mean().backward()
        expected = norm_of(p.grad for p in model.parameters())
        clip()
        assert norm_of(p.grad for p in model[0].parameters()) < 1e-2
        optimizer.step()
    assert float(rows[0]["Grad Norm"]) == near(expected)
    # Names that were imported from torch are what they were before.
    assert clip_grad_norm_ is nn.utils.clip_grad_norm_
    assert (
        not hasattr(clip_grad_norm_, "__wrapped__") or clip_grad_norm_.__name__ == "clip_grad_norm_"
    )


@pytest.mark.parametrize("when", ["after the step", "in each part"])
def test_gradients_that_come_after_clipping_are_measured_anew(tmp_path: Path, when: str) -> None:
    model = model_of(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    expected = []
    with watched(tmp_path) as rows:
        for step in range(3):
            optimizer.zero_grad(set_to_none=step == 1)
            for part in (1, 2):
                (model(torch.ones(1, 4)).sum() * 10 ** (step + part)).backward()
                if when == "in each part" and part == 1:
                    clip_grad_norm_(model.parameters(), 1.0)
            expected.append(norm_of(p.grad for p in model.parameters()))
            optimizer.step()
            if when == "after the step":
                clip_grad_norm_(model.parameters(), 1e-3)
    assert [float(row["Grad Norm"]) for row in rows] == [near(each) for each in expected]


def test_nan_and_infinity_are_counted(tmp_path: Path, late: bool) -> None:
    model = model_of(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watched(tmp_path, triggers="nan > 0", step_by="optimizer") as rows:
        for bad in ([], [math.nan, math.nan, math.inf], []):
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            model[0].weight.grad.view(-1)[: len(bad)] = torch.tensor(bad)
            clip_grad_norm_(model.parameters(), 1.0)  # makes NaN of all
            optimizer.step()
    counts = [(row["NaN"], row["Inf"]) for row in rows]
    assert counts == [("0", "0"), ("1", "0") if late else ("2", "1"), ("0", "0")]
    assert [row["Trigger"] for row in rows] == ["", "nan > 0", ""]


def test_several_optimizers_have_their_last_norms_in_each_row(tmp_path: Path, late: bool) -> None:
    critic, generator = model_of(4, 4), model_of(4, 4)
    first = torch.optim.SGD(critic.parameters(), lr=0.0)
    second = torch.optim.Adam(generator.parameters(), lr=0.0)
    with watched(tmp_path, model=[critic, generator]) as rows:
        for step in range(6):
            first.zero_grad()
            critic(generator(torch.ones(1, 4)).detach()).sum().backward()
            first.step()
            if step % 3 == 0:
                second.zero_grad()
                (critic(generator(torch.ones(1, 4))).sum() * 100).backward()
                second.step()
    norms = [float(row["Grad Norm"]) for row in rows]
    assert norms[1:] == [near(norms[1])] * 5
    assert norms[1] > 5 * norms[0]


def test_a_closure_is_measured_when_it_has_run(tmp_path: Path) -> None:
    model = model_of(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(torch.ones(8, 4)) - 1).square().mean()
        loss.backward()
        return loss

    with watched(tmp_path) as rows:
        optimizer.step(closure)
    assert float(rows[0]["Grad Norm"]) == near(norm_of(p.grad for p in model.parameters()))
    assert float(rows[0]["Loss"]) > 0


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_and_losses_of_a_scaler_are_divided_by_the_scale(
    tmp_path: Path, fused: bool, late: bool
) -> None:
    model = model_of(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watched(tmp_path, triggers=("inf > 0", "grad_norm > 1e9", "loss > 1e9")) as rows:
        for bad in (False, True, False):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            scaler.scale(loss).backward()
            expected = norm_of(p.grad for p in model.parameters()) / scaler.get_scale()
            if bad:
                model[0].weight.grad[0, 0] = math.inf
            scaler.step(optimizer)
            scaler.update()
    assert [row["Skipped"] for row in rows] == ["0", "1", "0"]
    assert float(rows[2]["Grad Norm"]) == near(expected)
    assert float(rows[2]["Loss"]) == near(loss.item())
    assert [row["Trigger"] for row in rows] == ["", "", ""]


def test_gradients_of_all_kinds_have_norms(tmp_path: Path) -> None:
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    with watched(tmp_path) as rows:
        table(torch.tensor([1, 1, 3])).sum().backward()
        optimizer.step()
    assert float(rows[0]["Grad Norm"]) == near(math.sqrt(4 * 4 + 4))
    tensors = [
        torch.full((65,), 6e4, dtype=torch.float16),
        torch.ones(4, dtype=torch.float64),
        torch.full((2,), 3 + 4j),
        torch.ones(9, dtype=torch.bfloat16),
        torch.empty(0),
        torch.full((4,), 2, dtype=torch.int8),
    ]
    found = [norm.item() for norm in norms_of([readable(each) for each in tensors])]
    assert found == [near(6e4 * math.sqrt(65)), 2.0, near(5 * math.sqrt(2)), 3.0, 0.0, 4.0]


def test_accumulation_is_one_step_with_the_mean_of_its_losses(tmp_path: Path, late: bool) -> None:
    model = model_of(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    losses = []
    with watched(tmp_path) as rows:
        for _ in range(2):
            optimizer.zero_grad()
            for part in range(4):
                loss = model(torch.full((3, 2), float(part))).square()
                losses.append(loss.mean().item())
                loss.backward(torch.ones_like(loss))
            optimizer.step()
    assert [float(row["Loss"]) for row in rows] == [near(sum(losses[:4]) / 4)] * 2


def test_backward_passes_that_fail_or_are_complex_leave_the_watch_alone(tmp_path: Path) -> None:
    model = model_of(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watched(tmp_path) as rows:
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 2)).sum()
            with pytest.raises(TypeError):
                torch.autograd.backward(None)
            with pytest.raises(RuntimeError):
                torch.autograd.backward(torch.tensor(1e9))
            torch.view_as_complex(torch.stack([loss, loss])).backward(
                torch.tensor(0j), retain_graph=True
            )
            torch.autograd.backward([loss, loss * 2])
            optimizer.step()
    assert [float(row["Loss"]) for row in rows] == [near(loss.item())] * 2


def test_a_captured_step_has_the_records_that_it_has_without_a_watch(tmp_path: Path) -> None:
    def train(path: Path, **settings: Any) -> str:
        model = model_of(4, 8, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with Capture(path, steps=1, stacks=False, framework="pytorch", **settings):
            for _ in range(3):
                optimizer.zero_grad()
                functional.mse_loss(model(torch.ones(3, 4)), torch.ones(3, 2)).backward()
                clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
        (dump,) = path.glob("step1/*/dump.json")
        return dump.read_text().replace(str(path), "")

    assert train(tmp_path / "watched", watch=True) == train(tmp_path / "plain")


def test_a_new_optimizer_takes_the_parameters_of_the_one_before(tmp_path: Path) -> None:
    model = model_of(2, 2)
    kept = []
    with watched(tmp_path) as rows:
        for _ in range(2):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            kept.append(optimizer)
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.step()
    assert {row["Grad Norm"] for row in rows} == {rows[0]["Grad Norm"]}
    assert {row["Param Norm"] for row in rows} == {rows[0]["Param Norm"]}


@pytest.mark.parametrize("is_kept", [True, False])
def test_rows_go_on_with_the_optimizer_of_the_next_phase(tmp_path: Path, is_kept: bool) -> None:
    models, kept = [model_of(2, 2), model_of(2, 2)], []
    with watched(tmp_path) as rows:
        for model in models:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            kept += [optimizer] if is_kept else []
            for step in range(60):
                optimizer.zero_grad()
                (model(torch.ones(1, 2)).sum() * (step + 1)).backward()
                optimizer.step()
            del optimizer
    # One that still is might come back: until it is known not to, there is no row.
    assert len(rows) == (60 + 11 if is_kept else 120)
    assert float(rows[-1]["Grad Norm"]) > float(rows[-2]["Grad Norm"]) > 0


def test_an_optimizer_that_steps_more_often_than_the_first_ends_no_step(tmp_path: Path) -> None:
    model = model_of(2, 2)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.0) for _ in range(2))
    with watched(tmp_path) as rows:
        for step in range(200):
            model(torch.ones(1, 2)).sum().backward()
            (first if step % 20 == 0 else second).step()
    assert len(rows) == 10


def test_modules_are_told_apart_as_deep_as_columns_allow() -> None:
    deep = [f"layers.{n}.{part}.weight" for n in range(4) for part in ("attn", "mlp")]
    assert {*module_groups(["embed.weight", *deep]).values()} == {
        "embed",
        *(f"layers.{n}.{part}" for n in range(4) for part in ("attn", "mlp")),
    }
    wide = [f"layers.{n}.{part}.weight" for n in range(32) for part in ("attn", "mlp")]
    assert {*module_groups(["embed.weight", *wide, "scale"]).values()} == {
        "embed",
        "layers",
        "(model)",
    }
    flat = list(dict.fromkeys(module_groups([f"{n}.weight" for n in range(40)]).values()))
    assert flat[0] == "0..2"
    assert flat[-1] == "39..39"
    assert len(flat) == 14
    assert module_groups([]) == {}
    wrapped = ["module.a.weight", "module._fsdp_wrapped_module.b._orig_mod.c.weight", "module.bias"]
    assert [*module_groups(wrapped).values()] == ["a", "b.c", "(model)"]
    assert {*module_groups(["a.weight", "b.c.weight"], 1).values()} == {"a..b"}
