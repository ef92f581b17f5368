"""The output of --list: the calls that would be checked, the reasons for the others, and the
estimated cost.

Comes in: a configuration and the dumps that -api_info names. Goes out: text on the standard output,
and an exit code. Called by `run_ut`.
"""

from dataclasses import replace
from pathlib import Path

from ray_precheck.dump.folders import FoundDumps
from ray_precheck.errors import PrecheckError
from ray_precheck.options.exit_codes import NOTHING_CHECKED, PASSED
from ray_precheck.options.invocation import note
from ray_precheck.replay.config import RunConfig


def print_calls(config: RunConfig, found: FoundDumps) -> int:
    """Print the calls of each dump; 4 where none would be checked and none is done already.

    Raises:
        PrecheckError: as the run would raise, for a single dump.
    """
    checked = 0
    for each in found.dumps:
        own = replace(config, dump=each.path)
        if not found.is_many:
            return PASSED if _print_dump(own, demands=True) else NOTHING_CHECKED
        if own.resume_csv is not None:
            own = _of_rank(own, own.resume_csv / each.place)
        print(f"{each.label}:")
        try:
            checked += _print_dump(own, demands=False)
        except PrecheckError as error:
            print(f"not checked: {error}")
        print()
    return PASSED if checked else NOTHING_CHECKED


def _of_rank(config: RunConfig, folder: Path) -> RunConfig:
    """Return the configuration that goes on in the folder of a rank, where there is something."""
    if any(folder.glob("accuracy_checking_result_*.csv")):
        return replace(config, resume_csv=folder)
    return replace(config, resume_csv=None, retry=(), force=False)


def _print_dump(config: RunConfig, *, demands: bool) -> int:
    """Print the calls of one dump; return how many would be checked, or are done already."""
    # Imported here, so that --help and wrong options answer at once.
    from ray_precheck.commands.precheck.listing import list_calls
    from ray_precheck.commands.precheck.report.closing import shown_name, shown_text

    checked = skipped = done = 0
    cost_s = 0.0
    with list_calls(config, demands=demands) as listing:
        for warning in listing.warnings:
            note(f"warning: {warning}")
        for call in listing.calls:
            if call.is_done:
                done += 1
                print(f"  {shown_name(call.name)}  done already")
            elif call.reason:
                skipped += 1
                print(f"  {shown_name(call.name)}  SKIP: {shown_text(call.reason)}")
            else:
                checked += 1
                cost_s += call.cost_s
                print(f"  {shown_name(call.name)}  {call.directions}, about {call.cost_s:.3g} s")
    left_out = listing.total - listing.selected
    parts = [
        f"{checked} of {listing.total} calls would be checked, about {cost_s:.3g} s on one CPU core",
        f"{skipped} would be SKIP" if skipped else "",
        f"{done} are done already" if done else "",
        f"{left_out} are not selected" if left_out else "",
    ]
    print("; ".join(filter(None, parts)))
    benches = f"benches as torch {listing.bench} has them; " if listing.bench else ""
    print(
        f"({listing.framework}, task {listing.task}; {benches}the run alone shows which kernels the"
        " device lacks)"
    )
    if not listing.bench:
        note("torch is not installed here: calls without a bench are listed as checked")
    return checked + done
