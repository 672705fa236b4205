"""Section D: training is right, however it is launched, stopped, killed or damaged.

`make gpu-check` tests DataParallel and FSDP (D4), which need accelerators. Losses and weights are
compared with the loop in `native_loop.py` and with scikit-learn, launches with each other, and
resumed runs with uninterrupted ones. `faulty.py` is a recipe that injects faults.
"""

import contextlib
import importlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
import xxhash
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.metrics import f1_score, log_loss, mean_squared_error
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import finetune
from finetune import Run, TextRecipe
from recipes.text import Text
from tests.acceptance import data, native_loop
from tests.acceptance.conftest import Commands, Finished, flags, once, record
from tests.conftest import HANGS, ROOT
from tests.hub import Hub
from tests.jobs import free_port, rank_without_launcher, wait_until
from tests.warm import Servers

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")
Cli = Callable[..., Finished]
HERE = Path(__file__).parent
FAULTY = HERE / "faulty.py"
#: The maximum time in seconds until a failing job ends (D9).
MINUTE = 60


# ---- D1: one training, however it is launched ----------------------------------------------------

ROWS = {"train": 101, "validation": 23, "test": 37}
BATCH, EPOCHS, LENGTH = 12, 2, 24
STEPS = EPOCHS * (ROWS["train"] // BATCH)
LAUNCHED: dict[str, Any] = dict(
    optim="sgd",
    learning_rate=0.1,
    warmup_steps=0,
    weight_decay=0.0,
    num_train_epochs=EPOCHS,
    global_batch_size=BATCH,
    max_length=LENGTH,
    logging_steps=1,
    eval_strategy="epoch",
    save_strategy="no",
    load_best_model_at_end=False,
    per_device_eval_batch_size=4,
    precision="fp32",
    num_threads=1,
    baseline=False,
    disable_tqdm=True,
)
#: Options for training on consecutive rows, as in the hand-written loop.
IN_ORDER = dict(train_sampling_strategy="sequential")
RARE = dict(label_column="rare", **IN_ORDER)
#: Options for a head that is fitted to all rows: a tenth of those of ten epochs.
PROBED = dict(model="pretrained_bert", num_train_epochs=10, learning_rate=1e-4, max_length=64)
CASES: dict[str, dict[str, Any]] = {
    "single label": dict(label_column="verdict", **IN_ORDER),
    "weights": dict(class_weights="balanced", **RARE),
    "weights, smoothed": dict(class_weights="many=1,few=7", label_smoothing_factor=0.2, **RARE),
    "focal": dict(loss_function="focal", **RARE),
    "multi label": dict(
        label_column="tags", label_separator=";", thresholds="none", **IN_ORDER
    ),
    "regression": dict(label_columns="share,words", task="regression", **IN_ORDER),
    "huber": dict(label_columns="share,words", loss_function="huber", **IN_ORDER),
    "ordinal": dict(label_column="stars", task="ordinal", loss_function="soft"),
    "columns of 0 and 1": dict(label_columns="is_good,is_long", task="multi_label"),
    "balanced sampling": dict(
        label_column="rare", class_sampling="balanced", loss_function="focal"
    ),
    "pair": dict(text_columns="text,second", label_column="verdict"),
    "windows": dict(label_column="verdict", long_texts="windows", max_length=12),
    "tokens": dict(
        recipe=str(FAULTY), label_column="verdict", max_tokens_per_batch=400, global_batch_size=None
    ),
    "rows": dict(
        recipe=str(FAULTY), label_column="verdict", train_sampling_strategy="random",
        optim="adamw_torch", learning_rate=3e-3,
    ),
    "rows that divide": dict(label_column="verdict", train_samples=96),
    "images": dict(recipe="image", max_length=None, dataset="photos", model="vit"),
    "adapter": dict(label_column="verdict", adapter="lora", lora_dora=True),
    "probe": dict(label_column="is_long", task="single_label", head="probe", **PROBED),
    "mean": dict(
        label_column="is_long", task="single_label", head="mean", final_epochs=1, **PROBED
    ),
    "words": dict(
        recipe="tokens", dataset="sentences", class_weights="balanced", max_length=20, stride=4
    ),
    "final epochs": dict(label_column="tags", label_separator=";", final_epochs=2),
    "refit": dict(label_column="tags", label_separator=";", refit=True, seed=7),
    "teacher": dict(
        label_column="verdict", teacher="teacher", unlabelled="spare", final_epochs=1,
        label_smoothing_factor=0.1,
    ),
    "layers": dict(label_column="verdict", layers=1),
    "soft labels": dict(
        label_column="verdict", label_probabilities="bad=says_bad,good=says_good",
        class_weights="bad=1,good=2",
    ),
}  # fmt: skip
#: Cases for several processes: three processes train one of each task, and other kinds of steps.
IN_TWO = [name for name in CASES if name not in ("weights, smoothed", "focal")]
IN_THREE = ["single label", "weights", "multi label", "regression", "ordinal", "windows"]
IN_THREE += [
    "tokens",
    "rows",
    "images",
    "probe",
    "mean",
    "words",
    "final epochs",
    "teacher",
    "refit",
]
#: Processes: accumulation steps. The reference is one process with one step.
LAUNCHES = {1: 3, 2: 2, 3: 1}
#: Extra cases at the end of each job; the last one fails and ends it.
#: Directory, options, environment.
LAST: dict[int, list[tuple[str, dict[str, Any], dict[str, str]]]] = {
    2: [
        ("whole", {}, {}),
        ("timed/run", dict(max_minutes=0.01, ddp_timeout=60), {}),
        ("diverged", {}, {"FAULT": "loss 5,nan,1"}),
    ],
    3: [("refused", dict(global_batch_size=32), {})],
}


def write_table(directory: Path) -> Path:
    """Write a directory of splits with a column of labels for each task."""
    draw, first = random.Random(3), 0
    directory.mkdir()
    for split, size in ROWS.items():
        rows = []
        for number in range(first, first + size):
            label = draw.choice(["bad", "good"])
            tags = draw.sample(["dear", "loud", "near"], draw.randint(1, 2))
            text = data.sentence(label, number, draw)
            rows.append(
                {
                    "text": text,
                    "second": data.sentence(draw.choice(["bad", "good"]), number, draw),
                    "verdict": label,
                    "tags": ";".join(tags),
                    "is_good": int(label == "good"),
                    "is_long": int(len(text) > 60),
                    "share": round(draw.random() + (label == "good"), 3),
                    "words": len(text.split()) + draw.random(),
                    "stars": draw.randint(1, 5),
                    "rare": "few" if draw.random() < 0.2 else "many",
                    "says_bad": number % 3,
                    "says_good": 1 + number % 5,
                }
            )
        first += size
        pd.DataFrame(rows).to_csv(directory / f"{split}.csv", index=False)
    return directory


@pytest.fixture(scope="session")
def table(shared_directory: Path) -> Path:
    return once(shared_directory / "table", write_table)


@pytest.fixture(scope="session")
def sources(
    shared_directory: Path, table: Path, bert: Path, pretrained_bert: Path, vit: Path,
    spare: Path, single_label_run: Run,
) -> dict[str, str]:  # fmt: skip
    photos = once(shared_directory / "photos", data.write_photos)
    sentences = once(shared_directory / "sentences.conll", data.write_conll)
    paths = {"table": table, "bert": bert, "pretrained_bert": pretrained_bert}
    paths |= {"photos": photos, "vit": vit, "sentences": sentences}
    paths |= {"spare": spare, "teacher": single_label_run.path}
    return {name: str(path) for name, path in paths.items()}


Options = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def options(sources: dict[str, str]) -> Options:
    """Return a function from a case to its keywords of `finetune.train`."""

    def of_case(name: str, **more: Any) -> dict[str, Any]:
        chosen = {"dataset": "table", "model": "bert", **LAUNCHED, **CASES[name], **more}
        files = {"dataset", "model", "teacher", "unlabelled"} & chosen.keys()
        chosen |= {key: sources[chosen[key]] for key in files}
        return {key: value for key, value in chosen.items() if value is not None}

    return of_case


Launched = Callable[[str, int, int], Run]


@pytest.fixture(scope="session")
def launched(shared_directory: Path, options: Options, jobs: Callable[[int], Path]) -> Launched:
    """Return a function from a case, processes and accumulation steps to a run."""

    def of_case(name: str, processes: int, accumulation: int) -> Run:
        if processes > 1:
            return Run.load(jobs(processes) / name / "run")

        def train(directory: Path) -> None:
            directory.mkdir(parents=True)
            chosen = options(name, gradient_accumulation_steps=accumulation)
            with mock.patch.dict(os.environ, {"ROWS": str(directory)}):
                recipe = chosen.pop("recipe", "text")
                finetune.train(recipe, output_dir=str(directory / "run"), **chosen)

        place = shared_directory / f"1x{accumulation}"
        place.mkdir(exist_ok=True)
        return Run.load(once(place / name, train) / "run")

    return of_case


@pytest.fixture(scope="session")
def jobs(
    shared_directory: Path, options: Options, servers: Servers, faulty: dict[str, str]
) -> Callable[[int], Path]:
    """Return a function to the directory of a torchrun job that has trained all cases."""

    def train_all(directory: Path, processes: int) -> None:
        cases = []
        for name in IN_TWO if processes == 2 else IN_THREE:
            (directory / name).mkdir(parents=True)
            chosen = options(name, gradient_accumulation_steps=LAUNCHES[processes])
            chosen["output_dir"] = str(directory / name / "run")
            environment = {"ROWS": str(directory / name)}
            recipe = chosen.pop("recipe", "text")
            cases.append(dict(recipe=recipe, options=chosen, environment=environment))
        for name, more, environment in LAST[processes]:
            chosen = faulty | more | {"output_dir": str(directory / name)}
            (directory / name).parent.mkdir(exist_ok=True)
            environment = environment | {"ROWS": str((directory / name).parent)}
            cases.append(dict(recipe=str(FAULTY), options=chosen, environment=environment))
        for case in cases:
            case["port"] = free_port()
        (directory / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
        launch = ("--standalone", f"--nproc_per_node={processes}")
        words, module = [str(directory / "cases.json")], "tests.acceptance.job"
        line = servers.torchrun(words, os.environ, *launch, module=module)
        record(shared_directory, "commands", f"torchrun: {processes} processes, every task")
        job = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            output, _ = job.communicate(timeout=HANGS)
        except subprocess.TimeoutExpired:
            job.kill()
            output = f"it hangs: {job.communicate()[0]}"
        (directory / "output.txt").write_text(output, encoding="utf-8")

    def job(processes: int) -> Path:
        return once(shared_directory / f"job-{processes}", lambda path: train_all(path, processes))

    return job


def numbers(run: Run) -> list[dict[str, float]]:
    """Return the logged numbers of each step and evaluation, without the speed."""
    speed = ("runtime", "per_second", "flos", "groups")
    return [
        {name: value for name, value in entry.items() if not name.endswith(speed)}
        for entry in run.manifest.history
    ][:-1]  # the last entry has the speed


def assert_same_weights(path: Path, expected: Path) -> None:
    """Compare the weights of two runs.

    AdamW moves weights with a true gradient of zero by rounding errors; their norms are compared.
    """
    weights, reference = (load_file(run / "model.safetensors") for run in (path, expected))
    assert weights.keys() == reference.keys()
    if Run.load(path).manifest.arguments["optim"] == "sgd":
        for name, value in weights.items():
            torch.testing.assert_close(value, reference[name], rtol=1e-5, atol=1e-6, msg=name)
    gap = sum((value - reference[name]).square().sum() for name, value in weights.items())
    assert gap.sqrt() < 1e-4 * sum(value.square().sum() for value in reference.values()).sqrt()


def assert_close(run: Run, expected: Run) -> None:
    """Compare losses, weights, predictions and metrics of two runs."""
    assert len(numbers(run)) == len(numbers(expected)) >= 14
    for entry, other in zip(numbers(run), numbers(expected), strict=True):
        assert entry == pytest.approx(other, rel=1e-5, abs=1e-6)
        if "loss" in entry:
            assert entry["loss"] == pytest.approx(other["loss"], rel=1e-6, abs=1e-6)
    assert_same_weights(run.path, expected.path)
    pd.testing.assert_frame_equal(run.predictions, expected.predictions, rtol=1e-5, atol=1e-6)
    for split in ("validation", "test"):
        assert run.metrics[split] == pytest.approx(expected.metrics[split], rel=1e-5, abs=1e-6)


@pytest.mark.contract("B3", "D1")
@pytest.mark.parametrize(
    ("processes", "name"), [*((2, name) for name in IN_TWO), *((3, name) for name in IN_THREE)]
)
def test_processes_change_nothing(launched: Launched, processes: int, name: str) -> None:
    run = launched(name, processes, LAUNCHES[processes])
    expected = launched(name, 1, 1)
    assert_close(run, expected)
    if name == "refit":
        assert_same_weights(run.path / "refit", expected.path / "refit")
    assert run.manifest.launch["world_size"] == processes
    notes = [note for note in run.manifest.data.notes if note.startswith("head: ")]
    assert len(notes) == ("pretrained_bert" in CASES[name].values())
    assert "random weights, because" not in "".join(notes)


@pytest.mark.contract("D1")
@pytest.mark.parametrize(
    "name", ["weights", "focal", "multi label", "regression", "windows", "words"]
)
def test_accumulation_changes_nothing(launched: Launched, name: str) -> None:
    """A step has three micro-batches with different class frequencies."""
    assert_close(launched(name, 1, 3), launched(name, 1, 1))


@pytest.mark.contract("D1")
def test_the_cases_differ(launched: Launched) -> None:
    """No option is ignored: all cases have different losses."""
    runs = [launched(name, 1, 1) for name in CASES]
    losses = [numbers(run)[3]["loss"] for run in runs]
    assert len({round(loss, 5) for loss in losses}) == len(CASES)


def class_ids(run: Run, rows: pd.DataFrame) -> torch.Tensor:
    column = run.manifest.options["label_column"]
    return torch.tensor([run.labels.index(label) for label in rows[column]])


def targets_of(name: str, run: Run, rows: pd.DataFrame, train: pd.DataFrame) -> torch.Tensor:
    """Return the targets of rows: class ids, 0 and 1, or standardized numbers."""
    if name == "multi label":
        cells = [cell.split(";") for cell in rows["tags"]]
        return torch.tensor([[float(label in cell) for label in run.labels] for cell in cells])
    if name == "regression":
        columns = ["share", "words"]
        scaled = (rows[columns] - train[columns].mean()) / train[columns].std(ddof=0)
        return torch.tensor(scaled.to_numpy(dtype=np.float32))
    return class_ids(run, rows)


#: test_tasks.py has the other losses.
NATIVE: dict[str, native_loop.Loss] = {
    "single label": cross_entropy,
    "multi label": binary_cross_entropy_with_logits,
}


@pytest.mark.contract("D1")
@pytest.mark.parametrize("name", NATIVE)
def test_a_hand_written_loop_gives_the_same(
    launched: Launched, table: Path, bert: Path, name: str
) -> None:
    """The loss of a step is its mean over the global batch."""
    run = launched(name, 1, 1)
    train, test = (pd.read_csv(table / f"{split}.csv") for split in ("train", "test"))
    targets = targets_of(name, run, train, train)
    losses, model = native_loop.train(
        bert, train["text"].tolist(), targets, NATIVE[name],
        outputs=len(run.labels), epochs=EPOCHS, batch_size=BATCH, learning_rate=0.1,
        max_length=LENGTH,
    )  # fmt: skip
    logged = [entry for entry in numbers(run) if "loss" in entry]
    assert [entry["step"] for entry in logged] == list(range(1, STEPS + 1))
    assert [entry["loss"] for entry in logged] == pytest.approx(losses, rel=1e-5, abs=1e-6)
    saved = load_file(run.path / "model.safetensors")
    outputs = native_loop.logits(model, run.path, test["text"].tolist(), LENGTH)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(saved[key], value, rtol=1e-4, atol=1e-5, msg=key)
    scores = outputs.sigmoid() if name == "multi label" else outputs.softmax(dim=-1)
    names = [f"probability of {label}" for label in run.labels]
    np.testing.assert_allclose(run.predictions[names], scores, rtol=1e-4, atol=1e-5)


def rows_of_steps(run: Run, token_ids: list[list[int]]) -> list[list[list[int]]]:
    """Return the rows of each step, by process and micro-batch."""
    steps: dict[int, list[list[int]]] = {}
    for path in sorted(run.path.parent.glob("rank*.jsonl")):
        for line in path.read_text().splitlines():
            step, micro_batch = json.loads(line)
            steps.setdefault(step, []).append([token_ids.index(tokens) for tokens in micro_batch])
    return [steps[step] for step in sorted(steps)]


@pytest.fixture
def token_ids(table: Path, bert: Path) -> list[list[int]]:
    """The tokens of each training row."""
    tokenizer = AutoTokenizer.from_pretrained(bert)
    texts = pd.read_csv(table / "train.csv")["text"].tolist()
    return [tokenizer(text, truncation=True, max_length=LENGTH)["input_ids"] for text in texts]


@pytest.mark.contract("D1", "D2")
@pytest.mark.parametrize(("processes", "accumulation"), [(1, 1), *list(LAUNCHES.items())[1:]])
def test_a_step_has_the_same_rows_in_every_launch(
    launched: Launched, token_ids: list[list[int]], processes: int, accumulation: int
) -> None:
    """Each epoch leaves out five of 101 rows, different ones each time, and repeats none."""
    steps = rows_of_steps(launched("rows", processes, accumulation), token_ids)
    assert len(steps) == STEPS
    share = BATCH // (processes * accumulation)
    assert {len(rows) for step in steps for rows in step} == {share}
    assert {len(step) for step in steps} == {processes * accumulation}
    flat = [sorted(chain(*step)) for step in steps]
    epochs = [sorted(chain(*flat[start : start + 8])) for start in (0, 8)]
    for rows in epochs:
        assert len(set(rows)) == len(rows) == 8 * BATCH
    assert epochs[0] != epochs[1]
    one = rows_of_steps(launched("rows", 1, 1), token_ids)
    assert flat == [sorted(chain(*step)) for step in one]


@pytest.mark.contract("D1", "D2")
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_step_has_at_most_the_requested_tokens_and_every_row_is_used(
    launched: Launched, token_ids: list[list[int]], processes: int
) -> None:
    """The limit includes padding, over all processes and micro-batches."""
    steps = rows_of_steps(launched("tokens", processes, LAUNCHES[processes]), token_ids)
    for step in steps:
        assert sum(len(rows) * max(len(token_ids[row]) for row in rows) for rows in step) <= 400
    rows = sorted(chain(*chain(*steps)))
    assert rows == sorted(EPOCHS * [*range(ROWS["train"])])


# ---- D2: the global batch ------------------------------------------------------------------------


@pytest.mark.contract("D2")
@pytest.mark.parametrize(
    ("chosen", "sizes"),
    [
        (dict(global_batch_size=12), [12] * 8),
        (dict(global_batch_size=12, gradient_accumulation_steps=3), [4] * 24),
        (dict(global_batch_size=101), [101]),
        (dict(per_device_train_batch_size=5, gradient_accumulation_steps=2), [5] * 20),
        (dict(per_device_train_batch_size=50), [50] * 2),
    ],
    ids=str,
)
def test_the_global_batch_is_divided(
    sources: dict[str, str], tmp_path: Path, chosen: dict[str, Any], sizes: list[int]
) -> None:
    source = dict(dataset=sources["table"], model=sources["bert"], label_column="verdict")
    trainer = Text(**source).trainer(output_dir=str(tmp_path), num_train_epochs=1, **chosen)
    assert [len(batch["labels"]) for batch in trainer.get_train_dataloader()] == sizes
    options = dict(output_dir=str(tmp_path / "run"), num_train_epochs=3, **chosen)
    checked = finetune.check("text", **source, **options)
    assert checked.steps == 3 * len(sizes) // chosen.get("gradient_accumulation_steps", 1)


@pytest.mark.contract("D2")
@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        ("--global_batch_size 13 --gradient_accumulation_steps 2", ["13", "12", "14"]),
        ("--global_batch_size 10 --gradient_accumulation_steps 4", ["10", "8", "12"]),
        ("--global_batch_size 2 --gradient_accumulation_steps 3", ["2", "3"]),
        ("--global_batch_size 102", ["102", "101"]),
        ("--gradient_accumulation_steps 0", ["--gradient_accumulation_steps 0"]),
    ],
    ids=str,
)
def test_a_batch_that_does_not_divide_is_refused(
    cli: Cli, sources: dict[str, str], tmp_path: Path, words: str, fragments: list[str]
) -> None:
    source = flags(dataset=sources["table"], model=sources["bert"], label_column="verdict")
    result = cli("text", *source, "--output_dir", tmp_path / "run", *words.split())
    assert (result.status, result.stdout) == (2, "")
    for fragment in fragments:
        assert re.search(rf"(?<!\d){fragment}(?!\d)", result.stderr), result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.contract("D2")
