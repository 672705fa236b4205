"""Adapters, seeds and searches: rows G1 to G3."""

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from peft import PeftModel
from safetensors.torch import load_file, save_file
from scipy import stats
from sklearn.metrics import f1_score
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    BertPreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTImageProcessorPil,
)

import finetune
from finetune import TextRecipe
from tests.acceptance.conftest import TRAINING, Finished, flags, user_error
from tests.acceptance.test_training import (
    Train,
    assert_identical,
    faulty,  # noqa: F401
    train,  # noqa: F401
    typed_again,
    whole,  # noqa: F401
)
from tests.families import write

Cli = Callable[..., Finished]


@pytest.fixture
def options(reviews: Path, bert: Path) -> dict[str, Any]:
    return {**TRAINING, "dataset": str(reviews), "model": str(bert)}


# ---- G1: adapters --------------------------------------------------------------------------------


@pytest.mark.contract("G1", "D5")
@pytest.mark.trains
@pytest.mark.parametrize("fault", ["step 5,SIGTERM", "batch 3,SIGTERM"])
def test_a_training_of_an_adapter_resumes_to_the_bit(
    train: Train,  # noqa: F811
    cli: Cli,
    whole: Callable[..., Path],  # noqa: F811
    tmp_path: Path,
    fault: str,
) -> None:
    words = ["--adapter", "lora"] + ["--eval_strategy", "no"] * fault.startswith("batch")
    stopped = train(tmp_path / "run", *words, fault=fault)
    assert stopped.status == 75
    assert cli(*typed_again(stopped)).status == 0
    more = {"eval_strategy": "no"} if fault.startswith("batch") else {}
    assert_identical(tmp_path / "run", whole(adapter="lora", **more))


@pytest.mark.contract("G1", "A5")
def test_the_order_of_flags_does_not_matter(options: dict[str, Any], cli: Cli) -> None:
    words = ["--lora_rank", 4, "--adapter", "lora", "--learning_rate", 1e-5, "--dry_run"]
    result = cli("text", *flags(**options), *words).succeeded()
    assert "an adapter learns little below 0.0001" in result.stdout


OWN_NAMES = """
from recipes.mnist import Mnist


class Mine(Mnist):
    freeze: bool = False
    adapter: str = "none"
"""


@pytest.mark.contract("G1", "B8")
@pytest.mark.trains
def test_a_recipe_may_have_its_own_options_with_these_names(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "mine.py").write_text(OWN_NAMES)
    words = flags(freeze="true", adapter="mlp", max_steps=1, learning_rate=1e-5, train_samples=100)
    result = cli(tmp_path / "mine.py", "--embedded", *words, "--output_dir", tmp_path / "r")
    assert result.status == 0, result.stderr
    assert "adapter learns" not in result.stdout
    run = finetune.Run.load(tmp_path / "r")
    assert (run.manifest.options["freeze"], run.manifest.options["adapter"]) == (True, "mlp")
    scores = finetune.evaluate(run, trust_recipe=True).metrics
    assert scores["f1"] == pytest.approx(run.metrics.test["f1"])


@pytest.mark.contract("G1")
@pytest.mark.trains
@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [
        ("base", r"bert\."),
        ("embeddings", r"bert\.embeddings"),
        ("1", r"bert\.(embed|.*layer\.0\.)"),
    ],
)
def test_frozen_layers_keep_their_weights(
    options: dict[str, Any], bert: Path, tmp_path: Path, cli: Cli, freeze: str, frozen: str
) -> None:
    result = cli("text", *flags(**options, freeze=freeze, output_dir=tmp_path / "run")).succeeded()
    total, trained = re.findall(r"([\d,]+) parameters, ([\d,]+) of them trained", result.stdout)[0]
    weights = load_file(tmp_path / "run" / "model.safetensors")
    base = AutoModelForSequenceClassification.from_pretrained(bert, num_labels=2).state_dict()
    names = {name for name in weights if re.match(frozen, name)}
    assert names
    assert all(torch.equal(weights[name], base[name]) for name in names)
    moved = {n for n in weights.keys() - names if not torch.equal(weights[n], base[n])}
    assert any("classifier" in name for name in moved)
    count = sum(weights[name].numel() for name in weights.keys() - names)
    assert int(trained.replace(",", "")) == count < int(total.replace(",", ""))


