"""Recipe < embedded overrides < config file < flags, all read by one parser and checked alike."""

import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import DatasetDict
from transformers import TrainingArguments

from finetune.config.flags import USED, Flags
from finetune.config.settings import Settings, from_command_line, from_keywords, peek
from finetune.errors import Mistakes, UserError
from finetune.pipeline import provenance
from finetune.recipe import Recipe, TextClassification, catalog
from finetune.runtime import distributed, precision
from finetune.training.arguments import REFUSED, ArgumentValues, FinetuneArguments, resolved
from finetune.training.retired import RETIRED
from recipes.mnist import Mnist
from recipes.yelp import Yelp

RECIPES = catalog.names()


@pytest.fixture(scope="module")
def flags() -> Flags:
    return Flags(Yelp)


def config(path: Path, *lines: str) -> str:
    file = path / "options.yaml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


def settle(*words: str) -> Settings:
    return from_command_line("yelp", words)


def mistakes(*words: str) -> tuple[str, ...]:
    with pytest.raises(UserError) as refusal:
        _ = settle(*words).values
    return refusal.value.mistakes


# ---- precedence ------------------------------------------------------------------------------


def test_precedence(tmp_path: Path) -> None:
    file = config(tmp_path, "max_length: 128", "learning_rate: 3e-4")
    layers: list[tuple[list[str], int, float]] = [
        ([], 512, 2e-5),
        (["--embedded"], 384, 2e-4),
        (["--embedded", "--config", file], 128, 3e-4),
        (["--config", file, "--max_length", "64", "--learning_rate", "5e-4"], 64, 5e-4),
        (["--learning_rate", "5e-4", "--embedded", "--max_length", "64"], 64, 5e-4),
    ]
    for words, max_length, learning_rate in layers:
        settings = settle(*words)
        assert settings.recipe.max_length == max_length  # type: ignore[attr-defined]
        assert settings.values.learning_rate == learning_rate


def test_flags_win_over_the_file_wherever_they_stand(tmp_path: Path) -> None:
    file = config(tmp_path, "max_length: 128", "max_steps: 3")

    for words in (["--max_length", "64", "--config", file], ["--config", file, "--max_length=64"]):
        settings = settle(*words)
        assert settings.recipe.max_length == 64  # type: ignore[attr-defined]
        assert settings.values.max_steps == 3


def test_the_defaults_of_a_recipe_reach_the_arguments() -> None:
    draft = settle().values

    assert (draft.global_batch_size, draft.num_train_epochs) == (32, 4)
    assert (draft.weight_decay, draft.seed, draft.save_total_limit) == (0.01, 42, 3)
    assert (draft.eval_strategy, draft.save_strategy, draft.logging_steps) == ("epoch", "epoch", 10)
    assert draft.output_dir == "runs/yelp"
    assert settle("--output_dir", "elsewhere").output_dir == Path("elsewhere")


def test_overrides_are_what_embedded_changed_and_nobody_said() -> None:
    settings = settle("--embedded", "--train_samples", "100")

    assert settings.overrides == {
        name: value for name, value in Yelp.embedded.items() if name != "train_samples"
    }
    assert settings.given == {"embedded": True, "train_samples": 100}
    assert settle("--embedded", "false").overrides == {}


def test_embedded_in_a_file(tmp_path: Path) -> None:
    settings = settle("--config", config(tmp_path, "embedded: true"))

    assert settings.recipe.dataset == "embedded:imdb"


def test_a_recipe_without_embedded_data_says_so(tmp_path: Path) -> None:
    path = tmp_path / "bare.py"
    path.write_text("from finetune import Recipe\n\n\nclass Bare(Recipe):\n    pass\n")

    with pytest.raises(UserError, match=r"--embedded: the recipe .*bare.py' has no embedded data"):
        from_command_line(str(path), ["--embedded"])


@pytest.mark.parametrize("dry", [["--dry_run"], ["--dry-run"], ["--dry_run", "true"]])
def test_dry_run(dry: list[str]) -> None:
    assert settle(*dry).dry_run
    assert not settle().dry_run


# ---- flags -----------------------------------------------------------------------------------


def test_every_recipe_has_a_parser() -> None:
    assert len(RECIPES) >= 3


@pytest.mark.parametrize("name", RECIPES)
def test_every_training_argument_is_a_flag(name: str) -> None:
    cls = catalog.find(name)
    there = {each.name for each in dataclasses.fields(TrainingArguments) if each.init}
    parsed = set(Flags(cls).defaults)

    assert len(there) > 100
    assert there - set(REFUSED) <= parsed
    assert {"global_batch_size", "save_every"} <= parsed
    assert {each.name for each in dataclasses.fields(cls)} <= parsed


