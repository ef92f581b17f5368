"""Plants a mutant: in a file, and in the functions of a process that has loaded the file already.

Called by `main` and `session`. To give the functions new code takes no time, to load all tests anew
takes seconds.
"""

import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

_writes = 0


def write(path: Path, text: str) -> None:
    """Write a module so that Python sees that it is another one, also within a second."""
    global _writes
    _writes += 1
    path.write_text(text, "utf-8")
    os.utime(path, (_writes, _writes))


class Planter:
    """Knows the functions that come from the files of a folder, as they are when it is made."""

    def __init__(self, folder: Path) -> None:
        self._of_file: dict[str, list[FunctionType]] = {}
        for function in gc.get_objects():
            if type(function) is FunctionType:
                path = function.__code__.co_filename
                if path.startswith(f"{folder}/"):
                    self._of_file.setdefault(path, []).append(function)

    def plant(self, path: Path, text: str) -> bool:
        """Give the functions of a file the code that they have in another text of it.

        Returns whether the change is in effect: a function has changed, or the file is not loaded yet.
        """
        functions = self._of_file.get(str(path))
        if functions is None:
            return True
        codes = list(_codes(compile(text, str(path), "exec", dont_inherit=True)))
        # Two lambdas of one line cannot be told apart.
        counts = Counter(_key(code) for code in codes)
        new = {_key(code): code for code in codes if counts[_key(code)] == 1}
        changed = 0
        for function in functions:
            code = new.get(_key(function.__code__))
            if code is not None and code != function.__code__:
                function.__code__ = code
                changed += 1
        return changed > 0


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)
