"""The page for a pull request."""

import re

import pytest
from report_samples import sample_view

from ray_precheck.commands.report.markdown import MARK, markdown_lines

pytestmark = pytest.mark.unit


def page(text: str = "") -> str:
    return "\n".join(markdown_lines([sample_view(20, text)]))


def test_the_page_says_what_is_wrong_and_what_to_do() -> None:
    lines = page().split("\n")
    assert lines[0] == MARK
    assert lines[1] == "## ❌ `run_ut`: 10 of 100 APIs are in error"
    for line in (
        "### 1. `Torch.add.0.forward.output.0` (step0/rank1), 3e+03 times its limit",
        "- Likely cause: a wrong sign",
        "- At `model.py:3, in forward: y = x`",
        "| MaxAbsErr | 0.3 | ≤ 0.0001 |",
        "and 7 more suspects",
        "- 3: not supported",
    ):
        assert line in lines


@pytest.mark.parametrize(
    "text",
    [
        "\n# heading",
        "``` \n```sh",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "@everyone #1 https://example.org",
        "</details>|a|b|",
    ],
    ids=ascii,
)
def test_no_text_of_a_dump_is_markdown(text: str) -> None:
    plain, hostile = page().split("\n"), page(text).split("\n")
    assert len(plain) == len(hostile)  # No text begins a line.
    outside = []
    fence = ""
    for line in hostile:
        found = re.match(r" *(`{3,})", line)
        if fence:
            fence = "" if line.strip() == fence else fence
        elif found:
            fence = found[1]
        else:
            outside.append(re.sub(r"(`+).*?(?<!`)\1(?!`)", "", line))
    assert fence == ""
    joined = "\n".join(outside)
    tags = set(re.findall(r"<[^>]*>", joined))
    assert tags <= {MARK, "<details>", "</details>", "<summary>", "</summary>"}
    assert joined.count("</details>") == 1
    assert "](" not in joined
    assert "@everyone" not in joined
    assert "https://" not in joined
