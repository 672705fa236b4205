"""Read a column of dates, times or numbers that rows are ordered by."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import Dataset

from finetune.data import arrow
from finetune.errors import Report, UserError

#: Forms of dates as text. A column has one of them, the one that fits the most values.
_FORMS = ("ISO8601", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")
#: Dates without separators that would be sorted by their day or month as numbers.
_DAY_FIRST_FORMS = ("%d%m%Y", "%m%d%Y")


def read_times(rows: Dataset, column: str, report: Report) -> np.ndarray:
    """Return the time of each row, shape ``(rows,)``: numbers as they are, dates in microseconds.

    A missing time, or a text that is none, is NaN. ``report`` gets the form of dates that are not
    ISO 8601.

    Raises:
        UserError: If the column holds something else, or dates that can be read in two ways.
    """
    cells = arrow.column(rows, column)
    if pa.types.is_timestamp(cells.type) or pa.types.is_date(cells.type):
        return _microseconds(pd.to_datetime(cells.to_pandas(), utc=True))
    if pa.types.is_nested(cells.type) or pa.types.is_binary(cells.type):
        raise UserError(f"--time_column {column}: holds {cells.type}; expected dates or numbers")
    codes, distinct = pd.factorize(cells.cast(pa.string()).fill_null("").to_pandas())
    texts = pd.Series(distinct, dtype=object).str.strip().replace("", None)
    times = pd.to_numeric(texts, errors="coerce").astype("float64").to_numpy(copy=True)
    times[~np.isfinite(times)] = np.nan
    if np.isnan(times[texts.notna()]).any() and arrow.is_text(cells.type):
        times = _microseconds(_parse_dates(texts, column, report))
    else:
        _refuse_day_first(texts.dropna(), column)
    return np.asarray(times[codes])


def _microseconds(dates: pd.Series) -> np.ndarray:
    times: np.ndarray = dates.dt.as_unit("us").astype("int64").to_numpy(dtype=np.float64, copy=True)
    times[dates.isna().to_numpy()] = np.nan
    return times


def _parse_dates(texts: pd.Series, column: str, report: Report) -> pd.Series:
    """Return the dates that distinct texts are, NaT where a text is none."""
    readings = {
        form: pd.to_datetime(texts, format=form, utc=True, errors="coerce") for form in _FORMS
    }
    counts = {form: int(dates.notna().sum()) for form, dates in readings.items()}
    most, present = max(counts.values()), texts.dropna()
    best = [form for form, count in counts.items() if count == most]
    problem = f"--time_column {column}: the column holds {present.iloc[0]!r}"
    if 2 * most <= len(present):
        raise UserError(f"{problem}; expected numbers, or dates like 2024-01-31")
    if any(not readings[form].equals(readings[best[0]]) for form in best[1:]):
        raise UserError(f"{problem}, in which the day or the month is first; write 2024-01-31")
    if best[0] != "ISO8601":
        report.info(f"'{column}' is read as {best[0]}")
    return readings[best[0]]


def _refuse_day_first(texts: pd.Series, column: str) -> None:
    """Refuse numbers that are all dates like ``31012024``: they would be sorted by their day."""
    if not len(texts) or not texts.str.fullmatch("[0-9]{7,8}").all():
        return
    padded = texts.str.zfill(8)
    if pd.to_datetime(padded, format="%Y%m%d", errors="coerce").notna().all():
        return
    for form in _DAY_FIRST_FORMS:
        dates = pd.to_datetime(padded, format=form, errors="coerce")
        if dates.dt.year.between(1900, 2100).all():
            raise UserError(
                f"--time_column {column}: the column holds {texts.iloc[0]!r}, which would be "
                f"sorted as a number; write dates like {dates.iloc[0].date()}"
            )
