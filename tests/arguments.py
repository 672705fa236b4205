"""Try every field of `transformers.TrainingArguments`, and every key of `accelerator_config`.

    python tests/arguments.py [WORDS]    # `make arguments`: train with each, print a table

Each value is typed in a run of its own, in one process and, where that may differ, in two under
torchrun. A run that ends is compared with one without the argument: predictions are the same, or
they differ, as `ATTEMPTS` says. So an argument that is silently ignored fails. A refusal is one
message, with exit status 2. Fields that a new release of transformers adds are tried with a value
of their type; a field without such a value fails until it has a line in `ATTEMPTS`.

With words, only lines that contain one of them are tried.
"""

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from transformers import SchedulerType, TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.training_args import OptimizerNames

Proof = Callable[[Path, str], bool]
#: Options of all runs; fast, with the same results on every processor.
BASE = (
    "--max_length 64 --learning_rate 3e-3 --num_train_epochs 2 --global_batch_size 16 "
    "--precision fp32 --disable_tqdm true --baseline false"
)
#: What a fork runs: this file, which trains without writing the report.
MODULE, TRAIN = "tests.arguments", "--train"
WORKERS = int(os.environ.get("WORKERS", 2))
#: Outcomes of a run: it ends with the predictions of the run without the value, or with others.
SAME, OTHER = "same", "other"
#: Either, for values that a table cannot know: of new fields, or that depend on the machine.
ANY = "any"
OUTCOMES = (SAME, OTHER, ANY)


@dataclass(frozen=True)
class Attempt:
    """A value of a field, or of a key of `accelerator_config`.

    Attributes:
        name: The field, or `accelerator_config.KEY`.
        value: As typed; words after it are other flags that only this run has.
        outcome: `SAME`, `OTHER`, `ANY`, or words of the refusal.
        given: Flags of this run and of the one it is compared with.
        in_two: Whether it is also tried in two processes.
        proof: Takes the directory and the output of a finished run, returns whether the argument
            had the effect that its documentation says.
        trains: Whether a run is refused only when the trainer is built.
    """

    name: str
    value: str
    outcome: str
    given: str = ""
    in_two: bool = False
    proof: Proof | None = None

    @property
    def words(self) -> str:
        field, _, key = self.name.partition(".")
        value = self.value
        if key:
            value = shlex.quote(json.dumps({key: json.loads(value)}))
        return f"{self.given} --{field} {value}".strip()


def history(key: str, *steps: int) -> Proof:
    """Return a proof that the history has a key, at these steps if there are any."""

    def prove(run: Path, output: str) -> bool:
        entries = json.loads((run / "run.json").read_text())["history"]
        logged = [entry["step"] for entry in entries if key in entry]
        return bool(logged) and logged == list(steps or logged)

    return prove


def files(pattern: str, count: int) -> Proof:
    """Return a proof that a run has so many files."""
    return lambda run, output: len(list(run.glob(pattern))) == count


def printed(text: str) -> Proof:
    return lambda run, output: text in output


def counts_tokens(run: Path, output: str) -> bool:
    """Whether the tokens of all steps were counted: without padding the same in each launch."""
    state = json.loads((run / "checkpoint-20" / "trainer_state.json").read_text())
    return state["num_input_tokens_seen"] == 6_513


def is_fp32(run: Path, output: str) -> bool:
    """Whether the saved weights are in fp32, and were not in bf16 before."""
    from safetensors.torch import load_file

    weights = load_file(run / "model.safetensors").values()
    return all(w.dtype.itemsize == 4 and bool((w != w.bfloat16()).any()) for w in weights)


