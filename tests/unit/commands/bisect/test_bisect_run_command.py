"""The command `bisect run`: what it prints and writes, its limits, resumes, and bad input."""

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.cli import main

pytestmark = pytest.mark.unit
Bisect = Callable[..., int]
FOUR = [f"env:{name}=1|0" for name in "ABCD"]


@pytest.fixture
def bisect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bisect:
    """Return a function that bisects a shell's command, whose runs append what is on to the file `ran`."""
    monkeypatch.chdir(tmp_path)

    def run(script: str, *options: object, switches: list[str] = FOUR, out: str = "out") -> int:
        words = [word for each in switches for word in ("--switch", each)]
        told = f"echo $A$B$C$D >> {tmp_path}/ran; {script}"
        places = ["-o", out, "-d", "0", "1"]
        return main(["bisect", "run", *words, *places, *map(str, options), "--", "sh", "-c", told])

    return run


def rows(folder: Path, out: str = "out") -> list[dict[str, str]]:
    (table,) = (folder / out).glob("bisect_2*.csv")
    with table.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def ran(folder: Path) -> list[str]:
    path = folder / "ran"
    return path.read_text().split() if path.exists() else []


def test_a_pair_is_found_with_its_proofs_and_drawn(
    tmp_path: Path, bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect('[ "$B$D" != 11 ]', "--plot") == 1
    printed = capsys.readouterr().out
    assert "switches: wrong\n  together, none of them alone: env:B=1|0, env:D=1|0\n" in printed
    assert "    shell: export B=0\n" in printed
    found = rows(tmp_path)
    assert len(found) == len(ran(tmp_path)) <= 25
    said = next(line for line in printed.splitlines() if line.startswith("  wrong with it alone"))
    (proof,) = (row for row in found if row["Trial"] == said.rpartition(" ")[2])
    assert (proof["Enabled"], proof["Verdict"]) == ("only 2,4 of 4 (env:B=1|0, env:D=1|0)", "FAIL")
    assert (proof["Exit"], proof["Message"]) == ("1", "it ended with 1")
    drawn = printed.partition("How the set shrank, in switches suspected")[2].splitlines()
    bars = [words for line in drawn if (words := line.split()) and words[0] == "trial"]
    assert sorted(words[1] for words in bars) == sorted(row["Trial"] for row in found)
    sizes = [int(words[3]) for words in bars]
    assert (max(sizes), sizes[0], sizes[-1]) == (4, 4, 2)


def test_alternatives_are_all_listed(bisect: Bisect, capsys: pytest.CaptureFixture[str]) -> None:
    assert bisect("[ $A = 0 ] && [ $C = 0 ]") == 1
    printed = capsys.readouterr().out
    assert "2 alternatives, each wrong by itself:\n    env:A=1|0\n    env:C=1|0\n" in printed
    assert "right without: env:A=1|0, env:C=1|0" in printed


def test_nothing_to_find_is_0_and_wrong_with_everything_off_is_1(
    bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect("true") == 0
    assert "switches: right" in capsys.readouterr().out
    assert bisect("false", out="other") == 1
    assert "switches: wrong with all of it off" in capsys.readouterr().out


def test_a_result_that_is_wrong_by_chance_accuses_nobody(
    tmp_path: Path, bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    # The checksum of how many runs there were decides, whatever is on: the same answers with one worker.
    script = f"n=$(wc -l < {tmp_path}/ran | cksum | cut -d' ' -f1); [ $((n / 7 % 2)) = 0 ]"
    assert bisect(script, "-d", "0") == 0
    assert "numeric noise, no culprit" in capsys.readouterr().out


def test_crashes_are_unresolved_or_what_is_looked_for(
    bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = "[ $C = 1 ] && kill -SEGV $$; exit 0"
    assert bisect(crash) == 4
    assert "switches: no answer: it ended with SIGSEGV" in capsys.readouterr().out
    assert bisect(crash, "--fail-on", "raise", out="other") == 1
    assert "env:C=1|0 makes the result wrong" in capsys.readouterr().out


def test_a_limit_of_trials_gives_what_is_known(
    tmp_path: Path, bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    many = [f"env:S{number}=1|0" for number in range(32)]
    assert bisect("[ $S20 = 0 ]", "--trials", "9", switches=many) == 1
    printed = capsys.readouterr().out
    assert "the trials or the time were used up before the search ended" in printed
    line = next(line for line in printed.splitlines() if "what is wrong is among these" in line)
    assert "S20" in line
    assert int(line.split("these ")[1].partition(":")[0]) <= 16
    assert len(rows(tmp_path)) <= 9


def test_a_limit_of_time_ends_a_search(bisect: Bisect, capsys: pytest.CaptureFixture[str]) -> None:
    many = [f"env:S{number}=1|0" for number in range(32)]
    code = bisect("sleep 1; [ $S0 = 0 ]", "--minutes", "0.1", switches=many)
    printed = capsys.readouterr().out
    assert "used up" in printed
    # On a machine that is busy not even the ends may have been answered in six seconds.
    assert code in (1, 4)
    said = ("what is wrong is among these", "wrong alone, not proven to be all")
    named = [line for line in printed.splitlines() if any(each in line for each in said)]
    assert len(named) == (code == 1)
    assert all("env:S0=1|0" in line for line in named)


def test_repeats_say_how_often_the_top_is_tried_before_it_is_right(
    tmp_path: Path, bisect: Bisect
) -> None:
    assert bisect("true", "--repeats", "5", "-d", "0") == 0
    # The lower end is tried twice, and no more where the upper one is right each time.
    assert sorted(ran(tmp_path)) == ["0000"] * 2 + ["1111"] * 5


def test_a_dry_run_runs_nothing(
    tmp_path: Path, bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect("true", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "Rung switches: 4 switches",
        "  1 env:A=1|0; shell: export A=0",
    ]
    assert ran(tmp_path) == []
    assert not (tmp_path / "out").exists()


def cut(folder: Path, count: int) -> None:
    """Leave so many trials in the table of a run, as if it had been killed."""
    (table,) = (folder / "out").glob("bisect_2*.csv")
    lines = table.read_bytes().splitlines(keepends=True)
    table.write_bytes(b"".join(lines[: count + 1]))


def test_what_was_answered_is_not_run_again(
    tmp_path: Path, bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect("[ $D = 0 ]") == 1
    answer = capsys.readouterr().out
    before = rows(tmp_path)
    (tmp_path / "ran").unlink()
    assert bisect("[ $D = 0 ]", "-csv_path", "out") == 1
    assert ran(tmp_path) == []
    assert capsys.readouterr().out == answer
    cut(tmp_path, 7)
    assert bisect("[ $D = 0 ]", "-csv_path", "out") == 1
    assert len(ran(tmp_path)) == len(rows(tmp_path)) - 7
    assert rows(tmp_path)[:7] == before[:7]


@pytest.mark.parametrize("what", ["switches", "file", "command", "check"])
def test_a_run_with_other_settings_is_not_gone_on_with(
    tmp_path: Path, bisect: Bisect, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    (tmp_path / "conf").write_text("a\nb\n")
    asked: dict[str, Any] = {"switches": ["line:conf:a", "env:A=1|0"]}
    assert bisect("cat conf >> /dev/null", **asked) == 0
    if what == "switches":
        asked["switches"] = ["line:conf:b", "env:A=1|0"]
    if what == "file":
        (tmp_path / "conf").write_text("a\nb\nc\n")
    script = "cat conf > /dev/null" if what == "command" else "cat conf >> /dev/null"
    more = ["--check", "true"] if what == "check" else []
    (tmp_path / "ran").unlink()
    capsys.readouterr()
    assert bisect(script, "-csv_path", "out", *more, **asked) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "out" in line
    assert "--force" in line
    assert ran(tmp_path) == []


def test_retry_skip_runs_trials_without_an_answer_again(tmp_path: Path, bisect: Bisect) -> None:
    mended = tmp_path / "mended"
    script = f"[ $A$B = 10 ] && [ ! -e {mended} ] && exit 125; [ $B = 0 ]"
    assert bisect(script) == 1
    skipped = [row["Enabled"] for row in rows(tmp_path) if row["Verdict"] == "UNRESOLVED"]
    assert skipped
    mended.touch()
    assert bisect(script, "-csv_path", "out", "--retry", "skip") == 1
    after = {row["Enabled"]: row["Verdict"] for row in rows(tmp_path)}
    assert "UNRESOLVED" not in after.values()
    assert set(skipped) & set(after)


def test_two_bisects_at_once_into_one_folder_keep_out_of_each_others_way(
    tmp_path: Path, bisect: Bisect
) -> None:
    words = [word for each in FOUR for word in ("--switch", each)]
    command = [
        sys.executable,
        "-m",
        "ray_precheck",
        "bisect",
        "run",
        *words,
        "-o",
        "out",
        "-d",
        "0",
    ]
    both = [
        subprocess.Popen(
            [*command, "--", "sh", "-c", f"sleep 0.05; [ ${name} = 0 ]"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        for name in "AD"
    ]
    for name, process in zip("AD", both, strict=True):
        printed, errors = process.communicate(timeout=120)
        assert process.returncode == 1, errors
        assert f"env:{name}=1|0 makes the result wrong" in printed
    assert len(list((tmp_path / "out").glob("bisect_2*.csv"))) == 2


def test_bad_input_is_one_sentence(
    tmp_path: Path, bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: object) -> str:
        assert main(["bisect", *map(str, words)]) == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert line.startswith("ray-precheck: error: ")
        return line

    one = ["--switch", "env:A=1|0"]
    assert "the nearest is run" in said("rnu")
    assert "the command is missing" in said("run", *one)
    assert "nothing to switch" in said("run", "--", "true")
    assert "two searches" in said("run", *one, "--commits", "A..B", "--", "true")
    assert "both judge a trial" in said(
        "run", *one, "--check", "true", "--own-error", "x", "--", "true"
    )
    assert "leave --check" in said(
        "run", *one, "--check", "true", "--fail-on", "raise", "--", "true"
    )
    assert "--tolerance needs --own-error" in said("run", *one, "--tolerance", "1", "--", "true")
    assert "no such program" in said("run", *one, "--", "nowhere")
    (tmp_path / "text").write_text("x")
    assert "it is no program that may be executed" in said("run", *one, "--", "./text")
    assert "--check nowhere cannot be started" in said(
        "run", *one, "--check", "nowhere", "--", "true"
    )
    assert "--json" in said("run", *one, "--json", "nowhere/b.json", "--", "true")
    file = tmp_path / "text"
    assert str(file) in said("run", *one, "-o", file, "--", "true")
    for code, why in ((125, "it cannot tell"), (127, "a program is not there")):
        assert bisect(f"echo so; exit {code}", out=f"out{code}") == 2
        line = capsys.readouterr().err.strip()
        assert "with everything off there is no answer" in line
        assert f"it ended with {code}: so ({why})" in line
