"""Check the columns of texts and labels of a data set before it is trained on."""

import json
import re
import shlex
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from finetune.data import ROW, arrow, targets
from finetune.data.comma_list import format_option, join_values, split_values
from finetune.data.labels import (
    LabelColumn,
    LabelOptions,
    list_names,
    parse_number,
    read_label_column,
)
from finetune.errors import Findings, UserError, counted, suggestion

#: What programs, tools for SQL and spreadsheets write for a missing value, in lower case. NA and
#: None may be names.
_MISSING = {
    *("nan", "null", "n/a", "#n/a", "<na>", "nat", "\\n"),
    *("(null)", "[null]", "<null>", "#ref!", "#value!", "#name?", "#div/0!"),
}
#: The column of Prodigy that says whether a person has accepted the row, and its values.
_ANSWER, _REJECTED, _ANSWERS = "answer", ("reject", "ignore"), ("accept", "reject", "ignore", None)
NOT_ACCEPTED = f"that were not accepted (the column '{_ANSWER}' of Prodigy)"
#: Fewer different numbers have no outlier.
_MIN_VALUES = 5


def parse_names(flag: str, text: Any) -> list[str]:
    """Return the column names in the value of an option, a text or a list; [] for None.

    Raises:
        UserError: If there is only one name.
    """
    names = split_values(format_option(text, "NAME,NAME", flag) or "")
    if text is not None and len(names) < 2:
        raise UserError(f"{flag} {text}: expected two columns or more, separated by commas")
    return names


def require_columns(
    dataset: DatasetDict, columns: Mapping[str, Sequence[str]], report: Findings
) -> None:
    """Check that columns exist, are named only once, and that text columns hold texts and label
    columns no bytes.

    Args:
        dataset: The splits of the source.
        columns: The column names by flag, e.g. ``--text_column`` or ``--label_columns``.
        report: Gets an error for each mistake.

    Raises:
        UserError: With every mistake.
    """
    flags: dict[str, str] = {}
    for flag, names in columns.items():
        for column in names:
            lacking = [split for split, rows in dataset.items() if column not in rows.column_names]
            if column in flags:
                report.error(f"{flag}: '{column}' is already named by {flags[column]}")
            elif lacking:
                fix = ""
                if "train" not in lacking and flag.startswith("--label"):
                    fix = f"--dataset_splits {lacking[0]}=none does not read these rows"
                report.error(
                    f"{flag}: no column '{column}' in the {' and '.join(lacking)} data"
                    + describe_columns(dataset[lacking[0]], column),
                    fix=fix,
                )
            elif flag.startswith(("--text_column", "--label_column")):
                _require_text(dataset, flag, column, report)
            flags.setdefault(column, flag)
    report.raise_errors()


def _require_text(dataset: DatasetDict, flag: str, column: str, report: Findings) -> None:
    for split, rows in dataset.items():
        kind = rows.data.schema.field(column).type
        is_text = arrow.is_text(kind)
        is_label = flag.startswith("--label")
        if (is_text and split != "train") or (is_label and "binary" not in str(kind)):
            continue
        if wrong := _find_wrong_cells(rows, column, kind):
            message = f"{flag}: expected texts in the column '{column}' of the {split} data, found "
            rows_in_source = targets.source_rows(rows)[[row for row, _ in wrong]].tolist()
            report.error(
                f"{message}{wrong[0][1]!r:.60}",
                split=split,
                rows=rows_in_source,
                fix="is it the right column?",
            )


def _find_wrong_cells(rows: Dataset, column: str, kind: pa.DataType) -> list[tuple[int, Any]]:
    """Return row and value of each cell that is no text; of a column of texts all cells, if each of
    them is a number.
    """
    is_text = arrow.is_text(kind)
    wrong = []
    for numbers, values in arrow.pieces(rows, column):
        for row, cell in zip(numbers.tolist(), values.to_pylist(), strict=True):
            if cell is None:
                continue
            if kind == pa.json_():
                cell = json.loads(cell)
            if is_text and parse_number(cell) is None:
                return []
            if is_text or not isinstance(cell, str):
                wrong.append((row, cell))
    return wrong


def describe_columns(rows: Dataset, column: str) -> str:
    """Return the text ``; did you mean 'NAME'? (available: ...)`` for a missing column."""
    names = [name for name in rows.column_names if name != ROW]
    return f"{suggestion(column, names)} (available: {', '.join(names)})"


def read_label_columns(
    dataset: DatasetDict, texts: Sequence[str], options: LabelOptions, report: Findings
) -> dict[str, list[LabelColumn]]:
    """Return the label columns of each split, without the labels of rows that lack a text or label.

    Args:
        dataset: The splits of the source.
        texts: The names of the text columns.
        options: How the labels are written.
        report: Gets a finding about the rows that lack something.

    Raises:
        UserError: If there are such rows; with ``drop_invalid`` a warning is added instead.
    """
    columns = {}
    for split, rows in dataset.items():
        labels = [read_label_column(rows, name) for name in options.columns]
        is_complete = find_complete(rows, split, texts, labels, options.drop_invalid, report)
        rejected = find_rejected(rows, [*texts, *options.columns])
        fix = "--drop_invalid leaves them out"
        positions = np.flatnonzero(rejected)
        targets.refuse_or_drop(
            report, NOT_ACCEPTED, fix, positions, rows, split, options.drop_invalid
        )
        columns[split] = [column.only(is_complete & ~rejected) for column in labels]
    if not options.drop_invalid:
        report.raise_errors()
    return columns


