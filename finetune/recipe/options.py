"""The options of recipes as dataclass fields, and the checks of their values."""

from __future__ import annotations

import dataclasses
import inspect
import os
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

from finetune.data.comma_list import format_option, split_values
from finetune.errors import Findings, UserError
from finetune.rules.check import check_options
from finetune.rules.options import OptionValues
from finetune.training.options import find_type_mistake, merge_options

if TYPE_CHECKING:
    from finetune.data.read_text import ReadOptions
    from finetune.data.splits import Plan


def option(default: Any, help: str, form: str | None = None, *, group: str = "") -> Any:
    """Return a dataclass field that declares an option of a recipe.

    Args:
        default: The default value.
        help: The help text in one line, without the default, which the command line adds.
        form: For an option with several values, how they are written: ``NAME,NAME`` or
            ``NAME=VALUE,NAME=VALUE``; in Python and YAML they may be a list or a mapping.
        group: The group in the help; empty for options that a recipe adds.
    """
    metadata = {"help": help, "group": group, "metavar": form}
    metadata = {name: text for name, text in metadata.items() if text}
    return dataclasses.field(default=default, metadata=metadata)


_data, _splits, _labels = (partial(option, group=name) for name in ("data", "splits", "labels"))
_text, _image, _model = (partial(option, group=name) for name in ("text", "image", "model"))
_training, _adapters = (partial(option, group=name) for name in ("training", "adapters"))
_teacher = partial(option, group="teacher")


@dataclasses.dataclass(kw_only=True)
class RecipeOptions:
    """Options of every recipe: data, splits, loss and metrics."""

    labels_words: ClassVar[bool] = False  # whether words are labelled, not rows

    dataset: str = _data("", "data set on the Hub, local file, pattern of files or directory")
    dataset_revision: str | None = _data(None, "commit, tag or branch on the Hub (unset: newest)")
    dataset_config: str | None = _data(None, "configuration of a data set on the Hub")
    dataset_splits: str | None = _data(
        None, "names of the splits; none: split off the training rows", "test=NAME,validation=NAME"
    )
    csv_quoting: Literal["auto", "minimal", "none"] = _data(
        "auto", "quotation marks in a .csv enclose fields (minimal) or are text (none)"
    )
    csv_separator: str | None = _data(None, "field separator, such as ';' or tab (unset: detected)")
    encoding: str | None = _data(None, "encoding of a text file, such as cp1252 (unset: detected)")
    sheet: str | None = _data(None, "sheet of a spreadsheet (unset: the first that has rows)")

    train_samples: int | None = _splits(None, "train on this many rows, sampled by class")
    eval_samples: int | None = _splits(None, "validate and test on at most this many rows each")
    test_size: float | None = _splits(None, "test split: share or number of rows (unset: 0.2)")
    validation_size: float | None = _splits(None, "share or number of rows (unset: 0.1, <= 10,000)")
    group_column: str | None = _splits(None, "keep rows of a group, such as a patient, together")
    time_column: str | None = _splits(None, "split by this column of dates: test on the newest")
    time_format: str | None = _splits(
        None, "form of its dates, such as %d.%m.%Y, or number (unset: ISO 8601 or numbers)"
    )
    keep_contradictions: Literal["none", "first"] = _splits(
        "none", "training rows with the same text but different labels: drop all, or keep the first"
    )
    split_seed: int = _splits(42, "seed of the splits and of sampled rows (not of the training)")
    relabel: str | None = _splits(None, "apply new_label of edited suspects.csv", "FILE,FILE")
    exclude: str | None = _splits(None, "leave out all rows listed in suspects.csv", "FILE,FILE")

    positive_label: str | None = _training(
        None,
        "of two classes the one that F1, precision, recall and curves are of (unset: the one named "
        "positive, yes, true, spam or 1, else the second)",
    )

    loss_function: str | None = _training(None, "loss of the task (unset: its default)")
    class_weights: str = _training("none", "none, balanced, or by name", "NAME=WEIGHT,NAME=WEIGHT")
    metrics: str | None = _training(
        None, "such as f1_macro or ./MINE.py (unset: by task)", "NAME,NAME"
    )

    def split_plan(self) -> Plan:
        """Return the options that decide how rows are split."""
        from finetune.data.splits import Plan

        options = vars(self)
        shared = {name: options[name] for name in Plan.__dataclass_fields__ if name in options}
        return Plan(**shared)

    def read_options(self) -> ReadOptions:
        """Return how files are read."""
        from finetune.data.read_text import ReadOptions

        return ReadOptions(
            quoting=self.csv_quoting,
            separator=self.csv_separator,
            encoding=self.encoding,
            sheet=self.sheet,
            words=self.labels_words,
        )

    def correction_files(self) -> dict[str, list[str]]:
        """Return the file names in ``relabel`` and ``exclude``, by option."""
        options = {"relabel": self.relabel, "exclude": self.exclude}
        return {name: split_values(value or "") for name, value in options.items()}


