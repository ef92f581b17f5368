"""Which calls of a dump a run is about: `-k`, and the white and black list of msprobe's config.json.

Comes in: a `RunConfig` and the calls of a dump. Goes out: the calls that are selected; the run
knows nothing of the others. A name that was asked for and fits no call is an error that lists the
nearest names. Called by the session once the dump is open.

Also here: the expressions of `-k`, which name the calls to check as pytest's name tests.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ray_precheck.accuracy.standards.base import Standard
from ray_precheck.accuracy.standards.user_file import UserStandard
from ray_precheck.dump.parse import Dump, DumpCall
from ray_precheck.errors import UsageError
from ray_precheck.replay.config import EVERY_CALL, RunConfig

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


_NEAREST = 5
_LIKENESS = 0.5
_MOST_COMPARED = 5000


@dataclass(frozen=True, slots=True)
class Selection:
    """The calls that a run is about: those that fit one of the `keywords`, whose API is in the
    `white` list and not in the `black` one. An empty tuple or list leaves nothing out.

    The lists have names of APIs without prefix and number (`conv2d`, `linalg.inv`), as msprobe's
    have, or with their prefix (`Tensor.add`). A name that is in both lists is left out. `calls` are
    whole names of single calls.
    """

    keywords: tuple[Keyword, ...] = ()
    white: frozenset[str] = frozenset()
    black: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The selection in the settings of a run: the same text selects the same calls."""
        parts = [f"-k {keyword.text!r}" for keyword in self.keywords]
        lists = (("white_list", self.white), ("black_list", self.black), ("calls", self.calls))
        for name, names in lists:
            if names:
                parts.append(f"{name} {', '.join(sorted(names))}")
        return "; ".join(parts) or EVERY_CALL

    def select(self, calls: Sequence[DumpCall]) -> list[DumpCall]:
        """Return the calls that are selected, in their order."""
        listed: dict[str, bool] = {}
        chosen = []
        for call in calls:
            kind = call.name.rpartition(".")[0]
            if kind not in listed:
                listed[kind] = self._is_listed(kind)
            if listed[kind] and self._is_named(call.name) and self._is_chosen(call.name):
                chosen.append(call)
        return chosen

    def _is_listed(self, kind: str) -> bool:
        names = {kind, kind.partition(".")[2]}
        return not (self.black & names) and (not self.white or bool(self.white & names))

    def _is_named(self, name: str) -> bool:
        return not self.keywords or any(keyword.fits(name) for keyword in self.keywords)

    def _is_chosen(self, name: str) -> bool:
        return not self.calls or name in self.calls


def selection_of(config: RunConfig) -> Selection:
    """Return the selection of a configuration.

    Raises:
        UsageError: an expression of `-k` is wrong.
    """
    return Selection(
        tuple(parse_keyword(text) for text in config.keywords),
        frozenset(config.white_list),
        frozenset(config.black_list),
        frozenset(config.calls),
    )


class NothingSelected(UsageError):
    """No call of a dump is selected."""


def select_calls(dump: Dump, selection: Selection, standard: Standard | None) -> list[str]:
    """Leave in the dump only the calls that are selected; return warnings.

    With a `standard`, the names in its rules and in the selection must be in the dump.

    Raises:
        UsageError: no call is selected, or a name that the user asked for fits no call.
    """
    warnings = [dump.note] if dump.note else []
    if standard is not None:
        demands = Demands(selection, standard)
        demands.show(dump.calls)
        warnings += demands.require(str(dump.path))
    chosen = selection.select(dump.calls)
    if not chosen:
        raise NothingSelected(
            f"no call of {dump.path} is left to check: {selection.text} leave out all of its"
            f" {len(dump.calls)} calls"
        )
    dump.calls = chosen
    return warnings


class Demands:
    """The names that were asked for and have fitted no call yet: `-k`, the lists, rules of a
    standard.

    `show` takes the calls of one dump after the other; `require` raises for names that fitted none.
    """

    def __init__(self, selection: Selection, standard: Standard) -> None:
        self._keywords = list(selection.keywords)
        self._white = set(selection.white)
        self._has_white = bool(selection.white)
        self._some_white_fits = False
        self._black = set(selection.black)
        rules = standard.rules if isinstance(standard, UserStandard) else ()
        self._rules = [rule for rule in rules if rule.apis]
        self._kinds: dict[str, None] = {}

    @property
    def are_met(self) -> bool:
        """Whether everything has fitted a call."""
        return not (self._keywords or self._white or self._black or self._rules)

    def show(self, calls: Iterable[DumpCall]) -> None:
        """Cross out the names that fit one of these calls."""
        if self.are_met:
            return
        names = [call.name for call in calls]
        self._keywords = [k for k in self._keywords if not any(map(k.fits, names))]
        kinds = {name.rpartition(".")[0] for name in names}
        self._kinds.update(dict.fromkeys(sorted(kinds)))
        bare = kinds | {kind.partition(".")[2] for kind in kinds}
        self._some_white_fits |= bool(self._white & bare)
        self._white -= bare
        self._black -= bare
        self._rules = [rule for rule in self._rules if not any(map(rule.names_api, kinds))]

    def require(self, where: str) -> list[str]:
        """Return warnings about names of the lists that no call has; `where` names the dump.

        Names that msprobe's lists have beside others that fit are no error: one config.json may
        serve several models.

        Raises:
            UsageError: an expression of `-k`, the whole white list or a rule fits no call; lists
                the nearest names.
        """
        for keyword in self._keywords:
            raise UsageError(f"-k {keyword.text!r} fits no call of {where}; {self._hint(keyword)}")
        if self._has_white and not self._some_white_fits:
            names = ", ".join(sorted(self._white))
            raise UsageError(
                f"white_list ({names}) names no API of {where}; {self._near(self._white)}"
            )
        for rule in self._rules:
            raise UsageError(
                f"--standard: the rule for api {', '.join(rule.apis)} fits no API of {where};"
                f" {self._near(rule.apis)}; correct it, or leave the rule out"
            )
        lists = (("white_list", self._white), ("black_list", self._black))
        return [
            f"{name} of {listed!r} fits no API of {where}; {self._near([listed])}"
            for name, names in lists
            for listed in sorted(names)
        ]

    def _hint(self, keyword: Keyword) -> str:
        lost = [
            word
            for word in keyword.words
            if not any(word in f"{kind}.0".lower() for kind in self._kinds)
        ]
        if not lost:
            return "each of its words fits some call, but none fits the whole expression"
        return self._near(lost)

    def _near(self, words: Iterable[str]) -> str:
        kinds = list(self._kinds)
        near = nearest_names(words, kinds)
        if near:
            return f"the nearest names are {', '.join(near)}"
        more = ", ..." if len(kinds) > _NEAREST else ""
        return f"it has {', '.join(kinds[:_NEAREST])}{more}"


def nearest_names(words: Iterable[str], kinds: Sequence[str]) -> list[str]:
    """Return the names of APIs that are spelled most like these words, at most five; [] for none.

    A word may be spelled as a name with its prefix, without, or as the last part of it.
    """
    spelled: dict[str, str] = {}
    for kind in kinds[:_MOST_COMPARED]:
        for name in (kind, kind.partition(".")[2], kind.rpartition(".")[2]):
            spelled.setdefault(name.lower(), kind)
    found: dict[str, None] = {}
    for word in words:
        close = difflib.get_close_matches(word.lower(), list(spelled), _NEAREST, _LIKENESS)
        found.update(dict.fromkeys(spelled[name] for name in close))
    return list(found)[:_NEAREST]
