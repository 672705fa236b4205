"""What every training looks at in its rows, in seconds, and what ``check --deep`` adds.

A word is reported if nearly all texts with it have one class and it is in much of that class: what
people write about a film says less. A column is, if its values predict the label of rows that they
were not counted on. A label is suspected if one of the most confident tenth of the predictions
contradicts it, each from a model that did not see the row (docs/decisions/suspected-labels.md).
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

from finetune.checking import texts
from finetune.data import ROW, arrow, digests, encoding, targets
from finetune.data.digests import drop_repeated
from finetune.data.splits import Plan, build_index
from finetune.data.targets import RELABEL, report_rows
from finetune.errors import Report, UserError, counted
from finetune.runtime import activity
from finetune.statistics import baselines, mistakes
from finetune.statistics.estimates import share, wilson
from finetune.statistics.scored import Probabilities, ScoredRows

#: The share of training rows above which a class outweighs all others.
_DOMINANT = 0.9
#: Training rows below which a class is hardly learned, and words say nothing about labels.
_FEWEST_ROWS, _FEWEST_FOR_WORDS = 10, 100
_MOST_NAMED = 5
#: Pairs of shares, one of which a revealing word has to reach: of the texts with it that have one
#: class (at the lower end of an interval of 99.9%), and of that class that has it.
_REVEALING, _DEVIATIONS = ((0.95, 0.2), (0.9, 0.5)), 3.29
_FEWEST_TEXTS = 20
#: The share of mistakes of a constant guess that a revealing column has to save.
_SAVED = 0.8
#: A word or a sign.
_TOKEN = r"(?u)\w+|[^\w\s]+"
_FOLDS = 5
#: The share of wrong labels from which it is suspicious: of clean data up to 2% are estimated.
_SUSPICIOUS_LABELS = 0.03


def check_rows(
    source: DatasetDict, splits: DatasetDict, columns: Sequence[str], report: Report
) -> None:
    """Report what is suspicious in texts and classes of a source, and of the ``splits`` made of it.

    ``columns`` are the names in the data of what the model reads.
    """
    for split, rows in source.items():
        texts.find_damaged_texts(rows, split, columns, report)
    _find_class_problems(splits["train"], splits["test"], report)


def require_splits(dataset: Any, step: str, names: Iterable[str] = ("train",)) -> None:
    """Refuse what a ``step`` of a recipe returned, unless it is a dict with splits of these names.

    Raises:
        UserError: It names the step.
    """
    if not isinstance(dataset, dict) or not {*names} <= {*dataset}:
        raise UserError(
            f"{step}() returned {reprlib.repr(dataset)}: expected a DatasetDict with "
            f"{', '.join(names)}"
        )


def require_all_rows(
    prepared: Any, splits: DatasetDict, targets_of: Callable[[str], np.ndarray]
) -> None:
    """Refuse features that are not those of all rows in their order, by their labels.

    Raises:
        UserError: For each split whose number of rows, or labels, differ.
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
            labels = np.asarray(features.with_format("numpy")["labels"][:])[first]
            if not np.array_equal(labels, targets_of(name).astype(labels.dtype)):
                mistakes.append(
                    f"prepare() returned other labels, or another order, of {name} rows"
                )
    if mistakes:
        raise UserError(*mistakes)


