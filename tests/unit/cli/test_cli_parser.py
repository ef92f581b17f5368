"""Command lines: msprobe's, our own, and the one to go on with."""

import json
import shlex
from pathlib import Path

import pytest

from ray_precheck.cli import COMMANDS, build_parser, resume_command, run_config
from ray_precheck.errors import UsageError
from ray_precheck.replay.config import RunConfig

pytestmark = pytest.mark.unit

DUMP = Path("./dump.json")


def parsed(line: str) -> RunConfig:
    """The configuration that a command line asks for."""
    return run_config(build_parser().parse_args(shlex.split(line)))


@pytest.mark.parametrize(
    ("line", "config"),
    [
        (
            "-f mindspore run_ut -api_info ./dump.json -o ./checker_result",
            RunConfig(DUMP, "mindspore", out=Path("./checker_result")),
        ),
        (
            "-f mindspore multi_run_ut -api_info ./dump.json -d 0 1 2 3",
            RunConfig(DUMP, "mindspore", devices=(0, 1, 2, 3)),
        ),
        (
            "-f mindspore run_ut -api_info ./dump.json"
            " -csv_path ./accuracy_checking_result_20260101120000.csv",
            RunConfig(
                DUMP,
                "mindspore",
                resume_csv=Path("./accuracy_checking_result_20260101120000.csv"),
            ),
        ),
        (
            "--framework pytorch acc_check --api_info_file ./dump.json --out_path /tmp/o"
            " --device 3 --result_csv_path r.csv -save_error_data",
            RunConfig(
                DUMP,
                "pytorch",
                out=Path("/tmp/o"),
                devices=(3,),
                resume_csv=Path("r.csv"),
                save_error_data=True,
            ),
        ),
    ],
)
def test_command_lines_of_msprobe_are_understood(line: str, config: RunConfig) -> None:
    assert parsed(line) == config


@pytest.mark.parametrize("command", ["run_ut", "multi_run_ut", "acc_check", "multi_acc_check"])
def test_every_command_of_msprobe_is_there(command: str) -> None:
    assert command in {name for each in COMMANDS for name in each.names}
    assert parsed(f"{command} -api_info ./dump.json") == RunConfig(DUMP)


@pytest.mark.parametrize("option", ["-f", "--framework"])
def test_the_framework_may_stand_before_or_after_the_command(option: str) -> None:
    expected = RunConfig(DUMP, "pytorch")
    assert parsed(f"{option} pytorch run_ut -api_info ./dump.json") == expected
    assert parsed(f"run_ut {option} pytorch -api_info ./dump.json") == expected
    assert parsed(f"run_ut -api_info ./dump.json {option} pytorch") == expected


@pytest.mark.parametrize(
    ("line", "framework"),
    [
        ("run_ut -api_info ./dump.json -f", ""),
        ("run_ut -f -api_info ./dump.json", ""),
        ("-f pytorch run_ut -f -api_info ./dump.json", "pytorch"),
        ("-f pytorch multi_run_ut -api_info ./dump.json -d 0 -f", "pytorch"),
        ("run_ut -f -api_info ./dump.json -f pytorch", "pytorch"),
        ("run_ut -f -api_info ./dump.json --framework pytorch", "pytorch"),
    ],
)
def test_f_alone_after_the_command_is_msprobes_filter_api(line: str, framework: str) -> None:
    assert parsed(line) == RunConfig(DUMP, framework, filter_alike=True)


@pytest.mark.parametrize("name", ["jax", "./dump.json", "PyTorch"])
def test_f_after_the_command_with_another_word_is_an_error_that_tells_both_meanings(
    name: str,
) -> None:
    with pytest.raises(UsageError) as wrong:
        parsed(f"run_ut -api_info ./dump.json -f {name}")
    assert str(wrong.value) == (
        f"-f '{name}': after the command, -f alone means --filter_api and -f"
        f" mindspore|pytorch|mindtorch names the framework; '{name}' is neither"
    )


def test_f_before_the_command_is_never_filter_api() -> None:
    with pytest.raises(UsageError, match="-f for --filter_api stands after the command"):
        parsed("-f run_ut -api_info ./dump.json")


