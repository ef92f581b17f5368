"""What a machine says of itself, also where the package is another one or missing."""

import glob
import json
import subprocess
import sys
from pathlib import Path

import pytest

import ray_precheck
from ray_precheck.runtime.places import probe
from ray_precheck.runtime.places.devices import asked_facts

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in probe.VISIBLE_DEVICES.values():
        monkeypatch.delenv(variable, raising=False)


def test_device_files_are_counted_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(pattern: str) -> list[str]:
        count = 8 if "davinci" in pattern else 2
        return [pattern.replace("[0-9]*", str(i)) for i in range(count)]

    monkeypatch.setattr(glob, "glob", files)
    assert probe.probe_machine()["files"] == {"npu": 8, "gpu": 2}


def test_only_variables_that_are_set_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe.probe_machine()["variables"] == {}
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    assert probe.probe_machine()["variables"] == {"npu": ""}


def test_versions_are_those_of_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    npu, gpu = tmp_path / "version.info", tmp_path / "version"
    npu.write_text("Version=24.1.rc2\nascendhal_version=7.35.23\n")
    gpu.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n")
    files = zip((npu, gpu), probe.DRIVERS.items(), strict=True)
    monkeypatch.setattr(
        probe, "DRIVERS", {name: (str(path), pattern) for path, (name, (_, pattern)) in files}
    )
    asked: probe.AskedFacts = {"distributions": ["numpy", "no-such-framework"], "plugins": {}}
    versions = probe.probe_machine(asked)["versions"]
    assert versions.pop("python") == sys.version.split()[0]
    assert versions.pop("numpy").count(".") == 2
    assert versions == {
        "ray_precheck": ray_precheck.__version__,
        "NPU driver": "24.1.rc2",
        "GPU driver": "535.104.05",
    }


def test_a_driver_that_does_not_say_its_version_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "version").write_text("?")
    monkeypatch.setattr(probe, "DRIVERS", {"NPU driver": (str(tmp_path / "version"), "v(.)")})
    assert probe.probe_machine()["versions"]["NPU driver"] == "unknown"


def test_the_nvidia_open_driver_is_read() -> None:
    import re

    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build"
    found = re.search(probe.DRIVERS["GPU driver"][1], text)
    assert found is not None
    assert found[1] == "550.54.15"


@pytest.mark.parametrize(
    ("content", "version"), [('__version__ = "0.0.9"', "0.0.9"), ("", "unknown")]
)
def test_the_package_is_the_one_that_would_be_imported_and_is_not_run(
    tmp_path: Path, content: str, version: str
) -> None:
    package = tmp_path / "ray_precheck"
    package.mkdir()
    (package / "__init__.py").write_text(f"raise SystemExit\n{content}\n")
    assert probed_alone(tmp_path) == version


def test_a_machine_without_the_package_says_nothing_of_it(tmp_path: Path) -> None:
    assert probed_alone(tmp_path) is None


def probed_alone(folder: Path) -> str | None:
    """The version that the probe finds where only this folder and the standard library are."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{Path(probe.__file__).read_text()}"
    code = code.replace("from __future__ import annotations\n", "")
    code += "\nimport json; print(json.dumps(probe_machine()))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    found: str | None = json.loads(done.stdout)["versions"].get("ray_precheck")
    return found


def test_devices_are_named_by_what_the_system_says_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Fast CPU @ 2 GHz\n")
    for number, model in enumerate(("NVIDIA H200", "NVIDIA H200", "NVIDIA L4")):
        (tmp_path / f"gpu{number}").write_text(f"Model: \t\t {model}\nIRQ: 1\n")
    for number, (vendor, device) in enumerate(
        [("0x19e5", "0xd802"), ("0x19e5", "0xffff"), ("0x8086", "0xd802")]
    ):
        (tmp_path / f"pci{number}").mkdir()
        (tmp_path / f"pci{number}" / "vendor").write_text(f"{vendor}\n")
        (tmp_path / f"pci{number}" / "device").write_text(f"{device}\n")
    files = {"cpu": "cpuinfo", "gpu": "gpu?"}
    monkeypatch.setattr(
        probe,
        "NAME_FILES",
        {k: (str(tmp_path / files[k]), probe.NAME_FILES[k][1]) for k in files},
    )
    monkeypatch.setattr(probe, "PCI_DEVICES", str(tmp_path / "pci?"))
    assert probe.probe_machine()["names"] == {
        "cpu": "Fast CPU @ 2 GHz",
        "gpu": "NVIDIA H200, NVIDIA L4",
        "npu": "Ascend 910B",
    }


@pytest.mark.parametrize(
    ("files", "plugins"),
    [
        ({"torch/version.py": "cuda: Optional[str] = None\nhip: Optional[str] = None\n"}, []),
        ({"torch/version.py": "cuda: Optional[str] = '12.6'\n"}, ["pytorch:gpu"]),
        ({"torch/version.py": "cuda = None\nhip = '6.2'\n"}, ["pytorch:gpu"]),
        ({"torch/version.py": "cuda = None\n", "torch_npu/x.py": ""}, ["pytorch:npu"]),
        ({"mindspore/lib/plugin/libmindspore_cpu.so": ""}, []),
        ({"mindspore/lib/plugin/libmindspore_ascend.so.2": ""}, ["mindspore:npu"]),
    ],
)
def test_what_a_framework_can_use_is_read_from_its_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], plugins: list[str]
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (tmp_path / name.split("/")[0] / "__init__.py").write_text("raise ImportError")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("torch", "torch_npu", "mindspore"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert probe.probe_machine(asked_facts())["plugins"] == plugins


def test_npus_whose_files_are_not_shown_are_counted_by_their_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "npu-smi"
    tool.write_text("#!/bin/sh\necho '        Total Count                    : 8'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setitem(probe.DEVICE_FILES, "npu", str(tmp_path / "davinci[0-9]*"))
    assert probe.probe_machine()["files"]["npu"] == 8
    (tmp_path / "davinci3").touch()
    assert probe.probe_machine()["files"]["npu"] == 1
