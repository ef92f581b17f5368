"""The option --bench-module."""

from pathlib import Path

import pytest

from ray_precheck.cli import build_parser, resume_command, run_config

pytestmark = pytest.mark.unit

LINE = "run_ut -api_info d.json --bench-module a.py -d 0 --bench-module b.py"


def test_bench_modules_are_as_many_as_are_given() -> None:
    parser = build_parser()
    assert run_config(parser.parse_args(LINE.split())).bench_modules == ("a.py", "b.py")
    assert run_config(parser.parse_args(LINE.split()[:3])).bench_modules == ()


def test_the_command_that_goes_on_has_the_bench_modules_too() -> None:
    assert resume_command(LINE.split(), Path("r.csv")) == f"ray-precheck {LINE} -csv_path r.csv"