def test_dashes_and_underscores(flags: Flags) -> None:
    given = {"max_length": 9, "learning_rate": 0.1, "load_best_model_at_end": False}

    for mark in "_-":
        words = "--max_length 9 --learning_rate=0.1 --load_best_model_at_end no".replace("_", mark)
        assert flags.read(words.split()) == given


def test_negative_numbers(flags: Flags) -> None:
    words = ["--max_steps", "-1", "--weight_decay", "-0.5", "--learning_rate=-1e-5"]

    assert flags.read(words) == {
        "max_steps": -1,
        "weight_decay": -0.5,
        "learning_rate": -1e-5,
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--learning_rte", "unknown option --learning_rte; did you mean '--learning_rate'?"),
        ("--lr=1", "unknown option --lr; did you mean '--learning_rate'?"),
        ("--batch-size=1", "unknown option --batch-size; did you mean '--global_batch_size'?"),
        ("--bs=1", "unknown option --bs; did you mean '--global_batch_size'?"),
        ("--epochs=1", "unknown option --epochs; did you mean '--num_train_epochs'?"),
        ("--wd=1", "unknown option --wd; did you mean '--weight_decay'?"),
        ("--max-lenght=3", "unknown option --max-lenght; did you mean '--max-length'?"),
        ("--learn", "unknown option --learn"),  # nothing is guessed from a beginning
        ("--zzzzqqqq", "unknown option --zzzzqqqq"),
    ],
)
def test_an_unknown_flag_is_refused(word: str, message: str) -> None:
    (mistake,) = mistakes(word)

    assert mistake.startswith(message)


def test_several_unknown_flags_are_told_at_once() -> None:
    assert len(mistakes("--max_lenght", "3", "--sede", "1")) == 2


def test_a_word_that_is_no_flag_is_refused() -> None:
    assert mistakes("sentiment") == ("unexpected word 'sentiment'",)


WRONG_TYPES = [
    ("train_samples", "abc", "expected a whole number, found 'abc'"),
    ("train_samples", "1.5", "expected a whole number, found '1.5'"),
    ("learning_rate", "fast", "expected a number, found 'fast'"),
    ("hidden_dropout", "much", "expected a number, found 'much'"),
    ("drop_invalid", "maybe", "expected true or false, found 'maybe'"),
    ("embedded", "maybe", "expected true or false, found 'maybe'"),
    ("bf16", "maybe", "expected true or false, found 'maybe'"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG_TYPES)
def test_a_value_of_the_wrong_type(name: str, value: str, message: str, tmp_path: Path) -> None:
    assert mistakes(f"--{name}", value) == (f"--{name}: {message}",)
    file = config(tmp_path, f"{name}: {value}")
    assert mistakes("--config", file) == (f"{file}: '{name}': {message}",)


@pytest.mark.parametrize("name", ["eval_strategy", "lr_scheduler_type"])
def test_a_choice_that_there_is_not_lists_those_there_are(name: str) -> None:
    (mistake,) = mistakes(f"--{name}", "sometimes")

    assert mistake.startswith(f"--{name}: ")
    assert "'sometimes'" in mistake
    assert {"eval_strategy": "epoch", "lr_scheduler_type": "cosine"}[name] in mistake


def test_a_value_that_is_missing() -> None:
    assert mistakes("--learning_rate") == ("--learning_rate: expected one argument",)


def test_no_samples_are_refused(tmp_path: Path) -> None:
    message = "--train_samples 0: expected a number of rows, 1 or more"

    assert mistakes("--train_samples", "0") == (message,)
    assert mistakes("--config", config(tmp_path, "train_samples: 0")) == (message,)


@pytest.mark.parametrize("name", ["do_train", "do_eval", "do_predict"])
def test_what_the_verb_says_is_no_flag(name: str, tmp_path: Path) -> None:
    assert mistakes(f"--{name}") == (f"--{name}: not accepted: the subcommand implies it",)
    file = config(tmp_path, f"{name}: true")
    message = f"{file}: '{name}': not accepted: the subcommand implies it"
    assert mistakes("--config", file) == (message,)


@pytest.mark.parametrize("word", ["--local_rank=1", "--local-rank=1"])
def test_what_the_launcher_says_is_no_flag(word: str) -> None:
    (mistake,) = mistakes(word)

    assert mistake.startswith("--local_rank: not accepted: the launcher sets it; start with")


# ---- flags of older releases -------------------------------------------------------------------


GONE = (  # those that 4.57 had and 5.23 has not, but for `_n_gpu`, which was for nobody to set
    *("adafactor", "evaluation_strategy", "fp16_backend", "fp16_opt_level", "fsdp_min_num_params"),
    *("fsdp_transformer_layer_cls_to_wrap", "group_by_length", "half_precision_backend"),
    *("include_inputs_for_metrics", "include_tokens_per_second", "jit_mode_eval", "logging_dir"),
    *("mp_parameters", "no_cuda", "overwrite_output_dir", "past_index", "per_gpu_eval_batch_size"),
    *("per_gpu_train_batch_size", "push_to_hub_model_id", "push_to_hub_organization"),
    *("push_to_hub_token", "ray_scope", "save_safetensors", "torchdynamo", "tpu_metrics_debug"),
    *("tpu_num_cores", "use_ipex", "use_legacy_prediction_loop", "use_mps_device", "warmup_ratio"),
)


def test_every_argument_that_transformers_4_had_has_a_successor() -> None:
    there = {each.name for each in dataclasses.fields(FinetuneArguments)}
    assert set(GONE) <= set(RETIRED)
    assert there & set(RETIRED) == set()
    named = {word[2:] for each in RETIRED.values() for word in each.split() if word[:2] == "--"}
    assert len(named) > 10
    assert named <= there


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("group_by_length", None, "use --train_sampling_strategy group_by_length"),
        ("logging_dir", "logs", "set TENSORBOARD_LOGGING_DIR=DIRECTORY before the command"),
        ("warmup_ratio", "0.1", "use --warmup_steps with a share of the steps"),
        ("evaluation_strategy", "epoch", "use --eval_strategy"),
        ("no_cuda", None, "use --use_cpu"),
        ("overwrite_output_dir", None, "leave it out: a run that is in --output_dir is moved"),
    ],
)
def test_a_flag_of_an_older_release_is_answered_with_its_successor(
    name: str, value: str | None, said: str, tmp_path: Path
) -> None:
    for spelled in (f"--{name}", f"--{name.replace('_', '-')}"):
        (mistake,) = mistakes(spelled, *([value] if value else []))
        assert mistake.startswith(f"{spelled} is gone from transformers; {said}")
    file = config(tmp_path, f"{name}: {value or 'true'}")
    (mistake,) = mistakes("--config", file)
    assert mistake.startswith(f"{file}: '{name}' is gone from transformers; {said}")
    with pytest.raises(UserError, match=f"^'{name}' is gone from transformers; "):
        from_keywords("yelp", {name: value or True})
    with pytest.raises(UserError, match=f"^'{name}' is gone from transformers; "):
        Yelp().trainer(**{name: value or True})