def test_the_config_of_msprobe_gives_lists_and_the_folder_of_error_data(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    lists = {"white_list": ["conv2d", "linear"], "black_list": ["relu"]}
    config.write_text(json.dumps({"acc_check": {**lists, "error_data_path": str(tmp_path)}}))
    expected = RunConfig(
        DUMP,
        white_list=("conv2d", "linear"),
        black_list=("relu",),
        error_data_path=tmp_path,
    )
    for option in ("-config", "--config_path"):
        assert parsed(f"run_ut -api_info ./dump.json {option} {config}") == expected


def test_patterns_are_collected() -> None:
    line = "run_ut -api_info ./dump.json -k matmul -k 'not Tensor.'"
    assert parsed(line) == RunConfig(DUMP, keywords=("matmul", "not Tensor."))


@pytest.mark.parametrize("option", ["-n 8", "--num_splits 64", "-n 1", "-j", "--jit_compile"])
def test_options_of_msprobe_that_change_nothing_are_accepted(option: str) -> None:
    assert parsed(f"multi_run_ut -api_info ./dump.json {option}") == RunConfig(DUMP)


@pytest.mark.parametrize("option", ["-api_info", "-csv_path", "-config"])
def test_two_files_for_one_option_are_an_error(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} is given twice, as a.json and as b.json"):
        parsed(
            f"run_ut -api_info d.json {option} a.json {option} b.json".replace(
                "-api_info d.json ", "" if option == "-api_info" else "-api_info d.json "
            )
        )


def test_the_framework_may_be_left_out() -> None:
    assert parsed("run_ut -api_info ./dump.json").framework == ""


def test_our_own_options_are_understood() -> None:
    assert parsed(
        "run_ut -api_info ./dump.json --address ray://h:1 --device-type npu --seed 7"
        " --timeout 2.5 --standard msprobe --tested device --debug"
        " --force --retry error crash"
    ) == RunConfig(
        DUMP,
        force=True,
        retry=("error", "crash"),
        address="ray://h:1",
        device_type="npu",
        seed=7,
        timeout_s=2.5,
        tested="device",
        debug=True,
    )


@pytest.mark.parametrize("value", ["all", "node-a:0-3,6,node-b:0"])
def test_devices_of_the_cluster_are_named_instead_of_ids(value: str) -> None:
    config = parsed(f"run_ut -api_info ./dump.json --devices {value} --exclude node-c,node-a:1")
    assert config == RunConfig(DUMP, devices=value, exclude="node-c,node-a:1")


@pytest.mark.parametrize("ids", ["-d 0", "--device 0 1", "-d 1"])
def test_ids_and_devices_of_the_cluster_exclude_each_other(ids: str) -> None:
    with pytest.raises(UsageError, match="-d and --devices exclude each other"):
        parsed(f"run_ut -api_info d.json --devices all {ids}")


def test_options_of_the_bench_are_understood() -> None:
    line = "run_ut -api_info ./dump.json --bench-workers 0 --bench-budget 7.5 --shared-fs"
    assert parsed(line) == RunConfig(DUMP, bench_workers=0, bench_budget_s=7.5, shared_fs=True)
    assert RunConfig(DUMP).bench_workers is None


@pytest.mark.parametrize("option", ["-filter_api", "--filter_api", "--filter-api"])
def test_alike_calls_are_filtered_by_choice_under_every_spelling(option: str) -> None:
    assert not parsed("-f pytorch run_ut -api_info ./dump.json").filter_alike
    for line in (
        f"-f pytorch run_ut -api_info ./dump.json {option}",
        f"-f pytorch run_ut {option} -api_info ./dump.json",
        f"run_ut {option} -f pytorch -api_info ./dump.json",
    ):
        assert parsed(line) == RunConfig(DUMP, "pytorch", filter_alike=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "required: COMMAND"),
        ("run_ut -api_info d.json --devices", "expected one argument"),
        ("run_ut -api_info d.json --bench-workers few", "invalid int value: 'few'"),
        ("run_ut -api_info d.json --bench-budget soon", "invalid float value: 'soon'"),
        ("run_ut", "-api_info"),
        ("run_it -api_info d.json", "run_it"),
        ("run_ut -api_info d.json -d one", "invalid int value: 'one'"),
        ("run_ut -api_info d.json -d", "expected at least one argument"),
        ("run_ut -api_info d.json --seed 1.5", "invalid int value: '1.5'"),
        ("run_ut -api_info d.json --retry", "expected at least one argument"),
        ("run_ut -api_info d.json --timeout soon", "invalid float value: 'soon'"),
        ("run_ut -api_info d.json --colour red", "unrecognized arguments: --colour red"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(line: str, message: str) -> None:
    with pytest.raises(UsageError) as wrong:
        parsed(line)
    assert message in str(wrong.value)
    assert str(wrong.value).endswith("(see ray-precheck --help)")


RESULT = Path("/o/accuracy_checking_result_1.csv")
BEGIN = "-f mindspore run_ut -api_info d.json"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (BEGIN, BEGIN),
        (f"{BEGIN} -csv_path old.csv", BEGIN),
        (f"{BEGIN} -csv_path=old.csv", BEGIN),
        (f"{BEGIN} --result_csv_path old.csv -d 0 1", f"{BEGIN} -d 0 1"),
        (f"{BEGIN} --result_csv_path=old.csv --seed 3", f"{BEGIN} --seed 3"),
        (f"-csv_path old.csv {BEGIN}", BEGIN),
        (f"{BEGIN} -csv_path old.csv --force", BEGIN),
        (f"{BEGIN} --force --seed 3 --retry skip", f"{BEGIN} --seed 3"),
        (f"{BEGIN} --retry error skip crash -d 0 1", f"{BEGIN} -d 0 1"),
        (f"{BEGIN} --retry=error -csv_path old.csv -d 0 1", f"{BEGIN} -d 0 1"),
        (
            f"{BEGIN} --devices a:0-3,b:0 --exclude a:1 -filter_api -csv_path old.csv --shared-fs",
            f"{BEGIN} --devices a:0-3,b:0 --exclude a:1 -filter_api --shared-fs",
        ),
        (
            f"{BEGIN} -filter_api --force --bench-workers 2",
            f"{BEGIN} -filter_api --bench-workers 2",
        ),
        (
            f"{BEGIN} -config c.json -k conv -f -csv_path old.csv -n 4",
            f"{BEGIN} -config c.json -k conv -f -n 4",
        ),
        (f"{BEGIN} --forc --retr error skip --timeout 3", f"{BEGIN} --timeout 3"),
    ],
)
def test_the_command_to_go_on_names_the_new_result_csv_alone(given: str, kept: str) -> None:
    assert resume_command(given.split(), RESULT) == f"ray-precheck {kept} -csv_path {RESULT}"


