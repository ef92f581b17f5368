"""The texts about NPUs in our sources that are no names of Python: variables, files, commands, messages.

Comes in: the modules of the package. Goes out: `Fact`s, and the texts that cannot be classified. Called by
the command and by a test. Every text that speaks of Ascend is looked at; those of our own messages go.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from scripts.npu_calls.explained import (
    FACT,
    FACT_KINDS,
    WORD_KIND,
    WORDS_OF_LIBRARIES,
    FactKind,
)
from scripts.npu_calls.names import Scopes
from scripts.npu_calls.sources import SourceModule, string_constants


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
