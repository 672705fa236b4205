"""Learning rate, epochs and warm-up of a pretrained model, by rows and trained parameters.

docs/decisions/defaults.md has the measurements behind these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from finetune.rules.batch import BATCH_SIZES
from finetune.rules.schedule import MIN_STEPS, NEED_EVALUATIONS
from finetune.training.options import SCHEDULE

if TYPE_CHECKING:
    from finetune.recipe.base import Recipe

#: Learning rates of full fine-tuning, by the parameters of the layers, in millions.
_RATES = ((30, 1e-4), (150, 3e-5), (math.inf, 1e-5))
#: Those for labels of words, most of which have no entity.
_WORD_RATES = ((30, 3e-4), (150, 5e-5), (math.inf, 2e-5))
_ADAPTER_FACTOR = 10  # Schulman et al., "LoRA Without Regret", 2025
_HEAD_ONLY_RATE = 1e-3
#: With fewer training rows, or fewer than :data:`_MIN_ROWS_OF_CLASS` a class, the mean of the last
#: states is a better start than the first state; and the learning rate is multiplied.
_MIN_ROWS_OF_PROBE, _MEAN_FACTOR = 500, 0.5
_STEP_ROWS = 32
#: With fewer rows, an epoch of such steps has one or two, or none.
_BATCH, _MIN_ROWS_OF_BATCH, _SMALL_BATCH = "global_batch_size", 96, 8
#: Optimizer steps: so many, and more for each class or target; within these epochs.
_STEPS, _STEPS_OF_OUTPUT = 100, 5
_MIN_EPOCHS, _MAX_EPOCHS = 3, 20
_WARMUP, _MIN_STEPS_TO_WARM = 0.1, 10  # with fewer --max_steps, a step of a tenth of them is much
#: With fewer validation rows, or fewer training rows a class, the last epoch is better than the one
#: that these validation rows choose.
_MIN_VALIDATION_ROWS, _MIN_ROWS_OF_CLASS = 100, 30
_BEST = "load_best_model_at_end"
#: Where rows are few, epochs at the end in which the validation rows are trained on, too.
_FINAL, _FINAL_EPOCHS = "final_epochs", 3.0


def _resolve(recipe: Any, step_rows: int) -> dict[str, Any]:
    """Return the values of :data:`~finetune.training.options.SCHEDULE`.

    Args:
        recipe: The recipe, whose rows are loaded.
        step_rows: The rows of an optimizer step.
    """
    from finetune.models import families

    rows = _count_rows(recipe)
    parameters = families.count_layer_parameters(recipe.model_config)
    rates = _WORD_RATES if recipe.labels_words else _RATES
    rate = next(rate for size, rate in rates if parameters <= size * 1e6)
    if recipe.adapter is not None:
        rate *= _ADAPTER_FACTOR
    if recipe.freeze == "base":
        rate = _HEAD_ONLY_RATE
    elif recipe.initial_head == "mean":
        rate *= _MEAN_FACTOR
    steps = _STEPS + _STEPS_OF_OUTPUT * recipe.resolved_task.width
    epochs = min(max(math.ceil(steps * step_rows / rows), _MIN_EPOCHS), _MAX_EPOCHS)
    epochs = max(epochs, math.ceil(MIN_STEPS / max(1, rows // step_rows)))
    return {"learning_rate": rate, "num_train_epochs": float(epochs), "warmup_steps": _WARMUP}


def _set_values(recipe: Recipe, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training arguments that the recipe or the user sets.

    The values of a recipe are for its own model: with another ``--model`` they are not used. A
    recipe with a learning rate has no warm-up unless it says so.
    """
    values = recipe.defaults()
    if values.get("learning_rate") is not None:
        values = {"warmup_steps": 0, **values}
    model = type(recipe).__dataclass_fields__.get("model")
    if model is not None and model.default not in ("", recipe.model):  # type: ignore[attr-defined]
        values = {name: value for name, value in values.items() if name not in SCHEDULE}
    return values | dict(typed)


def _unset_schedule(values: Mapping[str, Any]) -> list[str]:
    return [name for name in SCHEDULE if values.get(name) is None]


def may_shrink_batch(recipe: Recipe, typed: Mapping[str, Any]) -> bool:
    """Return whether the rows of a step depend on how many rows there are."""
    has_schedule = not _unset_schedule(_set_values(recipe, typed))
    return not (has_schedule or set(BATCH_SIZES) & set(typed))


def unset_names(recipe: Recipe, typed: Mapping[str, Any]) -> list[str]:
    """Return the names in :data:`SCHEDULE` that neither the recipe nor the user sets, and where
    rows are few ``global_batch_size``, and unless somebody asks for the best epoch,
    ``load_best_model_at_end`` and ``final_epochs``.

    Args:
        recipe: The recipe, whose rows are loaded.
        typed: The training arguments of the user and of ``--embedded``.
    """
    values = _set_values(recipe, typed)
    names = _unset_schedule(values)
    if may_shrink_batch(recipe, typed) and _count_rows(recipe) < _MIN_ROWS_OF_BATCH:
        names.append(_BATCH)
    is_asked = bool(typed.get(_BEST)) or "metric_for_best_model" in typed
    is_asked = is_asked or values.get("early_stopping_patience") is not None
    if not is_asked and _has_few_rows(recipe):
        if _BEST not in typed:
            names.append(_BEST)
        if values.get(_FINAL) is None and _may_use_validation_rows(recipe, values):
            names.append(_FINAL)
    return names


