"""Look into the XML of an .xlsx for what its values do not tell: hidden rows, and formulas that no
program has computed.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

from finetune.errors import UserError, counted

_SHOWN_ROWS = 5
#: What the XML of a sheet has if there is anything to find, and how long that is at most.
_MARK, _LENGTH, _BLOCK = re.compile(rb"<(\w{1,20}:)?f[\s/>]|\bhidden="), 24, 2**20
_BOOK = PurePosixPath("xl/workbook.xml")


def inspected(path: Path, sheet: str) -> str:
    """Return a sentence if rows of a sheet are hidden; else an empty one.

    Raises:
        UserError: if cells hold formulas without a value.
    """
    try:
        with zipfile.ZipFile(path) as book:
            part = _part(book, sheet)
            if not _is_marked(book, part):
                return ""
            hidden, uncomputed = _marks(book, part, zeros=_is_left_to_others(book))
    except (zipfile.BadZipFile, ElementTree.ParseError, KeyError, ValueError):
        return ""  # what reads the values is more tolerant
    if uncomputed:
        others = len(uncomputed) - 1
        more = f" ({counted(others, 'more cell')} likewise)" if others else ""
        raise UserError(
            f"{path}, sheet '{sheet}', cell {uncomputed[0]}: a formula without a value, which no "
            f"spreadsheet program has computed{more}: open the file in one and save it, or write "
            "the values"
        )
    if not hidden:
        return ""
    shown = ", ".join(map(str, hidden[:_SHOWN_ROWS])) + ", ..." * (len(hidden) > _SHOWN_ROWS)
    return (
        f"read {counted(len(hidden), 'hidden row')} of the sheet '{sheet}' too, as of a filter "
        f"({'rows' if len(hidden) > 1 else 'row'} {shown}); to leave them out, copy the visible "
        "rows into another sheet and read that (--sheet)"
    )


def _part(book: zipfile.ZipFile, sheet: str) -> str:
    """Return the name of the part of the archive that holds a sheet."""
    relations = _BOOK.parent / "_rels" / f"{_BOOK.name}.rels"
    targets = {
        each.get("Id"): each.get("Target", "")
        for each in ElementTree.fromstring(book.read(str(relations)))
    }
    for each in ElementTree.fromstring(book.read(str(_BOOK))).iter():
        if _local(each.tag) == "sheet" and each.get("name") == sheet:
            key = next((value for name, value in each.items() if _local(name) == "id"), None)
            return str(_BOOK.parent / targets[key]).removeprefix("/")
    raise KeyError(sheet)


def _is_marked(book: zipfile.ZipFile, part: str) -> bool:
    """Return whether a sheet may have hidden rows or formulas: parsing all of it takes longer."""
    end = b""
    with book.open(part) as file:
        while block := file.read(_BLOCK):
            if _MARK.search(end + block):
                return True
            end = block[-_LENGTH:]
    return False


def _is_left_to_others(book: zipfile.ZipFile) -> bool:
    """Return whether formulas are to be computed by whoever opens the file: a program that only
    writes files writes 0 as their value.
    """
    parts = ElementTree.fromstring(book.read(str(_BOOK)))
    return any(
        _local(each.tag) == "calcPr" and each.get("fullCalcOnLoad") in ("1", "true")
        for each in parts
    )


def _marks(book: zipfile.ZipFile, part: str, *, zeros: bool) -> tuple[list[int], list[str]]:
    """Return the numbers of hidden rows below the first with values, and the names of cells of
    formulas without a value, or with that of 0 if ``zeros`` are none.
    """
    hidden: list[int] = []
    uncomputed: list[str] = []
    number, is_header = 0, True
    with book.open(part) as file:
        for _, row in ElementTree.iterparse(file):
            if _local(row.tag) != "row":
                continue
            number = int(row.get("r") or number + 1)
            is_empty = True
            for cell in row:
                inside = {_local(each.tag): each for each in cell}
                value = inside.get("v")
                text = value.text if value is not None else None
                has_value = "is" in inside or bool(text)
                is_placeholder = not has_value or (zeros and text == "0")
                if "f" in inside and is_placeholder and cell.get("t") != "str":
                    uncomputed.append(cell.get("r") or f"of row {number}")
                is_empty &= not has_value
            if not (is_empty or is_header) and row.get("hidden") in ("1", "true"):
                hidden.append(number)
            is_header &= is_empty
            row.clear()
    return hidden, uncomputed


def _local(name: str) -> str:
    """Return a name without its namespace."""
    return name.rpartition("}")[2]
