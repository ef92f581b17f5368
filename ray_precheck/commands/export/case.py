"""One call as one portable file: `python FILE [DEVICE]` runs it, with the framework and NumPy alone.

Comes in: the name of a call, and where its dump is. Goes out: a zip archive. Called by the command `export`.
The archive has

    __main__.py   unpacks the others into a temporary folder, and runs the script
    run.py        the script of `repro`: runs the call, compares with the reference, ends with 1 if it fails
    case.json     what a reader wants to know: the call, its record, each file, verdicts, versions
    NAME.json     the same call as `ray-precheck repro` and `ray_precheck.rerun` read it, once it is unpacked
    NAME.*.npy    inputs, incoming gradients, results of the capture ("captured"), of the machine that wrote
    the
                  case, on its CPU ("device"), and in float64 ("bench")

The same call, dump and seed give the same bytes. All of it is text and arrays of numbers, which can be read
before it is run.
"""

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.accuracy.standards.user_file import load_standard
from ray_precheck.bench.declared import read_bench_modules
from ray_precheck.check.checker import Checker
from ray_precheck.check.judge import DirectionCheck, Judged
from ray_precheck.check.options import CheckOptions
from ray_precheck.check.row import save_call
from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.repro.script import repro_script
from ray_precheck.dump.folders import one_dump
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.dump.scan import split_key
from ray_precheck.errors import UsageError
from ray_precheck.foreign import read_file
from ray_precheck.frameworks.base import require_framework
from ray_precheck.frameworks.mindtorch.paths import prefer_native
from ray_precheck.options.commands import installed_versions
from ray_precheck.options.declared import group_of
from ray_precheck.replay.config import RunConfig
from ray_precheck.replay.selected import framework_of, tests_captured
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import TaskPayload

_VERSION = 1
_SCRIPT, _CASE, _MAIN = "run.py", "case.json", "__main__.py"
# The first time that an archive can say: the same case has the same bytes.
_THEN = (1980, 1, 1, 0, 0, 0)
_NEAREST = 3
_MAIN_TEXT = """\
\"\"\"Runs run.py of this archive; arguments are handed on.\"\"\"
import os
import runpy
import sys
import tempfile
import zipfile

with tempfile.TemporaryDirectory() as folder:
    with zipfile.ZipFile(os.path.dirname(os.path.abspath(__file__))) as archive:
        archive.extractall(folder)
    runpy.run_path(os.path.join(folder, "run.py"), run_name="__main__")
"""


def export_case(call: str, config: RunConfig, case: Path) -> str:
    """Write the case of a call, and return what is in it.

    Raises:
        UsageError: the dump has no such call, it cannot be checked, or the file cannot be written.
        PrecheckError: the dump cannot be read, or the framework is not installed.
    """
    prefer_native()
    with open_dump(one_dump(config.dump)) as dump:
        payload = _payload(call, dump)
        framework = framework_of(config, dump)
        tests_dump = tests_captured(config, dump)
        require_framework(framework, device_runs=not tests_dump)
        settings = _settings(config, dump, framework, tests_dump)
    results = _results(payload, settings)
    with tempfile.TemporaryDirectory(prefix="ray-precheck-") as name:
        folder = Path(name, "case")
        try:
            saved = save_call(folder, results.here, settings, results.message)
            captured = _save_captured(Path(name, "captured"), folder, results, settings)
            (folder / _SCRIPT).write_text(repro_script(saved, is_beside=True), encoding="utf-8")
            described = _described(results, settings, config.dump, saved)
            text = json.dumps({**described, "captured": captured}, indent=1)
            (folder / _CASE).write_text(text + "\n", encoding="utf-8")
            (folder / _MAIN).write_text(_MAIN_TEXT, encoding="utf-8")
            _write(folder, case)
        except OSError as error:
            raise UsageError(f"cannot write {case}: {error.strerror or error}") from None
    return _told(payload.name, results, case)


@dataclass(frozen=True, slots=True)
class _Results:
    """What is known of a call: how it is on this machine's CPU, and the judgement of the captured results,
    None where the dump has none."""

    here: Judged
    captured: Judged | None
    message: str

    @property
    def asked(self) -> Judged:
        """The judgement that the user asks about."""
        return self.captured or self.here


def _results(payload: TaskPayload, settings: CheckSettings) -> _Results:
    """Check a call here, and its captured results.

    The script compares gradients in the order in which it makes them, so it needs those of a run. Where the
    call does not run here the captured results stand for it, without gradients.

    Raises:
        UsageError: the call cannot be checked.
    """
    captured, message = None, ""
    if settings.tests_dump:
        result, captured = Checker(settings, "cpu").examine(payload)
        message = result.message
    result, here = Checker(replace(settings, tests_dump=False), "cpu").examine(payload)
    if captured is not None and (here is None or Outcome.RAISED in _outcomes(here)):
        here = replace(captured, backward=DirectionCheck(ruled=Verdict.NONE))
    if here is None:
        raise UsageError(f"{payload.name} cannot be exported: {message or result.message}")
    return _Results(here, captured, message if captured is not None else result.message)