ATTEMPTS = [
    Attempt("output_dir", "elsewhere", SAME),
    Attempt("per_device_train_batch_size", "16", "--per_device_train_batch_size"),
    Attempt("num_train_epochs", "1", OTHER),
    Attempt("max_steps", "5", OTHER),
    Attempt("learning_rate", "1e-3", OTHER),
    Attempt("lr_scheduler_type", "cosine", OTHER),
    Attempt("lr_scheduler_kwargs", "'{\"num_cycles\": 2}'", OTHER, "--lr_scheduler_type cosine"),
    Attempt("lr_scheduler_kwargs", "'{\"a\": 2}'", "--lr_scheduler_kwargs"),
    Attempt("warmup_steps", "5", OTHER),
    Attempt("optim", "sgd", OTHER),
    Attempt("optim_args", "momentum=0.9", OTHER, "--optim sgd"),
    Attempt("optim_args", "momentum=0.9", "--optim_args momentum=0.9"),
    Attempt("optim_args", "momentums=0.9 --optim sgd", "--optim_args momentums=0.9"),
    Attempt("weight_decay", "0.5", OTHER),
    Attempt("adam_beta1", "0.5", OTHER),
    Attempt("adam_beta2", "0.9", OTHER),
    Attempt("adam_epsilon", "1e-3", OTHER),
    Attempt("optim_target_modules", "attention mlp", "--optim_target_modules"),
    Attempt("gradient_accumulation_steps", "2", SAME, in_two=True),
    Attempt("average_tokens_across_devices", "false", "--average_tokens_across_devices"),
    Attempt("max_grad_norm", "0.1", OTHER),
    Attempt("label_smoothing_factor", "0.2", OTHER, in_two=True),
    Attempt("bf16", "true --precision auto", OTHER),
    Attempt("fp16", "true --precision auto", "--fp16"),
    Attempt("bf16_full_eval", "true", OTHER, in_two=True, proof=is_fp32),
    Attempt("fp16_full_eval", "true", "--fp16_full_eval"),
    Attempt("tf32", "true", "--tf32"),
    Attempt("activation_checkpointing", "true", SAME, in_two=True),
    Attempt(
        "activation_checkpointing_kwargs",
        "'{\"use_reentrant\": true}'",
        SAME,
        "--activation_checkpointing true",
    ),
    Attempt("activation_checkpointing_kwargs", "'{\"a\": true}'", "--activation_checkpointing"),
    Attempt("gradient_checkpointing", "true", SAME),
    Attempt(
        "gradient_checkpointing_kwargs",
        "'{\"use_reentrant\": true}'",
        SAME,
        "--gradient_checkpointing true",
    ),
    Attempt("gradient_checkpointing_kwargs", "'{\"a\": true}'", "--gradient_checkpointing"),
    Attempt("torch_compile", "true", SAME),
    Attempt("torch_compile_backend", "eager", SAME, in_two=True),
    Attempt("torch_compile_backend", "eagr", "--torch_compile_backend eagr"),
    Attempt("torch_compile_mode", "fast", "--torch_compile_mode fast"),
    Attempt("torch_compile_mode", "max-autotune-no-cudagraphs", SAME),
    Attempt("use_liger_kernel", "true", "--use_liger_kernel"),
    Attempt("liger_kernel_config", "'{\"rope\": true}'", "--liger_kernel_config"),
    Attempt("use_cache", "true", SAME),
    Attempt("neftune_noise_alpha", "5", OTHER, in_two=True),
    Attempt("neftune_noise_alpha", "5", OTHER, "--cpu_kernels off"),
    Attempt("torch_empty_cache_steps", "2", SAME),
    Attempt("auto_find_batch_size", "true", "--auto_find_batch_size"),
    Attempt("logging_strategy", "epoch", SAME, proof=history("loss", 10, 20)),
    Attempt("logging_steps", "5", SAME, proof=history("loss", 5, 10, 15, 20)),
    Attempt("logging_steps", "5", "--logging_steps", "--logging_strategy epoch"),
    Attempt("logging_first_step", "true", SAME, proof=history("loss", 1, 10, 20)),
    Attempt("log_on_each_node", "false", SAME),
    Attempt("logging_nan_inf_filter", "false", SAME),
    Attempt("include_num_input_tokens_seen", "all", SAME, proof=history("num_input_tokens_seen")),
    Attempt("include_num_input_tokens_seen", "non_padding", SAME, in_two=True, proof=counts_tokens),
    Attempt("include_num_input_tokens_seen", "true", SAME, proof=history("num_input_tokens_seen")),
    Attempt("include_num_input_tokens_seen", "some", "--include_num_input_tokens_seen some"),
    Attempt("log_level", "info", SAME, proof=printed("***** Running training *****")),
    Attempt("log_level", "loud", "--log_level"),
    Attempt("log_level_replica", "info", SAME, in_two=True),
    Attempt("disable_tqdm", "false", SAME),
    Attempt("report_to", "tensorboard", SAME, in_two=True, proof=files("tensorboard/*", 1)),
    Attempt("report_to", "mlflow tensorboard", SAME, proof=files("mlflow.db", 1)),
    Attempt("report_to", "none tensorboard", "--report_to none tensorboard"),
    Attempt("run_name", "mine", SAME),
    Attempt("project", "mine", SAME, "--report_to trackio", proof=files("trackio/*mine*db", 1)),
    Attempt("trackio_space_id", "me/mine", "--trackio_space_id"),
    Attempt("trackio_bucket_id", "me/mine", "--trackio_bucket_id"),
    Attempt("trackio_static_space_id", "me/mine", "--trackio_static_space_id"),
    Attempt("eval_strategy", "steps", SAME, "--load_best_model_at_end false"),
    Attempt(
        "eval_steps",
        "8",
        SAME,
        "--eval_strategy steps --load_best_model_at_end false",
        proof=history("eval_loss", 8, 16, 20),
    ),
    Attempt("eval_steps", "8", "--eval_steps"),
    Attempt("eval_delay", "2", SAME, proof=history("eval_loss", 20)),
    Attempt("per_device_eval_batch_size", "5", SAME, in_two=True),
    Attempt("prediction_loss_only", "true", "--prediction_loss_only"),
    Attempt("eval_on_start", "true", SAME, in_two=True, proof=history("eval_loss", 0, 10, 20)),
    Attempt("eval_do_concat_batches", "true", "--eval_do_concat_batches"),
    Attempt("eval_use_gather_object", "true", "--eval_use_gather_object", in_two=True),
    Attempt("eval_accumulation_steps", "1 --per_device_eval_batch_size 5", SAME, in_two=True),
    Attempt("include_for_metrics", "inputs loss --per_device_eval_batch_size 5", SAME, in_two=True),
    Attempt("include_for_metrics", "inputs", SAME),
    Attempt("include_for_metrics", "output", "--include_for_metrics output"),
    Attempt("batch_eval_metrics", "true", "--batch_eval_metrics"),
    Attempt("save_only_model", "true", SAME, proof=files("checkpoint-*/optimizer.pt", 0)),
    Attempt("save_strategy", "no", ANY, proof=files("checkpoint-*", 0)),
    Attempt("save_strategy", "best", SAME),
    Attempt(
        "save_steps",
        "6",
        SAME,
        "--save_strategy steps --load_best_model_at_end false",
        proof=files("checkpoint-18", 1),
    ),
    Attempt("save_steps", "6", "--save_steps"),
    Attempt("save_on_each_node", "true", SAME, in_two=True),
    Attempt("save_total_limit", "1", SAME, proof=files("checkpoint-*", 1)),
    Attempt("enable_jit_checkpoint", "true", "--enable_jit_checkpoint"),
    Attempt("push_to_hub", "true", "--push_to_hub"),
    Attempt("hub_token", "hf_secret", SAME),
    Attempt("hub_private_repo", "true", "--hub_private_repo"),
    Attempt("hub_model_id", "me/mine", "--hub_model_id"),
    Attempt("hub_strategy", "end", "--hub_strategy"),
    Attempt("hub_always_push", "true", "--hub_always_push"),
    Attempt("hub_revision", "mine", "--hub_revision"),
    Attempt("load_best_model_at_end", "false", OTHER, "--num_train_epochs 8 --learning_rate 2e-2"),
    Attempt("metric_for_best_model", "accuracy", ANY),
    Attempt("greater_is_better", "false", ANY, "--metric_for_best_model accuracy"),
    Attempt("ignore_data_skip", "true", "--ignore_data_skip"),
    Attempt("restore_callback_states_from_checkpoint", "true", SAME),
    Attempt("full_determinism", "true", SAME, in_two=True),
    Attempt("seed", "7", OTHER),
    Attempt("data_seed", "7", OTHER),
    Attempt("use_cpu", "true", SAME, in_two=True),
    Attempt("accelerator_config", "a.json", "a.json"),
    Attempt("accelerator_config", "'{\"split\": true}'", "split_batches"),
    Attempt("accelerator_config.split_batches", "true", "split_batches", in_two=True),
    Attempt("accelerator_config.split_batches", "false", SAME, in_two=True),
    Attempt("accelerator_config.dispatch_batches", "true", "dispatch_batches", in_two=True),
    Attempt("accelerator_config.dispatch_batches", "false", SAME, in_two=True),
    Attempt("accelerator_config.even_batches", "false", "even_batches", in_two=True),
    Attempt("accelerator_config.use_seedable_sampler", "false", "use_seedable_sampler"),
    Attempt("accelerator_config.non_blocking", "true", SAME, in_two=True),
    Attempt("accelerator_config.gradient_accumulation_kwargs", '{"num_steps": 4}', "num_steps"),
    Attempt(
        "accelerator_config.gradient_accumulation_kwargs",
        '{"sync_each_batch": true}',
        SAME,
        "--gradient_accumulation_steps 2",
        in_two=True,
    ),
    Attempt("accelerator_config.use_configured_state", "true", "use_configured_state"),
    Attempt("parallelism_config", "tp", "--parallelism_config"),
    Attempt("dataloader_drop_last", "true", "--dataloader_drop_last"),
    Attempt("dataloader_num_workers", "2", SAME, in_two=True),
    Attempt("dataloader_pin_memory", "false", SAME),
    Attempt("dataloader_persistent_workers", "true", SAME, "--dataloader_num_workers 1"),
    Attempt("dataloader_persistent_workers", "true", "--dataloader_persistent_workers"),
    Attempt("dataloader_prefetch_factor", "3", SAME, "--dataloader_num_workers 1"),
    Attempt("dataloader_prefetch_factor", "3", "--dataloader_prefetch_factor"),
    Attempt("dataloader_multiprocessing_context", "spawn", SAME, "--dataloader_num_workers 1"),
    Attempt("dataloader_multiprocessing_context", "fork", "--dataloader_multiprocessing_context"),
    Attempt("dataloader_in_order", "false", "--dataloader_in_order"),
    Attempt("remove_unused_columns", "false", SAME),
    Attempt("label_names", "labels other", "--label_names"),
    Attempt("train_sampling_strategy", "sequential", OTHER, in_two=True),
    Attempt("length_column_name", "tokens", "--length_column_name tokens"),
    Attempt("ddp_find_unused_parameters", "true", SAME, in_two=True),
    Attempt("ddp_bucket_cap_mb", "1", SAME, in_two=True),
    Attempt("ddp_broadcast_buffers", "false", SAME, in_two=True),
    Attempt("ddp_static_graph", "true", SAME, in_two=True),
    Attempt("ddp_backend", "gloo", SAME, in_two=True),
    Attempt("ddp_backend", "nccl", "--ddp_backend nccl", in_two=True),
    Attempt("ddp_timeout", "60", SAME, in_two=True),
    Attempt("fsdp", "full_shard", "--fsdp"),
    Attempt("fsdp_config", "'{\"min_num_params\": 1}'", "--fsdp_config"),
    Attempt("deepspeed", "ds.json", "--deepspeed"),
    Attempt("debug", "underflow_overflow", "--debug"),
    Attempt("debug", "underflow_overflow tpu_metrics_debug", "--debug"),
    Attempt("skip_memory_metrics", "false", SAME, in_two=True),
    Attempt("do_train", "true", "--do_train"),
    Attempt("do_eval", "true", "--do_eval"),
    Attempt("do_predict", "true", "--do_predict"),
    Attempt("resume_from_checkpoint", "nowhere", "--resume_from_checkpoint nowhere"),
    Attempt("local_rank", "1", "--local_rank"),
]
#: transformers 5.16 has only the other name of `activation_checkpointing`.
_INSTALLED = {field.name for field in dataclasses.fields(TrainingArguments)}
ATTEMPTS = [attempt for attempt in ATTEMPTS if attempt.name.partition(".")[0] in _INSTALLED]


