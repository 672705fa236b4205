"""Rules about the rows of a step, and how they are drawn."""

from finetune.rules.options import Mistakes, OptionValues
from finetune.runtime import distributed

#: Training arguments that exclude each other.
BATCH_SIZES = ("global_batch_size", "per_device_train_batch_size", "max_tokens_per_batch")


def _require_equal_shares(options: OptionValues) -> Mistakes:
    sizes = [name for name in BATCH_SIZES if options.typed.get(name)]
    if len(sizes) > 1:
        yield f"--{' and --'.join(sizes)} are mutually exclusive: give one"
    rows = options.global_batch_size
    devices = distributed.devices_in_training(options.use_cpu)
    accumulation_steps = options.gradient_accumulation_steps
    shares = devices * accumulation_steps
    if options.max_tokens_per_batch or not rows or shares < 1 or rows % shares == 0:
        return
    smaller = rows // shares * shares
    nearest = f"{shares}"
    if smaller:
        nearest = f"{smaller} or {smaller + shares}"
    yield (
        f"--global_batch_size {rows} cannot be divided into {devices} devices x "
        f"{accumulation_steps} accumulation steps: give {nearest}"
    )


def _require_sampling(options: OptionValues) -> Mistakes:
    sampling = options.train_sampling_strategy
    tokens = options.max_tokens_per_batch
    if sampling == "batch_rebalance":  # steps would depend on the number of processes
        yield f"--train_sampling_strategy {sampling}: expected random, sequential, group_by_length"
    if tokens and sampling != "group_by_length":
        yield "--max_tokens_per_batch needs --train_sampling_strategy group_by_length"
    if options.class_sampling == "balanced" and (tokens or sampling == "sequential"):
        flags = "--global_batch_size, and --train_sampling_strategy random or group_by_length"
        yield f"--class_sampling balanced draws rows: it needs {flags}"


RULES = (_require_equal_shares, _require_sampling)
