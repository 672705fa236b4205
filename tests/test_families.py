"""A tiny model of each family: one launch of two processes trains, resumes and predicts with all.

`python -m pytest tests/test_families.py -s -k table` prints the table of docs/models.md.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    CLIPConfig,
    ViTConfig,
    pipeline,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

import finetune
from finetune import UserError
from finetune.models import families
from finetune.models.families import positions
from finetune.models.pretrained import load_classifier, load_config, load_tokenizer
from tests.conftest import HANGS, ROOT, SCRIPTS
from tests.families import FAMILIES, PARTICULAR, POSITIONS, write
from tests.families_job import OPTIONS, Reviews, observe
from tests.warm import Servers

EVERY = sorted(FAMILIES)
launches = pytest.mark.processes
each_family = pytest.mark.parametrize("family", EVERY)
#: The largest difference of logits around 1; rounding is below a tenth of it.
TOLERANCE = 5e-5
WITHOUT_HIDDEN_DROPOUT = ("gemma", "llama", "qwen2", "qwen3")
ONE_DROPOUT = ("t5", "xlnet")
Seen = dict[str, dict[str, Any]]
Models = Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    directory = tmp_path_factory.mktemp("families")
    for family in EVERY:
        write(family, directory / family)
    return directory


def ended(words: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=HANGS
    )


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def two(models: Models, uneven_reviews: Path, out: Path, warm: Servers) -> Seen:
    """What the one launch of two processes saw."""
    words = [str(models), str(uneven_reviews), str(out)]
    done = ended(warm.torchrun(words, environment(), module="tests.families_job"))
    assert done.returncode == 0, done.stderr[-6000:]
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in out.glob("*.json")}
    assert sorted(found) == EVERY
    return found


@pytest.fixture(scope="module")
def one(
    models: Models, uneven_reviews: Path, tmp_path_factory: pytest.TempPathFactory, one_thread: None
) -> Seen:
    """What this process sees."""
    out = tmp_path_factory.mktemp("one")
    return {family: observe(models / family, str(uneven_reviews), out / family) for family in EVERY}


def gap(some: Any, others: Any) -> float:
    return float(np.abs(np.asarray(some) - np.asarray(others)).max())


def test_there_are_all_families_of_the_page() -> None:
    assert len(EVERY) == 21


@launches
def test_all_families_take_no_longer_than_they_may(two: Seen) -> None:
    """Of the processor, in rank 0 of the launch: a busy machine makes no difference."""
    assert sum(seen["seconds"] for seen in two.values()) < 90


@launches
@each_family
def test_two_processes_train_like_one(family: str, one: Seen, two: Seen) -> None:
    losses = one[family]["losses"]
    assert len(losses) == 4
    assert np.ptp(losses) > 0.02  # it was trained, so that a difference would be seen
    assert gap(losses, two[family]["losses"]) < 1e-5
    assert gap(one[family]["logits"], two[family]["logits"]) < TOLERANCE
    assert np.std(one[family]["logits"], axis=0).min() > 100 * TOLERANCE  # rows differ


@launches
@each_family
def test_a_resumed_training_ends_in_the_same_model(family: str, one: Seen, two: Seen) -> None:
    for seen in (one[family], two[family]):
        assert seen["logits"] == seen["resumed"]


def padded_gap(directory: Path, seen: dict[str, Any]) -> float:
    """The largest difference between the logits of the training and those of the saved model under
    the plain library, of each text alone and of all of them in one batch that is padded further.
    """
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    texts, most = seen["texts"], seen["max_length"]
    whole = [tokenizer(text, truncation=True, return_tensors="pt") for text in texts]
    longest = max(each["input_ids"].shape[1] for each in whole)
    padding = dict(padding="max_length", max_length=min(most, longest + 16))
    with torch.no_grad():
        alone = torch.cat([model(**each).logits for each in whole])
        padded = model(**tokenizer(texts, truncation=True, return_tensors="pt", **padding)).logits
    return max(gap(alone, padded), gap(alone, seen["logits"]))


@pytest.fixture(scope="module")
def padded(two: Seen, out: Path, one_thread: None) -> dict[str, float]:
    return {family: padded_gap(out / family, two[family]) for family in EVERY}


@launches
@each_family
def test_padding_changes_nothing(family: str, padded: dict[str, float]) -> None:
    assert padded[family] < TOLERANCE


@launches
@pytest.mark.parametrize("family", ["bert", "t5", "bart", "gpt2", "xlnet"])
def test_a_pipeline_predicts_in_batches_what_the_training_did(
    family: str, two: Seen, out: Path
) -> None:
    classify = pipeline("text-classification", model=str(out / family), device="cpu")
    found = classify(two[family]["texts"], batch_size=8, top_k=None, function_to_apply="none")
    rows = [{each["label"]: each["score"] for each in row} for row in found]
    assert gap([[row["bad"], row["good"]] for row in rows], two[family]["logits"]) < TOLERANCE


HEADER = (
    "| family | class of the head | padding | token | positions | particular | 2 processes | "
    "resumed | padded |"
)


def cells(family: str, seen: dict[str, Any]) -> list[str]:
    """What is the same on every machine."""
    name = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[seen["type"]]
    particular = PARTICULAR.get(family, "")
    limit = "no limit" if seen["positions"] is None else "learned"
    token = seen["pad"].replace("|", "\\|")  # which would end the cell
    return [family, name, seen["side"], f"`{token}`", limit, particular]


@launches
def test_the_table_of_the_page_is_what_was_seen(
    one: Seen, two: Seen, padded: dict[str, float]
) -> None:
    rows = {family: f"| {' | '.join(cells(family, two[family]))} |" for family in FAMILIES}
    print(f"\n{HEADER}\n|{' --- |' * (HEADER.count('|') - 1)}")
    for family, row in rows.items():
        seen = two[family]
        measured = (
            gap(one[family]["logits"], seen["logits"]),
            gap(seen["logits"], seen["resumed"]),
            padded[family],
        )
        print(row, " | ".join(f"{each:.0e}" if each else "0" for each in measured), "|")
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert HEADER in page
    assert [row for row in rows.values() if row not in page] == []


@each_family
def test_the_configuration_says_what_the_task_is(family: str, models: Models) -> None:
    path = str(models / family)
    for kind in ("single_label_classification", "multi_label_classification", "regression"):
        model = load_classifier(path, ["a", "b", "c"], problem_type=kind)
        assert (model.config.problem_type, model.config.num_labels) == (kind, 3)


def is_random(path: str, **dropouts: float) -> bool:
    """Whether two passes of a model in training differ."""
    tokenizer = load_tokenizer(path)
    model = load_classifier(path, ["a", "b"], pad_token_id=tokenizer.pad_token_id, **dropouts)
    batch = tokenizer(["the food was fine", "awful"], padding=True, return_tensors="pt")
    first, second = (model.train()(**batch).logits for _ in range(2))
    return not torch.equal(first, second)


@each_family
def test_a_dropout_is_set_or_refused_by_name(family: str, models: Models) -> None:
    path = str(models / family)
    assert not is_random(path, hidden_dropout=0.0, attention_dropout=0.0)
    kind, refused = FAMILIES[family][0], dict(hidden_dropout=(), attention_dropout=ONE_DROPOUT)
    refused["hidden_dropout"] = WITHOUT_HIDDEN_DROPOUT
    for name, families_without in refused.items():
        none = dict(hidden_dropout=0.0, attention_dropout=0.0)
        if family not in families_without:
            assert is_random(path, **none | {name: 0.5})
            continue
        words = f"--{name} 0.5: a model of type '{kind}' has no such dropout, only "
        with pytest.raises(UserError, match=re.escape(words)):
            is_random(path, **none | {name: 0.5})


def test_a_limit_of_positions_is_taken_where_there_is_one(models: Models) -> None:
    configs = {family: load_config(str(models / family)) for family in EVERY}
    limited = {family for family, config in configs.items() if positions(config) is not None}
    relative = {"deberta", "deberta-v2", "deberta-v3", "modernbert", "xlnet", "t5"}
    assert limited == set(EVERY) - relative - {"llama", "qwen2", "qwen3", "gemma"}


@pytest.mark.parametrize(
    ("kind", "most"),
    [("roformer", 40), ("yoso", 40), ("biogpt", 40), ("luke", 38), ("esm", 39), ("opt", 40)],
)
def test_a_table_of_positions_is_known(kind: str, most: int) -> None:
    """As measured: the longest input on which the model of so many positions does not fail."""
    config = AutoConfig.for_model(kind)
    config.max_position_embeddings = 40
    if kind == "esm":
        config.pad_token_id, config.vocab_size = 0, 33
    assert positions(config) == most


@pytest.mark.parametrize("family", ["bert", "roberta", "bart", "gpt2"])
def test_batches_are_padded_within_the_positions(
    family: str, uneven_reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.families.POSITIONS", 17)  # no multiple of 8
    monkeypatch.setitem(FAMILIES["roberta"][2], "max_position_embeddings", 19)
    path = str(write(family, tmp_path / family))
    recipe = Reviews(dataset=str(uneven_reviews), model=path)
    rows = recipe.prepared["train"].remove_columns("length")
    most = positions(load_config(path))
    assert recipe.max_length == most == recipe.processing_class().model_max_length
    assert f"--max_length {most}: {path} has no more positions" in recipe.notes
    batch = recipe.data_collator()([*rows])
    assert batch["input_ids"].shape[1] == most
    assert torch.isfinite(recipe.build_model(["a", "b"])(**batch).logits).all()


def test_a_length_beyond_the_positions_is_refused(models: Models, uneven_reviews: Path) -> None:
    path = str(models / "gpt2")
    recipe = Reviews(dataset=str(uneven_reviews), model=path, max_length=POSITIONS + 1)
    words = f"--max_length 65: {path} has 64 positions; expected 64 or fewer tokens"
    with pytest.raises(UserError, match=re.escape(words)):
        recipe.check()


@pytest.mark.parametrize("family", ["bart", "gpt2", "llama", "gemma", "qwen2"])
def test_special_tokens_in_a_text_are_text_after_reloading_too(
    family: str, models: Models, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(models / family))
    tokenizer.save_pretrained(tmp_path)
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        special = each(f"fine {each.eos_token} {each.pad_token} food")["input_ids"]
        plain = each("fine food")["input_ids"]
        assert special.count(each.eos_token_id) == plain.count(each.eos_token_id)


def test_a_text_with_the_end_that_a_tokenizer_finds_in_it_is_refused(
    models: Models, tmp_path: Path
) -> None:
    lines = [f"the food of place {number} was fine,{number % 2}" for number in range(60)]
    lines[7] = "the food </s> was fine,1"
    data = tmp_path / "reviews.csv"
    data.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    words = "the text 'the </s> food was fine' spells out '</s>', the token that ends a text"
    options = dict(dataset=str(data), train_samples=None, eval_samples=None)
    with pytest.raises(UserError, match=words):
        _ = Reviews(model=str(models / "t5"), **options).prepared
    assert len(Reviews(model=str(models / "bart"), **options).prepared["train"])


@pytest.mark.trains
@pytest.mark.usefixtures("without_report", "one_thread")
@pytest.mark.parametrize("long_texts", ["cut", "windows"])
def test_a_prediction_refuses_such_a_text_too(
    long_texts: str, models: Models, uneven_reviews: Path, tmp_path: Path
) -> None:
    options = dict(dataset=str(uneven_reviews), model=str(models / "t5"), long_texts=long_texts)
    small = dict(train_samples=40, eval_samples=10, max_length=32, max_steps=1, baseline=False)
    run = finetune.train("text", output_dir=str(tmp_path / "run"), **options, **small)
    assert len(finetune.predict(run, ["the food was fine " * 20, "fine"])) == 2
    words = (
        "the text 'the </s> food was fine' spells out '</s>', the token that ends a text for this "
        "model: take it out of the texts"
    )
    with pytest.raises(UserError, match=re.escape(words)):
        finetune.predict(run, ["fine", "the </s> food was fine"])


def test_the_first_deberta_trains_in_fp32(
    models: Models, uneven_reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune.runtime.precision.prefers_bf16", lambda device: True)
    options = {**OPTIONS, "output_dir": str(tmp_path / "run")}
    del options["precision"]
    recipe = Reviews(dataset=str(uneven_reviews), model=str(models / "deberta"))
    assert not recipe.trainer(**options).args.bf16
    assert "precision fp32: a model of type 'deberta' overflows in bf16 and fp16" in recipe.notes
    second = Reviews(dataset=str(uneven_reviews), model=str(models / "deberta-v3"))
    assert second.trainer(**options).args.bf16
    words = "--precision bf16: a model of type 'deberta' overflows in it; expected --precision fp32"
    with pytest.raises(UserError, match=re.escape(words)):
        recipe.trainer(**options, precision="bf16")


def test_a_tokenizer_without_a_token_to_pad_with_is_refused(models: Models) -> None:
    path = str(models / "gpt2")
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.eos_token = tokenizer.pad_token = None
    words = (
        f"--model {path}: its tokenizer has no padding token, and none that ends a text; add "
        "pad_token to its tokenizer_config.json"
    )
    with pytest.raises(UserError, match=re.escape(words)):
        families.set_pad_token(tokenizer, load_config(path), path)


def test_a_family_without_a_head_for_texts_is_refused(tmp_path: Path) -> None:
    CLIPConfig().save_pretrained(tmp_path)
    words = (
        f"--model {tmp_path}: transformers has no head for sequence classification on a model of "
        "type 'clip'; expected a text model, of type bert or llama for instance"
    )
    with pytest.raises(UserError, match=re.escape(words)):
        load_classifier(str(tmp_path), ["a", "b"])


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A script of the same job, in which a rank fails at the second family."""
    script = tmp_path / "job.py"
    script.write_text(
        "import os, sys\nfrom pathlib import Path\nfrom tests import families_job as job\n"
        "whole = job.observe\n"
        "def observe(model, *others):\n"
        "    if model.name == 'bert' and os.environ['RANK'] == '1':\n"
        "        raise ValueError('rank 1 is broken')\n"
        "    return whole(model, *others)\n"
        "job.observe = observe\n"
        "job.main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])\n",
        encoding="utf-8",
    )
    return script


