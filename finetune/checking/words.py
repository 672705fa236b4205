"""What a bag of words knows of labels: words and columns that reveal them, and labels that are
probably wrong.

A word is reported if nearly all texts with it have one class and it is in much of that class: what
people write about a film says less. A column is, if its values predict the label of rows that they
were not counted on. A label is suspected if one of the most confident tenth of the predictions
contradicts it, each from a model that did not see the row (docs/decisions/suspected-labels.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from finetune.data import ROW, arrow, digests, targets
from finetune.data.row_findings import RELABEL, report_rows
from finetune.errors import Report
from finetune.statistics import baselines, mistakes
from finetune.statistics.estimates import share, wilson
from finetune.statistics.probabilities import Probabilities
from finetune.statistics.scored import ScoredRows

#: Pairs of shares, one of which a revealing word has to reach: of the texts with it that have one
#: class (at the lower end of an interval of 99.9%), and of that class that has it.
_REVEALING, _DEVIATIONS = ((0.95, 0.2), (0.9, 0.5)), 3.29
_FEWEST_TEXTS = 20
_MOST_NAMED = 5
#: The share of mistakes of a constant guess that a revealing column has to save.
_SAVED = 0.8
#: A word or a sign.
_TOKEN = r"(?u)\w+|[^\w\s]+"
_FOLDS = 5
#: The share of wrong labels from which it is suspicious: of clean data up to 2% are estimated.
_SUSPICIOUS_LABELS = 0.03


def sample_rows(rows: Dataset) -> Dataset:
    """Return training rows with one class each; of many, a sample for which there is memory."""
    classes = len(targets.class_names(rows))
    most = min(baselines.MOST_ROWS, baselines.MOST_SCORES // classes)
    if len(rows) <= most:
        return rows
    return rows.select(np.sort(np.random.default_rng(0).permutation(len(rows))[:most]))


def find_revealing_words(rows: Dataset, column: str, report: Report) -> None:
    """Report the words, and pairs of words, that nearly determine the class of training rows."""
    from sklearn.feature_extraction.text import CountVectorizer

    names, labels = targets.class_names(rows), targets.strata(rows)
    vectorizer = CountVectorizer(
        binary=True, ngram_range=(1, 2), min_df=_FEWEST_TEXTS, token_pattern=_TOKEN
    )
    terms = _count_terms(vectorizer, rows[column][:])
    if terms is None:
        return
    words = vectorizer.get_feature_names_out()
    texts = np.asarray(terms.sum(axis=0), dtype=np.int64).ravel()
    rules: list[tuple[int, int, str]] = []  # texts of the class with the term, all texts with it
    for label, size in zip(*np.unique(labels, return_counts=True), strict=True):
        hits = np.asarray(terms[labels == label].sum(axis=0), dtype=np.int64).ravel()
        low, _ = wilson(hits / texts, texts, _DEVIATIONS)
        pairs = [(low >= precision) & (hits >= least * size) for precision, least in _REVEALING]
        says_more = low > (1 + size / len(labels)) / 2  # than a word of a dominant class
        for term in np.flatnonzero(np.any(pairs, axis=0) & says_more):
            sentence = (
                f"'{words[term]}' is in {hits[term] / size:.0%} of the "
                f"training texts of '{names[label]}', and {hits[term] / texts[term]:.1%} of the "
                f"{texts[term]:,} with it are '{names[label]}'"
            )
            rules.append((int(hits[term]), int(texts[term]), sentence))
    if rules:
        rules.sort(key=lambda rule: -rule[0])
        message = "; ".join(sentence for _, _, sentence in rules[:_MOST_NAMED])
        message += "; ..." * (len(rules) > _MOST_NAMED)
        fix = "if a text has it only because its label was known, remove it from the texts"
        count = max(count for _, count, _ in rules)
        report.warning(message, "revealing_words", fix=fix, count=count, examined=len(rows))


def _count_terms(vectorizer: Any, texts: Sequence[str]) -> Any:
    """Return how often each text has each term, as a sparse matrix; None without any term."""
    try:
        return vectorizer.fit_transform(texts)
    except ValueError as error:  # scikit-learn has no other way to say that no word is left
        if "vocabulary" not in str(error) and "no terms remain" not in str(error):
            raise
        return None


def find_revealing_columns(rows: Dataset, read: Sequence[str], report: Report) -> None:
    """Report the columns whose values nearly determine the class of training rows.

    Args:
        rows: With one class each.
        read: The columns of the data that the model reads.
        report: Gets the findings.
    """
    labels = targets.strata(rows)
    constant = float(np.bincount(labels).max()) / len(labels)
    columns = {
        name: arrow.column(rows, name).combine_chunks()
        for name in rows.column_names
        if name not in {ROW, "label", "text", digests.TEXTS}
    }
    if digests.TEXTS in rows.column_names:  # columns that were joined to one text
        parts = arrow.column(rows, digests.TEXTS).combine_chunks()
        columns |= {name: pc.list_element(parts, number) for number, name in enumerate(read)}
    for name, values in columns.items():
        if constant == 1 or pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
            continue
        accuracy = float((_predict_by_value(values.to_pandas(), labels) == labels).mean())
        if accuracy - constant < _SAVED * (1 - constant):
            continue
        message = (
            f"the column '{name}' alone determines the label of {accuracy:.1%} of the training "
            f"rows (the most frequent class: {constant:.1%})"
        )
        details: Any = dict(count=round(accuracy * len(labels)), examined=len(labels))
        if name in read:
            fix = "unless it is known before the label is, leave it out of --text_columns"
            report.warning(message, "revealing_column", fix=fix, **details)
        else:
            message += "; the model does not read it"
            report.info(message, "revealing_column", **details)


def _predict_by_value(values: pd.Series, labels: np.ndarray) -> np.ndarray:
    """Return the most frequent class of each row's value in the half of the rows without it."""
    half = np.random.default_rng(0).permutation(len(labels)) % 2
    frame = pd.DataFrame({"code": pd.factorize(values)[0], "label": labels})
    predicted = np.zeros(len(labels), np.int64)
    for number in (0, 1):
        counts = frame[half != number].value_counts()  # the most frequent pairs first
        most_frequent = counts.reset_index().drop_duplicates("code").set_index("code")["label"]
        constant = np.bincount(labels[half != number]).argmax()
        codes = frame.loc[half == number, "code"]
        predicted[half == number] = codes.map(most_frequent).fillna(constant)
    return predicted


