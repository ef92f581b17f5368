"""A standard that a user has written down: a YAML file for `--standard`.

Comes in: the path of a file. Goes out: a `Standard` that holds all of it, so that it can be sent to
workers on other machines. Called by the session, before anything is made.

    standard: auto                      # for what no rule names; auto where it is left out
    limits:                             # instead of the published ones, by standard
      ulp: {mean: 128}
    rules:                              # the first that fits counts
      - api: [matmul, "Mint.*norm*"]    # whole names, or their last part; * and ? as in file names
        dtype: float16                  # one or a list; any where it is left out
        direction: backward             # or forward; both where it is left out
        standard: benchmark
        limits: {level: L1, rmse: 3}
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from ray_precheck.accuracy.standards import STANDARD_NAMES
from ray_precheck.accuracy.standards.base import Comparison, Judgement, Standard
from ray_precheck.accuracy.standards.plain_yaml import read_yaml
from ray_precheck.accuracy.thresholds import RATIO_LIMITS
from ray_precheck.errors import UsageError
from ray_precheck.foreign import open_file
from ray_precheck.schema.dtypes import DTYPES, canonical_dtype

DIRECTIONS = ("forward", "backward")
_TOP, _RULE = ("standard", "limits", "rules"), ("api", "dtype", "direction", "standard", "limits")
_LARGEST_BYTES = 1 << 20
# Limits that are no numbers, with their possible values.
_WORDS: dict[str, tuple[str, ...]] = {"level": tuple(RATIO_LIMITS)}


def _direction_of(comparison: Comparison) -> str:
    """Return the direction in a rule's words: what a call changes is changed forward."""
    return "backward" if comparison.direction == "backward" else "forward"


@dataclass(frozen=True, slots=True)
class Rule:
    """Which outputs a standard is for; () is all of them."""

    standard: Standard
    apis: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()

    def fits(self, comparison: Comparison) -> bool:
        """Return whether it is for this output."""
        return (
            self.names_api(comparison.type_name)
            and _is_any(self.dtypes, comparison.dtype)
            and _is_any(self.directions, _direction_of(comparison))
        )

    def names_api(self, type_name: str) -> bool:
        """Return whether it is for an API, which is named with its prefix: `Torch.linalg.inv`."""
        return _is_any(self.apis, type_name, type_name.rsplit(".", 1)[-1])


def _is_any(patterns: tuple[str, ...], *names: str) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


@dataclass(frozen=True, slots=True)
class UserStandard:
    """The rules of a file, the last one for outputs that fit no other; `digest` is of its content."""

    rules: tuple[Rule, ...]
    digest: str

    @property
    def name(self) -> str:
        """The word for it in the settings of a run: the same for the same content."""
        return f"file {self.digest}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings of all standards that it may choose."""
        headings = (heading for rule in self.rules for heading in rule.standard.columns)
        return tuple(dict.fromkeys(headings))

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the standard of the first rule that fits."""
        chosen = next(rule.standard for rule in self.rules if rule.fits(comparison))
        judgement = chosen.judge(comparison)
        if any(heading == "Standard" for heading, _ in judgement.columns):
            return judgement
        columns = (("Standard", chosen.name), *judgement.columns)
        return Judgement(judgement.verdict, judgement.message, columns)


def load_standard(given: str) -> Standard:
    """Return the standard of `--standard`: by its name, or from a YAML file.

    Raises:
        UsageError: there is no such standard and no such file, or the file is wrong; names the place
            in the file, the text there and the text that is expected.
    """
    if given in STANDARDS:
        return STANDARDS[given]()
    path = Path(given)
    try:
        with open_file(path) as file:
            data = file.read(_LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(
            f"--standard {given!r} is neither a standard nor a file; expected one of:"
            f" {', '.join(STANDARDS)}, or a YAML file"
        ) from None
    except OSError as error:
        raise UsageError(f"--standard: cannot read {given}: {error.strerror}") from None
    if len(data) > _LARGEST_BYTES:
        raise UsageError(f"--standard: {given} is larger than {_LARGEST_BYTES >> 20} MiB")
    return parse_standard(data, given)


def parse_standard(data: bytes, source: str) -> UserStandard:
    """Return the standard that the bytes of a YAML file describe; `source` is its name for people.

    Raises:
        UsageError: as `load_standard`.
    """
    content = _Place(source).mapping(read_yaml(data, f"--standard: {source}"), _TOP)
    top = _Place(source)
    limits = _limits_by_standard(top.at("limits"), content.get("limits", {}))
    default = _standard(top.at("standard"), content.get("standard", "auto"), limits, {})
    rules = content.get("rules", [])
    if not isinstance(rules, list):
        raise top.at("rules").wrong(rules, "a list of rules")
    read = [_rule(top.at(f"rules[{i}]"), rule, limits) for i, rule in enumerate(rules)]
    used = {default.name, *(rule.standard.name for rule in read)}
    for name in limits:
        if name not in used:
            raise top.at("limits").wrong(name, "a standard that the file uses")
    text = json.dumps(content, sort_keys=True)
    return UserStandard((*read, Rule(default)), hashlib.sha256(text.encode()).hexdigest()[:16])


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a file something stands, for the sentence that says that it is wrong."""

    source: str
    path: str = ""

    def at(self, key: str) -> "_Place":
        return _Place(self.source, f"{self.path}.{key}" if self.path else key)

    def wrong(self, found: Any, expected: str) -> UsageError:
        where = f", {self.path}" if self.path else ""
        shown = repr(found)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return UsageError(f"--standard: {self.source}{where}: {shown} where {expected} is expected")

    def mapping(self, found: Any, words: tuple[str, ...]) -> dict[str, Any]:
        """Return a mapping that has no other keys than these words."""
        if not isinstance(found, dict):
            raise self.wrong(found, f"a mapping of {', '.join(words)}")
        for word in found:
            if word not in words:
                choices = ", ".join(words) if words else "nothing, as there are no limits"
                raise self.wrong(word, f"one of these words: {choices}")
        return found

    def texts(self, found: Any, expected: str) -> tuple[str, ...]:
        """Return one text, or a list of them, as a tuple."""
        items = found if isinstance(found, list) else [found]
        if not items or not all(isinstance(item, str) and item for item in items):
            raise self.wrong(found, expected)
        return tuple(items)


