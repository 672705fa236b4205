"""Base classes of recipes that fine-tune text and image models of ``transformers``."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.data import ROW
from finetune.data.comma_list import split_values
from finetune.errors import UserError
from finetune.recipe.base import Recipe
from finetune.recipe.options import ImageOptions, TextOptions, option

if TYPE_CHECKING:
    import torch
    from datasets import DatasetDict
    from transformers import BaseImageProcessor, PreTrainedTokenizerBase

    from finetune.checking.texts import TokenSample
    from finetune.data.batches import Augmentation
    from finetune.data.encoding import Encoder, Windows
    from finetune.data.labels import LabelOptions
    from finetune.training.arguments import FinetuneArguments


class TextRecipe(Recipe, TextOptions):
    """Base class of text recipes: single texts, pairs or documents, on a ``transformers`` model.

    A text recipe usually only sets fields::

        class Yelp(TextRecipe):
            dataset: str = "Yelp/yelp_review_full"
            model: str = "google-bert/bert-base-cased"
            training = dict(global_batch_size=32, learning_rate=2e-5, num_train_epochs=4)
    """

    packaged_model = "embedded:minilm"

    # ---- columns ---------------------------------------------------------------------------------

    def labelled(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``dataset`` with ``_row``, ``text`` and ``label``; with several text columns also
        ``texts``, their parts. Missing values raise a ``UserError``. Other columns are kept.
        """
        from finetune.data import columns, prediction_columns, tokenize
        from finetune.data import labels as class_labels
        from finetune.tasks import detection

        texts = self.columns_read()
        options = self.label_options()
        labels = list(options.columns)
        text_flag, label_flag = "--text_columns", "--label_column"
        if self.text_columns is None:
            text_flag = "--text_column"
        if self.label_columns:
            label_flag = "--label_columns"
        flags = {text_flag: texts, label_flag: labels}
        columns.require_columns(dataset, flags, self.report)
        dataset = prediction_columns.set_aside(dataset, read=[*texts, *labels])
        label_columns = columns.read_label_columns(dataset, texts, options, self.report)
        reason = ""
        if self.task == detection.AUTO:
            task, reason = detection.decide_task(label_columns["train"], options, self.report)
            options = dataclasses.replace(options, task=task)
        dataset = tokenize.combined(dataset.remove_columns(labels), texts)
        encode = class_labels.encode_names
        if options.task == "regression":
            encode = class_labels.encode_numbers
        dataset = encode(dataset, label_columns, options, self.report)
        if options.task == "single_label" and self.is_ordinal(dataset["train"]):
            reason = "the classes have the order of the recipe"
        self.report.facts.label_columns = labels
        self.report.facts.task_reason = reason
        return dataset

    def split(self, dataset: DatasetDict) -> DatasetDict:
        from finetune.tasks import detection

        if self.is_ordinal(dataset["train"]):
            detection.check_order(dataset, self.label_options(), self.report)
        return super().split(dataset)

    def columns_read(self) -> list[str]:
        from finetune.data.columns import parse_names

        return parse_names("--text_columns", self.text_columns) or [self.text_column]

    def label_options(self) -> LabelOptions:
        """Return the options that decide how labels are read."""
        from finetune.data.columns import parse_names
        from finetune.data.labels import LabelOptions, parse_label_map

        return LabelOptions(
            columns=parse_names("--label_columns", self.label_columns) or [self.label_column],
            task=self.task,
            names=split_values(self.label_order or "") or self.label_names,
            is_ordered=bool(self.label_order),
            renames=parse_label_map(self.label_map),
            separator=self.label_separator,
            drop_invalid=self.drop_invalid,
        )

    def refuse_other_columns(self, reader: object, text_column: Any, text_columns: Any) -> None:
        """Require as many text columns for other data as in training.

        Args:
            reader: The run or the export that reads the columns, for the message.
            text_column: The value of ``--text_column`` for the data; None if it is not typed.
            text_columns: That of ``--text_columns``.

        Raises:
            UserError: If there are more or fewer columns.
        """
        from finetune.data.columns import parse_names

        columns = self.columns_read()
        names = parse_names("--text_columns", text_columns) or [text_column]
        if len(names) != len(columns) and names != [None]:
            raise UserError(
                f"--text_column {', '.join(names)}: expected {len(columns)} text columns, because "
                f"{reader} reads {', '.join(columns)}"
            )

    # ---- model and tokenizer ---------------------------------------------------------------------

    @functools.cached_property
    def token_limit(self) -> int:
        """``max_length``, or the positions of the model if its default is more.

        Raises:
            UserError: If the user sets it to more than the positions of the model.
        """
        from finetune.models import families

        limit = self.max_length
        if self.model_config is not None:
            limit = min(limit, families.positions(self.model_config) or limit)
        default = type(self).__dataclass_fields__["max_length"].default
        if self.max_length not in (limit, default):
            raise UserError(
                f"--max_length {self.max_length}: {self.model} has {limit} positions; expected "
                f"--max_length {limit} or less"
            )
        return limit

    def resolved_options(self) -> dict[str, Any]:
        options = super().resolved_options()
        return {**options, "task": self.resolved_task.name, "max_length": self.token_limit}

    def check(self) -> None:
        from finetune.models import families, mean_layer

        if self.head == "mean" and not mean_layer.can_have(self.model_config):
            found = "the model of build_model()"
            if self.model_config is not None:
                found = f"'{self.model_config.model_type}'"
            raise UserError(
                f"--head mean: expected a model of type {', '.join(mean_layer.FAMILIES)}, found "
                f"{found}; use --head probe"
            )
        limit = self.token_limit
        if limit < self.max_length:
            action = "truncated to them" if self.windows is None else "read in windows of them"
            self.note(
                f"--max_length {self.max_length}: {self.model} has {limit} positions: longer texts "
                f"are {action}"
            )
        if self.windows is not None:
            self.windows.require_stride()
        if self.model_config is not None:
            self._refuse_unknown_ids(families.without_weights(self.model_config))
        elif self.text_columns:
            self.encoder()

    def _refuse_unknown_ids(self, model: torch.nn.Module) -> None:
        """Refuse a tokenizer with ids that the embeddings of ``model`` do not have."""
        from transformers import PreTrainedTokenizerBase

        from finetune.models import families

        tokenizer: Any = self.processing_class()  # a recipe may have its own
        if isinstance(tokenizer, PreTrainedTokenizerBase):
            row = tokenizer(*["a", "a"][: len(self.columns_read())])
            families.refuse_ids_beyond_embeddings(model, tokenizer, row, self.model)

    def processing_class(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    @functools.cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        from finetune.data.encoding import is_pair
        from finetune.models.pretrained import load_tokenizer

        side = "left" if self.truncation == "tail" else "right"
        tokenizer = load_tokenizer(
            self.model, self.model_revision, side, self.token_limit, labels_words=self.labels_words
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
            labels_words=self.labels_words,
            hidden_dropout=self.hidden_dropout,
            attention_dropout=self.attention_dropout,
            pad_token_id=self.processing_class().pad_token_id,
            layer_count=self.layers,
        )

    def load_model(self, directory: str | Path, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.pretrained import load_classifier

        model = load_classifier(str(directory), labels, labels_words=self.labels_words, is_run=True)
        self._refuse_unknown_ids(model)
        return model

    def trainer_kwargs(
        self,
        model: torch.nn.Module | None = None,
        arguments: FinetuneArguments | None = None,
    ) -> dict[str, Any]:
        kwargs = super().trainer_kwargs(model, arguments)
        self._refuse_unknown_ids(kwargs["model"])
        if self.long_texts == "windows":
            loss = dataclasses.replace(kwargs["compute_loss_func"], pooling=self.pooling)
            kwargs["compute_loss_func"] = loss
        return kwargs

    def data_collator(self) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
        from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding

        from finetune.data.lengths import PADDED_TO

        tokenizer = self.processing_class()
        multiple = math.gcd(PADDED_TO, self.token_limit)  # never more than the positions
        if self.labels_words:
            return DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=multiple)
        return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple)

    # ---- tokens ----------------------------------------------------------------------------------

    def encoder(self) -> Encoder:
        """Return the encoder that tokenizes and truncates texts in training and prediction."""
        from finetune.data.encoding import Encoder

        parts = len(self.columns_read())
        is_head_tail = self.truncation == "head_tail"
        return Encoder(self.processing_class(), self.token_limit, parts, is_head_tail)

    def encoding_facts(self) -> dict[str, Any]:
        """Return what decides how rows become tokens, as JSON, for use without this recipe.

        Raises:
            UserError: If the recipe tokenizes in its own way, or its tokenizer is not a fast one.
        """
        from transformers import PreTrainedTokenizerFast

        tokenizer: Any = self.processing_class()
        reason = ""
        classes = type(self).__mro__
        toolkit = next(cls for cls in classes if cls.__module__.startswith("finetune.recipe."))
        for name in ("prepare", "encoder", "windows", "data_collator"):
            if getattr(type(self), name) is not getattr(toolkit, name):
                reason = f"the recipe has its own {name}()"
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            reason = f"{type(tokenizer).__name__} is not a fast tokenizer"
        if reason:
            expected = "expected rows that can be tokenized without the recipe"
            raise UserError(f"{expected}, but {reason}; use finetune.predict")
        facts = ("truncation", "long_texts", "stride", "pooling")
        special = ("sep_token", "eos_token", "split_special_tokens")
        return {
            "columns": self.columns_read(),
            "max_length": self.encoder().max_length,
            **{name: getattr(self, name) for name in facts},
            **{name: getattr(tokenizer, name) for name in special},
        }

    @property
    def windows(self) -> Windows | None:
        """The object that cuts texts into windows; None if texts are truncated."""
        from finetune.data.encoding import Windows

        if self.long_texts == "cut":
            return None
        return Windows(self.encoder(), self.stride)

    def prepare(self, dataset: DatasetDict) -> DatasetDict:
        from finetune.data.tokenize import tokenize
        from finetune.tasks import detection

        return tokenize(
            dataset,
            self.encoder(),
            detection.of_rows(dataset["test"]).targets,
            self.windows,
            self.preprocessing_num_workers,
        )

    @functools.cached_property
    def token_sample(self) -> TokenSample | None:
        """Token statistics of a sample of the training texts; None with a custom ``prepare``."""
        from finetune.checking.texts import sample_tokens

        if type(self).prepare is not TextRecipe.prepare:  # may tokenize differently
            return None
        return sample_tokens(self.splits["train"], self.encoder())


