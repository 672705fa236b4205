"""Training arguments resolved for the launch and the device at hand: batch, precision, loading.

Importing this imports no torch: recipes name these arguments, and importing one must cost nothing.
"""

from __future__ import annotations

from typing import Any

from finetune.errors import UserError
from finetune.runtime import distributed

#: Training arguments of which one is enough: the last that is named replaces the others.
BATCH_SIZES = ("global_batch_size", "per_device_train_batch_size", "max_tokens_per_batch")


def resolve(values: Any) -> None:
    """Fill in what depends on launch and device, in place; doing it again changes nothing.

    ``values`` are training arguments, or their values before they are built.

    Raises:
        UserError: if a global batch does not divide.
    """
    _resolve_batch(values)
    device_type = distributed.device_type(values.use_cpu)
    _resolve_precision(values, device_type)
    # batches are collated and copied while the GPU computes
    if values.dataloader_num_workers is None:
        values.dataloader_num_workers = 2 if device_type == "cuda" else 0
    pinned = device_type == "cuda" and values.dataloader_pin_memory
    if pinned and values.accelerator_config is None:
        values.accelerator_config = {"non_blocking": True}
    if values.label_names is None:  # the library looks for them in the signature of `forward`
        values.label_names = ["labels"]
    if values.per_device_eval_batch_size is None:
        values.per_device_eval_batch_size = 32 if device_type == "cpu" else 128


def _resolve_precision(values: Any, device_type: str) -> None:
    from transformers.utils.import_utils import is_torch_tf32_available

    from finetune.runtime import precision

    if values.bf16 or values.fp16:
        return
    precision_name = values.precision
    if precision_name == "auto":
        precision_name = precision.automatic(device_type)
        if values.tf32 is None and device_type == "cuda" and is_torch_tf32_available():
            values.tf32 = True
    values.bf16, values.fp16 = precision_name == "bf16", precision_name == "fp16"


def _resolve_batch(values: Any) -> None:
    if values.max_tokens_per_batch is not None:
        values.per_device_train_batch_size = 8  # the library's; it divides no data
        values.global_batch_size = None
        return
    devices = distributed.devices_in_training(values.use_cpu)
    shares = devices * values.gradient_accumulation_steps
    if values.per_device_train_batch_size is not None:
        values.global_batch_size = values.per_device_train_batch_size * shares
        return
    if values.global_batch_size is None:
        values.global_batch_size = 8 * shares  # the library's 8 rows a device
    values.per_device_train_batch_size, rest = divmod(values.global_batch_size, shares)
    if rest or not values.per_device_train_batch_size:
        below = values.global_batch_size // shares * shares
        nearest = f"{below} or {below + shares}" if below else f"{shares}"
        raise UserError(
            f"a global batch of {values.global_batch_size} rows does not divide into {devices} "
            f"devices x {values.gradient_accumulation_steps} accumulation steps; the nearest that "
            f"does: --global_batch_size {nearest}"
        )
