"""Rules about labels, their loss and metrics, and options that a step of the recipe ignores."""

from finetune.data.comma_list import split_values
from finetune.rules.options import Mistakes, OptionValues

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


RULES = (_refuse_unused, _refuse_for_words, _require_several_labels, _require_teacher)
