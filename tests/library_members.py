"""Every private or internal member of the libraries that this project relies on.

A release may rename any of them without notice. The tests go through the table, and scan our source
for members that are missing here.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from typing import Any, Literal

#: ``hook``: a method that we override and the library calls. ``member``: what can be imported, and
#: attributes of classes. ``mention``: what only the library's source shows, like an attribute of
#: instances, a key or an environment variable.
Kind = Literal["hook", "member", "mention"]


@dataclass(frozen=True)
class Member:
    """One member of a library.

    Attributes:
        owner: ``module`` or ``module:Class``.
        users: Our files that rely on it, separated by spaces.
        parameters: Separated by spaces: all of them of a hook, else those that we pass.
        source: ``module:Class.method`` of the library, whose source code must name it.
        behaviour: The test in ``tests/test_library_*.py`` that checks what it does, or that the
            library calls it.
    """

    kind: Kind
    owner: str
    name: str
    users: str
    reason: str
    parameters: str = ""
    source: str = ""
    behaviour: str = ""

    @property
    def path(self) -> str:
        """``module:Class.name``."""
        return f"{self.owner}{'.' if ':' in self.owner else ':'}{self.name}"

    @property
    def checks(self) -> list[str]:
        """What is checked: whether it is there, its signature, the library's source, behaviour."""
        there = self.kind in ("hook", "member")
        every = {"there": there, "signature": there and self.parameters}
        every |= {"source": self.source, "behaviour": self.behaviour}
        return [name for name, is_checked in every.items() if is_checked]

    def problems(self) -> list[str]:
        """Return what is not as expected in the installed library, a sentence each.

        Imports the library. Behaviour is left to the tests.
        """
        found, wanted = [], self.parameters.split()
        try:
            there = resolve(self.path) if "there" in self.checks else None
            if there is not None and wanted:
                names = [name for name in inspect.signature(there).parameters if name != "self"]
                if self.kind == "hook" and names != wanted:
                    found.append(f"{self.path} takes {names}, expected {wanted}")
                elif missing := ", ".join(name for name in wanted if name not in names):
                    found.append(f"{self.path} does not take {missing}")
            # that the source code defines a name is not enough: it must use it
            used = rf"(?<!def )(?<!class )\b{re.escape(self.name)}\b"
            if self.source and not re.search(used, inspect.getsource(resolve(self.source))):
                found.append(f"{self.source} does not name {self.name} any more")
        except (ImportError, AttributeError) as error:
            return [f"{self.path} is not there: {error}"]
        return found


def resolve(path: str) -> Any:
    """Return the object at ``module:Class.name``, or the module itself.

    Raises:
        ImportError: if there is no such module.
        AttributeError: if the module or the class has no such member.
    """
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in filter(None, names.split(".")):
        found = getattr(found, name)
    return found


