"""Read a column of dates, times or numbers that rows are ordered by."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import Dataset
from pandas.tseries.api import guess_datetime_format

from finetune.data import arrow
from finetune.errors import Report, UserError

#: Values from which the format of dates is guessed.
_GUESSED_FROM = 100


def read_times(rows: Dataset, column: str, report: Report) -> np.ndarray:
    """Return the time of each row, shape ``(rows,)``: numbers as they are, dates in microseconds.

    Dates as text are read as ISO 8601, else in the one format that fits most of them. A missing
    time, or a text that is none, is NaN.

    Args:
        rows: With the column.
        column: Its name.
        report: Gets the format of dates that are not ISO 8601.

    Raises:
        UserError: If the column holds something else, or dates that can be read in two ways.
    """
    values = arrow.column(rows, column)
    flag, kind = f"--time_column {column}", values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _microseconds(pd.to_datetime(values.to_pandas(), utc=True))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        _refuse_dates_without_separators(pd.Series(values.cast(pa.string()).unique()), flag)
        times: np.ndarray = np.array(values.cast(pa.float64(), safe=False).to_numpy())
        times[~np.isfinite(times)] = np.nan
        return times
    if not (arrow.is_text(kind) or pa.types.is_null(kind)):
        raise UserError(f"{flag}: the column holds {kind}; expected dates or numbers")
    codes, distinct = pd.factorize(values.cast(pa.string()).fill_null("").to_pandas())
    texts = pd.Series(distinct, dtype=object).str.strip().replace("", None)
    times = np.asarray(pd.to_numeric(texts, errors="coerce"), dtype=np.float64)
    if np.isfinite(times[texts.notna()]).all():
        _refuse_dates_without_separators(texts.dropna(), flag)
    else:
        times = _microseconds(_parse_dates(texts, column, report))
    return np.asarray(times[codes])


def _microseconds(dates: pd.Series) -> np.ndarray:
    times: np.ndarray = dates.dt.as_unit("us").astype("int64").to_numpy(dtype=np.float64, copy=True)
    times[dates.isna().to_numpy()] = np.nan
    return times


def _parse_dates(texts: pd.Series, column: str, report: Report) -> pd.Series:
    """Return the dates that distinct texts are, NaT where a text is none."""
    dates = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce")
    present = texts.dropna()
    if 2 * dates.notna().sum() > len(present):
        return dates
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # pandas: the order of day and month differs
        formats = {
            guess_datetime_format(text, dayfirst=is_day_first)
            for text in present.head(_GUESSED_FROM)
            for is_day_first in (False, True)
        }
    readings = {
        form: pd.to_datetime(texts, format=form, utc=True, errors="coerce")
        for form in sorted(filter(None, formats))
    }
    counts = {form: int(reading.notna().sum()) for form, reading in readings.items()}
    best = [form for form, count in counts.items() if count == max(counts.values())]
    advice = "write dates like 2024-01-31"
    if not best or 2 * counts[best[0]] <= len(present):
        raise UserError(
            f"--time_column {column}: the column holds {present.iloc[0]!r}; expected dates or "
            f"numbers; {advice}"
        )
    if any(not readings[form].equals(readings[best[0]]) for form in best):
        one, other = (readings[form].dropna().iloc[0].date() for form in best[:2])
        raise UserError(
            f"--time_column {column}: {present.iloc[0]!r} can be {one} or {other}, and no other "
            f"row decides which; {advice}"
        )
    report.info(f"'{column}' is read as {best[0]}")
    return readings[best[0]]


def _refuse_dates_without_separators(texts: pd.Series, flag: str) -> None:
    """Refuse numbers like ``31012024``, which would be sorted by their day.

    Raises:
        UserError: If all are dates whose day or month comes first, and not all like ``20240131``.
    """
    present = texts.dropna()
    if not len(present) or not present.str.fullmatch("[0-9]{7,8}").all():
        return
    padded = present.str.zfill(8)
    if pd.to_datetime(padded, format="%Y%m%d", errors="coerce").notna().all():
        return
    for form in ("%d%m%Y", "%m%d%Y"):
        dates = pd.to_datetime(padded, format=form, errors="coerce")
        if dates.notna().all() and dates.dt.year.between(1900, 2100).all():
            date = dates.iloc[0].date()
            raise UserError(
                f"{flag}: the column holds {present.iloc[0]!r}, which looks like the date {date} "
                f"and would be sorted as a number; write dates as {date}"
            )
