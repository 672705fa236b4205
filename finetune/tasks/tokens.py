"""The task of labelling words: entities are sequences of words with a type.

Targets and outputs of all rows are one array: those of the words of a row, then a separator, whose
target is -100, and whose outputs are 0.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from finetune.data import labels as class_labels
from finetune.data import tags, targets, words
from finetune.data.prediction_columns import ENTITIES, LABEL, PREDICTION
from finetune.data.words import UNLABELLED, find_entities
from finetune.errors import UserError
from finetune.statistics import metrics, mistakes
from finetune.statistics.baselines import BaselineData, Baselines
from finetune.statistics.entities import ScoredEntities
from finetune.statistics.metrics import MetricArguments, NamedMetrics
from finetune.statistics.results import Statistics
from finetune.tasks import decoding, losses
from finetune.tasks.base import Columns, Task

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.errors import Findings

#: The columns of ``predictions.parquet`` with the words of a row.
WORDS, RIGHT_WORDS = "words", "right_words"
#: The column of ``predictions.parquet`` that says whether training rows have a labelled entity.
SEEN = "seen"
_SPAN = {
    "start": pa.int64(),
    "end": pa.int64(),
    "label": pa.string(),
    "probability": pa.float64(),
}
_SPANS = pa.list_(pa.struct(_SPAN))
#: Of the baselines: far from those of other tags.
_LOGIT = 10.0


class Tokens(Task[ScoredEntities]):
    """A tag for each word: cross-entropy over logits, the most probable tag is predicted.

    ``labels`` are the IOB2 tags: ``O``, then ``B-TYPE`` and ``I-TYPE`` of each type.
    """

    name = "tokens"
    sections = ("training", "entities", "probabilities", "entity slices", "errors")
    problem_type = None
    label_kind = "entities"
    metrics = {
        "f1": {"average": "micro"},
        "precision": {"average": "micro"},
        "recall": {"average": "micro"},
        "f1_macro": {"module": "f1", "average": "macro"},
        "token_accuracy": {"module": "accuracy"},
    }
    losses = {"cross_entropy": losses.cross_entropy, "focal": losses.focal}
    has_probabilities = True
    labels_words = True
    predicted_type = _SPANS
    function = "softmax"

    @property
    def types(self) -> list[str]:
        """The names of the entity types."""
        return decoding.entity_types(self.labels)

    @property
    def feature(self) -> Any:
        return tags.feature(self.types)

    def match_labels(self, rows: Dataset, split: str, report: Findings) -> Dataset:
        if not targets.is_tagged(rows):
            raise UserError("the model labels words, but the data has one label for each text")
        fix = "--label_map OLD=NEW renames types, OLD=O drops them"
        numbers = class_labels.match_names(rows, self.types, split, report, fix)
        matched = {0: 0}
        for number, other in numbers.items():
            matched |= {2 * number + 1: 2 * other + 1, 2 * number + 2: 2 * other + 2}
        labels = []
        for row in targets.values(rows):
            labels.append([{**word, "tag": matched[word["tag"]]} for word in row])
        return rows.remove_columns("label").add_column("label", labels, feature=self.feature)

    def targets(self, labels: Any) -> np.ndarray:
        numbers: list[int] = []
        for row in labels:
            numbers += [word["tag"] for word in row]
            numbers.append(UNLABELLED)
        return np.array(numbers, dtype=np.int64)

    def places(self, targets: np.ndarray) -> Sequence[np.ndarray]:
        ends = np.flatnonzero(targets == UNLABELLED) + 1
        return np.split(np.arange(len(targets)), ends[:-1])

    def describe_balance(self, targets: np.ndarray) -> Sequence[str]:
        counts = np.bincount(find_entities(targets)[:, 2], minlength=len(self.types))
        return [f"{name} {count:,}" for name, count in zip(self.types, counts, strict=True)]

    def scored(self, labels: np.ndarray, outputs: np.ndarray) -> ScoredEntities:
        confidence = decoding.confidence(outputs)
        return ScoredEntities.of_tags(labels, self.decide(outputs), self.types, confidence)

    def scored_in(self, table: pd.DataFrame) -> ScoredEntities:
        tables, confidence = [], []
        for column in (LABEL, PREDICTION):
            spans = table[column].explode().dropna()
            entities = pd.DataFrame(spans.tolist(), spans.index, list(_SPAN))
            confidence.append(entities.pop("probability").to_numpy(np.float64))
            entities["label"] = pd.Index(self.types).get_indexer(pd.Index(entities["label"]))
            tables.append(entities.reset_index().to_numpy(np.int64))
        (labels, predicted), (at_labels, means) = tables, confidence
        words = table[[WORDS, RIGHT_WORDS]].to_numpy()
        return ScoredEntities(labels, self.types, predicted, words, means, at_labels)

    def columns(self, labels: Any, outputs: np.ndarray) -> Columns:
        targets = self.targets(labels)
        confidence = decoding.confidence(outputs)
        spans = []
        for tags_of_words in (targets, self.decide(outputs)):
            cells = decoding.spans(tags_of_words, labels, confidence, self.types)
            spans.append(pa.array(cells, _SPANS))
        words, right_words = self.scored(targets, outputs).words.T
        names = (LABEL, PREDICTION, WORDS, RIGHT_WORDS)
        return dict(zip(names, [*spans, words, right_words], strict=True))

    def predicted(
        self, outputs: np.ndarray, values: Sequence[Any], temperature: float, *, all_labels: bool
    ) -> Columns:
        return decoding.predicted_entities(outputs, self.labels, values)

    def sentence(self, row: pd.Series[Any], most: int | None) -> str:
        texts = []
        for span in row[ENTITIES]:
            name = row["text"][span["start"] : span["end"]]
            texts.append(f"{name}: {span['label']} {span['probability']:.4f}")
        return ", ".join(texts) or "no entity"

    def describe(self, row: pd.Series[Any], column: str) -> str:
        texts = []
        for span in row[column]:
            texts.append(f"{row['text'][span['start'] : span['end']]} ({span['label']})")
        return ", ".join(texts) or "none"

    def refuse_metrics(self, scoring: MetricArguments) -> None:
        unknown = scoring.keys() - metrics.find_metrics(self.label_kind, scoring).keys()
        if unknown:
            raise UserError(
                f"--metrics {', '.join(sorted(unknown))}: the task tokens expects accuracy, or f1, "
                "precision or recall, with _micro, _macro or _weighted"
            )

    def statistics(self, rows: ScoredEntities, recipe_metrics: NamedMetrics) -> Statistics:
        calibration = None
        if len(rows.predicted):
            calibration = mistakes.describe_calibration(rows.confidence, rows.is_right)
        return replace(super().statistics(rows, recipe_metrics), calibration=calibration)

    def seen_columns(self, train: Dataset, test: Dataset) -> Columns:
        names = set(itertools.chain.from_iterable(_entities(train)))
        seen = [[entity in names for entity in entities] for entities in _entities(test)]
        return {SEEN: pa.array(seen, pa.list_(pa.bool_()))}

    def baselines(self, data: BaselineData) -> Baselines:
        """Yield the baselines without entities, and with the most frequent tag of each word."""
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for word, tag in _words(data.splits["train"]):
            counts[word][tag] += 1
        frequent = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
        rows = data.splits["test"]
        is_word = self.targets(targets.values(rows)) != UNLABELLED
        predicted = np.zeros(len(is_word), dtype=np.int64)
        yield "no entity", self._outputs(predicted)
        predicted[is_word] = [frequent.get(word, 0) for word, _ in _words(rows)]
        yield "dictionary: the most frequent tag of each word", self._outputs(predicted)

    def _outputs(self, tags: np.ndarray) -> np.ndarray:
        return np.asarray(_LOGIT * np.eye(self.width, dtype=np.float32)[tags])


def _entities(rows: Dataset) -> Iterator[list[tuple[str, str]]]:
    """Yield the words and the type of the entities of each row."""
    types = targets.class_names(rows)
    for text, labels in zip(rows["text"][:], targets.values(rows), strict=True):
        spans = tags.spans_of(labels, types)
        yield [(text[start:end], name) for start, end, name in spans]


def _words(rows: Dataset) -> Iterator[tuple[str, int]]:
    """Yield each word of rows with its tag."""
    for text, label in zip(rows["text"][:], targets.values(rows), strict=True):
        for name, word in zip(words.words_in(text, label), label, strict=True):
            yield name, word["tag"]
