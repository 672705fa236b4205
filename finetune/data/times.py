"""Read a column of times as numbers that order its rows.

Texts are numbers, dates in ISO 8601, or dates in ``--time_format``. Numbers are refused if they may
be dates whose order differs from that of the numbers: ``03.2024`` is above ``02.2025``.
"""

import re

import numpy as np
import pandas as pd

from finetune.data.labels import find_thousands
from finetune.errors import Findings, UserError

#: The ``--time_format`` of numbers that are not checked.
NUMBER = "number"
#: Formats of dates that are also numbers, with the width of those that may have lost a first zero.
_FORMATS = {
    "%m.%Y": 0,
    "%Y.%m": 0,
    "%y.%m": 0,
    "%d.%m": 0,
    "%d%m%Y": 8,
    "%m%d%Y": 8,
    "%m%Y": 6,
    "%Y%m": 0,
    "%y%m%d": 6,
    "%d%m%y": 6,
    "%m%d%y": 6,
    "%j%Y": 7,
}
_YEARS = (1900, 2100)
_SAMPLE = 1000  # texts that are tried in each format
_MIN_DATE_SHARE = 0.9  # the share of texts that are dates in a format; a few may be mistakes
#: Numbers from this one on are years, dates or seconds, in one unit if none is 50 times the next.
_MIN_UNIT = 1900
_MAX_STEP = 50


def read_times(texts: pd.Series, time_format: str | None, flag: str, report: Findings) -> pd.Series:
    """Return times as numbers (dates in microseconds); NaN for texts that are none.

    Args:
        texts: The cells of the column.
        time_format: The format of dates, or ``number``; None for numbers or ISO 8601, whichever
            fits more of the texts.
        flag: The option that names the column, for messages.
        report: Gets a warning about a format without a year.

    Raises:
        UserError: If the format is invalid, or if numbers may be dates or are in several units.
    """
    texts = texts.str.strip()
    if time_format is not None and time_format != NUMBER:
        _check_format(time_format, report)
        if time_format in _FORMATS:
            texts = _restore_zeros(texts, _FORMATS[time_format])
        try:
            return _microseconds(_parse(texts, time_format))
        except ValueError as error:
            raise UserError(f"--time_format {time_format}: {error}") from error
    numbers: pd.Series = pd.to_numeric(texts, errors="coerce").replace([np.inf, -np.inf], np.nan)
    if time_format == NUMBER:
        return numbers
    dates = _parse(texts, "ISO8601")
    if numbers.count() < dates.count():
        return _microseconds(dates)
    _refuse_dates(texts[numbers.notna()].drop_duplicates(), numbers, flag)
    return numbers


def _check_format(time_format: str, report: Findings) -> None:
    """Raise a ``UserError`` if Python reads a format, but not the order of its times; report one
    with a month or a day, but no year.
    """
    directives = set(re.findall("%(.)", time_format))
    if ("I" in directives) != ("p" in directives):  # Python takes %I as a.m., and ignores %p
        raise UserError(
            f"--time_format {time_format}: expected both %I and %p, for hours such as 02 PM, or "
            "%H, for hours such as 14"
        )
    if directives & set("dmbBjUW") and not directives & set("YyGcx"):
        report.warning(
            f"--time_format {time_format}: no year, so every January is before every December"
        )


def _parse(texts: pd.Series, time_format: str) -> pd.Series:
    return pd.to_datetime(texts, format=time_format, utc=True, errors="coerce")


def _microseconds(dates: pd.Series) -> pd.Series:
    numbers: pd.Series = dates.dt.as_unit("us").astype("int64").where(dates.notna())
    return numbers


def _restore_zeros(texts: pd.Series, width: int) -> pd.Series:
    """Return texts of numbers as they were before: 10.2020 for 10.202, 01022024 for 1022024."""
    padded: pd.Series = texts.str.replace(r"(\.\d{3})$", r"\g<1>0", regex=True).str.zfill(width)
    return padded


def _refuse_dates(texts: pd.Series, numbers: pd.Series, flag: str) -> None:
    """Raise a ``UserError`` if different texts of numbers may be dates, or are in two units."""
    if thousands := find_thousands(texts):
        raise UserError(
            f"{flag}: numbers such as {thousands[0]!r} and {thousands[1]!r} may have a separator "
            f"of thousands: write {thousands[1].replace('.', '')}; --time_format {NUMBER} if they "
            "are plain numbers"
        )
    values = np.unique(numbers[texts.index])
    if (np.diff(values) == 1).all():
        return  # a counter without gaps
    way_out = f"--time_format {NUMBER} if they are plain numbers"
    large = values[values >= _MIN_UNIT]
    steps = large[1:] / large[:-1]
    if steps.max(initial=1) > _MAX_STEP:
        place = int(steps.argmax())
        raise UserError(
            f"{flag}: expected times in one unit, found numbers up to {large[place]:.15g} and from "
            f"{large[place + 1]:.15g}, such as seconds beside milliseconds: write them alike; "
            f"{way_out}"
        )
    sample = texts.sample(min(len(texts), _SAMPLE), random_state=0)
    formats = []
    is_ordered = True
    for name, width in _FORMATS.items():
        dates = _parse(_restore_zeros(sample, width), name)
        dates = dates[dates.dt.year.between(*_YEARS)]
        if len(dates) >= _MIN_DATE_SHARE * len(sample):
            formats.append(name)
            ranks = numbers[dates.index].rank(method="dense")
            is_ordered = is_ordered and ranks.equals(dates.rank(method="dense"))
    if not is_ordered:
        raise UserError(
            f"{flag}: numbers such as {sample.iloc[0]!r} may be dates, and their order is not that "
            f"of the numbers: --time_format {' or '.join(formats)} reads them as dates; {way_out}"
        )
