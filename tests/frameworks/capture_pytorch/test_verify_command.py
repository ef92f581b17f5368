"""The command verifies the step of a script, which it runs up to the end of that step."""

import sys
from pathlib import Path
from typing import Any

import pytest
from test_command import capture, dumps_in

pytest.importorskip("torch")
pytestmark = pytest.mark.frameworks
# A recorder that changes the last bit of what an operator gave.
FAULTY = """
from ray_precheck.capture.pytorch.recorder import TorchRecorder

original = TorchRecorder.after

def after(self, key, output, **kwargs):
    if key == "Functional.relu.0.forward":
        output.data.mul_(1.0000002)
    return original(self, key, output, **kwargs)

TorchRecorder.after = after
"""


def verified(folder: Path, text: str, *words: str) -> Any:
    return capture(folder, "--verify", *words, "--", sys.executable, "train.py", text=text)


def test_a_script_whose_step_is_not_changed_gives_zero_and_its_dump(tmp_path: Path) -> None:
    done = verified(
        tmp_path, "train(1)\nprint('one', flush=True)\ntrain(2)\nprint('end')", "--steps", "1"
    )
    assert done.returncode == 0, done.stderr
    assert "looking changed nothing: with " in done.stdout
    assert "1 loss, 1 output of the model, 4 gradients" in done.stdout
    # Each of three runs ends with the verified step.
    assert done.stdout.count("one") == 3
    assert "end" not in done.stdout
    assert set(dumps_in(tmp_path)) == {"step1/proc"}


def test_a_record_that_changes_something_gives_one_and_is_named(tmp_path: Path) -> None:
    done = verified(tmp_path, FAULTY + "train(1)")
    assert done.returncode == 1, done.stderr
    assert "the first operator is Functional.relu.0.forward" in done.stdout


@pytest.mark.exhaustive
def test_a_script_that_ends_badly_with_capture_alone_gives_one(tmp_path: Path) -> None:
    done = verified(tmp_path, FAULTY.replace(".data.", ".detach().") + "train(1)")
    assert done.returncode == 1, done.stderr
    assert "how the step ends (the script ended with exit code 1) differs" in done.stdout
    assert "the first operator is Functional.relu.0.forward" in done.stdout


def test_a_script_that_does_not_repeat_itself_gives_two(tmp_path: Path) -> None:
    done = verified(
        tmp_path, "import os\ntorch.manual_seed(os.getpid())\ntrain(1, torch.rand(3, 4))"
    )
    assert done.returncode == 2, done.stderr
    assert "nothing can be said: the step does not repeat itself" in done.stdout


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("train(1)", ["--steps", "3"], "no step came: steps 3 were asked for, and 1 step"),
        pytest.param(
            "sys.exit(5)",
            [],
            "the script ended with exit code 5 before the step's end",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "net(torch.ones(3, 4)); 1 / 0",
            [],
            "ended with exit code 1 before the step's end",
            marks=pytest.mark.exhaustive,
        ),
        ("import os; os.kill(os.getpid(), 9)", [], "was ended by SIGKILL before the step's end"),
        pytest.param(
            "net(torch.ones(3, 4)); import os; os._exit(0)",
            [],
            "the script ended before the step",
            marks=pytest.mark.exhaustive,
        ),
        ("train(1)", ["--ranks", "0"], "leave --ranks out"),
    ],
)
def test_a_step_that_does_not_come_gives_two(
    tmp_path: Path, text: str, words: list[str], said: str
) -> None:
    done = verified(tmp_path, text, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_ranks_are_verified_together(tmp_path: Path) -> None:
    text = """
    import torch.distributed

    def rank(number, folder):
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store{os.getppid()}", rank=number, world_size=2
        )
        wrapped = torch.nn.parallel.DistributedDataParallel(net)
        for _ in range(2):
            wrapped(torch.full((3, 4), number + 1.0)).sum().backward()
            optimizer.step()
        raise SystemExit(3)

    import os
    if __name__ == "__main__":
        torch.multiprocessing.spawn(rank, (os.getcwd(),), nprocs=2)
    """
    done = verified(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert "bit-equal in 2 processes" in done.stdout
