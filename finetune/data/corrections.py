"""Write ``suspects.csv`` for a person to correct, and apply ``--relabel`` and ``--exclude``.

A line of the file stands for all rows of its split with the same content (by digest) and label. So
rows may move, and the file of another or a changed data set corrects nothing by mistake. Files are
applied after the splits are made, so that a training with corrections has the same test rows as one
without.
"""

import csv
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict, List

from finetune.data import digests, targets
from finetune.data.labels import list_names, parse_list, parse_number
from finetune.data.prediction_columns import cell_text, free_name, usual_name
from finetune.data.read import existing, read_file
from finetune.data.read_text import ReadOptions
from finetune.data.sources import Source
from finetune.errors import Report, UserError, counted, locate
from finetune.runtime.files import replacing
from finetune.runtime.formats import escape_formula

FILE = "suspects.csv"
COLUMNS = (
    *("split", "place", "text", "label", "suggested", "probability", "why"),
    *("new_label", "digest"),
)
#: The ``new_label`` that removes a row.
DROP = "drop"


def write_suspects(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Path:
    """Write rows for a person to correct, for Excel: UTF-8 with a byte order mark, no formulas.

    A row has the keys :data:`COLUMNS`, and ``user``, the values of the user's own ``columns``.
    """
    with replacing(path) as new, new.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(free_name(name, columns) for name in COLUMNS), *columns])
        for row in rows:
            user = row.get("user", {})
            cells = [*map(row.get, COLUMNS), *map(user.get, columns)]
            writer.writerow(map(escape_formula, map(cell_text, cells)))
    return path


def read_suspects(path: Path) -> pd.DataFrame:
    """Return the columns ``split``, ``digest``, ``label``, ``new_label`` and ``text`` of a file, as
    texts; without a column ``text``, its cells are empty.

    Raises:
        UserError: If a column is missing.
    """
    rows = read_file(path, ReadOptions()).rows
    lines = pd.DataFrame()
    for name in ("split", "digest", "label", "new_label", "text"):
        names = [column for column in rows.column_names if usual_name(column) == name]
        column = max(names, key=len, default=name)  # with prefixes if the user has one of that name
        if column not in rows.column_names:
            if name == "text":
                lines[name] = ""
                continue
            raise UserError(
                f"{path}: no column '{column}' (columns: {', '.join(rows.column_names)}); expected "
                f"a {FILE} from report or check in which only 'new_label' was edited"
            )
        texts = pd.Series(["" if value is None else str(value) for value in rows[column][:]])
        lines[name] = texts.where(texts.str.strip() != "", "")  # keep blanks of a label
    return lines


def has_new_labels(path: Path) -> bool:
    """Return whether the ``new_label`` of any line of a ``suspects.csv`` is filled in."""
    return any(read_suspects(path)["new_label"])


def text_digest(text: str) -> str:
    """Return the digest of a text; the ``x`` keeps a spreadsheet from reading it as a number."""
    return f"x{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def row_digests(rows: Dataset, column: str) -> list[str]:
    """Return the digest of each row's content; ``column`` is the column that the model reads."""
    if column != "text":
        return [f"x{digest.hex()}" for digest in digests.hash_rows(rows, column)]
    batches = rows.select_columns([column]).iter(1000)
    return [text_digest(text) for batch in batches for text in batch[column]]


def label_text(rows: Dataset, label: Any) -> str:
    """Return a label as it is written in ``suspects.csv``."""
    names = targets.class_names(rows)
    if targets.is_set(rows):
        return json.dumps([names[number] for number in label], ensure_ascii=False)
    return names[label] if names else str(label)


def apply(
    splits: DatasetDict,
    source: DatasetDict,
    column: str,
    files: Mapping[str, Sequence[str]],
    report: Report,
) -> tuple[DatasetDict, list[dict[str, Any]]]:
    """Return the splits with corrected labels and without excluded rows, and facts per file.

    The facts are ``file``, ``sha256``, and the number of rows ``relabelled`` and ``excluded``
    per split.

    The splits are made from ``source``; the model reads ``column``. ``files`` are the file names by
    option, ``relabel`` or ``exclude``. They are applied in order, each to the result of the last.

    Raises:
        UserError: If a file does not belong to this data, has unknown labels, or is ambiguous.
    """
    data = _find_rows(splits, source, column)
    data["is_changed"] = False
    applied = []
    for option, names in files.items():
        flag = f"--{option}"
        for name in names:
            path = existing(name)
            lines = read_suspects(path)
            if flag == "--relabel" and not any(lines["new_label"]):
                raise UserError(
                    f"{flag} {name}: 'new_label' is empty: write a label or {DROP} into it"
                )
            changes = _find_changes(flag, path, lines, data, source["train"])
            data.loc[changes.index, "label"] = changes
            data.loc[changes.index, "is_changed"] = True
            used = changes[data["part"].notna()[changes.index]]
            facts: dict[str, Any] = {}
            for kind, part in (("relabelled", used[used.notna()]), ("excluded", used[used.isna()])):
                facts[kind] = data["part"][part.index].value_counts(sort=False).to_dict()
            relabelled, excluded = map(_describe_counts, facts.values())
            text = f"{flag} {name}: relabelled {relabelled}; left out {excluded}"
            if unused := len(changes) - len(used):
                text += f"; {counted(unused, 'row')} of the file in no split, such as duplicates"
            if "test" in facts["relabelled"] | facts["excluded"]:
                text += ": scores on this test set cannot be compared with those before"
            report.info(text, name="corrections")
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            applied.append({"file": name, "sha256": digest, **facts})
    corrected = DatasetDict()
    for split, rows in splits.items():
        is_here = data["is_changed"] & (data["part"] == split)
        changes = data[is_here].set_index("row")["label"]
        if not changes.empty:
            labels = pd.Series(targets.values(rows), targets.source_rows(rows), dtype=object)
            labels.loc[changes.index] = changes
            feature = rows.features["label"]
            rows = rows.remove_columns("label").select(np.flatnonzero(labels.notna()))
            rows = rows.add_column("label", list(labels[labels.notna()]), feature=feature)
        corrected[split] = rows
    return corrected, applied


