"""Rules about options of the recipe, of the training and of the run beside each other."""

from finetune.rules.devices import uses_fsdp
from finetune.rules.options import Mistakes, OptionValues
from finetune.rules.schedule import NEED_EVALUATIONS


def _refuse_length_beside_minutes(options: OptionValues) -> Mistakes:
    for name in ("num_train_epochs", "max_steps", "dry_run"):
        if options.max_minutes and options.typed.get(name):
            yield f"--max_minutes and --{name} are mutually exclusive: give one"


def _refuse_fsdp_and_adapters(options: OptionValues) -> Mistakes:
    if options.adapter is not None and uses_fsdp(options):
        yield "--adapter lora is not supported with --fsdp: use DistributedDataParallel"
    if options.final_epochs and (options.adapter is not None or uses_fsdp(options)):
        yield f"--final_epochs {options.final_epochs:g}: not supported with --adapter and with FSDP"
    if options.final_epochs and options.lr_scheduler_type in NEED_EVALUATIONS:
        yield (
            f"--final_epochs {options.final_epochs:g}: {options.lr_scheduler_type} needs "
            "evaluations, and the final epochs have none"
        )


def _refuse_refit(options: OptionValues) -> Mistakes:
    if not options.refit:
        return
    if options.final_epochs:
        yield (
            f"--refit: --final_epochs {options.final_epochs:g} trains the run on the validation "
            "rows already; give one of the two when the run is started"
        )
    if options.max_minutes:
        yield "--refit: --max_minutes is for one training; give --num_train_epochs"
    if uses_fsdp(options):
        yield "--refit: not supported with FSDP"
    if options.lr_scheduler_type in NEED_EVALUATIONS:
        yield f"--refit: {options.lr_scheduler_type} needs evaluations, and a refit has none"


RULES = (_refuse_length_beside_minutes, _refuse_fsdp_and_adapters, _refuse_refit)
