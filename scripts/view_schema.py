"""The JSON Schema of what `--json` writes, made of the nouns of `ray_precheck/schema/view.py`.

    python -m scripts.view_schema            # prints it
    python -m scripts.view_schema --write    # writes it into ray_precheck/running/view.schema.json

Comes in: the dataclasses and their docstrings, and `view_data.plain`, which says how they are written. Goes
out: JSON Schema 2020-12. A test fails where the file is stale.
"""

import argparse
import inspect
import json
from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from ray_precheck.running.view_data import FORMAT
from ray_precheck.schema import view
from scripts.measuring import ROOT

SCHEMA = ROOT / "ray_precheck" / "running" / "view.schema.json"
_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_TEXTS = {"type": "array", "items": _TEXT}
# JSON has no NaN and no infinities: they are null.
_NUMBER = {"type": ["number", "null"]}
_NUMBERS = {"type": "array", "items": _NUMBER}
_SIMPLE: dict[Any, dict[str, Any]] = {
    str: _TEXT,
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    float: _NUMBER,
    NoneType: {"type": "null"},
}
# Of these `view_data` writes how much there is, not the values.
_SIZES: dict[type, dict[str, Any]] = {
    view.TimelineChart: {"spans": _COUNT, "lanes": _TEXTS},
    view.FlowGraph: {"calls": _COUNT, "edges": _COUNT, "starts": _TEXTS},
    view.RowTable: {"file": _TEXT, "columns": _TEXTS},
}
_SPECIAL: dict[tuple[type, str], dict[str, Any]] = {
    (view.HeatMap, "values"): {"type": "array", "items": _NUMBERS},
    (view.BlockMaxima, "values"): {"type": "array", "items": _NUMBERS},
    (view.HeatMap, "links"): {
        "description": "Row, column and the name of the row of a table that the cell opens.",
        "type": "array",
        "items": {
            "type": "array",
            "prefixItems": [_COUNT, _COUNT, _TEXT],
            "minItems": 3,
            "items": False,
        },
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the file")
    if parser.parse_args(argv).write:
        SCHEMA.write_text(schema_text(), encoding="utf-8")
    else:
        print(schema_text(), end="")
    return 0


def schema_text() -> str:
    """Return the text of the schema."""
    definitions: dict[str, Any] = {}
    _reference(view.View, definitions)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What --json of ray-precheck writes",
        "description": (
            "The views of one or several commands, the first of which is the command's own. All keys are"
            " always there. A number that is NaN, infinite or unknown is null. `format` is another number"
            " where a key has changed its meaning; keys may be added."
        ),
        "type": "object",
        "properties": {
            "format": {"const": FORMAT},
            "views": {"type": "array", "items": {"$ref": "#/$defs/View"}},
        },
        "required": ["format", "views"],
        "additionalProperties": False,
        "$defs": dict(sorted(definitions.items())),
    }
    return json.dumps(schema, indent=1) + "\n"


def _of_type(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the values of a type."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple:
        if args[1:] == (...,):
            return {"type": "array", "items": _of_type(args[0], definitions)}
        items = [_of_type(each, definitions) for each in args]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    if origin in (Union, UnionType):
        return {"anyOf": [_of_type(each, definitions) for each in args]}
    if origin is np.ndarray:
        return _NUMBERS
    return _reference(hint, definitions)


def _reference(noun: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the reference to the schema of a noun, which is added to `definitions`."""
    if noun.__name__ not in definitions:
        definitions[noun.__name__] = {}  # A noun may have itself as a part.
        text = " ".join(inspect.cleandoc(noun.__doc__ or "").split())
        definitions[noun.__name__] = {"description": text, **_of_noun(noun, definitions)}
    return {"$ref": f"#/$defs/{noun.__name__}"}


def _of_noun(noun: type, definitions: dict[str, Any]) -> dict[str, Any]:
    if issubclass(noun, Enum):
        return {"enum": [each.value for each in noun]}
    properties: dict[str, Any] = {"kind": {"const": noun.__name__}}
    if noun in _SIZES:
        properties |= {"title": _TEXT, **_SIZES[noun]}
    else:
        hints = get_type_hints(noun)
        for each in fields(noun):
            special = _SPECIAL.get((noun, each.name))
            properties[each.name] = special or _of_type(hints[each.name], definitions)
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


if __name__ == "__main__":
    raise SystemExit(main())