def _limits_by_standard(place: _Place, found: Any) -> dict[str, dict[str, Any]]:
    read = place.mapping(found, tuple(STANDARDS))
    return {name: _limits(place.at(name), name, limits) for name, limits in read.items()}


def _limits(place: _Place, standard: str, found: Any) -> dict[str, Any]:
    """Return the limits of a standard, by the names of its fields."""
    kind = cast("Callable[..., Any]", STANDARDS[standard])
    words = tuple(field.name for field in fields(kind()))
    read = place.mapping(found, words)
    return {word: _limit(place.at(word), word, value) for word, value in read.items()}


def _limit(place: _Place, word: str, value: Any) -> float | str:
    if word in _WORDS:
        if value not in _WORDS[word]:
            raise place.wrong(value, f"one of {', '.join(_WORDS[word])}")
        return str(value)
    try:
        # YAML 1.1 takes 1e-5 for a text, as it has no point.
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not number >= 0:
        raise place.wrong(value, "a number that is 0 or larger")
    return number


def _standard(
    place: _Place, name: Any, limits: Mapping[str, dict[str, Any]], own: dict[str, Any]
) -> Standard:
    if not isinstance(name, str) or name not in STANDARDS:
        raise place.wrong(name, f"one of {', '.join(STANDARDS)}")
    return STANDARDS[name](**{**limits.get(name, {}), **own})


def _rule(place: _Place, found: Any, limits: Mapping[str, dict[str, Any]]) -> Rule:
    read = place.mapping(found, _RULE)
    if "standard" not in read:
        raise place.wrong(read, "a rule with a standard")
    name = read["standard"]
    _standard(place.at("standard"), name, {}, {})
    own = _limits(place.at("limits"), name, read.get("limits", {}))
    apis = place.at("api").texts(read["api"], "a name or a list of names") if "api" in read else ()
    return Rule(
        _standard(place.at("standard"), name, limits, own),
        apis,
        _dtypes(place.at("dtype"), read["dtype"]) if "dtype" in read else (),
        _directions(place.at("direction"), read["direction"]) if "direction" in read else (),
    )


def _dtypes(place: _Place, found: Any) -> tuple[str, ...]:
    dtypes = [canonical_dtype(text) for text in place.texts(found, "a dtype or a list of dtypes")]
    if None in dtypes:
        raise place.wrong(found, f"one or more of {', '.join(DTYPES)}")
    return tuple(filter(None, dtypes))


def _directions(place: _Place, found: Any) -> tuple[str, ...]:
    directions = place.texts(found, "forward or backward")
    if not set(directions) <= set(DIRECTIONS):
        raise place.wrong(found, "forward or backward")
    return directions


def _class_of(place: str) -> Callable[..., Standard]:
    module, _, name = place.partition(":")
    found: Callable[..., Standard] = getattr(import_module(f"{__package__}.{module}"), name)
    return found


STANDARDS = {name: _class_of(place) for name, place in STANDARD_NAMES.items()}