# ---- what cannot work, and what has no effect --------------------------------------------------

IMPOSSIBLE = {
    "--seed -1": "a number from 0 to 4294967295",
    "--data_seed 4294967296": "a number from 0 to 4294967295",
    "--split_seed -1": "a number from 0 to",
    "--weight_decay -1": "0 or more",
    "--learning_rate nan": "0 or more",
    "--max_grad_norm -1": "0 or more",
    "--warmup_steps -1": "0 or more",
    "--adam_epsilon -1": "0 or more",
    "--adam_beta1 1": "0 or more and below 1",
    "--adam_beta2 -0.1": "0 or more and below 1",
    "--label_smoothing_factor 2": "0 or more and below 1",
    "--logging_steps 0": "a number of steps, or a fraction of them below 1",
    "--eval_steps 0": "a number of steps, or a fraction of them below 1",
    "--save_steps 1.5": "a number of steps, or a fraction of them below 1",
    "--max_steps 0": "1 or more steps, or -1 for whole epochs",
    "--num_train_epochs -1": "more than 0",
    "--save_total_limit 0": "1 or more checkpoints",
    "--dataloader_num_workers -1": "0 or more",
    "--ddp_timeout 0": "1 or more seconds",
    "--early_stopping_patience 0": "1 or more evaluations",
}


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_a_number_that_an_argument_cannot_be(words: str) -> None:
    (mistake,) = mistakes(*words.split())
    flag, value = words.split()
    assert re.fullmatch(
        rf"{flag} {re.escape(value)}(\.0)?: expected {re.escape(IMPOSSIBLE[words])}.*", mistake
    )


def test_several_numbers_are_told_at_once() -> None:
    words = " ".join(words for words in IMPOSSIBLE if "nan" not in words)
    assert len(mistakes(*words.split())) == 1  # the recipe's own come before the training's
    words = words.replace("--split_seed -1", "")
    assert len(mistakes(*words.split())) == len(IMPOSSIBLE) - 2


