"""Rules of a watch on honest trainings, and on such with a planted jump; in full `scripts.watch.trial`."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from scripts.watch import planted
from scripts.watch.asked import fired, found_jumps, steps_of
from scripts.watch.trainings import JUMPS, TRAININGS
from scripts.watch.trial import RULES, found_jump, watched

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize("name", TRAININGS)
def test_no_rule_fires_in_honest_steps(name: str) -> None:
    fired = watched(name, 250, RULES)
    assert len(fired) == 250
    assert not set.union(*fired)


@pytest.mark.parametrize(
    ("name", "jump", "rule"),
    [
        ("convolutions, Adadelta, dropout, wrong labels", JUMPS[0], RULES[1]),
        ("an autoencoder, Adam", JUMPS[1], RULES[0]),
        ("an autoencoder, Adam", JUMPS[1], RULES[2]),
        ("an LSTM, SGD, clipped", JUMPS[4], RULES[0]),
        ("an LSTM, SGD, clipped", JUMPS[5], RULES[3]),
    ],
)
def test_a_planted_jump_is_found(name: str, jump: str, rule: str) -> None:
    assert rule in found_jump(name, jump, RULES)


def test_no_rule_fires_where_losses_are_negative() -> None:
    rows: list[dict[str, float | None]] = [{"Loss": -1 - 0.1 * math.sin(n)} for n in range(600)]
    assert not set.union(*fired(rows, RULES))


PROGRAM = """
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
while True:
    inputs = torch.randn(16, 4)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(net(inputs), inputs[:, :2]).backward()
    optimizer.step()
    schedule.step()
"""


def test_jumps_are_planted_in_a_program_as_it_is_and_undone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    capture = (sys.executable, "-m", "ray_precheck", "capture", "--watch", "-o", str(tmp_path))
    script = (sys.executable, planted.__file__, "planted.tsv", "130", "train.py")
    root = Path(planted.__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    subprocess.run([*capture, "--", *script], cwd=tmp_path, env=env, check=True, timeout=120)
    rows = steps_of(tmp_path)
    found = found_jumps(rows, (tmp_path / "planted.tsv").read_text().splitlines(), RULES)
    assert RULES[3] in found[planted.ZEROED]
    assert found[planted.SCALED] == {RULES[0]}
    assert {RULES[0], RULES[1], RULES[2]} <= found[planted.NAN]
    assert len(rows) == 130 + 4 * len(planted.JUMPS)
    # Behind each jump the parameters are those from before it.
    norms = [row["Param Norm"] for _, row in rows]
    assert norms[134] == norms[138] == norms[142]
    assert norms[141] != pytest.approx(norms[142], rel=1e-3)
