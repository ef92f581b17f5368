"""The command capture: runs a script, and writes what its operators got and gave.

Comes in: the options of the command, and the words of another one. Goes out: its exit code, which is that
of the script. Called through the parser.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_precheck.capture.settings import CaptureSettings, capture_settings
from ray_precheck.errors import UsageError
from ray_precheck.options.commands import (
    DEBUG,
    IN_ERROR,
    PASSED,
    UNUSABLE,
    Command,
    Invocation,
    given_values,
    note,
)
from ray_precheck.options.declared import OneOf, Option, Takes, options_of

_TENSORFLOW = "tensorflow"


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Run the script, or finish the logs of an earlier capture; return the exit code.

    Raises:
        UsageError: an option is wrong, the script is not found, or the folder has other dumps.
    """
    words = list(options.script)
    if words[:1] == ["--"]:
        words.pop(0)
    if options.finish is not None:
        if words:
            raise UsageError(f"--finish runs no script; leave {words[0]} out")
        return _finish(Path(options.finish))
    values = given_values(options, CaptureSettings)
    if "path" not in values and not options.verify:
        raise UsageError("-o DUMP, the folder of the dumps, is missing")
    if not words:
        raise UsageError("the script is missing: ray-precheck capture -o DUMP -- python train.py")
    if options.framework == _TENSORFLOW:
        return _with_debugger(values, words, options.verify)
    if options.verify:
        return _verify(values, words)
    settings = capture_settings(**values)
    _require_usable(settings)
    from ray_precheck.capture.launch import run_captured

    return run_captured(words, settings, lambda text: note(f"capture: {text}"))


def _with_debugger(values: dict[str, Any], words: list[str], is_verified: bool) -> int:
    """Run a script with TensorFlow's own debugger, which knows no other options."""
    from ray_precheck.capture.settings import TENSOR, folder_of
    from ray_precheck.commands.capture.tensorflow_run import run_with_debugger

    others = sorted(set(values) - {"path", "task"})
    if others or is_verified:
        raise UsageError(
            f"--framework tensorflow runs TensorFlow's own debugger, which knows -o and --task; leave"
            f" {', '.join(others) or '--verify'} out"
        )
    return run_with_debugger(
        words,
        folder_of(values["path"]),
        values.get("task", TENSOR),
        lambda text: note(f"capture: {text}"),
    )


def _require_usable(settings: CaptureSettings) -> None:
    """Refuse before the script starts what its processes would refuse."""
    from ray_precheck.capture.recording.scope import Scope
    from ray_precheck.capture.writing.claim import require_own

    Scope(settings.scope, settings.chosen)
    require_own(settings)


def _verify(values: dict[str, Any], words: list[str]) -> int:
    """Run the script with and without capture up to the end of a step, and say whether they differ."""
    from ray_precheck.capture.verifying.runs import verify_script

    if values.get("ranks") is not None:
        raise UsageError(
            "--verify looks at all ranks, which wait for each other; leave --ranks out"
        )
    if values.get("watch"):
        raise UsageError("--verify captures one step; leave --watch out")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ray_precheck_verify_") as folder:
        settings = capture_settings(**{"path": folder, **values})
        _require_usable(settings)
        verdict = verify_script(words, settings, lambda text: note(f"verify: {text}"))
    print(verdict)
    return _CODES[verdict.looking.value]


# By what looking did: nothing, something, unknown.
_CODES = (PASSED, IN_ERROR, UNUSABLE)


def _finish(folder: Path) -> int:
    """Turn the logs in a folder into dump.json, and say what was done."""
    from ray_precheck.capture.writing.finish import finish_folder

    done = finish_folder(folder)
    for each in done:
        cut = f"{each.folder} was cut short: {each.cut_short}"
        print(each.problem or f"{cut}; {each.records} records in dump.json")
    if not done:
        print(f"{folder} has no log: all its dumps are finished")
    return UNUSABLE if any(each.problem for each in done) else PASSED


def _options() -> tuple[Option, ...]:
    declared = tuple(replace(each, required=False) for each in options_of(CaptureSettings))
    return (
        Option(
            ("script",),
            "the command that is run: python train.py, torchrun ..., ./train.sh; after --",
            metavar="-- COMMAND",
            takes=Takes.REST,
        ),
        *declared,
        Option(
            ("--framework",),
            "tensorflow: capture TensorFlow, by its own debugger; without it PyTorch and MindSpore",
            more="With TensorFlow `--task` is `tensor` by default; `statistics` counts NaN and infinities"
            " alone, and there are no other options but `-o`",
            metavar="NAME",
            rule=OneOf((_TENSORFLOW,)),
            section=CaptureSettings.section,
        ),
        Option(
            ("--verify",),
            "run the script up to the end of its first captured step, with and without capture, and say"
            " whether looking changed a bit of it",
            more="The script must fix its seeds. With -o the dump of that step is left there",
            takes=Takes.NOTHING,
            section="whether looking changes something",
        ),
        Option(
            ("--finish",),
            "run nothing: turn the logs that a killed process left in DUMP into dump.json",
            metavar="DUMP",
            section="after a process was killed",
        ),
        DEBUG,
    )


COMMANDS = (
    Command(
        names={"capture": "run a script, and dump what its operators get and give"},
        options=_options(),
        execute=_execute,
        epilog="exit codes: that of the script; 2 wrong usage, or the script is not found; with --verify 0"
        " looking changed nothing, 1 it changed something, 2 nothing can be said",
    ),
)