def find_rejected(rows: Dataset, used: Collection[str]) -> np.ndarray:
    """Return which rows the column ``answer`` of Prodigy rejects, bool, shape ``(rows,)``; none if
    that column has other values, or is one of those ``used``.
    """
    answers: list[Any] = [None] * len(rows)
    if _ANSWER in rows.column_names and _ANSWER not in used:
        answers = rows[_ANSWER][:]
    is_of_prodigy = all(answer in _ANSWERS for answer in answers)
    return np.array([is_of_prodigy and answer in _REJECTED for answer in answers], dtype=bool)


def find_complete(
    rows: Dataset,
    split: str,
    texts: Sequence[str],
    labels: Sequence[LabelColumn],
    drop_invalid: bool,
    report: Findings,
) -> np.ndarray:
    """Return which rows have all texts and labels, bool, shape ``(rows,)``; report the others.

    Args:
        rows: The rows of a split.
        split: Its name.
        texts: The names of the text columns.
        labels: The label columns.
        drop_invalid: Whether the other rows are warnings; otherwise they are errors.
        report: Gets a finding for each column in which values are missing.
    """
    masks = {}
    for name in texts:
        has_text = np.zeros(len(rows), dtype=bool)
        for numbers, values in arrow.pieces(rows, name):
            cells = pc.fill_null(values.cast(pa.string()), "")
            has_text[numbers] = pc.not_equal(pc.utf8_trim_whitespace(cells), "")
        masks[f"text in '{name}'"] = has_text
    for column in labels:
        masks[f"label in '{column.name}'"] = column.codes >= 0
    for kind, has_value in masks.items():
        fix = "--drop_invalid leaves them out"
        if not has_value.any():
            fix = f"is --{kind.partition(' ')[0]}_column the right column?"
            if split in ("validation", "test"):
                fix = f"--dataset_splits {split}=none does not read these rows"
        missing = np.flatnonzero(~has_value)
        targets.refuse_or_drop(report, f"without a {kind}", fix, missing, rows, split, drop_invalid)
    is_complete: np.ndarray = np.logical_and.reduce(list(masks.values()))
    return is_complete


def require_labelled(dataset: DatasetDict, input_column: str, report: Findings) -> None:
    """Raise a ``UserError`` if ``load()`` returned other columns, or labels of another type."""
    require_columns(dataset, {"load()": [input_column, "label"]}, report)
    for split, rows in dataset.items():
        if not (targets.are_classes(rows) or "float" in str(rows.features["label"])):
            expected = "expected ClassLabel, floats, or lists of these"
            report.error(f"'label' of the {split} data: {expected}, found {rows.features['label']}")
    report.raise_errors()


def require_rows(
    dataset: DatasetDict, report: Findings, source: Collection[str] | None = None
) -> None:
    """Raise a ``UserError`` for empty splits, for training rows that all have the same label, and
    for classes that the training rows do not have.

    Args:
        dataset: The splits of the source, or the training, validation and test rows.
        report: Receives an error for each mistake; it has the user's names of the label columns.
        source: The names of the splits of the source; None if ``dataset`` is the source, whose
            classes may still be corrected.
    """
    dropped = [report.text(item) for item in report.findings if item.name == "dropped_rows"]
    reason = f" ({'; '.join(dropped)})" if dropped else ""
    names = report.facts.label_columns
    train = dataset["train"]
    classes = targets.class_names(train)
    trained = targets.counts(train)
    for split, rows in dataset.items():
        if not len(rows):
            report.error(f"the {split} split has no rows: the data is too small{reason}")
        elif source and (unknown := targets.counts(rows).keys() - trained):
            report.error(
                f"the {split} data has labels in '{names[0]}' that the training data does not "
                f"have: {list_names([classes[number] for number in sorted(unknown)])}",
                split=split if split in source else "train",
                rows=targets.first_row(rows, unknown),
                fix="rename them by --label_map OLD=NEW, add training rows for them, or do "
                f"without: --dataset_splits {split}=none",
            )
    report.raise_errors()
    if targets.is_tagged(train):
        is_constant = np.array([not trained])
    elif targets.are_classes(train):
        is_constant = np.array([set(trained.values()) <= {len(train)}])
    else:
        numbers = np.reshape(targets.values(train), (len(train), -1))
        is_constant = (numbers == numbers[:1]).all(axis=0)
    for position in np.flatnonzero(is_constant).tolist():
        name = names[position] if position < len(names) else f"target {position + 1}"
        labels = [classes[number] for number in trained] or targets.values(train)[:1]
        report.error(
            f"all {len(train):,} training rows have the same label in '{name}' "
            f"({list_names(labels)}): expected two different ones or more{reason}"
        )
    report.raise_errors()