def choose_head(recipe: Any) -> str:
    """Return the start of a new last layer: ``--head``, or if it is unset ``mean`` where rows are
    few, else ``probe``; ``random`` if the recipe has no such option. ``mean`` is ``probe`` if the
    model has no new head, or random weights.

    Args:
        recipe: The recipe, whose rows are loaded.
    """
    import torch

    from finetune.models import pretrained

    head: str | None = getattr(recipe, "head", "random")
    if head is None:
        head = "mean" if _reads_mean(recipe) else "probe"
    if head == "mean":
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # more of them could make a process hang that is forked later
        try:
            model = recipe.build_model(recipe.labels)
        finally:
            torch.set_num_threads(threads)
        is_new = getattr(model, pretrained.FRESH_HEAD, False)
        if not (is_new and pretrained.is_pretrained(model)):
            if recipe.head is not None:
                reason = "the model has a head for these labels, or random weights"
                recipe.note(f"--head mean adds no layer: {reason}")
            return "probe"
    return head


def _reads_mean(recipe: Any) -> bool:
    """Return whether the default may be a head that reads the mean."""
    from finetune.models import mean_layer

    has_numbers = recipe.resolved_task.label_kind == "numbers"
    if has_numbers and recipe.text_columns is not None:  # as of the similarity of two texts
        return False
    others = (recipe.adapter, recipe.freeze, recipe.teacher)  # which it was not measured with
    if not mean_layer.can_have(recipe.model_config) or any(others):
        return False
    min_rows: int = max(_MIN_ROWS_OF_PROBE, _MIN_ROWS_OF_CLASS * recipe.resolved_task.width)
    return len(recipe.splits["train"]) < min_rows


def _may_use_validation_rows(recipe: Any, values: Mapping[str, Any]) -> bool:
    """Return whether the default may be to train on the validation rows, after their scores.

    It was measured for classes. The user neither gives these rows nor sets the length.
    """
    from finetune.rules.devices import uses_fsdp  # imports torch

    if recipe.loaded.validated_in != "train" or not recipe.resolved_task.has_one_class:
        return False
    if values.get("num_train_epochs") is not None or values.get("max_steps", -1) > 0:
        return False
    if values.get("max_minutes") is not None or values.get("refit"):
        return False
    if values.get("lr_scheduler_type") in NEED_EVALUATIONS:
        return False
    if getattr(recipe, "adapter", None) is not None:
        return False
    return not uses_fsdp(SimpleNamespace(fsdp=values.get("fsdp")))


def _has_few_rows(recipe: Recipe) -> bool:
    is_few = len(recipe.splits["train"]) < _MIN_ROWS_OF_CLASS * len(recipe.labels)
    return is_few or len(recipe.splits["validation"]) < _MIN_VALIDATION_ROWS


def _count_rows(recipe: Recipe) -> int:
    """Return the number of rows that are trained on."""
    return len(recipe.splits["train"]) + len(recipe.unlabelled_rows or ())


def with_schedule(
    recipe: Any, defaults: dict[str, Any], typed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return training arguments with the values of :func:`_resolve`, and with the precision that
    the model needs, if it is a pretrained one.

    Args:
        recipe: The recipe, whose rows are loaded.
        defaults: The training arguments of the recipe.
        typed: Those of the user and of ``--embedded``.
    """
    from finetune.models import families
    from finetune.training.arguments import argument_values

    config = recipe.model_config
    if config is None:
        return defaults
    if config.model_type in families.OVERFLOWING:
        defaults["precision"] = "fp32"
    names = unset_names(recipe, typed)
    if not set(SCHEDULE) & set(names):
        return defaults
    if _BATCH in names:
        defaults[_BATCH] = min(_SMALL_BATCH, len(recipe.splits["train"]))
    values = argument_values(defaults, typed)
    resolved = _resolve(recipe, values.global_batch_size or _STEP_ROWS)
    if 0 < values.max_steps < _MIN_STEPS_TO_WARM:
        resolved["warmup_steps"] = 0
    if "num_train_epochs" in names:  # those of the table, which end well without a choice
        resolved[_BEST] = False
    resolved[_FINAL] = _FINAL_EPOCHS
    return defaults | {name: value for name, value in resolved.items() if name in names}


def describe(recipe: Recipe, values: Mapping[str, Any], typed: Mapping[str, Any]) -> list[str]:
    """Return sentences for the user about the values of :func:`with_schedule`.

    Args:
        recipe: The recipe, whose rows are loaded.
        values: The training arguments.
        typed: Those of the user and of ``--embedded``.
    """
    if recipe.model_config is None:
        return []
    names = unset_names(recipe, typed)
    rows, outputs = _count_rows(recipe), recipe.resolved_task.width
    texts = [f"{name} {values[name]:g}" for name in (*SCHEDULE, _BATCH) if name in names]
    sentences = []
    if texts:
        reason = f"chosen for {rows:,} rows, {outputs:,} outputs and the size of the model"
        sentences.append(f"{', '.join(texts)}: {reason}")
    if _BEST in names and "num_train_epochs" in names:
        count = len(recipe.splits["validation"])
        sentences.append(
            f"the model of the last epoch is saved: {rows:,} training and {count:,} validation "
            f"rows are too few to choose the best one (--{_BEST} true chooses)"
        )
    if _FINAL in names:
        sentences.append(
            f"{_FINAL} {values[_FINAL]:g}: rows are few, so the model is trained on the validation "
            f"rows, too, after they were scored (--{_FINAL} 0 turns this off)"
        )
    return sentences