def _find_rows(splits: DatasetDict, source: DatasetDict, column: str) -> pd.DataFrame:
    """Return a frame of the rows of the source with ``split``, ``row``, ``digest``, ``label`` (None
    once a row is left out) and ``part``, the final split of the row, if any.
    """
    frames = []
    for split, rows in source.items():
        frame = pd.DataFrame({"split": split, "digest": row_digests(rows, column)})
        frame["row"] = targets.source_rows(rows)
        frame["label"] = pd.Series(targets.values(rows), dtype=object)
        frames.append(frame)
    parts = []
    for part, rows in splits.items():
        split = part if part in source else "train"
        parts.append(pd.DataFrame({"split": split, "row": targets.source_rows(rows), "part": part}))
    return pd.concat(frames).merge(pd.concat(parts), "left", on=["split", "row"])


def _find_changes(
    flag: str, path: Path, lines: pd.DataFrame, data: pd.DataFrame, train: Dataset
) -> pd.Series:
    """Return the new labels by their index in ``data``; None for rows to leave out."""
    mistakes = list[str]()

    def place(numbers: pd.Series) -> str:
        places = locate(Source(str(path)).find_places, "train", numbers.unique().tolist())
        return f"{flag} {path}, {places}"

    # a spreadsheet may change a text, but not to that of another row
    text_digests = lines["text"].map(text_digest)
    is_moved = (text_digests != lines["digest"]) & text_digests.isin(data["digest"])
    if is_moved.any():
        mistakes.append(
            f"{place(lines.index[is_moved].to_series())}: 'text' is that of another row than "
            "'digest': sort all columns together, or none"
        )
    lines = lines.drop(columns="text").reset_index(names="line").rename(columns={"label": "text"})
    pairs = lines.merge(data.reset_index(names="place"), "left", on=["split", "digest"])
    is_gone = pairs["place"].notna() & pairs["label"].isna()  # left out by an earlier file
    texts = pairs["label"].map(partial(label_text, train), "ignore")
    is_same = texts == pairs["text"]
    is_alike = texts.map(_normalize_label, "ignore") == pairs["text"].map(_normalize_label)
    is_match = is_same | (is_alike & ~is_same.groupby(pairs["line"]).transform("any"))
    is_found = (is_match | is_gone).groupby(pairs["line"]).transform("any")
    unmatched = pairs[~is_found & ((pairs["new_label"] != "") | (flag == "--exclude"))]
    if not unmatched.empty:
        mistakes.append(
            f"{place(unmatched['line'])}: not in the data with this 'split', 'digest' and 'label' "
            f"({list_names(list(unmatched['text'].unique()))}): edit only 'new_label', use the "
            "file made from this data, or remove the line"
        )
    changes = {}
    for row, requests in pairs[is_match].groupby("place"):
        cell, *others = requests["new_label"].unique()
        if others and flag == "--relabel":
            mistakes.append(
                f"{place(requests['line'])} stand for the same content and label: give them the "
                "same 'new_label', or remove a line"
            )
        try:
            if cell or flag == "--exclude":
                changes[row] = _parse_label(cell, train) if flag == "--relabel" else None
        except UserError as error:
            mistakes.append(f"{place(requests['line'].head(1))}: {error}")
    if mistakes:
        raise UserError(*dict.fromkeys(mistakes))
    return pd.Series(changes, dtype=object)


def _describe_counts(counts: Mapping[str, int]) -> str:
    """Return numbers of rows by split as text: ``3 train rows, 1 test row``."""
    return ", ".join(counted(count, f"{split} row") for split, count in counts.items()) or "none"


def _normalize_label(label: str) -> str:
    """Return a label without what a spreadsheet may change: case, blanks, formats of numbers."""
    text = label.strip().removeprefix("'").casefold()
    number = parse_number(text)
    return text if number is None else f"{number:.12g}"


def _class_ids(values: Sequence[Any], names: Sequence[str]) -> list[int]:
    """Return the sorted ids of classes, which may be escaped or within blanks."""
    numbers = {escape_formula(name): number for number, name in enumerate(names)}
    numbers |= dict(zip(names, range(len(names)), strict=True))
    ids = set()
    for word in map(str, values):
        name = word if word in numbers else word.strip()
        if name not in numbers:
            raise UserError(
                f"there is no label '{name}' (labels: {list_names(names)}); {DROP} leaves "
                "the row out"
            )
        ids.add(numbers[name])
    return sorted(ids)


def _parse_label(cell: str, rows: Dataset) -> Any:
    """Return the label in a cell of ``new_label``, as class ids or numbers; None for ``drop``."""
    names = targets.class_names(rows)
    feature = rows.features["label"]
    if cell.strip() == DROP and not {DROP, cell} & set(names):
        return None
    is_list = isinstance(feature, List)
    parsed = parse_list(cell) if is_list else None
    values = [cell] if parsed is None else parsed
    if names:
        labels: list[Any] = _class_ids(values, names)
    else:
        length = feature.length if is_list else 1
        labels = [n for n in map(parse_number, values) if n is not None and math.isfinite(n)]
        if not len(values) == len(labels) == length:
            expected = "a number"
            if is_list:
                expected = f"a JSON list of {length} numbers"
            raise UserError(f"expected {expected} in 'new_label', found {cell!r}")
    return labels if is_list else labels[0]
