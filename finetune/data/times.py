"""Read a column of dates, times or numbers that rows are ordered by."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import Dataset

from finetune.data import arrow
from finetune.errors import UserError

#: Dates without separators that would be sorted by their day or month as numbers.
_DAY_FIRST_FORMS = ("%d%m%Y", "%m%d%Y")


def read_times(rows: Dataset, column: str) -> np.ndarray:
    """Return the time of each row, shape ``(rows,)``: numbers as they are, dates in microseconds.

    Texts are numbers, or dates of ISO 8601. A missing time, or one of few texts that are neither,
    is NaN.

    Raises:
        UserError: If the column holds something else.
    """
    cells, expected = arrow.column(rows, column), "expected numbers, or dates like 2024-01-31"
    if pa.types.is_timestamp(cells.type) or pa.types.is_date(cells.type):
        return _microseconds(pd.to_datetime(cells.to_pandas(), utc=True))
    if pa.types.is_nested(cells.type) or pa.types.is_binary(cells.type):
        raise UserError(f"--time_column {column}: holds {cells.type}; {expected}")
    codes, distinct = pd.factorize(cells.cast(pa.string()).fill_null("").to_pandas())
    texts = pd.Series(distinct, dtype=object).str.strip().replace("", None)
    times = pd.to_numeric(texts, errors="coerce").astype("float64").to_numpy(copy=True)
    times[~np.isfinite(times)] = np.nan
    is_date = np.isnan(times[texts.notna()]).any() and arrow.is_text(cells.type)
    if is_date:
        times = _microseconds(pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce"))
    present = texts.dropna()
    are_few = 2 * np.isfinite(times).sum() <= len(present)
    if len(present) and (are_few or (not is_date and _are_day_first(present))):
        raise UserError(f"--time_column {column}: holds {present.iloc[0]!r}; {expected}")
    return np.asarray(times[codes])


def _microseconds(dates: pd.Series) -> np.ndarray:
    times: np.ndarray = dates.dt.as_unit("us").astype("int64").to_numpy(dtype=np.float64, copy=True)
    times[dates.isna().to_numpy()] = np.nan
    return times


def _are_day_first(numbers: pd.Series) -> bool:
    """Return whether numbers are all dates like ``31012024``, and not like ``20240131``."""
    texts = numbers[numbers.str.fullmatch("[0-9]{7,8}")].str.zfill(8)
    forms = ("%Y%m%d", *_DAY_FIRST_FORMS)
    dates = [pd.to_datetime(texts, format=form, errors="coerce") for form in forms]
    is_date, *are_day_first = (date.dt.year.between(1900, 2100).all() for date in dates)
    return len(texts) == len(numbers) and not is_date and any(are_day_first)