def all_attempts() -> Iterator[Attempt]:
    """Yield those of `ATTEMPTS`, each optimizer and schedule, and fields without a line there."""
    yield from ATTEMPTS
    for optimizer in OptimizerNames:
        yield Attempt("optim", optimizer.value, ANY)
    for schedule in SchedulerType:
        yield Attempt("lr_scheduler_type", schedule.value, ANY)
    names = {attempt.name for attempt in ATTEMPTS}
    hints = get_type_hints(TrainingArguments)
    for field in dataclasses.fields(TrainingArguments):
        if field.name not in names:
            yield Attempt(field.name, derived_value(field, hints[field.name]), ANY)
    for field in dataclasses.fields(AcceleratorConfig):
        if (name := f"accelerator_config.{field.name}") not in names:
            yield Attempt(name, derived_value(field, field.type), ANY)


def derived_value(field: dataclasses.Field[Any], hint: Any) -> str:
    """Return a value of a field that is not its default; an empty string if its type has none."""
    if hint in (bool, bool | None):
        return str(not field.default).lower()
    if hint in (int, float, int | None, float | None):
        return str((field.default or 0) + 1)
    return ""


def missing_lines() -> list[str]:
    """Return what to add to `ATTEMPTS`: fields for which no value can be derived."""
    return [
        f"ATTEMPTS of {Path(__file__).name} needs a line for {attempt.name!r}: "
        f"Attempt({attempt.name!r}, VALUE, SAME, OTHER or words of the refusal)"
        for attempt in all_attempts()
        if not attempt.value
    ]


