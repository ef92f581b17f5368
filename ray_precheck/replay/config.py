"""The configuration of a run over the calls of a dump.

Comes in: options of the command line or arguments of `precheck`. Goes out: a validated `RunConfig`
and its fingerprint, which a resumed run must match. Shared by the precheck, `naive` and a replay of
overflows.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.check.options import CheckOptions
from ray_precheck.descriptors.descriptor import BUILT_IN, framework_names
from ray_precheck.options.declared import REQUIRED, OneOf, Takes, option, settings_of
from ray_precheck.options.shared import (
    DebugOptions,
    JobOptions,
    LimitOptions,
    OutputOptions,
    PlaceOptions,
    ResumeOptions,
)

# The entry in the settings of a run that checks all calls of its dump.
EVERY_CALL = "every call"


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """Which calls of a dump are checked; the others get no rows.

    `white_list` and `black_list` are names of APIs as msprobe's config.json has them; `calls` are the
    whole names of single calls, which another command has chosen.
    """

    section: ClassVar[str] = "which calls are checked"

    filter_alike: bool = option(
        False,
        "-filter_api",
        "--filter_api",
        "--filter-api",
        help="of calls alike in name, shapes, dtypes and scalars check one; the others name it",
        takes=Takes.NOTHING,
        rows="filter_api",
    )
    # The settings hold `plan.selection.Selection.text`, not the value of this field alone.
    keywords: tuple[str, ...] = option(
        (),
        "-k",
        help="only calls whose name fits, as pytest's -k: 'matmul and not Tensor.'; repeatable",
        more="The others get no rows, and the run goes on with the same `-k` only",
        takes=Takes.EACH,
        metavar="PATTERN",
        rows="selection",
    )
    white_list: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()


# The share of the machine's memory that all workers together may take for tensors.
MEMORY_SHARE = 0.7


@dataclass(frozen=True)
class RunConfig(
    SelectionOptions,
    OutputOptions,
    JobOptions,
    PlaceOptions,
    CheckOptions,
    LimitOptions,
    ResumeOptions,
    DebugOptions,
):
    """The settings of one run. `framework` "" means: as the dump says."""

    section: ClassVar[str] = "what is checked"

    dump: Path = option(
        REQUIRED,
        "-api_info",
        "--api_info_file",
        help="the dump.json, or a folder: of a rank, of a step, or of all steps",
        more="Each of several ranks has its two CSV files in `{out_path}/{step}/{rank}/`",
        takes=Takes.ONCE,
        metavar="DUMP",
        becomes=Path,
    )
    framework: str = option(
        "",
        "-f",
        "--framework",
        help="{choices} (default: as the dump says)",
        metavar="NAME",
        rule=OneOf(BUILT_IN, may_be_empty=True, all_choices=framework_names),
    )

    def memory_limit_bytes(self, machine_bytes: int, workers: int | None = None) -> int:
        """Return the limit in bytes for the tensors of one record: `max_memory_gib`, or a worker's share
        of `MEMORY_SHARE` of the machine.

        `workers` share a machine; by default as many as there are ids.
        """
        if self.max_memory_gib:
            return int(self.max_memory_gib * 2**30)
        if workers is None:
            workers = 1 if isinstance(self.devices, str) else len(self.devices)
        return int(MEMORY_SHARE * machine_bytes / workers)

    def fingerprint(
        self,
        dump_digest: str,
        framework: str,
        kind: str,
        standard: str = "",
        selection: str = EVERY_CALL,
    ) -> dict[str, str]:
        """Return the settings that must be the same for two runs to make the same rows.

        `standard` is the rule of the verdicts in words, by default the value of the option.
        `selection` is the selection of the calls in words.
        """
        found = {"dump": dump_digest, "framework": framework, "device type": kind}
        found |= settings_of(self) | {"selection": selection}
        if standard:
            found["standard"] = standard
        return {key: found.pop(key) for key in _FIRST_KEYS} | found


# The order in which settings files have always had these keys; keys of later options follow.
_FIRST_KEYS = (
    "dump",
    "framework",
    "device type",
    "seed",
    "tested",
    "standard",
    "filter_api",
    "distribution",
    "selection",
)