def _outcomes(judged: Judged) -> tuple[Outcome, Outcome]:
    return judged.forward.outcome, judged.backward.outcome


def _save_captured(
    place: Path, folder: Path, results: _Results, settings: CheckSettings
) -> list[dict[str, Any]]:
    """Save the captured results beside the case, and return what case.json says of them."""
    if results.captured is None:
        return []
    saved = save_call(place, results.captured, settings, results.message)
    about, found = _about(saved), []
    for check in (row.check for row in results.captured.rows):
        entry = {"name": check.name, "verdict": check.verdict.value, "message": check.message}
        for side, file in _sides(about, saved.stem, check.name):
            if side == "device":
                name = file.replace(".device.", ".captured.")
                (place / file).rename(folder / name)
                entry |= {"file": name, "dtype": about["dtypes"][file]}
        found.append(entry)
    return found


def _about(saved: Path) -> dict[str, Any]:
    return dict(json.loads(read_file(saved)))


def _payload(call: str, dump: Dump) -> TaskPayload:
    """Return the records of the call that a user has named.

    Raises:
        UsageError: there is none; names calls of the same operator.
    """
    split = split_key(call)
    name = split[0] if split else call
    for each in dump.calls:
        if each.name == name:
            forward, backward = dump.raw(each.forward), dump.raw(each.backward)
            return TaskPayload(0, name, forward, backward)
    kind = name.rstrip("0123456789").rstrip(".")
    like = [each.name for each in dump.calls if each.name.startswith(kind)] or [
        each.name for each in dump.calls
    ]
    more = f", ... ({len(like)})" if len(like) > _NEAREST else ""
    raise UsageError(f"{dump.path} has no call {call!r}; it has {', '.join(like[:_NEAREST])}{more}")


def _settings(config: RunConfig, dump: Dump, framework: str, tests_dump: bool) -> CheckSettings:
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return CheckSettings(
        framework=framework,
        task=dump.task,
        data_folder=dump.data_folder.absolute(),
        options=group_of(config, CheckOptions),
        tests_dump=tests_dump,
        memory_limit_bytes=config.memory_limit_bytes(machine_bytes, 1),
        # The rule that the script has, whatever was asked for elsewhere.
        standard=load_standard("msprobe"),
        bench_modules=read_bench_modules(config.bench_modules),
        knows_layouts=dump.knows_layouts,
        float32=dump.float32,
    )


def _described(
    results: _Results, settings: CheckSettings, dump: Path, saved: Path
) -> dict[str, Any]:
    """Return what case.json says, but for the captured results."""
    about, stem = _about(saved), saved.stem
    incoming = [file for file in about["dtypes"] if file.startswith(f"{stem}.backward.input.")]
    return {
        "version": _VERSION,
        "call": about["api"],
        "framework": settings.framework,
        "dump": dump.name,
        "message": results.message,
        "inputs": {path: _file(about, file) for path, file in about["inputs"].items()},
        "incoming_gradients": [_file(about, file) for file in incoming],
        "outputs": [
            {
                "name": check.name,
                "verdict": check.verdict.value,
                "message": check.message,
                **{side: _file(about, file) for side, file in _sides(about, stem, check.name)},
            }
            for check in (row.check for row in results.here.rows)
        ],
        "record": {
            name: json.loads(about[name]) if about[name] else None
            for name in ("forward", "backward")
        },
        "seed": settings.options.seed,
        "float32": about["float32"],
        "versions": {**installed_versions(), "NumPy": np.__version__},
    }


def _sides(about: dict[str, Any], stem: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield the files of both sides of an output: "device" and "reference"."""
    direction, kind, label = name.split(".")[-3:]
    for side, said in (("device", "device"), ("bench", "reference")):
        file = f"{stem}.{direction}.{kind}.{side}.{label}.npy"
        if file in about["dtypes"]:
            yield said, file


def _file(about: dict[str, Any], file: str) -> dict[str, str]:
    """Return a file and the dtype that its values have; of one that NumPy lacks it holds the bits."""
    return {"file": file, "dtype": about["dtypes"].get(file, "")}


def _write(folder: Path, case: Path) -> None:
    """Write an archive of a folder's files, which is there when it is whole."""
    files = sorted(folder.iterdir(), key=lambda file: (file.name != _MAIN, file.name))
    case.parent.mkdir(parents=True, exist_ok=True)
    part = case.with_name(f".{case.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                info = zipfile.ZipInfo(file.name, _THEN)
                info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(info, read_file(file))
        part.replace(case)
    finally:
        part.unlink(missing_ok=True)


def _told(name: str, results: _Results, case: Path) -> str:
    checks = [row.check for row in results.asked.rows]
    wrong = [check for check in checks if check.verdict is Verdict.ERROR]
    whose = "captured results" if results.captured is not None else "results"
    lines = [
        f"{case}: {name}, {len(checks)} {whose}, {len(wrong)} in error",
        *(f"  {check.name}: {check.message}" for check in wrong),
        f"it needs the framework and NumPy alone: python {case} [DEVICE]",
    ]
    return "\n".join(lines)
