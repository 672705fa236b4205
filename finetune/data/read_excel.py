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
from xml.etree import ElementTree

import pyarrow as pa
from python_calamine import CalamineError, CalamineWorkbook, PasswordError, SheetVisibleEnum

from finetune.data import read_text
from finetune.errors import UserError, suggestion

#: How the format writes characters that XML does not allow.
_ESCAPED = re.compile(r"_x([0-9A-F]{4})_")
#: The attributes and the content of a cell that has any.
_CELL = re.compile(rb"<c\b([^>]*)(?<!/)>(.*?)</c>", re.S)
_XML = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_ID = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


def choose_sheet(path: Path, name: str | None) -> tuple[str, list[str]]:
    """Return the sheet that is read, and a fact where others have rows too.

    Args:
        path: Of a spreadsheet.
        name: The sheet that the user names; None for the first visible one with rows.

    Raises:
        UserError: If it cannot be read, has no such sheet, or holds formulas without a value.
    """
    with _open(path) as book:
        names = list(book.sheet_names)
        filled = []
        for sheet in book.sheets_metadata:
            with contextlib.suppress(CalamineError):  # a chart, which has no cells
                is_filled = book.get_sheet_by_name(sheet.name).height > 1
                filled += [sheet.name] * (is_filled and sheet.visible == SheetVisibleEnum.Visible)
    if name is not None and name not in names:
        raise UserError(
            f"--sheet {name}: {path} has no such sheet{suggestion(name, names)} (it has: "
            f"{', '.join(names)})"
        )
    if name is None and not filled:
        raise UserError(f"{path} holds no rows")
    chosen = name or filled[0]
    _refuse_formulas_without_value(path, chosen)
    other_sheets = ", ".join(f"'{other}'" for other in filled if other != chosen)
    is_guess = name is None and other_sheets
    return chosen, [f"read the sheet '{chosen}', not {other_sheets} (--sheet)"] if is_guess else []


def tables(path: Path, sheet: str) -> Iterator[pa.Table]:
    """Yield the rows of a sheet, by the columns that its first row names; all are text.

    Raises:
        UserError: If two columns have one name, or a value stands in a column without one.
    """
    rows = (cells for _, cells in _rows(path, sheet))
    schema = pa.schema([(name, pa.string()) for name in next(rows, [])])
    for batch in read_text.batches(rows, size=len):
        columns = [pa.array(column, pa.string()) for column in zip(*batch, strict=True)]
        yield pa.table(columns, schema=schema)


def record_rows(path: Path, sheet: str) -> Iterator[int]:
    """Yield the number of each row in its sheet, from 1."""
    numbers = (number for number, _ in _rows(path, sheet))
    next(numbers, None)
    return numbers


def _rows(path: Path, name: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield the rows that are not empty with their numbers, the names of the columns first."""
    with _open(path) as book:
        header: list[str] = []
        for number, values in enumerate(book.get_sheet_by_name(name).iter_rows(), start=1):
            cells = [_as_text(value) for value in values]
            if not any(cells):
                continue
            place = f"{path}, sheet '{name}', row {number}"
            if not header:
                while not cells[-1]:
                    cells.pop()
                header = [cell or "" for cell in cells]
                read_text.refuse_repeated(path, header)
                yield number, header
                continue
            if extra := next((cell for cell in cells[len(header) :] if cell), None):
                raise UserError(f"{place}: {extra[:40]!r} is in a column without a name")
            cells = cells[: len(header)]
            if cells == header and len(header) > 1:
                raise UserError(f"{place}: the names of the columns again: remove that row")
            yield number, cells + [None] * (len(header) - len(cells))


def _open(path: Path) -> CalamineWorkbook:
    try:
        return CalamineWorkbook.from_path(path)
    except PasswordError as error:
        raise UserError(f"{path} is encrypted: save it without a password") from error
    except CalamineError as error:
        raise UserError(
            f"{path} is damaged or no spreadsheet: {error}; save it again, or as .csv"
        ) from error


def _as_text(value: Any) -> str | None:
    match value:
        case "" | None:
            return None
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value.is_integer() and abs(value) < 2**53:
            return str(int(value))
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
        case str():
            return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)
    return str(value)


def _refuse_formulas_without_value(path: Path, name: str) -> None:
    """Refuse cells whose formula no program has computed: calamine reads them as empty."""
    try:
        with zipfile.ZipFile(path) as archive:
            workbook = ElementTree.fromstring(archive.read("xl/workbook.xml"))
            sheets = {sheet.get("name"): sheet.get(_ID) for sheet in workbook.iter(f"{_XML}sheet")}
            links = ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))
            targets = {link.get("Id"): link.get("Target", "") for link in links}
            target = targets[sheets[name]].removeprefix("/")
            content = archive.read(target if target.startswith("xl/") else f"xl/{target}")
    except (KeyError, zipfile.BadZipFile, ElementTree.ParseError):
        return  # what reads the values is more tolerant
    for attributes, inner in _CELL.findall(content) if b"<f" in content else ():
        # a text that is empty is a value, which only its type tells
        has_value = b't="str"' in attributes or re.search(rb"<v>[^<]|<is>", inner)
        if re.search(rb"<f[\s/>]", inner) and not has_value:
            cell = re.search(rb'\br="(\w+)"', attributes)
            raise UserError(
                f"{path}, sheet '{name}': the formula{f' in {cell[1].decode()}' if cell else ''} "
                "has no value, as no spreadsheet has computed it: open the file in one and save it"
            )
