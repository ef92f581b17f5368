"""`check` and `why` of `inspect` run the call of a real capture."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_precheck.commands.inspect.session import InspectSession
from ray_precheck.commands.inspect.words import answer_of

pytestmark = pytest.mark.frameworks

_REAL = Path(__file__).parents[1] / "data" / "torch_llm_tensor"
_CALL = "Functional.linear.0"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[InspectSession]:
    shutil.copytree(_REAL, tmp_path / "real")
    opened = InspectSession(tmp_path / "real", None, tmp_path / "state")
    yield opened
    opened.close()


def test_a_call_is_checked_now(session: InspectSession, tmp_path: Path) -> None:
    answer, _ = answer_of(session, ["check", f"{_CALL}.backward"])
    (row,) = answer.data["results"]
    assert row["API Name"] == _CALL
    assert [each["API Name"] for each in answer.data["details"]] == [
        f"{_CALL}.forward.output.0", f"{_CALL}.backward.output.0",
    ]  # fmt: skip
    assert {each["Status"] for each in answer.data["details"]} == {"pass"}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["real"]  # nothing is left behind


def test_the_own_error_is_that_of_the_captured_results(session: InspectSession) -> None:
    import torch

    assert "pass" in answer_of(session, ["why", _CALL])[0].data["own"]
    file = session.capture.side.data_folder / f"{_CALL}.forward.output.0.pt"
    torch.save(torch.load(file) * 1.5, file)
    own = answer_of(session, ["why", _CALL])[0].data["own"]
    assert "error" in own
