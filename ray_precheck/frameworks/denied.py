"""Names that are never called, though the frameworks list them among their operators.

A dump may hold any name: a backend looks up only the names that the framework's own registry lists, but
for those in `operators.refused`. Called by the backends when they resolve a name.
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