@pytest.fixture
def masked(bert: Path, tmp_path: Path) -> Path:
    """A base as masked-language modeling leaves it: without a pooler."""
    shutil.copytree(bert, tmp_path / "masked")
    model = BertForMaskedLM(BertConfig.from_pretrained(bert))
    model.save_pretrained(tmp_path / "masked")
    return tmp_path / "masked"


def write_resnet(directory: Path) -> Path:
    """Write a ResNet with batch normalization, whose statistics are not those of the images."""
    sizes = dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = ResNetForImageClassification(ResNetConfig(**sizes))
    model.save_pretrained(directory)
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(directory)
    return directory


@pytest.mark.contract("G1")
@pytest.mark.trains
@pytest.mark.parametrize("words", ["--freeze base", "--freeze 1", "--adapter lora"])
def test_weights_that_the_base_lacks_are_trained_and_saved(
    options: dict[str, Any], masked: Path, tmp_path: Path, cli: Cli, words: str
) -> None:
    """`adapter/` alone, loaded by peft over the base, is the model in the root of the run."""
    typed = flags(**options | {"model": masked, "max_steps": 3}, output_dir=tmp_path / "run")
    result = cli("text", *typed, *words.split()).succeeded()
    assert "new weights, trained from random values: 'bert.pooler.dense'" in result.stdout
    weights = load_file(tmp_path / "run" / "model.safetensors")
    pooler = weights["bert.pooler.dense.bias"]  # zeros when it is created
    assert pooler.abs().min() > 0
    if "adapter" in words:
        for seed in (1, 2):
            torch.manual_seed(seed)
            base = AutoModelForSequenceClassification.from_pretrained(masked, num_labels=2)
            merged = PeftModel.from_pretrained(base, tmp_path / "run" / "adapter")
            state = merged.merge_and_unload().state_dict()
            assert all(torch.allclose(state[key], weights[key], atol=1e-6) for key in weights)


@pytest.mark.contract("G1")
@pytest.mark.trains
@pytest.mark.parametrize("words", ["--freeze base", "--adapter lora"])
def test_frozen_batch_normalization_keeps_its_statistics(
    image_run: finetune.Run, tmp_path: Path, cli: Cli, words: str
) -> None:
    """They have no gradients, and are not in `adapter/`."""
    base = write_resnet(tmp_path / "resnet")
    images = flags(dataset=image_run.manifest.options["dataset"], model=base, max_steps=2)
    result = cli("image", *images, *words.split(), "--output_dir", tmp_path / "run").succeeded()
    assert "BatchNorm" not in result.stdout
    before = load_file(base / "model.safetensors")
    after = load_file(tmp_path / "run" / "model.safetensors")
    statistics = [name for name in before if "running" in name]
    assert len(statistics) == 12
    assert all(torch.equal(before[name], after[name]) for name in statistics)


def lose_layer(model: Path) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))


def resize_in_config(model: Path) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["vocab_size"] += 1
    (model / "config.json").write_text(json.dumps(config))


def add_prefix(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    weights = {f"model.{name}": weight for name, weight in weights.items()}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def leave_adapter(model: Path) -> None:
    (model / "adapter_config.json").write_text("{}")


@pytest.mark.contract("B7", "F4")
@pytest.mark.parametrize(
    ("damage", "fragment"),
    [
        (lose_layer, "16 of 57"),
        (resize_in_config, "word_embeddings.weight is 608 x 32 in its weights, and 609 x 32"),
        (add_prefix, "37 of 41"),
        (leave_adapter, "found an adapter of peft"),
    ],
)
def test_a_base_without_weights_for_its_layers_is_refused(
    options: dict[str, Any], masked: Path, tmp_path: Path, cli: Cli,
    damage: Callable[[Path], None], fragment: str,
) -> None:  # fmt: skip
    """The library fills them with random numbers and goes on."""
    damage(masked)
    typed = flags(**options | {"model": masked}, output_dir=tmp_path / "run")
    cli("text", *typed).refused(f"--model {masked}", fragment)
    assert not (tmp_path / "run").exists()


def add_token(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["zorbex"])
    tokenizer.save_pretrained(model)


def add_padding(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"pad_token": "[NEW]"})
    tokenizer.save_pretrained(model)


