"""Rows of JSON: of a document, which is read as a whole, and of a line of JSON lines."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from finetune.data import bounds
from finetune.errors import UserError

_SHOWN = 40
#: What stands between the rows of an array.
_BETWEEN = ", \t\r\n"


class _Twice(ValueError):
    """An object has a key twice; of these ``json`` returns the last without a word."""


def is_object(line: str) -> bool:
    """Return whether a line is an object by itself, as each of JSON lines is."""
    if not line.lstrip().startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def of_line(line: str, place: str) -> dict[str, Any]:
    """Return the row of a line of JSON lines; ``place`` is its position, for the messages.

    Raises:
        UserError: if it is no object.
    """
    bounds.refuse_deep(line, place)
    if line.lstrip().startswith("["):
        raise UserError(
            f"{place}: expected an object, found {line[:_SHOWN]!r}: an array of objects is read "
            "from a file that ends in .json"
        )
    try:
        row = json.loads(line, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: {explained(error)}") from error
    except _Twice as error:
        raise UserError(f"{place}: {error}") from error
    except ValueError as error:  # of Python's own limit
        most = f"{sys.get_int_max_str_digits():,}"
        raise UserError(
            f"{place}: an integer of more than {most} digits; write it as text, in quotation marks"
        ) from error
    if not isinstance(row, dict):
        raise UserError(f"{place}: expected an object, found {line[:40]!r}")
    if "\\u" in line:
        bounds.refuse_half_characters(json.dumps(row, ensure_ascii=False), place)
    return row


def rows(text: str, path: Path) -> list[dict[str, Any]]:
    """Return the rows of a document: an array of objects, alone or as the only array in an object,
    columns of equal length, as ``DataFrame.to_json`` writes them, or a single row.

    Raises:
        UserError: if it is none of these; ``path`` is named.
    """
    bounds.refuse_deep(text, str(path))
    try:
        content = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise UserError(f"{path} holds no rows") from error
        raise UserError(f"{path}, line {error.lineno}: {explained(error)}") from error
    except _Twice as error:
        raise UserError(f"{path}{_line_of_twice(text)}: {error}") from error
    except ValueError as error:  # an integer of too many digits
        raise UserError(f"{path}: {error}") from error
    found = _rows_in(content)
    if found is None and (apart := _apart(content)):
        raise UserError(
            f"{path}: the columns {apart[0]!r} and {apart[1]!r} have values for other keys: give "
            "all of them the same"
        )
    if found is None:
        shown = shorten(text, _SHOWN, placeholder="...")
        raise UserError(
            f"{path}: expected an array of objects, found {shown!r}: write one object per line, as "
            ".jsonl"
        )
    if "\\u" in text:
        for number, row in enumerate(found, start=1):
            bounds.refuse_half_characters(
                json.dumps(row, ensure_ascii=False), f"{path}, row {number}"
            )
    return found


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object as a dictionary.

    Raises:
        _Twice: if a key comes more than once.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(
            name for name, count in Counter(name for name, _ in pairs).items() if count > 1
        )
        values = [json.dumps(value, ensure_ascii=False) for name, value in pairs if name == twice]
        shown = " and ".join(each[:_SHOWN] + "..." * (len(each) > _SHOWN) for each in values[:2])
        raise _Twice(f"the key '{twice}' comes twice in one object, with {shown}: keep one")
    return found


def _line_of_twice(text: str) -> str:
    """Return where the first row of an array begins that has a key twice, for messages; an empty
    text of another document.
    """
    if not (start := re.match(r"\s*\[", text)):
        return ""
    decoder, place = json.JSONDecoder(object_pairs_hook=_once), start.end()
    while True:  # until the row that was refused
        while text[place] in _BETWEEN:
            place += 1
        try:
            _, end = decoder.raw_decode(text, place)
        except _Twice:
            line = text.count("\n", 0, place) + 1
            return f", line {line}"
        place = end


def explained(error: json.JSONDecodeError) -> str:
    """Return what is wrong with JSON, and what mends it."""
    where, rest = f"(character {error.colno})", error.doc[error.pos :]
    unclosed = f"a text has no closing quotation mark {where}: is it cut off?"
    match error.msg.removesuffix(" at"):
        case "Invalid control character" if not rest.strip("\r\n"):  # at the end of a line
            return unclosed
        case "Invalid control character":
            sign = rest[0]
            if sign == "\0":
                return f"a null byte {where}, which is no text: is the file damaged? Remove it"
            return f"{sign!r} in a text {where}: write it as {json.dumps(sign)[1:-1]}"
        case "Unterminated string starting":
            return unclosed
        case "Expecting value" if not rest.strip():
            return f"ends before a value {where}: is it cut off?"
        case (
            "Expecting value"
            | "Expecting property name enclosed in double quotes"
            | "Illegal trailing comma before end of array"
            | "Illegal trailing comma before end of object"
        ) if error.msg.startswith("Illegal") or error.doc[: error.pos].rstrip().endswith(","):
            if (end := rest.lstrip(_BETWEEN)[:1]) in ("]", "}"):
                return f"a comma before '{end}' {where}: remove it"
        case "Extra data":
            return f"more than one value {where}: write one object per line, as .jsonl"
    return f"{error.msg} {where}"


def _apart(content: Any) -> tuple[str, str] | None:
    """Return two columns whose values are not of the same keys."""
    if not isinstance(content, dict) or not all(
        isinstance(each, dict) for each in content.values()
    ):
        return None
    (first, keys), *others = ((name, each.keys()) for name, each in content.items())
    return next(((first, name) for name, each in others if each != keys and each & keys), None)


def _rows_in(content: Any) -> list[dict[str, Any]] | None:
    if isinstance(content, list) and all(isinstance(each, dict) for each in content):
        return content
    if not isinstance(content, dict) or not content:
        return None
    if content.keys() == {"columns", "index", "data"}:  # as pandas writes with orient="split"
        names, data = content["columns"], content["data"]
        if all(isinstance(row, list) and len(row) == len(names) for row in data):
            return [dict(zip(names, row, strict=True)) for row in data]
    tables = [each for each in content.values() if isinstance(each, list) and _rows_in(each)]
    if len(tables) == 1:
        return _rows_in(tables[0])
    by_key = [each for each in content.values() if isinstance(each, dict)]
    if any(each.keys() != by_key[0].keys() for each in by_key):
        return None
    columns = [
        [each[key] for key in by_key[0]] if isinstance(each, dict) else each
        for each in content.values()
    ]
    if all(isinstance(each, list) for each in columns) and len(set(map(len, columns))) == 1:
        return [dict(zip(content, row, strict=True)) for row in zip(*columns, strict=True)]
    return None if any(isinstance(each, (list, dict)) for each in content.values()) else [content]
