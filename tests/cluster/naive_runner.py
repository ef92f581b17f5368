"""Contrasts the calls of a dump in this process, with the opener and the runner of a check process.

Comes in: a dump, a file for --bench-module, a folder, and the kind of device. Goes out: `naive_0.csv` in the
folder. Started by `naive_switches` for devices that this machine does not have.
"""

import sys
from dataclasses import replace
from pathlib import Path

from ray_precheck.bench.declared import read_bench_modules
from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.naive.job import NAIVE_TABLES, NaiveJob
from ray_precheck.dump.parse import open_dump
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.schema.task import DeviceSlot, Task
from ray_precheck.store.tables import header


def main() -> int:
    path, module, folder, kind = sys.argv[1:]
    with open_dump(path) as dump:
        settings = CheckSettings(dump.framework, dump.task, dump.data_folder, device_type=kind)
        settings = replace(settings, bench_modules=read_bench_modules([module]))
        job = NaiveJob(dump, settings, 3)
        sys.argv.append("check_process")  # the fault is planted in processes that check
        runner = job.opener(is_home=True).open(DeviceSlot(kind, 0, "", "", ""), lambda phase: None)
        tasks = [Task(index, name, 0.0) for index, name in enumerate(job.names)]
        rows = [runner.run(job.payload(task), Stage.CHECK).row for task in tasks]
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, "naive_0.csv").write_bytes(header(NAIVE_TABLES.result) + b"".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
