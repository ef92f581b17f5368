"""The file of `--json FILE`: the findings of a run, for programs.

Comes in: a `Summary`, its state and the exit code. Goes out: a JSON file, written row by row. Called by
the command line. Its keys, all of them always there:

    format        1; another number where a key has changed its meaning
    state         finished, running or stopped
    stop_reason   why it stopped, or which process is running it; "" if neither, or if it is unknown
    exit_code     that of the command
    cut_short     sentences about captures that were checked and are not whole
    counts        calls with a row, how many are pass, error and skip, and planned: calls of the dump,
                  0 if that is unknown
    forward       passes, errors (by what was compared), broken (the device could not run it: error
                  too), skips, missing (no record)
    backward      the same
    reasons       the five commonest reasons why calls were not compared: text, count, names (some)
    worst         the worst output in error of each API and direction, by how far it is beyond its
                  limit, ten at most: name, status, beyond, cosine, max_abs_err, max_rel_err, more (how
                  many other outputs of it are in error), message, source (the model's line, or "").
                  A number is null where there is none or it is infinite
    environment   framework, device_type, device_names, devices, nodes, standard, seed, tested (device or
                  dump), dump, caveats (limits of a device's precision, such as HF32 that stayed on),
                  versions (by name); "", 0 or empty where the files do not tell
    files         result, details
    verdicts      for each call its name, verdict (pass, error, skip), forward and backward (pass, error,
                  SKIP, or ""), and message

The runs over several dumps have one file. Its keys are about all of them together, and names begin with
that of their dump; `files` name the folder of the results, `environment` that of the dumps. In place of
`verdicts` stands `dumps`: for each dump its label (step0/rank1), why it was not checked (problem, "" where
it was), and all keys above but format, about it alone.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray_precheck.commands.precheck.beyond import number_in
from ray_precheck.commands.precheck.closing import COMMONEST_REASONS
from ray_precheck.commands.precheck.ranks_summary import RankSummary, combined
from ray_precheck.commands.precheck.state import RunState
from ray_precheck.commands.precheck.summary import Summary, WorstOutput
from ray_precheck.store.results import ResultRow, read_results

FORMAT = 1


def json_lines(summary: Summary, state: RunState, exit_code: int) -> Iterator[bytes]:
    """Yield the file piece by piece."""
    head = {"format": FORMAT, **_head(summary, state, exit_code)}
    yield from _with_list(head, "verdicts", _verdicts(summary.files.result))
    yield b"\n"


def ranks_json_lines(
    whole: Summary, state: RunState, exit_code: int, ranks: Sequence[RankSummary]
) -> Iterator[bytes]:
    """Yield the file of several dumps piece by piece; `whole` is the summary of all of them."""
    head = {"format": FORMAT, **_head(whole, state, exit_code)}
    yield from _with_list(head, "dumps", map(_rank, ranks))
    yield b"\n"


def _rank(rank: RankSummary) -> Iterator[bytes]:
    summary = rank.summary or combined([], Path())
    head: dict[str, Any] = {"label": rank.label, "problem": rank.problem}
    head |= _head(summary, rank.state, rank.exit_code)
    if rank.summary is None:
        head["files"] = dict.fromkeys(head["files"], "")
        return _with_list(head, "verdicts", [])
    return _with_list(head, "verdicts", _verdicts(summary.files.result))


def _with_list(head: dict[str, Any], key: str, items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield an object that has one more key, a list whose items come in pieces."""
    yield json.dumps(head, indent=1, allow_nan=False).removesuffix("\n}").encode()
    yield f',\n "{key}": ['.encode()
    separator = b"\n  "
    for item in items:
        yield separator
        yield from item
        separator = b",\n  "
    yield b"\n ]\n}"


def _verdicts(result: Path) -> Iterator[Iterable[bytes]]:
    for call in read_results(result):
        yield [json.dumps(_verdict(call)).encode()]


def _head(summary: Summary, state: RunState, exit_code: int) -> dict[str, Any]:
    reasons = summary.reasons.commonest(COMMONEST_REASONS)
    return {
        "state": state.progress.value,
        "stop_reason": state.reason,
        "exit_code": exit_code,
        "cut_short": [] if summary.settings is None else list(summary.settings.cut_short),
        "counts": {
            "calls": summary.total,
            "pass": summary.passes,
            "error": summary.errors,
            "skip": summary.skips,
            "planned": state.planned,
        },
        "forward": asdict(summary.forward),
        "backward": asdict(summary.backward),
        "reasons": [{"text": r.text, "count": r.count, "names": r.names} for r in reasons],
        "worst": [_worst(output) for output in summary.worst if output.is_error],
        "environment": environment_of(summary),
        "files": {name: str(getattr(summary.files, name)) for name in ("result", "details")},
    }


def environment_of(summary: Summary) -> dict[str, Any]:
    """Return the place and the settings of a run, by the keys of the file."""
    environment = summary.environment
    made_with = {} if summary.settings is None else summary.settings.fingerprint
    return {
        "framework": environment.framework or made_with.get("framework", ""),
        "device_type": environment.kind or made_with.get("device type", ""),
        "device_names": list(environment.device_names),
        "devices": environment.devices,
        "nodes": environment.nodes,
        "standard": environment.rule or made_with.get("standard", ""),
        "seed": made_with.get("seed", ""),
        "tested": "dump" if environment.tests_dump else "device",
        "dump": environment.dump,
        "caveats": list(environment.caveats),
        "versions": dict(environment.versions),
    }


def _worst(output: WorstOutput) -> dict[str, Any]:
    row = output.row
    return {
        "name": output.name,
        "status": row["Status"],
        "beyond": _finite(output.beyond),
        "cosine": _finite(number_in(row, "Cosine")),
        "max_abs_err": _finite(number_in(row, "MaxAbsErr")),
        "max_rel_err": _finite(number_in(row, "MaxRelativeErr")),
        "more": output.more,
        "message": row["Message"],
        "source": output.source,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _verdict(call: ResultRow) -> dict[str, str]:
    return {
        "name": call.name,
        "verdict": call.verdict.value.lower(),
        "forward": call.forward.value,
        "backward": call.backward.value,
        "message": call.message,
    }
