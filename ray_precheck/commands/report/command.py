"""The command report: the files of any command as one page that people look at.

Comes in: the options of the command. Goes out: its exit code, and a file. Called through the parser.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.errors import UsageError
from ray_precheck.options.commands import DEBUG, PASSED, Command, Invocation
from ray_precheck.options.declared import Option, Takes

_FORMATS = ("html", "json", "md")
_SUFFIXES = {".html": "html", ".htm": "html", ".json": "json", ".md": "md"}
_HEAD_BYTES = 4096
# How a page of each format begins, so that no other file is overwritten.
_MARKS = {
    "html": b'content="ray_precheck report"',
    "json": b'"views"',
    "md": b"<!-- ray_precheck report -->",
}


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a page is written, and in which format."""

    path: Path
    format: str


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Write the page, or follow the run, and return the exit code."""
    if not options.outs:
        raise UsageError("the results are missing: ray-precheck report OUT")
    if len(options.outs) > 2:
        raise UsageError(
            f"report compares two results; {len(options.outs)} are given: {' '.join(options.outs)}"
        )
    outs = [Path(each) for each in options.outs]
    target = _target(outs[-1], options)
    # Imported here, so that --help and wrong options answer at once.
    from ray_precheck.commands.report.changes import changes_between, titled
    from ray_precheck.commands.report.found import find_groups
    from ray_precheck.commands.report.markdown import markdown_lines
    from ray_precheck.commands.report.page import write_report_page
    from ray_precheck.running.view_data import write_views
    from ray_precheck.store.output_file import write_report

    if options.follow:
        from ray_precheck.commands.report.follow import follow_run

        if len(outs) > 1:
            raise UsageError("report --follow follows one run; name one folder")
        follow_run(
            outs[0],
            lambda groups: tuple(group.view() for group in groups),
            lambda address: print(f"following the run until it ends: {address}", flush=True),
            options.port,
        )
        return PASSED
    if str(target.path) != "-":
        _require_page(target)
    by_out = [tuple(group.view() for group in find_groups(out)) for out in outs]
    views = by_out[0]
    if len(outs) == 2:
        names = [str(out) for out in outs]
        changes = changes_between(by_out[0], by_out[1], names)
        views = (changes, *titled(by_out[0], outs[0]), *titled(by_out[1], outs[1]))
    if target.format == "json":
        write_views(target.path, views)
    elif target.format == "md":
        text = "\n".join(markdown_lines(views)) + "\n"
        if str(target.path) == "-":
            print(text, end="")
        else:
            write_report("-o", target.path, [text.encode("utf-8", "backslashreplace")])
    else:
        write_report_page(target.path, views, [str(out) for out in outs])
    if str(target.path) != "-":
        for view in views:
            print(f"{view.command}: {view.sentence}")
        print(f"Page: {target.path}")
    return PASSED


def _target(out: Path, options: argparse.Namespace) -> _Target:
    """Return where the page is written: by default `report.html` in the folder of the results.

    Raises:
        UsageError: the format is unknown, or is not what the name says.
    """
    if options.format is not None and options.format not in _FORMATS:
        raise UsageError(
            f"--format {options.format!r} is unknown; expected one of: {', '.join(_FORMATS)}"
        )
    if options.out is None:
        kind = options.format or "html"
        return _Target((out if out.is_dir() else out.parent) / f"report.{kind}", kind)
    path = Path(options.out)
    by_name = _SUFFIXES.get(path.suffix.lower())
    if by_name is not None and options.format not in (None, by_name):
        raise UsageError(
            f"-o {path} is the name of a {by_name} file, and --format is {options.format}"
        )
    kind = options.format or by_name or "html"
    if str(path) == "-" and kind == "html":
        raise UsageError("-o - writes to the screen; name --format md or json for it")
    return _Target(path, kind)


def _require_page(target: _Target) -> None:
    """Require that a page can be written: nothing is there, or an earlier page.

    Raises:
        UsageError: it cannot, or another file is there.
    """
    from ray_precheck.foreign import open_file
    from ray_precheck.store.output_file import require_writable

    require_writable("-o", target.path)
    if not target.path.exists():
        return
    try:
        with open_file(target.path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise UsageError(
            f"-o {target.path} is there and cannot be read: {error.strerror}"
        ) from None
    if head.strip() and _MARKS[target.format] not in head:
        raise UsageError(
            f"-o {target.path} is there and is no {target.format} page of report; name another file, or"
            " remove it first"
        )


_OPTIONS = (
    Option(
        ("outs",),
        "folder of the results of any command (-o), or one of its result files; two are compared",
        takes=Takes.SEVERAL,
        metavar="OUT",
    ),
    Option(("-o", "--out"), "the page (default: report.html in OUT)", metavar="FILE"),
    Option(
        ("--format",),
        "html, md (for a pull request or an issue) or json; by default what the name of the file says",
        metavar="FORMAT",
    ),
    Option(
        ("--follow",),
        "show a page on this machine that follows the run until it ends",
        takes=Takes.NOTHING,
        default=False,
    ),
    Option(
        ("--port",),
        "with --follow: the port on 127.0.0.1 (default: a free one)",
        type=int,
        metavar="N",
        default=0,
    ),
    DEBUG,
)

COMMANDS = (
    Command(
        names={"report": "show the results of any command as one HTML page"},
        options=_OPTIONS,
        execute=_execute,
        epilog="exit codes: 0 the page was written, 2 wrong usage or input",
        description="The results of run_ut, compare, locate, overflow_check, naive, diagnose and bisect, of"
        " one rank or many, finished or not, as one HTML file that needs no network; two of them are"
        " compared",
    ),
)