@pytest.mark.parametrize(
    ("words", "module", "said"),
    [
        ("--optim adamw_bnb_8bit", "bitsandbytes", "pip install bitsandbytes"),
        ("--optim paged_lion_32bit", "bitsandbytes", "pip install bitsandbytes"),
        ("--optim galore_adamw_8bit", "galore_torch", "pip install galore-torch"),
        ("--optim adamw_torch_8bit", "torchao", "pip install torchao"),
        ("--optim schedule_free_sgd", "schedulefree", "pip install schedulefree"),
        ("--optim stable_adamw", "optimi", "pip install torch-optimi"),
        ("--use_liger_kernel", "liger_kernel", "pip install liger-kernel"),
    ],
)
def test_a_package_that_is_missing_is_named_with_what_installs_it(
    words: str, module: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert mistakes(*words.split()) == (f"{words}: {module} is not installed; {said}",)


@pytest.mark.parametrize("optimizer", ["adamw_torch", "sgd", "adafactor", "rmsprop"])
def test_optimizers_of_torch_need_no_package(optimizer: str) -> None:
    assert settle("--optim", optimizer).values.optim == optimizer


def test_a_tracker_that_there_is_not() -> None:
    (mistake,) = mistakes("--report_to", "wandbb")
    assert mistake.startswith("--report_to wandbb: no such tracker; did you mean 'wandb'?")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--eval_steps 5", "needs --eval_strategy steps"),
        ("--save_steps 5", "needs --save_strategy steps"),
        ("--logging_steps 5 --logging_strategy epoch", "needs --logging_strategy steps"),
        ("--num_train_epochs 2 --max_steps 9", "--max_steps decides"),
        ("--hub_model_id me/mine", "needs --push_to_hub"),
        ("--warmup_steps 9 --lr_scheduler_type constant", "--lr_scheduler_type constant has no"),
        ("--adam_beta1 0.8 --optim sgd", "--optim sgd does not read it"),
        ("--save_total_limit 2 --save_strategy no", "needs checkpoints"),
        ("--run_name mine", "needs a tracker, see --report_to"),
        ("--dataloader_drop_last false", "training always leaves out an incomplete last step"),
        ("--early_stopping_patience 3", "too large to stop before the end: 4 epochs have"),
    ],
)
def test_a_flag_without_effect_is_told(words: str, why: str) -> None:
    (sentence,) = settle(*words.split()).without_effect
    assert sentence.startswith(f"{words.split()[0]} has no effect: {why}")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--eval_strategy steps --eval_steps 5 --save_steps 5",
        "--num_train_epochs 2",
        "--metric_for_best_model f1 --save_strategy no",  # the verdict goes by it
        "--push_to_hub --hub_model_id me/mine",
        "--warmup_steps 0.1",
        "--adam_beta1 0.8",
        "--early_stopping_patience 2",
        "--early_stopping_patience 5 --max_steps 30",
    ],
)
def test_a_flag_with_effect_is_not_told(words: str) -> None:
    assert settle(*words.split()).without_effect == []


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        ("--eval_strategy no", ["--eval_strategy epoch (or steps)"]),
        ("--save_strategy no", ["--save_strategy epoch (or steps)"]),
        ("--load_best_model_at_end false", ["--load_best_model_at_end true"]),
        ("--eval_strategy no --save_strategy no", ["--eval_strategy epoch", "--save_strategy"]),
    ],
)
def test_early_stopping_says_what_it_needs(words: str, needs: list[str]) -> None:
    found = mistakes("--early_stopping_patience", "2", *words.split())
    assert len(found) == len(needs)
    for mistake, need in zip(found, needs, strict=True):
        assert mistake.startswith(f"--early_stopping_patience 2 needs {need}")


# ---- a file ----------------------------------------------------------------------------------


def test_a_file_is_read_word_for_word(tmp_path: Path) -> None:
    file = config(
        tmp_path,
        "save_strategy: no",
        "load-best-model-at-end: no",
        "max_steps: -1",
        "learning_rate: 1e-3",
        "run_name: 0x10",
        "train_samples: null",
        "eval_samples:",
        "label_names: [labels, more]",
        "lr_scheduler_type: cosine_with_restarts",
        "lr_scheduler_kwargs: {num_cycles: 2}",
        "use_cpu: true",
    )
    settings = settle("--config", file)
    arguments = settings.arguments

    assert settings.recipe.train_samples is None
    assert settings.recipe.eval_samples is None
    assert arguments.save_strategy == "no"
    assert arguments.load_best_model_at_end is False
    assert arguments.max_steps == -1
    assert arguments.learning_rate == 1e-3
    assert arguments.run_name == "0x10"
    assert arguments.label_names == ["labels", "more"]
    assert str(arguments.lr_scheduler_kwargs["num_cycles"]) == "2"


def test_numbers_in_a_mapping_stay_numbers(tmp_path: Path) -> None:
    file = config(tmp_path, "lr_scheduler_kwargs: {num_cycles: 2}", "use_cpu: true")

    assert settle("--config", file).arguments.lr_scheduler_kwargs == {"num_cycles": 2}
    words = ["--lr_scheduler_kwargs", '{"num_cycles": 2}', "--use_cpu"]
    assert settle(*words).arguments.lr_scheduler_kwargs == {"num_cycles": 2}


