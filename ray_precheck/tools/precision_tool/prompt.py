"""The prompt `PrecisionTool > `, and its words without the prompt.

Comes in: the words of a command line. Goes out: an exit code. Called by `__main__`. The words are those of
`ray-precheck inspect`; a line that is none is a shell command, as in precision_tool. The capture is
`precision_data` in the current folder (DATA_ROOT_DIR); it is compared with that of the CPU in it.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ray_precheck.commands.inspect.answers import as_json, as_text
from ray_precheck.commands.inspect.session import InspectSession
from ray_precheck.commands.inspect.shell import Shell
from ray_precheck.commands.inspect.words import TABLE, answer_of, run_shell
from ray_precheck.foreign import printable
from ray_precheck.options.commands import PASSED
from ray_precheck.tools.precision_tool.settings import ToolSettings, read_settings

PROMPT = "PrecisionTool > "
# The folders of the CPU's tensors, in the guide's layout and that of v0.1.11.
_CPU_FOLDERS = (Path("dump", "cpu"), Path("tf", "dump"))
_NPU_FOLDERS = (Path("dump"), Path("npu"), Path("graph"), Path("overflow"))


def session_of(settings: ToolSettings) -> InspectSession:
    """Return a session over the folder of the settings, which also say where CANN's tools are that decode."""
    os.environ.setdefault("CMD_ROOT_PATH", settings.cmd_root_path)
    root = Path(settings.data_root_dir)
    cpu = next((root / each for each in _CPU_FOLDERS if _has_entries(root / each)), None)
    is_there = any((root / each).is_dir() for each in _NPU_FOLDERS)
    return InspectSession(
        root if is_there or cpu is None else cpu, cpu, cmd_root=Path(settings.cmd_root_path)
    )


def _has_entries(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def run_prompt() -> int:
    """Open the prompt, and return the exit code.

    Raises:
        UsageError: the settings cannot be read.
    """
    session = session_of(read_settings())
    try:
        return Shell(
            session,
            PROMPT,
            on_unknown=_run_and_tell,
            leaves_on_interrupt=True,
            greeting="help lists the words; Ctrl-C or Ctrl-D leaves",
        ).run()
    finally:
        session.close()


def _run_and_tell(line: str) -> None:
    for part in run_shell(line).parts:
        print(part)


def is_word(name: str) -> bool:
    """Return whether a name is a word of the prompt."""
    return name in TABLE


def run_word(words: Sequence[str]) -> int:
    """WordAnswer one word, and return the exit code.

    Raises:
        PrecheckError: what went wrong, as a sentence.
    """
    session = session_of(read_settings())
    try:
        answer, is_json = answer_of(session, words)
    finally:
        session.close()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1 << 16
    text = as_json(answer) if is_json else as_text(answer, width)
    if text:
        print("\n".join(map(printable, text.split("\n"))))
    return PASSED
