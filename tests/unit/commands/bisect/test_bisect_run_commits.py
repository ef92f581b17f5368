"""Commits as a rung: each trial has a work tree of its own, and the user's checkout is left alone."""

import os
import subprocess
from pathlib import Path

import pytest

from ray_precheck.cli import main
from ray_precheck.commands.bisect.targets.command.commits import commits_of, work_tree
from ray_precheck.errors import UsageError

pytestmark = pytest.mark.unit
IDENTITY = {
    f"GIT_{who}_{what}": f"{who}@here"
    for who in ("AUTHOR", "COMMITTER")
    for what in ("NAME", "EMAIL")
}


def git(*words: str) -> str:
    env = {**os.environ, **IDENTITY, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(["git", *words], env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of ten commits, of which the seventh breaks `sub/value`; it is the current folder."""
    folder = tmp_path / "repository"
    (folder / "sub").mkdir(parents=True)
    monkeypatch.chdir(folder)
    git("init", "--quiet", "-b", "main")
    for number in range(10):
        (folder / "sub" / "value").write_text("bad\n" if number >= 7 else "good\n")
        (folder / "number").write_text(f"{number}\n")
        git("add", "-A")
        git("commit", "--quiet", "-m", f"Commit {number}")
    return folder


def state(folder: Path) -> dict[str, bytes]:
    """Return all files of a repository but those that git writes when it looks at it."""
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "index"
    }


def test_the_first_bad_commit_is_found_and_the_checkout_left_alone(
    repository: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (repository / "untracked").write_text("mine")
    (repository / "number").write_text("changed")
    before = state(repository)
    monkeypatch.chdir(repository / "sub")
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(repository))
    ran = tmp_path / "ran"
    script = f"pwd >> {ran}; test ! -e ../untracked && grep -q good value"
    words = ["--commits", "HEAD~9..", "-d", "0", "1", "-o", str(tmp_path / "out")]
    assert main(["bisect", "run", *words, "--", "sh", "-c", script]) == 1
    printed = capsys.readouterr().out
    bad = git("rev-parse", "HEAD~2")
    assert f"the first that makes it wrong: {bad[:7]} Commit 7" in printed
    assert f"shell: git revert {bad}" in printed
    assert "right before it: trial" in printed
    trees = ran.read_text().split()
    # Both ends, halving, and two proofs, each more than once; with two workers some are speculation.
    assert len(trees) == len(set(trees)) <= 24
    assert not any(Path(tree).exists() for tree in trees)
    assert state(repository) == before


def test_trees_stand_side_by_side(repository: Path, tmp_path: Path) -> None:
    commits = commits_of("HEAD~9..HEAD")
    first, *_, last = commits.hashes.values()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        work_tree(commits, first, tmp_path, tmp_path / "a") as one,
        work_tree(commits, last, tmp_path, tmp_path / "b") as other,
    ):
        assert ((one / "number").read_text(), (other / "number").read_text()) == ("1\n", "9\n")
        assert git("-C", str(other), "rev-parse", "HEAD") == last
    assert list((tmp_path / "a").iterdir()) == []


def test_a_merge_is_one_commit_of_the_first_line(repository: Path) -> None:
    git("checkout", "--quiet", "-b", "side", "HEAD~3")
    (repository / "other").write_text("x")
    git("add", "-A")
    git("commit", "--quiet", "-m", "Side")
    git("checkout", "--quiet", "main")
    git("merge", "--quiet", "--no-edit", "-m", "Merge side", "side")
    titles = [name.partition(" ")[2] for name in commits_of("HEAD~1..HEAD").hashes]
    assert titles == ["Merge side"]
    assert len(commits_of("HEAD~3..").hashes) == 3


def test_bad_ranges_are_one_sentence(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked, why in {
        "HEAD": "is no range of commits; expected GOOD..BAD",
        "HEAD~2...HEAD": "is no range of commits",
        "..HEAD": "is no range of commits",
        "nowhere..HEAD": "there is no commit 'nowhere' here",
        "HEAD~2..--all": "there is no commit '--all' here",
        "HEAD..HEAD": "HEAD does not come after HEAD",
        "HEAD..HEAD~2": "HEAD~2 does not come after HEAD",
    }.items():
        with pytest.raises(UsageError, match=why):
            commits_of(asked)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="not a git repository"):
        commits_of("HEAD~2..HEAD")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="--commits needs git"):
        commits_of("HEAD~2..HEAD")


def test_submodules_are_said(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / ".gitmodules").write_text("")
    git("add", "-A")
    git("commit", "--quiet", "-m", "Modules")
    monkeypatch.chdir(repository / "sub")
    assert main(["bisect", "run", "--commits", "HEAD~2..", "--dry-run", "--", "true"]) == 0
    assert "submodules are not checked out in trials" in capsys.readouterr().out
