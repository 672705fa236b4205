"""Check rows: in seconds before every training, and in minutes with ``check --deep``.

A word is reported if nearly all texts with it have the same class, and a large part of that class
has it; ordinary words of a topic do not reach this. A column is reported if its values, counted on
half of the rows, predict the labels of the other half. A label is suspected if it contradicts one
of the most confident tenth of cross-validated predictions (docs/decisions/suspected-labels.md).
"""

import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict

from finetune.checking import entities, texts
from finetune.data import ROW, arrow, digests, encoding, targets, words
from finetune.data.digests import drop_repeated
from finetune.data.splits import Plan, build_index
from finetune.data.targets import RELABEL, report_rows
from finetune.errors import Findings, UserError, counted, list_first
from finetune.runtime import activity
from finetune.statistics import baselines, mistakes
from finetune.statistics.estimates import share, wilson
from finetune.statistics.scored import Probabilities, ScoredRows

#: The share of training rows above which a class is reported as dominant.
_DOMINANT = 0.9
#: The fewest training rows for a class to be learned, and for words to be checked.
_MIN_ROWS, _MIN_ROWS_FOR_WORDS = 10, 100
_MAX_LISTED = 5
#: Thresholds of (precision, recall) of a word for a class; a revealing word reaches one pair. The
#: precision is the lower limit of a 99.9% interval.
_REVEALING, _DEVIATIONS = ((0.95, 0.2), (0.9, 0.5)), 3.29
_MIN_TEXTS = 20
#: The share of the errors of the majority class that a revealing column avoids.
_SAVED = 0.8
#: A token: a word or a sign.
_TOKEN = r"(?u)\w+|[^\w\s]+"
_FOLDS = 5
#: The share of wrong labels above which there is a warning; clean data has estimates up to 2%.
_SUSPICIOUS_LABELS = 0.03


def check_rows(
    source: DatasetDict, splits: DatasetDict, columns: Sequence[str], report: Findings
) -> None:
    """Report damaged texts in the source, and class problems in the ``splits`` made from it.

    ``columns`` are the user's names of the columns that the model reads.
    """
    for split, rows in source.items():
        texts.find_damaged_texts(rows, split, columns, report)
    _find_class_problems(splits["train"], splits["test"], report)


def require_splits(dataset: Any, step: str, names: Iterable[str] = ("train",)) -> None:
    """Check that a ``step`` of a recipe returned a dict that has the splits ``names``.

    Raises:
        UserError: If it did not; the message names the step.
    """
    if not isinstance(dataset, dict) or not set(names) <= set(dataset):
        raise UserError(
            f"{step}() returned {reprlib.repr(dataset)}: expected a DatasetDict with "
            f"{', '.join(names)}"
        )


def require_all_rows(
    prepared: Any, splits: DatasetDict, targets_of: Callable[[str], np.ndarray]
) -> None:
    """Check that ``prepare`` returned all rows of each split in their order, judged by the labels.

    Args:
        prepared: What the step returned.
        splits: The raw rows.
        targets_of: Returns the labels of the rows of a split.

    Raises:
        UserError: For each split with other rows or labels.
    """
    require_splits(prepared, "prepare", splits)
    mistakes = []
    for name, rows in splits.items():
        features = prepared[name]
        documents = encoding.documents_of(features)
        places = np.arange(len(features)) if documents is None else documents
        _, first = np.unique(places, return_index=True)
        if len(first) != len(rows):
            mistakes.append(f"prepare() returned {len(first):,} of the {len(rows):,} {name} rows")
        elif "labels" in features.column_names:
            if targets.is_tagged(rows):
                labels = words.labels_of(features)
            else:
                labels = np.asarray(features.with_format("numpy")["labels"][:])[first]
            if not np.array_equal(labels, targets_of(name).astype(labels.dtype)):
                mistakes.append(f"prepare() changed the labels or the order of the {name} rows")
    if mistakes:
        raise UserError(*mistakes)


