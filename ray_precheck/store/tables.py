"""The names and columns of a job's two tables: the result table and its details.

All modules of this folder that read or write the files get such a `Tables`. The precheck's is
`API_TABLES`.
"""

from dataclasses import dataclass

from ray_precheck.store.columns import DETAIL_COLUMNS, RESULT_COLUMNS


@dataclass(frozen=True, slots=True)
class Tables:
    """The two tables of a job.

    The files of a run are `{stem}_{word}_{stamp}.csv` with the two `words` (`{stem}_{stamp}.csv` where the
    word is ""), `{stem}_{stamp}.run.json`, ...
    The first column of `result` is the name of a piece; a detail row is named `{piece}.{part}.{part}...`
    with `detail_parts` parts behind the name of its piece, or, where `detail_parts` is None, has the name
    of its piece in its last column. The settings of a run may add columns to the details, but not to
    details with the name in the last one. The columns of `result` behind the name are `verdicts` columns
    with a verdict each (pass, error, SKIP), any others, and a message as the last one. With
    `needs_details` a piece that passes has a detail row. `unit` is what progress counts in a second.
    """

    stem: str
    result: tuple[str, ...]
    details: tuple[str, ...]
    detail_parts: int | None = 3
    verdicts: int = 2
    needs_details: bool = True
    words: tuple[str, str] = ("result", "details")
    unit: str = "api"

    def file(self, kind: str, stamp: str) -> str:
        """Return the name of a file: `kind` is result or details."""
        word = self.words[("result", "details").index(kind)]
        return f"{'_'.join(filter(None, [self.stem, word]))}_{stamp}.csv"


API_TABLES = Tables("accuracy_checking", tuple(RESULT_COLUMNS), tuple(DETAIL_COLUMNS))