def find_suspected_labels(rows: Dataset, column: str, report: Report) -> None:
    """Report the labels that the predictions of a cross-validated bag of words contradict.

    Args:
        rows: Training rows with ``_row`` and one class each.
        column: Of the texts.
        report: Gets the finding.
    """
    names, labels = targets.class_names(rows), targets.strata(rows)
    probabilities = _cross_validate(rows[column][:], labels, len(names))
    if probabilities is None:
        return
    scored = ScoredRows(labels, names, Probabilities(probabilities))
    suspicion = mistakes.suspicion(scored)
    right = share(int(scored.right.sum()), len(scored))
    # else it mostly predicts the most frequent class, and contradicts all others
    beats_constant = right.low > np.bincount(labels).max() / len(labels)
    if suspicion is None or not beats_constant:
        wrong = f"a bag of words trained on other rows is wrong about {1 - right.value:.0%} of them"
        fix = "train, and read suspects.csv of the run: the model knows more"
        report.info(f"the labels could not be checked: {wrong}", "suspected_labels", fix=fix)
        return
    positions = suspicion.rows
    predicted = probabilities[positions]
    report_rows(
        report,
        "suspected_labels",
        f"whose label is contradicted by one of the {suspicion.confident:,} most confident "
        "predictions of a bag of words that was trained on other rows: at most about "
        f"{suspicion.wrong.value:.1%} of the labels are wrong",
        f"read them, some are right and only unusual; {RELABEL}",
        positions,
        rows,
        "train",
        severity="warning" if suspicion.wrong.low > _SUSPICIOUS_LABELS else "info",
        reasons=[f"label '{names[number]}' is contradicted" for number in labels[positions]],
        suggestions=(
            [names[number] for number in predicted.argmax(axis=1)],
            [float(f"{share:.3g}") for share in predicted.max(axis=1)],
        ),
    )


def _cross_validate(texts: Sequence[str], labels: np.ndarray, classes: int) -> np.ndarray | None:
    """Return each row's class probabilities from the other four fifths, shape ``(rows, classes)``.

    None if the texts hold no words.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from threadpoolctl import threadpool_limits

    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2),
        sublinear_tf=True,
        min_df=2,  # a term of a single row says nothing of others
        max_features=baselines.bounds(classes)[1],
    )
    terms = _count_terms(vectorizer, texts)
    if terms is None:
        return None
    fold = np.random.default_rng(0).permutation(len(labels)) % _FOLDS
    probabilities = np.zeros((len(labels), classes))
    with threadpool_limits(1):  # more threads wait for each other: three times slower
        for number in range(_FOLDS):
            is_held_out = fold == number
            predict = baselines.classifier(terms[~is_held_out], labels[~is_held_out], classes)
            probabilities[is_held_out] = predict(terms[is_held_out])
    return probabilities