def test_three_processes_cannot_share_32_rows(jobs: Callable[[int], Path]) -> None:
    """The message is the same on each rank and names the nearest batch sizes that divide."""
    output = (jobs(3) / "output.txt").read_text(encoding="utf-8")
    (message,) = set(re.findall(r"UserError: (?:rank 0: )?(.*batch_size 32 .*)", output))
    assert {"30", "33"} <= set(re.findall(r"\d+", message))
    assert not (jobs(3) / "refused").exists()


# ---- D3: evaluation ------------------------------------------------------------------------------


def loss_by_hand(name: str, run: Run, rows: pd.DataFrame, predictions: pd.DataFrame) -> float:
    """Return the unweighted mean loss of rows, from probabilities or numbers."""
    train = rows.attrs["train"]
    targets = targets_of(name, run, rows, train).numpy()
    if name == "regression":
        columns = ["share", "words"]
        scaled = predictions[[f"prediction of {column}" for column in columns]].to_numpy()
        scaled = (scaled - train[columns].mean().to_numpy()) / train[columns].std(ddof=0).to_numpy()
        return float(mean_squared_error(targets, scaled))
    scores = predictions[[f"probability of {label}" for label in run.labels]].to_numpy(float)
    if name == "multi label":
        return float(np.mean([log_loss(*pair) for pair in zip(targets.T, scores.T, strict=True)]))
    return float(log_loss(targets, scores / scores.sum(axis=1, keepdims=True)))


