"""The facts about an operator: its names, whether and how it is checked, and by which limits.

Comes in: the name that a user gives, and the framework, if it is given. Goes out: an `Explanation` for
each operator that the name may mean. Called by the command `explain`. No Ray is started and no device is
opened; facts that only a framework could tell are unknown if it is not installed.

Also here: the standards as sentences: the limits of an operator by dtype, and their sources.

Where the bench of an operator comes from, and why an operator has none. Loads torch; where it is not
installed the answer says so.
"""

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_precheck.accuracy.random.bounds import FALSE_ALARM_RATE
from ray_precheck.accuracy.standards.published import (
    METRIC_NAMES,
    level_of,
    published_standard,
    ratio_limits,
)
from ray_precheck.accuracy.thresholds import (
    ABSOLUTE_RTOL,
    ABSOLUTE_SMALL_VALUE_ATOL,
    COSINE_LIMIT,
    MAX_ABS_ERR_LIMIT,
    SMALL_VALUE,
    THOUSANDTH_LIMIT,
    THOUSANDTH_SHARE,
    ULP_MEAN_LIMIT,
    ULP_SHARE_LIMIT,
    ULP_THRESHOLD,
    allowed,
)
from ray_precheck.bench.checkable import changes_its_input, skip_by_name
from ray_precheck.bench.declared import BenchModule, load_declarations
from ray_precheck.check.random.rules import RULES
from ray_precheck.commands.explain.asked import (
    AskedOperator,
    asked_operators,
    has_facts,
    installed_version,
    is_installed,
    require_known,
)
from ray_precheck.errors import NotCheckable
from ray_precheck.inputs.roles.role import Role, Within
from ray_precheck.inputs.roles.rules import RoleRow, Rule
from ray_precheck.inputs.roles.table import rows_about
from ray_precheck.operators.drawing import DRAWING, UNSEEDED, Always, DrawsIf, Unjudged
from ray_precheck.operators.effects import READS_BITS, SIZED_BY_VALUES
from ray_precheck.operators.exact import AMBIGUOUS, Ambiguity, Basis, SignOfSum, ToWhole
from ray_precheck.operators.refused import refusal
from ray_precheck.operators.table import full_name
from ray_precheck.schema.record import ApiName, ApiRecord

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class BenchAnswer:
    """Lines about the bench; `exists` is None where torch is not there to be asked."""

    exists: bool | None
    lines: tuple[str, ...]


def bench_answer(operator: AskedOperator, modules: Sequence[BenchModule]) -> BenchAnswer:
    """Return where the bench of an operator comes from, or why there is none.

    Raises:
        UsageError: a module of a user's cannot be loaded.
    """
    if importlib.util.find_spec("torch") is None:
        return BenchAnswer(None, ("torch, which computes the bench, is not installed here",))
    from ray_precheck.bench.run import Bench, References

    name = api_name(operator)
    where = f"torch {Bench.version} in float64 on the CPU"
    references = References(operator.framework, modules)
    try:
        function = inspect.unwrap(Bench(operator.framework, references).resolve(name))
    except NotCheckable as reason:
        return BenchAnswer(False, (str(reason),))
    origin = references.origin(name)
    if origin:
        return BenchAnswer(True, (f"a user's own: {origin}",))
    rows = references.rows(name)
    if rows:
        return BenchAnswer(True, ("a built-in one, by its formula", *_told(rows)))
    mapped = _rows_of(function)
    if mapped:
        return BenchAnswer(True, (f"{where}, by the arguments", *_told(mapped)))
    itself = " itself" if operator.name.startswith("torch.") else ", a namesake"
    target = _spelled(function, operator)
    return BenchAnswer(True, (f"{where}: {target}{itself}",))


def api_name(operator: AskedOperator) -> ApiName:
    """Return the name of an operator in a dump, as of its first call."""
    prefix, _, api = operator.type_names[0].partition(".")
    return ApiName(prefix, api, 0)