def test_an_unknown_key_names_the_file_and_the_nearest_key(tmp_path: Path) -> None:
    file = config(tmp_path, "learning_rte: 1", "sede: 2")

    first, second = mistakes("--config", file)

    assert first.startswith(f"{file}: unknown option 'learning_rte'; did you mean ")
    assert "learning_rate'?" in first
    assert second.startswith(f"{file}: unknown option 'sede'")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["- a", "- b"], r"options.yaml: expected lines like `learning_rate: 2e-5`"),
        (["a: [1"], r"options.yaml is not valid YAML"),
        (["config: other.yaml"], r"options.yaml: 'config' cannot name another file"),
        (["seed: 1", "max_length: 9", "seed: 2"], r"'seed' is there twice, in lines 1 and 3; keep"),
        (["max-length: 9", "max_length: 9"], r"'max_length' is there twice, in lines 1 and 2"),
        (["lr_scheduler_kwargs: {a: 1, a: 2}"], r"'a' is there twice, in lines 1 and 1"),
    ],
)
def test_files_that_cannot_be_read(lines: Sequence[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        settle("--config", config(tmp_path, *lines))


def test_a_file_that_is_not_there() -> None:
    assert mistakes("--config", "nowhere.yaml") == ("--config: no such file: nowhere.yaml",)


# ---- the batch is global ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "accumulation", "per_device"), [(1, 1, 32), (2, 1, 16), (2, 4, 4), (4, 8, 1)]
)
def test_a_global_batch_is_shared(
    processes: int, accumulation: int, per_device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    draft = settle("--use_cpu", "--gradient_accumulation_steps", str(accumulation)).values

    assert draft.per_device_train_batch_size == per_device
    assert draft.global_batch_size == 32


def test_a_batch_of_one_device_grows_with_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    words = ["--use_cpu", "--per_device_train_batch_size", "5"]
    draft = settle(*words, "--gradient_accumulation_steps", "2").values

    assert (draft.per_device_train_batch_size, draft.global_batch_size) == (5, 30)


def test_both_batches_are_refused(tmp_path: Path) -> None:
    message = (
        "--global_batch_size and --per_device_train_batch_size are mutually exclusive: give one"
    )
    flag = ["--per_device_train_batch_size", "4"]

    assert mistakes("--global_batch_size", "32", *flag) == (message,)
    file = config(tmp_path, "global_batch_size: 32")
    assert mistakes("--config", file, *flag) == (message,)


@pytest.mark.parametrize(
    ("batch", "accumulation", "nearest"), [(32, 1, [30, 33]), (32, 5, [30, 45]), (2, 1, [3])]
)
def test_a_batch_that_does_not_divide_names_the_nearest_that_do(
    batch: int, accumulation: int, nearest: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")

    def check(size: int) -> ArgumentValues:
        return resolved(
            {
                "use_cpu": True,
                "global_batch_size": size,
                "gradient_accumulation_steps": accumulation,
            }
        )

    message = rf"{batch} rows does not divide into 3 devices x {accumulation} accumulation steps"
    with pytest.raises(UserError, match=message) as refusal:
        check(batch)

    named = str(refusal.value).partition("--global_batch_size ")[2]
    assert [int(number) for number in re.findall(r"\d+", named)] == nearest
    for size in nearest:
        assert check(size).global_batch_size == size


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--dataloader_drop_last", "--dataloader_drop_last would also drop evaluation rows"),
        ("--prediction_loss_only", "--prediction_loss_only: the metrics and the report need"),
        ("--batch_eval_metrics", "--batch_eval_metrics: the metrics and the report need"),
        ("--label_names mine", "--label_names: the labels of a recipe are in the column 'labels'"),
        ("--save_every 0", "--save_every 0: expected 1 or more epochs"),
        ("--global_batch_size 0", "--global_batch_size 0: expected 1 or more rows"),
        ("--per_device_eval_batch_size -1", "--per_device_eval_batch_size -1: expected 1 or more"),
        ("--gradient_accumulation_steps 0", "--gradient_accumulation_steps 0: expected 1 or more"),
        ("--precision bf61", "--precision bf61: expected auto, fp32, bf16 or fp16; did you mean"),
        ("--precision fp32 --bf16", "--precision fp32 and --bf16 are mutually exclusive: give one"),
        ("--train_sampling_strategy batch_rebalance", "--train_sampling_strategy batch_rebalance:"),
    ],
)
def test_arguments_that_cannot_work(words: str, message: str) -> None:
    (mistake,) = mistakes(*words.split())

    assert mistake.startswith(message)


@pytest.mark.parametrize(
    ("words", "native", "told", "expected"),
    [
        ("", True, "no", "bf16"),
        ("", False, "no", "fp32"),
        ("", False, "bf16", "bf16"),  # accelerate launch --mixed_precision bf16
        ("", False, "fp16", "fp32"),  # the library would say fp16 and compute in fp32
        ("--precision fp32", True, "bf16", "fp32"),
        ("--precision bf16", False, "no", "bf16"),
        ("--bf16", False, "no", "bf16"),
    ],
)
def test_precision_is_what_the_device_is_fast_in_unless_it_is_given(
    words: str, native: bool, told: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "prefers_bf16", lambda device: native)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", told)
    arguments = settle("--use_cpu", *words.split()).arguments
    assert provenance.precision(arguments) == expected
    assert (arguments.bf16, arguments.fp16) == (expected == "bf16", False)


@pytest.mark.parametrize(
    ("name", "flags", "prefers"),
    [
        ("Intel Xeon", {"avx512_bf16": True, "amx_bf16": True}, True),
        ("Intel Xeon", {"avx512_bf16": True, "amx_bf16": False}, False),  # AMX is hidden
        ("AMD EPYC", {"avx512_bf16": True, "amx_bf16": False}, True),
        ("AMD EPYC", {"avx512_bf16": False, "amx_bf16": False}, False),
        ("Apple M4", {}, False),
    ],
)
def test_a_cpu_prefers_bf16_where_it_is_faster(
    name: str, flags: dict[str, bool], prefers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": name, **flags})
    assert precision.prefers_bf16("cpu") == prefers
    assert not precision.prefers_bf16("mps")


@pytest.mark.parametrize(
    ("device", "given", "workers", "non_blocking"),
    [
        ("cpu", {}, 0, None),
        ("cuda", {}, 2, {"non_blocking": True}),
        ("cuda", {"dataloader_num_workers": 0}, 0, {"non_blocking": True}),
        ("cuda", {"accelerator_config": {"non_blocking": False}}, 2, {"non_blocking": False}),
    ],
)
def test_a_gpu_has_its_batches_made_ahead(
    device: str,
    given: dict[str, Any],
    workers: int,
    non_blocking: dict[str, bool] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr(distributed, "device_type", lambda use_cpu: device)
    draft = resolved(given)
    assert draft.dataloader_num_workers == workers
    assert draft.accelerator_config == non_blocking
    assert draft.per_device_eval_batch_size == (32 if device == "cpu" else 128)


@pytest.mark.parametrize("words", ["--precision fp16", "--fp16"])
def test_fp16_is_refused_on_a_cpu(words: str) -> None:
    with pytest.raises(UserError, match="not supported on a CPU"):
        _ = settle("--use_cpu", *words.split()).arguments


def test_arguments_that_contradict_each_other() -> None:
    settings = settle("--use_cpu", "--bf16", "--fp16")

    with pytest.raises(UserError, match="fp16 and bf16"):
        _ = settings.arguments


# ---- secrets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["--hub_token", "hf_secret"],
        ["--hub-token", "hf_secret"],
        ["--hub_token=hf_secret"],
        ["--hub-token=hf_secret"],
    ],
)
def test_a_token_is_kept_nowhere(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    settings = settle(*words, "--max_steps", "1")

    assert "secret" not in repr(settings)
    assert settings.command.startswith("python")
    assert "***" in settings.command
    assert settings.command.endswith("--max_steps 1")
    assert settings.values.hub_token is None
    assert os.environ["HF_TOKEN"] == "hf_secret"  # where the library looks as well


def test_a_token_in_a_file_or_a_keyword(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    file = config(tmp_path, "hub_token: hf_secret")

    assert "secret" not in repr(settle("--config", file))
    assert "secret" not in repr(from_keywords("yelp", {"hub_token": "hf_secret"}))


# ---- keywords --------------------------------------------------------------------------------


def test_keywords(tmp_path: Path) -> None:
    file = config(tmp_path, "max_length: 128", "max_steps: 3")
    settings = from_keywords("yelp", {"config": file, "embedded": True, "max_steps": 7})

    assert settings.recipe.max_length == 128  # type: ignore[attr-defined]
    assert settings.recipe.dataset == "embedded:imdb"
    assert settings.values.max_steps == 7
    assert settings.values.learning_rate == 2e-4
    assert settings.command.startswith("finetune.train('yelp', ")


@pytest.mark.parametrize("recipe", ["yelp", Yelp, Yelp()])
def test_keywords_of_a_recipe_in_any_form(recipe: Any) -> None:
    settings = from_keywords(recipe, {"train_samples": 5})

    assert type(settings.recipe) is Yelp
    assert settings.name == "yelp"
    assert settings.recipe.train_samples == 5


def test_the_options_of_an_instance_count_as_given() -> None:
    settings = from_keywords(Yelp(max_length=33, train_samples=9), {"embedded": True})

    assert settings.recipe.max_length == 33  # type: ignore[attr-defined]
    assert settings.recipe.train_samples == 9
    assert settings.recipe.dataset == "embedded:imdb"


class _Made(TextClassification):
    model: str = "some/model"

    def load(self) -> DatasetDict:
        raise NotImplementedError


class _Filtered(_Made):
    dataset: str = ""


class _Inherits(_Filtered):
    def load(self) -> DatasetDict:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("cls", "reads"),
    [(_Made, False), (_Filtered, True), (_Inherits, False), (Yelp, True), (Mnist, True)],
)
def test_a_data_set_that_nothing_would_read_is_refused(cls: type[Recipe], reads: bool) -> None:
    mistakes = Mistakes()
    from_keywords(cls, {"dataset": "a.csv"}, mistakes)

    assert any("loads its own data" in each for each in mistakes.found) is not reads
    assert ("--dataset " in Flags(cls).help()) is reads
    assert ("--embedded " in Flags(cls).help()) is bool(cls.embedded)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("text_columns", ["title", "body, cut"], 'title,"body, cut"'),
        ("label_columns", ("a", "b"), "a,b"),
        ("label_columns", pd.Index(["a", "b"]), "a,b"),
        ("label_order", [5, 4, 3], "5,4,3"),
        ("label_order", np.array([5, 4, 3]), "5,4,3"),
        ("class_weights", {"bad": 2, "Sports, outdoors": 0.5}, 'bad=2,"Sports, outdoors=0.5"'),
        ("label_map", {0: "no", 1: "yes"}, "0=no,1=yes"),
        ("metrics", ["accuracy", Path("my/cost.py")], "accuracy,my/cost.py"),
    ],
)
def test_several_values_as_a_list_or_a_mapping(name: str, value: Any, text: str) -> None:
    settings = from_keywords("text", {name: value})
    assert getattr(settings.recipe, name) == settings.given[name] == text
    assert getattr(type(settings.recipe)(**{name: value}), name) == text
    assert getattr(from_command_line("text", [f"--{name}", text]).recipe, name) == text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"label_columns": {"a", "b"}}, "--label_columns: expected NAME,NAME, or a list of"),
        ({"label_columns": {"a": 1}}, "found {'a': 1}"),
        ({"label_columns": []}, "found []"),
        ({"label_columns": ["a", None]}, "of texts and numbers, found ['a', None]"),
        ({"label_columns": [" ", "b"]}, "of texts and numbers, found [' ', 'b']"),
        ({"label_map": {"a=b": "c"}}, "found {'a=b': 'c'}"),
        ({"class_weights": {}}, "NAME=WEIGHT,NAME=WEIGHT, or a list or a mapping of texts"),
    ],
)
def test_what_is_no_list_of_values_is_refused(options: dict[str, Any], said: str) -> None:
    for build in (from_keywords, lambda _, given: catalog.find("text")(**given)):
        with pytest.raises(UserError, match=re.escape(said)) as refusal:
            build("text", options)
        assert len(refusal.value.mistakes) == 1


