"""Which dumps are compared with which, and what is said where none are."""

from pathlib import Path

import pytest

from ray_precheck.commands.compare.options import ComparisonConfig
from ray_precheck.commands.compare.pairing import DumpPair, pair_dumps
from ray_precheck.errors import DumpError, UsageError

pytestmark = pytest.mark.unit


def made(root: Path, *places: str) -> Path:
    """Make a folder with an empty dump.json at each of these places below it."""
    for place in places:
        (root / place).mkdir(parents=True)
        (root / place / "dump.json").touch()
    return root


def paired(
    target: Path, golden: Path, noise: Path | None = None
) -> tuple[list[DumpPair], tuple[str, ...]]:
    return pair_dumps(ComparisonConfig(target=target, golden=golden, noise=noise))


@pytest.mark.parametrize("lacking", ["target", "golden", "noise"])
def test_a_path_that_is_not_there_is_named(tmp_path: Path, lacking: str) -> None:
    sides = {
        name: made(tmp_path / name, "step0", "step1") for name in ("target", "golden", "noise")
    }
    sides[lacking] = tmp_path / "nope"
    with pytest.raises(DumpError, match=r"cannot read the dump .*nope: No such file or directory"):
        paired(**sides)


def test_what_one_side_lacks_is_named(tmp_path: Path) -> None:
    target = made(tmp_path / "target", "step0/rank0", "step0/rank1")
    golden = made(tmp_path / "golden", "step0/rank0", "step0/rank2")
    pairs, without = paired(target, golden)
    assert [pair.label for pair in pairs] == ["step0/rank0"]
    assert without == ("step0/rank1 of the target", "step0/rank2 of the golden side")


def test_a_second_golden_run_of_other_steps_is_not_left_out_in_silence(tmp_path: Path) -> None:
    target, golden = (made(tmp_path / name, "step0", "step1") for name in ("target", "golden"))
    noise = made(tmp_path / "noise", "step1", "step2")
    pairs, _ = paired(target, golden, noise)
    assert [pair.noise for pair in pairs] == [(), (noise / "step1" / "dump.json",)]
    with pytest.raises(UsageError, match="of which none is of the same step and rank"):
        paired(target, golden, made(tmp_path / "other", "step5", "step6"))
