"""The tables of all options in the docs of the command line, made from where they are declared.

    python -m scripts.options            # prints them
    python -m scripts.options --write    # writes them into ray_precheck/cli/README.md, and those of
                                         # capture and bisect into their pages; into the Chinese
                                         # page beside each, README.zh-CN.md, where there is one

Comes in: `ray_precheck.cli.COMMANDS`; `options.zh-CN.json`, the Chinese text of each text of an option.
Goes out: Markdown, a section for each command. A test fails where the docs are stale, and where a text
has no Chinese one.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
CHINESE_TEXTS = Path(__file__).with_name("options.zh-CN.json")
BEGIN = "<!-- options: begin -->"
END = "<!-- options: end -->"
# What the tables say beside the texts of the options.
_OPTION, _MEANING, _REQUIRED = "option", "meaning", "Required"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into the docs")
    if parser.parse_args(argv).write:
        for page in pages():
            page.write_text(with_tables(page), encoding="utf-8")
        for sentence in untranslated():
            print(sentence)
    else:
        print(tables(COMMANDS))
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


def chinese_of(page: Path) -> Path:
    """Return where the Chinese page of an English one stands, whether it is there or not."""
    return page.with_name(f"{page.stem}.zh-CN.md")


def pages() -> list[Path]:
    """Return the pages that have tables of options, in both languages."""
    return [page for docs in PAGES for page in (docs, chinese_of(docs)) if page.exists()]


def with_tables(page: Path) -> str:
    """Return the text of a page with the tables as they are now between the two marks."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    docs = next(docs for docs in PAGES if page in (docs, chinese_of(docs)))
    found = tables(PAGES[docs](), _CHINESE if page != docs else _ENGLISH)
    if docs == OF_BISECT:
        found = found.replace("](../", "](../../")  # Its page stands one folder deeper.
    return f"{before}{BEGIN}\n\n{found}\n{END}{after}"


@dataclass(frozen=True)
class Language:
    """How the tables say something: in English as it is declared, or in Chinese.

    `said` has the Chinese text of each English one; a text that it lacks stays English, and
    `untranslated` names it. `stop` ends a sentence, `gap` stands between two.
    """

    said: Mapping[str, str]
    stop: str
    gap: str

    def __call__(self, text: str) -> str:
        """Return a text in this language."""
        return self.said.get(text, text)

    def sentences(self, *texts: str) -> str:
        """Return the texts that are not empty, each as a sentence."""
        ends = (text if text.endswith("?") else f"{text}{self.stop}" for text in texts if text)
        return self.gap.join(ends)


def chinese_texts() -> dict[str, str]:
    """Return the Chinese text of each English text of an option, a section or a command."""
    said: dict[str, str] = json.loads(CHINESE_TEXTS.read_text("utf-8"))
    return said


_ENGLISH = Language({}, ".", " ")
_CHINESE = Language(chinese_texts(), "。", "")


def tables(commands: Sequence[Command], language: Language = _ENGLISH) -> str:
    """Return the section of every command."""
    return "\n".join("\n".join(_section(command, language)) for command in commands)


def _section(command: Command, language: Language) -> Iterator[str]:
    yield f"### {', '.join(f'`{name}`' for name in command.names)}\n"
    yield f"{language.sentences(language(_text_of(command)))}\n"
    yield f"| {language(_OPTION)} | {language(_MEANING)} |"
    yield "|---|---|"
    section = ""
    for option in command.options:
        if option.section != section:
            section = option.section
            yield f"| **{language(section)}** | |"
        yield f"| {_names(option)} | {meaning(option, language)} |"
    yield ""


def _text_of(command: Command) -> str:
    return command.description or next(iter(command.names.values()))


def _names(option: Option) -> str:
    """Return the names of an option, with what stands behind the last one."""
    if option.is_positional:
        return f"`{option.metavar}`"
    *others, last = option.names
    return ", ".join(f"`{name}`" for name in (*others, f"{last} {option.metavar or ''}".strip()))


def meaning(option: Option, language: Language = _ENGLISH) -> str:
    """Return the cell that says what an option does: its line of --help and what the docs add."""
    text = replace(option, help=language(option.help)).text
    required = language(_REQUIRED) if option.required else ""
    return language.sentences(text, language(option.more), required).replace("|", "\\|")


def texts() -> dict[str, str]:
    """Return the texts of the tables that stand on Chinese pages, each with the place of its first use."""
    found = dict.fromkeys((_OPTION, _MEANING, _REQUIRED), "the head of the tables")
    for docs, commands in PAGES.items():
        for command in commands() if chinese_of(docs).exists() else ():
            name = next(iter(command.names))
            found.setdefault(_text_of(command), name)
            for option in command.options:
                for text in filter(None, (option.section, option.help, option.more)):
                    found.setdefault(text, f"{name} {option.names[-1]}")
    return found


def untranslated() -> list[str]:
    """Return a sentence for each text without a Chinese one, and for each Chinese one that is not used."""
    used, said = texts(), _CHINESE.said
    return [
        *(
            f"{place} has no Chinese text for {text!r}: add it to scripts/{CHINESE_TEXTS.name}"
            for text, place in used.items()
            if text not in said
        ),
        *(
            f"no option has the text {text!r} now: delete it from scripts/{CHINESE_TEXTS.name}"
            for text in said
            if text not in used
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
