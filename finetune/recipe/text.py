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
from typing import TYPE_CHECKING, Any

from finetune.data.comma_list import split_values
from finetune.errors import UserError
from finetune.recipe.base import Recipe
from finetune.recipe.options import TextOptions
from finetune.runtime import version

if TYPE_CHECKING:
    import numpy as np
    import torch
    from datasets import Dataset, DatasetDict
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from finetune.checking.texts import TokenSample
    from finetune.data.encoding import Encoder, Rows
    from finetune.data.label_columns import LabelOptions
    from finetune.data.windows import Windows
    from finetune.training.arguments import FinetuneArguments


class TextRecipe(Recipe, TextOptions):
    """Sentences, pairs or documents with labels, on an encoder from ``transformers``."""

    packaged_model = "embedded:minilm"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("drop_duplicates", "drop_overlap"):
            if getattr(self, name) == "near":
                version.require_packages(f"--{name} near", version.NEAR)

    # ---- columns ---------------------------------------------------------------------------------

    def load(self) -> DatasetDict:
        return self.labelled(self.read())

    def labelled(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``dataset`` with ``_row``, ``text`` and ``label``, missing values refused; of
        several columns of text, ``texts`` has the parts. Other columns stay.

        Raises:
            UserError: If columns or values are missing, or labels cannot be read.
        """
        from finetune.data import columns, parts
        from finetune.recipe import rows

        texts = self.columns_read() if self.text_columns or self.text_column else []
        labels = self._labels_read()
        if not (texts and labels[0]):  # find those that the options leave open
            named = {"text": texts, "label": labels}
            texts, labels = columns.find_columns(dataset["train"], named)
            self.text_column = self.text_column if self.text_columns else texts[0]
            self.label_column = self.label_column if self.label_columns else labels[0]
            names = " and ".join(map(repr, texts))
            self.note(f"columns: {names} is the text, {labels[0]!r} the label")
        is_one = self.text_columns is None
        sources = {
            "--text_column" if is_one else "--text_columns": texts,
            "--label_columns" if self.label_columns else "--label_column": labels,
        }
        columns.require_columns(dataset, sources, self.report)
        if is_one and not self.label_columns:
            rows.warn_of_missing_header(self, dataset, self.text_column, self.label_column)
        dataset = columns.drop_own_columns(dataset, [*texts, *labels], self.report)
        if not is_one and "label" in texts:
            raise UserError("--text_columns: the labels get a column of the name 'label'; rename")
        is_open = self.task == "auto"
        dataset, task = rows.add_labels(self, dataset, texts, self.label_options())
        self.task = task  # type: ignore[assignment]
        if self.label_columns and task == "regression":
            self.target_names = labels
        if is_open and task == "single_label" and super().is_ordinal(dataset["train"]):
            self.task, self.task_reason = "ordinal", "the classes have the order of the recipe"
        return dataset if is_one else parts.combined(dataset, texts)

    def columns_read(self) -> list[str]:
        from finetune.data.columns import parse_names

        return parse_names("--text_columns", self.text_columns) or [self.text_column]

    def _labels_read(self) -> list[str]:
        from finetune.data.columns import parse_names

        return parse_names("--label_columns", self.label_columns) or [self.label_column]

    def label_options(self) -> LabelOptions:
        """Return how labels are written."""
        from finetune.data.label_columns import LabelOptions, parse_label_map

        return LabelOptions(
            columns=self._labels_read(),
            task=self.task,
            names=split_values(self.label_order or "") or self.label_names,
            is_ordered=bool(self.label_order),
            renames=parse_label_map(self.label_map),
            separator=self.label_separator,
            drop_invalid=self.drop_invalid,
        )

    def refuse_other_columns(self, reader: object, text_column: Any, text_columns: Any) -> None:
        """Refuse columns of other data, as typed or None, that are not as many as the trained."""
        from finetune.data.columns import parse_names

        columns, names = self.columns_read(), parse_names("--text_columns", text_columns)
        if len(names or [text_column]) != len(columns) and (names or text_column is not None):
            raise UserError(
                f"--text_column {', '.join(names) or text_column}: {reader} reads "
                f"{len(columns)} ({', '.join(columns)}); name as many"
            )

    def is_ordinal(self, rows: Dataset) -> bool:
        return self.task == "ordinal" or (self.task == "auto" and super().is_ordinal(rows))

    def split(self, dataset: DatasetDict) -> DatasetDict:
        from finetune.tasks import decision

        if self.task == "ordinal":
            decision.check_order(dataset, self.label_options(), self.report)
            self.report.raise_errors()
        return super().split(dataset)

    # ---- model and tokenizer ---------------------------------------------------------------------

    @functools.cached_property
    def model_config(self) -> PretrainedConfig | None:
        """The configuration of the model, as it is stored; None if the recipe builds its own.

        The default of ``max_length`` is reduced to the positions of the model.

        Raises:
            UserError: If the model has no head for texts, or fewer positions than ``max_length``.
        """
        from finetune.models import families
        from finetune.models.pretrained import load_config

        if type(self).build_model is not TextRecipe.build_model:
            return None
        config = load_config(self.model, self.model_revision)
        positions = families.positions(config)
        if positions is not None and self.max_length > positions:
            limit = f"--max_length {self.max_length}: {self.model} has {positions} positions"
            if self.max_length != type(self).__dataclass_fields__["max_length"].default:
                raise UserError(f"{limit}; expected as many or fewer tokens")
            self.max_length = positions
            self.note(f"{limit}: texts are read up to these")
        return config

    def check(self) -> None:
        _ = self.model_config, self.windows
        if self.text_columns:
            self.encoder().refuse_too_short(len(self.columns_read()))

    def processing_class(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    @functools.cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        from finetune.data.encoding import is_pair
        from finetune.models.pretrained import load_tokenizer

        _ = self.model_config  # which may reduce max_length, saved with the tokenizer
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

    def load_model(self, directory: str | Path, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.pretrained import load_classifier

        return load_classifier(str(directory), labels)

    def training_defaults(self, user_options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        from finetune.models import families

        defaults = super().training_defaults(user_options)
        if not self.model or "splits" not in vars(self):  # the model may still be out of reach
            return defaults
        family = getattr(self.model_config, "model_type", None)
        if family in families.OVERFLOWING and defaults.get("precision", "auto") == "auto":
            defaults["precision"] = "fp32"
        return defaults

    def adapt(self, model: torch.nn.Module, arguments: FinetuneArguments) -> torch.nn.Module:
        from finetune.models import families

        family = getattr(getattr(model, "config", None), "model_type", None)
        if (arguments.bf16 or arguments.fp16) and family in families.OVERFLOWING:
            precision = "bf16" if arguments.bf16 else "fp16"
            raise UserError(
                f"--precision {precision}: a model of type '{family}' overflows in it; expected "
                "--precision fp32"
            )
        return super().adapt(model, arguments)

    def trainer_kwargs(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        kwargs = super().trainer_kwargs(model)
        if self.long_texts == "windows":
            loss = dataclasses.replace(kwargs["compute_loss_func"], pooling=self.pooling)
            kwargs["compute_loss_func"] = loss
        return kwargs

    def data_collator(self) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
        from transformers import DataCollatorWithPadding

        from finetune.data.batches import PADDED_TO

        multiple = math.gcd(PADDED_TO, self.max_length)  # never more than the positions
        return DataCollatorWithPadding(self.processing_class(), pad_to_multiple_of=multiple)

    # ---- tokens ----------------------------------------------------------------------------------

    def encoder(self) -> Encoder:
        """Return what tokenizes and truncates texts, in training and prediction alike."""
        from finetune.data.encoding import Encoder

        tokenizer, config, end = self.processing_class(), self.model_config, None
        if config is not None and config.is_encoder_decoder:  # every row must have it equally often
            end = getattr(config.get_text_config(), "eos_token_id", None)
        end_token = None if end is None else (end, str(tokenizer.convert_ids_to_tokens(end)))
        return Encoder(tokenizer, self.max_length, self.truncation, end_token)

    @property
    def windows(self) -> Windows | None:
        """What cuts texts into windows; None if they are truncated."""
        from finetune.data.windows import Windows

        return None if self.long_texts == "cut" else Windows(self.encoder(), self.stride)

    def prepare(self, dataset: DatasetDict) -> DatasetDict:
        from finetune.data import parts
        from finetune.data.tokenize import tokenize
        from finetune.tasks import kinds

        parts.refuse_others(dataset, several=self.text_columns is not None)
        return tokenize(
            dataset,
            self.encoder(),
            kinds.of_rows(dataset["test"]).targets,
            self.windows,
            processes=self.preprocessing_num_workers,
        )

    def training_targets(self) -> np.ndarray:
        """Return the targets of training, of each window where texts are read in windows."""
        import numpy as np

        if self.windows is None or self.class_weights == "none":
            return super().training_targets()
        return np.asarray(self.prepared["train"].with_format("numpy")["labels"][:])

    def whole_lengths(self, split: str) -> list[int] | None:
        import numpy as np

        from finetune.data.windows import first_lengths

        if "length" not in self.prepared[split].column_names:  # of a recipe with its own `prepare`
            return None
        lengths = first_lengths(self.prepared[split]).copy()
        full = np.flatnonzero(lengths >= self.max_length)
        lengths[full] = self.encoder().whole_lengths(self._reader(split)(full))
        return [int(length) for length in lengths]

    @functools.cached_property
    def token_sample(self) -> TokenSample | None:
        """What the tokenizer makes of a sample of the training texts; None where the recipe
        tokenizes in another way.
        """
        from finetune.checking.texts import sample_tokens

        if type(self).prepare is not TextRecipe.prepare:
            return None
        return sample_tokens(self._reader("train"), len(self.splits["train"]), self.encoder())

    def _reader(self, split: str) -> Rows:
        """Return a function from row numbers of a split to these rows, as the model reads them."""
        from finetune.data import parts

        rows, has_parts = self.splits[split], self.text_columns is not None
        return lambda numbers: parts.read_by_model(rows.select(numbers), several=has_parts)