def test_several_values_in_a_file(tmp_path: Path) -> None:
    weights = ("class_weights:", "  bad: 2", "  'Sports, outdoors': 3")
    file = config(tmp_path, "label_columns: [a, 'b, c']", *weights, "label_order: [3, 4, 5]")
    found = from_command_line("text", ["--config", file]).given
    assert found["label_columns"] == 'a,"b, c"'
    assert found["class_weights"] == 'bad=2,"Sports, outdoors=3"'
    assert found["label_order"] == "3,4,5"
    file = config(tmp_path, "label_columns: {a: 1}", "class_weights: []")
    with pytest.raises(UserError) as refusal:
        from_command_line("text", ["--config", file])
    first, second = refusal.value.mistakes
    assert first.startswith(f"{file}: 'label_columns': expected NAME,NAME, or a list")
    assert "'class_weights': expected" in second


def test_unknown_keywords_are_refused_at_once() -> None:
    with pytest.raises(UserError) as refusal:
        from_keywords("yelp", {"max_lenght": 3, "sede": 1})

    first, second = refusal.value.mistakes
    assert first == "unknown option 'max_lenght'; did you mean 'max_length'?"
    assert second.startswith("unknown option 'sede'")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("learning_rate", "abc", "--learning_rate: expected a number, found 'abc'"),
        ("max_steps", 1e3, "--max_steps: expected a whole number, found 1000.0"),
        ("bf16", "no", "--bf16: expected true or false, found 'no'"),
        ("num_threads", True, "--num_threads: expected a whole number, found True"),
        ("run_name", 3, "--run_name: expected text, found 3"),
    ],
)
def test_keywords_of_another_type_are_refused(name: str, value: object, said: str) -> None:
    with pytest.raises(UserError) as refusal:
        _ = from_keywords("yelp", {name: value}).values
    assert refusal.value.mistakes == (said,)


