"""The two pictures of the README: a card and the data flow of the page of `located_example`.

    python -m scripts.report_pictures [FOLDER]

Goes out: `card.png` and `flow.png` in FOLDER, by default where the README shows them from. Run by who has
changed the page; scripts/web --browsers installs the browser.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts import located_example
from scripts.browser import WEB, Browser, missing

PICTURES = WEB.parent / "pictures"
_WIDTH = 900


def main() -> int:
    """Make the captures, search them, write their page, and take its pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=PICTURES)
    folder = parser.parse_args().folder
    if lacks := missing("chromium"):
        print(f"scripts.report_pictures: {lacks}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        # A copy, since the pictures show where the script stands.
        script = shutil.copy(located_example.__file__, place / "train.py")
        subprocess.run([sys.executable, script, place], check=True, stderr=subprocess.DEVNULL)
        found, out = [sys.executable, "-m", "ray_precheck"], place / "out"
        # Exit code 1: something is in error.
        subprocess.run(
            [*found, "locate", "-tp", place / "target", "-gp", place / "golden", "-o", out],
            check=False,
            stdout=subprocess.DEVNULL,
        )
        subprocess.run([*found, "report", out], check=True, stdout=subprocess.DEVNULL)
        folder.mkdir(exist_ok=True)
        browser = Browser("chromium")
        try:
            browser.open(out / "report.html", width=_WIDTH)
            browser.js("document.querySelector('.top').remove()")
            for selector, name in ((".card", "card.png"), ("#model .flow", "flow.png")):
                browser.wait(f"document.querySelector('{selector} canvas, {selector} svg')")
                browser.ask("picture", path=str(folder / name), selector=selector)
        finally:
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
