"""Which calls and modules of a step are recorded.

Comes in: the `scope`, `list` and `risk_level` of a configuration. Goes out: yes or no for each key. Called
once for each call. The rules are msprobe's: a scope is two names, and what runs from the first to the
second is recorded; a list has parts of names, and `name-regex(...)` for patterns; a module in a list means
all that runs in it; with both, what is listed within the scope. Without them the risk level decides.
"""

import difflib
import re
from collections.abc import Sequence

from ray_precheck.capture.risk import is_risky_enough
from ray_precheck.capture.settings import ALL_RISKS
from ray_precheck.errors import UsageError

_PATTERN = re.compile(r"name-regex\((.*)\)", re.DOTALL)
_NUMBER = re.compile(r"\.\d+(?=\.|$)")
_NEAREST = 3


class Scope:
    """Says of each key in turn whether it is recorded.

    Raises:
        UsageError: a scope is not two names, or a pattern is no regular expression.
    """

    def __init__(
        self, scope: Sequence[str], chosen: Sequence[str], risk_level: str = ALL_RISKS
    ) -> None:
        if scope and len(scope) != 2:
            raise UsageError(
                f"scope has {len(scope)} names; expected two, where recording begins and ends"
            )
        self._scope = tuple(scope)
        self._risk_level = risk_level
        self._patterns: list[re.Pattern[str]] = []
        self._parts: dict[str, str] = {}
        self._inside = False
        self._open: list[str] = []
        self.found: set[str] = set()
        self._names: set[str] = set()
        for entry in chosen:
            self._add(entry.strip())
        self._selects = bool(scope or chosen)
        self._everything = not self._selects and risk_level == ALL_RISKS

    def _add(self, entry: str) -> None:
        match = _PATTERN.fullmatch(entry)
        if match is None:
            self._parts[entry.lower()] = entry
            return
        try:
            self._patterns.append(re.compile(match[1]))
        except re.error as error:
            raise UsageError(f"{entry} in the list is no regular expression: {error}") from None

    def wants(self, key: str) -> bool:
        """Return whether a call is recorded; it is asked in the order of the calls."""
        if self._everything:
            return True
        if not self._selects:
            return is_risky_enough(key, self._risk_level)
        self._names.add(_NUMBER.sub("", key))
        if self._scope and not self._in_scope(key):
            return False
        if not self._parts and not self._patterns:
            return True
        return bool(self._open) or self._listed(key)

    def _in_scope(self, key: str) -> bool:
        begin, end = self._scope
        if begin in key:
            self._inside = True
            self.found.add(begin)
        wanted = self._inside
        if end in key:
            self._inside = False
            self.found.add(end)
        return wanted

    def _listed(self, key: str) -> bool:
        lower = key.lower()
        for part, entry in self._parts.items():
            if part in lower:
                self.found.add(entry)
                return True
        for pattern in self._patterns:
            if pattern.search(key):
                self.found.add(pattern.pattern)
                return True
        return False

    def enter(self, key: str) -> bool:
        """Return whether a module is recorded, whose calls are recorded with it."""
        wanted = self.wants(key)
        if wanted and (self._parts or self._patterns):
            self._open.append(key)
        return wanted

    def leave(self, key: str) -> None:
        """Take note that a module has ended."""
        if self._open and self._open[-1] == key:
            self._open.pop()

    def missing(self) -> dict[str, list[str]]:
        """Return the entries that met nothing so far, each with the nearest names of calls."""
        entries = [*self._scope, *self._parts.values(), *(p.pattern for p in self._patterns)]
        return {entry: self._nearest(entry) for entry in entries if entry not in self.found}

    def _nearest(self, entry: str) -> list[str]:
        """Return names of calls that look like an entry: the whole name, or one of its parts."""
        whole = {name.lower(): name for name in sorted(self._names)}
        parts = {part: name for name, full in whole.items() for part in name.split(".")}
        wanted = _NUMBER.sub("", entry).lower()
        close = difflib.get_close_matches(wanted, [*whole, *parts], _NEAREST, 0.6)
        full = [whole[name] if name in whole else whole[parts[name]] for name in close]
        return list(dict.fromkeys(full))
