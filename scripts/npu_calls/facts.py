"""The texts about NPUs in our sources: operators of torch_npu, and what is no name of Python.

Comes in: the modules of the package. Goes out: `Fact`s (variables, files, commands, messages), a `Use` for
each operator of torch_npu and each fused one of MindSpore that our tables name, with the signatures of its
bench, and the texts that cannot be classified. Called by the command and by a test. Every text that speaks
of Ascend is looked at; those of our own messages go. The benches stand in `bench.fused.table`; the tables of
facts name operators in texts such as `torch_npu: npu_gelu`.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ray_precheck.operators.table import operators
from scripts.npu_calls.evaluate import OR, Names, Use, value_of
from scripts.npu_calls.explained import FACT, FACT_KINDS, WORD_KIND, WORDS_OF_LIBRARIES, FactKind
from scripts.npu_calls.names import Scopes
from scripts.npu_calls.sources import SourceModule, string_constants

_KEY = re.compile(r"(NPU|Functional)\.(\w+)")
# Where our backends look for them.
_ROOTS = {
    "NPU": ("torch_npu",),
    "Functional": ("mindspore.ops", "mindspore.ops.auto_generate"),
}
_GROUP = re.compile(r"(?m)^[ \w.]*\btorch_npu\b[ \w.]*:")
FUSED = "bench/fused/table.py"


def collect_operators(scopes: Scopes) -> tuple[set[Use], set[tuple[str, str]]]:
    """Return the uses, and the (file, text) of the groups that cannot be read."""
    uses: set[Use] = set()
    unclear: set[tuple[str, str]] = set()
    for module in scopes.sources.modules.values():
        if module.file == FUSED:
            uses |= set(_benches(module, scopes.of_module(module.name)))
            continue
        for text in _groups(module):
            try:
                names = operators(text)
            except ValueError as error:
                unclear.add((module.file, f"a text with operators of torch_npu: {error}"))
                continue
            found = [name for name in names if name.startswith("torch_npu.")]
            uses |= {Use(name, name, module.file, "operator") for name in found}
    return uses, unclear


def _benches(module: SourceModule, names: Names) -> Iterator[Use]:
    """Yield the operators that have a bench, with the signatures that stand beside it."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            match = _KEY.fullmatch(str(getattr(key, "value", "")))
            if match is None or not isinstance(value, ast.Call):
                continue
            texts = [text for each in value.args[1:] for text in value_of(each, names).texts]
            names_of_it = [f"{root}.{match[2]}" for root in _ROOTS[match[1]]]
            shown, name = names_of_it[0], OR.join(names_of_it)
            yield Use(shown, name, module.file, "operator", rows=tuple(sorted(texts)))


def _groups(module: SourceModule) -> Iterator[str]:
    """Yield the texts with groups of operators; those with blank lines are docstrings."""
    for text, _ in string_constants(module.tree):
        if _GROUP.search(text) and "\n\n" not in text.strip():
            yield text


@dataclass(frozen=True, slots=True, order=True)
class Fact:
    """A text, what it is, the file that has it, and what is sought for it in the wheels ("": nothing)."""

    text: str
    what: str
    where: str
    sought: str = ""
    is_pattern: bool = False


def collect_facts(scopes: Scopes) -> tuple[set[Fact], set[tuple[str, str]]]:
    """Return the facts, and the (file, text) of those that no kind describes."""
    sources = scopes.sources
    facts: set[Fact] = set()
    unclear: set[tuple[str, str]] = set()
    for module in sources.modules.values():
        for text in _texts(module):
            kind = next((kind for kind in FACT_KINDS if kind.pattern.fullmatch(text)), None)
            if kind is None:
                unclear.add((module.file, f"the text {text!r} speaks of an NPU"))
            elif kind.what:
                facts.add(_fact(kind, text, module.file))
    for name, constant in WORDS_OF_LIBRARIES.items():
        words = scopes.of_module(name)[constant].texts if name in sources.modules else ()
        facts |= {_fact(WORD_KIND, word, sources.modules[name].file) for word in words}
    return facts, unclear


def _fact(kind: FactKind, text: str, where: str) -> Fact:
    text = text.strip('"')
    return Fact(text, kind.what, where, kind.sought.replace("{}", text), kind.files)


def _texts(module: SourceModule) -> Iterator[str]:
    """Yield the texts about NPUs in a module, but docstrings; of an f-string, its parts."""
    docstrings = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
    for text, number in string_constants(module.tree):
        if number not in docstrings and FACT.search(text):
            yield text