def similar_names(names: Iterable[str]) -> list[list[str]]:
    """Return groups of names that differ only by case, blanks or characters that look alike."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        words = unicodedata.normalize("NFKC", name).casefold().split()
        visible = "".join(filter(str.isprintable, " ".join(words)))
        # whole numbers: 007, and 7.0, as pandas writes them beside missing values
        groups[re.sub(r"^(-?)0*(\d+?)(\.0)?$", r"\1\2", visible)].append(name)
    return [group for _, group in sorted(groups.items()) if len(group) > 1]


def names_of_missing(names: Iterable[str]) -> list[str]:
    """Return the names that are also written for a missing value, such as ``nan``."""
    return [name for name in names if name.strip().lower() in _MISSING]


def check_names(dataset: DatasetDict, report: Findings) -> None:
    """Report labels in ``--label_map`` that the data does not have as an error. Report classes
    without a row, with the name of a missing value, or with :func:`similar_names`; no classes are
    merged.

    Args:
        dataset: The splits of the source, with encoded labels.
        report: Gets the findings; it has the labels in ``--label_map`` that the data does not have.
    """
    classes = targets.class_names(dataset["train"])
    if unmapped := report.facts.unmapped_labels:
        names = f"{list_names(unmapped)} in the data (labels: {list_names(classes)})"
        report.error(f"--label_map: no label {names}")
    counts = sum((Counter(targets.counts(rows)) for rows in dataset.values()), Counter())
    if absent := [name for number, name in enumerate(classes) if number not in counts]:
        report.info(
            f"no row has the label {list_names(absent)}, which the data declares: the model gets "
            "an output for it"
        )
    if missing := names_of_missing(classes):
        report.warning(
            f"{list_names(missing)}: read as a class, but may be a missing value",
            fix="if it is one, leave the field empty, and --drop_invalid leaves these rows out",
        )
    if similar := similar_names(classes[number] for number, _ in counts.most_common()):
        pairs, quoted = [], []
        for spellings in similar:
            name = spellings[0].strip()
            pairs += [f"{old}={name}" for old in spellings if old != name]
            quoted.append(" and ".join(map(_quote, spellings)))
        option = shlex.quote(join_values(pairs))
        report.warning(
            f"similar labels kept as separate classes: {'; '.join(quoted)}",
            "similar_labels",
            fix=f"to merge them, make them identical in the data, or --label_map {option}",
        )


def check_label_counts(dataset: DatasetDict, report: Findings) -> None:
    """Warn of training rows without a label where all others have exactly one: annotation tools
    export rows that nobody has labelled like this. Nothing is reported but for several labels.

    Args:
        dataset: The splits of the source, with encoded labels.
        report: Gets the finding.
    """
    rows = dataset["train"]
    if not targets.is_set(rows):
        return
    counts = Counter(map(len, targets.values(rows)))
    if counts.keys() == {0, 1}:
        report.warning(
            f"{counted(counts[0], 'training row')} without a label, and one label in each of the "
            "others: perhaps nobody has labelled these rows",
            fix="if so, leave them out, and set --task single_label",
        )


def check_numbers(dataset: DatasetDict, report: Findings) -> None:
    """Warn of a number that is further from the others than these are from each other: it may be
    written for a missing value, as -999 is. Held-out rows with the same label are an error, as
    they have no scores. Nothing is reported for classes.

    Args:
        dataset: The splits of the source, with encoded labels.
        report: Gets the findings.
    """
    if targets.are_classes(dataset["train"]):
        return
    names = report.facts.label_columns
    for split, rows in dataset.items():
        numbers = np.reshape(targets.values(rows), (len(rows), -1))
        if split != "train" and len(rows) > 1 and (numbers == numbers[:1]).all():
            report.error(
                f"all {len(rows):,} {split} rows have the same label, {numbers[0, 0]:g}",
                fix=f"--dataset_splits {split}=none does not read these rows",
            )
        for position, column in enumerate(numbers.T):
            name = names[position] if position < len(names) else f"target {position + 1}"
            for outlier, low, high in _find_outliers(column):
                targets.report_rows(
                    report,
                    "outliers",
                    f"with {outlier:g} in '{name}', while the others are from {low:g} to {high:g}",
                    "if it stands for a missing value, leave the field empty, and --drop_invalid "
                    "leaves these rows out",
                    np.flatnonzero(column == outlier),
                    rows,
                    split,
                    severity="warning",
                )


def _find_outliers(numbers: np.ndarray) -> Iterator[tuple[float, float, float]]:
    """Yield the lowest and the highest number that is further from the others than these are from
    each other, with the lowest and highest of the others.
    """
    values = np.unique(numbers)
    if len(values) < _MIN_VALUES:
        return
    if values[1] - values[0] > values[-1] - values[1]:
        yield values[0], values[1], values[-1]
    if values[-1] - values[-2] > values[-2] - values[0]:
        yield values[-1], values[0], values[-2]


def _quote(name: str) -> str:
    """Return a name in quotes, escaped if its spelling is not visible."""
    if unicodedata.is_normalized("NFC", name):
        return repr(name)
    return ascii(name)