def shrink_embeddings(model: Path) -> None:
    BertModel(BertConfig.from_pretrained(model, vocab_size=500)).save_pretrained(model)


def leave_one_token_type(model: Path) -> None:
    BertModel(BertConfig.from_pretrained(model, type_vocab_size=1)).save_pretrained(model)


@pytest.mark.contract("C11", "F4")
@pytest.mark.parametrize("words", [["check", "text"], ["text"], ["text", "--dry_run"]], ids=str)
@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        (add_token, ["ids up to 608 (token 'zorbex')", "608 rows", "resize_token_embeddings(609)"]),
        (add_padding, ["ids up to 608 (token '[NEW]')", "608 rows"]),
        (shrink_embeddings, ["ids up to 607", "500 rows"]),
        (leave_one_token_type, ["the token type 1", "type_vocab_size"]),
    ],
)
def test_a_tokenizer_with_ids_that_the_model_lacks_is_refused(
    options: dict[str, Any], bert: Path, tmp_path: Path, cli: Cli,
    change: Callable[[Path], None], fragments: list[str], words: list[str],
) -> None:  # fmt: skip
    """Also if no row of the data has such a token: a text to predict may have it."""
    model = shutil.copytree(bert, tmp_path / "model")
    change(model)
    rows = pd.read_csv(options["dataset"]).assign(second="the food was fine")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    typed = flags(**options | {"model": model, "dataset": tmp_path / "rows.csv"})
    if change is leave_one_token_type:
        cli("text", *typed, "--dry_run").succeeded()
        typed += ["--text_columns", "text,second"]
    typed += flags(output_dir=tmp_path / "run")
    result = cli(*words, *typed)
    assert result.status == 2
    for fragment in fragments:
        assert fragment in result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.contract("C11")
def test_a_special_token_that_no_text_can_have_needs_no_embedding(
    options: dict[str, Any], tmp_path: Path, cli: Cli
) -> None:
    """As in Gemma 3 with 1B parameters, whose tokenizer has a token for images."""
    model = write("gpt2", tmp_path / "gpt2")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(model)
    cli("text", *flags(**options | {"model": model}), "--dry_run").succeeded()


@pytest.mark.contract("E4", "F4")
def test_a_run_whose_model_lacks_a_weight_does_not_predict(
    single_label_run: finetune.Run, copy_run: Callable[[finetune.Run], finetune.Run], cli: Cli
) -> None:
    run = copy_run(single_label_run)
    weights = load_file(run.path / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, run.path / "model.safetensors", metadata={"format": "pt"})
    cli("predict", run.path, "--text", "the food was fine").refused(
        "found none for 1 of 41", "classifier.weight is missing"
    )


@pytest.mark.contract("G1", "B5")
@pytest.mark.trains
def test_the_lowest_layers_of_an_encoder_are_frozen_not_those_of_its_decoder(
    reviews: Path, tmp_path: Path
) -> None:
    model = write("t5", tmp_path / "t5")
    options = {**TRAINING, "dataset": str(reviews), "model": str(model), "max_steps": 2}
    run = finetune.train("text", **options, freeze="1", output_dir=tmp_path / "run")
    before = AutoModelForSequenceClassification.from_pretrained(model).state_dict()
    after = load_file(run.path / "model.safetensors")
    same = {name for name in after if torch.equal(after[name], before[name])}
    assert {name for name in after if "encoder.block.0" in name} <= same
    assert not {name for name in after if "decoder.block.0" in name} <= same


@pytest.mark.contract("G1", "F4")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--adapter lora --lora_targets ,", "names of layers"),
        ("--adapter lora --lora_targets qurey", "did you mean 'query'"),
        ("--lora_rank 4", "--lora_rank 4: needs --adapter lora"),
        ("--freeze 9", "--freeze 9: expected at most"),
        ("--freeze head", "expected embeddings, base, or the number of layers"),
        ("--freeze 1 --adapter lora", "freezes all but the head"),
        ("--adapter lora --lora_rank 0", "--lora_rank 0: expected 1 or more"),
        ("--adapter prefix", "--adapter"),
        ("--lora_rank 0 --adapter lora", "--lora_rank 0: expected 1 or more"),
    ],
)
def test_an_adapter_that_cannot_be_is_refused(
    options: dict[str, Any], cli: Cli, tmp_path: Path, words: str, message: str
) -> None:
    cli("text", *flags(**options, output_dir=tmp_path / "run"), *words.split()).refused(message)
    assert not (tmp_path / "run").exists()


