"""slurm.sbatch over a real head and two workers; only Slurm's own two commands are stand-ins."""

import os
import subprocess
from pathlib import Path

import pytest
from test_launch_nodes import DUMP, SCRIPTS, Machines, alone, files_of, needs_networks

__all__ = ["alone"]  # A fixture.
pytestmark = [pytest.mark.cluster, needs_networks]
# As Slurm does: the command on each node of the list, and signals handed on.
SRUN = """#!/usr/bin/env bash
while [ "${1#--}" != "$1" ]; do
    case $1 in --nodelist=*) IFS=, read -ra nodes <<<"${1#*=}" ;; esac
    shift
done
for node in "${nodes[@]}"; do
    RAY_PRECHECK_STATE=$STATES/s$node ip netns exec "$TAG$node" "$@" &
    pids+=($!)
done
trap 'kill -TERM "${pids[@]}"; wait' TERM
wait
"""


@pytest.mark.exhaustive  # The script with stand-ins: tests/unit/launch.
def test_a_slurm_job_runs_on_all_its_nodes_and_leaves_no_process(
    alone: tuple[bytes, bytes], tmp_path: Path
) -> None:
    with Machines() as machines:
        for number in (1, 2, 3):
            machines.connect(number)
        commands = machines.folder / "bin"
        commands.mkdir()
        scontrol = "#!/bin/sh\nprintf '1\\n2\\n3\\n'\n"
        for name, text in {"srun": SRUN, "scontrol": scontrol}.items():
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        checkout = machines.folder / "checkout"
        checkout.mkdir()
        (checkout / "cluster").symlink_to(SCRIPTS)
        machines.environment |= {
            "PATH": f"{commands}{os.pathsep}{machines.environment['PATH']}",
            "STATES": str(machines.folder),
            "RAY_PRECHECK_STATE": str(machines.folder / "s1"),
            "TAG": machines.namespace(0)[:-1],
            "SLURM_JOB_ID": machines.folder.name[-6:],
            "SLURM_SUBMIT_DIR": str(checkout),
            "SLURM_JOB_NODELIST": "unused",
            "RAY_PRECHECK_HOST": machines.host(1),
            "RAY_PRECHECK_STORE_BYTES": "100000000",
        }
        options = ["run_ut", "-api_info", DUMP, "-o", tmp_path, "-d", 0, 1, 2]
        command = [SCRIPTS / "slurm.sbatch", *options]
        job = machines.spawn(1, list(map(str, command)), subprocess.PIPE)
        output = job.communicate(timeout=400)[0].decode()
        assert job.returncode == 1, output  # torch_cnn has three errors
        assert "going on with the nodes" not in output
        assert files_of(tmp_path) == alone
        assert [machines.pids(number) for number in (1, 2, 3)] == [[], [], []]
        assert [path.name for path in machines.folder.glob("s?")] == []
        assert list(checkout.glob(".ray-precheck-*")) == []
