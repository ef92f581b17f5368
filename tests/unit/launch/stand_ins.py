"""Stand-ins for ray, srun, scontrol, python and ray-precheck, which write down how they are called.

Comes in: a folder. Goes out: the environment in which a script of cluster/ finds them, and the lines
that they wrote: `NODE COMMAND ARGUMENTS`. Called by the tests of the scripts.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

SCRIPTS = Path(__file__).resolve().parents[3] / "cluster"
_WRITE = 'echo "${NODE:-first} $(basename "$0") $*" >>"$CALLS"\n'
_COMMANDS = {
    # Says what Ray says once it runs, and runs until it is told to end.
    "ray": """
[ "$1" = start ] || exit 0
env | grep ^RAY_ >"$CALLS.${NODE:-first}.environment"
[ -z "${RAY_FAILS:-}" ] || { echo "$RAY_FAILS"; exit 1; }
echo "  ray start --address='$HEAD'"
echo "Ray runtime started."
sleep 600 & trap 'kill $!; exit' TERM; wait
""",
    # As Slurm does: the command on each node of the list, and signals handed on.
    "srun": """
while [ "${1#--}" != "$1" ]; do
    case $1 in --nodelist=*) IFS=, read -ra nodes <<<"${1#*=}" ;; esac
    shift
done
for node in "${nodes[@]}"; do
    NODE=$node RAY_PRECHECK_STATE=$STATES/$node "$@" &
    pids+=($!)
done
trap 'kill -TERM "${pids[@]}"; wait' TERM
wait
""",
    "scontrol": 'printf "%s\\n" $NODES\n',
    # What wait-for-nodes runs, and how start-head finds out whether there is a dashboard.
    "python": """
[ "$1" = - ] || exit 1
[ -z "${NODES_MISSING:-}" ] || exit 1
while [ "$(grep -c ' ray start ' "$CALLS")" -lt "$2" ]; do sleep 0.05; done
""",
    "ray-precheck": """
trap 'echo "first ray-precheck got TERM" >>"$CALLS"; kill $!; exit 3' TERM
[ -z "${PRECHECK_HANGS:-}" ] || { sleep 600 & wait; }
exit "${PRECHECK_CODE:-0}"
""",
}


class StandIns:
    """A folder with the commands, a copy of cluster/ and whatever the scripts leave behind."""

    def __init__(self, folder: Path, head: str) -> None:
        self.folder = folder
        self.calls_file = folder / "calls"
        self.checkout = folder / "checkout"
        self.token = folder / "home" / ".ray" / "auth_token"
        commands = folder / "bin"
        commands.mkdir(parents=True)
        for name, text in _COMMANDS.items():
            (commands / name).write_text(f"#!/usr/bin/env bash\n{_WRITE}{text}")
            (commands / name).chmod(0o755)
        shutil.copytree(SCRIPTS, self.checkout / "cluster")
        (folder / "home").mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SLURM_"))}
        self.environment = {
            **kept,
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "CALLS": str(self.calls_file),
            "STATES": str(folder),
            "HEAD": head,
            "RAY_PRECHECK_STATE": str(folder / "s"),
        }

    def start(self, script: str, *arguments: object, **more: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(self.checkout / "cluster" / script), *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**self.environment, **more},
        )  # fmt: skip

    def run(self, script: str, *arguments: object, **more: str) -> "subprocess.Popen[str]":
        """Run a script to its end; `output` holds what it has said."""
        process = self.start(script, *arguments, **more)
        # In a file's stead: a node that was started keeps no pipe of the script open.
        self.output, self.errors = process.communicate(timeout=60)
        return process

    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []

    def wait_for_call(self, start: str) -> None:
        until = time.monotonic() + 60
        while not any(call.startswith(start) for call in self.calls()):
            assert time.monotonic() < until, self.calls()
            time.sleep(0.05)

    def ray_environment(self, node: str = "first") -> dict[str, str]:
        """Return what `ray` was given on a node."""
        lines = Path(f"{self.calls_file}.{node}.environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def living(self) -> list[psutil.Process]:
        """Return the processes that the scripts have started and that still run."""
        found = []
        for process in psutil.process_iter():
            try:
                mine = process.environ().get("CALLS") == str(self.calls_file)
            except (psutil.AccessDenied, psutil.NoSuchProcess):
                continue
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found


@contextmanager
def listening_head() -> Iterator[str]:
    """Yield an address at which a head seems to answer, and that is not loopback by name."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"0.0.0.0:{server.getsockname()[1]}"