class Wrapped(BertPreTrainedModel):
    """A classifier whose head is a part of its base model, as in models of timm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertForSequenceClassification(config)


class WrappedText(TextRecipe):
    def build_model(self, labels: Sequence[str]) -> torch.nn.Module:
        return Wrapped(BertConfig.from_pretrained(self.model, num_labels=len(labels)))


@pytest.mark.contract("G1", "F4")
@pytest.mark.parametrize("chosen", [dict(freeze="base"), dict(adapter="lora")], ids=str)
def test_a_head_inside_of_the_base_is_neither_frozen_nor_left_out(
    reviews: Path, bert: Path, tmp_path: Path, chosen: dict[str, Any]
) -> None:
    recipe = WrappedText(dataset=str(reviews), model=str(bert), max_length=64, **chosen)
    with user_error("a base model and a head beside it, found Wrapped"):
        recipe.trainer(output_dir=str(tmp_path / "run"))


# ---- G2: seeds -----------------------------------------------------------------------------------


@pytest.mark.contract("G2")
@pytest.mark.trains
def test_repeat_trains_the_runs_of_its_seeds_and_estimates_their_mean(
    options: dict[str, Any], single_label_run: finetune.Run, cli: Cli, tmp_path: Path
) -> None:
    words = ["text", *flags(**options, seed=42), "--seeds", 3]
    first = cli("repeat", *words, "--output_dir", tmp_path / "a").succeeded()
    runs = finetune.RunSet.load(tmp_path / "a").runs
    assert [run.path.name for run in runs] == ["seed-42", "seed-43", "seed-44"]
    assert runs[0].metrics.test == single_label_run.metrics.test
    tables = [run.predictions for run in runs]
    scores = [f1_score(t["label"], t["prediction"], average="macro") for t in tables]
    line = next(line for line in first.stdout.splitlines() if line.startswith("  mean"))
    mean, low, high = map(float, re.findall(r"\d\.\d+", line)[:3])
    assert mean == pytest.approx(np.mean(scores), abs=1e-4)
    assert low < min(scores)
    assert high > max(scores)
    assert f"{np.std(scores, ddof=1):.4f}" in first.stdout
    assert "Mean of 3 seeds" in (tmp_path / "a" / "report.html").read_text()
    cli("repeat", *words, "--output_dir", tmp_path / "a").succeeded()
    assert [run.metrics.test for run in runs] == [
        run.metrics.test for run in finetune.RunSet.load(tmp_path / "a").runs
    ]
    assert_intervals_over_seeds(runs, tmp_path, cli)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    compared = cli("compare", tmp_path / "a", tmp_path / "b").succeeded()
    assert "is not better than" in compared.stdout
    assert cli("report", tmp_path / "a").status == 0
    listed = cli("list", tmp_path)
    assert "set of 3 runs" in listed.stdout
    other = cli("repeat", *words, "--output_dir", tmp_path / "a", "--weight_decay", 0.5)
    assert other.status == 2
    assert "has runs with weight_decay 0.01, now it is 0.5" in other.stderr
    with pytest.raises(finetune.UserError, match="has runs with seed 42, now it is 7"):
        finetune.repeat("text", **{**options, "seed": 7}, seeds=3, output_dir=tmp_path / "a")
    with pytest.raises(finetune.UserError, match="a set of `repeat`"):
        finetune.search("text", **options, seed=42, trials=1, output_dir=tmp_path / "a")


def assert_intervals_over_seeds(runs: list[finetune.Run], tmp_path: Path, cli: Cli) -> None:
    """Compare the intervals of the accuracy with those of the formulas: over three seeds, over two,
    and of the difference of two sets of two seeds.
    """
    right = np.array([t["label"] == t["prediction"] for t in (run.predictions for run in runs)])
    rows = right.shape[1]

    def error_and_quantile(*sets: np.ndarray) -> tuple[float, float]:
        """Obuchowski and Rockette (1995), Hillis (2007); the variances of means have a formula."""
        gap = sets[0].mean(axis=0) - sum(s.mean(axis=0) for s in sets[1:])
        of_rows = gap.var(ddof=1) / rows
        of_seeds = [s.mean(axis=1).var(ddof=1) / len(s) for s in sets]
        in_both = 0.0
        for s in sets:
            of_mean = s.mean(axis=0).var(ddof=1) / rows
            in_both += max(0, s.var(axis=1, ddof=1).mean() / rows - of_mean) / (len(s) - 1)
        variance = max(of_rows + sum(of_seeds) - in_both, of_rows, *of_seeds)
        spread = of_rows**2 / (rows - 1)
        spread += sum(v**2 / (len(s) - 1) for v, s in zip(of_seeds, sets, strict=True))
        return variance**0.5, stats.t.ppf(0.975, max(1, variance**2 / spread))

    def line(words: tuple[Any, ...], name: str) -> list[float]:
        lines = cli(*words).succeeded().stdout.splitlines()
        column = next(line for line in lines if "accuracy" in line).index("accuracy")
        row = next(line for line in lines if line.startswith(f"  {name} "))
        return [float(number) for number in re.findall(r"-?\d\.\d+", row[column - 2 :])]

    value = right.mean()
    error, quantile = error_and_quantile(right)
    # Wilson's, at the effective sample size: at most the rows, of which few are wrong
    rows_of_interval = min(rows, value * (1 - value) / error**2)
    square = quantile**2 / rows_of_interval
    ends = np.roots([1 + square, -2 * value - square, value**2])
    expected = [value, ends.min(), ends.max()]
    assert line(("report", runs[0].path.parent), "mean") == pytest.approx(expected, abs=6e-4)
    for name, left_out in (("first", "seed-44"), ("last", "seed-42")):
        shutil.copytree(runs[0].path.parent, tmp_path / name)
        shutil.rmtree(tmp_path / name / left_out)
    mean = right[:2].mean()  # two seeds are too few
    assert line(("report", tmp_path / "first"), "mean") == pytest.approx([mean], abs=6e-5)
    value = right[1:].mean() - mean
    error, quantile = error_and_quantile(right[1:], right[:2])
    expected = [value, value - quantile * error, value + quantile * error]
    words = ("compare", tmp_path / "first", tmp_path / "last")
    assert line(words, "difference") == pytest.approx(expected, abs=6e-4)


# ---- G3: search ----------------------------------------------------------------------------------

SPACE = "learning_rate=1e-4..1e-2:log,num_train_epochs=1..3"


def optimism_by_hand(runs: list[finetune.Run]) -> float:
    """Return how much better the best F1 is than that of the trial chosen on a bootstrap sample,
    on the rows that are not in the sample (Tsamardinos et al., 2018).
    """
    complete = [run for run in runs if run.status != "pruned"]
    arrays = [np.load(run.path / "validation.npz") for run in complete]
    true = arrays[0]["labels"]
    predicted = [array["outputs"].argmax(axis=1) for array in arrays]

    def score(trial: int, rows: np.ndarray) -> float:
        return float(f1_score(true[rows], predicted[trial][rows], average="macro"))

    generator, held_out = np.random.default_rng(1), []
    for _ in range(400):
        sample = generator.integers(len(true), size=len(true))
        best = max(range(len(complete)), key=lambda trial: score(trial, sample))
        held_out.append(score(best, np.setdiff1d(np.arange(len(true)), sample)))
    every = np.arange(len(true))
    return max(score(trial, every) for trial in range(len(complete))) - float(np.mean(held_out))


@pytest.mark.contract("G3")
@pytest.mark.trains
def test_a_search_scores_the_test_rows_of_its_best_trial_only(
    options: dict[str, Any], cli: Cli, tmp_path: Path
) -> None:
    del options["learning_rate"], options["num_train_epochs"]
    words = ["search", "text", *flags(**options), "--space", SPACE, "--output_dir", tmp_path / "s"]
    assert cli(*words, "--trials", 2).status == 0
    result = cli(*words, "--trials", 4)  # continues
    assert result.status == 0, result.stderr
    assert "splits" in result.stdout  # the start block
    manifest = json.loads((tmp_path / "s" / "set.json").read_text())
    assert "-m finetune search text" in manifest["command"]
    assert manifest["command"].endswith("--trials=2 --pruner=median")
    runs = finetune.RunSet.load(tmp_path / "s").runs
    scores = {
        run.path.name: max(entry["eval_f1"] for entry in run.manifest.history if "eval_f1" in entry)
        for run in runs
    }
    assert len(scores) == 4
    assert scores[manifest["winner"]] == max(scores.values())
    assert "Best of 4 trials" in result.stdout
    assert manifest["optimism"] == pytest.approx(optimism_by_hand(runs), abs=0.03)
    winner = tmp_path / "s" / manifest["winner"]
    best = finetune.Run.load(winner)
    assert best.status == "finished"
    untested = [run for run in runs if not (run.path / "metrics.json").exists()]
    assert {run.status for run in untested} <= {"validated", "pruned"}
    with pytest.raises(finetune.UserError, match="keeps and tests the best of its trials only"):
        finetune.report(untested[0])
    assert not [path for run in untested for path in run.path.glob("checkpoint-*")]
    chosen = yaml.safe_load((tmp_path / "s" / "best.yaml").read_text())
    trained = cli("text", "--config", tmp_path / "s" / "best.yaml", "--output_dir", tmp_path / "t")
    assert trained.status == 0, trained.stderr
    assert finetune.Run.load(tmp_path / "t").metrics.test == best.metrics.test
    assert chosen.keys() >= {"learning_rate", "num_train_epochs", "dataset"}
    assert "<svg" in (tmp_path / "s" / "report.html").read_text()


@pytest.mark.contract("G3", "F4")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--space lerning_rate=1e-5..1e-3", "did you mean 'learning_rate'"),
        ("--space learning_rate=1e-3..1e-5", "the range is empty"),
        ("--space learning_rate=0..1e-3:log", "LOW..HIGH:log above 0"),
        ("--space learning_rate=fast..slow", "expected numbers"),
        ("--space learning_rate=1e-3", "expected LOW..HIGH, LOW..HIGH:log or A|B"),
        ("--space max_length=10.5..20.5", "--max_length: invalid int value"),
        ("--space global_batch_size=3..5 --gradient_accumulation_steps 2", "cannot be divided"),
        ("--space split_seed=1..9", "all trials share it"),
        ("--space final_epochs=0|3", "all trials share it"),
        ("--space truncation=head|middle", "--truncation"),
        ("--trials 0", "--trials 0: expected 1 or more"),
        ("--pruner half", "'half' (choose from "),
        ("--load_best_model_at_end false", "judged by its best evaluation"),
        ("--save_strategy no", "a search needs evaluations and checkpoints"),
        ("--resume", "the same command continues a set of runs"),
        ("--push_to_hub true", "python -m finetune push RUN"),
        ("--max_minutes 5", "compared at equal epochs"),
        ("--space model=../a|../b", "../a"),
        ("--space max_length=8|8", "expected different values"),
        ("--space weight_decay=0|0.0", "expected different values"),
        ("--space num_train_epochs=1..3 --max_steps 9", "--max_steps decides"),
        ("--num_train_epochs 1 --warmup_steps 3", "are given as flags"),
    ],
)
def test_a_search_that_cannot_be_is_refused(
    options: dict[str, Any], cli: Cli, tmp_path: Path, words: str, message: str
) -> None:
    options.pop("global_batch_size")
    result = cli("search", "text", *flags(**options, output_dir=tmp_path / "s"), *words.split())
    assert result.status == 2
    assert message in result.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.contract("G3")
@pytest.mark.parametrize("damage", ["journal", "space", "files"])
def test_the_directory_of_another_search_is_refused(
    options: dict[str, Any], cli: Cli, tmp_path: Path, damage: str
) -> None:
    words = ["search", "text", *flags(**options, max_steps=1), "--output_dir", tmp_path / "s"]
    del options["learning_rate"]
    if damage == "files":
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / "notes.txt").write_text("mine")
    else:
        assert cli(*words, "--trials", 1, "--space", "learning_rate=1e-4..1e-3").status == 0
    if damage == "journal":
        journal = tmp_path / "s" / "study.journal"
        journal.write_text("{" + journal.read_text()[2:])
    space = "weight_decay=0.1..0.2" if damage == "space" else "learning_rate=1e-4..1e-3"
    result = cli(*words, "--trials", 2, "--space", space).refused()
    expected = {
        "journal": "study.journal is damaged",
        "space": "type the same command again, or use another --output_dir",
        "files": "holds other files",
    }
    assert expected[damage] in result.stderr


@pytest.mark.contract("G3")
@pytest.mark.trains
def test_the_first_trial_of_the_default_space_has_the_default_values(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """The ranges are around them: a fifth to ten times the learning rate. A step has 8 rows, as
    rows are few.
    """
    for name in ("learning_rate", "num_train_epochs", "global_batch_size"):
        del options[name]
    said: list[str] = []
    (run,) = finetune.search(
        "text",
        **options,
        train_samples=24,
        max_steps=1,
        trials=1,
        progress=lambda event: said.append(str(event)),
        output_dir=tmp_path / "s",
    ).runs
    assert run.manifest.configuration["global_batch_size"] == 8
    ranges = re.search(r"learning_rate=(\S+)\.\.(\S+):log", "\n".join(said))
    assert ranges is not None
    low, high = map(float, ranges.groups())
    assert run.manifest.arguments["learning_rate"] == pytest.approx(5 * low)
    assert run.manifest.arguments["learning_rate"] == pytest.approx(high / 10)


class Undefined(finetune.TextRecipe):
    """Its own metric is not a number."""

    own_metrics = ("score",)
    training = dict(metric_for_best_model="score")

    def compute_metrics(self, prediction: Any) -> dict[str, float]:
        """Return a score that is not a number."""
        return {"score": math.nan}


@pytest.mark.contract("G3")
@pytest.mark.trains
def test_a_search_by_a_metric_that_is_not_a_number_ends_with_a_message(
    options: dict[str, Any], tmp_path: Path
) -> None:
    space = {"learning_rate": [1e-3, 1e-2]}
    del options["learning_rate"]
    options |= {"max_steps": 2, "output_dir": tmp_path / "s"}
    with pytest.raises(finetune.RunError, match="no evaluation has a number for score"):
        finetune.search(Undefined, space=space, trials=2, **options)


@pytest.mark.contract("G3")
@pytest.mark.trains
def test_a_search_in_python_varies_choices(
    options: dict[str, Any], cli: Cli, tmp_path: Path
) -> None:
    space = {"global_batch_size": "8|16", "learning_rate": [3e-3, 1e-2]}
    del options["global_batch_size"]
    said: list[str] = []
    options |= {"metric_for_best_model": "loss"}  # which the metrics of the recipe do not have
    with user_error("--pruner half: expected median, hyperband, none"):
        finetune.search("text", **options, pruner="half", output_dir=tmp_path / "s")
    options |= dict(max_steps=2, progress=lambda event: said.append(str(event)))
    found = finetune.search("text", space=space, trials=4, **options, output_dir=tmp_path / "s")
    assert "--space decides learning_rate: the value of --learning_rate is not used" in said
    names = ("global_batch_size", "learning_rate")
    trained = [tuple(run.manifest.arguments[name] for name in names) for run in found.runs]
    assert sorted(trained) == [(8, 3e-3), (8, 1e-2), (16, 3e-3), (16, 1e-2)]
    assert len({run.manifest.data.fingerprint for run in found.runs}) == 1
    page = (tmp_path / "s/report.html").read_text()
    assert "Best of 4 trials: trial-" in page
    assert "too good" not in page  # of a loss
    cli("compare", tmp_path / "s", tmp_path / "s").refused("a search has no seeds")


@pytest.mark.contract("G3")
@pytest.mark.trains
def test_a_search_trains_each_configuration_once(
    options: dict[str, Any], cli: Cli, tmp_path: Path
) -> None:
    """One that diverges, too, and in a search that is continued; then it ends and says so."""
    del options["learning_rate"], options["num_train_epochs"]
    options |= dict(max_steps=2, warmup_steps=0, output_dir=tmp_path / "s")
    words = ["search", "text", *flags(**options)]
    words += ["--no_baseline", "--space", "learning_rate=1e30|1e-3", "--trials"]
    cli(*words, 1)
    result = cli(*words, 9).succeeded()
    trained = [run.manifest for run in finetune.RunSet.load(tmp_path / "s").runs]
    rates = {manifest.arguments["learning_rate"]: manifest.status for manifest in trained}
    assert (len(trained), rates) == (2, {1e-3: "finished", 1e30: "diverged"})
    assert "all 2 combinations of the values in --space have been trained" in result.stdout
    assert "is the best of 2: " in result.stdout
