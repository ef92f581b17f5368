"""The operators of torch_npu and MindSpore's fused ones that our tables name.

Comes in: the modules of the package. Goes out: a `Use` for each operator, with the signatures of its bench.
Called by the command and by a test. The benches stand in `bench.fused.table`; the tables of facts name
operators in texts such as `torch_npu: npu_gelu`.
"""

import ast
import re
from collections.abc import Iterator

from ray_precheck.operators.table import operators
from scripts.npu_calls.evaluate import OR, Names, value_of
from scripts.npu_calls.names import Scopes
from scripts.npu_calls.sources import SourceModule, string_constants
from scripts.npu_calls.uses import Use

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