# ---- runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    status: int
    output: str
    directory: Path

    @property
    def message(self) -> str:
        """The first line of a refusal."""
        lines = [line for line in self.output.splitlines() if "error: " in line]
        return lines[0].partition("error: ")[2] if lines else ""


class Runs:
    """Trains in forks of a process that has imported everything, each set of flags once."""

    def __init__(self, directory: Path) -> None:
        from tests.acceptance import data
        from tests.warm import Servers

        self.directory = directory
        self._servers = Servers(directory)
        self._results: dict[tuple[str, int], Result] = {}
        data.write_reviews(directory / "reviews.csv")
        data.write_bert(directory / "bert")
        self("", 1)
        assert self("", 1).status == 0, self("", 1).output

    def __call__(self, words: str, processes: int) -> Result:
        """Return the result of a run with these flags in so many processes."""
        key = (words, processes)
        if key not in self._results:
            run = self.directory / f"{len(self._results)}-{processes}"
            self._results[key] = Result(0, "", run)  # takes the number
            self._results[key] = self._train(words, processes, run)
        return self._results[key]

    def _train(self, words: str, processes: int, run: Path) -> Result:
        place = run.with_name(f"{run.name}-directory")
        place.mkdir()
        typed = ["text", "--dataset", str(self.directory / "reviews.csv")]
        typed += ["--model", str(self.directory / "bert"), "--output_dir", str(run)]
        typed += shlex.split(f"{BASE} {words}")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        if "spawn" in words:  # would start the server again
            line = [sys.executable, "-m", "finetune", *typed]
        elif processes == 1:
            line = self._servers.words(MODULE, [TRAIN, *typed], environment)
        else:
            line = self._servers.torchrun([TRAIN, *typed], environment, module=MODULE)
        try:
            finished = subprocess.run(
                line, cwd=place, env=environment, capture_output=True, text=True, timeout=600
            )
        except subprocess.TimeoutExpired:
            return Result(124, "no end within ten minutes", run)
        if (place / "elsewhere").exists():
            (place / "elsewhere").rename(run)
        return Result(finished.returncode, finished.stdout + finished.stderr, run)

    def close(self) -> None:
        self._servers.close()


