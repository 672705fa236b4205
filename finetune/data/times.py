"""Read a column of dates, times or numbers that rows are ordered by."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import Dataset
from pandas.tseries.api import guess_datetime_format

from finetune.data import arrow
from finetune.data.label_columns import list_names
from finetune.errors import UserError

#: Years that digits are taken for, and so many different dates say that it is no chance.
_YEARS, _FEWEST_DATES = (1900, 2100), 5
#: As numbers, whose last zero is gone: 10.2020 is 10.202.
_MONTHS = r"(0?[1-9]|1[0-2])\.(19|20)[0-9]{1,2}"


@dataclass(frozen=True)
class Times:
    """The times of rows.

    Attributes:
        values: Shape ``(rows,)``, NaN where there is none: numbers as they are, dates in
            microseconds since 1970.
        shown: Returns the time of a row as the source has it.
        lacking: What the rows without a time are, for messages.
        remark: How ambiguous dates were read; may be empty.
    """

    values: np.ndarray
    shown: Callable[[int], str]
    lacking: str
    remark: str = ""


def parsed(rows: Dataset, column: str, flag: str) -> Times:
    """Return the times of rows: of dates, numbers, or texts that are such.

    Dates as text are read as ISO 8601 (``2024-01-31``, ``2024-01-31T12:00:00Z``), else in the one
    format that fits them all.

    Args:
        rows: With the column.
        column: Its name.
        flag: That names it, for messages.

    Raises:
        UserError: if the column holds something else, or dates that can be read in two ways.
    """
    stored = arrow.column(rows, column)
    kind, remark, lacking = stored.type, "", f"with no time in '{column}'"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values, strays, remark = _of_texts(stored, column, flag)
        lacking += f" (but {list_names(strays)})" if strays else ""
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        exact = stored.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
        values = _floats(exact.cast(pa.int64()))
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        _refuse_dates_in_digits(pd.Series(stored.cast(pa.string()).unique()), column, flag)
        values = _floats(stored)
    elif pa.types.is_null(kind):
        values = np.full(len(stored), np.nan)
    else:
        raise UserError(f"{flag} {column}: the column holds {kind}; expected dates or numbers")
    values[~np.isfinite(values)] = np.nan
    return Times(values, lambda row: str(stored[row].as_py()), lacking, remark)


def _floats(values: pa.ChunkedArray) -> np.ndarray:
    return np.array(values.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def _of_texts(stored: pa.ChunkedArray, column: str, flag: str) -> tuple[np.ndarray, list[str], str]:
    """Return the times of texts, those that are none, and how dates were read where it is open."""
    words, codes = arrow.encoded(stored.fill_null(""))
    there = pd.Series([each.strip() or None for each in words], dtype=object)
    present = there.notna().to_numpy()
    numbers = pd.to_numeric(there.where(there.str.isascii()), errors="coerce").to_numpy(float)
    if np.isfinite(numbers[present]).all():
        _refuse_dates_in_digits(there[present], column, flag)
        return numbers[codes], [], ""
    found = pd.to_datetime(there, format="ISO8601", utc=True, errors="coerce")
    remark = ""
    if 2 * found.notna().sum() <= present.sum():
        found, remark = _in_one_format(there, column, flag)
    values = found.dt.as_unit("us").astype("int64").to_numpy(dtype=np.float64, copy=True)
    values[found.isna().to_numpy()] = np.nan
    strays = [words[each] for each in np.flatnonzero(present & np.isnan(values))]
    return values[codes], strays, remark


def _refuse_dates_in_digits(words: pd.Series, column: str, flag: str) -> None:
    """Refuse different numbers that are dates whose day or month comes first: as numbers they have
    another order.

    Raises:
        UserError: if all are months like ``10.2024``, or have 5 to 8 digits and are such dates, and
            not dates like ``20230105`` that are closer together.
    """
    some = words.dropna()
    if len(some) >= _FEWEST_DATES and some.str.fullmatch(_MONTHS).all():
        raise UserError(
            f"{flag} {column}: the column holds {some.iloc[0]!r}, which looks like a month and a "
            "year and would be sorted as a number; write months as 2024-01"
        )
    if len(some) < _FEWEST_DATES or not some.str.fullmatch(r"[0-9]{5,8}").all():
        return
    width = int(some.str.len().max())
    if width == 5 or some.str.len().min() < width - 1:  # 5012023 lost its zero
        return
    padded = some.str.zfill(width + width % 2)
    years = "%y" if len(padded.iloc[0]) == 6 else "%Y"

    def dates_of(form: str) -> pd.Series | None:
        dates = pd.to_datetime(padded, format=form, errors="coerce")
        are_dates = dates.notna().all() and dates.dt.year.between(*_YEARS).all()
        return dates if are_dates else None

    read = [dates_of(form) for form in (f"{years}%m%d", f"%d%m{years}", f"%m%d{years}")]
    spans = [np.inf if each is None else (each.max() - each.min()).days for each in read]
    likely = read[int(np.argmin(spans))]  # 201123 can be of 2020 and of 2023, all rows can not
    if likely is None or likely is read[0]:
        return
    date = likely.iloc[0].date()
    raise UserError(
        f"{flag} {column}: the column holds {some.iloc[0]!r}, which looks like the date {date} "
        f"and would be sorted as a number; write dates as {date}"
    )


def _in_one_format(words: pd.Series, column: str, flag: str) -> tuple[pd.Series, str]:
    """Return dates that are not ISO 8601, and the format that they were read in."""
    some = words.dropna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the other order was asked for
        formats = {
            guess_datetime_format(each, dayfirst=is_day)
            for each in some.head(100)
            for is_day in (False, True)
        }
    read = {
        each: pd.to_datetime(words, format=each, utc=True, errors="coerce")
        for each in sorted(filter(None, formats))
    }
    counts = {each: int(dates.notna().sum()) for each, dates in read.items()}
    most = max(counts.values(), default=0)
    best = [each for each, count in counts.items() if count == most]
    first = some.iloc[0] if len(some) else ""
    advice = "write them like 2024-01-31"
    if 2 * most <= len(some):
        raise UserError(
            f"{flag} {column}: the column holds {first!r}; expected dates or numbers; {advice}"
        )
    if len({tuple(read[each].dropna()) for each in best}) > 1:
        one, other = (read[each].dropna().iloc[0].date() for each in best[:2])
        raise UserError(
            f"{flag} {column}: {first!r} can be {one} or {other}, and no other row decides which; "
            f"{advice}"
        )
    return read[best[0]], f"'{column}' is read as {best[0]}"
