"""Rules of a watch on honest trainings, and on such with a planted jump; in full `scripts.watch.trial`."""

import pytest

pytest.importorskip("torch")
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
