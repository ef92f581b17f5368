"""A YAML file of plain data: mappings with text keys, lists, texts and numbers.

Comes in: the bytes of a file that a user wrote. Goes out: dicts, lists and scalars. Called by
`user_file` and by `commands.compare.pairing`.
"""

from typing import Any

import yaml

from ray_precheck.errors import UsageError


def read_yaml(data: bytes, source: str) -> Any:
    """Return the content of a YAML text; None for an empty text.

    Raises:
        UsageError: it is no YAML, or more than plain data; names `source` and the line.
    """
    try:
        return yaml.load(data, Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise UsageError(f"{source}{where} is no YAML that can be read: {problem}") from None


class _Loader(yaml.SafeLoader):
    """Reads plain data only, without aliases (which can unfold without end) and doubled keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "an alias (*) is not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key not in seen:
                seen.add(key)
                continue
            problem = f"{key!r} stands twice" if isinstance(key, str) else f"{key!r} is no text"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        return super().construct_mapping(node, deep)
