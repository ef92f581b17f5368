"""Both CSV files of a run as pandas data frames.

Comes in: a CSV file. Goes out: a data frame whose metric columns are numbers. Called by the
session's `PrecheckReport`; pandas is imported on demand.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.store.columns import DETAIL_COLUMNS, RESULT_COLUMNS

if TYPE_CHECKING:
    import pandas

_METRICS = ("Cosine", "MaxAbsErr", "MaxRelativeErr")
# Every other column of ours is text, and so are these two that standards add.
_TEXTS = frozenset([*RESULT_COLUMNS, *DETAIL_COLUMNS, "Standard", "Reference"])


def read_table(path: Path) -> "pandas.DataFrame":
    """Return the rows of a result or details CSV; text stays as it is, empty cells are "".

    Metrics, those that a standard adds too, are float64, with NaN in cells that hold no number: rows
    of outputs that are no tensors, or in which nothing could be compared.

    Raises:
        OSError: the file cannot be read.
    """
    import pandas

    table = pandas.read_csv(path, encoding="utf-8-sig", keep_default_na=False, dtype=str)
    for heading in table.columns:
        cells = table[heading].str.strip()
        numbers = pandas.to_numeric(cells, errors="coerce").astype("float64")
        is_blank = cells.str.lower().isin(["", "nan"])
        is_added_metric = heading not in _TEXTS and (numbers.notna() | is_blank).all()
        if heading in _METRICS or is_added_metric:
            table[heading] = numbers
    return table
