"""Recipes of text: a text, or several parts of one, a row, on an encoder of ``transformers``.

A text recipe is mostly fields::

    class Yelp(TextRecipe):
        dataset: str = "Yelp/yelp_review_full"
        model: str = "google-bert/bert-base-cased"
        training = dict(global_batch_size=32, learning_rate=2e-5, num_train_epochs=4)
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from finetune.errors import UserError
from finetune.recipe.labelled import Labelled
from finetune.recipe.options import option

if TYPE_CHECKING:
    import numpy as np
    import torch
    from datasets import DatasetDict
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from finetune.data.encoding import Encoder, Rows
    from finetune.data.lengths import TokenSample
    from finetune.data.windows import Windows
    from finetune.training.arguments import FinetuneArguments


class TextRecipe(Labelled):
    """Sentences, pairs or documents with labels, on an encoder from ``transformers``."""

    packaged_model = "embedded:minilm"
    help_group = "text"
    help_groups = dict.fromkeys(
        ("model", "model_revision", "hidden_dropout", "attention_dropout"), "model"
    )
    exclusive = (*Labelled.exclusive, ("text_column", "text_columns"))
    dataset: str = option("", "data set on the Hub, or a local file, pattern of files or directory")
    model: str = option("", "name of a model on the Hub, a local directory, or embedded:minilm")
    model_revision: str | None = option(
        None, "commit, tag or branch of the model on the Hub (unset: the newest)"
    )
    text_column: str = option("text", "column that holds the text")
    text_columns: str | None = option(
        None, "several columns instead, of a pair for instance", several="NAME,NAME"
    )
    max_length: int = option(512, "truncate texts to this many tokens")
    truncation: Literal["head", "tail", "head_tail"] = option(
        "head",
        "tokens of a long text that are kept: the first, the last, or the first quarter and the "
        "last",
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
    preprocessing_num_workers: int | None = option(
        None, "processes that tokenize (unset: one a core, fewer for few rows)"
    )
    hidden_dropout: float | None = option(
        None, "dropout of the hidden states (unset: the model's own)"
    )
    attention_dropout: float | None = option(
        0.0, "dropout of the attention probabilities; above 0 a CPU has no fused kernel for it"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reduced_to: int | None = None  # max_length, where a model has no more positions
        mistakes = [
            f"--{name} {value}: expected a probability, 0 or more and below 1"
            for name in ("hidden_dropout", "attention_dropout")
            if (value := getattr(self, name)) is not None and not 0 <= value < 1
        ]
        if self.max_length < 3:
            mistakes.append(f"--max_length {self.max_length}: expected at least 3 tokens")
        if self.preprocessing_num_workers is not None and self.preprocessing_num_workers < 1:
            mistakes.append(
                f"--preprocessing_num_workers {self.preprocessing_num_workers}: expected 1 process "
                "or more"
            )
        if self.text_columns is not None:
            mistakes += self._mistakes_of_columns()
        if mistakes:
            raise UserError(*mistakes)

    def _mistakes_of_columns(self) -> list[str]:
        """Return a line for each option that ``text_columns`` contradicts."""
        if self.long_texts == "windows":
            return ["--long_texts windows: reads one column, not --text_columns"]
        if self.truncation == "head_tail":
            return [
                "--truncation head_tail: expected head or tail with --text_columns, whose longest "
                "text is truncated first"
            ]
        return []

    def without_effect(self, given: Mapping[str, Any]) -> list[str]:
        idle = dict.fromkeys(("stride", "pooling"), "needs --long_texts windows")
        if self.long_texts == "windows":
            idle = {"truncation": "with --long_texts windows nothing is truncated"}
        said = [f"--{name} has no effect: {why}" for name, why in idle.items() if name in given]
        return [*said, *super().without_effect(given)]

    def load(self) -> DatasetDict:
        return self.labelled(self.read())

    def labelled(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``dataset`` with row number, ``text`` and ``label``, missing values refused.

        Of several columns of text, ``texts`` has the parts. Other columns stay, for the slices of
        the report.
        """
        from finetune.data import columns, parts

        texts, is_one = self.columns_read(), self.text_columns is None
        sources = {"--text_column" if is_one else "--text_columns": texts, **self.label_sources()}
        split_by = self.split_columns()
        columns.require_columns(dataset, sources, self.report, split_by)
        if is_one and not self.label_columns:
            self.warn_of_missing_header(dataset, self.text_column, self.label_column)
        names = [column for group in sources.values() for column in group]
        dataset = columns.drop_clashes(dataset, names, self.report, [*split_by.values()])
        if not is_one and "label" in texts:
            raise UserError("--text_columns: the labels get a column of the name 'label'; rename")
        dataset = self.with_targets(dataset, texts)
        return dataset if is_one else parts.combined(dataset, texts)

    def columns_read(self) -> list[str]:
        """Return the columns of the data that the model reads, in their order."""
        from finetune.data.columns import parse_names

        return parse_names("--text_columns", self.text_columns) or [self.text_column]

    def refuse_other_columns(self, of: object, text_column: Any, text_columns: Any) -> None:
        """Refuse names of columns of other data that are not as many as those of the training.

        Args:
            of: What reads them, for the message.
            text_column: As typed, or None.
            text_columns: Likewise.

        Raises:
            UserError: if one column is named where several are read, or otherwise.
        """
        from finetune.data.columns import parse_names

        read, names = self.columns_read(), parse_names("--text_columns", text_columns)
        if self.text_columns is None and names:
            raise UserError(
                f"--text_columns {text_columns}: {of} reads one column; name it by --text_column"
            )
        several = f"{of} reads {len(read)} columns ({', '.join(read)})"
        if self.text_columns is not None and text_column is not None:
            raise UserError(
                f"--text_column {text_column}: {several}; name as many by --text_columns"
            )
        if names and len(names) != len(read):
            raise UserError(f"--text_columns {text_columns}: {several}, found {len(names)}")

    def check(self) -> None:
        if self._builds_pretrained:  # else its positions are not known
            self._fit_model()
        _ = self.windows
        if self.text_columns:
            self.encoder().refuse_too_short(len(self.columns_read()))

    @property
    def _builds_pretrained(self) -> bool:
        return type(self).build_model is TextRecipe.build_model

    @functools.cached_property
    def _config(self) -> PretrainedConfig:
        """What the model says of itself, as it is stored."""
        from finetune.models.pretrained import load_config

        return load_config(self.model, self.model_revision)

    @property
    def trained_head(self) -> list[str]:
        """The outputs of the head that the model was trained with; empty if it has none."""
        from finetune.models.families import outputs_of_head

        return outputs_of_head(self._config) if self._builds_pretrained else []

    def _fit_model(self) -> None:
        """Refuse a model without a head for texts, or with fewer positions than ``max_length``,
        which is reduced to them if it is the default.
        """
        from finetune.models import families

        families.require_head(self.model, self._config)
        most = families.positions(self._config)
        usual = type(self).__dataclass_fields__["max_length"].default
        if most is not None and self.max_length > most:
            if self.max_length != usual:
                raise UserError(
                    f"--max_length {self.max_length}: {self.model} has {most} positions; expected "
                    f"{most} or fewer tokens"
                )
            self.max_length = self.reduced_to = most

    def training_defaults(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        from finetune.models import families

        usual = super().training_defaults(given)
        known = self.model and "splits" in vars(self)  # before that it may be out of reach
        if not (known and self._builds_pretrained):
            return usual
        is_open = usual.get("precision", "auto") == "auto"
        if is_open and families.overflows(self._config):
            return {**usual, "precision": "fp32"}
        return usual

    def prepare(self, dataset: DatasetDict) -> DatasetDict:
        from finetune.data import parts, sources
        from finetune.data.tokenize import tokenize
        from finetune.tasks import kinds

        parts.refuse_others(dataset, several=self.text_columns is not None)
        return tokenize(
            dataset,
            self.encoder(),
            kinds.of_rows(dataset["test"]).targets,
            self.windows,
            processes=self.preprocessing_num_workers,
            about={"source": sources.Source(self.dataset).describe(), "tokenizer": self.model},
        )

    def encoder(self) -> Encoder:
        """Return what tokenizes and truncates texts, in training and prediction alike."""
        from finetune.data.encoding import Encoder

        options = (self.max_length, self.truncation, self.end_token())
        return Encoder(self.processing_class(), *options)

    def check_prepared(self, prepared: DatasetDict) -> None:
        if not self._builds_pretrained:
            return
        from finetune.models import families

        remarks = families.remarks(self._config)
        if self.reduced_to is not None:
            remarks.append(f"--max_length {self.reduced_to}: {self.model} has no more positions")
        for remark in remarks:
            self.note(remark)

    def end_token(self) -> tuple[int, str] | None:
        """Return the token that every row must have equally often, its number and how it is spelt;
        None if there is none of that kind.
        """
        from finetune.models import families

        if not self._builds_pretrained:
            return None
        end = families.end_token(self._config)
        if end is None:
            return None
        return end, str(self.processing_class().convert_ids_to_tokens(end))

    def training_targets(self) -> np.ndarray:
        """Return the targets of training, of each window where texts are read in windows."""
        if self.windows is None or self.class_weights == "none":
            return super().training_targets()
        found: np.ndarray = self.prepared["train"].with_format("numpy")["labels"][:]
        return found

    @property
    def windows(self) -> Windows | None:
        """What cuts texts into windows; None if they are truncated.

        Raises:
            UserError: if there can be no windows of ``max_length`` and ``stride``.
        """
        from finetune.data.windows import Windows

        if self.long_texts == "cut":
            return None
        return Windows(self.encoder(), self.stride)

    def whole_lengths(self, split: str) -> list[int] | None:
        import numpy as np

        from finetune.data.windows import first_lengths

        if "length" not in self.prepared[split].column_names:  # of a recipe with its own `prepare`
            return None
        lengths = first_lengths(self.prepared[split]).copy()
        full = np.flatnonzero(lengths >= self.max_length)
        lengths[full] = self.encoder().whole_lengths(self.read_by_model(split)(full))
        return [int(length) for length in lengths]

    @functools.cached_property
    def token_sample(self) -> TokenSample | None:
        """What the tokenizer makes of a sample of the training texts; None where the recipe
        tokenizes in another way.
        """
        from finetune.data.lengths import sample_tokens

        if type(self).prepare is not TextRecipe.prepare:
            return None
        total = len(self.splits["train"])
        return sample_tokens(self.read_by_model("train"), total, self.encoder())

    @property
    def positions(self) -> int | None:
        """How many tokens the model can read at most; None if that is not known."""
        from finetune.models import families

        return families.positions(self._config) if self._builds_pretrained else None

    def read_by_model(self, split: str) -> Rows:
        """Return what reads rows of a split by their numbers, as the model reads them."""
        from finetune.data import parts

        rows, several = self.splits[split], self.text_columns is not None
        return lambda numbers: parts.read_by_model(rows.select(numbers), several=several)

    def trainer_kwargs(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        parts = super().trainer_kwargs(model)
        if self.long_texts == "windows":
            loss = dataclasses.replace(parts["compute_loss_func"], pooling=self.pooling)
            parts["compute_loss_func"] = loss
        return parts

    def processing_class(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    @functools.cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        from finetune.data.encoding import is_pair
        from finetune.models.pretrained import load_tokenizer

        if self._builds_pretrained:  # before max_length is saved with the tokenizer
            self._fit_model()
        side = "left" if self.truncation == "tail" else "right"
        tokenizer = load_tokenizer(
            self.model, self.model_revision, truncation_side=side, max_length=self.max_length
        )
        columns = len(self.columns_read())
        if columns > 1 and not is_pair(tokenizer, columns):
            tokenizer.split_special_tokens = False  # or pipeline() would read the separator as text
        return tokenizer

    def build_model(self, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.pretrained import load_classifier

        return load_classifier(
            self.model,
            labels,
            revision=self.model_revision,
            problem_type=self.presumed_kind.problem_type,
            hidden_dropout=self.hidden_dropout,
            attention_dropout=self.attention_dropout,
            pad_token_id=self.processing_class().pad_token_id,
        )

    def adapt(self, model: torch.nn.Module, arguments: FinetuneArguments) -> torch.nn.Module:
        from finetune.models.families import refuse_half_precision

        refuse_half_precision(model, bf16=arguments.bf16, fp16=arguments.fp16)
        return super().adapt(model, arguments)

    def base_revision(self) -> str | None:
        from finetune.models.pretrained import commit

        return commit(self.model, self.model_revision)

    def load_model(self, directory: str | Path, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.pretrained import load_classifier

        return load_classifier(str(directory), labels)

    def data_collator(self) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
        from transformers import DataCollatorWithPadding

        from finetune.data.batches import PADDED_TO

        # of 8 tokens, where that cannot be more than the model has positions
        multiple = math.gcd(PADDED_TO, self.max_length)
        return DataCollatorWithPadding(self.processing_class(), pad_to_multiple_of=multiple)