def test_numbers_of_numpy_are_numbers() -> None:
    options = {"learning_rate": np.float32(0.5), "max_steps": np.int64(3), "num_train_epochs": 2}
    assert from_keywords("yelp", options).values.learning_rate == 0.5


def test_unknown_training_arguments_are_refused() -> None:
    with pytest.raises(UserError, match=r"'lerning_rate'; did you mean 'learning_rate'\?"):
        Yelp().trainer(lerning_rate=1.0)


# ---- help ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_help_shows_the_options_of_the_recipe_first(name: str) -> None:
    cls = catalog.find(name)
    text = Flags(cls).help()
    shown = re.findall(r"^ +--(\w+)", text, flags=re.MULTILINE)

    own = ["embedded", *(each.name for each in dataclasses.fields(cls))]
    assert shown[: len(own)] == own
    assert shown[len(own) :][: 2 + len(USED)] == ["config", "dry_run", *USED]
    rest = shown[len(own) + 2 + len(USED) :]
    assert rest == sorted(rest)
    assert len(shown) == len(set(shown))
    assert set(shown) == set(Flags(cls).defaults) - set(REFUSED)
    assert f"default: runs/{name}" in text


def test_help_shows_the_defaults_of_the_recipe(flags: Flags) -> None:
    text = " ".join(flags.help().split())

    assert "--max_length N truncate texts to this many tokens (default: 512)" in text
    assert re.search(r"--global_batch_size N [^(]+\(default: 32\)", text)
    assert re.search(r"--learning_rate X [^(]+\(default: 2e-05\)", text)


