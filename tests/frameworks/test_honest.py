"""What a capture holds is what an independent recorder saw, and nothing honest is accused: a short form of
`scripts.honest`."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from scripts.honest.child import TASKS, examine_program  # noqa: E402
from scripts.honest.comparison import compare_dump  # noqa: E402
from scripts.honest.recorder import SeenCall  # noqa: E402

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

PROGRAMS = [
    "float16_with_scaler",
    "dcgan",
    "lstm_and_ctc",
    "fourier_operator",
    "serving_with_cache",
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_dump_holds_what_an_independent_recorder_saw(name: str, tmp_path: Path) -> None:
    found: dict[str, Any] = examine_program(name, tmp_path)
    assert [key for key, value in found.items() if key.endswith("bits") and not value] == []
    for task in TASKS:
        part = found[task]
        assert part["wrong"] == []
        assert part["accused"] == []
        assert part["tensors"] > 50
        assert len(part["unseen"]) <= 0.05 * part["records"], part["unseen"]


def test_a_tensor_that_is_another_one_is_named(tmp_path: Path) -> None:
    element = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2]}
    statistics = {"Max": 2.0, "Min": 1.0, "Mean": 1.5, "Norm": 5**0.5}
    forward = {"input_args": [{**element, **statistics}], "input_kwargs": {}, "output": []}
    dump = {"task": "statistics", "data": {"Torch.sin.0.forward": forward}}
    (tmp_path / "dump.json").write_text(json.dumps(dump))
    right, wrong = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1])
    for seen, count in ((right, 0), (wrong, 1)):
        compared = compare_dump(tmp_path / "dump.json", [SeenCall("sin", [seen], [seen])])
        assert (compared.tensors, len(compared.wrong), compared.unseen) == (1, count, [])
