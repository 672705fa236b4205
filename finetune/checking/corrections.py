"""Apply ``--relabel`` and ``--exclude``: copies of ``suspects.csv`` that a person has edited.

A line of the file stands for all rows of its split with the same content (by digest) and label. So
rows may move, and the file of another or a changed data set corrects nothing by mistake. Files are
applied after the splits are made, so that a training with corrections has the same test rows as one
without. Where words are labelled, a line has some entities of a row, and others instead of them.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict, List

from finetune.checking.suspects import label_text, read_suspects, row_digests, text_digest
from finetune.data import tags, targets
from finetune.data.labels import list_names, parse_list, parse_number
from finetune.data.read import existing
from finetune.data.sources import Source
from finetune.errors import Findings, UserError, counted, locate
from finetune.runtime.files import hash_file
from finetune.runtime.formats import escape_formula

#: The ``new_label`` that removes a row.
DROP = "drop"


def apply(
    splits: DatasetDict,
    source: DatasetDict,
    column: str,
    files: Mapping[str, Sequence[str]],
    report: Findings,
) -> DatasetDict:
    """Return the splits with corrected labels and without excluded rows.

    Args:
        splits: The splits that are made from ``source``.
        source: All rows of the data.
        column: The column that the model reads.
        files: The file names by option, ``relabel`` or ``exclude``. They are applied in order, each
            to the result of the last.
        report: Gets a fact about each file, and the corrections: ``file``, ``sha256``, and the
            number of rows ``relabelled`` and ``excluded`` per split.

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
            applied.append({"file": name, "sha256": hash_file(path), **facts})
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
    report.facts.corrections = applied
    return corrected


def _find_rows(splits: DatasetDict, source: DatasetDict, column: str) -> pd.DataFrame:
    """Return a frame of the rows of the source with ``split``, ``row``, ``digest``, ``label`` (None
    once a row is left out) and ``part``, the final split of the row, if any.
    """
    frames = []
    for split, rows in source.items():
        labels = pd.Series(targets.values(rows), dtype=object)
        numbers, digests = targets.source_rows(rows), row_digests(rows, column)
        frames.append(
            pd.DataFrame({"split": split, "row": numbers, "digest": digests, "label": labels})
        )
    parts = []
    for part, rows in splits.items():
        split = part if part in source else "train"
        parts.append(pd.DataFrame({"split": split, "row": targets.source_rows(rows), "part": part}))
    return pd.concat(frames).merge(pd.concat(parts), "left", on=["split", "row"])


def _find_changes(
    flag: str, path: Path, lines: pd.DataFrame, data: pd.DataFrame, train: Dataset
) -> pd.Series:
    """Return the new labels by their index in ``data``; None for rows to leave out."""
    mistakes = []

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
    lines = lines.reset_index(names="line").rename(columns={"label": "label_text"})
    pairs = lines.merge(data.reset_index(names="place"), "left", on=["split", "digest"])
    is_gone = pairs["place"].notna() & pairs["label"].isna()  # left out by an earlier file
    texts = pairs["label"].map(partial(label_text, train), "ignore")
    is_same = texts == pairs["label_text"]
    is_tagged = targets.is_tagged(train)
    if is_tagged:
        is_alike = pd.Series(list(map(_has_spans, texts, pairs["label_text"])), dtype=bool)
    else:
        normalized = pairs["label_text"].map(_normalize_label)
        is_alike = texts.map(_normalize_label, "ignore") == normalized
    is_match = is_same | (is_alike & ~is_same.groupby(pairs["line"]).transform("any"))
    is_found = (is_match | is_gone).groupby(pairs["line"]).transform("any")
    unmatched = pairs[~is_found & ((pairs["new_label"] != "") | (flag == "--exclude"))]
    if not unmatched.empty:
        mistakes.append(
            f"{place(unmatched['line'])}: not in the data with this 'split', 'digest' and 'label' "
            f"({list_names(list(unmatched['label_text'].unique()))}): edit only 'new_label', use "
            "the file made from this data, or remove the line"
        )
    changes: dict[Any, Any] = {}
    for row, requests in pairs[is_match].groupby("place"):
        cells = requests["new_label"].unique()
        is_ambiguous = len(cells) > 1
        if is_tagged:  # lines about the same entities; of none there may be several
            changed = requests[requests["label_text"] != tags.NO_SPANS]
            is_ambiguous = bool((changed.groupby("label_text")["new_label"].nunique() > 1).any())
        if is_ambiguous and flag == "--relabel":
            mistakes.append(
                f"{place(requests['line'])} stand for the same content and label: give them the "
                "same 'new_label', or remove a line"
            )
        try:
            if flag == "--exclude":
                changes[row] = None
            elif is_tagged and any(cells):
                changes[row] = _correct_words(data["label"][row], requests, train)
            elif cells[0]:
                changes[row] = _parse_label(cells[0], train)
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


def _has_spans(label: Any, cell: str) -> bool:
    """Return whether a label, if there is one, has all entities of a cell."""
    try:
        return isinstance(label, str) and set(_spans(cell)) <= set(_spans(label))
    except UserError:
        return False


def _spans(cell: str) -> list[tags.Span]:
    """Return start, end and type of the entities in a cell."""
    values = parse_list(cell)
    try:
        if values is not None:
            return list(map(tags.split_span, values))
    except tags.Invalid:
        pass
    raise UserError(
        f"expected a JSON list of [start, end, type] in 'new_label', {tags.NO_SPANS} for no "
        f"entity, or {DROP} to leave the row out, found {cell!r}"
    )


def _correct_words(words: Any, requests: pd.DataFrame, rows: Dataset) -> Any:
    """Return the words of a row with the entities of ``new_label`` instead of those of ``label``;
    None for ``drop``.
    """
    names = targets.class_names(rows)
    edited = requests[requests["new_label"] != ""]
    if (edited["new_label"].str.strip() == DROP).any():
        return None
    spans = set(tags.spans_of(words, names))
    for cell in edited["label_text"]:
        spans -= set(_spans(cell))
    for cell in edited["new_label"]:
        spans |= set(_spans(cell))
    return tags.with_spans(words, sorted(spans), names)


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