class ImageRecipe(Recipe, ImageOptions):
    """Base class of image recipes: images with one label each, on a ``transformers`` model."""

    input_column = "image"
    packaged_model = "embedded:vit"
    training = dict(remove_unused_columns=False)  # the collator reads `image`

    dataset: str = option("", "folder of class folders, table of paths, or data set on the Hub")

    def labelled(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``dataset`` with ``_row``, ``image``, ``label`` and, if there are paths, ``file``.
        Missing labels and damaged images raise a ``UserError``. Other columns are kept.
        """
        from datasets import DatasetDict

        from finetune.data import columns, images, labels, prediction_columns

        image, label = self.image_column, self.label_column
        flags = {"--image_column": [image], "--label_column": [label]}
        columns.require_columns(dataset, flags, self.report)
        dataset = prediction_columns.set_aside(dataset, read=[image, label])
        dataset = DatasetDict(
            {name: images.with_images(part, image, self.dataset) for name, part in dataset.items()}
        )
        dataset = images.drop_unreadable(dataset, self.report, drop=self.drop_invalid)
        options = labels.LabelOptions(
            columns=[label],
            task="single_label",
            names=self.label_names,
            renames=labels.parse_label_map(self.label_map),
            drop_invalid=self.drop_invalid,
        )
        label_columns = columns.read_label_columns(dataset, (), options, self.report)
        dataset = dataset.remove_columns(label)
        dataset = labels.encode_names(dataset, label_columns, options, self.report)
        self.report.facts.label_columns = [label]
        return dataset

    def check(self) -> None:
        if self.model_config is not None:
            self.processing_class()

    def prepare(self, dataset: DatasetDict) -> DatasetDict:
        """Return the encoded images, which the collator decodes."""
        from datasets import Image

        from finetune.data import targets
        from finetune.data.batches import DRAWN_FROM
        from finetune.tasks import detection

        prepared = dataset.cast_column("image", Image(decode=False))
        if targets.is_set(dataset["test"]):
            encode = detection.of_rows(dataset["test"]).targets
            for name, rows in prepared.items():
                labels = list(encode(targets.values(rows)))
                prepared[name] = rows.remove_columns("label").add_column("label", labels)
        if "train" in prepared:
            prepared["train"] = prepared["train"].rename_column(ROW, DRAWN_FROM)
        return prepared

    def processing_class(self) -> BaseImageProcessor:
        from finetune.models.pretrained import load_processor

        return load_processor(self.model, self.model_revision)

    @functools.cached_property
    def augmentation(self) -> Augmentation:
        """The random crops and flips of training."""
        from finetune.data.batches import Augmentation

        return Augmentation(self.crop_scale, self.horizontal_flip)

    def build_model(self, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.pretrained import load_classifier

        model = load_classifier(
            self.model, labels, self.model_revision, reads_images=True, layer_count=self.layers
        )
        count = sum("BatchNorm" in type(module).__name__ for module in model.modules())
        if count and self.freeze != "base" and not self.adapter:  # which keep their statistics
            self.note(f"{count} BatchNorm layers: results depend on the number of processes")
        return model

    def load_model(self, directory: str | Path, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.pretrained import load_classifier

        return load_classifier(str(directory), labels, reads_images=True, is_run=True)

    def data_collator(self) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
        from finetune.data.batches import Collator

        return Collator(self.processing_class(), self.augmentation)

    def trainer_kwargs(
        self,
        model: torch.nn.Module | None = None,
        arguments: FinetuneArguments | None = None,
    ) -> dict[str, Any]:
        return {**super().trainer_kwargs(model, arguments), "callbacks": [self.augmentation]}
