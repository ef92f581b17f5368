"""What a use of a library is.

Made by the collectors, looked up in the releases, and shown on the page.
"""

import ast
import re
from dataclasses import dataclass

from scripts.npu_calls.evaluate import extended

# The last part of a name that is a class, a number format, or one of Python's own attributes.
_LEAF = re.compile(r"\w*[A-Z\d]\w*|__\w+__|bool_?")


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """One use of a library.

    `name` is dotted, `()` in it the result of a call. `text` is how the docs show the use. `how` is call,
    read, set, text (a name in a string) or operator. Of a call, `positional` counts the arguments, `keywords`
    names them; `is_open` says that it has `*args` or `**kwargs` besides. `where` is the file and the
    function.
    """

    text: str
    name: str
    where: str
    how: str
    positional: int = 0
    keywords: tuple[str, ...] = ()
    is_open: bool = False
    # Of an operator, the signatures of its bench.
    rows: tuple[str, ...] = ()

    @property
    def library(self) -> str:
        """The package that has it."""
        return self.name.split(".")[0]


def use_of(name: str, where: str, how: str, call: ast.Call | None) -> Use:
    """Return the use of a name; of a call, with the shape of its arguments."""
    if call is None:
        return Use(extended(name, " = _") if how == "set" else name, name, where, how)
    starred = [a for a in call.args if isinstance(a, ast.Starred)]
    keywords = tuple(sorted(k.arg for k in call.keywords if k.arg is not None))
    doubled = [k for k in call.keywords if k.arg is None]
    positional = len(call.args) - len(starred)
    shown = ["_"] * positional + ["*_"] * len(starred)
    shown += [f"{keyword}=_" for keyword in keywords] + ["**_"] * len(doubled)
    text = extended(name, f"({', '.join(shown)})")
    return Use(text, name, where, how, positional, keywords, bool(starred or doubled))


def has_parts(name: str) -> bool:
    """Return whether a name may be a module or a function, of which later uses are to be followed."""
    return "()" not in name and not _LEAF.fullmatch(name.rpartition(".")[2])
