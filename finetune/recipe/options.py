"""The options of a recipe: groups of fields, as the help shows them, and what may be wrong in them.

A group is a plain dataclass; the recipes inherit from those that they need.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, get_type_hints

from finetune.data.comma_list import format_option, split_values
from finetune.errors import Report, UserError
from finetune.training.option_types import find_type_mistake


def option(default: Any, help: str, form: str | None = None) -> Any:
    """Return a field of a recipe: an option with its default and its help.

    Args:
        default: Its value where nothing is given.
        help: One line without the default, which the command line adds.
        form: How several values are written, ``NAME,NAME`` or ``NAME=VALUE,NAME=VALUE``, where
            the option takes them; in Python and YAML they may be a list, or a mapping.
    """
    metadata = {"help": help} | ({} if form is None else {"metavar": form})
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(kw_only=True)
class DataOptions:
    """Where rows come from, and how files are written; what is unset is detected."""

    help_group: ClassVar[str] = "data"
    dataset: str = option("", "data set on the Hub, or a local file, pattern of files or directory")
    dataset_revision: str | None = option(
        None, "commit, tag or branch of the data set on the Hub (unset: the newest)"
    )
    dataset_config: str | None = option(
        None, "configuration of a data set on the Hub that has several"
    )
    dataset_splits: str | None = option(
        None,
        "names of the splits in the source, if not train, validation and test; test=none does not "
        "read the test split, and splits off another one (a test set without labels)",
        "test=NAME,validation=NAME",
    )
    csv_quoting: Literal["auto", "minimal", "none"] = option(
        "auto",
        "quotation marks in a .csv or .tsv: minimal, they enclose fields; none, they are text",
    )
    csv_separator: str | None = option(
        None, "separator of the fields of a .csv or .tsv, such as ';' or tab (unset: detected)"
    )
    encoding: str | None = option(
        None, "encoding of a file of text, such as cp1252 (unset: detected)"
    )
    sheet: str | None = option(None, "sheet of a spreadsheet (unset: the first that has rows)")


@dataclasses.dataclass(kw_only=True)
class SplitOptions:
    """How rows become training, validation and test splits, and which are left out."""

    help_group: ClassVar[str] = "splits"
    train_samples: int | None = option(None, "train on this many rows, sampled by class")
    eval_samples: int | None = option(
        None, "evaluate on at most this many rows of validation and of test"
    )
    test_size: float | None = option(
        None, "size of a test set that is split off: a share or a number of rows (unset: 0.2)"
    )
    validation_size: float | None = option(
        None,
        "the same for validation, of the same rows (unset: 0.1 of those left, at most 10,000)",
    )
    group_column: str | None = option(
        None, "column of groups, such as authors or patients, that are kept within one split"
    )
    time_column: str | None = option(
        None, "column of dates or numbers: the newest rows become the test set, the next validation"
    )
    keep_contradictions: Literal["none", "first"] = option(
        "none", "training rows with the same text but different labels: drop all, or keep the first"
    )
    split_seed: int = option(42, "seed of the splits and of the sampled rows (not of the training)")
    relabel: str | None = option(
        None,
        "correct labels by a suspects.csv (of report or check) whose column new_label was filled "
        "in; several files are applied in order",
        "FILE,FILE",
    )
    exclude: str | None = option(None, "leave out all rows that such a file lists", "FILE,FILE")


@dataclasses.dataclass(kw_only=True)
class TrainingOptions:
    """What is trained, and what is measured."""

    help_group: ClassVar[str] = "training"
    loss_function: str | None = option(
        None, "loss that is trained, one of those of the task (unset: its first)"
    )
    class_weights: str = option(
        "none",
        "how much rows of a class count in the loss of training: balanced, none, or by name",
        "NAME=WEIGHT,NAME=WEIGHT",
    )
    metrics: str | None = option(
        None, "f1_macro, roc_auc, ./MINE.py and others (unset: those of the task)", "NAME,NAME"
    )


@dataclasses.dataclass(kw_only=True)
class LabelColumnOptions:
    """One column of labels, and how its values are read."""

    help_group: ClassVar[str] = "labels"
    label_column: str = option("label", "column that holds the label")
    label_map: str | None = option(
        None,
        "rename labels; labels with the same new name are merged",
        "LABEL=NAME,LABEL=NAME",
    )
    drop_invalid: bool = option(
        False, "drop rows without a text, an image or a label, instead of refusing them"
    )


@dataclasses.dataclass(kw_only=True)
class TaskOptions:
    """Labels of any kind, in one column or in several."""

    help_group: ClassVar[str] = "labels"
    label_columns: str | None = option(
        None,
        "several label columns instead: each of 0 and 1 (a class each), or of numbers",
        "NAME,NAME",
    )
    label_separator: str | None = option(
        None, "separator of several labels in a cell of --label_column, such as ';'"
    )
    thresholds: Literal["one", "label", "none"] = option(
        "one",
        "decision thresholds of multi-label tasks, fitted on validation: one for all labels, one "
        "per label, or none",
    )
    task: Literal["auto", "single_label", "multi_label", "regression", "ordinal"] = option(
        "auto", "kind of labels (auto: detected from the training rows)"
    )
    label_order: str | None = option(
        None, "classes from the lowest to the highest, for --task ordinal", "NAME,NAME,NAME"
    )


@dataclasses.dataclass(kw_only=True)
class DuplicateOptions:
    """Which training texts are left out because of others."""

    help_group: ClassVar[str] = "splits"
    drop_duplicates: Literal["exact", "near"] = option(
        "exact",
        "keep one of the training rows with the same text; near: also of nearly the same text",
    )
    drop_overlap: Literal["exact", "near"] = option(
        "exact",
        "drop training rows whose text is also in the data's own validation or test split; near: "
        "also nearly the same text",
    )


@dataclasses.dataclass(kw_only=True)
class TextOptions:
    """Columns of text, and how long texts are read."""

    help_group: ClassVar[str] = "text"
    text_column: str = option("text", "column that holds the text")
    text_columns: str | None = option(
        None, "several columns instead, of a pair for instance", "NAME,NAME"
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


@dataclasses.dataclass(kw_only=True)
class ModelOptions:
    """The model that is trained further."""

    help_group: ClassVar[str] = "model"
    model: str = option("", "name of a model on the Hub, a local directory, or embedded:NAME")
    model_revision: str | None = option(
        None, "commit, tag or branch of the model on the Hub (unset: the newest)"
    )


@dataclasses.dataclass(kw_only=True)
class DropoutOptions:
    """Dropout of an encoder of text."""

    help_group: ClassVar[str] = "model"
    hidden_dropout: float | None = option(
        None, "dropout of the hidden states (unset: the model's own)"
    )
    attention_dropout: float | None = option(
        0.0, "dropout of the attention probabilities; above 0 a CPU has no fused kernel for it"
    )


@dataclasses.dataclass(kw_only=True)
class ImageOptions:
    """The column of images, and what training changes in them."""

    help_group: ClassVar[str] = "image"
    image_column: str = option(
        "", "column that holds the image or its path (unset: one with a usual name)"
    )
    crop_scale: float = option(
        0.5, "least share of the area that random crops of training keep (1: no crops)"
    )
    horizontal_flip: bool = option(
        True, "mirror every other image of training; false where left and right mean something"
    )


def help_group(recipe: type, name: str) -> str:
    """Return the topic under which the help shows an option; empty for one that a recipe adds."""
    for cls in reversed(recipe.__mro__):
        if name in vars(cls).get("__annotations__", {}):
            return str(vars(cls).get("help_group", ""))
    return ""


def comma_lists(recipe: Any) -> dict[str, str]:
    """Return how the options that take several values are written, by name."""
    forms = {field.name: field.metadata.get("metavar", "") for field in dataclasses.fields(recipe)}
    return {name: form for name, form in forms.items() if "," in form}


# ---- mistakes ------------------------------------------------------------------------------------


def _is_size(size: float) -> bool:
    return 0 < size < 1 or (size >= 2 and float(size).is_integer())


_SIZE = "a share above 0 and below 1, or a number of rows, 2 or more"
_LAST_SEED = 2**32 - 3  # two more are made of it
_ROWS: tuple[Callable[[Any], bool], str] = (lambda rows: rows >= 1, "a number of rows, 1 or more")
_DROPOUT: tuple[Callable[[Any], bool], str] = (
    lambda probability: 0 <= probability < 1,
    "a probability, 0 or more and below 1",
)
#: Which values of the right type an option may have, and what a message calls them.
_RANGES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "train_samples": _ROWS,
    "eval_samples": _ROWS,
    "test_size": (_is_size, _SIZE),
    "validation_size": (_is_size, _SIZE),
    "split_seed": (lambda seed: 0 <= seed <= _LAST_SEED, f"a number from 0 to {_LAST_SEED}"),
    "label_separator": (bool, "a character such as ';'"),
    "max_length": (lambda tokens: tokens >= 3, "at least 3 tokens"),
    "preprocessing_num_workers": (lambda processes: processes >= 1, "1 process or more"),
    "hidden_dropout": _DROPOUT,
    "attention_dropout": _DROPOUT,
    "crop_scale": (lambda share: 0 < share <= 1, "a share of the area, above 0, at most 1"),
}


def validate(recipe: Any) -> None:
    """Write lists and rows in Python as the text of their options, and refuse mistakes.

    Raises:
        UserError: One line for each option with a value that it may not have, alone or beside
            another. Flags are typed by their parser; what comes from a notebook is not.
    """
    if not isinstance(recipe.dataset, str):
        from finetune.data import memory

        recipe.dataset = memory.store(recipe.dataset)
    report = Report()
    for name, form in comma_lists(recipe).items():
        with report.collect():
            setattr(recipe, name, format_option(getattr(recipe, name), form, f"--{name}"))
    report.raise_errors()
    hints, values = get_type_hints(type(recipe)), dict[str, Any]()
    for name in (field.name for field in dataclasses.fields(recipe)):
        values[name] = value = getattr(recipe, name)
        is_allowed, expected = _RANGES.get(name, (lambda _: True, ""))
        if mistake := find_type_mistake(f"--{name}", value, hints[name]):
            report.error(mistake)
        elif value is not None and not is_allowed(value):
            report.error(f"--{name} {value}: expected {expected}")
        elif isinstance(value, os.PathLike):
            setattr(recipe, name, os.fspath(value))
    report.raise_errors()
    if mistakes := _find_contradictions(recipe, values):
        raise UserError(*mistakes)


def _find_contradictions(recipe: Any, values: Mapping[str, Any]) -> list[str]:
    """Return a line for each two options that contradict each other."""
    set_values = {
        field.name: values[field.name]
        for field in dataclasses.fields(recipe)
        if values[field.name] not in (None, field.default, recipe.embedded.get(field.name))
    }
    mistakes = [
        f"--{name} {set_values[name]} and --{other} {values[other]}: give one of the two"
        for name, other in recipe.exclusive
        if name in set_values and values[other] is not None
    ]
    if values["metrics"] and recipe.own_metrics:
        mistakes.append(f"--metrics {values['metrics']}: the recipe computes its own")
    shares = [size for size in (values["test_size"], values["validation_size"]) if size]
    if sum(share for share in shares if share < 1) >= 1:
        mistakes.append(
            f"--test_size {shares[0]:g} and --validation_size {shares[1]:g}: nothing is left to "
            "train on; expected shares of less than 1 together"
        )
    if values.get("text_columns") and values.get("long_texts") == "windows":
        mistakes.append("--long_texts windows: reads one column, not --text_columns")
    elif values.get("text_columns") and values.get("truncation") == "head_tail":
        mistakes.append(
            "--truncation head_tail: expected head or tail with --text_columns, whose longest text "
            "is truncated first"
        )
    if values.get("label_order") is not None:
        names = split_values(values["label_order"])
        typed = f"--label_order {values['label_order']}"
        if (task := values.get("task")) not in ("auto", "ordinal"):
            mistakes.append(f"{typed}: the classes of --task {task} have no order")
        elif len(names) < 3 or len(set(names)) < len(names):
            mistakes.append(f"{typed}: expected three different classes or more, with commas")
    return mistakes
