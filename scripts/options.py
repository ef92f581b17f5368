"""The tables of all options in the docs of the command line, made from where they are declared.

    python -m scripts.options            # prints them
    python -m scripts.options --write    # writes them into ray_precheck/cli/README.md, and that of
                                         # capture into ray_precheck/capture/README.md, too

Comes in: `ray_precheck.cli.COMMANDS`. Goes out: Markdown, a section for each command. A test fails
where the docs are stale.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ray_precheck.cli import COMMANDS
from ray_precheck.commands.bisect import command as bisect
from ray_precheck.commands.bisect.command import options_of_target
from ray_precheck.commands.bisect.targets.found import find_target, target_modules
from ray_precheck.commands.capture import command as capture
from ray_precheck.options.commands import Command
from ray_precheck.options.declared import Option
from scripts.measuring import ROOT

DOCS = ROOT / "ray_precheck" / "cli" / "README.md"
OF_CAPTURE = ROOT / "ray_precheck" / "capture" / "README.md"
OF_BISECT = ROOT / "ray_precheck" / "commands" / "bisect" / "README.md"
BEGIN = "<!-- options: begin -->"
END = "<!-- options: end -->"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into the docs")
    if parser.parse_args(argv).write:
        for docs, commands in PAGES.items():
            text = with_tables(docs.read_text("utf-8"), commands())
            docs.write_text(text, encoding="utf-8")
    else:
        print(tables())
    return 0


def bisect_commands() -> tuple[Command, ...]:
    """Return a command for each target of `bisect`, which has options of its own."""
    return tuple(
        Command(
            {f"bisect {name}": target.text},
            options_of_target(target),
            bisect.COMMANDS[0].execute,
            "",
        )
        for name in target_modules()
        for target in [find_target(name)]
    )


PAGES: dict[Path, Callable[[], Sequence[Command]]] = {
    DOCS: lambda: COMMANDS,
    OF_CAPTURE: lambda: capture.COMMANDS,
    OF_BISECT: bisect_commands,
}


def with_tables(text: str, commands: Sequence[Command] = COMMANDS) -> str:
    """Return the docs with the tables as they are now between the two marks."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    found = tables(commands)
    if commands and next(iter(commands[0].names)).startswith("bisect "):
        found = found.replace("](../", "](../../")  # Its page stands one folder deeper.
    return f"{before}{BEGIN}\n\n{found}\n{END}{after}"


def tables(commands: Sequence[Command] = COMMANDS) -> str:
    """Return the section of every command."""
    return "\n".join("\n".join(_section(command)) for command in commands)


def _section(command: Command) -> Iterator[str]:
    yield f"### {', '.join(f'`{name}`' for name in command.names)}\n"
    yield f"{command.description or next(iter(command.names.values()))}.\n"
    yield "| option | meaning |"
    yield "|---|---|"
    section = ""
    for option in command.options:
        if option.section != section:
            section = option.section
            yield f"| **{section}** | |"
        yield f"| {_names(option)} | {meaning(option)} |"
    yield ""


def _names(option: Option) -> str:
    """Return the names of an option, with what stands behind the last one."""
    if option.is_positional:
        return f"`{option.metavar}`"
    *others, last = option.names
    return ", ".join(f"`{name}`" for name in (*others, f"{last} {option.metavar or ''}".strip()))


def meaning(option: Option) -> str:
    """Return the cell that says what an option does: its line of --help and what the docs add."""
    parts = [option.text, option.more, "Required" if option.required else ""]
    return " ".join(f"{part}." for part in parts if part).replace("|", "\\|")


if __name__ == "__main__":
    raise SystemExit(main())
