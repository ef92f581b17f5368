"""Breaks the kernel behind a switch, and looks whether `naive` names the switch.

Comes in: `naive_faults`. Goes out: what is wrong with what `naive` says. The faults of a CPU run through the
command `ray-precheck naive`, Ray and a check process; a pretended device through the opener and the runner
that a check process uses, in a process of its own. Each run has healthy calls beside the broken one, which
must pass.
"""

from pathlib import Path

from naive_faults import FAULTS, SwitchFault, module_text, write_fault_dump

from scripts.measuring import ran, rows_of_table


def problem_of(key: str, folder: Path) -> str:
    """Return what is wrong with what `naive` says of a fault; "" where the broken call alone is in error and
    its switches are named."""
    fault = FAULTS[key]
    rows = _rows_of(key, fault, folder)
    found = {row["API Name"]: row["Switch"] for row in rows if row["Verdict"] != "pass"}
    broken = f"{fault.call}.0"
    if set(found) != {broken}:
        return f"in error: {', '.join(found) or 'nothing'}"
    if set(found[broken].split(", ")) != set(fault.switches):
        return f"named: {found[broken] or 'nothing'}"
    return ""


def _rows_of(key: str, fault: SwitchFault, folder: Path) -> list[dict[str, str]]:
    """Run the command, or the runner, in a process of its own; return the rows."""
    dump = write_fault_dump(folder, fault)
    module = folder / f"{key}.py"
    module.write_text(module_text(key))
    out = folder / key
    if fault.kind == "cpu":
        words = ("naive", dump, "--bench-module", module, "-o", out)
        done = ran("ray_precheck", *words, codes=None)
    else:
        done = ran(
            "naive_runner", dump, module, out, fault.kind, codes=None, path=[Path(__file__).parent]
        )
    rows = rows_of_table(out, "naive_[0-9]*.csv")
    if not rows:
        raise RuntimeError(f"{key}: no rows: {done.printed[-2000:]}")
    return rows
