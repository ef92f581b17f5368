"""start-head, start-worker, stop, env and submit: options, token, ports, state. Ray is a stand-in."""

import os
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest
from stand_ins import SCRIPTS, StandIns

pytestmark = pytest.mark.unit
COMMANDS = ["env", "start-head", "start-worker", "stop", "submit", "wait-for-nodes"]


@pytest.fixture
def token(stand_ins: StandIns) -> Path:
    """The token as if it had been copied from the head."""
    stand_ins.token.parent.mkdir()
    stand_ins.token.touch(mode=0o600)
    stand_ins.token.write_text("abc")
    return stand_ins.token


def ray_start(stand_ins: StandIns) -> list[str]:
    (call,) = [call for call in stand_ins.calls() if call.startswith("first ray start")]
    return call.split()[3:]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help(command: str) -> None:
    shown = subprocess.run(
        [SCRIPTS / command, "--help"], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0
    assert shown.stdout.startswith("usage: ")


@pytest.mark.parametrize("command", ["start-head", "start-worker", "stop", "env"])
def test_an_unknown_option_is_refused(command: str, stand_ins: StandIns) -> None:
    assert stand_ins.run(command, "--nonsense", "1").returncode == 2
    assert "unknown option --nonsense" in stand_ins.errors


def test_the_head_makes_a_token_that_only_its_user_can_read(stand_ins: StandIns) -> None:
    assert stand_ins.run("start-head").returncode == 0, stand_ins.errors
    assert stat.S_IMODE(stand_ins.token.stat().st_mode) == 0o600
    assert len(stand_ins.token.read_text()) == 64
    assert [path.name for path in stand_ins.token.parent.iterdir()] == ["auth_token"]


def test_the_head_keeps_a_token_that_is_there(stand_ins: StandIns, token: Path) -> None:
    assert stand_ins.run("start-head").returncode == 0
    assert token.read_text() == "abc"


def test_a_worker_without_a_token_is_refused(stand_ins: StandIns) -> None:
    head = stand_ins.environment["HEAD"]
    assert stand_ins.run("start-worker", head).returncode == 2
    assert f"there is no token in {stand_ins.token}" in stand_ins.errors
    assert stand_ins.calls() == []


def test_a_token_that_others_may_read_is_refused(stand_ins: StandIns, token: Path) -> None:
    token.chmod(0o640)
    assert stand_ins.run("start-worker", stand_ins.environment["HEAD"]).returncode == 2
    assert "others may read the token" in stand_ins.errors


def test_ray_is_given_token_health_checks_and_devices_and_reports_nothing(
    stand_ins: StandIns, token: Path
) -> None:
    stand_ins.run("start-head", RAY_ADDRESS="elsewhere:1", RAY_AUTH_TOKEN="another")
    given = stand_ins.ray_environment()
    assert given["RAY_AUTH_MODE"] == "token"
    assert given["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert given["RAY_USAGE_STATS_ENABLED"] == "0"
    assert given["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "0"
    period_ms = int(given["RAY_health_check_period_ms"]) + int(given["RAY_health_check_timeout_ms"])
    assert period_ms * int(given["RAY_health_check_failure_threshold"]) <= 6000
    assert not {"RAY_ADDRESS", "RAY_AUTH_TOKEN"} & set(given)


def test_settings_of_the_user_stay(stand_ins: StandIns) -> None:
    stand_ins.run("start-head", RAY_health_check_period_ms="7000")
    assert stand_ins.ray_environment()["RAY_health_check_period_ms"] == "7000"


def test_every_port_is_fixed_and_none_twice(stand_ins: StandIns) -> None:
    stand_ins.run("start-head", "--port", "7000", "--base-port", "7100")
    ports = [part.split("=")[1] for part in ray_start(stand_ins) if "port=" in part]
    assert ports == ["7000", "7100", "7101", "7102", "7103", "7104", "7105", "10002", "19999"]


def test_options_and_what_follows_two_dashes_reach_ray(stand_ins: StandIns, token: Path) -> None:
    done = stand_ins.run(
        "start-worker", stand_ins.environment["HEAD"], "--host", "10.0.0.7", "--cpus", "3",
        "--store-bytes", "99", "--", "--labels=name=node-a",
    )  # fmt: skip
    assert done.returncode == 0, stand_ins.errors
    given = ray_start(stand_ins)
    assert f"--address={stand_ins.environment['HEAD']}" in given
    assert {"--node-ip-address=10.0.0.7", "--num-cpus=3", "--object-store-memory=99"} <= set(given)
    assert given[-1] == "--labels=name=node-a"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--base-port", "x"), "--base-port x is not a number"),
        (("--worker-ports", "9-3"), "--worker-ports 9-3 is not MIN-MAX"),
    ],
)
def test_wrong_ports_are_refused(
    options: tuple[str, str], said: str, stand_ins: StandIns, token: Path
) -> None:
    assert stand_ins.run("start-head", *options).returncode == 2
    assert said in stand_ins.errors
    assert stand_ins.calls() == []


def test_a_head_on_loopback_is_not_joined(stand_ins: StandIns, token: Path) -> None:
    assert stand_ins.run("start-worker", "127.0.0.1").returncode == 2
    assert "takes no other nodes" in stand_ins.errors


def test_env_prints_what_a_shell_needs(stand_ins: StandIns) -> None:
    stand_ins.run("start-head")
    assert stand_ins.run("env").returncode == 0
    assert stand_ins.output.splitlines() == [
        f"export RAY_ADDRESS={stand_ins.environment['HEAD']}",
        "export RAY_AUTH_MODE=token",
        f"export RAY_AUTH_TOKEN_PATH={stand_ins.token}",
    ]


def test_env_without_a_node_is_an_error(stand_ins: StandIns) -> None:
    assert stand_ins.run("env").returncode == 2
    assert "no node was started" in stand_ins.errors


def test_a_state_folder_has_one_node(stand_ins: StandIns) -> None:
    stand_ins.run("start-head")
    assert stand_ins.run("start-head").returncode == 2
    assert "a node already runs with the state folder" in stand_ins.errors
    assert len([call for call in stand_ins.calls() if "ray start" in call]) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_state_folder_of_somebody_else_is_refused(stand_ins: StandIns) -> None:
    os.mkdir(stand_ins.folder / "s")
    os.chown(stand_ins.folder / "s", 12345, 12345)
    assert stand_ins.run("start-head").returncode == 2
    assert "is not a folder of yours" in stand_ins.errors


def test_a_state_folder_with_a_long_name_is_refused(stand_ins: StandIns) -> None:
    long = stand_ins.folder / ("x" * 40)
    assert stand_ins.run("start-head", "--state", long).returncode == 2
    assert "Ray's sockets allow 40" in stand_ins.errors


def test_ray_that_does_not_start_is_said_with_its_last_words(stand_ins: StandIns) -> None:
    assert stand_ins.run("start-head", RAY_FAILS="cannot bind the port").returncode == 2
    assert "cannot bind the port" in stand_ins.errors
    assert "Ray did not start here" in stand_ins.errors
    assert stand_ins.run("stop", "--check").returncode == 1


def test_a_head_of_another_python_is_told_in_one_sentence(stand_ins: StandIns, token: Path) -> None:
    # As `ray start` of Ray 2.60 ends on a node with Python 3.11 whose head has 3.10.
    words = (
        "Traceback (most recent call last):\n"
        "RuntimeError: Version mismatch: The cluster was started with:\n"
        "    Ray: 2.60.0\n    Python: 3.10.13\n"
        "This process on node 10.0.0.7 was started with:\n"
        "    Ray: 2.60.0\n    Python: 3.11.7\n"
    )
    head = stand_ins.environment["HEAD"]
    assert stand_ins.run("start-worker", head, RAY_FAILS=words).returncode == 2
    assert stand_ins.errors.startswith(
        "start-worker: error: the head has Ray 2.60.0 and Python 3.10.13, but this machine"
        f" ({socket.gethostname()}) has Ray 2.60.0 and Python 3.11.7 ("
    )
    assert len(stand_ins.errors.splitlines()) == 1
    assert stand_ins.ray_environment()["RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL"] == "minor"
    assert stand_ins.run("stop", "--check").returncode == 1


def test_stop_ends_the_node_with_all_that_it_started(stand_ins: StandIns) -> None:
    stand_ins.run("start-head")
    assert stand_ins.run("stop", "--check").returncode == 0
    assert len(stand_ins.living()) == 2  # ray, and what it has started
    assert stand_ins.run("stop").returncode == 0
    assert stand_ins.living() == []
    assert not (stand_ins.folder / "s").exists()


def test_stop_ends_what_a_killed_node_has_left_behind(stand_ins: StandIns) -> None:
    stand_ins.run("start-head")
    node = int((stand_ins.folder / "s" / "pid").read_text().split()[0])
    os.kill(node, signal.SIGKILL)
    assert [process.name() for process in stand_ins.living() if process.pid != node] == ["sleep"]
    assert stand_ins.run("stop").returncode == 0
    assert stand_ins.living() == []


def test_stop_kills_what_does_not_heed_it(stand_ins: StandIns) -> None:
    deaf = stand_ins.folder / "bin" / "ray"
    deaf.write_text(deaf.read_text().replace("sleep 600 &", "trap '' TERM; setsid sleep 600 #"))
    stand_ins.run("start-head")
    assert stand_ins.living()
    assert stand_ins.run("stop", RAY_PRECHECK_STOP_TIMEOUT_S="1").returncode == 0
    assert stand_ins.living() == []


def test_stop_leaves_a_process_that_has_got_the_number_since(stand_ins: StandIns) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        (stand_ins.folder / "s").mkdir()
        (stand_ins.folder / "s" / "pid").write_text(f"{stranger.pid} 1\n")
        assert stand_ins.run("stop").returncode == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_stop_leaves_files_that_are_not_its_own(stand_ins: StandIns) -> None:
    stand_ins.run("start-head")
    (stand_ins.folder / "s" / "thesis.txt").write_text("x")
    stand_ins.run("stop")
    assert [path.name for path in (stand_ins.folder / "s").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "what shall run?"),
        (("run_ut", "-api_info", "dump.json", "-o", "/r"), "-api_info dump.json: give the path"),
        (("run_ut", "-api_info", "/dump.json", "-o", "r"), "-o r: give the path"),
        (("run_ut", "-api_info", "/dump.json"), "say where the results go"),
        (("run_ut", "-o", "/r", "--address", "auto"), "leave it out"),
        (("run_ut", "-o", "/r"), "there is no token"),
    ],
)
def test_submit_refuses_what_cannot_work_on_the_head(
    arguments: tuple[str, ...], said: str, stand_ins: StandIns
) -> None:
    assert stand_ins.run("submit", *arguments).returncode == 2
    assert said in stand_ins.errors
    assert not [call for call in stand_ins.calls() if "job submit" in call]


def test_submit_says_that_no_dashboard_answers(stand_ins: StandIns, token: Path) -> None:
    ray = stand_ins.folder / "bin" / "ray"
    ray.write_text("#!/bin/sh\n")
    done = stand_ins.run("submit", "--dashboard", "http://127.0.0.1:1", "run_ut", "-o", "/r")
    assert done.returncode == 2
    assert "nothing answers at http://127.0.0.1:1" in stand_ins.errors
