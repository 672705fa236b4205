"""The batch of an optimizer step: which arguments set it, and how it is divided.

It imports no torch: recipes name these arguments, and importing a recipe must cost nothing.
"""

from __future__ import annotations

from typing import Any

from finetune import job
from finetune.errors import UserError

#: Training arguments of which one is enough: the last that is named replaces the others.
BATCH_SIZES = ("global_batch_size", "per_device_train_batch_size", "max_tokens_per_batch")


def resolve_batch(values: Any) -> None:
    """Divide the batch over devices and accumulation steps, in place.

    Doing it again changes nothing.

    Args:
        values: Training arguments, or their values before they are built.

    Raises:
        UserError: if a global batch does not divide.
    """
    if values.per_device_eval_batch_size is None:
        values.per_device_eval_batch_size = 32 if job.device_type(values.use_cpu) == "cpu" else 128
    if values.max_tokens_per_batch is not None:
        values.per_device_train_batch_size = 8  # the library's; it divides no data
        values.global_batch_size = None
        return
    devices = job.devices_in_training(values.use_cpu)
    shares = devices * values.gradient_accumulation_steps
    if values.per_device_train_batch_size is None:
        if values.global_batch_size is None:
            values.global_batch_size = 8 * shares  # the library's 8 rows a device
        values.per_device_train_batch_size, rest = divmod(values.global_batch_size, shares)
        if rest or not values.per_device_train_batch_size:
            below = values.global_batch_size // shares * shares
            nearest = f"{below} or {below + shares}" if below else f"{shares}"
            raise UserError(
                f"a global batch of {values.global_batch_size} rows does not divide into "
                f"{devices} devices x "
                f"{values.gradient_accumulation_steps} accumulation steps; the nearest "
                f"that does: --global_batch_size {nearest}"
            )
    else:
        values.global_batch_size = values.per_device_train_batch_size * shares
