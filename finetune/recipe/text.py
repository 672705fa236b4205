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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from finetune.errors import UserError
from finetune.recipe.base import Recipe
from finetune.recipe.options import option

if TYPE_CHECKING:
    import torch
    from datasets import DatasetDict
    from transformers import PreTrainedTokenizerBase

    from finetune.training.arguments import FinetuneArguments


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
    task: Literal["auto", "single_label", "multi_label", "regression", "ordinal"] = option(
        "auto", "what kind of labels these are (auto: what the training rows say)"
    )
    label_map: str | None = option(
        None, "other names for labels, the same for those to be merged: 0=negative,1=positive"
    )
    csv_quoting: Literal["auto", "minimal", "none"] = option(
        "auto", "quotation marks in a .csv or .tsv: minimal, around fields; none, text"
    )
    drop_invalid: bool = option(False, "drop rows without a text or a label (unset: refuse them)")
    max_length: int = option(512, "truncate texts to this many tokens")
    truncation: Literal["head", "tail"] = option(
        "head", "which tokens of a long text are kept: its first ones, or its last ones"
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
        if mistakes:
            raise UserError(*mistakes)

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
            names=self.label_names,
            renamed=labels.mapping(self.label_map or ""),
            separator=self.label_separator,
        )
        dataset = findings.only_valid(
            dataset, drop=self.drop_invalid, note=self.note, places=places, labels=how.columns
        )
        if self.task == reading.AUTO:
            self.task, self.task_reason = reading.decided(dataset["train"], how)
            how = dataclasses.replace(how, task=self.task)
        dataset, self._unmapped = reading.encoded(dataset, how, self.note)
        return dataset

    def split(self, dataset: DatasetDict) -> DatasetDict:
        if self._unmapped:  # which may be so in other data, that is not trained on
            from finetune.data.labels import listed
            from finetune.data.targets import class_names

            raise UserError(
                f"--label_map: no label {listed(self._unmapped)} in the data (labels: "
                f"{listed(class_names(dataset['train']))})"
            )
        return super().split(dataset)

    def check(self) -> None:
        if type(self).build_model is not TextClassification.build_model:
            return  # whose positions are not known
        from finetune.models.pretrained import positions

        most = positions(self.model, self.model_revision)
        if most is None or self.max_length <= most:
            return
        usual = type(self).__dataclass_fields__["max_length"].default
        if self.max_length == usual:
            self.note(f"--max_length {most}: {self.model} has no more positions")
            self.max_length = most
        else:
            raise UserError(
                f"--max_length {self.max_length}: {self.model} has {most} positions; expected "
                f"{most} or fewer tokens"
            )

    def prepare(self, dataset: DatasetDict) -> DatasetDict:
        from finetune.data.tokenize import tokenize
        from finetune.tasks import kinds

        targets, tokenizer = kinds.of_rows(dataset["test"]).targets, self.processing_class()
        return tokenize(dataset, tokenizer, self.max_length, targets, self.note)

    def whole_lengths(self, split: str) -> list[int] | None:
        from finetune.data.tokenize import whole_lengths

        texts, lengths = self.splits[split]["text"][:], self.prepared[split]["length"][:]
        return whole_lengths(texts, lengths, self.processing_class(), self.max_length)

    def processing_class(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    @functools.cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        from finetune.models.pretrained import load_tokenizer

        side = {"head": "right", "tail": "left"}[self.truncation]
        return load_tokenizer(self.model, self.model_revision, truncation_side=side)

    def build_model(self, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.pretrained import load_classifier

        return load_classifier(
            self.model,
            labels,
            revision=self.model_revision,
            problem_type=self._task.problem_type,
            hidden_dropout=self.hidden_dropout,
            attention_dropout=self.attention_dropout,
            pad_token_id=self.processing_class().pad_token_id,
        )

    def adapt(self, model: torch.nn.Module, arguments: FinetuneArguments) -> torch.nn.Module:
        from finetune.models.families import refuse_half_precision

        refuse_half_precision(model, bf16=arguments.bf16, fp16=arguments.fp16)
        return super().adapt(model, arguments)

    def parts(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        if type(self).prepare is not TextClassification.prepare:  # which truncates
            self._refuse_long_rows()
        return super().parts(model)

    def _refuse_long_rows(self) -> None:
        """Refuse rows that a ``prepare`` of one's own left longer than the model's positions."""
        if type(self).build_model is not TextClassification.build_model:
            return
        from finetune.models.pretrained import positions

        most = positions(self.model, self.model_revision)
        for split, rows in self.prepared.items():
            if most is None or "input_ids" not in rows.column_names:
                continue
            for number, tokens in enumerate(rows["input_ids"]):
                if len(tokens) > most:
                    raise UserError(
                        f"row {number} of {split} has {len(tokens)} tokens after "
                        f"{type(self).__name__}.prepare, and {self.model} has {most} positions; "
                        "tokenize with truncation=True, max_length=self.max_length"
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