@pytest.mark.contract("D3")
@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("name", ["single label", "weights", "multi label", "regression"])
def test_every_test_row_counts_once_in_its_order(
    launched: Launched, table: Path, name: str, processes: int
) -> None:
    """There are 37 rows, which batches of four on two or three processes do not divide."""
    run = launched(name, processes, 1 if processes == 1 else LAUNCHES[processes])
    test = pd.read_csv(table / "test.csv")
    test.attrs["train"] = pd.read_csv(table / "train.csv")
    assert run.predictions["id"].tolist() == list(range(ROWS["test"]))
    assert run.predictions["text"].tolist() == test["text"].tolist()
    by_hand = loss_by_hand(name, run, test, run.predictions)
    assert run.metrics["test"]["loss"] == pytest.approx(by_hand, rel=1e-5, abs=1e-6)
    if name == "single label":
        f1 = f1_score(test["verdict"], run.predictions["prediction"], average="macro")
        assert run.metrics["test"]["f1"] == pytest.approx(f1)


@pytest.mark.contract("D3")
@pytest.mark.parametrize(
    ("name", "processes"),
    [("single label", 1), ("single label", 3), ("weights", 1), ("weights", 3), ("focal", 1)],
)
def test_the_loss_of_an_evaluation_in_training_is_that_of_its_rows(
    launched: Launched, table: Path, name: str, processes: int
) -> None:
    """The last evaluation is that of the saved model on 23 rows, by hand."""
    run = launched(name, processes, 1)
    rows = pd.read_csv(table / "validation.csv")
    model = AutoModelForSequenceClassification.from_pretrained(run.path).eval()
    outputs = native_loop.logits(model, run.path, rows["text"].tolist(), LENGTH)
    loss = cross_entropy(outputs, class_ids(run, rows)).item()
    logged = [entry["eval_loss"] for entry in numbers(run) if "eval_loss" in entry]
    assert len(logged) == EPOCHS
    assert logged[-1] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert run.metrics["validation"]["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)


# ---- D4: machines, schedulers, accelerators ------------------------------------------------------


@pytest.fixture(scope="module")
def machines(
    shared_directory: Path, servers: Servers, options: Options
) -> Callable[[], tuple[Path, list[str]]]:
    """Return a function that starts two ranks as a cluster does, in separate directories."""

    def train_all(directory: Path) -> None:
        nodes = [str(directory / name) for name in ("first", "second")]
        for node in nodes:
            Path(node).mkdir(parents=True)
        cases: list[dict[str, Any]] = [
            dict(options={"output_dir": str(directory / "shared")}),
            dict(options={"output_dir": "run", "save_on_each_node": True}),
            dict(options={"output_dir": str(directory / "not shared")}),
        ]
        cases[2]["by_rank"] = [{"learning_rate": 0.1}, {"learning_rate": 0.2}]
        for case in cases:
            case["options"] = options("single label") | case["options"]
            case |= dict(recipe="text", port=free_port(), directories=nodes)
        (directory / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
        ranks = []
        for rank in range(2):
            environment = {**os.environ, **rank_without_launcher(rank, 2, port=0)}
            words = [str(directory / "cases.json")]
            line = servers.words("tests.acceptance.job", words, environment)
            record(shared_directory, "commands", f"machine {rank}")
            with (directory / f"output{rank}.txt").open("w") as file:
                job = subprocess.Popen(line, env=environment, stdout=file, stderr=file)
            ranks.append(job)
        for job in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(timeout=HANGS)
            job.kill()

    def job() -> tuple[Path, list[str]]:
        path = once(shared_directory / "machines", train_all)
        return path, [(path / f"output{rank}.txt").read_text() for rank in range(2)]

    return job


@pytest.mark.contract("D4")
def test_machines_train_one_run_in_a_shared_directory(
    machines: Callable[[], tuple[Path, list[str]]], launched: Launched
) -> None:
    directory, output = machines()
    assert (directory / "shared" / "run.json").exists(), output
    run = Run.load(directory / "shared")
    assert_close(run, launched("single label", 1, 1))
    assert run.manifest.launch["machines"] == 2


@pytest.mark.contract("D4")
def test_machines_with_save_on_each_node_have_the_whole_run_each(
    machines: Callable[[], tuple[Path, list[str]]], launched: Launched
) -> None:
    directory, output = machines()
    for node in ("first", "second"):
        assert (directory / node / "run" / "run.json").exists(), output
        run = Run.load(directory / node / "run")
        assert run.manifest.status == "finished"
        assert_close(run, launched("single label", 1, 1))
        assert len(finetune.predict(run, ["a fine place"])) == 1


@pytest.mark.contract("D4")
def test_machines_with_other_flags_are_refused(
    machines: Callable[[], tuple[Path, list[str]]],
) -> None:
    """Both name the flag before anything is written."""
    directory, output = machines()
    for text in output:
        lines = " ".join(line for line in text.splitlines() if "--learning_rate" in line)
        assert {"0.1", "0.2"} <= set(re.findall(r"\d\.\d", lines))
    assert not (directory / "not shared").exists()


@pytest.mark.contract("D4")
@pytest.mark.skipif(torch.accelerator.is_available(), reason="accelerators can shard")
@pytest.mark.parametrize("value", ["", "full_shard"])
def test_fsdp_is_refused_on_a_cpu(
    cli: Cli, faulty: dict[str, str], tmp_path: Path, value: str
) -> None:
    """`Trainer` would silently use DDP."""
    result = cli("text", *flags(**faulty, output_dir=tmp_path / "run"), "--fsdp", *value.split())
    assert result.status == 2
    assert "--fsdp" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.contract("D4", "D5")
@pytest.mark.parametrize("variable", ["SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"])
def test_a_job_that_is_started_again_resumes_without_the_flag(
    train: "Train", tmp_path: Path, variable: str
) -> None:
    """SLURM starts requeued jobs like this, and `torchrun --max-restarts` its processes."""
    assert train(tmp_path / "run", "--max_steps", 6, fault="step 4,SIGTERM").status == 75
    assert train(tmp_path / "run", "--max_steps", 6, environment={variable: "1"}).status == 0
    assert [path.name for path in tmp_path.glob("run*")] == ["run"]
    assert Run.load(tmp_path / "run").manifest.steps_before == 4


@pytest.mark.contract("D4", "F4")
def test_a_number_of_restarts_that_is_none_is_refused(train: "Train", tmp_path: Path) -> None:
    result = train(tmp_path / "run", environment={"SLURM_RESTART_COUNT": "first"})
    result.refused("SLURM_RESTART_COUNT=first: expected the number of restarts")


@pytest.mark.contract("D4")
@pytest.mark.parametrize(("gpus", "processes"), [({}, "1"), ({"SLURM_GPUS_ON_NODE": "4"}, "4")])
def test_the_batch_script_of_slurm_starts_torchrun(
    tmp_path: Path, gpus: dict[str, str], processes: str
) -> None:
    """The called programs are replaced, and variables are those of the second of two nodes."""
    programs = {
        "scontrol": 'test "$*" = "show hostnames node[8-9]" && printf "node8\nnode9\n"',
        "srun": 'while [[ $1 == -* ]]; do shift; done; SLURMD_NODENAME=node9 "$@"',
        "torchrun": 'printf "%s\n" "$@" > started',
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    job = {"JOB_ID": "123456", "JOB_NODELIST": "node[8-9]", "NNODES": "2", "CPUS_PER_TASK": "8"}
    environment = {f"SLURM_{name}": value for name, value in job.items()} | gpus
    environment["PATH"] = f"{tmp_path}:{os.defpath}"
    script = HERE.parents[1] / "docs" / "cluster" / "train.sbatch"
    words = ["bash", str(script), "sentiment", "--output_dir", "a directory"]
    subprocess.run(words, cwd=tmp_path, env=environment, check=True)
    started = (tmp_path / "started").read_text().splitlines()
    assert started[-5:] == ["-m", "finetune", "sentiment", "--output_dir", "a directory"]
    assert {"--nnodes=2", f"--nproc_per_node={processes}"} <= set(started)
    assert any("node8" in word for word in started)


@pytest.mark.contract("D4")
def test_the_kubernetes_file_starts_one_torchrun_on_each_pod(cli: Cli) -> None:
    """Two pods of one job run the same command on a volume that both can write to."""
    file = HERE.parents[1] / "docs" / "cluster" / "pytorchjob.yaml"
    claim, job = yaml.safe_load_all(file.read_text("utf-8"))
    assert (claim["kind"], job["kind"]) == ("PersistentVolumeClaim", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {name: replica["replicas"] for name, replica in replicas.items()} == {
        "Master": 1,
        "Worker": 1,
    }
    for replica in replicas.values():
        pod = replica["template"]["spec"]
        (container,) = pod["containers"]
        assert container["command"] == ["torchrun", "-m", "finetune"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        shared = volumes[mounts["/shared"]]["persistentVolumeClaim"]["claimName"]
        assert shared == claim["metadata"]["name"]
        assert container["args"][-1].startswith("/shared/")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    recipe, *options = container["args"]
    assert recipe in cli("list").stdout
    assert [word.strip("-") for word in options[::2]] == ["output_dir"]


# ---- D5: resumed as if it had never stopped ------------------------------------------------------

#: 18 steps, nine in each epoch, and a checkpoint after every third step.
EPOCH, LAST_STEP = 9, 18


@pytest.fixture(scope="session")
def faulty(shared_directory: Path) -> dict[str, str]:
    """Splits of 144, 40 and 40 reviews, and a BERT with dropout, to test random states."""

    def write(directory: Path) -> None:
        directory.mkdir()
        rows = data.labelled_sentences(224)
        for split, first, last in (("train", 0, 144), ("validation", 144, 184), ("test", 184, 224)):
            data.write_csv(directory / f"{split}.csv", ["text", "label"], rows[first:last])

    model = once(shared_directory / "dropout", lambda path: data.write_bert(path, dropout=0.1))
    return {"dataset": str(once(shared_directory / "faulty", write)), "model": str(model)}


Train = Callable[..., Finished]
#: The signals that stop a training. Tests give each a handler that does nothing, unless it is
#: ignored, so that a signal that the training does not handle does not end the tests.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


@pytest.fixture
def train(cli: Cli, faulty: dict[str, str]) -> Train:
    """Return a function that trains the recipe `faulty.py`, or another one of its kind, in this
    process with a fault.
    """

    def run(
        output_dir: Path, *words: object, fault: str = "",
        environment: dict[str, str] | None = None, ignored: int | None = None,
        recipe: Path = FAULTY,
    ) -> Finished:  # fmt: skip
        typed = [*flags(**faulty), "--output_dir", output_dir, *words]
        handlers = {
            number: signal.signal(number, signal.SIG_IGN if number == ignored else lambda *_: None)
            for number in SIGNALS
        }
        with mock.patch.dict(os.environ, {"FAULT": fault, **(environment or {})}):
            try:
                return cli(recipe, *typed)
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)

    return run


@pytest.fixture(scope="session")
def whole(shared_directory: Path, faulty: dict[str, str]) -> Callable[..., Path]:
    """Return a function from training arguments to an uninterrupted run."""

    def trained(**more: Any) -> Path:
        def train(path: Path) -> None:
            finetune.train(str(FAULTY), **faulty, **more, output_dir=str(path / "run"))

        name = "-".join(["whole", *(f"{name}={value}" for name, value in more.items())])
        return once(shared_directory / name, train) / "run"

    return trained


def assert_identical(run: Path, expected: Path) -> None:
    """Compare two runs bit by bit: model, optimizer, schedule, random states, log, results."""
    assert Run.load(run).manifest.status == "finished"
    assert numbers(Run.load(run)) == numbers(Run.load(expected))
    for split in ("validation", "test"):
        assert Run.load(run).metrics[split] == Run.load(expected).metrics[split]
    assert Run.load(run).predictions.equals(Run.load(expected).predictions)
    last = list((expected / checkpoints(expected)[-1]).iterdir())
    names = {path.name for path in last}
    assert names >= {"optimizer.pt", "scheduler.pt"}
    assert names & {"model.safetensors", "adapter_model.safetensors"}
    assert [path for path in last if path.name.startswith("rng_state")]
    for path in [expected / "model.safetensors", *last]:
        other = run / path.relative_to(expected)
        if path.suffix == ".safetensors":
            weights, reference = load_file(path), load_file(other)
            assert weights.keys() == reference.keys()
            assert all(torch.equal(weights[name], reference[name]) for name in weights), path
        elif path.suffix in (".pt", ".pth"):
            states = [torch.load(file, weights_only=False) for file in (path, other)]
            assert equal(*states), path


def equal(one: Any, other: Any) -> bool:
    """Return whether two nested states are equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def typed_again(result: Finished) -> list[str]:
    """Return the printed command that resumes a run, without `python -m finetune`."""
    (command,) = re.findall(r"(?:python|torchrun) [^\n]* --resume\b[^\n]*", result.stderr)
    return shlex.split(command)[3:]


def assert_resumed_from(step: int, output: str) -> None:
    """Assert that this checkpoint and step are printed, and no others but those set aside."""
    lines = [line for line in output.splitlines() if "damaged-" not in line]
    lines = [line for line in lines if "checkpoint-" in line]
    assert {*re.findall(r"\bcheckpoint-(\d+)", "\n".join(lines))} == {str(step)}
    assert any(re.search(rf"\bstep {step}\b", line) for line in lines), lines


@pytest.mark.contract("D7")
def test_a_signal_while_libraries_are_imported_is_answered_as_later(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_module = importlib.import_module

    def interrupt(*names: str) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return import_module(*names)

    monkeypatch.setattr(importlib, "import_module", interrupt)
    stopped = train(tmp_path / "run")
    assert (stopped.status, stopped.stderr) == (75, "interrupted by SIGINT\n")


def checkpoints(run: Path) -> list[str]:
    return sorted((path.name for path in run.glob("checkpoint-*")), key=lambda name: int(name[11:]))


BY_EPOCH = {"eval_strategy": "epoch", "save_strategy": "epoch"}


@pytest.mark.contract("D5", "D7")
@pytest.mark.parametrize(
    ("fault", "more", "step"),
    [
        ("step 5,SIGTERM", {}, 5),
        ("step 9,SIGINT", {}, 9),  # the end of an epoch
        ("step 10,SIGUSR1", {}, 10),  # the first step of the next
        ("step 18,SIGHUP", {}, 18),
        ("batch 2,SIGTERM", {}, 3),  # in the evaluation after step 3
        ("save 2,SIGINT", {}, 6),
        ("step 7,SIGTERM", {"gradient_accumulation_steps": 2}, 7),
        ("step 20,SIGTERM", {"final_epochs": 2}, 18),  # in the final epochs
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("end of step 18,SIGTERM", {}, 18),
                ("end of epoch 1,SIGINT", BY_EPOCH, 9),
                ("batch 1,SIGUSR1", BY_EPOCH, 9),
                ("batch 3,SIGTERM", {"per_device_eval_batch_size": 4}, 3),
                ("step 8,SIGTERM", {"early_stopping_patience": 9}, 8),
                ("step 6,SIGINT", {"save_strategy": "no", "eval_strategy": "no"}, 6),
            )
        ),
    ],
    ids=str,
)
def test_a_signal_saves_a_checkpoint_and_the_printed_command_resumes(
    train: Train, cli: Cli, whole: Callable[..., Path], tmp_path: Path,
    fault: str, more: dict[str, Any], step: int,
) -> None:  # fmt: skip
    """The exit status is 75, and the resumed run ends like an uninterrupted one."""
    run = tmp_path / "run"
    stopped = train(run, *flags(**more), fault=fault)
    assert stopped.status == 75
    manifest = Run.load(run).manifest
    assert (manifest.status, manifest.stopped_by) == ("interrupted", fault.partition(",")[2])
    assert checkpoints(run)[-1] == f"checkpoint-{step}"
    with pytest.raises(finetune.UserError, match=r"metrics\.json: its status is 'interrupted'"):
        finetune.report(run)
    resumed = cli(*typed_again(stopped)).succeeded()
    assert f"checkpoint-{step}" in resumed.output
    assert_identical(run, whole(**more))
    assert [path.name for path in tmp_path.glob("run*")] == ["run"]


@pytest.mark.contract("D5", "D7", "G7")
def test_a_signal_in_a_refit_saves_a_checkpoint_and_the_printed_command_resumes(
    train: Train, cli: Cli, whole: Callable[..., Path], tmp_path: Path
) -> None:
    """The run has 18 steps, the second training more; the first is finished and stays."""
    run = tmp_path / "run"
    stopped = train(run, "--refit", fault="step 20,SIGTERM")
    assert stopped.status == 75
    assert_identical(run, whole())
    before = (run / "run.json").stat()
    manifest = Run.load(run / "refit").manifest
    assert (manifest.status, manifest.stopped_by) == ("interrupted", "SIGTERM")
    with pytest.raises(finetune.UserError, match=f"with --resume and --output_dir {run}$"):
        finetune.predict(run / "refit", ["good"])
    resumed = cli(*typed_again(stopped)).succeeded()
    assert "step 20 of" in resumed.output
    assert (run / "run.json").stat() == before
    refit, expected = (Run.load(path / "refit") for path in (run, whole(refit=True)))
    assert numbers(refit) == numbers(expected)
    weights, reference = (load_file(each.path / "model.safetensors") for each in (refit, expected))
    assert all(torch.equal(weights[name], reference[name]) for name in reference)
    assert "nothing is left to train" in cli(*typed_again(stopped)).succeeded().output


@pytest.mark.contract("D5")
def test_the_training_loss_after_a_resume_is_the_mean_of_the_steps_since(
    train: Train, cli: Cli, whole: Callable[..., Path], tmp_path: Path
) -> None:
    """Steps 7 to 10 are not logged before the stop, though there is an evaluation after step 9;
    step 12 is logged with them afterwards.
    """
    run = tmp_path / "run"
    stopped = train(run, "--logging_steps", 6, fault="step 10,SIGTERM")
    cli(*typed_again(stopped)).succeeded()
    uninterrupted = Run.load(whole())
    losses = [entry["loss"] for entry in numbers(uninterrupted) if "loss" in entry]
    logged = [entry["loss"] for entry in numbers(Run.load(run)) if "loss" in entry]
    assert logged == pytest.approx(np.reshape(losses, (-1, 6)).mean(axis=1).tolist(), rel=1e-5)
    assert uninterrupted.manifest.train_loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert Run.load(run).manifest.train_loss == pytest.approx(np.mean(losses[10:]), rel=1e-5)


@pytest.mark.contract("D5")
def test_a_kill_while_a_step_is_saved_again_leaves_the_first_save(
    command: Commands, train: Train, whole: Callable[..., Path], faulty: dict[str, str],
    tmp_path: Path,
) -> None:  # fmt: skip
    """A signal stops the evaluation of step 3, which a resume repeats, and saves again."""
    run = tmp_path / "run"
    assert train(run, fault="batch 2,SIGTERM").status == 75
    words = [FAULTY, *flags(**faulty, output_dir=run), "--resume"]
    assert command(*words, env={"FAULT": "save 1,SIGKILL"}).status == -signal.SIGKILL
    resumed = train(run, "--resume").succeeded()
    assert_resumed_from(3, resumed.output)
    assert_identical(run, whole())
    assert checkpoints(run) == checkpoints(whole())
    assert not [*run.glob("replaced-*")]


@pytest.mark.contract("B4", "D5")
def test_a_signal_after_thresholds_were_folded_saves_the_weights_before(
    train: Train, tmp_path: Path, faulty: dict[str, str]
) -> None:
    """Validation has two batches and is predicted twice; the fifth batch is a test batch."""
    rows = {
        split: pd.read_csv(Path(faulty["dataset"]) / f"{split}.csv")
        for split in ("train", "validation", "test")
    }
    (tmp_path / "tags").mkdir()
    for split, table in rows.items():
        table["label"] = ["long;" * (n % 3 == 0) + label for n, label in enumerate(table["label"])]
        table.to_csv(tmp_path / "tags" / f"{split}.csv", index=False)
    words = ["--dataset", tmp_path / "tags", "--label_separator", ";", "--max_steps", 6]
    words += ["--save_strategy", "no", "--eval_strategy", "no"]
    assert train(tmp_path / "whole", *words).status == 0
    run = tmp_path / "run"
    assert train(run, *words, fault="batch 5,SIGTERM").status == 75
    assert train(run, *words, "--resume").status == 0
    assert Run.load(run).statistics.thresholds == Run.load(tmp_path / "whole").statistics.thresholds
    weights, expected = (
        load_file(path / "model.safetensors") for path in (run, tmp_path / "whole")
    )
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.contract("D7")
def test_a_signal_before_the_training_leaves_nothing(train: Train, tmp_path: Path) -> None:
    stopped = train(tmp_path / "run", fault="preparation,SIGTERM")
    assert stopped.status == 75
    assert "SIGTERM" in stopped.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.contract("D7")
def test_a_hangup_that_nohup_ignores_stays_ignored(train: Train, tmp_path: Path) -> None:
    more = ("--max_steps", 5)
    train(tmp_path / "run", *more, fault="step 4,SIGHUP", ignored=signal.SIGHUP).succeeded()
    assert Run.load(tmp_path / "run").manifest.steps == 5


@pytest.fixture(scope="session")
def broken_off(shared_directory: Path, faulty: dict[str, str]) -> Path:
    """A run that failed in step 10, with checkpoints of steps 3, 6 and 9; tests copy it."""

    def train(path: Path) -> None:
        with (
            mock.patch.dict(os.environ, {"FAULT": "step 10,raise"}),
            pytest.raises(ValueError, match="broken at step 10"),
        ):
            finetune.train(str(FAULTY), **faulty, output_dir=str(path / "run"))

    return once(shared_directory / "broken-off", train) / "run"


@pytest.fixture
def broken_copy(broken_off: Path, tmp_path: Path) -> Path:
    return shutil.copytree(broken_off, tmp_path / "run")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.mkdir()


DAMAGES: list[tuple[str, Callable[[Path], object]]] = [
    ("model.safetensors", flip),
    ("model.safetensors", truncate),
    ("model.safetensors", Path.unlink),
    ("optimizer.pt", flip),
    ("optimizer.pt", Path.unlink),
    ("scheduler.pt", flip),
    ("scheduler.pt", Path.unlink),
    ("rng_state.pth", flip),
    ("trainer_state.json", flip),
    ("trainer_state.json", Path.unlink),
    ("scaler.pt", Path.touch),
    ("", empty),
]


@pytest.mark.contract("D5")
@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    train: Train, whole: Callable[..., Path], broken_copy: Path, name: str,
    damage: Callable[[Path], object],
) -> None:  # fmt: skip
    damage(broken_copy / "checkpoint-9" / (name or "optimizer.pt"))
    result = train(broken_copy, "--resume").succeeded()
    (line,) = [line for line in result.output.splitlines() if "damaged-checkpoint-9" in line]
    assert name in line
    assert (broken_copy / "damaged-checkpoint-9").is_dir()
    assert_resumed_from(6, result.output)
    assert_identical(broken_copy, whole())


@pytest.mark.contract("D5")
def test_a_checkpoint_without_a_weight_is_refused_though_its_checksum_is_right(
    train: Train, broken_copy: Path
) -> None:
    name = "model.safetensors"
    path = max(broken_copy.glob("checkpoint-*")) / name
    weights = load_file(path)
    missing = next(key for key in weights if "query" in key)
    del weights[missing]
    save_file(weights, path, metadata={"format": "pt"})
    manifest = json.loads((path.parent / "checkpoint.json").read_text(encoding="utf-8"))
    checksum = xxhash.xxh3_128_hexdigest(path.read_bytes())
    manifest["files"][name] = {"bytes": path.stat().st_size, "xxh3_128": checksum}
    (path.parent / "checkpoint.json").write_text(json.dumps(manifest), encoding="utf-8")
    result = train(broken_copy, "--resume")
    result.refused("lacks weights of the model", missing, "--resume_from_checkpoint")


@pytest.mark.contract("D5")
def test_a_whole_checkpoint_is_used(
    train: Train, whole: Callable[..., Path], broken_copy: Path
) -> None:
    """It is used also beside an unfinished one and files that an operating system leaves."""
    (broken_copy / "checkpoint-9" / ".DS_Store").touch()
    result = train(broken_copy, "--resume").succeeded()
    assert_resumed_from(9, result.output)
    assert "damaged" not in result.output
    assert_identical(broken_copy, whole())


@pytest.mark.contract("D5")
def test_without_a_whole_checkpoint_nothing_is_used_or_changed(
    train: Train, broken_copy: Path
) -> None:
    manifest = (broken_copy / "run.json").read_bytes()
    for path in broken_copy.glob("checkpoint-*"):
        flip(path / "rng_state.pth")
    for _ in range(2):
        result = train(broken_copy, "--resume")
        assert (result.status, result.stdout) == (2, "")
        assert result.stderr.count("rng_state.pth") == 3
    assert (broken_copy / "run.json").read_bytes() == manifest
    assert checkpoints(broken_copy) == ["checkpoint-3", "checkpoint-6", "checkpoint-9"]


@pytest.mark.contract("D5")
def test_a_path_to_a_damaged_checkpoint_is_refused_and_a_whole_one_named(
    train: Train, broken_copy: Path
) -> None:
    flip(broken_copy / "checkpoint-9" / "model.safetensors")
    train(broken_copy, "--resume_from_checkpoint", broken_copy / "checkpoint-9").refused(
        "model.safetensors", str(broken_copy / "checkpoint-6")
    )


@pytest.mark.contract("D5")
def test_an_earlier_checkpoint_can_be_named_and_later_ones_are_set_aside(
    train: Train, whole: Callable[..., Path], broken_copy: Path
) -> None:
    train(broken_copy, "--resume_from_checkpoint", broken_copy / "checkpoint-3").succeeded()
    assert {path.name for path in broken_copy.glob("later-*")} == {
        "later-checkpoint-6", "later-checkpoint-9"
    }  # fmt: skip
    assert_identical(broken_copy, whole())


@pytest.mark.contract("D5")
@pytest.mark.parametrize(
    ("words", "status"), [("--resume", 0), ("--resume_from_checkpoint last", 2)]
)
def test_without_a_checkpoint_resume_starts_and_last_is_refused(
    train: Train, tmp_path: Path, words: str, status: int
) -> None:
    result = train(tmp_path / "run", *words.split(), "--max_steps", 1)
    assert result.status == status
    assert (tmp_path / "run").exists() == (status == 0)
    if status:
        assert "--resume_from_checkpoint last" in result.stderr


@pytest.mark.contract("D5")
@pytest.mark.parametrize(
    ("save", "step_before"),
    [(2, 3), pytest.param(1, 0, marks=pytest.mark.slow)],  # ranks of torchrun: see below
)
def test_a_kill_between_the_files_of_a_checkpoint_costs_only_that_one(
    command: Commands, train: Train, whole: Callable[..., Path], faulty: dict[str, str],
    tmp_path: Path, save: int, step_before: int,
) -> None:  # fmt: skip
    """The kill is after the weights and before the optimizer, and allows no cleanup. The run is
    resumed from a copy in another place.
    """
    place, name = tmp_path / "run", f"checkpoint-{3 * save}"
    words = [FAULTY, *flags(**faulty, output_dir=place)]
    killed = command(*words, env={"FAULT": f"save {save},SIGKILL"})
    assert killed.status == -signal.SIGKILL
    assert checkpoints(place) == ["checkpoint-3", "checkpoint-6"][:save]
    assert not (place / name / "checkpoint.json").exists()
    run = tmp_path / "another machine" / "run"
    shutil.copytree(place, run)
    shutil.rmtree(place)
    resumed = train(run, "--resume").succeeded()
    assert f"damaged-{name}" in resumed.output
    if step_before:
        assert_resumed_from(step_before, resumed.output)
    assert_identical(run, whole())
    assert checkpoints(run) == checkpoints(whole())


@pytest.fixture
def empty_hub(tmp_path: Path) -> Iterator[Hub]:
    (tmp_path / "hub").mkdir()
    with Hub(tmp_path / "hub") as hub:
        yield hub


@pytest.mark.contract("D5", "D7", "H3")
@pytest.mark.slow
def test_a_job_continues_on_other_machines(
    command: Commands, whole: Callable[..., Path], faulty: dict[str, str], tmp_path: Path,
    empty_hub: Hub,
) -> None:  # fmt: skip
    """The first machine is killed while the training hangs, the second one gets SIGTERM. The third
    one pushes the model.
    """
    store = tmp_path / "store" / "run"
    job = [ROOT / "examples/cloud_job.py", "--store", store, "--repo", "me/reviews"]
    job += [FAULTY, *flags(**faulty)]

    def start(machine: str, fault: str) -> "subprocess.Popen[str]":
        (tmp_path / machine).mkdir()
        env = {"FAULT": fault, "PYTHONPATH": str(ROOT), "READY": str(tmp_path / "ready")}
        env |= {"HF_TOKEN": "hf_write", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        env["HF_ENDPOINT"] = empty_hub.url
        return command.start(*job, launcher="script", cwd=tmp_path / machine, env=env)

    def copies(process: "subprocess.Popen[str]", name: str) -> None:
        assert process.stdout is not None
        assert any(line.startswith(f"copied {name} to") for line in process.stdout)

    killed = start("first", "step 5,SIGSTOP")
    copies(killed, "checkpoint-3")
    for process in (*psutil.Process(killed.pid).children(), killed):
        process.kill()
    killed.communicate()
    shutil.rmtree(tmp_path / "first")
    stopped = start("second", "step 5,wait")  # 8 of all
    copies(stopped, "checkpoint-6")
    stopped.terminate()
    stopped.communicate()
    assert stopped.returncode == 75
    assert (store / "checkpoint-8" / "checkpoint.json").exists()
    assert not empty_hub.repositories
    finished = start("third", "")
    output = "".join(finished.communicate())
    assert finished.returncode == 0, output
    assert "resuming from runs/run/checkpoint-8, step 8 of" in output, output
    run = tmp_path / "third" / "runs" / "run"
    assert_identical(run, whole())
    assert checkpoints(store) == checkpoints(run)
    for name in ("model.safetensors", "run.json", "report.html", "checkpoint-12/checkpoint.json"):
        assert (store / name).read_bytes() == (run / name).read_bytes()
    repository = empty_hub.repositories["me/reviews"]
    assert repository.private
    assert repository.files["model.safetensors"] == (run / "model.safetensors").read_bytes()


#: Place, signal or error, rank, and attempt.
KILLS = "step 5,SIGKILL,1,0;save 3,SIGKILL,0,1;step 2,raise,0,2;step 2,raise,1,2"


@pytest.mark.contract("D5", "D9")
def test_ranks_that_are_killed_are_started_again_by_torchrun(
    command: Commands, jobs: Callable[[int], Path], faulty: dict[str, str], tmp_path: Path
) -> None:
    """Rank 1 is killed in step 5, then rank 0 between the files of checkpoint 12.

    Then both raise an error, which is shown once. The weights equal those of a job without faults.
    """
    run = tmp_path / "run"
    words = [str(FAULTY), *flags(**faulty, output_dir=run)]
    environment = {**os.environ, "FAULT": KILLS}
    launch = ("--standalone", "--nproc_per_node=2", "--max-restarts=3")
    line = command.servers.torchrun(words, environment, *launch)
    record(command.shared_directory, "commands", "torchrun --max-restarts=3")
    pipes: dict[str, Any] = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    command.processes.append(subprocess.Popen(line, cwd=tmp_path, env=environment, **pipes))
    output, _ = command.processes[0].communicate(timeout=HANGS)
    assert command.processes[0].returncode == 0, output
    assert output.count("ValueError: broken at step 2") == 1
    assert_identical(run, jobs(2) / "whole")
    assert [path.name for path in tmp_path.glob("run*")] == ["run"]


# ---- D6: what may change in between --------------------------------------------------------------

#: Option: another value, and the name under which it is compared.
OTHERS: dict[str, Any] = {
    "seed": 7,
    "data_seed": 7,
    "split_seed": 7,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 4,
    "weight_decay": 0.1,
    "adam_beta2": 0.9,
    "optim": "sgd",
    "max_grad_norm": 0.5,
    "label_smoothing_factor": 0.1,
    "global_batch_size": 8,
    "num_train_epochs": 3,
    "max_steps": 30,
    "max_length": 16,
    "hidden_dropout": 0.3,
    "train_samples": 100,
    "class_weights": "balanced",
    "truncation": "tail",
    "train_sampling_strategy": "sequential",
    "metric_for_best_model": "accuracy",
}


@pytest.mark.contract("D6")
@pytest.mark.parametrize("name", OTHERS)
def test_another_setting_is_refused_by_name(train: Train, broken_off: Path, name: str) -> None:
    """The message has both values and the flag that accepts the change."""
    before = (broken_off / "run.json").read_bytes()
    result = train(broken_off, "--resume", "--dry_run", f"--{name}", OTHERS[name]).refused()
    lines = [line for line in result.stderr.splitlines() if re.search(rf"\b{name}\b", line)]
    value = re.compile(rf"(?<![\w./-]){OTHERS[name]}(\.0)?(?!\w|\.\d|/)")  # not in a path
    assert any(value.search(line) for line in lines if "--allow_changed" not in line), lines
    (allowed,) = re.findall(r"--allow_changed (\S+)", result.stderr)
    assert name in allowed.split(",")
    assert (broken_off / "run.json").read_bytes() == before


@pytest.mark.contract("D6")
def test_all_changes_are_refused_at_once(train: Train, broken_off: Path) -> None:
    more = flags(learning_rate=1e-3, seed=7, logging_steps=3, early_stopping_patience=9)
    result = train(broken_off, "--resume", "--dry_run", *more)
    (allowed,) = re.findall(r"--allow_changed (\S+)", result.stderr)
    assert set(allowed.split(",")) == {"learning_rate", "seed"}
    assert train(broken_off, "--resume", "--dry_run", *more[4:]).status == 0


@pytest.mark.contract("D6")
@pytest.mark.parametrize(
    ("option", "name", "old", "new", "entry"),
    [
        ("dataset", "train.csv", b"dull", b"flat", "data"),
        ("dataset", "test.csv", b",good", b",bad", "data"),
        ("model", "model.safetensors", b"", b"", "model"),  # one bit
        ("model", "config.json", b'_dropout_prob": 0.1', b'_dropout_prob": 0.5', "config.json"),
        ("model", "tokenizer.json", b'"food"', b'"wood"', "tokenizer.json"),
        ("recipe", "", b"losses = super", b"losses = 2 * super", "recipe"),
    ],
)
def test_other_data_another_model_and_another_recipe_are_refused(
    cli: Cli, faulty: dict[str, str], broken_copy: Path, tmp_path: Path,
    option: str, name: str, old: bytes, new: bytes, entry: str,
) -> None:  # fmt: skip
    """They differ by one word, one weight or one line; moved copies are accepted."""
    words = {"recipe": str(FAULTY), **faulty}
    source = Path(words[option])
    (tmp_path / "other").mkdir()
    copy_path = shutil.copytree if source.is_dir() else shutil.copy
    copy = Path(copy_path(source, tmp_path / "other" / source.name))
    content = (copy / name).read_bytes()
    if old:
        assert old in content
        (copy / name).write_bytes(content.replace(old, new, 1))
    else:
        flip(copy / name)
    words[option] = str(copy)
    typed = flags(output_dir=broken_copy, dry_run=True, resume=True)
    before = (broken_copy / "run.json").read_bytes()
    result = cli(words.pop("recipe"), *flags(**words), *typed).refused()
    (allowed,) = re.findall(r"--allow_changed (\S+)", result.stderr)
    assert entry in allowed.split(",")
    assert (broken_copy / "run.json").read_bytes() == before


@pytest.mark.contract("D6")
def test_the_same_data_in_another_place_are_accepted(
    train: Train, faulty: dict[str, str], broken_off: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(faulty["dataset"], tmp_path / "moved")
    assert train(broken_off, "--resume", "--dry_run", "--dataset", moved).status == 0


@pytest.mark.contract("D6")
def test_a_changed_image_is_refused(
    cli: Cli, image_run: Run, copy_run: Callable[[Run], Run], tmp_path: Path
) -> None:
    """The images are other data if a pixel of one differs, and the same in another folder."""
    options, arguments = image_run.manifest.options, image_run.manifest.arguments
    photos = shutil.copytree(options["dataset"], tmp_path / "photos")
    names = ("learning_rate", "global_batch_size", "logging_steps", "precision", "disable_tqdm")
    words = flags(dataset=photos, model=options["model"], num_train_epochs=8)
    words += flags(**{name: arguments[name] for name in names})
    words += ["--output_dir", str(copy_run(image_run).path), "--resume", "--dry_run"]
    cli("image", *words).succeeded()
    path = next(photos.rglob("*7.png"))
    with Image.open(path) as image:
        image.putpixel((3, 3), (1, 2, 3))
        image.save(path)
    changed = cli("image", *words).refused()
    assert re.findall(r"--allow_changed (\S+)", changed.stderr) == ["data"]


@pytest.mark.contract("D6")
def test_a_change_that_is_allowed_is_in_force_and_recorded(train: Train, broken_copy: Path) -> None:
    changed = flags(learning_rate=1e-4, weight_decay=0.2)
    refused = train(broken_copy, "--resume", *changed, "--allow_changed", "learning_rate")
    assert refused.status == 2
    assert "weight_decay" in refused.stderr
    allowed = ("--allow_changed", "learning_rate,weight_decay")
    result = train(broken_copy, "--resume", *changed, *allowed).succeeded()
    names = {"learning_rate", "weight_decay"}
    assert any(names <= set(re.findall(r"\w+", line)) for line in result.stdout.splitlines())
    rates = {entry["step"]: entry["learning_rate"] for entry in numbers(Run.load(broken_copy))
             if "learning_rate" in entry}  # fmt: skip
    assert rates[10] == pytest.approx(1e-4 * (1 - 9 / LAST_STEP))
    groups = torch.load(broken_copy / "checkpoint-18" / "optimizer.pt")["param_groups"]
    assert {group["weight_decay"] for group in groups} == {0.0, 0.2}
    record = json.dumps(json.loads((broken_copy / "run.json").read_text())["resumed"])
    assert {"0.003", "0.0001", "0.01", "0.2"} <= set(re.findall(r"\d\.\d+", record))


@pytest.mark.contract("D6")
def test_an_unknown_name_is_not_allowed(train: Train, broken_off: Path) -> None:
    train(broken_off, "--resume", "--dry_run", "--allow_changed", "learning_rat").refused(
        "learning_rat'", "learning_rate"
    )


@pytest.mark.contract("D6")
def test_accumulation_may_change_and_that_is_announced(train: Train, broken_copy: Path) -> None:
    result = train(broken_copy, "--resume", "--gradient_accumulation_steps", 2).succeeded()
    lines = [line for line in result.stdout.splitlines() if "accumulation" in line]
    assert any({*re.findall(r"\d+", line)} == {"1", "2"} for line in lines), lines
    run = Run.load(broken_copy)
    assert run.manifest.status == "finished"
    assert run.manifest.arguments["gradient_accumulation_steps"] == 2


@pytest.mark.contract("D6")
def test_a_finished_run_is_returned_and_goes_on_with_more_epochs(
    train: Train, whole: Callable[..., Path], tmp_path: Path
) -> None:
    """It has the learning rate of the longer schedule; fewer epochs are refused then."""
    run = shutil.copytree(whole(), tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*.json")}
    assert train(run, "--resume", fault="step 1,raise").status == 0
    assert {path: path.read_bytes() for path in run.rglob("*.json")} == before
    result = train(run, "--resume", "--num_train_epochs", 3).succeeded()
    assert_resumed_from(18, result.stdout)
    logged = [entry for entry in numbers(Run.load(run)) if "learning_rate" in entry]
    assert [entry["step"] for entry in logged] == list(range(1, 3 * EPOCH + 1))
    rates = [entry["learning_rate"] for entry in logged]
    assert rates[LAST_STEP:] == pytest.approx([3e-3 * (1 - step / 27) for step in range(18, 27)])
    train(run, "--resume", "--num_train_epochs", 2).refused("num_train_epochs")


# ---- D7: signals, and one run in one directory ---------------------------------------------------


@pytest.mark.contract("A9", "D6")
@pytest.mark.parametrize(
    ("options", "longer"),
    [
        ({"save_only_model": True}, "has no optimizer state"),
        ({"save_strategy": "no", "load_best_model_at_end": False}, "has no checkpoint to resume"),
    ],
)
def test_a_finished_run_that_cannot_go_on_is_shown_and_not_trained_longer(
    train: Train, tmp_path: Path, options: dict[str, Any], longer: str
) -> None:
    run = tmp_path / "run"
    typed = flags(max_steps=3, **options)
    assert train(run, *typed).status == 0
    before = (run / "run.json").read_bytes()
    shown = train(run, *typed, "--resume")
    assert (shown.status, shown.stderr) == (0, "")
    assert "nothing is left to train" in shown.stdout
    train(run, *flags(max_steps=6, **options), "--resume").refused(longer)
    assert (run / "run.json").read_bytes() == before


@pytest.mark.contract("D7")
def test_no_command_is_printed_that_cannot_resume(train: Train, tmp_path: Path) -> None:
    result = train(tmp_path / "run", "--save_only_model", "true", fault="step 5,SIGTERM")
    assert (result.status, "to resume" in result.stdout) == (75, False)


@pytest.mark.contract("D5", "D6")
def test_a_finished_run_goes_on_from_an_earlier_checkpoint_that_is_named(
    train: Train, whole: Callable[..., Path], tmp_path: Path
) -> None:
    run = shutil.copytree(whole(), tmp_path / "run")
    renamed = shutil.copytree(run / "checkpoint-9", run / "checkpoint-12", dirs_exist_ok=True)
    train(run, "--resume_from_checkpoint", renamed).refused("was saved at step 9 and renamed")
    assert train(run, "--resume_from_checkpoint", run / "checkpoint-9").status == 0
    assert (run / "later-checkpoint-12").is_dir()
    assert_identical(run, whole())


@pytest.mark.contract("D7")
def test_ctrl_c_saves_and_a_second_run_in_the_directory_is_refused(
    command: Commands, cli: Cli, train: Train, whole: Callable[..., Path], faulty: dict[str, str],
    tmp_path: Path,
) -> None:  # fmt: skip
    """The first run is in its fifth step; its printed command resumes it."""
    run, ready = tmp_path / "run", tmp_path / "ready"
    words = [FAULTY, *flags(**faulty, output_dir=run)]
    first = command.start(*words, env={"FAULT": "step 5,wait", "READY": str(ready)})
    wait_until(ready.exists, first)
    assert Run.load(run).manifest.status == "running"
    for resume in ((), ("--resume",)):
        second = train(run, *resume)
        assert (second.status, second.stdout) == (2, "")
        assert str(run) in second.stderr
        assert str(Run.load(run).manifest.process.pid) in second.stderr
    first.send_signal(signal.SIGINT)
    stdout, stderr = first.communicate(timeout=MINUTE)
    assert first.returncode == 75, stderr
    assert (Run.load(run).manifest.status, checkpoints(run)[-1]) == ("interrupted", "checkpoint-5")
    assert [path.name for path in tmp_path.glob("run*")] == ["run"]
    cli(*typed_again(Finished(75, stdout, stderr))).succeeded()
    assert_identical(run, whole())


@pytest.mark.contract("A14", "D5", "D7")
def test_num_processes_trains_as_torchrun_also_after_a_sigterm(
    command: Commands, jobs: Callable[[int], Path], faulty: dict[str, str], tmp_path: Path
) -> None:
    """A scheduler sends the signal to the process that was typed; its printed command resumes."""
    run, ready = tmp_path / "run$$1", tmp_path / "ready"
    words = [FAULTY, *flags(**faulty, output_dir=run, num_processes=2)]
    job = command.start(*words, env={"FAULT": "step 5,wait,1", "READY": str(ready)})
    wait_until(ready.exists, job)
    job.send_signal(signal.SIGTERM)
    stdout, stderr = job.communicate(timeout=MINUTE)
    assert job.returncode == 75
    manifest = Run.load(run).manifest
    assert (manifest.status, manifest.stopped_by) == ("interrupted", "SIGTERM")
    assert checkpoints(run)[-1] == "checkpoint-5"
    assert stderr.count("interrupted") == len(stderr.split("\n")) - 1 == 1
    assert "Traceback" not in stdout
    resume = typed_again(Finished(75, stdout, stderr))
    assert resume == [*map(str, words), "--resume"]
    command(*resume, "--json", env={"FAULT": ""}).succeeded()
    assert_identical(run, jobs(2) / "whole")


@pytest.mark.contract("A14", "D9")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        ("step 5,SIGKILL,1", 1, "error: SIGKILL ended the process of rank 1"),
        ("step 5,raise,1", 1, "ValueError: broken at step 5"),
        ("step 5,SIGTERM,1", 75, "to resume at step 5: python -m finetune"),
    ],
)
def test_the_status_of_num_processes_is_that_of_the_first_process_to_fail(
    command: Commands, faulty: dict[str, str], tmp_path: Path,
    fault: str, status: int, message: str,
) -> None:  # fmt: skip
    words = [FAULTY, *flags(**faulty, output_dir=tmp_path / "run", num_processes=2)]
    result = command(*words, env={"FAULT": fault})
    assert result.status == status
    assert result.stderr.count(message) == 1
    assert "elastic" not in result.stderr


@pytest.mark.contract("D7")
def test_the_grace_period_ends_a_step_that_takes_too_long(
    command: Commands, faulty: dict[str, str], tmp_path: Path
) -> None:
    """The step takes 12 s: it is saved with the default of 20 s, but not with 1 s."""
    run = tmp_path / "run"
    words = [FAULTY, *flags(**faulty, output_dir=run, grace_seconds=1)]
    result = command(*words, env={"FAULT": "step 5,hold"})
    assert result.status == 75
    assert "--grace_seconds" in result.stderr
    assert Run.load(run).manifest.status == "interrupted"
    assert checkpoints(run) == ["checkpoint-3"]


@pytest.mark.contract("D7")
@pytest.mark.parametrize(("seconds", "launched"), [(26, True), (-1, False)])
def test_a_grace_that_cannot_be_kept_is_refused(
    train: Train, tmp_path: Path, seconds: int, launched: bool
) -> None:
    """Torchrun kills its processes after 30 seconds."""
    environment = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "1"} if launched else {}
    result = train(tmp_path / "run", "--grace_seconds", seconds, environment=environment)
    assert result.status == 2
    assert f"--grace_seconds {seconds}" in result.stderr


@pytest.mark.contract("D7")
def test_a_run_is_not_trained_into_its_own_directory(
    train: Train, whole: Callable[..., Path], tmp_path: Path
) -> None:
    """`--model r --output_dir r` would move the model aside, and then not find it."""
    run = shutil.copytree(whole(), tmp_path / "run")
    for model in (run, run / "checkpoint-3"):
        train(run, "--model", model).refused(f"--model {model}", f"--output_dir {run}")
    assert Run.load(run).manifest.status == "finished"
    assert not (tmp_path / "run.1").exists()


# ---- D8: numbers that are not finite -------------------------------------------------------------


def finite(path: Path) -> bool:
    return all(bool(value.isfinite().all()) for value in load_file(path).values())


@pytest.mark.contract("D8")
@pytest.mark.parametrize(
    ("fault", "more"),
    [
        ("loss 8,nan", {}),
        ("loss 8,inf", {}),
        ("loss 8,gradient", {}),
        ("loss 8,gradient", {"max_grad_norm": 0}),
        ("loss 8,nan", {"gradient_accumulation_steps": 2}),
    ],
    ids=str,
)
def test_a_loss_or_gradient_that_is_not_finite_stops_before_the_weights_change(
    train: Train, whole: Callable[..., Path], tmp_path: Path, fault: str, more: dict[str, Any]
) -> None:
    """The last checkpoint is good: resumed without the fault, the run ends like any other."""
    run = tmp_path / "run"
    result = train(run, *flags(**more), fault=fault)
    assert result.status == 1
    (line,) = [line for line in result.stderr.splitlines() if "step 8" in line]
    assert "Traceback" not in result.stderr
    assert "checkpoint-6" in line
    manifest = Run.load(run).manifest
    assert manifest.status == "diverged"
    assert "step 8" in manifest.failure
    assert checkpoints(run) == ["checkpoint-3", "checkpoint-6"]
    assert all(finite(run / name / "model.safetensors") for name in checkpoints(run))
    assert not (run / "model.safetensors").exists()
    if not more:
        assert train(run, "--resume").status == 0
        assert_identical(run, whole())


@pytest.mark.contract("D8")
def test_in_python_a_loss_that_is_not_finite_raises_a_run_error(
    faulty: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "loss 2,nan")
    with pytest.raises(Exception, match="step 2") as caught:
        finetune.train(str(FAULTY), **faulty, output_dir=str(tmp_path / "run"))
    assert "RunError" in [base.__name__ for base in type(caught.value).__mro__]
    assert Run.load(tmp_path / "run").manifest.status == "diverged"


@pytest.mark.contract("D8")
def test_a_rank_whose_loss_is_not_finite_stops_all(jobs: Callable[[int], Path]) -> None:
    run = Run.load(jobs(2) / "diverged")
    assert run.manifest.status == "diverged"
    assert checkpoints(run.path) == ["checkpoint-3"]
    assert "step 5" in run.manifest.failure


# ---- D9: no disk, no memory, no rank -------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)]
    result = subprocess.run(mount, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"no file system can be mounted here: {result.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.contract("D9")
@pytest.mark.parametrize("free", [0, 65536])  # not enough for a small file, or for the weights
def test_a_full_disk_keeps_earlier_checkpoints(
    train: Train, whole: Callable[..., Path], small_disk: Path, free: int
) -> None:
    run = small_disk / "run"
    result = train(run, fault=f"step 6,fill but {free}", environment={"DISK": str(small_disk)})
    assert result.status == 1
    assert str(run) in result.stderr
    assert result.stderr.count("--resume") == 1
    assert "Traceback" not in result.stderr
    assert Run.load(run).manifest.status == "failed"
    assert checkpoints(run) == ["checkpoint-3"]
    (small_disk / "filler").unlink()
    train(run, "--resume").succeeded()
    assert_identical(run, whole())


@pytest.mark.contract("D9")
@pytest.mark.parametrize("action", ["memory", "python memory"])
def test_memory_that_runs_out_names_the_step_and_what_helps(
    train: Train, whole: Callable[..., Path], tmp_path: Path, action: str
) -> None:
    run = tmp_path / "run"
    result = train(run, fault=f"step 5,{action}")
    assert result.status == 1
    assert result.stderr.count("step 5") == 1
    assert re.search(r"\b16\b", result.stderr)  # rows
    assert "--gradient_accumulation_steps" in result.stderr
    assert "Traceback" not in result.stderr
    assert Run.load(run).manifest.status == "failed"
    assert train(run, "--resume").status == 0
    assert_identical(run, whole())


@pytest.mark.contract("D9")
def test_memory_that_runs_out_in_an_evaluation_names_its_batch(
    train: Train, tmp_path: Path
) -> None:
    result = train(tmp_path / "run", fault="batch 1,memory")
    assert result.status == 1
    assert result.stderr.count("--per_device_eval_batch_size") == 1
    assert "Traceback" not in result.stderr


@pytest.mark.contract("D6", "D9")
@pytest.mark.parametrize(
    "fault", ["", pytest.param("step 8,wait,0", marks=pytest.mark.slow, id="after the SIGTERM")]
)
def test_a_rank_that_is_killed_ends_the_job_and_one_process_resumes_it(
    command: Commands, train: Train, faulty: dict[str, str], tmp_path: Path, fault: str
) -> None:
    """The launcher names the signal once; the other rank prints nothing, whether it loses the
    connection before or after the launcher's SIGTERM.
    """
    run = tmp_path / "run"
    words = [FAULTY, *flags(**faulty, output_dir=run)]
    environment = {"FAULT": f"step 8,SIGKILL,1;{fault}", "READY": str(tmp_path / "ready")}
    job = command.start(*words, launcher="torchrun", env=environment)
    _, stderr = job.communicate(timeout=MINUTE)
    assert job.returncode == 1
    assert re.search(r"SIGKILL|-9\b", stderr)
    assert stderr.count("Traceback") == 1
    assert "error:" not in stderr
    assert Run.load(run).status != "finished"
    assert checkpoints(run) == ["checkpoint-3", "checkpoint-6"]
    resumed = train(run, "--resume").succeeded()
    assert_resumed_from(6, resumed.stdout)
    assert re.search(r"1 process\b.*\b2\b|2 processes.*\b1\b", resumed.stdout)
    assert Run.load(run).manifest.status == "finished"


@pytest.mark.contract("D9")
def test_a_rank_that_hangs_ends_the_job_after_the_timeout(
    command: Commands, faulty: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = [FAULTY, *flags(**faulty, output_dir=run, ddp_timeout=15, grace_seconds=1)]
    job = command.start(*words, launcher="torchrun", env={"FAULT": "step 5,hang,1"})
    _, stderr = job.communicate(timeout=MINUTE)
    assert job.returncode == 1
    (line,) = [line for line in stderr.splitlines() if "--ddp_timeout" in line]
    assert "rank 0" in line
    assert Run.load(run).manifest.status == "failed"
    assert checkpoints(run) == ["checkpoint-3"]


# ---- D10: what the test set is used for ----------------------------------------------------------


class Watched(TextRecipe):
    """A recipe that records which texts the model reads; test texts begin with `terrace`."""

    marker: int = 0

    def adapt(self, model: Any, arguments: Any) -> Any:
        model = super().adapt(model, arguments)
        model.register_forward_pre_hook(self.note_rows, with_kwargs=True)
        return model

    def note_rows(self, model: Any, args: Any, batch: dict[str, Any]) -> None:
        is_test = (batch["input_ids"] == self.marker).any(dim=1).tolist()
        SEEN.append((model.training, sum(is_test), len(is_test)))


SEEN: list[tuple[bool, int, int]] = []
DISAGREES: dict[str, Any] = dict(
    max_length=LENGTH,
    learning_rate=3e-3,
    num_train_epochs=10,
    global_batch_size=16,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=20,
    metric_for_best_model="f1",
    precision="fp32",
    baseline=False,
    disable_tqdm=True,
)


def write_disagreeing(directory: Path, *, flipped: bool) -> Path:
    """Write splits with swapped labels in validation and, optionally, in the test set."""
    directory.mkdir()
    swapped = {"bad": "good", "good": "bad"}
    rows = data.labelled_sentences(184)
    for name, first, last in (("train", 0, 96), ("validation", 96, 144), ("test", 144, 184)):
        place = "terrace" if name == "test" else "kitchen"
        table = [(f"{place} {text.partition(' ')[2]}", label) for text, label in rows[first:last]]
        if name == "validation" or (name == "test" and flipped):
            table = [(text, swapped[label]) for text, label in table]
        data.write_csv(directory / f"{name}.csv", ["text", "label"], table)
    return directory


@pytest.mark.contract("D10")
def test_the_test_set_is_used_once_at_the_end_and_does_not_choose_the_model(
    bert: Path, tmp_path: Path
) -> None:
    """Validation gets worse while the test set gets better: the best epoch is not the last.

    Other labels of the test set only change the scores on it.
    """
    marker = AutoTokenizer.from_pretrained(bert).convert_tokens_to_ids("terrace")
    runs = []
    for flipped in (False, True):
        SEEN.clear()
        source = write_disagreeing(tmp_path / f"data{flipped}", flipped=flipped)
        recipe = Watched(dataset=str(source), model=str(bert), max_length=LENGTH)
        recipe.marker = marker
        options = {key: value for key, value in DISAGREES.items() if key != "max_length"}
        run = finetune.train(recipe, output_dir=str(tmp_path / f"run{flipped}"), **options)
        assert sum(test for _, test, _ in SEEN) == 40
        last_step = max(number for number, (training, _, _) in enumerate(SEEN) if training)
        assert all(test == 0 for _, test, _ in SEEN[: last_step + 1])
        runs.append(run)
    one, other = runs
    assert equal(*(load_file(run.path / "model.safetensors") for run in runs))
    assert one.metrics["validation"] == other.metrics["validation"]
    assert numbers(one) == numbers(other)
    assert one.metrics["test"]["f1"] != other.metrics["test"]["f1"]
    scores = [entry["eval_f1"] for entry in numbers(one) if "eval_f1" in entry]
    assert len(scores) == 10
    best = 6 * (1 + int(np.argmax(scores)))
    saved = load_file(one.path / "model.safetensors")
    assert equal(saved, load_file(one.path / f"checkpoint-{best}" / "model.safetensors"))
    assert one.metrics["validation"]["f1"] == max(scores)
    state = json.loads((one.path / "checkpoint-60" / "trainer_state.json").read_text())
    assert (state["best_global_step"], state["best_metric"]) == (best, max(scores))
    assert best < 60
    last = load_file(one.path / "checkpoint-60" / "model.safetensors")
    assert not equal(saved, last)


@pytest.mark.contract("D10")
def test_a_model_that_is_built_from_a_configuration_loads_its_best_checkpoint(
    tmp_path: Path,
) -> None:
    """Its family's checkpoints on the Hub have other names of weights than the model."""
    options: dict[str, Any] = dict(num_train_epochs=2, precision="fp32", disable_tqdm=True)
    options |= dict(train_samples=96, eval_samples=40, output_dir=str(tmp_path / "run"))
    run = finetune.train("image", embedded=True, load_best_model_at_end=True, **options)
    loaded = AutoModelForImageClassification.from_pretrained(run.path)
    state = json.loads((run.path / "checkpoint-6" / "trainer_state.json").read_text())
    best = state["best_global_step"]
    saved = load_file(run.path / f"checkpoint-{best}" / "model.safetensors")
    assert equal(saved, loaded.state_dict())


# ---- D11: kernels and precision ------------------------------------------------------------------


@pytest.mark.contract("D11")
@pytest.mark.parametrize("choice", [{}, {"cpu_kernels": "off"}])
@pytest.mark.parametrize("batch_tokens", [None, 4096, 1])
def test_predictions_are_those_of_the_library_alone(
    single_label_run: Run, choice: dict[str, Any], batch_tokens: int | None
) -> None:
    """With and without kernels and padding, they equal a forward pass on each text alone."""
    texts = single_label_run.predictions["text"].tolist()
    model = AutoModelForSequenceClassification.from_pretrained(single_label_run.path).eval()
    expected = native_loop.logits(model, single_label_run.path, texts, 64).softmax(dim=-1)
    more = choice | ({"batch_tokens": batch_tokens} if batch_tokens else {})
    predicted = finetune.predict(
        single_label_run, texts, precision="fp32", all_probabilities=True, **more
    )
    names = [f"probability of {label}" for label in single_label_run.labels]
    np.testing.assert_allclose(predicted[names], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.contract("D11")
def test_bf16_is_close_but_not_equal(single_label_run: Run) -> None:
    texts = single_label_run.predictions["text"].tolist()
    names = [f"probability of {label}" for label in single_label_run.labels]
    exact, rounded = (
        finetune.predict(single_label_run, texts, precision=precision, all_probabilities=True)
        for precision in ("fp32", "bf16")
    )
    gap = np.abs(exact[names].to_numpy() - rounded[names].to_numpy())
    assert 0 < gap.max() < 0.03


@pytest.mark.contract("D11")
def test_short_rows_train_as_without_kernels(bert: Path, tmp_path: Path) -> None:
    """Kernels put several short rows into one sequence; the losses stay the same."""
    rows = [
        (" ".join(text.split()[: 3 + number % 5]), label)
        for number, (text, label) in enumerate(data.labelled_sentences(144))
    ]
    source = data.write_csv(tmp_path / "short.csv", ["text", "label"], rows)
    options = LAUNCHED | {"dataset": str(source), "model": str(bert)}
    on, off = (
        finetune.train("text", output_dir=str(tmp_path / choice), cpu_kernels=choice, **options)
        for choice in ("auto", "off")
    )
    assert_close(on, off)


@pytest.mark.contract("D11")
def test_training_without_kernels_and_in_bf16(
    launched: Launched, options: Options, tmp_path: Path
) -> None:
    """The layers of `transformers` have the losses of the kernels; bf16 rounds them."""
    expected = launched("pair", 1, 1)
    off = finetune.train("text", output_dir=f"{tmp_path}/off", **options("pair", cpu_kernels="off"))
    assert_close(off, expected)
    bf16 = finetune.train("text", output_dir=f"{tmp_path}/b", **options("pair", precision="bf16"))
    losses = [
        np.array([entry["loss"] for entry in numbers(run) if "loss" in entry])
        for run in (expected, bf16)
    ]
    assert 1e-6 < np.abs(losses[0] - losses[1]).max() < 0.05
    assert bf16.manifest.arguments["bf16"] is True
    assert expected.manifest.arguments["bf16"] is False
    dtypes = {value.dtype for value in load_file(bf16.path / "model.safetensors").values()}
    assert dtypes == {torch.float32}
