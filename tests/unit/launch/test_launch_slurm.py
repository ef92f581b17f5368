"""slurm.sbatch with stand-ins for Slurm's commands, Ray and ray-precheck."""

import signal
import stat
import subprocess

import pytest
from stand_ins import StandIns

pytestmark = pytest.mark.unit
RUN = ["run_ut", "-api_info", "dump.json", "-o", "results"]


def slurm(stand_ins: StandIns, nodes: str = "a b c") -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(stand_ins.folder)[-6:],
        "SLURM_SUBMIT_DIR": str(stand_ins.checkout),
        "SLURM_JOB_NODELIST": "unused",
        "SLURM_CPUS_ON_NODE": "16",
        "NODES": nodes,
    }


def run(stand_ins: StandIns, nodes: str = "a b c", **more: str) -> "subprocess.Popen[str]":
    return stand_ins.run("slurm.sbatch", *RUN, **slurm(stand_ins, nodes), **more)


def last_on_the_first_node(stand_ins: StandIns) -> str:
    # The other nodes' commands run beside it, and may be written down later.
    return [call for call in stand_ins.calls() if call.startswith("first ")][-1]


def nothing_is_left(stand_ins: StandIns) -> bool:
    # Of a node that did not start the log stays.
    states = [stand_ins.folder / node / "pid" for node in "abcs"]
    tokens = list(stand_ins.checkout.glob(".ray-precheck-*"))
    return not (stand_ins.living() or tokens or any(state.exists() for state in states))


def test_the_head_runs_on_the_first_node_and_workers_on_the_others(stand_ins: StandIns) -> None:
    assert run(stand_ins).returncode == 0, stand_ins.errors
    starts = [call for call in stand_ins.calls() if " ray start " in call]
    assert sorted(call.split()[0] for call in starts) == ["b", "c", "first"]
    assert [call.split()[0] for call in starts if "--head" in call] == ["first"]
    head = stand_ins.environment["HEAD"]
    assert all(f"--address={head}" in call for call in starts if not call.startswith("first"))
    (srun,) = [call for call in stand_ins.calls() if call.startswith("first srun")]
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1 --nodelist=b,c --cpus-per-task=16" in srun
    assert nothing_is_left(stand_ins)


def test_the_steps_come_in_order(stand_ins: StandIns) -> None:
    run(stand_ins)
    steps = [call for call in stand_ins.calls() if call.startswith("first") and " -c " not in call]
    assert [step.split()[1] for step in steps if "srun" not in step] == [
        "scontrol", "ray", "python", "ray-precheck",
    ]  # fmt: skip
    assert steps[-1] == "first ray-precheck run_ut -api_info dump.json -o results --address auto"
    # wait-for-nodes was asked for all three.
    assert any(step.startswith("first python - 3 ") for step in steps)


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_the_exit_code_of_ray_precheck_is_the_jobs(code: int, stand_ins: StandIns) -> None:
    assert run(stand_ins, PRECHECK_CODE=str(code)).returncode == code
    assert nothing_is_left(stand_ins)


def test_one_node_needs_no_srun(stand_ins: StandIns) -> None:
    assert run(stand_ins, "a").returncode == 0
    assert not [call for call in stand_ins.calls() if "srun" in call]
    assert nothing_is_left(stand_ins)


def test_the_token_is_this_jobs_alone_and_on_the_shared_file_system(stand_ins: StandIns) -> None:
    job = stand_ins.start("slurm.sbatch", *RUN, **slurm(stand_ins), PRECHECK_HANGS="yes")
    stand_ins.wait_for_call("first ray-precheck")
    (folder,) = stand_ins.checkout.glob(".ray-precheck-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    for node in ("first", "b", "c"):
        assert stand_ins.ray_environment(node)["RAY_AUTH_TOKEN_PATH"] == str(folder / "token")
    assert not stand_ins.token.exists()
    job.terminate()
    job.communicate(timeout=60)


def test_a_job_that_is_ended_hands_the_signal_on_and_leaves_nothing(stand_ins: StandIns) -> None:
    job = stand_ins.start("slurm.sbatch", *RUN, **slurm(stand_ins), PRECHECK_HANGS="yes")
    stand_ins.wait_for_call("first ray-precheck")
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode == 3
    assert last_on_the_first_node(stand_ins) == "first ray-precheck got TERM"
    assert nothing_is_left(stand_ins)


def test_a_head_that_does_not_start_ends_the_job(stand_ins: StandIns) -> None:
    assert run(stand_ins, RAY_FAILS="yes").returncode == 2
    assert "Ray did not start here" in stand_ins.errors
    assert not [call for call in stand_ins.calls() if "ray-precheck" in call or "srun" in call]
    assert nothing_is_left(stand_ins)


def test_the_run_goes_on_with_the_nodes_that_have_joined(stand_ins: StandIns) -> None:
    assert run(stand_ins, NODES_MISSING="1").returncode == 0
    assert "going on with the nodes that have joined" in stand_ins.errors
    assert last_on_the_first_node(stand_ins).startswith("first ray-precheck run_ut")


def test_a_folder_that_is_no_checkout_is_refused(stand_ins: StandIns) -> None:
    settings = {**slurm(stand_ins), "SLURM_SUBMIT_DIR": str(stand_ins.folder)}
    assert stand_ins.run("slurm.sbatch", *RUN, **settings).returncode == 2
    assert "is no checkout of ray_precheck" in stand_ins.errors
