"""The expressions of `-k`, which name the calls to check as pytest's name tests.

Comes in: a text such as `matmul and not (backward or Tensor.)`. Goes out: a `Keyword` that says
whether a call's name fits. Called by `replay.plan.selection`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from ray_precheck.errors import UsageError

Fits = Callable[[str], bool]

_GRAMMAR = (
    "words joined by and, or, not and parentheses are expected, as in 'matmul and not Tensor.'"
)
_TOKEN = re.compile(r"\s*(?:([()])|([^\s()]+))")
_OPERATORS = frozenset(["and", "or", "not", "(", ")"])
# As deep as Python's own expressions may be nested, and far from its recursion limit.
_MOST_TOKENS = 200


@dataclass(frozen=True, slots=True)
class Keyword:
    """An expression of `-k`: its text, its words, and the function that decides whether a name fits.

    A word fits a name that contains it; small and capital letters are alike.
    """

    text: str
    words: tuple[str, ...]
    fits: Fits


def parse_keyword(text: str) -> Keyword:
    """Return the expression that a text of `-k` holds.

    Raises:
        UsageError: the text is empty, a parenthesis is open, or a word is missing or too many.
    """
    tokens = [match[1] or match[2] for match in _TOKEN.finditer(text.rstrip())]
    if not tokens:
        raise UsageError(f"-k {text!r} is empty; {_GRAMMAR}")
    if len(tokens) > _MOST_TOKENS:
        raise UsageError(f"-k has {len(tokens)} words; at most {_MOST_TOKENS} are read")
    parser = _Parser(text, tokens)
    fits = parser.expression()
    if parser.tokens:
        raise parser.wrong(f"{parser.tokens[0]!r} stands where 'and' or 'or' is expected")
    words = tuple(token.lower() for token in tokens if token not in _OPERATORS)
    return Keyword(text, words, fits)


class _Parser:
    """Takes tokens from the front, one function for each level: or, and, not, word."""

    def __init__(self, text: str, tokens: list[str]) -> None:
        self._text = text
        self.tokens = list(tokens)

    def wrong(self, why: str) -> UsageError:
        return UsageError(f"-k {self._text!r}: {why}; {_GRAMMAR}")

    def expression(self) -> Fits:
        parts = [self._conjunction()]
        while self._takes("or"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else lambda name: any(fits(name) for fits in parts)

    def _conjunction(self) -> Fits:
        parts = [self._negation()]
        while self._takes("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else lambda name: all(fits(name) for fits in parts)

    def _negation(self) -> Fits:
        if self._takes("not"):
            inner = self._negation()
            return lambda name: not inner(name)
        if self._takes("("):
            inner = self.expression()
            if not self._takes(")"):
                raise self.wrong("a parenthesis is not closed")
            return inner
        return self._word()

    def _word(self) -> Fits:
        if not self.tokens:
            raise self.wrong("it ends where a word is expected")
        word = self.tokens.pop(0)
        if word in _OPERATORS:
            raise self.wrong(f"{word!r} stands where a word is expected")
        low = word.lower()
        return lambda name: low in name.lower()

    def _takes(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False