def _rows_of(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the rows that a bench was made of, () where it is torch's function itself."""
    if isinstance(function, functools.partial) and len(function.args) == 2:
        rows = function.args[1]
        return rows if isinstance(rows, tuple) else ()
    return ()


def _told(rows: Sequence[Any]) -> list[str]:
    """Return a line for each overload: its arguments, and the function that takes them."""
    return [f"({_parameters(row)}): {_target(row.target)}" for row in rows]


def _parameters(row: Any) -> str:
    shown = []
    for parameter in row.parameters:
        star = "*" if parameter.variadic else ""
        shown.append(f"{star}{parameter.name}")
    return ", ".join(shown)


def _target(target: str | Callable[..., Any]) -> str:
    if isinstance(target, str):
        return full_name(target, "pytorch")
    module = getattr(target, "__module__", "")
    return f"{module}.{getattr(target, '__qualname__', target)}"


def _spelled(function: Callable[..., Any], operator: AskedOperator) -> str:
    if operator.name.startswith("torch."):
        return operator.name
    name = getattr(function, "__name__", operator.name.rpartition(".")[2])
    if hasattr(function, "__objclass__"):  # a method that is written in C
        return f"torch.Tensor.{name}"
    return f"{getattr(function, '__module__', None) or 'torch'}.{name}"


DTYPES_SHOWN = ("float16", "bfloat16", "float32")
PUBLISHED_SOURCE = (
    "source: msprobe (mindstudio-probe 26.2), api_precision_standard.yaml and standard_config.py"
)


def msprobe_lines() -> Iterator[str]:
    """Yield the limits of the default standard, the same for every operator and dtype."""
    yield (
        f"cosine similarity above {COSINE_LIMIT:g} and largest absolute error below"
        f" {MAX_ABS_ERR_LIMIT:g}, in every dtype"
    )
    yield (
        "source: msprobe (mindstudio-probe 26.2), core/common/const.py, whose limit of the error is 0.001;"
        " the limit of this project is stricter"
    )


def auto_lines(type_name: str, framework: str) -> Iterator[str]:
    """Yield the limits of `auto` by dtype."""
    for dtype in DTYPES_SHOWN:
        rule = allowed(type_name, dtype, framework)
        parts = [
            f"RMSE up to {rule.rmse:g} times and largest error up to {rule.largest:g} times that of the"
            " worst honest implementation",
            f"{rule.units:g} units in the last place are always allowed",
        ]
        if rule.share:
            of = "the output's largest magnitude" if rule.adds else "each element's magnitude"
            parts.append(f"so is {rule.share:.2g} of {of}, which a fast approximation takes")
        parts.append(f"inputs may be off by {rule.input_units:g} units")
        yield f"{dtype}: {'; '.join(parts)}"
    yield "source: ray_precheck/accuracy/VERDICTS.md (honest implementations and planted faults)"


def published_lines(type_name: str, framework: str) -> Iterator[str]:
    """Yield the standard that is published for each direction, with its limits by dtype."""
    directions: dict[str, list[str]] = {}
    for direction in ("forward", "backward"):
        # The lists are of operators: every dtype of these has the same standard.
        name = published_standard(type_name, DTYPES_SHOWN[-1], direction, framework)
        directions.setdefault(name, []).append(direction)
    for name, of in directions.items():
        yield f"{' and '.join(of)}: {name}{_level(name, type_name, framework)}"
        yield from (f"  {line}" for line in _limits(name, type_name, framework))
    yield "integers and booleans: equal, element by element; float8: units in the last place"
    yield PUBLISHED_SOURCE


def _level(name: str, type_name: str, framework: str) -> str:
    return f" {level_of(type_name, framework)}" if name == "benchmark" else ""


def _limits(name: str, type_name: str, framework: str) -> Iterator[str]:
    if name == "benchmark":
        ratios = ratio_limits(level_of(type_name, framework))
        texts = [f"{METRIC_NAMES[metric]} {limit:g}" for metric, limit in ratios.items()]
        yield f"at most these multiples of the error of torch's operator on the CPU: {', '.join(texts)}"
    elif name == "binary":
        yield "equal to the bench as the dtype holds it, element by element"
    elif name == "thousandth":
        yield (
            f"at least {THOUSANDTH_SHARE:.1%} of the elements have a relative error below"
            f" {THOUSANDTH_LIMIT:g}"
        )
    else:
        rows = _of_absolute if name == "absolute" else _of_ulp
        yield from (f"{dtype}: {rows(dtype)}" for dtype in DTYPES_SHOWN)


def _of_absolute(dtype: str) -> str:
    return (
        f"no relative error above {ABSOLUTE_RTOL[dtype]:.3g}; below {SMALL_VALUE[dtype]:.3g} no absolute"
        f" error above {ABSOLUTE_SMALL_VALUE_ATOL[dtype]:.3g}"
    )


def _of_ulp(dtype: str) -> str:
    share = (
        f"at most {ULP_SHARE_LIMIT[dtype]:.1%} of the elements are off by more than"
        f" {ULP_THRESHOLD[dtype]:g} units in the last place"
    )
    mean = ULP_MEAN_LIMIT[dtype]
    return share if mean is None else f"{share}, or the mean error is below {mean:g} units"


_NO_BENCH = (
    f"none: statistics judge it, the same under every standard; a correct generator fails with a chance of at"
    f" most {FALSE_ALARM_RATE:g}"
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The facts about one operator: sections of lines under their headings."""

    operator: AskedOperator
    sections: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def text(self) -> str:
        """The explanation as it is printed."""
        width = max(len(heading) for heading, _ in self.sections)
        lines = [self.operator.name]
        for heading, told in self.sections:
            for position, line in enumerate(told):
                lines.append(f"  {heading if not position else '':{width}}  {line}")
        return "\n".join(lines)


def explain(
    given: str, framework: str = "", modules: Sequence[BenchModule] = ()
) -> list[Explanation]:
    """Return the facts about the operators that a name may mean, one in each framework.

    Raises:
        UsageError: no operator of this name is known; names the nearest operators.
    """
    operators = asked_operators(given, framework, load_declarations(modules))
    answers = {operator: bench_answer(operator, modules) for operator in operators}
    known = [operator for operator in operators if _is_known(operator, answers[operator])]
    require_known(given, operators, known)
    return [_explanation(operator, answers[operator]) for operator in known]


def _is_known(operator: AskedOperator, bench: BenchAnswer) -> bool:
    return bool(bench.exists) or has_facts(operator) or is_installed(operator.name)


def _explanation(operator: AskedOperator, bench: BenchAnswer) -> Explanation:
    type_name, framework = operator.type_names[0], operator.framework
    is_checked, checked = _checked(operator, bench)
    is_random = isinstance(DRAWING.get(operator.name), Always)
    sections: list[tuple[str, Iterable[str]]] = [
        ("in a dump", [f"{' or '.join(operator.type_names)}, framework {framework}"]),
        ("here", [_installed(operator)]),
        ("checked", checked),
    ]
    if is_checked:
        sections += [
            ("bench", [_NO_BENCH] if is_random else bench.lines),
            ("inputs", input_lines(rows_about(api_name(operator), framework))),
            ("outputs", _outputs(operator)),
            ("in place", [_in_place(operator)]),
        ]
    if is_checked and not is_random:
        sections += [
            ("--standard msprobe", msprobe_lines()),
            ("--standard auto", auto_lines(type_name, framework)),
            ("--standard published", published_lines(type_name, framework)),
        ]
    return Explanation(operator, tuple((heading, tuple(told)) for heading, told in sections))


def _installed(operator: AskedOperator) -> str:
    package, version = operator.name.split(".")[0], installed_version(operator)
    if not version:
        return f"{package} is not installed here, so it is unknown whether it has the operator"
    has = "has it" if is_installed(operator.name) else "does not show it under this name"
    return f"{package} {version} {has}"


def _checked(operator: AskedOperator, bench: BenchAnswer) -> tuple[bool, list[str]]:
    """Return whether calls of an operator are checked, and lines that say how or why not."""
    type_name, framework = operator.type_names[0], operator.framework
    reason = skip_by_name(api_name(operator), framework)
    if reason:
        return False, [f"no: {reason}"]
    reason = refusal(type_name, framework)
    if reason:
        return False, [f"no, it is refused: {reason}"]
    drawing = DRAWING.get(operator.name)
    if isinstance(drawing, Unjudged):
        return False, [f"no: {drawing.reason}"]
    if isinstance(drawing, Always):
        return True, [f"yes, by statistics: its output is random{_seeding(operator)}"]
    if bench.exists is False:
        return False, [f"no: {bench.lines[0]}"]
    lines = ["yes, forward and backward, against the bench"]
    if bench.exists is None:
        lines = ["where it has a bench"]
    if isinstance(drawing, DrawsIf):
        lines.append(_dropping(operator, drawing))
    if READS_BITS.get(operator.name):
        lines.append("not where it reads the bits of its input as another dtype")
    return True, lines


def _seeding(operator: AskedOperator) -> str:
    unseeded = UNSEEDED.get(operator.name)
    return "; its draws do not follow the seed" if unseeded else ""


def _dropping(operator: AskedOperator, switch: DrawsIf) -> str:
    """Say when a call drops, and how it is judged then."""
    when = [f"{switch.probability} is not 0"] if switch.probability else []
    when += [f"{switch.training.split('|')[0]} is not False"] if switch.training else []
    how = "it is judged by statistics" if RULES.get(operator.name) else "it is not checked"
    return f"where {' and '.join(when)} it drops at random: then {how}{_seeding(operator)}"


def _outputs(operator: AskedOperator) -> Iterator[str]:
    rule, ambiguity = RULES.get(operator.name), AMBIGUOUS.get(operator.name)
    if rule is not None:
        backward = "its draws" if rule.gradient else "nothing: its gradient is not judged"
        yield f"random: facts and statistics of its distribution; backward by {backward}"
    if ambiguity is not None:
        yield _told_ambiguity(ambiguity)
    if SIZED_BY_VALUES.get(operator.name):
        yield "their shapes depend on the values of the inputs"
    if rule is None and ambiguity is None:
        yield "one right answer, compared element by element"


def _told_ambiguity(ambiguity: Ambiguity) -> str:
    if isinstance(ambiguity, Basis):
        return "right in more than one way: vectors up to a factor of modulus 1, and their order"
    if isinstance(ambiguity, SignOfSum):
        return "right in more than one way: either step where rounding decides the sign of its sum"
    if isinstance(ambiguity, ToWhole):
        return "undefined where integers do not hold the floats that it casts: not compared there"
    return "right in more than one way: of equal values any index counts"


def _in_place(operator: AskedOperator) -> str:
    name = api_name(operator)
    record = ApiRecord(name, (), (), (), framework=operator.framework)
    if changes_its_input(record):
        return "yes: it changes its first argument"
    return "no, unless `inplace` is set"


_OPENINGS = ("Return the rule of ", "Return the role of ")


def input_lines(rows: tuple[RoleRow, ...]) -> Iterator[str]:
    """Yield a line for each argument that is more than numbers of its recorded range."""
    for row in rows:
        for argument, rule in row.rules.items():
            yield f"{argument.replace('|', ' or ')}: {_role_of(rule)}"
    others = "all other tensors" if rows else "all tensors"
    yield f"{others}: numbers of the recorded range, dtype and shape (--distribution says how)"


def _role_of(rule: Rule) -> str:
    maker = getattr(rule, "__qualname__", "").partition(".")[0]
    if maker == "always":
        cells = [cell.cell_contents for cell in getattr(rule, "__closure__", None) or ()]
        return next((_always(cell) for cell in cells if isinstance(cell, Role)), "")
    module = sys.modules[rule.__module__]
    text = " ".join((getattr(module, maker).__doc__ or "").split())
    for opening in _OPENINGS:
        text = text.removeprefix(opening)
    return text.rstrip(".")


def _always(role: Role) -> str:
    if isinstance(role, Within):
        where = ", where the recorded range is unknown" if role.only_unknown else ""
        return f"numbers from {role.low:g} to {role.high:g}{where}"
    text = " ".join((type(role).__doc__ or "").split())
    return (text[:1].lower() + text[1:]).rstrip(".")