def difference(first: Path, second: Path) -> float:
    """Return the largest difference of a probability on validation and test rows."""
    import pandas as pd

    frames = [pd.read_parquet(path / "predictions.parquet") for path in (first, second)]
    columns = [name for name in frames[0] if name.startswith("probability")]
    return float((frames[0][columns] - frames[1][columns]).abs().max().max())


def judge(attempt: Attempt, result: Result, base: Result, processes: int) -> tuple[str, str]:
    """Return what happened, and what is wrong with it (an empty string if nothing is)."""
    is_refusal = attempt.outcome not in OUTCOMES
    # torchrun turns a status of 2 into 1 and adds its own traceback
    own_output = result.output.partition("torch/distributed/elastic")[0]
    if result.status:
        message = result.message
        if "Traceback" in own_output or not message or (processes == 1 and result.status != 2):
            return "FAILED", result.output[-300:]
        if attempt.outcome != ANY and (not is_refusal or attempt.outcome not in message):
            return f"refused: {message}", "expected " + attempt.outcome
        return f"refused: {message}", ""
    if is_refusal:
        return "works", f"expected a refusal with {attempt.outcome!r}"
    gap = difference(result.directory, base.directory)
    outcome = f"works: predictions differ by {gap:.1g}"
    if attempt.outcome == SAME and gap > 1e-5:
        return outcome, "expected the same predictions"
    if attempt.outcome == OTHER and gap < 1e-6:
        return outcome, "expected other predictions: it is ignored"
    try:
        has_effect = attempt.proof is None or attempt.proof(result.directory, result.output)
    except (OSError, LookupError):  # a file or a number that it looks for is not there
        has_effect = False
    return outcome, "" if has_effect else "it has not the documented effect"


