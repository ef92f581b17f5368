"""How frameworks spell dtypes.

Comes in: a canonical name and a framework, or a spelling. Goes out: the spelling, or the canonical name.
Called by the modules that write detail rows, and by those that read dumps and detail rows.
"""

from ray_precheck.descriptors.known import find_framework, known_frameworks
from ray_precheck.schema.dtypes import canonical_dtype


def framework_dtype(dtype: str, framework: str) -> str:
    """Return how a framework spells a canonical dtype: `Float32` in MindSpore, `torch.float32`."""
    return find_framework(framework).dtype_name(dtype)


def read_dtype(text: str, framework: str = "") -> str | None:
    """Return the canonical name of a dtype as a framework's dumps spell it, as any of those known
    does where none is named; None where it is unknown."""
    found = canonical_dtype(text)
    if found is None:
        for each in [find_framework(framework)] if framework else known_frameworks():
            found = found or next(
                (own for own, name in each.dtype_names.items() if name == text), None
            )
    return found
