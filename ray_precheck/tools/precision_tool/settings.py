"""The settings of precision_tool: `precision_tool/config.py` in the current folder.

Comes in: the path of such a file. Goes out: `ToolSettings`. Called by the prompt and the words that run a
command. The file is a program of a user or of a capture: it is parsed, and what is assigned as a literal is
taken; nothing of it is imported or run. An expression, such as the newer tool's
`os.path.join(ROOT_DIR, 'precision_data')`, is none: where it is the tool's own, the default is the same.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ray_precheck.errors import UsageError
from ray_precheck.foreign import read_file, shown

CONFIG = Path("precision_tool", "config.py")
_LARGEST_BYTES = 1 << 20
_LEVELS = ("NOTSET", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "FATAL")
_ROOT, _DATA = "ROOT_DIR", "precision_data"


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """The settings, with the defaults that the guide prints.

    `tf_dump_step` is '0|5|10': the steps that are dumped, "" for all. `cmd_root_path` is the folder below
    which CANN's `atc` and `msaccucmp` are; `data_root_dir` that of dumps and graphs.
    """

    tf_dump_step: str = "0"
    fusion_switch_file: str = "./precision_tool/fusion_switch.cfg"
    cmd_root_path: str = "/usr/local/"
    ascend_log_path: str = "/root/ascend/log/plog/"
    log_level: str = "NOTSET"
    data_root_dir: str = "./precision_data"

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that are dumped; () for all.

        Raises:
            UsageError: it is no list of steps.
        """
        words = [word.strip() for word in self.tf_dump_step.split("|")] if self.tf_dump_step else []
        for word in words:
            if not (word.isascii() and word.isdigit()):
                raise UsageError(
                    f"TF_DUMP_STEP {shown(self.tf_dump_step)} is no list of steps such as '0|5|10'"
                )
        return tuple(map(int, words))


def read_settings(path: Path = CONFIG) -> ToolSettings:
    """Return the settings of a file; the defaults where there is none.

    Raises:
        UsageError: it cannot be read, is no Python, or a setting has no text as its value.
    """
    if not path.exists():
        return ToolSettings()
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageError(f"{path} has more than {_LARGEST_BYTES} bytes; settings are short")
        found = dict(_assigned(ast.parse(read_file(path))))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path} is no Python: {error}") from None
    settings = ToolSettings()
    root = found.get(_ROOT)
    if isinstance(root, str) and root:
        settings = replace(settings, data_root_dir=str(Path(root, _DATA)))
    for each in fields(ToolSettings):
        name = each.name.upper()
        if name in found:
            settings = replace(settings, **{each.name: _text(path, name, found[name])})
    if settings.log_level not in _LEVELS:
        raise UsageError(
            f"LOG_LEVEL {shown(settings.log_level)} of {path} is unknown; expected one of:"
            f" {', '.join(_LEVELS)}"
        )
    _ = settings.steps
    return settings


def _assigned(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names that a module assigns literals to."""
    for statement in tree.body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        for target in targets:
            if isinstance(target, ast.Name):
                try:
                    yield target.id, ast.literal_eval(statement.value)  # type: ignore[attr-defined]
                except (ValueError, TypeError):  # an expression
                    continue


def _text(path: Path, name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise UsageError(f"{name} of {path} is {shown(value)}; a text in quotes is expected")
    return value
