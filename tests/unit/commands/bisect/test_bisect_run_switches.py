"""What switches make of a command: its words, environment and files; ready lists; bad ones."""

import json
import os
from pathlib import Path

import pytest

from ray_precheck.commands.bisect.targets.command.switches import (
    Wiring,
    parse_switches,
    switches_in,
    with_path,
)
from ray_precheck.errors import UsageError
from ray_precheck.searching.bisection import RungSwitch

pytestmark = pytest.mark.unit
COMMAND = ("run.sh", "--fast", "--mode", "a b")


def parsed(
    *words: str, command: tuple[str, ...] = COMMAND, env: dict[str, str] | None = None
) -> tuple[tuple[RungSwitch, ...], Wiring]:
    return parse_switches(words, command, env or {})


def trial(
    wiring: Wiring, folder: Path, *on: str, env: dict[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    folder.mkdir(parents=True, exist_ok=True)
    return wiring.command_of(frozenset(on), env or {}, folder)


def refused(*words: str, command: tuple[str, ...] = COMMAND) -> str:
    with pytest.raises(UsageError) as error:
        parsed(*words, command=command)
    (line,) = str(error.value).splitlines()
    return line


def test_a_variable_has_its_side_and_is_removed_where_nothing_stands(tmp_path: Path) -> None:
    _, wiring = parsed("env:A=1|", "env:B=|x y")
    env = {"A": "own", "B": "own", "C": "c"}
    assert trial(wiring, tmp_path, "env:A=1|", env=env)[1] == {"A": "1", "B": "x y", "C": "c"}
    assert trial(wiring, tmp_path, "env:B=|x y", env=env)[1] == {"C": "c"}


def test_words_are_replaced_where_they_stand_and_else_put_behind(tmp_path: Path) -> None:
    _, wiring = parsed("arg:--fast|--slow", "arg:--mode 'a b'", "arg:--new 1", "arg:|--exact")
    on = trial(wiring, tmp_path, *wiring.wired)[0]
    assert on == ["run.sh", "--fast", "--mode", "a b", "--new", "1"]
    assert trial(wiring, tmp_path)[0] == ["run.sh", "--slow", "--exact"]


def test_a_copy_is_without_the_lines_that_are_off(tmp_path: Path) -> None:
    config = tmp_path / "conf"
    config.write_bytes(b"one\n  two\x85\xff \nthree\x0cx\ntwo\n")
    config.chmod(0o750)
    _, wiring = parsed(
        f"line:{config}:three\x0cx", f"line:{config}:one", command=("cat", str(config))
    )
    words, env = trial(wiring, tmp_path / "1", f"line:{config}:one", env={"CONF": f"x={config}"})
    copy = tmp_path / "1" / "file0" / "conf"
    assert words == ["cat", str(copy)]
    assert env == {"CONF": f"x={copy}"}
    assert copy.read_bytes() == b"one\n  two\x85\xff \ntwo\n"
    assert os.stat(copy).st_mode & 0o777 == 0o750
    assert config.read_bytes().count(b"\n") == 4


def test_files_of_one_name_have_copies_of_their_own(tmp_path: Path) -> None:
    names = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "conf").write_text(f"{folder}\n")
        names.append(str(tmp_path / folder / "conf"))
    _, wiring = parsed(*(f"line:{name}:{name[-6]}" for name in names), command=("cat", *names))
    words, _ = trial(wiring, tmp_path / "1", f"line:{names[0]}:a")
    assert [Path(word).read_text() for word in words[1:]] == ["a\n", ""]


def test_a_path_is_replaced_where_it_stands_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    copy = Path("/copy")
    for word, expected in {
        "conf": "/copy",
        "./conf": "/copy",
        f"--file={tmp_path}/conf": "--file=/copy",
        "cat conf | sort": "cat /copy | sort",
        "conf_reader.py": "conf_reader.py",
        "other/conf": "other/conf",
        "conf.py": "conf.py",
        "myconf": "myconf",
    }.items():
        assert with_path(word, "conf", copy) == expected


def test_a_file_that_nothing_names_is_told(tmp_path: Path) -> None:
    config = tmp_path / "conf"
    config.write_text("one\n")
    _, wiring = parsed(f"line:{config}:one")
    assert wiring.unnamed_files({}) == [str(config)]
    assert wiring.unnamed_files({"CONF": str(config)}) == []


def test_attributes_are_told_to_the_pythons_of_the_command(tmp_path: Path) -> None:
    _, wiring = parsed("py:json.X=1|", "py:json.Y=|'a'")
    env = trial(wiring, tmp_path, env={"PYTHONPATH": "/mine"})[1]
    assert env["BISECT_ATTRIBUTES"] == "json.Y='a'"
    assert env["PYTHONPATH"].endswith("/site:/mine")
    assert "BISECT_ATTRIBUTES" not in trial(wiring, tmp_path, "py:json.Y=|'a'")[1]


def test_a_switch_says_how_it_is_switched_off_for_good(tmp_path: Path) -> None:
    config = tmp_path / "conf"
    config.write_text("one\n")
    words = (
        "env:A=1|0 0",
        "env:B=1|",
        "arg:--fast|--slow",
        f"line:{config}:one",
        "py:json.X=|2",
        "py:json.Y=3|",
    )
    switches, _ = parsed(*words)
    assert [each.lines[0] for each in switches] == [
        ("shell", "export A='0 0'"),
        ("shell", "unset B"),
        ("shell", "leave out --fast and give --slow"),
        ("file", f"{config}: remove the line 'one'"),
        ("Python", "import json; json.X = 2"),
        ("Python", "leave out json.Y = 3"),
    ]


def test_a_file_of_switches_has_one_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "switches"
    path.write_text("# all of them\nenv:A=1|0\n\n  arg:--x #1  \n")
    assert switches_in(path) == ["env:A=1|0", "arg:--x #1"]


def test_bad_switches_are_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "config.ini"
    config.write_text("alpha=1\nbeta=2\n")
    assert "no switch; the nearest is 'env'; expected env:NAME=ON|OFF" in refused("enf:A=1|0")
    assert "no switch; expected env:NAME=ON|OFF" in refused("A=1")
    assert "says not what is on and off; expected env:NAME=ON|OFF" in refused("env:A=1")
    assert "on and off are the same" in refused("env:A=1|1")
    assert "is given twice" in refused("env:A=1|0", "env:A=1|0")
    assert "'1+' is no value of Python" in refused("py:json.x=1+|2")
    assert "expected py:MODULE.NAME=ON|OFF" in refused("py:json=1|2")
    assert "are no words of a shell" in refused("arg:'a")
    assert "names no line" in refused(f"line:{config}")
    assert "has no line 'alpha=2'; the nearest is 'alpha=1'" in refused(f"line:{config}:alpha=2")
    assert "No such file or directory; the nearest is 'config.ini'" in refused(
        f"line:{tmp_path}/confg.ini:x"
    )
    assert "no list 'torhc'; the nearest is torch" in refused("list:torhc")
    assert "takes no file" in refused("list:torch:x")
    with pytest.raises(UsageError, match=r"cannot read .*nowhere"):
        switches_in(tmp_path / "nowhere")


def test_lists_switch_off_what_is_there() -> None:
    command = ("load_and_run", "m.mge", "--enable-nchw44", "--fast_run=true", "--input", "x.npy")
    switches, _ = parsed("list:megengine", "list:nvidia", command=command)
    assert [each.name for each in switches] == [
        "env:MGB_USE_MEGDNN_DBG=|2",
        "arg:--enable-nchw44",
        "arg:--fast_run=true",
        "arg:|--reproducible",
        "env:NVIDIA_TF32_OVERRIDE=|0",
    ]
    off = {"NVIDIA_TF32_OVERRIDE": "0"}
    with pytest.raises(UsageError, match="all of it is off already"):
        parsed("list:nvidia", env=off)


def fusion_files(folder: Path) -> tuple[Path, Path]:
    """Write a fusion_switch.cfg and the fusion_result.json of a run with it."""
    config, result = folder / "fusion_switch.cfg", folder / "fusion_result.json"
    passes = {
        "GraphFusion": {"AFusionPass": "on", "GoneFusionPass": "off"},
        "UBFusion": {"ALL": "off"},
    }
    config.write_text(json.dumps({"RungSwitch": passes, "Other": 1}))
    times = {"BFusionPass": {"effect_times": "2", "match_times": "3"}}
    result.write_text(json.dumps([{"graphId": "0", "graph_fusion": times}] * 2))
    return config, result


def test_passes_of_ascend_are_switched_in_a_copy(tmp_path: Path) -> None:
    config, _ = fusion_files(tmp_path)
    switches, wiring = parsed(
        f"list:ascend:{config}", command=("atc", f"--fusion_switch_file={config}")
    )
    assert {each.name: each.hits for each in switches} == {
        "pass:GraphFusion.AFusionPass": 0,
        "pass:GraphFusion.BFusionPass": 4,
        "pass:GraphFusion.ALL": None,
    }
    words, _ = trial(wiring, tmp_path / "1", "pass:GraphFusion.BFusionPass")
    assert json.loads(Path(words[1].partition("=")[2]).read_text()) == {
        "RungSwitch": {
            "GraphFusion": {
                "AFusionPass": "off",
                "GoneFusionPass": "off",
                "BFusionPass": "on",
                "ALL": "off",
            },
            "UBFusion": {"ALL": "off"},
        },
        "Other": 1,
    }
    words, _ = trial(wiring, tmp_path / "2", *wiring.wired)
    found = json.loads(Path(words[1].partition("=")[2]).read_text())["RungSwitch"]["GraphFusion"]
    assert found == {"AFusionPass": "on", "GoneFusionPass": "off", "BFusionPass": "on"}
    assert switches[0].lines == (
        ("file", f'{config}: {{"Switch": {{"GraphFusion": {{"AFusionPass": "off"}}}}}}'),
    )


def test_bad_files_of_ascend_are_one_sentence(tmp_path: Path) -> None:
    config, result = fusion_files(tmp_path)
    assert "needs a file" in refused("list:ascend")
    assert "No such file" in refused(f"list:ascend:{tmp_path}/none.cfg")
    result.write_text("{")
    assert "fusion_result.json" in refused(f"list:ascend:{config}")
    config.write_text("[1]")
    assert "is no fusion_switch.cfg" in refused(f"list:ascend:{config}")
    config.write_text("{")
    assert "it is no JSON" in refused(f"list:ascend:{config}")