def test_the_command_to_go_on_can_be_pasted_into_a_shell() -> None:
    given = ["run_ut", "-api_info", "my dumps/dump's $1.json", "-d", "0", "1"]
    result = Path("/my results/accuracy_checking_result_1.csv")
    line = resume_command(given, result)
    assert shlex.split(line) == ["ray-precheck", *given, "-csv_path", str(result)]
    config = parsed(line.removeprefix("ray-precheck "))
    assert (config.dump, config.resume_csv) == (Path(given[2]), result)
    assert config.devices == (0, 1)


def test_the_command_to_go_on_leaves_the_words_of_a_bisected_command_alone() -> None:
    given = ["bisect", "run", "-csv_path", "old.csv", "--switch", "env:A=1|0", "--"]
    command = ["python", "run.py", "-csv_path", "theirs.csv"]
    found = shlex.split(resume_command([*given, *command], RESULT))
    assert found == [
        *("ray-precheck", "bisect", "run", "--switch", "env:A=1|0", "-csv_path", str(RESULT), "--"),
        *command,
    ]


def test_the_command_to_go_on_outdoes_an_abbreviated_option() -> None:
    line = resume_command([*BEGIN.split(), "--result_csv", "old.csv"], RESULT)
    assert parsed(line.removeprefix("ray-precheck ")).resume_csv == RESULT


@pytest.mark.parametrize(
    ("line", "as_msprobe"),
    [
        ("multi_run_ut -api_info ./dump.json -save_error_data", True),
        ("multi_run_ut -api_info ./dump.json -save_error_data -o out", False),
        ("run_ut -api_info ./dump.json -save_error_data", False),
        ("multi_run_ut -api_info ./dump.json", False),
    ],
)
def test_several_devices_without_o_save_what_fails_where_msprobe_does(
    line: str, *, as_msprobe: bool
) -> None:
    assert parsed(line).error_data_as_msprobe is as_msprobe
