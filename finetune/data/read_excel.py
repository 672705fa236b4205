"""Read a sheet of a spreadsheet as a ``.csv`` of it would be read: every value is text.

A number is written as it was typed, without the decimals of a whole one; a date as in ISO 8601.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from python_calamine import CalamineError, CalamineWorkbook, SheetVisibleEnum

from finetune.data.read_text import Record, refuse_repeated
from finetune.errors import UserError

#: How the format writes characters that XML does not allow.
_ESCAPED = re.compile(r"_x([0-9A-F]{4})_")
#: The attributes and the content of a cell that has any.
_CELL = re.compile(rb"<c\b([^>]*)(?<!/)>(.*?)</c>", re.S)


def choose_sheet(path: Path, name: str | None) -> tuple[str, list[str]]:
    """Return the sheet that is read, and a fact where others have rows too.

    Args:
        path: Of a spreadsheet.
        name: The sheet that the user names; None for the first visible one with rows.

    Raises:
        UserError: If it cannot be read, has no such sheet, or holds formulas without a value.
    """
    filled = []
    with CalamineWorkbook.from_path(path) as book:
        for sheet in book.sheets_metadata:
            with contextlib.suppress(CalamineError):  # a chart, which has no cells
                is_filled = book.get_sheet_by_name(sheet.name).height > 1
                filled += [sheet.name] * (is_filled and sheet.visible == SheetVisibleEnum.Visible)
        if name not in (None, *book.sheet_names):
            names = ", ".join(book.sheet_names)
            raise UserError(f"--sheet {name}: {path} has no such sheet (it has: {names})")
    if name is None and not filled:
        raise UserError(f"{path} holds no rows")
    _refuse_formulas_without_value(path)
    chosen = name or filled[0]
    if name is not None or filled == [chosen]:
        return chosen, []
    return chosen, [f"read the sheet '{chosen}', not {', '.join(filled[1:])} (--sheet)"]


def records(path: Path, sheet: str) -> Iterator[Record]:
    """Yield the rows of a sheet that are not empty, the names of the columns first.

    Raises:
        UserError: If two columns have one name, or a value stands in a column without one.
    """
    header: list[str] = []
    with CalamineWorkbook.from_path(path) as book:
        for number, values in enumerate(book.get_sheet_by_name(sheet).iter_rows(), start=1):
            cells = [_as_text(value) for value in values]
            if not any(cells):
                continue
            if not header:
                while not cells[-1]:
                    cells.pop()
                header = [*cells]
                refuse_repeated(path, header)
            elif any(cells[len(header) :]):
                raise UserError(
                    f"{path}, sheet '{sheet}', row {number}: a value is in a column without a name"
                )
            cells += [""] * len(header)  # of a row that is shorter
            yield Record(number, number, cells[: len(header)])


def _as_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value.is_integer() and abs(value) < 2**53:
            return str(int(value))
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
        case str():
            return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)
    return str(value)


def _refuse_formulas_without_value(path: Path) -> None:
    """Refuse cells whose formula no program has computed: calamine reads them as empty."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            content = archive.read(name) if "/worksheets/" in name else b""
            for attributes, inner in _CELL.findall(content) if b"<f" in content else ():
                # a text that is empty is a value, which only its type tells
                has_value = b't="str"' in attributes or re.search(rb"<v>[^<]|<is>", inner)
                if re.search(rb"<f[\s/>]", inner) and not has_value:
                    cell = re.search(rb'\br="(\w+)"', attributes)
                    raise UserError(
                        f"{path}, {name}: the formula in {cell[1].decode() if cell else 'a cell'} "
                        "has no value, as no spreadsheet has computed it: open the file in one "
                        "and save it"
                    )
