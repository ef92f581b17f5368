"""The facts about an operator: its names, whether and how it is checked, and by which limits.

Comes in: the name that a user gives, and the framework, if it is given. Goes out: an `Explanation` for
each operator that the name may mean. Called by the command `explain`. No Ray is started and no device is
opened; facts that only a framework could tell are unknown if it is not installed.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ray_precheck.accuracy.random.bounds import FALSE_ALARM_RATE
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
from ray_precheck.commands.explain.bench import BenchAnswer, api_name, bench_answer
from ray_precheck.commands.explain.limits import auto_lines, msprobe_lines, published_lines
from ray_precheck.inputs.roles.role import Role, Within
from ray_precheck.inputs.roles.rules import RoleRow, Rule
from ray_precheck.inputs.roles.table import rows_about
from ray_precheck.operators.drawing import DRAWING, UNSEEDED, Always, Switch, Unjudged
from ray_precheck.operators.effects import READS_BITS, SIZED_BY_VALUES
from ray_precheck.operators.exact import AMBIGUOUS, Ambiguity, Basis, SignOfSum, ToWhole
from ray_precheck.operators.refused import refusal
from ray_precheck.schema.record import ApiRecord

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
    if isinstance(drawing, Switch):
        lines.append(_dropping(operator, drawing))
    if READS_BITS.get(operator.name):
        lines.append("not where it reads the bits of its input as another dtype")
    return True, lines


def _seeding(operator: AskedOperator) -> str:
    unseeded = UNSEEDED.get(operator.name)
    return "; its draws do not follow the seed" if unseeded else ""


def _dropping(operator: AskedOperator, switch: Switch) -> str:
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
