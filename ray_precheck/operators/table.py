"""A table of facts about operators: one row claims one fact for the operators of a text.

Comes in: rows, each the text of its operators and the fact. Goes out: `FactTable`, which are looked up by
full name or by the name in a dump. The modules beside this one are such tables; so are the tables of
meanings (`datagen.meaning_table`) and of random distributions (`check.random.rules`).

A text has groups of namespaces and names. The names of a group are in each of its namespaces:

    torch torch.Tensor mindspore.mint: sort argsort
    mindspore.ops: top_k

are the six operators `torch.sort`, `torch.argsort`, ... and `mindspore.ops.top_k`. There is no way to
write a name without its namespace: a namesake in another framework may mean another thing.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from ray_precheck.operators.names import full_names

Fact = TypeVar("Fact")


def operators(text: str) -> tuple[str, ...]:
    """Return the full names of a text of namespaces and names.

    Raises:
        ValueError: a name stands there twice, or before the first namespace.
    """
    found = tuple(_expanded(text))
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise ValueError(f"these operators stand in one row twice: {', '.join(twice)}")
    return found


def _expanded(text: str) -> Iterator[str]:
    """Yield the full names of a text. A line with a colon begins a group."""
    namespaces: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        before, colon, after = line.rpartition(":")
        namespaces = before.split() if colon else namespaces
        if not namespaces:
            raise ValueError(f"no namespace stands before {line.strip()!r}; write torch: sort")
        for name in after.split():
            yield from (f"{namespace}.{name}" for namespace in namespaces)


class FactTable(Generic[Fact]):
    """One fact about each of many operators, by full name.

    Raises:
        ValueError: two rows claim the fact for the same operator; the message names it.
    """

    def __init__(self, title: str, rows: Iterable[tuple[str, Fact]]) -> None:
        self.title = title
        found: dict[str, Fact] = {}
        for text, fact in rows:
            for name in operators(text):
                if name in found:
                    raise ValueError(f"two rows of the table {title!r} claim {name}; keep one")
                found[name] = fact
        self.by_name: Mapping[str, Fact] = found

    def get(self, name: str) -> Fact | None:
        """Return the fact about the operator of a full name, None where there is no row."""
        return self.by_name.get(name)

    def of(self, type_name: str, framework: str = "") -> Fact | None:
        """Return the fact about what a dump calls `Prefix.api`, None where there is no row.

        Where the framework is unknown it is the fact of the first one that has a row.
        """
        for name in full_names(type_name, framework):
            if name in self.by_name:
                return self.by_name[name]
        return None


def table_of_names(title: str, text: str) -> FactTable[bool]:
    """Return the table of a fact that is only true or not said."""
    return FactTable(title, [(text, True)])


def one_table(title: str, *tables: Mapping[str, Fact]) -> dict[str, Fact]:
    """Return one table of several.

    Raises:
        ValueError: two of them have a row for the same name, of which one would be hidden.
    """
    found: dict[str, Fact] = {}
    for table in tables:
        twice = sorted(found.keys() & table.keys())
        if twice:
            raise ValueError(f"two rows of {title} claim {', '.join(twice)}; keep one")
        found |= table
    return found
