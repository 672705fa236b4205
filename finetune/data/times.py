"""Read a column of times as numbers that order its rows.

Texts are numbers, dates in ISO 8601, or dates in ``--time_format``. Numbers are refused if they may
be dates whose order differs from that of the numbers: ``03.2024`` is above ``02.2025``.
"""

import re

import numpy as np
import pandas as pd

from finetune.data.labels import find_thousands
from finetune.errors import UserError

#: The ``--time_format`` of numbers that are not checked.
NUMBER = "number"
#: Formats of dates that are also numbers: their digits, and the width without lost leading zeros.
_FORMATS = {
    "%m.%Y": (r"\d{1,2}\.\d{4}", 0),
    "%Y.%m": (r"\d{4}\.\d{1,2}", 0),
    "%y.%m": (r"\d{2}\.\d{1,2}", 0),
    "%d.%m": (r"\d{1,2}\.\d{1,2}", 0),
    "%d%m%Y": (r"\d{7,8}", 8),
    "%m%d%Y": (r"\d{7,8}", 8),
    "%Y%m%d": (r"\d{6,8}", 0),
    "%m%Y": (r"\d{5,6}", 6),
    "%Y%m": (r"\d{5,6}", 0),
    "%y%m%d": (r"\d{6}", 0),
    "%d%m%y": (r"\d{5,6}", 6),
    "%m%d%y": (r"\d{5,6}", 6),
    "%m%y": (r"\d{4}", 0),
    "%j%Y": (r"\d{5,7}", 7),
    "%Y%j": (r"\d{5,7}", 0),
}
_YEARS = (1900, 2100)
_SAMPLE = 1000  # texts that are tried before all are parsed
_MOST = 0.9  # the share of texts that are dates in a format; a few may be mistakes
#: Numbers from this one on are years, dates or seconds, in one unit if none is 50 times the next.
_SMALLEST_UNIT = 1900
_LARGEST_STEP = 50


def read_times(texts: pd.Series, time_format: str | None, flag: str) -> pd.Series:
    """Return times as numbers (dates in microseconds); NaN for texts that are none.

    Without a format, texts are read as numbers or as ISO 8601, whichever fits more of them.

    Raises:
        UserError: If the format is invalid, or if numbers may be dates or are in several units.
    """
    texts = texts.str.strip()
    if time_format is not None and time_format != NUMBER:
        _refuse_format(time_format)
        if time_format in _FORMATS:
            texts = _restore_zeros(texts).str.zfill(_FORMATS[time_format][1])
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


def _refuse_format(time_format: str) -> None:
    """Raise a ``UserError`` if Python reads a format, but not the order of its times."""
    directives = re.findall("%(.)", time_format)
    if ("I" in directives) != ("p" in directives):  # Python takes %I as a.m., and ignores %p
        raise UserError(
            f"--time_format {time_format}: expected both %I and %p, for hours such as 02 PM, or "
            "%H, for hours such as 14"
        )


def lacks_year(time_format: str) -> bool:
    """Return whether a format has a month or a day, but no year."""
    directives = set(re.findall("%(.)", time_format))
    return bool(directives & set("dmbBjUW")) and not directives & set("YyGcx")


def _parse(texts: pd.Series, time_format: str) -> pd.Series:
    return pd.to_datetime(texts, format=time_format, utc=True, errors="coerce")


def _microseconds(dates: pd.Series) -> pd.Series:
    numbers: pd.Series = dates.dt.as_unit("us").astype("int64").where(dates.notna())
    return numbers


def _restore_zeros(texts: pd.Series) -> pd.Series:
    """Return texts of floats as they were before: 10.2020 for 10.202."""
    padded: pd.Series = texts.str.replace(r"(\.\d{3})$", r"\g<1>0", regex=True)
    return padded


def _refuse_dates(texts: pd.Series, numbers: pd.Series, flag: str) -> None:
    """Raise a ``UserError`` if different texts of numbers may be dates, or are in two units."""
    if thousands := find_thousands(texts):
        raise UserError(
            f"{flag}: numbers such as {thousands[0]!r} and {thousands[1]!r} may have a separator "
            f"of thousands: write {thousands[1].replace('.', '')}; --time_format {NUMBER} if they "
            "are plain numbers"
        )
    numbers = numbers[texts.index]
    values = np.unique(numbers)
    whole = (values % 1 == 0).all()
    if not len(values) or (whole and values[-1] - values[0] == len(values) - 1):
        return  # a counter without gaps
    way_out = f"--time_format {NUMBER} if they are plain numbers"
    large = values[values >= _SMALLEST_UNIT]
    steps = large[1:] / large[:-1]
    if steps.max(initial=1) > _LARGEST_STEP:
        place = int(steps.argmax())
        low, high = (f"{value:.15g}" for value in large[place : place + 2])
        raise UserError(
            f"{flag}: expected times in one unit, found numbers up to {low} and from {high}, such "
            f"as seconds beside milliseconds: write them alike; {way_out}"
        )
    texts = _restore_zeros(texts)
    dates = {name: _dates(texts, name) for name in _FORMATS}
    forms = [name for name, times in dates.items() if len(times)]
    for name in forms:
        ranks = numbers[dates[name].index].rank(method="dense")
        if not ranks.equals(dates[name].rank(method="dense")):
            raise UserError(
                f"{flag}: numbers such as {texts[ranks.index[0]]!r} may be dates in the form "
                f"{' or '.join(forms[:2])}, and their order is not that of the numbers: "
                f"--time_format {forms[0]} reads them as dates; {way_out}"
            )


def _dates(texts: pd.Series, name: str) -> pd.Series:
    """Return the dates of texts in a format of :data:`_FORMATS`, if most are dates; else none."""
    pattern, width = _FORMATS[name]
    for part in (texts.iloc[:_SAMPLE], texts):
        dates: pd.Series = _parse(part.where(part.str.fullmatch(pattern)).str.zfill(width), name)
        dates = dates[dates.dt.year.between(*_YEARS)]
        if len(dates) < _MOST * len(part):
            return dates.iloc[:0]
    return dates