def main(words: list[str]) -> int:
    """Print the table, and return the number of attempts that went wrong."""
    attempts = [a for a in all_attempts() if not words or any(w in a.words for w in words)]
    jobs = [(attempt, n) for attempt in attempts for n in (1, 2) if n == 1 or attempt.in_two]
    counts: Counter[str] = Counter()
    print("| argument | processes | outcome |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(WORKERS) as pool:
        runs = Runs(Path(place))
        for given in {attempt.given for attempt in attempts}:
            runs(given, 1)

        def run(job: tuple[Attempt, int]) -> tuple[str, str]:
            attempt, processes = job
            base = runs(attempt.given, 1)
            return judge(attempt, runs(attempt.words, processes), base, processes)

        for (attempt, processes), (outcome, fault) in zip(jobs, pool.map(run, jobs), strict=True):
            counts["FAULT" if fault else outcome.partition(":")[0]] += 1
            text = f"{outcome}. FAULT: {fault}" if fault else outcome
            cells = attempt.words, processes, text.replace("\n", " ").replace("|", "\\|")
            print("| {} | {} | {} |".format(*cells), flush=True)
        runs.close()
    faults = missing_lines()
    print("\n" + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    print("".join(f"FAULT: {line}\n" for line in faults), end="")
    return counts["FAULT"] + len(faults)


def train(words: list[str]) -> int:
    """Run the command line without the report, which takes longer than the training."""
    from finetune import cli
    from finetune.reporting import page

    page.write = lambda run: run.path
    return int(cli.main(words) or 0)


if __name__ == "__main__":
    if sys.argv[1:2] == [TRAIN]:
        sys.exit(train(sys.argv[2:]))
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    sys.exit(main(sys.argv[1:]) > 0)
