"""Recipes of text: one text and one label a row, on an encoder of ``transformers``.

A text recipe is mostly fields::

    class Yelp(TextClassification):
        dataset: str = "Yelp/yelp_review_full"
        model: str = "google-bert/bert-base-cased"
        training = dict(global_batch_size=32, learning_rate=2e-5, num_train_epochs=4)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from finetune.errors import UserError
from finetune.recipe.base import Recipe
from finetune.recipe.options import option

if TYPE_CHECKING:
    import torch
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedTokenizerBase

    from finetune.data.windows import Windows


class TextClassification(Recipe):
    """Sentences or documents with one label each, on an encoder from ``transformers``."""

    dataset: str = option("", "name of a data set on the Hub, or a local file or directory")
    model: str = option("", "name of a model on the Hub, a local directory, or embedded:minilm")
    model_revision: str | None = option(
        None, "commit, tag or branch of the model on the Hub (unset: the newest)"
    )
    text_column: str = option("text", "column that holds the text")
    label_column: str = option("label", "column that holds the label")
    label_columns: str | None = option(
        None, "several columns instead: of 0 and 1, or of numbers: funny,sad,angry"
    )
    label_separator: str | None = option(
        None, "what stands between the labels in a cell of --label_column"
    )
    thresholds: Literal["one", "label", "none"] = option(
        "one", "of several labels a row, fitted on validation: one of all labels, one a label, none"
    )
    task: Literal["auto", "single_label", "multi_label", "regression", "ordinal"] = option(
        "auto", "what kind of labels these are (auto: what the training rows say)"
    )
    label_map: str | None = option(
        None, "other names for labels, the same for those to be merged: 0=negative,1=positive"
    )
    label_order: str | None = option(
        None, "classes from the lowest to the highest, for --task ordinal: low,middle,high"
    )
    csv_quoting: Literal["auto", "minimal", "none"] = option(
        "auto", "quotation marks in a .csv or .tsv: minimal, around fields; none, text"
    )
    drop_invalid: bool = option(False, "drop rows without a text or a label (unset: refuse them)")
    max_length: int = option(512, "truncate texts to this many tokens")
    truncation: Literal["head", "tail"] = option(
        "head", "which tokens of a long text are kept: its first ones, or its last ones"
    )
    long_texts: Literal["cut", "windows"] = option(
        "cut", "texts of more than max_length tokens: cut them, or read overlapping windows"
    )
    stride: int | None = option(
        None, "tokens that neighbouring windows share (unset: a quarter of max_length)"
    )
    pooling: Literal["mean", "max"] = option(
        "mean", "what makes one prediction of a text's windows: mean or maximum of the logits"
    )
    hidden_dropout: float | None = option(
        None, "dropout of the hidden states (unset: the model's own)"
    )
    attention_dropout: float | None = option(
        0.0, "dropout of the attention probabilities; above 0 a CPU has no fused kernel for it"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        mistakes = [
            f"--{name} {value}: expected a probability, 0 or more and below 1"
            for name in ("hidden_dropout", "attention_dropout")
            if (value := getattr(self, name)) is not None and not 0 <= value < 1
        ]
        if self.max_length < 3:
            mistakes.append(f"--max_length {self.max_length}: expected at least 3 tokens")
        mistakes += self._mistakes_of_order()
        if self.label_separator == "":
            mistakes.append("--label_separator: expected a character such as ';', found nothing")
        if mistakes:
            raise UserError(*mistakes)

    def _mistakes_of_order(self) -> list[str]:
        """Return a line for each thing that is wrong with ``label_order``."""
        names, shown = self._ordered_names, f"--label_order {self.label_order}"
        if self.label_order is None:
            return []
        if self.task not in ("auto", "ordinal"):
            return [f"{shown}: the classes of --task {self.task} have no order; use --task ordinal"]
        if len(names) < 3:
            return [f"{shown}: expected three classes or more, separated by commas"]
        if twice := [each for each in dict.fromkeys(names) if names.count(each) > 1]:
            return [f"{shown}: '{twice[0]}' stands there twice"]
        return []

    def without_effect(self, given: Mapping[str, Any]) -> list[str]:
        """Return a sentence for each option in ``given`` that the others leave without effect."""
        idle = dict.fromkeys(("stride", "pooling"), "needs --long_texts windows")
        if self.long_texts == "windows":
            idle = {"truncation": "with --long_texts windows nothing is truncated"}
        return [f"--{name} has no effect: {why}" for name, why in idle.items() if name in given]

    def load(self) -> DatasetDict:
        return self.labelled(self.read())

    def read(self) -> DatasetDict:
        """Return the source as it is, with an ``id`` added: the number of the row in its split."""
        from finetune.data import sources

        return sources.read(
            self.dataset,
            self.dataset_revision,
            csv_quoting=self.csv_quoting,
            note=self.note,
        )

    def labelled(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``dataset`` with ``id``, ``text`` and ``label``, missing values refused.

        Other columns stay, for the slices of the report.
        """
        from finetune.data import findings, labels, sources
        from finetune.tasks import reading

        def places(split: str, rows: Sequence[int]) -> str:
            return sources.places(self.dataset, split, rows, self.csv_quoting)

        several = findings.names_in("--label_columns", self.label_columns)
        flag, columns = "--label_column", several or [self.label_column]
        findings.require_columns(
            dataset,
            {"--text_column": [self.text_column], f"{flag}s" if several else flag: columns},
        )
        dataset = findings.without_clashes(dataset, [self.text_column, *columns], note=self.note)
        renamed = {self.text_column: "text"} | ({} if several else {self.label_column: "label"})
        dataset = dataset.rename_columns({old: new for old, new in renamed.items() if old != new})
        how = reading.Reading(
            task=self.task,
            columns=several or ["label"],
            names=self._ordered_names or self.label_names,
            ordered=bool(self.label_order),
            renamed=labels.mapping(self.label_map or ""),
            separator=self.label_separator,
            shown=columns,
            drop=self.drop_invalid,
            places=places,
        )
        dataset = findings.only_valid(
            dataset, drop=self.drop_invalid, note=self.note, places=places, labels=how.columns
        )
        if is_auto := self.task == reading.AUTO:
            self.task, self.task_reason = reading.decided(dataset["train"], how)
            how = dataclasses.replace(how, task=self.task)
        self.target_names = several if self.task == "regression" else []
        dataset, self._unmapped = reading.encoded(dataset, how, self.note)
        in_order = self.task == "single_label" and super().is_ordinal(dataset["train"])
        if is_auto and in_order:
            self.task, self.task_reason = "ordinal", "the classes have the order of the recipe"
        return dataset

    @property
    def _ordered_names(self) -> list[str]:
        """The classes of ``label_order``."""
        return [each.strip() for each in (self.label_order or "").split(",") if each.strip()]

    def is_ordinal(self, rows: Dataset) -> bool:
        return self.task == "ordinal" or (self.task == "auto" and super().is_ordinal(rows))

    def split(self, dataset: DatasetDict) -> DatasetDict:
        if self._unmapped:  # which may be so in other data, that is not trained on
            from finetune.data.labels import listed
            from finetune.data.targets import class_names

            raise UserError(
                f"--label_map: no label {listed(self._unmapped)} in the data (labels: "
                f"{listed(class_names(dataset['train']))})"
            )
        if self.task == "ordinal":
            from finetune.tasks import reading

            reading.refuse_unordered(dataset, self._ordered_names, self.label_names)
        return super().split(dataset)

    def check(self) -> None:
        _ = self.windows
        if type(self).build_model is not TextClassification.build_model:
            return  # whose positions are not known
        from finetune.models.pretrained import positions

        most = positions(self.model, self.model_revision)
        if most is not None and self.max_length > most:
            raise UserError(
                f"--max_length {self.max_length}: {self.model} has {most} positions; expected "
                f"{most} or fewer tokens"
            )

    def prepare(self, dataset: DatasetDict) -> DatasetDict:
        from finetune.data.tokenize import tokenize
        from finetune.tasks import kinds

        targets, tokenizer = kinds.of_rows(dataset["test"]).targets, self.processing_class()
        return tokenize(dataset, tokenizer, self.max_length, targets, self.note, self.windows)

    def check_prepared(self, prepared: DatasetDict) -> None:
        own = type(self)
        if own.prepare is TextClassification.prepare:  # which truncates
            return
        if own.build_model is not TextClassification.build_model:
            return
        from finetune.data import lengths
        from finetune.models.pretrained import positions

        if (most := positions(self.model, self.model_revision)) is not None:
            raw = vars(self).get("splits", {})
            ids = {split: rows["id"] for split, rows in raw.items() if "id" in rows.column_names}
            lengths.refuse_longer(prepared, ids, most, self.model)

    @property
    def windows(self) -> Windows | None:
        """What cuts texts into windows; None if they are truncated.

        Raises:
            UserError: if there can be no windows of ``max_length`` and ``stride``.
        """
        from finetune.data.windows import Windows

        if self.long_texts == "cut":
            return None
        return Windows(self.processing_class(), self.max_length, self.stride)

    def whole_lengths(self, split: str) -> list[int] | None:
        from finetune.data.tokenize import whole_lengths
        from finetune.data.windows import first_lengths

        texts, rows = self.splits[split]["text"][:], self.prepared[split]
        if "length" not in rows.column_names:  # of a recipe with its own `prepare`
            return None
        lengths = first_lengths(rows)
        return whole_lengths(texts, lengths.tolist(), self.processing_class(), self.max_length)

    def of_long_texts(self) -> str | None:
        """Return how many of the training texts are longer than the model reads, and what becomes
        of them, for the start of a run; None where the recipe prepares them in another way.
        """
        from finetune.data import lengths
        from finetune.data.windows import documents_of, first_lengths

        texts, rows, windows = self.splits["train"], self.prepared["train"], self.windows
        documents = documents_of(rows)
        if windows is not None and documents is not None:
            return lengths.in_windows(documents, self.max_length, windows.shared, self.pooling)
        if "length" not in rows.column_names or len(rows) != len(texts):
            return None  # of a recipe with its own `prepare`
        found, tokenizer = first_lengths(rows), self.processing_class()
        return lengths.cut(texts["text"], found, tokenizer, self.max_length)

    def dominating(self) -> str | None:
        """Return a sentence if the windows of one text are much of what is trained on."""
        from finetune.data import lengths
        from finetune.data.windows import documents_of

        documents = documents_of(self.prepared["train"])
        if self.long_texts == "cut" or documents is None:
            return None
        return lengths.dominating(documents, self.splits["train"]["id"][:])

    def parts(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        parts = super().parts(model)
        if self.long_texts == "windows":
            loss = dataclasses.replace(parts["compute_loss_func"], pooling=self.pooling)
            parts["compute_loss_func"] = loss
        return parts

    def processing_class(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    @functools.cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        from finetune.models.pretrained import load_tokenizer

        side = {"head": "right", "tail": "left"}[self.truncation]
        return load_tokenizer(
            self.model, self.model_revision, truncation_side=side, max_length=self.max_length
        )

    def build_model(self, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.pretrained import load_classifier

        return load_classifier(
            self.model,
            labels,
            revision=self.model_revision,
            problem_type=self.presumed_kind.problem_type,
            hidden_dropout=self.hidden_dropout,
            attention_dropout=self.attention_dropout,
        )

    def base_revision(self) -> str | None:
        from finetune.models.pretrained import commit

        return commit(self.model, self.model_revision)

    def load_model(self, directory: str | Path, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.pretrained import load_classifier

        return load_classifier(str(directory), labels)

    def data_collator(self) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
        from transformers import DataCollatorWithPadding

        from finetune.data.batches import PADDED_TO

        return DataCollatorWithPadding(self.processing_class(), pad_to_multiple_of=PADDED_TO)