@dataclasses.dataclass(kw_only=True)
class ModelOptions:
    """Options of recipes on pretrained models: the label column and the model."""

    label_column: str = _labels("label", "column of labels")
    label_map: str | None = _labels(None, "rename or merge labels", "LABEL=NAME,LABEL=NAME")
    drop_invalid: bool = _labels(False, "drop rows without a text, an image or a label")
    model: str = _model("", "name of a model on the Hub, a local directory, or embedded:NAME")
    model_revision: str | None = _model(None, "commit, tag or branch on the Hub (unset: newest)")
    layers: int | None = _model(
        None, "keep N layers of the base model, evenly spaced from first to last (unset: all)"
    )
    head: Literal["probe", "mean", "random"] | None = _model(
        None,
        "start of a new last layer: linear model of its inputs (probe) or of the mean state (mean: "
        "one more layer), or random (unset: mean where rows are few, else probe)",
    )
    teacher: str | None = _teacher(
        None, "runs or exports whose mean answers the model learns, too", "RUN,RUN"
    )
    teacher_weight: float = _teacher(0.5, "weight of their answers in the loss of a labelled row")
    teacher_temperature: float = _teacher(2.0, "divides the logits of both when compared")
    adapter: Literal["lora"] | None = _adapters(None, "train low-rank adapters and the head only")
    lora_rank: int = _adapters(8, "rank of the matrices of an adapter")
    lora_alpha: float = _adapters(16.0, "an adapter is multiplied by lora_alpha / lora_rank")
    lora_dropout: float = _adapters(0.0, "dropout of the inputs of an adapter")
    lora_targets: str | None = _adapters(
        None, "layers with adapters, such as query,value (unset: all linear ones)", "NAME,NAME"
    )
    lora_dora: bool = _adapters(False, "DoRA: train the norms of the weights separately")
    lora_rslora: bool = _adapters(False, "rsLoRA: multiply by lora_alpha / sqrt(lora_rank)")
    freeze: str | None = _adapters(
        None, "do not train embeddings, the N lowest layers with them, or base: all but the head"
    )


@dataclasses.dataclass(kw_only=True)
class TextOptions(ModelOptions):
    """Options of text recipes: labels, text columns and long texts."""

    task: Literal["auto", "single_label", "multi_label", "regression", "ordinal"] = _labels(
        "auto", "task (auto: detected from the labels of the training rows)"
    )
    label_columns: str | None = _labels(None, "several columns of 0 and 1, or numbers", "NAME,NAME")
    label_separator: str | None = _labels(None, "separator of labels in a cell, such as ';'")
    label_probabilities: str | None = _teacher(
        None, "columns of votes or probabilities of training rows", "LABEL=COLUMN,LABEL=COLUMN"
    )
    thresholds: Literal["one", "label", "none"] = _labels(
        "one", "multi-label decision thresholds: one for all, one per label, or none: 0.5"
    )
    label_order: str | None = _labels(None, "ordinal classes, lowest first", "NAME,NAME,NAME")
    drop_duplicates: Literal["exact", "near"] = _splits(
        "exact", "keep one of the training rows with the same text; near: with nearly the same text"
    )
    drop_overlap: Literal["exact", "near"] = _splits(
        "exact", "drop training rows whose text is in a held-out split; near: nearly the same text"
    )
    unlabelled: str | None = _teacher(None, "file of texts that only --teacher labels")
    text_column: str = _text("text", "column of texts")
    text_columns: str | None = _text(None, "several columns, such as a pair of texts", "NAME,NAME")
    max_length: int = _text(512, "most tokens of a text or a window, special tokens included")
    truncation: Literal["head", "tail", "head_tail"] = _text(
        "head", "part of a long text to keep; head_tail: a quarter from its start, the rest its end"
    )
    long_texts: Literal["cut", "windows"] = _text("cut", "truncate long texts, or pool windows")
    stride: int | None = _text(None, "tokens that windows share (unset: a quarter of max_length)")
    pooling: Literal["mean", "max"] = _text("mean", "logits of a text's windows: mean or maximum")
    preprocessing_num_workers: int | None = _text(None, "processes that tokenize (unset: by cores)")
    hidden_dropout: float | None = _model(None, "dropout of hidden states (unset: the model's own)")
    attention_dropout: float | None = _model(0.0, "dropout of attention; 0 is faster on a CPU")


