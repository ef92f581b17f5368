"""Git commits as an ordered rung, and the trees in which trials run.

Comes in: `--commits A..B` and the current folder. Goes out: a rung whose members are the commits behind A in
their order, and for each trial a work tree of its own. Called by the target `run`.

The user's repository is only read: each runner has a bare clone that shares its objects (`git clone
--shared`), and the work trees are that clone's.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.errors import UsageError
from ray_precheck.searching.bisection import Rung, RungSwitch

COMMITS = "commits"
_LONGEST_SUBJECT = 60


@dataclass(frozen=True, slots=True)
class Commits:
    """Commits behind `base`, the oldest first, by the names of their switches; `repository` is the top of
    the work tree, `folder` the current folder below it."""

    repository: str
    folder: str
    base: str
    hashes: dict[str, str]
    has_submodules: bool

    @property
    def rung(self) -> Rung:
        """The rung of these commits."""
        switches = tuple(
            RungSwitch(name, lines=(("shell", f"git revert {commit}"),))
            for name, commit in self.hashes.items()
        )
        return Rung(COMMITS, switches, is_ordered=True)

    def at(self, enabled: frozenset[str]) -> str:
        """Return the commit of a trial: the last one that is on."""
        return ([self.base] + [each for name, each in self.hashes.items() if name in enabled])[-1]


def commits_of(asked: str) -> Commits:
    """Return the commits of `A..B` on the first parents' line of B; B is HEAD where nothing stands there.

    Raises:
        UsageError: git is missing, the current folder is in no repository, A or B is no commit, or B does not
            descend from A.
    """
    first, dots, last = asked.partition("..")
    if not first or not dots or last.startswith("."):
        raise UsageError(f"--commits {asked!r} is no range of commits; expected GOOD..BAD")
    repository = _asked("--commits", "rev-parse", "--show-toplevel")
    folder = _asked("--commits", "rev-parse", "--show-prefix")
    base, tip = (_commit(asked, each) for each in (first, last or "HEAD"))
    listed = _asked(
        f"--commits {asked}",
        *("log", "--first-parent", "--reverse", "--format=%H %h %s", f"{base}..{tip}"),
    )
    if not listed or _asked(f"--commits {asked}", "merge-base", base, tip) != base:
        raise UsageError(
            f"--commits {asked}: {last or 'HEAD'} does not come after {first}; give the commit that is right"
            " first, GOOD..BAD"
        )
    hashes = {}
    for line in listed.splitlines():
        commit, _, title = line.partition(" ")
        hashes[title[:_LONGEST_SUBJECT].strip()] = commit
    has_submodules = bool(
        _asked(f"--commits {asked}", "ls-tree", "--name-only", "--full-tree", tip, ".gitmodules")
    )
    return Commits(repository, folder, base, hashes, has_submodules)


def _commit(asked: str, name: str) -> str:
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except subprocess.CalledProcessError:
        raise UsageError(f"--commits {asked}: there is no commit {name!r} here") from None


def _asked(what: str, *words: str) -> str:
    try:
        return _git(*words)
    except OSError as error:
        raise UsageError(f"{what} needs git, which cannot be started: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        raise UsageError(f"{what}: git says {lines[-1] if lines else 'nothing'!r}") from None


def git_environment(env: dict[str, str]) -> dict[str, str]:
    """Return an environment without the variables that lead git to another repository."""
    return {
        name: value
        for name, value in env.items()
        if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
    }


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words],
        capture_output=True,
        check=True,
        stdin=subprocess.DEVNULL,
        env=git_environment(dict(os.environ)),
    )
    return done.stdout.decode(errors="replace").strip()


@contextmanager
def work_tree(commits: Commits, commit: str, scratch: Path, folder: Path) -> Iterator[Path]:
    """Check a commit out into a new tree below `folder`; yields the folder in it that is the current one, and
    removes the tree at the end. The clone is made below `scratch` where there is none.

    Raises:
        UsageError: git cannot do so, or that commit has no such folder.
    """
    clone, tree = scratch / "clone.git", folder / "tree"
    if not clone.exists():
        _asked(
            "a clone for trials",
            "clone",
            "--shared",
            "--bare",
            "--quiet",
            commits.repository,
            str(clone),
        )
    at = ("--git-dir", str(clone), "worktree")
    _asked(commit, *at, "add", "--quiet", "--detach", str(tree), commit)
    try:
        current = tree / commits.folder
        if not current.is_dir():
            raise UsageError(f"{commit} has no folder {commits.folder}")
        yield current
    finally:
        shutil.rmtree(tree, ignore_errors=True)
        _asked(commit, *at, "prune")
