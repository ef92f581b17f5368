"""An option is declared once: parser, errors, settings of a run and docs are made of that."""

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from ray_precheck.check.options import CheckOptions
from ray_precheck.cli import COMMANDS, build_parser
from ray_precheck.errors import UsageError
from ray_precheck.options.commands import Command, add_options, given_values
from ray_precheck.options.declared import (
    Number,
    OneOf,
    Prerequisite,
    Takes,
    group_of,
    option,
    options_of,
    require_valid,
    settings_of,
)
from ray_precheck.options.shared import PlaceOptions
from ray_precheck.replay.config import RunConfig
from ray_precheck.store.settings import RunSettings
from scripts.options import BEGIN, DOCS, END, meaning, pages, with_tables

pytestmark = pytest.mark.unit


@dataclass(frozen=True, kw_only=True)
class Tries(PlaceOptions):
    """A configuration of another command, with options of its own and a group of the shared ones."""

    section: ClassVar[str] = "how often"

    tries: int = option(
        3,
        "-t",
        "--tries",
        help="tries of a call (default {default})",
        more="Each on a fresh process",
        type=int,
        rule=Number("the count of tries", least=1, most=9),
        rows="tries",
    )
    mood: str = option(
        "calm", "--mood", help="{choices}", rule=OneOf(("calm", "wild")), rows="mood"
    )
    log: Path | None = option(None, "--log", help="a file", becomes=Path, takes=Takes.ONCE)
    words: tuple[str, ...] = option((), "-w", help="words", takes=Takes.EACH)
    loud: bool = option(
        False,
        "--loud",
        help="tell more",
        takes=Takes.NOTHING,
        rows="loud",
        needs=Prerequisite("log", "the file to tell it to"),
    )


def parsed(line: str) -> Tries:
    """The configuration that a command line asks for."""
    parser = argparse.ArgumentParser()
    add_options(parser, options_of(Tries))
    return Tries(**given_values(parser.parse_args(line.split()), Tries))


def test_a_field_makes_the_argument_of_the_parser() -> None:
    assert parsed("") == Tries()
    assert parsed("-t 5 --mood wild --log x.log -w a -w b --loud --device-type npu") == Tries(
        tries=5, mood="wild", log=Path("x.log"), words=("a", "b"), loud=True, device_type="npu"
    )
    assert parsed("--tries 4").tries == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Tries(tries=0), "-t 0 is wrong: the count of tries is a whole number at least 1 and at"),
        (Tries(mood="sad"), "--mood 'sad' is unknown; expected one of: calm, wild"),
        (Tries(loud=True), "--loud needs --log: the file to tell it to"),
        (Tries(device_type="tpu"), "--device-type 'tpu' is unknown; expected one of: auto, npu,"),
    ],
)
def test_a_field_makes_the_error_of_a_wrong_value(wrong: Tries, message: str) -> None:
    with pytest.raises(UsageError) as error:
        require_valid(wrong)
    assert str(error.value).startswith(message)
    require_valid(Tries(tries=9, mood="wild", loud=True, log=Path("x")))


def test_a_field_with_rows_makes_an_entry_of_the_settings_of_a_run() -> None:
    assert settings_of(Tries()) == {"tries": "3", "mood": "calm", "loud": "off"}
    assert settings_of(Tries(tries=5, loud=True))["tries"] == "5"
    assert settings_of(Tries(loud=True))["loud"] == "on"


def test_a_field_makes_the_row_of_the_docs() -> None:
    tries, mood, *_ = options_of(Tries)
    assert meaning(tries) == "tries of a call (default 3). Each on a fresh process."
    assert meaning(mood) == "calm\\|wild."


def test_options_of_a_class_come_before_those_of_its_groups_with_their_sections() -> None:
    sections = [each.section for each in options_of(Tries)]
    assert sections == ["how often"] * 5 + ["where it runs"] * 6


def test_two_options_of_one_field_exclude_each_other() -> None:
    with pytest.raises(UsageError, match=r"^-d and --devices exclude each other: -d takes ids"):
        parsed("-d 0 --devices all")


def test_a_group_of_a_configuration_has_the_values_of_its_own_fields_alone() -> None:
    config = RunConfig(Path("d.json"), seed=7, tested="dump", timeout_s=3.0)
    assert group_of(config, CheckOptions) == CheckOptions(seed=7, tested="dump")


def test_what_runs_did_before_there_was_an_option_is_known() -> None:
    older = RunSettings({"seed": "0"}).made_with
    assert older["seed"] == "0"
    assert (older["distribution"], older["selection"]) == ("uniform", "every call")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: next(iter(command.names)))
def test_no_name_and_no_place_in_the_namespace_is_declared_twice(command: Command) -> None:
    names = Counter(name for each in command.options for name in each.names)
    places = Counter(each.dest for each in command.options)
    assert {name: count for name, count in names.items() if count > 1} == {}
    assert {name: count for name, count in places.items() if count > 1} == {}


def test_every_field_that_makes_other_rows_has_a_key_of_its_own() -> None:
    keys = [each.rows for each in options_of(RunConfig) if each.rows]
    assert keys == list(dict.fromkeys(keys))


def test_the_docs_name_every_option_of_every_parser() -> None:
    (commands,) = build_parser()._subparsers._group_actions  # type: ignore[union-attr]
    tables = DOCS.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    for name, parser in commands.choices.items():  # type: ignore[union-attr]
        section = tables[tables.index(f"`{name}`") :].partition("\n###")[0]
        for action in parser._actions:
            for given in action.option_strings:
                assert f"`{given}" in section or given in ("-h", "--help"), (name, given)


def test_the_docs_of_the_options_are_current() -> None:
    for page in pages():
        text = page.read_text("utf-8")
        assert text == with_tables(page), f"{page}: run python -m scripts.options --write"