@launches
@pytest.mark.slow
def test_a_rank_that_fails_ends_the_launch(
    broken: Path, models: Models, uneven_reviews: Path, tmp_path: Path
) -> None:
    torchrun = [str(SCRIPTS / "torchrun"), "--standalone", "--nproc_per_node=2", str(broken)]
    words = [str(models), str(uneven_reviews), str(tmp_path), "albert", "bert", "bart"]
    done = ended([*torchrun, *words])
    assert done.returncode == 1
    assert "ValueError: rank 1 is broken" in done.stderr
    assert sorted(path.stem for path in tmp_path.glob("*.json")) == ["albert"]


@pytest.mark.slow
@pytest.mark.parametrize("label", ["class", "number"])
@each_family
def test_a_whole_run_of_the_family(
    family: str, label: str, models: Models, tmp_path: Path, without_report: None, one_thread: None
) -> None:
    """From a file to predictions, of classes in bf16 and of numbers, which a head may lack a bias
    for."""
    lines = []
    for number in range(80):
        word = ("awful", "great")[number % 2]
        value = (("bad", "good")[number % 2], number % 2 + 0.5)[label == "number"]
        lines.append(
            f"the food of place {number} was {' '.join([word] * (1 + number % 9))},{value}"
        )
    data = tmp_path / "data.csv"
    data.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    run = finetune.train(
        "text",
        dataset=str(data),
        model=str(models / family),
        output_dir=str(tmp_path / "run"),
        max_steps=3,
        global_batch_size=8,
        precision="fp32" if family == "deberta" or label == "number" else "bf16",
        use_cpu=True,
        baseline=False,
    )
    texts = ["the food was great", "awful awful " * 12, "fine"]
    together = finetune.predict(run, texts, precision="fp32")
    alone = [finetune.predict(run, [text], precision="fp32") for text in texts]
    column = "prediction" if label == "number" else "probability"
    apart = [float(each[column].iloc[0]) for each in alone]
    assert gap(together[column].astype(float), apart) < TOLERANCE


def test_a_model_of_images_is_refused_for_texts_before_its_tokenizer(tmp_path: Path) -> None:
    ViTConfig().save_pretrained(tmp_path)
    recipe = Reviews(dataset="rows.csv", model=str(tmp_path))
    for step in (recipe.check, recipe.processing_class):
        with pytest.raises(UserError, match=r"no head for sequence classification .* 'vit'"):
            step()
