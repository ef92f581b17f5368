"""The rules that the value of an option must keep to.

A `Rule` is told an option and its value, and raises a `UsageError` where the value is wrong. Named by
the options that are declared in this folder.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeAlias

from ray_precheck.errors import UsageError

Rule: TypeAlias = Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words, or several of them; a word with one of the `endings` too.

    `or_else` explains these endings in a message. With `may_be_empty` "" is fine. `all_choices` gives
    all words, where some of them take time to find: it is called for a word that is not among
    `choices`.
    """

    choices: tuple[str, ...]
    endings: tuple[str, ...] = ()
    or_else: str = ""
    may_be_empty: bool = False
    all_choices: Callable[[], tuple[str, ...]] | None = None

    def __call__(self, option: str, value: Any) -> None:
        """Raise where a value is none of the words.

        Raises:
            UsageError: names the option, the value and all words.
        """
        for word in value if isinstance(value, tuple | list) else (value,):
            if word in self.choices or (self.may_be_empty and word == ""):
                continue
            if isinstance(word, str) and word.endswith(self.endings):
                continue
            choices = self.all_choices() if self.all_choices else self.choices
            if word in choices:
                continue
            expected = ", ".join(filter(None, (*choices, self.or_else)))
            raise UsageError(f"{option} {word!r} is unknown; expected one of: {expected}")


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from `least` to `most`; `whole`: a whole number. None stands for the default.

    `above` excludes `least` itself. `what` names the number in a message.
    """

    what: str
    least: float = 0
    most: float = math.inf
    whole: bool = True
    above: bool = False

    def __call__(self, option: str, value: Any) -> None:
        """Require that a value is such a number.

        Raises:
            UsageError: it is not; names the option, the value and the expected numbers.
        """
        if value is None:
            return
        kind_of_number = Integral if self.whole else Real
        if not isinstance(value, bool) and isinstance(value, kind_of_number) and self._holds(value):
            return
        kind = "a whole number" if self.whole else "a finite number"
        least = f"larger than {self.least:g}" if self.above else f"at least {self.least:g}"
        most = "" if math.isinf(self.most) else f" and at most {self.most:g}"
        shown = repr(value) if len(repr(value)) <= _LONGEST_SHOWN else "a longer number"
        raise UsageError(f"{option} {shown} is wrong: {self.what} is {kind} {least}{most}")

    def _holds(self, value: Any) -> bool:
        if isinstance(value, float) and not math.isfinite(value):
            return False
        return (
            bool(value > self.least if self.above else value >= self.least) and value <= self.most
        )


_LONGEST_SHOWN = 40