def check_deep(
    source: DatasetDict,
    splits: DatasetDict,
    column: str,
    read: Sequence[str],
    plan: Plan,
    report: Report,
) -> None:
    """Report what is suspicious in how texts and labels resemble each other; takes minutes.

    ``read`` are the names in the data of the columns that the model reads. Near duplicates that the
    ``plan`` leaves out are in the report already.
    """
    rows = splits["train"]
    if not arrow.is_text(rows.data.schema.field(column).type):
        report.info("--deep looks at texts, and this recipe reads none", "deep")
        return
    # what near duplicates would cost, where the plan keeps them
    near_plan = Plan(drop_duplicates="near", drop_overlap="near")
    costs = Report()
    drop_repeated(build_index(source, near_plan, costs), source, column, near_plan, costs)
    for finding in costs.findings:
        if finding.name == "near_duplicates" and plan.drop_duplicates == "exact":
            report.add(replace(finding, fix="--drop_duplicates near keeps one of each"))
        if finding.name == "near_overlap" and plan.drop_overlap == "exact":
            report.add(replace(finding, fix="--drop_overlap near leaves them out"))
    texts.find_other_languages(rows, column, report)
    if not isinstance(rows.features["label"], ClassLabel) or len(rows) < _FEWEST_FOR_WORDS:
        limit = f"expected {_FEWEST_FOR_WORDS} training rows or more with one class each"
        report.info(f"--deep did not look at words and labels: {limit}", "deep")
        return
    activity.say("looking at words and labels")
    # of many rows, a sample for which there is memory
    most = min(baselines.MOST_ROWS, baselines.MOST_SCORES // len(targets.class_names(rows)))
    if len(rows) > most:
        rows = rows.select(np.sort(np.random.default_rng(0).permutation(len(rows))[:most]))
    _find_revealing_words(rows, column, report)
    _find_revealing_columns(rows, read, report)
    _find_suspected_labels(rows, column, report)


def _find_class_problems(train: Dataset, test: Dataset, report: Report) -> None:
    """Report classes that outweigh all others, and that are hardly trained or not tested."""
    names = targets.class_names(train)
    noun = "label" if targets.is_set(train) else "class"
    by_name = {names[number]: count for number, count in targets.counts(train).items()}
    counts = pd.Series(by_name, dtype=int).sort_values(kind="stable")
    is_tested = counts.index.isin([names[number] for number in targets.counts(test)])
    dominant = f"that more than {_DOMINANT:.0%} of the training rows have"
    rare = f"with fewer than {_FEWEST_ROWS} training rows"
    untested = "of the training rows without a test row"
    metrics = "--class_weights balanced, and --metrics f1_macro,average_precision"
    add = "add rows, or merge classes: --label_map OLD=NEW"
    for name, classes, description, fix in (
        ("imbalance", counts[counts > _DOMINANT * len(train)], dominant, metrics),
        ("few_rows_of_a_class", counts[counts < _FEWEST_ROWS], rare, add),
        ("not_in_test", counts[(counts > 1) & ~is_tested], untested, add),
    ):
        listed = ", ".join(
            f"'{label}' {count / len(train):.1%} ({count:,})"
            for label, count in classes.head(_MOST_NAMED).items()
        )
        if len(classes):
            message = f"{counted(len(classes), noun)} {description}: {listed}"
            message += ", ..." * (len(classes) > _MOST_NAMED)
            count = int(classes.sum())
            report.warning(message, name, fix=fix, count=count, examined=len(train))


def _find_revealing_words(rows: Dataset, column: str, report: Report) -> None:
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
        message = "; ".join(sentence for *_, sentence in rules[:_MOST_NAMED])
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


def _find_revealing_columns(rows: Dataset, read: Sequence[str], report: Report) -> None:
    """Report the columns, of which ``read`` are read, that nearly determine the class of rows.

    The class of a row is predicted as the most frequent one of its value in the half of the rows
    that it is not in.
    """
    labels = targets.strata(rows)
    constant = float(np.bincount(labels).max()) / len(labels)
    half = np.random.default_rng(0).permutation(len(labels)) % 2
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
        frame = pd.DataFrame({"code": pd.factorize(values.to_pandas())[0], "label": labels})
        right = 0
        for number in (0, 1):
            counts = frame[half != number].value_counts()  # the most frequent pairs first
            most_frequent = counts.reset_index().drop_duplicates("code").set_index("code")["label"]
            rest = frame[half == number]
            right += int((rest["code"].map(most_frequent) == rest["label"]).sum())
        accuracy = right / len(labels)
        if accuracy - constant < _SAVED * (1 - constant):
            continue
        message = (
            f"the column '{name}' alone determines the label of {accuracy:.1%} of the training "
            f"rows (the most frequent class: {constant:.1%})"
        )
        how: Any = dict(name="revealing_column", count=right, examined=len(labels))
        if name in read:
            fix = "unless it is known before the label is, leave it out of --text_columns"
            report.warning(message, fix=fix, **how)
        else:
            report.info(f"{message}; the model does not read it", **how)


def _find_suspected_labels(rows: Dataset, column: str, report: Report) -> None:
    """Report the labels that the predictions of a cross-validated bag of words contradict."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from threadpoolctl import threadpool_limits

    names, labels = targets.class_names(rows), targets.strata(rows)
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2),
        sublinear_tf=True,
        min_df=2,  # a term of a single row says nothing of others
        max_features=baselines.bounds(len(names))[1],
    )
    terms = _count_terms(vectorizer, rows[column][:])
    if terms is None:
        return
    fold = np.random.default_rng(0).permutation(len(labels)) % _FOLDS
    probabilities = np.zeros((len(labels), len(names)))
    with threadpool_limits(1):  # more threads wait for each other: three times slower
        for number in range(_FOLDS):
            is_held_out = fold == number
            predict = baselines.classifier(terms[~is_held_out], labels[~is_held_out], len(names))
            probabilities[is_held_out] = predict(terms[is_held_out])
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
        suspects=(
            [f"label '{names[number]}' is contradicted" for number in labels[positions]],
            [names[number] for number in predicted.argmax(axis=1)],
            [float(f"{probability:.3g}") for probability in predicted.max(axis=1)],
        ),
    )
