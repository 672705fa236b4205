"""Read a sheet of a spreadsheet as a ``.csv`` of it would be read: every value is text.

A number is written as it was typed, without the decimals of a whole one; a date as in ISO 8601.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finetune.data import delimited, sheet_xml
from finetune.errors import UserError, suggestion

#: A row of the sheet, counted from 1, and what is in it by column.
Numbered = tuple[int, dict[str, str | None]]
#: How the format writes characters that XML does not allow.
_ESCAPED = re.compile(r"_x([0-9A-F]{4})_")


def chosen(path: Path, wanted: str | None = None) -> tuple[str, str]:
    """Return the name of the sheet that is read, and a sentence where there are others or rows of
    it are hidden.

    Args:
        path: Of a spreadsheet.
        wanted: The sheet that the user names; the first with rows, which is not hidden, if None.

    Raises:
        UserError: if it cannot be read, has no such sheet, or formulas in it were never computed.
    """
    from python_calamine import SheetVisibleEnum

    with _workbook(path) as book:
        seen = [
            each.name
            for each in book.sheets_metadata
            if each.visible == SheetVisibleEnum.Visible
            and (sheet := _sheet(book, each.name)) is not None
            and sheet.height > 1
        ]
        names = list(book.sheet_names)
    if wanted is not None:
        if wanted not in names:
            raise UserError(
                f"--sheet {wanted}: {path} has no such sheet{suggestion(wanted, names)} (it has: "
                f"{', '.join(names)})"
            )
        sheet, others = wanted, ""
    elif not seen:
        raise UserError(f"{path} holds no rows")
    else:
        sheet, others = seen[0], ", ".join(f"'{name}'" for name in seen[1:])
    told = [
        f"read the sheet '{sheet}', not {others} (--sheet)" if others else "",
        sheet_xml.inspected(path, sheet),
    ]
    return sheet, f"{path.name}: {'; '.join(filter(None, told))}" if any(told) else ""


def rows(path: Path, sheet: str) -> Iterator[Numbered]:
    """Yield the rows of a sheet, by the columns that its first row names; empty rows are not rows.

    Raises:
        UserError: if it has two columns of one name, values without one, or merged rows.
    """
    with _workbook(path) as book:
        cells = _sheet(book, sheet)
        numbered = enumerate(cells.iter_rows() if cells is not None else (), start=1)
        header: list[str] = []
        for number, values in numbered:
            texts = [_text(each) for each in values]
            if not any(texts):
                continue
            if not header:
                header = [each or "" for each in texts]
                while header and not header[-1]:
                    header.pop()
                delimited.refuse_repeated(path, header)
                _refuse_merged(path, cells, number, len(header))
                continue
            if extra := next((each for each in texts[len(header) :] if each), None):
                title = (
                    f"; is the first row, {header[0]!r}, a title? Remove what is above the names"
                )
                raise UserError(
                    f"{path}, sheet '{sheet}', row {number}: {extra[:40]!r} is in a column without "
                    f"a name in the first row{title * (len(header) == 1)}"
                )
            again = [each or "" for each in texts[: len(header)]] == header
            if again and sum(map(bool, header)) > 1:
                raise UserError(
                    f"{path}, sheet '{sheet}', row {number}: the names of the columns again: were "
                    "sheets joined with their first rows? Remove every such row but the first"
                )
            yield number, dict(zip(header, texts, strict=False))


def _refuse_merged(path: Path, cells: Any, header: int, width: int) -> None:
    """Refuse cells that are merged over rows below the header: only the first has the value."""
    left = (cells.start or (0, 0))[1]
    merged = [
        f"{_name(first)}:{_name(last)}"
        for first, last in sorted(cells.merged_cell_ranges or ())
        if last[0] > first[0] and last[0] >= header and first[1] - left < width
    ]
    if merged:
        more = f" (and {len(merged) - 1:,} more such)" if len(merged) > 1 else ""
        raise UserError(
            f"{path}, sheet '{cells.name}': the cells {merged[0]} are merged{more}: only the first "
            "row has their value; unmerge them, and fill in the others"
        )


def _name(cell: tuple[int, int]) -> str:
    """Return what a spreadsheet calls a cell, by its row and column from 0: ``B2``."""
    row, column = cell
    letters = ""
    while column >= 0:
        column, letter = divmod(column, 26)
        letters, column = chr(ord("A") + letter) + letters, column - 1
    return f"{letters}{row + 1}"


def _sheet(book: Any, name: str) -> Any:
    """Return a sheet; None of a chart, which has no cells."""
    from python_calamine import CalamineError

    try:
        return book.get_sheet_by_name(name)
    except CalamineError:
        return None


def _workbook(path: Path) -> Any:
    from python_calamine import CalamineError, CalamineWorkbook, PasswordError

    try:
        return CalamineWorkbook.from_path(path)
    except PasswordError as error:
        raise UserError(f"{path} is encrypted: save it without a password") from error
    except CalamineError as error:
        raise UserError(
            f"{path} is damaged or no spreadsheet: {error}; is the suffix right? Else save it "
            "again, or as .csv"
        ) from error


def _text(value: Any) -> str | None:
    match value:
        case "" | None:
            return None
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value.is_integer() and abs(value) < 2**53:
            return str(int(value))
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
        case datetime.datetime():
            return value.isoformat(sep=" ")
        case str():
            return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), value)
    return str(value)
