"""Names that are never called, though the frameworks list them among their operators.

Names in a dump are data: only what a framework's own registry lists is looked up, less what
`operators.refused` lists. Called by the backends when they resolve a name.
"""

from ray_precheck.errors import NotCheckable
from ray_precheck.operators.refused import refusal
from ray_precheck.schema.record import ApiName


def require_allowed(name: ApiName, framework: str) -> None:
    """Let pass an API of a framework that may be called.

    Raises:
        NotCheckable: it is refused by name, with the reason.
    """
    reason = refusal(name.type_name, framework)
    if reason:
        raise NotCheckable(f"{name.type_name} is refused: {reason}")
