"""Make a dump of any size out of a real one.

    python -m scripts.speed.scale OUT [--calls N] [--capture DUMP]

No Ray and no framework is loaded. The dump is written as msprobe writes it, forward records first, backward
records in reverse order; the same arguments give the same bytes.
"""

import argparse
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.dump.parse import open_dump
from scripts.measuring import CAPTURES

CAPTURE = CAPTURES / "mindspore_llm" / "dump.json"
# One call in so many gets the bare words that msprobe writes for what is not finite.
NOT_FINITE_EVERY = 1000
NOT_FINITE = {b"Max": b"Infinity", b"Min": b"-Infinity", b"Mean": b"NaN"}
_NORM = re.compile(rb'("Norm": -?\d+\.\d{6})\d*')


def main() -> int:
    """Make the dump that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--capture", type=Path, default=CAPTURE)
    given = parser.parse_args()
    return grow(given.capture, given.out, given.calls)


def grow(capture: Path, out: Path, calls: int) -> int:
    """Write a dump of `calls` calls: the capture's, again and again, numbered on.

    Every copy has norms of its own, so that no two records have the same bytes.
    """
    templates = _templates(capture)
    per_kind = Counter(template.kind for template in templates)

    def record(index: int, direction: str) -> bytes:
        copy, place = divmod(index, len(templates))
        template = templates[place]
        body = template.forward if direction == "forward" else template.backward
        if body is None:
            return b""
        number = copy * per_kind[template.kind] + template.ordinal
        text = body.replace(b"\x00", b"%06d" % (index % 10**6))
        if index % NOT_FINITE_EVERY == NOT_FINITE_EVERY - 1:
            for key, word in NOT_FINITE.items():
                text = re.sub(rb'"%s": -?[\d.e+-]+' % key, b'"%s": %s' % (key, word), text, count=1)
        return b'  "%s.%d.%s": %s' % (template.kind.encode(), number, direction.encode(), text)

    with open_dump(capture) as dump:
        header = {"task": "statistics", "level": "L1", "framework": dump.framework}
    with out.open("wb") as file:
        file.write(json.dumps(header | {"dump_data_dir": None}, indent=1)[:-2].encode())
        separator = b',\n "data": {\n'
        for direction, order in (("forward", range(calls)), ("backward", range(calls)[::-1])):
            for index in order:
                if text := record(index, direction):
                    file.write(separator + text)
                    separator = b",\n"
        file.write(b"\n }\n}")
    print(f"{out}: {calls} calls, {out.stat().st_size} bytes")
    return 0


@dataclass(frozen=True)
class Template:
    """The records of a call, with a null byte where the digits of a copy come.

    `ordinal` counts the calls of a kind (`Mint.add`) in the capture.
    """

    kind: str
    ordinal: int
    forward: bytes
    backward: bytes | None


def _templates(capture: Path) -> list[Template]:
    seen: Counter[str] = Counter()
    templates = []
    with open_dump(capture) as dump:
        for call in dump.calls:
            forward, backward = dump.raw(call.forward), dump.raw(call.backward)
            if forward is None:
                continue
            kind = call.name.rpartition(".")[0]
            behind = None if backward is None else _body(backward)
            templates.append(Template(kind, seen[kind], _body(forward), behind))
            seen[kind] += 1
    return templates


def _body(raw: bytes) -> bytes:
    """Return a record as msprobe indents it below `data`; bare NaN and Infinity stay."""
    text = json.dumps(json.loads(raw), indent=1).replace("\n", "\n  ")
    return _NORM.sub(rb"\1\0", text.encode())


if __name__ == "__main__":
    sys.exit(main())
