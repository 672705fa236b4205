"""Rules about options of the recipe, of the training and of the run beside each other."""

from finetune.rules.devices import uses_fsdp
from finetune.rules.options import Mistakes, Options


def _refuse_length_beside_minutes(options: Options) -> Mistakes:
    for name in ("num_train_epochs", "max_steps", "dry_run"):
        if options.max_minutes and options.typed.get(name):
            yield f"--max_minutes and --{name} are mutually exclusive: give one"


def _refuse_sharded_adapter(options: Options) -> Mistakes:
    if options.adapter is not None and uses_fsdp(options):
        yield "--adapter lora is not supported with --fsdp: use DistributedDataParallel"


def _refuse_final_epochs(options: Options) -> Mistakes:
    if options.final_epochs and (options.adapter is not None or uses_fsdp(options)):
        yield f"--final_epochs {options.final_epochs:g}: not supported with --adapter and with FSDP"


RULES = (_refuse_length_beside_minutes, _refuse_sharded_adapter, _refuse_final_epochs)
