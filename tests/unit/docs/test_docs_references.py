"""What the Markdown files name exists: files, anchors, commands, options."""

import argparse
import os
import re
import shlex
from pathlib import Path

import pytest
from markdown_text import ROOT, anchors, code_texts, markdown_files, sections

from ray_precheck.cli.command_line import build_parser
from ray_precheck.errors import PrecheckError
from scripts.options import bisect_commands

FILES = {str(path.relative_to(ROOT)): path for path in markdown_files()}
# Options of other programs, by the program that has them.
FOREIGN = {
    "--reproducible": "MegEngine's load_and_run, as ray_precheck.tools has it",
    "--lr": "a script that is captured",
    "--nproc-per-node": "torchrun",
    "--labels": "ray start",
    "--nodes": "sbatch",
    "--exclusive": "sbatch",
    "--fused": "a command that is bisected",
    "--epochs": "a script that is bisected",
}
_OPTION = re.compile(r"(?<![\w.-])--[a-z][\w-]*")
_SCRIPT = re.compile(r"python -m scripts\.(\w+(?:\.\w+)*)")
_PATH = re.compile(r"^(?:[\w.-]+/)+[\w.-]*$")


def parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Return a parser and those of its commands."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in {id(p): p for p in action.choices.values()}.values():
                found += parsers(below)
    return found


def options_of_ray_precheck() -> set[str]:
    """Return the options of all commands, and of what `bisect` can bisect."""
    found = {
        option
        for parser in parsers(build_parser())
        for action in parser._actions
        for option in action.option_strings
    }
    return found | {name for each in bisect_commands() for o in each.options for name in o.names}


def known_options() -> set[str]:
    """Return the options of ray-precheck, of the scripts and of the cluster's."""
    found = options_of_ray_precheck()
    for path in [*(ROOT / "scripts").rglob("*"), *(ROOT / "cluster").rglob("*")]:
        if path.is_file() and path.suffix in ("", ".py", ".sbatch", ".sh"):
            found |= set(_OPTION.findall(path.read_text("utf-8")))
    return found | set(FOREIGN)


KNOWN = known_options()


def named_in(name: str, pattern: re.Pattern[str]) -> set[str]:
    """Return what a pattern finds in the code of a document."""
    codes = code_texts(FILES[name].read_text("utf-8"))
    return {found for code in codes for found in pattern.findall(code)}


@pytest.mark.unit
@pytest.mark.parametrize("name", FILES)
def test_every_relative_link_leads_to_a_file_and_a_heading(name: str) -> None:
    path = FILES[name]
    broken = []
    for section in sections(path.read_text("utf-8")):
        for target in section.links:
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            there = path.parent / file if file else path
            if not there.exists() or (anchor and anchor not in anchors(there.read_text("utf-8"))):
                broken.append(target)
    assert broken == []


@pytest.mark.unit
@pytest.mark.parametrize("name", FILES)
def test_every_option_that_is_named_exists(name: str) -> None:
    assert named_in(name, _OPTION) - KNOWN == set()


@pytest.mark.unit
@pytest.mark.parametrize("name", FILES)
def test_every_script_that_is_named_exists(name: str) -> None:
    scripts = ROOT / "scripts"
    absent = [
        script
        for script in (named.replace(".", "/") for named in named_in(name, _SCRIPT))
        if not (scripts / f"{script}.py").is_file()
        and not (scripts / script / "__main__.py").is_file()
    ]
    assert absent == []


@pytest.mark.unit
@pytest.mark.parametrize("name", FILES)
def test_every_command_line_is_parsed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused = []
    for section in sections(FILES[name].read_text("utf-8")):
        for fence in section.fences:
            for line in fence:
                if line.startswith("ray-precheck ") and "..." not in line:
                    try:
                        build_parser().parse_args(shlex.split(line, comments=True)[1:])
                    except (SystemExit, PrecheckError) as error:
                        refused.append(f"{line}: {error!r} {capsys.readouterr().err}")
    assert refused == []


@pytest.mark.unit
@pytest.mark.parametrize("name", FILES)
def test_every_command_of_the_program_exists(name: str) -> None:
    commands = {
        command
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
        for command in action.choices
    }
    named = {
        words[1]
        for code in code_texts(FILES[name].read_text("utf-8"))
        if len(words := code.split()) > 1 and words[0] == "ray-precheck" and words[1][0].isalpha()
    }
    assert named - commands == set()


@pytest.mark.unit
@pytest.mark.parametrize("name", FILES)
def test_every_path_of_this_repository_that_is_named_exists(name: str) -> None:
    """A path counts as ours if its first folder is one of ours; NAME stands for any name."""
    path = FILES[name]
    bases = [path.parent, ROOT, ROOT / "ray_precheck"]
    absent = []
    for section in sections(path.read_text("utf-8")):
        for code in section.code:
            if _PATH.match(code) and "NAME" not in code and ours(code, bases):
                absent += [] if any((base / code).exists() for base in bases) else [code]
    assert absent == []


def ours(code: str, bases: list[Path]) -> bool:
    """Return whether the first folder of a path is one of this repository's."""
    first = code.split(os.sep)[0]
    return first not in (".", "..") and any((base / first).is_dir() for base in bases)