def check_deep(
    source: DatasetDict,
    splits: DatasetDict,
    column: str,
    read: Sequence[str],
    plan: Plan,
    report: Findings,
) -> None:
    """Report near duplicates, revealing words and columns, and suspected labels, or entities that
    contradict others; takes minutes.

    Args:
        source: All rows of the data.
        splits: The splits that are made from them.
        column: The column of texts.
        read: The user's names of the columns that the model reads.
        plan: How rows are split; near duplicates that it drops are already in the report.
        report: Gets the findings.
    """
    rows = splits["train"]
    if not arrow.is_text(rows.data.schema.field(column).type):
        report.info("--deep checks texts only, and this recipe has none", "deep")
        return
    # count the near duplicates that the plan keeps
    near_plan = Plan(drop_duplicates="near", drop_overlap="near")
    near = Findings()
    drop_repeated(build_index(source, near_plan, near), source, column, near_plan, near)
    for finding in near.findings:
        if finding.name == "near_duplicates" and plan.drop_duplicates == "exact":
            report.add(replace(finding, fix="--drop_duplicates near keeps one of each"))
        if finding.name == "near_overlap" and plan.drop_overlap == "exact":
            report.add(replace(finding, fix="--drop_overlap near leaves them out"))
    texts.find_other_languages(rows, column, report)
    if targets.is_tagged(rows):
        activity.say("checking entities")
        entities.check_entities(rows, report)
        return
    if not isinstance(rows.features["label"], ClassLabel) or len(rows) < _MIN_ROWS_FOR_WORDS:
        limit = f"expected {_MIN_ROWS_FOR_WORDS} or more training rows with one class each"
        report.info(f"--deep did not check words and labels: {limit}", "deep")
        return
    activity.say("checking words and labels")
    # a sample of many rows, limited by memory
    most = min(baselines.MAX_ROWS, baselines.MAX_SCORES // len(targets.class_names(rows)))
    rows = rows.select(texts.draw_rows(len(rows), most))
    _find_revealing_words(rows, column, report)
    _find_revealing_columns(rows, read, report)
    _find_suspected_labels(rows, column, report)


def _find_class_problems(train: Dataset, test: Dataset, report: Findings) -> None:
    """Report dominant classes, classes with few training rows, and classes without test rows."""
    names = targets.class_names(train)
    noun = "label" if targets.is_set(train) else "class"
    highest = _DOMINANT * len(train)
    if targets.is_tagged(train):  # a type may be in every row
        noun, highest = "type", len(train)
    by_name = {names[number]: count for number, count in targets.counts(train).items()}
    counts = pd.Series(by_name, dtype=int).sort_values(kind="stable")
    is_tested = counts.index.isin([names[number] for number in targets.counts(test)])
    dominant = f"with more than {_DOMINANT:.0%} of the training rows"
    rare = f"with fewer than {_MIN_ROWS} training rows"
    untested = "with training rows but without a test row"
    metrics = "--class_weights balanced, and --metrics f1_macro,average_precision"
    add = "add rows, or merge classes: --label_map OLD=NEW"
    for name, classes, description, fix in (
        ("imbalance", counts[counts > highest], dominant, metrics),
        ("few_rows_of_a_class", counts[counts < _MIN_ROWS], rare, add),
        ("not_in_test", counts[(counts > 1) & ~is_tested], untested, add),
    ):
        shares = [
            f"'{label}' {count / len(train):.1%} ({count:,})"
            for label, count in classes.head(_MAX_LISTED + 1).items()
        ]
        if shares:
            listed = list_first(shares, _MAX_LISTED)
            message = f"{counted(len(classes), noun)} {description}: {listed}"
            count = int(classes.sum())
            report.warning(message, name, fix=fix, count=count, examined=len(train))


def _find_revealing_words(rows: Dataset, column: str, report: Findings) -> None:
    """Report words, and pairs of words, that nearly determine the class of training rows."""
    from sklearn.feature_extraction.text import CountVectorizer

    names, labels = targets.class_names(rows), targets.strata(rows)
    vectorizer = CountVectorizer(
        binary=True, ngram_range=(1, 2), min_df=_MIN_TEXTS, token_pattern=_TOKEN
    )
    terms = _count_terms(vectorizer, rows[column][:])
    if terms is None:
        return
    words = vectorizer.get_feature_names_out()
    texts = np.asarray(terms.sum(axis=0), dtype=np.int64).ravel()
    rules = []  # texts of the class with the term; all texts with it
    for label, size in targets.counts(rows).items():
        hits = np.asarray(terms[labels == label].sum(axis=0), dtype=np.int64).ravel()
        low, _ = wilson(hits / texts, texts, _DEVIATIONS)
        pairs = [(low >= precision) & (hits >= least * size) for precision, least in _REVEALING]
        is_informative = low > (1 + size / len(labels)) / 2  # not only because of a dominant class
        for term in np.flatnonzero(np.any(pairs, axis=0) & is_informative):
            sentence = (
                f"'{words[term]}' is in {hits[term] / size:.0%} of the "
                f"training texts of '{names[label]}', and {hits[term] / texts[term]:.1%} of the "
                f"{texts[term]:,} with it are '{names[label]}'"
            )
            rules.append((int(hits[term]), int(texts[term]), sentence))
    if rules:
        rules.sort(key=lambda rule: -rule[0])
        message = "; ".join(sentence for *_, sentence in rules[:_MAX_LISTED])
        if len(rules) > _MAX_LISTED:
            message += "; ..."
        fix = "if a text has it only because its label was known, remove it from the texts"
        count = max(count for _, count, _ in rules)
        report.warning(message, "revealing_words", fix=fix, count=count, examined=len(rows))


def _count_terms(vectorizer: Any, texts: Sequence[str]) -> Any:
    """Return the term counts of the texts, a sparse matrix; None if there are no terms."""
    try:
        return vectorizer.fit_transform(texts)
    except ValueError as error:  # how scikit-learn reports that no term is left
        if "vocabulary" not in str(error) and "no terms remain" not in str(error):
            raise
        return None


def _find_revealing_columns(rows: Dataset, read: Sequence[str], report: Findings) -> None:
    """Report columns that nearly determine the class; the model reads the columns ``read``.

    The prediction for a row is the most frequent class of its value in the other half of the rows.
    """
    labels = targets.strata(rows)
    constant = float(np.bincount(labels).max()) / len(labels)
    half = np.random.default_rng(0).permutation(len(labels)) % 2
    columns = {}
    for name in rows.column_names:
        if name not in {ROW, "label", "text", digests.TEXTS}:
            columns[name] = arrow.column(rows, name)
    if digests.TEXTS in rows.column_names:  # the columns that were joined to `text`
        parts = arrow.column(rows, digests.TEXTS)
        for number, name in enumerate(read):
            columns[name] = pc.list_element(parts, number)
    for name, values in columns.items():
        if constant == 1 or pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
            continue
        frame = pd.DataFrame({"code": pd.factorize(values.to_pandas())[0], "label": labels})
        correct = 0
        for number in (0, 1):
            counts = frame[half != number].value_counts()  # the most frequent pairs first
            most_frequent = counts.reset_index().drop_duplicates("code").set_index("code")["label"]
            rest = frame[half == number]
            correct += int((rest["code"].map(most_frequent) == rest["label"]).sum())
        accuracy = correct / len(labels)
        if accuracy - constant < _SAVED * (1 - constant):
            continue
        message = (
            f"the column '{name}' alone predicts the label of {accuracy:.1%} of the training rows "
            f"(the most frequent class: {constant:.1%})"
        )
        details: Any = dict(name="revealing_column", count=correct, examined=len(labels))
        if name in read:
            report.warning(
                message,
                fix="leave it out of --text_columns unless it is known before the label is",
                **details,
            )
        else:
            report.info(f"{message}; the model does not read it", **details)


def _find_suspected_labels(rows: Dataset, column: str, report: Findings) -> None:
    """Report labels that contradict confident predictions of a cross-validated bag of words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from threadpoolctl import threadpool_limits

    names, labels = targets.class_names(rows), targets.strata(rows)
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2),
        sublinear_tf=True,
        min_df=2,  # a term in one row only predicts nothing
        max_features=baselines.bounds(len(names))[1],
    )
    terms = _count_terms(vectorizer, rows[column][:])
    if terms is None:
        return
    fold = np.random.default_rng(0).permutation(len(labels)) % _FOLDS
    probabilities = np.zeros((len(labels), len(names)))
    with threadpool_limits(1):  # three times faster than with several threads
        for number in range(_FOLDS):
            is_held_out = fold == number
            predict = baselines.classifier(terms[~is_held_out], labels[~is_held_out], len(names))
            probabilities[is_held_out] = predict(terms[is_held_out])
    scored = ScoredRows(labels, names, Probabilities(probabilities))
    suspicion = mistakes.suspicion(scored)
    correct = share(int(scored.is_correct.sum()), len(scored))
    # otherwise it mostly predicts the most frequent class, and contradicts all others
    beats_constant = correct.low > np.bincount(labels).max() / len(labels)
    if suspicion is None or not beats_constant:
        wrong = f"a cross-validated bag of words is wrong in {1 - correct.value:.0%} of the rows"
        report.info(
            f"the labels could not be checked: {wrong}",
            "suspected_labels",
            fix="train a model, which is more accurate, and read suspects.csv of the run",
        )
        return
    positions = suspicion.rows
    predicted = probabilities[positions]
    report_rows(
        report,
        "suspected_labels",
        f"whose label contradicts one of the {suspicion.confident:,} most confident predictions "
        "of a cross-validated bag of words; at most about "
        f"{suspicion.wrong.value:.1%} of the labels are wrong",
        f"read them, as some are right but unusual; {RELABEL}",
        positions,
        rows,
        "train",
        severity="warning" if suspicion.wrong.low > _SUSPICIOUS_LABELS else "info",
        suspects=(
            [f"label '{names[number]}' is contradicted" for number in labels[positions]],
            [names[number] for number in predicted.argmax(axis=1)],
            [float(f"{probability:.3g}") for probability in predicted.max(axis=1)],
        ),
    )
