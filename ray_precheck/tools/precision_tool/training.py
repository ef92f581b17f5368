"""precision_tool's words that run a training: tf_dump, npu_dump, npu_overflow.

Comes in: a command as one quoted text. Goes out: its exit code. Called by `__main__`, through `WORDS`. The
command runs in a shell, as in precision_tool, with what the guide sets for it:

    tf_dump 'python train.py'         tensors of TensorFlow on the CPU into DATA_ROOT_DIR/dump/cpu
    npu_dump 'sh run.sh p1 p2'        graphs into DATA_ROOT_DIR/graph/all, tensors into dump/npu
    npu_overflow 'python train.py'    overflow detection, into dump/overflow

The last two need an NPU and a script that uses `tf_config`; here they set the environment that it reads.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ray_precheck.capture.launch import end_by, run_program
from ray_precheck.capture.settings import TENSOR
from ray_precheck.capture.tensorflow.dumping import SESSION
from ray_precheck.commands.capture.tensorflow_run import run_with_debugger
from ray_precheck.errors import DumpError, UsageError
from ray_precheck.foreign import printable
from ray_precheck.formats.conversion import CaptureWriter
from ray_precheck.formats.tensorflow import SeenTensor, seen_tensors
from ray_precheck.options.commands import UNUSABLE
from ray_precheck.tools.precision_tool.settings import ToolSettings, read_settings
from ray_precheck.tools.precision_tool.tf_config import (
    DUMP_FLAG,
    GRAPHS,
    NPU,
    OVERFLOW,
    OVERFLOW_FLAG,
    graph_variables,
)

CPU = "dump/cpu"
# The longest name that the file systems of Linux take (NAME_MAX, limits.h), in bytes.
_LONGEST_NAME = 255


def tf_dump(given: Sequence[str]) -> int:
    """Run a command, and write the tensors of its TensorFlow as npy files into dump/cpu.

    Raises:
        UsageError: no command is given, or a folder cannot be used.
    """
    command, settings = _command_of("tf_dump", given), read_settings()
    folder = Path(settings.data_root_dir, CPU)
    _make(folder)
    with tempfile.TemporaryDirectory(prefix="tf_debug_", dir=folder.parent) as events:
        said: list[str] = []
        code = run_with_debugger(_in_shell(command), Path(events), TENSOR, said.append, v1=True)
        written = sum(1 for _ in _written(_sources(Path(events)), folder, settings.steps))
    if not written:
        _tell("; ".join(said))
        return code or UNUSABLE
    _tell(f"{written} tensors in {folder}")
    return code


def npu_dump(given: Sequence[str]) -> int:
    """Run a command with the environment in which an NPU dumps graphs and tensors.

    Raises:
        UsageError: no command is given, or a folder cannot be used.
    """
    settings = read_settings()
    return _on_npu(_command_of("npu_dump", given), settings, NPU, DUMP_FLAG)


def npu_overflow(given: Sequence[str]) -> int:
    """Run a command with the environment in which an NPU detects overflows.

    Raises:
        UsageError: no command is given, or a folder cannot be used.
    """
    settings = read_settings()
    return _on_npu(_command_of("npu_overflow", given), settings, OVERFLOW, OVERFLOW_FLAG)


WORDS: dict[str, Callable[[Sequence[str]], int]] = {
    "tf_dump": tf_dump,
    "npu_dump": npu_dump,
    "npu_overflow": npu_overflow,
}


def _on_npu(command: str, settings: ToolSettings, folder: str, flag: str) -> int:
    for each in (folder, GRAPHS):
        _make(Path(settings.data_root_dir, each))
    variables = {**os.environ, **graph_variables(settings), flag: "True"}
    code = run_program(_in_shell(command), variables)
    target = Path(settings.data_root_dir, folder)
    if not any(target.iterdir()):
        _tell(
            f"nothing was written into {target}: that is done by an NPU, for a script whose configuration is"
            " made by ray_precheck.tools.precision_tool.tf_config"
        )
    return code if code >= 0 else end_by(-code)


def _command_of(word: str, given: Sequence[str]) -> str:
    """Return the command that a word runs: one quoted text with its own parameters."""
    if len(given) != 1 or not given[0].strip():
        raise UsageError(
            f"{word} runs one command in quotes: {word} 'sh run_train.sh param1 param2'"
        )
    return given[0]


def _in_shell(command: str) -> list[str]:
    return [shutil.which("bash") or "/bin/sh", "-c", command]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"DATA_ROOT_DIR: {folder} cannot be made: {error.strerror}; set it in precision_tool/config.py"
        ) from None


def _tell(text: str) -> None:
    print(printable(f"precision_tool: {text}"), file=sys.stderr)


def _sources(events: Path) -> list[Path]:
    """Return the folders of a capture: those of debugging sessions of v1, which were asked for by the script,
    else those of its processes."""
    sessions = sorted(events.rglob(f"{SESSION}*"))
    return sessions or [events, *sorted(events.glob("proc*"))]


def _written(sources: Sequence[Path], folder: Path, steps: Sequence[int]) -> Iterator[Path]:
    """Write tensors as precision_tool names them, `name.slot.microseconds.npy`, and yield the files.

    Of an operation of a graph those runs are written that TF_DUMP_STEP has; all where it is empty.
    """
    for source in sources:
        with tempfile.TemporaryDirectory(prefix="tf_debug_") as values:
            writer = CaptureWriter(Path(values))
            try:
                for each in seen_tensors(source, writer):
                    if each.run is None or not steps or each.run in steps:
                        path = folder / _file_name(each)
                        shutil.move(each.values, path)
                        yield path
            except DumpError as error:
                writer.notes.append(str(error))
            for note in writer.notes:
                _tell(f"warning: {note}")


def _file_name(tensor: SeenTensor) -> str:
    name = tensor.name.replace("/", "_").replace(":", ".").replace("\0", "_")
    end = f".{tensor.time_us}.npy"
    return f"{name[: _LONGEST_NAME - len(end)]}{end}"
