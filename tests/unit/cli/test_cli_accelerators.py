"""An accelerator that its framework cannot use ends the command; the CPU has to be asked for."""

from pathlib import Path

import pytest

from ray_precheck.cli import UNUSABLE, main
from ray_precheck.runtime.places import probe

pytestmark = pytest.mark.unit
DUMP = Path(__file__).resolve().parents[2] / "data" / "torch_cnn" / "dump.json"


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("npu", ["-d", "0"], "2 NPUs, but PyTorch needs torch_npu"),
        ("npu", ["--devices", "all"], "2 NPUs, but PyTorch needs torch_npu"),
        ("npu", ["--device-type", "npu"], "2 NPUs, but PyTorch needs torch_npu"),
        ("gpu", ["-d", "0"], "2 GPUs, but its torch"),
        ("gpu", ["--device-type", "gpu"], "2 GPUs, but its torch"),
    ],
)
def test_it_is_one_sentence_that_names_the_package_and_leaves_no_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    options: list[str],
    said: str,
) -> None:
    for name in ("davinci0", "davinci1", "nvidia0", "nvidia1"):
        (tmp_path / name).touch()
    stems = {"npu": "davinci", "gpu": "nvidia"}
    files = {each: str(tmp_path / f"{stem}[0-9]*") for each, stem in stems.items() if each == kind}
    monkeypatch.setattr(probe, "DEVICE_FILES", {"npu": "/none*", "gpu": "/none*", **files})
    monkeypatch.setattr(probe, "_plugins", lambda sought: [])
    for variable in probe.VISIBLE_DEVICES.values():
        monkeypatch.delenv(variable, raising=False)
    out = tmp_path / "out"
    assert main(["run_ut", "-api_info", str(DUMP), "-o", str(out), *options]) == UNUSABLE
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.endswith("or ask for a run on the CPU with --device-type cpu\n")
    assert printed.count("\n") == 1
    assert not out.exists()