_TRAINER = "transformers.trainer:Trainer"
_BUILDER = "datasets:DatasetBuilder"
_EVENTS = "transformers.trainer_callback:TrainerCallback"
_MODEL = "transformers.modeling_utils:PreTrainedModel"
_UTILS, _IMPORTS = "transformers.trainer_utils", "transformers.utils.import_utils"
_FSDP = "accelerate.utils.dataclasses:FullyShardedDataParallelPlugin"
_AGENT = "torch.distributed.elastic.agent.server.local_elastic_agent"
_SHARD, _BUCKET = "accelerate.data_loader:DataLoaderShard", "torch.distributed:GradBucket"
_OURS = "finetune/training/trainer.py"
_EVALUATION, _SAVING = "finetune/training/evaluation.py", "finetune/training/saving.py"
_ARGUMENTS = "finetune/training/arguments.py"
_CHECKS, _RESOLUTION = "finetune/training/checks.py", "finetune/training/resolution.py"
_CHECKPOINT, _METER = "finetune/training/keep_epochs.py", "finetune/training/speed.py"
_STOPS = "finetune/training/stopping.py"
_STOPPING, _PACKAGES = "finetune/training/early_stopping.py", "finetune/training/packages.py"
_FINITE = "finetune/training/nonfinite.py"
_MEMORY = "finetune/training/memory.py"
_REHEARSAL = "finetune/training/rehearsal.py"
_BOTH = {
    "_prepare_for_training": f"{_OURS} {_FINITE}",
    "get_batch_samples": f"{_OURS} {_FINITE} {_MEMORY}",
    "training_step": f"{_OURS} {_FINITE} {_MEMORY}",
}
_PROFILE, _LAUNCH = "finetune/training/profile.py", "finetune/pipeline/launch.py"
_ATTENTION, _UNPADDED = "finetune/models/cpu/attention.py", "finetune/models/cpu/unpadded.py"
_HEAD = "finetune/models/head.py"
_PACKING, _EXCHANGE = "finetune/models/cpu/packing.py", "finetune/models/cpu/exchange.py"
_JOB, _HUB = "finetune/runtime/distributed.py", "finetune/runtime/hub.py"
_FLAGS = "finetune/config/parser.py"
_DOWNLOAD = "huggingface_hub.file_download"
_EXAMPLES = "examples/native_ddp.py examples/accelerate_loop.py"
_METRICS = " ".join(
    f"metrics/{each}/{each}.py"
    for each in (
        *("accuracy", "average_precision", "f1", "mae", "matthews_correlation"),
        *("mean_absolute_error", "mse", "pearson", "precision", "quadratic_kappa", "r2"),
        *("recall", "rmse", "roc_auc", "spearman"),
    )
)
_CALLED, _CHOSEN = "test_the_library_calls_the_hook", "test_attention_is_chosen_by_name"
_FIELDS, _CACHED = "test_a_profiler_event_has_its_fields", "test_the_caches_are_laid_out_as_assumed"
_FLAGS_TEST = "test_the_parser_makes_actions_of_the_fields"
_BUCKET_TEST = "test_ddp_hands_its_buckets_to_a_hook"
_NAMED = "test_checkpoints_have_their_names"
_ANSWERS, _SHARDS = "test_small_functions_answer", "test_the_plugin_of_fsdp_has_its_attributes"