@dataclasses.dataclass(kw_only=True)
class ImageOptions(ModelOptions):
    """Options of image recipes: the image column and the augmentation."""

    head: Literal["probe", "random"] | None = _model(
        None, "start of a new last layer: a linear model of its inputs, or random (unset: probe)"
    )

    image_column: str = _image("image", "column of images or paths")
    crop_scale: float = _image(0.5, "smallest share of the area that crops keep (1: no crops)")
    horizontal_flip: bool = _image(True, "mirror every other training image (not digits or text)")


# ---- the class of a recipe -----------------------------------------------------------------------

RENAMED_PARTS = "Recipe.parts() is now trainer_kwargs(); release 0.2 removes the old name"


def declare(cls: Any) -> None:
    """Make a recipe class a dataclass, and merge the defaults of its base classes into its own.

    An inherited option keeps its help and, unless it is annotated again, its type.

    Raises:
        UserError: If ``compute_metrics`` is overridden without ``own_metrics``.
    """
    inherited: dict[str, dataclasses.Field[Any]] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__[1:])):
        inherited |= {field.name: field for field in dataclasses.fields(base)}
    attributes = vars(cls)
    hints = get_type_hints(cls)
    for name in inherited.keys() & attributes.keys():
        value = attributes[name]
        field = value if isinstance(value, dataclasses.Field) else dataclasses.field(default=value)
        field.metadata = MappingProxyType({**inherited[name].metadata, **field.metadata})
        setattr(cls, name, field)
        cls.__annotations__ = {**inspect.get_annotations(cls), name: hints[name]}
    if "compute_metrics" in attributes and "own_metrics" not in attributes:
        raise UserError(
            f"{cls.__name__} overrides compute_metrics but does not name its metrics: "
            'add `own_metrics = ("NAME", ...)`'
        )
    if "parts" in attributes:
        raise UserError(f"{cls.__name__}: {RENAMED_PARTS}")
    dataclasses.dataclass(kw_only=True)(cls)
    for name in ("training", "embedded"):
        merged = merge_options(getattr(super(cls, cls), name), attributes.get(name, {}))
        setattr(cls, name, merged)


# ---- values --------------------------------------------------------------------------------------


def rule_options(recipe: Any) -> OptionValues:
    """Return the options of a recipe as rules read them, without those that the recipe adds."""
    values, typed = {}, {}
    for field in dataclasses.fields(recipe):
        name, value = field.name, getattr(recipe, field.name)
        if "group" in field.metadata:  # else it is an option that the recipe adds
            values[name] = value
            if value not in (None, "", field.default, recipe.embedded.get(name)):
                typed[name] = value
    overridden: set[str] = set()
    for cls in type(recipe).__mro__:
        if not cls.__module__.startswith("finetune.recipe."):
            overridden.update(vars(cls))
    return OptionValues(typed=typed, overridden=overridden, **values)


def validate(recipe: Any) -> None:
    """Convert lists, mappings and rows from Python to the text of their options, and check values.

    Raises:
        UserError: With a line for each invalid option or combination. Types are checked too,
            because values from Python did not pass the parser of the flags.
    """
    for name in ("dataset", "unlabelled"):
        rows = getattr(recipe, name, None)
        if rows is not None and not isinstance(rows, str):
            from finetune.data import memory

            setattr(recipe, name, memory.store(rows))
    hints = get_type_hints(type(recipe))
    report = Findings()
    for field in dataclasses.fields(recipe):
        name, form = field.name, field.metadata.get("metavar", "")
        with report.collect():
            value = format_option(getattr(recipe, name), form, f"--{name}")
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            setattr(recipe, name, value)
            if mistake := find_type_mistake(f"--{name}", value, hints[name]):
                report.error(mistake)
    report.raise_errors()
    check_options(rule_options(recipe))
