"""Rules about the options of a recipe: source, columns and splits; labels, their loss and metrics;
options that a step of the recipe ignores; adapters and frozen layers.
"""

from importlib.util import find_spec

from finetune.data.comma_list import split_values
from finetune.rules.options import Mistakes, OptionValues
from finetune.runtime import DISTRIBUTION

#: Options that exclude each other.
_COLUMNS = (
    ("group_column", "time_column"),
    ("label_column", "label_columns"),
    ("text_column", "text_columns"),
)
#: Options that labels of words do not have.
_NOT_FOR_WORDS = (
    "text_columns",
    "label_columns",
    "label_separator",
    "label_order",
    "thresholds",
    "truncation",
    "teacher",
    "teacher_weight",
    "teacher_temperature",
    "unlabelled",
    "label_probabilities",
)


def _require_source(options: OptionValues) -> Mistakes:
    if options.dataset and "load" in options.overridden and "dataset" not in options.overridden:
        yield (
            f"--dataset {options.dataset}: the recipe loads its own data; if its load() reads "
            "self.dataset, declare `dataset: str = ...` in the class"
        )
    for name, other in _COLUMNS:
        other_value = getattr(options, other)
        if name in options.typed and other_value is not None:
            flags = f"--{name} {options.typed[name]} and --{other} {other_value}"
            yield f"{flags}: set only one of the two"
    if options.time_format and not options.time_column:
        yield f"--time_format {options.time_format}: needs --time_column NAME"


def _require_one_text(options: OptionValues) -> Mistakes:
    if options.text_columns and options.long_texts == "windows":
        yield "--long_texts windows: needs a single --text_column, not --text_columns"
    if options.truncation != "head_tail":
        return
    if options.text_columns or options.long_texts == "windows":
        yield "--truncation head_tail: needs a single --text_column and --long_texts cut"
    for name in ("prepare", "encoder"):
        if name in options.overridden and "truncation" not in options.overridden:
            yield f"--truncation head_tail: the recipe overrides {name}()"


def _refuse_unused(options: OptionValues) -> Mistakes:
    order = split_values(options.label_order or "")
    if len(set(order)) < len(order):
        yield f"--label_order {options.label_order}: expected each class once"
    if options.metrics and "compute_metrics" in options.overridden:
        yield f"--metrics {options.metrics}: the recipe overrides compute_metrics()"
    if options.loss_function and "loss" in options.overridden:
        yield f"--loss_function {options.loss_function}: the recipe overrides loss()"
    if options.layers and "build_model" in options.overridden:
        yield f"--layers {options.layers}: the recipe overrides build_model()"


def _refuse_for_words(options: OptionValues) -> Mistakes:
    if options.task != "tokens":
        return
    for name in _NOT_FOR_WORDS:
        if name in options.typed:
            yield f"--{name} {options.typed[name]}: does not apply to the labels of words"
    if "compute_metrics" in options.overridden:
        yield "compute_metrics() of the recipe: the scores of entities cannot be replaced"


def _require_several_labels(options: OptionValues) -> Mistakes:
    if "label_separator" in options.typed and options.label_columns:
        yield "--label_separator and --label_columns are mutually exclusive: give one"
    task = options.task
    if task == "auto" and options.label_order:
        task = "ordinal"
    if task in (None, "auto", "tokens"):
        return
    if "label_separator" in options.typed and task != "multi_label":
        yield f"--label_separator needs --task multi_label; found --task {task}"
    if options.label_columns and task not in ("multi_label", "regression"):
        yield f"--label_columns: a row has one label, with --task {task}: use --label_column"


def _require_teacher(options: OptionValues) -> Mistakes:
    for name in ("teacher", "unlabelled", "label_probabilities"):
        if getattr(options, name) == "":  # e.g. a variable of the shell that is not set
            yield f"--{name}: expected a value, found an empty text"
    if options.task == "tokens":  # which has none
        return
    for name in ("teacher_weight", "teacher_temperature", "unlabelled"):
        if name in options.typed and not options.teacher:
            yield f"--{name} {options.typed[name]}: needs --teacher RUN"


def _require_adapter(options: OptionValues) -> Mistakes:
    if options.adapter is not None and find_spec("peft") is None:
        yield f"--adapter lora needs peft: pip install '{DISTRIBUTION}[adapters]'"
    if options.adapter is not None and options.freeze:
        yield f"--freeze {options.freeze}: --adapter lora freezes all but the head"
    if options.adapter is not None and options.head == "mean":
        yield "--head mean: --adapter lora cannot store its layer; give --head probe"
    for name, value in options.typed.items():
        if name.startswith("lora_") and options.adapter is None:
            yield f"--{name} {value}: needs --adapter lora"


RULES = (
    _require_source,
    _require_one_text,
    _refuse_unused,
    _refuse_for_words,
    _require_several_labels,
    _require_teacher,
    _require_adapter,
)
