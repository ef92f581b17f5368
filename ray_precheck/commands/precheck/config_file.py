"""msprobe's config.json, as far as a precheck reads it: two lists of APIs, and where error data goes.

Comes in: the path that `-config` names. Goes out: a `CheckerConfig`. Called by `run_ut`.

    {"task": "acc_check", "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"}}

The section is called `acc_check` since msprobe 26 and `run_ut` before; without a section the three
words stand at the top. `task` is ignored, as it is by msprobe.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_precheck.errors import UsageError
from ray_precheck.foreign import from_json, open_file

SECTIONS = ("acc_check", "run_ut")
WORDS = ("white_list", "black_list", "error_data_path")
_LARGEST_BYTES = 16 << 20
_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class CheckerConfig:
    """The settings of a config.json that a precheck uses, and warnings about entries without
    effect.

    `error_data_path` None: the file does not name it.
    """

    white_list: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    error_data_path: Path | None = None
    warnings: tuple[str, ...] = ()


def read_checker_config(path: Path) -> CheckerConfig:
    """Return the settings of a config.json.

    Raises:
        UsageError: the file cannot be read, is no JSON object, or a word has a wrong value.
    """
    content = _mapping(path, "the whole file", _read_json(path))
    section = next((name for name in SECTIONS if name in content), "")
    found = _mapping(path, f"section {section!r}", content[section]) if section else content
    warnings = []
    if section:
        warnings = [
            f"{path}: {word!r} in {section!r} is unknown" for word in found if word not in WORDS
        ]
    elif not any(word in content for word in WORDS):
        warnings = [f"{path} has no section {' or '.join(map(repr, SECTIONS))}: it changes nothing"]
    folder = found.get("error_data_path")
    if folder is not None and (not isinstance(folder, str) or not Path(folder).is_dir()):
        raise _wrong(path, "error_data_path", folder, "a folder that exists")
    return CheckerConfig(
        _names(path, "white_list", found.get("white_list")),
        _names(path, "black_list", found.get("black_list")),
        None if folder is None else Path(folder),
        tuple(warnings),
    )


def _read_json(path: Path) -> Any:
    try:
        with open_file(path) as file:
            data = file.read(_LARGEST_BYTES + 1)
        if len(data) > _LARGEST_BYTES:
            raise UsageError(f"-config: {path} is larger than {_LARGEST_BYTES >> 20} MiB")
        return from_json(data.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"-config: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(
            f"-config: {path} is no JSON: {error}; msprobe's config.json is expected"
        ) from None


def _mapping(path: Path, place: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _wrong(path, place, found, f"an object with {', '.join(WORDS)}")
    return found


def _names(path: Path, word: str, found: Any) -> tuple[str, ...]:
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
        raise _wrong(path, word, found, 'a list of names of APIs such as "conv2d"')
    return tuple(found)


def _wrong(path: Path, place: str, found: Any, expected: str) -> UsageError:
    shown = json.dumps(found)
    shown = shown if len(shown) <= _LONGEST_SHOWN else f"{shown[: _LONGEST_SHOWN - 3]}..."
    return UsageError(f"-config: {path}, {place}: {shown} where {expected} is expected")
