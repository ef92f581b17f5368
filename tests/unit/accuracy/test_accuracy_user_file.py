"""Standards that users write down."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from standard_cases import comparison

from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.accuracy.standards.base import added_headings
from ray_precheck.accuracy.standards.published import Benchmark, Binary, Thousandth, Ulp
from ray_precheck.accuracy.standards.user_file import (
    Rule,
    UserStandard,
    load_standard,
    parse_standard,
)
from ray_precheck.errors import UsageError
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.unit

EXAMPLE = """\
standard: thousandth
limits:
  ulp: {mean: 128}
rules:
  - api: [matmul, "Mint.*norm*"]
    dtype: [float16, torch.bfloat16]
    direction: backward
    standard: benchmark
    limits: {level: L1, rmse: 3}
  - api: matmul
    standard: ulp
    limits: {share: 1e-2}
  - dtype: Float16
    standard: binary
"""


def parsed(text: str) -> UserStandard:
    return parse_standard(text.encode(), "my.yaml")


def chosen(standard: UserStandard, api: str, dtype: str, direction: str) -> object:
    case = comparison([1.0], [1.0], dtype, api=api, direction=direction)
    return next(rule.standard for rule in standard.rules if rule.fits(case))


@pytest.mark.parametrize(
    ("api", "dtype", "direction", "expected"),
    [
        ("Torch.matmul", "float16", "backward", Benchmark(level="L1", rmse=3.0)),
        ("Mint.matmul", "bfloat16", "backward", Benchmark(level="L1", rmse=3.0)),
        ("Mint.layer_norm", "float16", "backward", Benchmark(level="L1", rmse=3.0)),
        ("Torch.layer_norm", "float16", "backward", Binary()),
        ("Torch.matmul", "float16", "forward", Ulp(mean=128.0, share=0.01)),
        ("Torch.matmul", "float32", "backward", Ulp(mean=128.0, share=0.01)),
        ("Torch.exp", "float16", "forward", Binary()),
        ("Torch.exp", "float32", "forward", Thousandth()),
    ],
)
def test_the_first_rule_that_fits_counts(
    api: str, dtype: str, direction: str, expected: object
) -> None:
    assert chosen(parsed(EXAMPLE), api, dtype, direction) == expected


def test_an_output_is_judged_by_the_standard_of_its_rule() -> None:
    standard = parsed(EXAMPLE)
    off = [1.0] * 9 + [1.5], [1.0] * 10
    assert standard.judge(comparison(*off, api="Torch.exp")).verdict is Verdict.ERROR
    found = standard.judge(comparison(*off, api="Torch.matmul"))
    assert found.verdict is Verdict.ERROR
    assert "must be below 0.01" in found.message
    assert dict(found.columns)["Standard"] == "ulp"


def test_the_default_of_a_file_is_auto() -> None:
    assert chosen(parsed("rules: []"), "Torch.exp", "float32", "forward") == Auto()
    assert chosen(parsed("{}"), "Torch.exp", "float32", "forward") == Auto()


def test_the_row_of_a_standard_that_says_nothing_names_it() -> None:
    found = parsed("standard: msprobe").judge(comparison([1.0], [1.0]))
    assert found.columns == (("Standard", "msprobe"),)


@pytest.mark.parametrize("name", ["auto", "ulp", "binary", "published"])
def test_a_row_names_its_standard_once(name: str) -> None:
    bench = np.array([1.0, 2.0])
    found = parsed(f"standard: {name}").judge(
        comparison(bench + 0.5, bench, implementations=[bench])
    )
    assert len([heading for heading, _ in found.columns if heading == "Standard"]) == 1
    assert len(found.columns) > 1


def test_the_columns_are_those_of_all_its_standards() -> None:
    headings = added_headings(parsed(EXAMPLE))
    for standard in (Benchmark(), Ulp(), Binary(), Thousandth()):
        assert set(standard.columns) <= set(headings)
    assert len(set(headings)) == len(headings)


def test_the_content_is_part_of_the_name_and_comments_are_not() -> None:
    same = parsed("# another comment\n" + EXAMPLE.replace("{share: 1e-2}", "{ share: 1e-2 }"))
    assert same.name == parsed(EXAMPLE).name
    assert same.name.startswith("file ")
    assert parsed(EXAMPLE.replace("128", "129")).name != same.name


def test_it_crosses_processes_by_value() -> None:
    standard = parsed(EXAMPLE)
    assert pickle.loads(pickle.dumps(standard)) == standard


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": None where a mapping of standard, limits, rules is expected"),
        ("[1]", ": [1] where a mapping of standard, limits, rules is expected"),
        ("a: b", ": 'a' where one of these words: standard, limits, rules is expected"),
        ("standard: loose", ", standard: 'loose' where one of msprobe, auto, published"),
        ("standard: [ulp]", ", standard: ['ulp'] where one of msprobe"),
        ("limits: 3", ", limits: 3 where a mapping of msprobe, auto"),
        ("limits: {lup: {}}", ", limits: 'lup' where one of these words: msprobe"),
        (
            "standard: ulp\nlimits: {ulp: {meen: 2}}",
            ", limits.ulp: 'meen' where one of these words: threshold, mean, share is expected",
        ),
        (
            "standard: ulp\nlimits: {ulp: {mean: -2}}",
            ", limits.ulp.mean: -2 where a number that is 0 or larger is expected",
        ),
        ("standard: ulp\nlimits: {ulp: {mean: yes}}", ", limits.ulp.mean: True where a number"),
        ("standard: ulp\nlimits: {ulp: {mean: .nan}}", ", limits.ulp.mean: nan where a number"),
        ("standard: ulp\nlimits: {ulp: {mean: few}}", ", limits.ulp.mean: 'few' where a number"),
        ("standard: ulp\nlimits: {ulp: {mean: [1]}}", ", limits.ulp.mean: [1] where a number"),
        (
            "limits: {benchmark: {level: L9}}",
            ", limits.benchmark.level: 'L9' where one of L0, L1, L2 is expected",
        ),
        (
            "standard: binary\nlimits: {ulp: {mean: 2}}",
            ", limits: 'ulp' where a standard that the file uses is expected",
        ),
        ("rules: 3", ", rules: 3 where a list of rules is expected"),
        ("rules: [3]", ", rules[0]: 3 where a mapping of api, dtype, direction"),
        ("rules: [{standard: ulp}, {api: x}]", ", rules[1]: {'api': 'x'} where a rule with a"),
        ("rules: [{standard: ulp, api: []}]", ", rules[0].api: [] where a name or a list"),
        ("rules: [{standard: ulp, api: 3}]", ", rules[0].api: 3 where a name or a list"),
        (
            "rules: [{standard: ulp, dtype: float13}]",
            ", rules[0].dtype: 'float13' where one or more of float64, float32",
        ),
        (
            "rules: [{standard: ulp, direction: up}]",
            ", rules[0].direction: 'up' where forward or backward is expected",
        ),
        ("rules: [{standard: ulp, dtpye: float16}]", ", rules[0]: 'dtpye' where one of these"),
        ("rules: [{standard: ulp, limits: 3}]", ", rules[0].limits: 3 where a mapping of"),
        ("rules: [{standard: ulp, limits: {rmse: 3}}]", ", rules[0].limits: 'rmse' where one of"),
        ("a: &x [*x]", ", line 1 is no YAML that can be read: an alias (*) is not allowed"),
        ("rules: []\nrules: []", ", line 2 is no YAML that can be read: 'rules' stands twice"),
        ("? [a, [b]]\n: 1", ", line 1 is no YAML that can be read: ['a', ['b']] is no text"),
        ("1: 2", ", line 1 is no YAML that can be read: 1 is no text"),
        ("a: [", ", line 1 is no YAML that can be read: expected the node content"),
        ("\x00", " is no YAML that can be read: ReaderError"),
        ("!!python/name:os.system", ", line 1 is no YAML that can be read: could not determine"),
        ("[" * 5000, " is no YAML that can be read: RecursionError"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_what_is_expected(
    text: str, message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        parsed(text)
    assert f"--standard: my.yaml{message}" in str(raised.value)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(UsageError, match=r"my\.yaml is no YAML that can be read"):
        parse_standard(b"\xff\xfe\xfa", "my.yaml")


class TestLoading:
    """`--standard` by name and by file."""

    def test_a_name_is_a_standard(self) -> None:
        assert load_standard("benchmark") == Benchmark()

    def test_a_file_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text(EXAMPLE)
        assert load_standard(str(path)) == parsed(EXAMPLE)

    def test_a_file_that_is_not_there_is_named_with_the_standards(self) -> None:
        with pytest.raises(UsageError, match=r"'nowhere\.yaml' is neither a standard nor a file"):
            load_standard("nowhere.yaml")

    def test_a_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"cannot read .*: Is a directory"):
            load_standard(str(tmp_path))

    def test_a_file_that_is_too_large_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "large.yaml"
        path.write_bytes(b"#" * ((1 << 20) + 1))
        with pytest.raises(UsageError, match="is larger than 1 MiB"):
            load_standard(str(path))


def test_a_name_without_a_prefix_is_its_own_last_part() -> None:
    assert Rule(Binary(), apis=("matmul",)).names_api("matmul")


def test_a_file_may_have_one_mebibyte(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("standard: ulp\n".ljust(1 << 20, "#"))
    assert load_standard(str(path)).columns == Ulp().columns
    path.write_text("standard: ulp\n".ljust((1 << 20) + 1, "#"))
    with pytest.raises(UsageError, match=r"is larger than 1 MiB"):
        load_standard(str(path))


def test_the_order_of_the_words_is_no_content() -> None:
    one, other = parsed("standard: ulp\nrules: []"), parsed("rules: []\nstandard: ulp")
    assert one.name == other.name


# 78 characters and two quotes.
@pytest.mark.parametrize(("length", "shown"), [(78, f"'{'x' * 78}'"), (79, f"'{'x' * 76}...")])
def test_a_text_of_more_than_80_characters_is_cut(length: int, shown: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(f"standard: {'x' * length}")
    assert f", standard: {shown} where one of" in str(caught.value)


def test_a_limit_of_0_and_a_rule_for_both_directions_are_right() -> None:
    standard = parsed(
        "rules: [{standard: ulp, limits: {share: 0}, direction: [forward, backward]}]"
    )
    for direction in ("forward", "backward"):
        assert chosen(standard, "Torch.exp", "float32", direction) == Ulp(share=0.0)