# fmt: off
MEMBERS = (
    # transformers: methods of Trainer that are overridden
    *(
        Member("hook", _TRAINER, name, _BOTH.get(name, _OURS), reason, parameters,
               behaviour=_CALLED)
        for name, reason, parameters in (
            ("_build_accelerator_args", "DDP keeps gradients once, compiled shapes are static",
             "kwargs"),
            ("_prepare_for_training", "DDP is there, whose gradients go through shared memory",
             "max_steps train_dataloader resume_from_checkpoint"),
            ("compute_loss", "a sum over rows is divided by the rows of the global step",
             "model inputs return_outputs num_items_in_batch"),
            ("get_batch_samples", "fetching is timed, rows are counted",
             "epoch_iterator num_batches device"),
            ("_get_num_items_in_batch", "counting rows is timed", "batch_samples device"),
            ("training_step", "forward and backward are timed", "model inputs num_items_in_batch"),
            ("get_train_dataloader", "steps are global batches", ""),
            ("get_total_train_batch_size", "a step may be a number of tokens", "args"),
            ("_wrap_model", "our DataParallel replaces torch's", "model training dataloader"),
        )
    ),
    *(
        Member("hook", _TRAINER, name, _EVALUATION, reason, parameters, behaviour=_CALLED)
        for name, reason, parameters in (
            ("_get_dataloader", "rows are evaluated sorted by length",
             "dataset description batch_size sampler_fn is_training dataloader_key"),
            ("_get_eval_sampler", "predictions keep the order of the data", "eval_dataset"),
            ("evaluate", "outputs of the model that is kept are not computed twice",
             "eval_dataset ignore_keys metric_key_prefix"),
        )
    ),
    *(
        Member("hook", _TRAINER, name, _SAVING, reason, parameters, behaviour=_CALLED)
        for name, reason, parameters in (
            ("_get_output_dir", "checkpoints are written aside, and deleted by us", "trial"),
            ("_load_rng_state", "another number of processes takes fresh ones", "checkpoint"),
            ("_load_optimizer_and_scheduler", "a failure names the checkpoint", "checkpoint"),
            ("_load_scaler", "a failure names the checkpoint", "checkpoint"),
            ("save_model", "FSDP gathers the whole model", "output_dir _internal_call"),
            ("_save", "each machine may write a whole run", "output_dir state_dict"),
            ("_issue_warnings_after_load", "a lack of weights is refused", "load_result"),
        )
    ),
    Member("hook", _TRAINER, "evaluation_loop", f"{_EVALUATION} {_MEMORY}",
           "the loss is that of the gathered rows, in the order of the data; memory may run out",
           "dataloader description prediction_loss_only ignore_keys metric_key_prefix",
           behaviour=_CALLED),
    Member("hook", _TRAINER, "_save_checkpoint", f"{_OURS} {_SAVING}",
           "a checkpoint is committed when it is whole, its weights are finite", "model trial",
           behaviour=_CALLED),
    Member("member", _TRAINER, "_prepare_inputs", f"{_MEMORY} {_REHEARSAL}",
           "the largest batch is tried", "inputs"),
    Member("hook", _TRAINER, "_get_grad_norm", _FINITE, "its norm is read before each step",
           "model grad_norm", behaviour=_CALLED),
    *(
        Member("mention", "accelerate.optimizer:AcceleratedOptimizer", name, _FINITE, reason,
               source=f"accelerate.optimizer:AcceleratedOptimizer.{source}")
        for name, source, reason in (
            ("_is_overflow", "step", "the schedule passes a step by"),
            ("optimizer", "step", "the optimizer of torch"),
        )
    ),
    *(
        Member("mention", "torch.optim:Adam", name, _FINITE, reason,
               source=f"torch.optim:Adam.{source}")
        for name, source, reason in (
            ("_step_supports_amp_scaling", "__init__", "whether it reads found_inf, on the device"),
            ("found_inf", "step", "above zero, the step leaves the weights alone"),
        )
    ),
    Member("member", _TRAINER, "_get_learning_rate", _FINITE, "the rate of a broken step is told",
           source=f"{_TRAINER}._run_epoch"),
    Member("mention", _TRAINER, "_initial_global_step", f"{_FINITE} {_SAVING}",
           "train_loss is the mean over the steps that were not skipped",
           source=f"{_TRAINER}._finalize_training"),
    Member("mention", "accelerate:Accelerator", "scaler", _FINITE, "whether fp16 is trained",
           source="accelerate:Accelerator.__init__"),
    Member("hook", _TRAINER, "_finalize_training", f"{_OURS} {_SAVING} {_FINITE}",
           "train_loss is the mean over the processes, the library deletes no checkpoint",
           "trial num_train_samples start_time",
           behaviour=_CALLED),
    Member("hook", _TRAINER, "_evaluate", _SAVING,
           "an evaluation that a signal stopped is noted in a checkpoint",
           "trial ignore_keys_for_eval skip_scheduler", behaviour=_CALLED),
    Member("hook", _TRAINER, "_run_epoch", _SAVING,
           "no step is trained, and no evaluation lost, at the end of an epoch that is resumed",
           behaviour=_CALLED),
    Member("hook", _TRAINER, "_maybe_log_save_evaluate", f"{_SAVING} {_FINITE}",
           "an epoch that was saved before its end is evaluated",
           "tr_loss grad_norm model trial epoch ignore_keys_for_eval start_time learning_rate",
           behaviour=_CALLED),
    Member("member", _TRAINER, "_push_from_checkpoint", _SAVING,
           "a checkpoint is pushed once it is committed", "checkpoint_folder",
           source=f"{_TRAINER}._save_checkpoint"),
    # transformers: what else of Trainer and of its arguments is relied on
    Member("member", _TRAINER, "train", f"{_OURS} {_MEMORY}", "it is extended",
           "resume_from_checkpoint trial ignore_keys_for_eval"),
    Member("member", _TRAINER, "_remove_unused_columns", f"{_OURS} {_SAVING} {_REHEARSAL}",
           "batches hold what the model takes", "dataset description"),
    Member("member", _TRAINER, "loss_is_scaled_for_ga", _OURS,
           "our loss is divided by the rows of the step already, and not by micro-batches again",
           source=f"{_TRAINER}.training_step"),
    *(
        Member("mention", _TRAINER, name, users, "a resumed run logs what it would have logged",
               source=f"{_TRAINER}._maybe_log_save_evaluate",
               behaviour="test_the_loss_since_the_last_log_is_in_a_checkpoint")
        for name, users in {
            "_globalstep_last_logged": f"{_SAVING} {_FINITE}",
            "_total_loss_scalar": _SAVING,
        }.items()
    ),
    Member("mention", _TRAINER, "_tr_loss", f"{_OURS} {_SAVING} {_FINITE}",
           "the loss since the last log, for train_loss averaged over the processes",
           source=f"{_TRAINER}._finalize_training", behaviour="test_the_rest_of_the_loss_is_kept"),
    *(
        Member("mention", _TRAINER, name, _OURS, reason, source=f"{_TRAINER}.{source}")
        for name, source, reason in (
            ("model_wrapped", "_prepare_for_training", "the model as DDP wraps it"),
            ("is_fsdp_enabled", "evaluation_loop", "whether the model is sharded"),
            ("dynamo_plugin", "_build_accelerator_args", "compiled shapes are static"),
            ("kwargs_handlers", "_build_accelerator_args", "DDP is given an option"),
        )
    ),
    Member("mention", _TRAINER, "compute_loss_func", _OURS,
           "with one, the rows of the global step are counted",
           source=f"{_TRAINER}._get_num_items_in_batch", behaviour="test_rows_are_counted"),
    Member("mention", "transformers.trainer_callback:TrainerState", "log_history",
           f"{_METER} {_FINITE}",
           "speed is added to the entry that on_log was called for",
           source=f"{_TRAINER}.log", behaviour="test_each_logged_loss_has_its_throughput"),
    Member("hook", "transformers.training_args:TrainingArguments", "__post_init__", _ARGUMENTS,
           "the batch and the precision are resolved before the device is touched",
           behaviour="test_construction_resolves_the_arguments"),
    Member("hook", "transformers.training_args:TrainingArguments", "should_save", _ARGUMENTS,
           "no process writes while a trainer is built", source=f"{_TRAINER}.__init__",
           behaviour="test_no_process_writes_while_a_trainer_is_built"),
    Member("member", _TRAINER, "get_optimizer_cls_and_kwargs", _EXAMPLES,
           "the loops have the optimizer of the trainer", "args model"),
    Member("member", "transformers.training_args:TrainingArguments", "get_warmup_steps", _EXAMPLES,
           "the loops warm up like the trainer", "num_training_steps"),
    # transformers: events of callbacks
    *(
        Member("hook", _EVENTS, name, users, reason, "args state control kwargs", behaviour=_CALLED)
        for name, users, reason in (
            ("on_train_begin", f"{_CHECKPOINT} {_METER} {_PROFILE} {_STOPPING} {_SAVING}",
             "counts begin at zero"),
            ("on_step_end", f"{_METER} {_PROFILE} {_SAVING} {_REHEARSAL}",
             "steps are timed and profiled"),
            ("on_log", _METER, "each logged loss has its throughput"),
            ("on_prediction_step", f"{_METER} {_STOPS}",
             "the batches of an evaluation are told, and it is stopped between them"),
            ("on_epoch_begin", "finetune/data/image_batches.py", "each epoch has other crops"),
            ("on_epoch_end", f"{_CHECKPOINT} {_SAVING}", "not every epoch is saved"),
            ("on_evaluate",
             f"{_CHECKPOINT} {_METER} {_STOPPING} {_STOPS} finetune/pipeline/noise.py",
             "the best epoch is saved after all, evaluations without improvement are counted, "
             "and the history has their noise"),
            ("on_train_end", _PROFILE, "a profile that began is written"),
        )
    ),
    *(
        Member("mention", "transformers.trainer_callback:EarlyStoppingCallback", name, _STOPPING,
               reason, source="transformers.trainer_callback:EarlyStoppingCallback",
               behaviour="test_early_stopping_is_kept_in_a_checkpoint")
        for name, reason in {
            "early_stopping_patience_counter": "evaluations without improvement, also resumed",
            "attributes": "where a checkpoint has that number",
        }.items()
    ),
    Member("mention", "transformers.trainer_callback:TrainerState", "stateful_callbacks", _STOPPING,
           "what callbacks keep in a checkpoint, by class; one without a place there fails to save",
           source=f"{_TRAINER}._save_checkpoint",
           behaviour="test_early_stopping_is_kept_in_a_checkpoint"),
    Member("hook", _EVENTS, "on_predict", f"{_METER} {_STOPS}", "batches are counted anew",
           "args state control metrics kwargs", behaviour=_CALLED),
    Member("member", "transformers.trainer_callback:ProgressCallback", "on_log", _METER,
           "a bar without the dictionaries above it", "args state control logs kwargs"),
    # transformers: models and attention
    Member("mention", _MODEL, "_weight_conversions",
           "finetune/models/pretrained.py finetune/models/vision.py",
           "weights are saved under the names that Trainer reads them by",
           source="transformers.core_model_loading:revert_weight_conversion",
           behaviour="test_weights_keep_the_names_that_the_model_has"),
    Member("member", _MODEL, "_keys_to_ignore_on_save", _SAVING, "tied weights do not lack",
           source=f"{_TRAINER}._issue_warnings_after_load"),
    Member("member", _MODEL, "_no_split_modules", _OURS, "the units that FSDP shards"),
    Member("member", _MODEL, "is_activation_checkpointing", "finetune/models/cpu/kernels.py",
           "layers that are computed again keep their padding"),
    Member("member", "transformers.modeling_layers:GradientCheckpointingLayer",
           "gradient_checkpointing", _UNPADDED,
           "layers that are computed again keep their padding"),
    Member("member", _MODEL, "set_attn_implementation", _ATTENTION, "a model takes our attention",
           "attn_implementation", behaviour=_CHOSEN),
    Member("member", "transformers.configuration_utils:PreTrainedConfig", "_attn_implementation",
           f"{_ATTENTION} finetune/models/pretrained.py", "which attention a model has",
           behaviour=_CHOSEN),
    Member("member", "torch.serialization", "get_unsafe_globals_in_checkpoint",
           "finetune/training/pickles.py", "code in a checkpoint is found without loading it", "f"),
    Member("member", "torch.distributed.checkpoint.metadata", "BytesStorageMetadata",
           "finetune/training/pickles.py", "what is no tensor in a shard is a pickle",
           source="torch.distributed.checkpoint.planner_helpers:_create_read_items"),
    *(
        Member("member", "torch.distributed.tensor", name, _HEAD, reason)
        for name, reason in {
            "DTensor": "weights that FSDP has sharded",
            "Replicate": "a factor that every process has whole",
        }.items()
    ),
    Member("member", "transformers.trainer_pt_utils", "safe_globals",
           "finetune/training/pickles.py", "what Trainer lets a random state hold",
           source=f"{_TRAINER}._load_rng_state"),
    Member("member", "transformers:AttentionInterface", "register", _ATTENTION,
           "our attention has a name", "key value", behaviour=_CHOSEN),
    Member("member", "transformers:AttentionMaskInterface", "register", _ATTENTION,
           "and the mask of torch's kernel", "key value", behaviour=_CHOSEN),
    Member("member", "transformers.integrations.sdpa_attention", "sdpa_attention_forward",
           _ATTENTION, "what is not plain is left to torch's kernel",
           "module query key value attention_mask dropout scaling is_causal"),
    Member("member", "transformers.masking_utils", "sdpa_mask", _ATTENTION,
           "a mask that is true where a token is seen, or None", "attention_mask",
           behaviour="test_a_mask_is_true_where_a_token_is_seen"),
    # transformers: files and small functions
    Member("member", "torch.optim.lr_scheduler", "LambdaLR", _SAVING,
           "a schedule that was changed is taken from the arguments"),
    Member("mention", "torch.optim.lr_scheduler:LRScheduler", "_last_lr", _SAVING,
           "the log has the rate of such a schedule",
           source="torch.optim.lr_scheduler:LRScheduler.get_last_lr"),
    Member("member", "transformers:TrainerState", "compute_steps", _SAVING,
           "intervals that were changed are in force", "args max_steps"),
    Member("member", _UTILS, "PREFIX_CHECKPOINT_DIR", f"{_SAVING} finetune/training/checkpoint.py",
           "checkpoints are called checkpoint-N", behaviour=_NAMED),
    Member("member", "transformers.trainer", "TRAINER_STATE_NAME",
           "finetune/training/checkpoint.py",
           "the file that has the steps of a checkpoint", behaviour=_NAMED),
    *(
        Member("member", _UTILS, name, users, reason)
        for name, users, reason in (
            ("SaveStrategy", _CHECKPOINT, "whether epochs are saved"),
            ("EvalLoopOutput", _EVALUATION, "rows are put back into their order"),
            ("TrainOutput", f"{_OURS} {_SAVING} {_MEMORY}", "its type"),
            ("PredictionOutput", f"{_EVALUATION} finetune/pipeline/assess.py", "its type"),
        )
    ),
    Member("member", "transformers.utils", "SAFE_WEIGHTS_NAME", _SAVING, "the file of the weights"),
    Member("member", "transformers.integrations.integration_utils",
           "get_available_reporting_integrations", _PACKAGES, "--report_to is refused early",
           behaviour=_ANSWERS),
    Member("member", "transformers.integrations.integration_utils", "INTEGRATION_TO_CALLBACK",
           _PACKAGES, "the trackers that there are", behaviour=_ANSWERS),
    Member("member", _IMPORTS, "is_in_notebook", _ARGUMENTS,
           "whether somebody watches a progress bar", behaviour=_ANSWERS),
    Member("member", _IMPORTS, "is_torch_tf32_available", _RESOLUTION,
           "tf32 is taken where there is some", behaviour=_ANSWERS),
    Member("member", "transformers.hf_argparser", "string_to_bool", _FLAGS,
           "flags of the run are read like those of the training", "v", behaviour=_FLAGS_TEST),
    Member("hook", "argparse:ArgumentParser", "error", f"{_FLAGS} finetune/cli/parser.py",
           "all mistakes are reported at once", "message", behaviour=_FLAGS_TEST),
    Member("mention", "argparse:ArgumentParser", "_option_string_actions", "finetune/cli/parser.py",
           "the nearest flag is suggested", source="argparse:_ActionsContainer"),
    Member("mention", "argparse:ArgumentParser", "_actions", _FLAGS,
           "defaults, spellings and help of the flags that HfArgumentParser makes",
           source="argparse:_ActionsContainer", behaviour=_FLAGS_TEST),
    # accelerate
    Member("member", "accelerate.data_loader", "prepare_data_loader", _OURS,
           "batches are put on the device, and not divided among the processes again",
           "device num_processes process_index put_on_device non_blocking",
           behaviour="test_a_prepared_loader_keeps_its_batches"),
    Member("mention", _SHARD, "set_epoch", "finetune/training/sampler.py",
           "each epoch has an order of its own", source=_SHARD,
           behaviour="test_a_prepared_loader_keeps_its_batches"),
    *(
        Member("member", f"accelerate.state:{state}", "_shared_state", _LAUNCH,
               "whether workers can be forked from this process", behaviour=_ANSWERS)
        for state in ("AcceleratorState", "PartialState")
    ),
    Member("mention", "accelerate.state:PartialState", "is_initialized", _JOB,
           "a process group that is there already is taken, with its timeout",
           source="accelerate.state:PartialState.__init__"),
    Member("member", "accelerate", "notebook_launcher", _LAUNCH, "workers of a notebook",
           "num_processes use_port"),
    Member("mention", "accelerate.utils.dataclasses:DistributedDataParallelKwargs",
           "gradient_as_bucket_view", _OURS, "DDP keeps gradients once",
           source="accelerate.utils.dataclasses:DistributedDataParallelKwargs"),
    Member("mention", _FSDP, "fsdp_version", _OURS, "units of FSDP 2 only are changed",
           source=_FSDP, behaviour=_SHARDS),
    Member("mention", _FSDP, "transformer_cls_names_to_wrap", _OURS,
           "the module around the embeddings is no unit, or accelerate fails",
           source=_FSDP, behaviour=_SHARDS),
    Member("member", _FSDP, "set_state_dict_type", _SAVING, "the whole model is saved",
           "state_dict_type", behaviour=_SHARDS),
    Member("mention", "accelerate.state", "ACCELERATE_MIXED_PRECISION",
           "finetune/runtime/precision.py finetune/runtime/distributed.py",
           "--precision auto takes what accelerate launch was told",
           source="transformers.training_args:TrainingArguments"),
    Member("mention", "accelerate.state", "ACCELERATE_USE_FSDP", _CHECKS,
           "FSDP in an accelerate config is refused on a CPU",
           source="accelerate.state:AcceleratorState"),
    # torch
    Member("hook", "torch.nn:DataParallel", "replicate", "finetune/training/parallel.py",
           "copies are kept during an evaluation", "module device_ids",
           source="torch.nn:DataParallel.forward"),
    Member("hook", "torch.nn:DataParallel", "train", "finetune/training/parallel.py",
           "copies are made anew when an evaluation begins", "mode",
           source="torch.nn:Module.eval", behaviour="test_eval_drops_the_copies"),
    Member("member", "torch.nn.parallel:DistributedDataParallel", "register_comm_hook", _EXCHANGE,
           "gradients are averaged in shared memory", "state hook", behaviour=_BUCKET_TEST),
    *(
        Member("member", _BUCKET, name, _EXCHANGE, reason, behaviour=_BUCKET_TEST)
        for name, reason in {
            "buffer": "the gradients of a bucket, flat",
            "index": "the first bucket begins a step",
            "is_last": "the processes wait for each other at the last one only",
        }.items()
    ),
    Member("mention", "torch.nn:Module", "_forward_hooks", f"{_PACKING} {_UNPADDED} {_HEAD}",
           "a hooked layer is kept; what scales the outputs of a head is found again",
           source="torch.nn:Module.register_forward_hook"),
    Member("mention", "torch.nn:Module", "_forward_pre_hooks", f"{_PACKING} {_UNPADDED}",
           "a hooked layer is kept, a model is hooked once",
           source="torch.nn:Module.register_forward_pre_hook"),
    Member("member", "torch:ops.mkldnn", "_reorder_linear_weight", _PACKING,
           "weights are laid out once", behaviour="test_a_packed_layer_multiplies"),
    Member("member", "torch:ops.mkldnn", "_linear_pointwise", _PACKING,
           "and multiplied with", behaviour="test_a_packed_layer_multiplies"),
    Member("member", "torch:ops.mkldnn", "_is_mkldnn_bf16_supported", _PACKING,
           "weights in bf16 are laid out where oneDNN multiplies in it",
           behaviour="test_a_packed_layer_multiplies"),
    Member("member", "torch:ops.aten", "native_dropout_backward", "finetune/models/cpu/dropout.py",
           "a mask is applied and scaled in one pass", behaviour="test_a_mask_is_applied"),
    Member("member", "torch._C._autograd", "DeviceType", _PROFILE, "where an event took place",
           behaviour=_FIELDS),
    *(
        Member("mention", "torch.autograd.profiler_util:FunctionEvent", name, _PROFILE, reason,
               source="torch.autograd.profiler_util:FunctionEvent", behaviour=_FIELDS)
        for name, reason in {
            "name": "which phase, operator or collective it is",
            "thread": "phases are those of the thread of the steps",
            "time_range": "when it began and ended, in microseconds",
            "device_type": "whether it is a kernel",
            "is_async": "whether it is a collective under way",
            "is_user_annotation": "whether it is a range and no kernel",
            "cpu_children": "an event around others may wait for a collective",
        }.items()
    ),
    Member("member", "torch.autograd.profiler_util", "FunctionEvent", _PROFILE, "its type"),
    Member("mention", "torch.profiler:profile", "step_num", _PROFILE, "how far the profile is",
           source="torch.profiler:profile.step"),
    Member("member", "torch.utils._pytree", "tree_map", _EVALUATION,
           "outputs may be tuples of arrays", "func tree", behaviour=_ANSWERS),
    Member("member", "torch.distributed.rendezvous", "rendezvous", _JOB,
           "the ranks meet where torchrun's agent keeps the store", "url"),
    Member("member", "torch.distributed.launcher.api", "LaunchConfig", _LAUNCH,
           "fresh workers of a notebook",
           "min_nodes max_nodes nproc_per_node run_id rdzv_backend rdzv_endpoint rdzv_configs "
           "max_restarts start_method"),
    Member("member", "torch.distributed.launcher.api", "elastic_launch", _LAUNCH,
           "fresh workers of a notebook", "config entrypoint"),
    *(
        Member("mention", _AGENT, name, _JOB, reason, source=f"{_AGENT}:LocalElasticAgent")
        for name, reason in {
            "TORCHELASTIC_RUN_ID": "whether torchrun started this process",
            "TORCHELASTIC_USE_AGENT_STORE": "whether the launcher keeps the store",
            "GROUP_WORLD_SIZE": "how many machines there are",
        }.items()
    ),
    # datasets, evaluate and the caches
    Member("member", "datasets.data_files", "SPLIT_KEYWORDS", "finetune/data/image_files.py",
           "folders of images that are splits have the names that `imagefolder` knows"),
    Member("member", "datasets.fingerprint:Hasher", "hash",
           "finetune/data/tokenize.py finetune/data/parts.py finetune/data/arrow.py",
           "what the cached tokens are known by", "value", behaviour=_ANSWERS),
    Member("mention", "datasets:Dataset", "_fingerprint",
           "finetune/data/parts.py finetune/data/arrow.py finetune/data/digests.py",
           "what combined columns are known by", source="datasets.arrow_dataset:Dataset.map"),
    Member("mention", "datasets:Dataset", "_indices", "finetune/data/arrow.py",
           "which stored rows these are; the library reads them one by one",
           source="datasets.arrow_dataset:Dataset.add_column"),
    Member("member", "datasets", "Dataset", "finetune/data/arrow.py",
           "a column added beside an indices mapping, none copied",
           "arrow_table info split indices_table fingerprint"),
    Member("member", "datasets.table", "concat_tables",
           "finetune/data/arrow.py", "likewise", "tables axis"),
    Member("member", "datasets.table:InMemoryTable", "from_arrays", "finetune/data/arrow.py",
           "likewise"),
    Member("hook", _BUILDER, "_info", "finetune/data/read.py", "types are those of the tables",
           source=f"{_BUILDER}.__init__"),
    Member("hook", _BUILDER, "_split_generators", "finetune/data/read.py", "a file is one split",
           "dl_manager", source=f"{_BUILDER}._download_and_prepare"),
    Member("hook", "datasets:ArrowBasedBuilder", "_generate_tables", "finetune/data/read.py",
           "the rows of a file", "kwargs",
           source="datasets:ArrowBasedBuilder._prepare_split_single"),
    Member("member", "datasets:Dataset", "map", "finetune/data/parts.py",
           "combined columns are cached under a fingerprint of ours",
           "batched remove_columns fn_kwargs new_fingerprint desc"),
    *(
        Member("member", module, name, _HUB, reason, parameters, behaviour=_CACHED)
        for module, name, reason, parameters in (
            ("datasets.naming", "camelcase_to_snakecase", "directory of a data set", "name"),
            ("datasets.config", "HF_DATASETS_CACHE", "where data sets are cached", ""),
            ("datasets.config", "DATASET_INFO_FILENAME", "a cached data set is whole", ""),
            (_DOWNLOAD, "repo_folder_name", "directory of a model", "repo_id repo_type"),
            ("huggingface_hub.constants", "HF_HUB_CACHE", "where models are cached", ""),
            ("huggingface_hub.constants", "HF_HUB_OFFLINE", "read once, at the import", ""),
        )
    ),
    Member("hook", "evaluate:EvaluationModule", "_info", _METRICS, "what a metric takes",
           source="evaluate:EvaluationModule.__init__", behaviour="test_a_metric_is_called"),
    Member("hook", "evaluate:EvaluationModule", "_compute", _METRICS, "what a metric gives",
           "predictions references kwargs", source="evaluate:EvaluationModule.compute",
           behaviour="test_a_metric_is_called"),
    Member("member", "evaluate", "load", "finetune/recipe/scoring.py",
           "metrics are loaded by path, copied into a cache by their content",
           "path keep_in_memory", behaviour="test_a_metric_is_copied_by_its_content"),
)
# fmt: on