@pytest.mark.parametrize("name", RECIPES)
def test_help_shows_the_default_of_every_flag(name: str) -> None:
    """Those of the dataclasses, and the recipe's own over them."""
    cls = catalog.find(name)
    expected: dict[str, Any] = dict.fromkeys(("embedded", "dry_run", "config"))
    for each in [*dataclasses.fields(FinetuneArguments), *dataclasses.fields(cls)]:
        if each.init and each.name not in REFUSED:
            has_factory = each.default_factory is not dataclasses.MISSING
            expected[each.name] = each.default_factory() if has_factory else each.default
    expected |= cls.defaults()
    shown = {}
    for each in re.split(r"\n +--(?=\w)", Flags(cls).help())[1:]:
        words = each.partition("\n\n")[0].split()
        default = re.search(r"\(default:([^()]*)\)$", "".join(words))  # it may be folded
        shown[words[0]] = default[1] if default else None
    assert len(shown) > 110
    assert shown.keys() == expected.keys()
    assert shown == {
        flag: None
        if value in (None, "", [])
        else str(value).lower()
        if isinstance(value, bool)
        else str(getattr(value, "value", value))
        for flag, value in expected.items()
    }
    assert (shown["baseline"], shown["dataloader_pin_memory"]) == ("true", "true")


# ---- where the data comes from, known early --------------------------------------------------


@pytest.mark.parametrize(
    ("words", "dataset", "model"),
    [
        ([], "Yelp/yelp_review_full", "google-bert/bert-base-cased"),
        (["--embedded"], "embedded:imdb", "embedded:minilm"),
        (["--embedded=no"], "Yelp/yelp_review_full", "google-bert/bert-base-cased"),
        (["--dataset", "a.csv", "--seed", "1"], "a.csv", "google-bert/bert-base-cased"),
        (["--embedded", "--model=./here"], "embedded:imdb", "./here"),
    ],
)
def test_peek_agrees_with_the_settings(words: list[str], dataset: str, model: str) -> None:
    assert peek(Yelp, words) == {"dataset": dataset, "model": model}
    recipe = settle(*words).recipe
    assert (recipe.dataset, recipe.model) == (dataset, model)  # type: ignore[attr-defined]


def test_peek_reads_the_file(tmp_path: Path) -> None:
    file = config(tmp_path, "embedded: yes", "model: ./here")

    assert peek(Yelp, ["--config", file]) == {"dataset": "embedded:imdb", "model": "./here"}
    # unknown is not "nothing is needed": the process must not go offline for a mistake
    assert peek(Yelp, ["--config", "nowhere.yaml"]) is None
    assert peek(Yelp, ["--embedded", "--push_to_hub"]) is None


def test_one_column_of_labels_or_several() -> None:
    both = {"label_column": "kind", "label_columns": "a,b"}
    for build in (from_keywords, lambda _, given: catalog.find("text")(**given)):
        with pytest.raises(UserError, match=r"^--label_column kind and --label_columns a,b: give"):
            build("text", both)
