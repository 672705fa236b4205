"""Rules about options that do not fit the task, a :class:`~finetune.tasks.base.Task`."""

from typing import Any

from finetune.errors import counted
from finetune.rules.options import Mistakes, OptionValues


def _require_classes_to_weight(options: OptionValues, task: Any) -> Mistakes:
    spec = options.class_weights
    if spec == "none":
        return
    if not task.has_probabilities:
        yield f"--class_weights {spec}: the task {task.name} has no classes"
    elif task.label_kind == "labels" and "loss" in options.overridden:
        yield f"--class_weights {spec}: apply multi-label weights in your loss()"


def _require_one_class(options: OptionValues, task: Any) -> Mistakes:
    is_balanced = options.class_sampling == "balanced"
    if is_balanced and options.class_weights != "none":
        yield "--class_weights and --class_sampling balanced are mutually exclusive"
    elif is_balanced and not task.has_one_class:
        yield "--class_sampling balanced needs one class a row, or --class_weights balanced"
    if options.label_smoothing_factor and not task.has_one_class:
        yield "--label_smoothing_factor needs one class a row"


def _require_targets_of_teacher(options: OptionValues, task: Any) -> Mistakes:
    for name in ("teacher", "label_probabilities"):
        if getattr(options, name) and options.class_sampling == "balanced":
            yield f"--class_sampling balanced: not supported with --{name}"
    if options.label_probabilities and not task.has_one_class:
        yield "--label_probabilities needs one class a row"
    if "teacher_temperature" in options.typed and not task.has_probabilities:
        yield f"--teacher_temperature: the task {task.name} has no probabilities"


def _require_two_classes(options: OptionValues, task: Any) -> Mistakes:
    name = options.positive_label
    if name is None:
        return
    if task.positive_name is None:
        yield (
            f"--positive_label {name}: expected two classes, one for each row; found the task "
            f"{task.name} with {counted(task.width, 'output')}"
        )
    elif name not in task.labels:
        yield f"--positive_label {name}: expected {' or '.join(task.labels)}"


RULES = (
    _require_classes_to_weight,
    _require_one_class,
    _require_targets_of_teacher,
    _require_two_classes,
)
