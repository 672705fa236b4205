"""Read ``--unlabelled``: rows of texts that only a teacher labels."""

from collections.abc import Sequence

import numpy as np
from datasets import Dataset, DatasetDict

from finetune.data import ROW, digests, tokenize
from finetune.data.columns import find_complete, require_columns
from finetune.data.files_of_splits import NoTrainSplit
from finetune.data.sources import Source
from finetune.data.splits import ORDER, Plan, index_rows
from finetune.errors import Findings, UserError

#: The name of these rows where others have that of their split.
NAME = "unlabelled"


def read_unlabelled(
    source: Source, columns: Sequence[str], splits: DatasetDict, plan: Plan, report: Findings
) -> Dataset:
    """Return the rows of a source that are in no split, each once. The columns are ``_row``,
    ``text``, of several columns ``texts``, and ``label``, which has no meaning.

    Args:
        source: It has no other split than ``train``. Labels in it are not read.
        columns: The names of the text columns.
        splits: The rows of the data.
        plan: Whether rows without a text, and near duplicates, are dropped.
        report: Gets the number of rows that are dropped, by reason.

    Raises:
        UserError: If it cannot be read, or lacks a column or a text; or if no row is left.
    """
    findings = Findings()
    findings.find_places = lambda _, rows: source.find_places("train", rows)
    try:
        dataset = source.load(findings)
        names = list(dataset)
    except NoTrainSplit as error:
        names = list(error.splits)
    except UserError as error:
        raise UserError(*(f"--{NAME}: {mistake}" for mistake in error.mistakes)) from error
    if names != ["train"]:
        raise UserError(
            f"--{NAME} {source.dataset}: expected a file, a pattern of files, or one split, train; "
            f"found {', '.join(names) or 'no file of rows'}"
        )
    rows = dataset["train"]
    flag = "--text_columns" if len(columns) > 1 else "--text_column"
    require_columns(DatasetDict({NAME: rows}), {flag: columns}, findings)
    rows = rows.select_columns([ROW, *columns])
    is_complete = find_complete(rows, NAME, columns, (), plan.drop_invalid, findings)
    findings.raise_errors()
    dataset = DatasetDict({NAME: rows.select(np.flatnonzero(is_complete))})
    rows = tokenize.combined(dataset, columns)[NAME]
    train = splits["train"]
    label = [train[0]["label"]] * len(rows)
    rows = rows.add_column("label", label, feature=train.features["label"])
    dataset = DatasetDict({**splits, NAME: rows})
    index = index_rows(dataset, [*ORDER, NAME]).assign(label=0)  # labels in it are not read
    index = digests.drop_repeated(index, dataset, "text", plan, findings)
    for finding in findings.findings:
        if finding.split == NAME or finding.name == "reading":
            report.info(findings.text(finding), finding.name)
    rows = rows.select(index.loc[index["split"] == NAME, "row"].to_numpy())
    if not len(rows):
        reasons = "; ".join(findings.sentences("warning", "info"))
        raise UserError(f"--{NAME}: no rows are left: {reasons}")
    return rows
