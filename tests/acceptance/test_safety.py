"""Section F: files run no code, no secret is written, mistakes are listed, escapes are shown."""

import contextlib
import csv
import hashlib
import importlib.machinery
import json
import logging
import os
import pickle
import pickletools
import pty
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

import finetune
from recipes.text import Text
from tests.acceptance import data
from tests.acceptance.conftest import TRAINING, Commands, Finished, flags
from tests.acceptance.test_results import Page, assert_no_network
from tests.conftest import HANGS, ROOT

Cli = Callable[..., Finished]
Write = Callable[[Path, Path], object]  # takes a path and the marker file
#: A training of two steps with a checkpoint for each.
TWO_STEPS = {**TRAINING, "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
TWO_STEPS |= {"eval_strategy": "steps", "eval_steps": 1}

METRIC = """
import datasets
import evaluate


class Cost(evaluate.Metric):
    def _info(self):
        numbers = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        about = dict(description="", citation="", inputs_description="")
        return evaluate.MetricInfo(features=datasets.Features(numbers), **about)

    def compute(self, *, predictions=None, references=None, **options):
        "Return the number of mistakes; `evaluate.Metric.compute` is slow for 1,000 resamples."
        return {"cost": float(sum(a != b for a, b in zip(predictions, references)))}
"""
RECIPE = """
from finetune import TextRecipe


class Planted(TextRecipe):
    "Planted."
"""


# ---- payloads ------------------------------------------------------------------------------------


def code(marker: Path) -> str:
    """Return Python code that creates the marker."""
    return f"open({str(marker)!r}, 'w').close()\n"


class Payload:
    """An object that creates the marker when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.code = code(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self.code,)


def write_pickle(path: Path, marker: Path) -> None:
    path.write_bytes(pickle.dumps(Payload(marker)))


def write_torch(path: Path, marker: Path) -> None:
    import torch

    torch.save({"state": Payload(marker)}, path)


def edit(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **fields}), encoding="utf-8")


def files_below(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The path of the file that a payload creates when it runs."""
    return tmp_path / "payload-ran"


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory, reviews: Path, bert: Path) -> finetune.Run:
    """A run of two steps with a checkpoint for each, and a metric file beside it."""
    directory = tmp_path_factory.mktemp("short")
    (directory / "cost.py").write_text(METRIC, encoding="utf-8")
    sources = dict(dataset=str(reviews), model=str(bert), output_dir=str(directory / "run"))
    metrics = f"accuracy,f1,{directory / 'cost.py'}"
    return finetune.train("text", metrics=metrics, baseline=False, **sources, **TWO_STEPS)


@pytest.fixture
def run(short_run: finetune.Run, copy_run: Callable[[finetune.Run], finetune.Run]) -> Path:
    """A copy of `short_run`."""
    return copy_run(short_run).path


@pytest.mark.contract("F1")
def test_the_payloads_would_run(tmp_path: Path, marker: Path, bert: Path) -> None:
    """Each payload creates the marker if it is loaded without care, so the tests can fail."""
    import torch
    from transformers import AutoTokenizer

    model = Path(shutil.copytree(bert, tmp_path / "model"))
    plant_tokenizer(model, marker)
    write_pickle(tmp_path / "a.bin", marker)
    write_torch(tmp_path / "b.bin", marker)
    careless: list[Callable[[], object]] = [
        lambda: pickle.loads((tmp_path / "a.bin").read_bytes()),
        lambda: torch.load(tmp_path / "a.bin", weights_only=False),
        lambda: torch.load(tmp_path / "b.bin", weights_only=False),
        lambda: runpy.run_path(str(model / "planted.py")),
        lambda: AutoTokenizer.from_pretrained(model, trust_remote_code=True),
    ]
    for load in careless:
        with contextlib.suppress(Exception):
            load()
        assert marker.exists()
        marker.unlink()


# ---- F1: models ----------------------------------------------------------------------------------


def plant_config(model: Path, marker: Path, **fields: Any) -> None:
    (model / "planted.py").write_text(code(marker), encoding="utf-8")
    classes = ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification")
    auto_map = {name: "planted.Planted" for name in classes}
    edit(model / "config.json", auto_map=auto_map, **fields)


def plant_tokenizer(model: Path, marker: Path) -> None:
    (model / "planted.py").write_text(code(marker), encoding="utf-8")
    auto_map = {"AutoTokenizer": ["planted.Planted", "planted.Planted"]}
    edit(model / "tokenizer_config.json", auto_map=auto_map, tokenizer_class="Planted")


def plant_processor(model: Path, marker: Path) -> None:
    (model / "planted.py").write_text(code(marker), encoding="utf-8")
    auto_map = {"AutoImageProcessor": "planted.Planted"}
    edit(model / "preprocessor_config.json", auto_map=auto_map)


def plant_weights(write: Write) -> Write:
    def plant(model: Path, marker: Path) -> None:
        (model / "model.safetensors").unlink()
        write(model / "pytorch_model.bin", marker)

    return plant


def plant_attention(model: Path, _: Path) -> None:
    edit(model / "config.json", attn_implementation="someone/kernel")


#: Recipe, a function that plants code in the model directory, and a word of the error, if any.
MODELS: dict[str, tuple[str, Write, str | None]] = {
    "config": ("text", lambda a, b: plant_config(a, b, model_type="planted"), "auto_map"),
    "config-of-known-type": ("text", plant_config, None),
    "tokenizer": ("text", plant_tokenizer, None),
    "processor": ("image", plant_processor, None),
    "attention": ("text", plant_attention, "someone/kernel"),
    "weights-pickle": ("text", plant_weights(write_pickle), "pickle"),
    "weights-archive": ("text", plant_weights(write_torch), "pickle"),
}


@pytest.mark.contract("F1")
@pytest.mark.parametrize("case", MODELS)
def test_a_model_runs_no_code(
    case: str, cli: Cli, tmp_path: Path, marker: Path, reviews: Path, bert: Path, vit: Path
) -> None:
    """Code and pickles in a model directory are not run, whatever the user answers."""
    recipe, plant, fragment = MODELS[case]
    model = Path(shutil.copytree(bert if recipe == "text" else vit, tmp_path / "model"))
    plant(model, marker)
    source = reviews if recipe == "text" else data.write_photos(tmp_path / "photos", rows=60)
    words = [recipe, "--dataset", source, "--model", model, "--output_dir", tmp_path / "out"]
    finished = cli(*words, *(["--max_steps", 1] if fragment else ["--dry_run"]), stdin="y\n" * 9)
    assert not marker.exists()
    assert "Traceback" not in finished.output
    assert not (tmp_path / "out").exists()
    assert finished.status == (2 if fragment else 0), finished.output
    if fragment:
        assert str(model) in finished.stderr
        assert fragment in finished.stderr


# ---- F1: data ------------------------------------------------------------------------------------


def write_script(directory: Path, marker: Path, rows: int) -> Path:
    """Write a folder with a loading script of the same name, which old `datasets` ran."""
    directory = directory / "scripted"
    directory.mkdir()
    (directory / "scripted.py").write_text(code(marker), encoding="utf-8")
    if rows:
        data.write_reviews(directory / "train.csv", rows=rows)
    return directory


def write_extension(directory: Path, marker: Path) -> Path:
    """Write a Parquet column of the extension type that old pyarrow versions unpickled."""
    texts, labels = zip(*data.labelled_sentences(60), strict=True)
    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Payload(marker)),
    }
    fields = [pa.field("text", pa.string(), metadata=metadata), pa.field("label", pa.string())]
    columns = [pa.array(texts), pa.array(labels)]
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), directory / "a.parquet")
    return directory / "a.parquet"


def writer(name: str, write: Write) -> Callable[[Path, Path], Path]:
    def write_file(directory: Path, marker: Path) -> Path:
        write(directory / name, marker)
        return directory / name

    return write_file


DATA: dict[str, tuple[Callable[[Path, Path], Path], int]] = {
    "script": (lambda a, b: write_script(a, b, rows=0), 2),
    "script-and-rows": (lambda a, b: write_script(a, b, rows=60), 0),
    "script-by-path": (lambda a, b: write_script(a, b, rows=60) / "scripted.py", 2),
    "parquet-extension": (write_extension, 0),
    "pickle": (writer("data.pkl", write_pickle), 2),
    "torch": (writer("data.pt", write_torch), 2),
    "pickle-as-csv": (writer("data.csv", write_pickle), 2),
    "pickle-as-parquet": (writer("data.parquet", write_pickle), 2),
    "pickle-as-arrow": (writer("data.arrow", write_pickle), 2),
}


@pytest.mark.contract("F1")
@pytest.mark.parametrize("case", DATA)
def test_a_data_set_runs_no_code(
    case: str, cli: Cli, tmp_path: Path, marker: Path, bert: Path
) -> None:
    """Loading scripts and pickles in the data are not run; rows beside a script are read."""
    write, status = DATA[case]
    source = write(tmp_path, marker)
    finished = cli("text", "--dataset", source, "--model", bert, "--dry_run")
    assert not marker.exists()
    assert finished.status == status, finished.output
    assert "Traceback" not in finished.output
    if status:
        assert source.name in finished.stderr


@pytest.mark.contract("F1")
def test_a_config_file_runs_no_code(cli: Cli, tmp_path: Path, marker: Path, reviews: Path) -> None:
    """A YAML tag for a Python object constructs none."""
    config = tmp_path / "options.yaml"
    config.write_text(f"max_length: !!python/object/apply:builtins.exec [{code(marker)!r}]\n")
    finished = cli("text", "--dataset", reviews, "--config", config, "--dry_run")
    assert not marker.exists()
    assert finished.status == 2
    assert "max_length" in finished.stderr


# ---- F1: runs ------------------------------------------------------------------------------------


def name_file(run: Path, kind: str, short_run: finetune.Run, marker: Path) -> Path:
    """Write a recipe or metric file with a payload, and its name into a run."""
    planted = marker.parent / "elsewhere" / f"{kind}.py"
    planted.parent.mkdir()
    source = {"recipe": RECIPE, "metric": METRIC}[kind]
    planted.write_text(code(marker) + source, encoding="utf-8")
    text, metric = (run / "run.json").read_text("utf-8"), str(short_run.path.parent / "cost.py")
    assert metric in text
    if kind == "metric":
        (run / "run.json").write_text(text.replace(metric, str(planted)), encoding="utf-8")
    else:
        edit(run / "run.json", recipe=str(planted))
    return planted


def verb_words(verb: str, run: Path, directory: Path) -> list[object]:
    """Return the words of a command on a run."""
    if verb == "predict":
        (directory / "in.csv").write_text("text\nthe food was fine\n", encoding="utf-8")
        return [verb, run, directory / "in.csv", "--output", directory / "out.csv"]
    return [verb, run, run] if verb == "compare" else [verb, run]


@pytest.mark.contract("F1")
@pytest.mark.parametrize(
    ("kind", "verb", "needs_it"),
    [
        ("recipe", "predict", True),
        ("recipe", "evaluate", True),
        ("recipe", "report", False),
        ("recipe", "compare", False),
        ("metric", "predict", False),
        ("metric", "evaluate", True),
        ("metric", "compare", True),
    ],
)
def test_a_file_that_a_run_names_is_imported_if_it_is_trusted(
    kind: str, verb: str, needs_it: bool, cli: Cli, run: Path, short_run: finetune.Run, marker: Path
) -> None:
    """A verb that needs the file is refused; `--trust_recipe` prints its path and sha256."""
    planted = name_file(run, kind, short_run, marker)
    words = verb_words(verb, run, marker.parent)
    finished = cli(*words)
    assert not marker.exists()
    assert finished.status == (2 if needs_it else 0), finished.output
    if needs_it:
        assert "Traceback" not in finished.output
        assert str(planted) in finished.stderr
        assert "--trust_recipe" in finished.stderr
        assert not (marker.parent / "out.csv").exists()
        finished = cli(*words, "--trust_recipe").succeeded()
        assert marker.exists()
        assert str(planted) in finished.stderr
        assert hashlib.sha256(planted.read_bytes()).hexdigest() in finished.stderr


@pytest.mark.contract("F1")
def test_a_file_is_trusted_in_python(run: Path, short_run: finetune.Run, marker: Path) -> None:
    """`finetune.predict` refuses a recipe file; `trust_recipe=True` warns with path and sha256."""
    planted = name_file(run, "recipe", short_run, marker)
    with pytest.raises(finetune.UserError, match="trust_recipe") as error:
        finetune.predict(run, ["the food was fine"])
    assert str(planted) in str(error.value)
    assert not marker.exists()
    with pytest.warns(UserWarning, match=hashlib.sha256(planted.read_bytes()).hexdigest()):
        finetune.predict(run, ["the food was fine"], trust_recipe=True)
    assert marker.exists()


@pytest.mark.contract("F1")
@pytest.mark.parametrize("name", ["planted", "planted.inner", "planted.py", "../cwd/planted.py"])
def test_a_recipe_name_of_a_run_imports_nothing(
    name: str, cli: Cli, run: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules on the import path or in the current directory are not installed recipes."""
    directory = marker.parent / "cwd"
    (directory / "planted").mkdir(parents=True)
    for file in ("planted.py", "planted/__init__.py", "planted/inner.py"):
        (directory / file).write_text(code(marker) + RECIPE, encoding="utf-8")
    monkeypatch.syspath_prepend(directory)
    edit(run / "run.json", recipe=name)
    finished = cli(*verb_words("predict", run, marker.parent))
    assert not marker.exists()
    assert finished.status == 2
    assert name in finished.stderr
    assert "run.json" in finished.stderr


#: A function that plants code in a run directory, and the exit status of `predict`.
RUNS: dict[str, tuple[Write, int]] = {
    "weights-pickle": (plant_weights(write_pickle), 2),
    "weights-archive": (plant_weights(write_torch), 2),
    "config": (lambda a, b: plant_config(a, b, model_type="planted"), 2),
    "tokenizer": (plant_tokenizer, 0),
    "arguments": (lambda run, marker: write_torch(run / "training_args.bin", marker), 0),
}


@pytest.mark.contract("F1")
@pytest.mark.parametrize("case", RUNS)
def test_the_files_of_a_run_run_no_code(case: str, cli: Cli, run: Path, marker: Path) -> None:
    """Planted weights, code and pickles in a run directory are not run by `predict`."""
    plant, status = RUNS[case]
    plant(run, marker)
    finished = cli(*verb_words("predict", run, marker.parent), stdin="y\n" * 9)
    assert not marker.exists()
    assert finished.status == status, finished.output
    assert "Traceback" not in finished.output
    assert (marker.parent / "out.csv").exists() == (status == 0)


# ---- F1: checkpoints and caches ------------------------------------------------------------------


#: Hash functions of checksums, the longest first: 64-bit XXH3 is a part of 128-bit XXH3.
DIGESTS: list[Callable[[bytes], Any]] = sorted(
    [
        *(getattr(hashlib, name) for name in hashlib.algorithms_guaranteed if "shake" not in name),
        *(getattr(xxhash, name) for name in xxhash.algorithms_available),
    ],
    key=lambda digest: -digest(b"").digest_size,
)


def substitute(value: Any, changes: dict[Any, Any]) -> Any:
    """Return nested JSON with all occurrences of values replaced."""
    if isinstance(value, dict):
        return {name: substitute(inner, changes) for name, inner in value.items()}
    if isinstance(value, list):
        return [substitute(inner, changes) for inner in value]
    return changes.get(value, value)


def replace_file(checkpoint: Path, name: str, content: bytes) -> None:
    """Replace a file of a checkpoint, and its size and checksum, as an attacker would."""
    before = (checkpoint / name).read_bytes()
    manifest = checkpoint / "checkpoint.json"
    unchanged = text = manifest.read_text(encoding="utf-8")
    for digest in DIGESTS:
        text = text.replace(digest(before).hexdigest(), digest(content).hexdigest())
    assert text != unchanged, f"no digest of {name} in checkpoint.json: add its kind to DIGESTS"
    changed = substitute(json.loads(text), {len(before): len(content)})
    manifest.write_text(json.dumps(changed), encoding="utf-8")
    (checkpoint / name).write_bytes(content)


@pytest.mark.contract("F1")
@pytest.mark.parametrize("write", [write_torch, write_pickle])
@pytest.mark.parametrize(
    "name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"]
)
def test_a_checkpoint_runs_no_code(
    name: str, write: Write, cli: Cli, run: Path, short_run: finetune.Run, marker: Path
) -> None:
    """A pickle with the right checksum in a checkpoint is refused by name; the run stays as it is.

    `training_args.bin`, which the library writes, is not read at all.
    """
    checkpoint, before = run / "checkpoint-2", (run / "run.json").read_bytes()
    write(marker.with_suffix(".pt"), marker)
    replace_file(checkpoint, name, marker.with_suffix(".pt").read_bytes())
    options = {**short_run.manifest.options, **TWO_STEPS, "max_steps": 3, "output_dir": run}
    typed = flags(**{k: options[k] for k in ("dataset", "model", "metrics", *TWO_STEPS)})
    words = ["--output_dir", run, "--no_baseline", "--resume_from_checkpoint", checkpoint]
    finished = cli("text", *typed, *words)
    assert not marker.exists()
    assert "Traceback" not in finished.output
    if name == "training_args.bin":
        assert finished.status == 0, finished.output
        assert (run / "checkpoint-3").is_dir()
    else:
        assert finished.status == 2, finished.output
        assert str(checkpoint / name) in finished.stderr
        assert (run / "run.json").read_bytes() == before


def is_pickle(path: Path) -> bool:
    """Return whether a file is a pickle or an archive of `torch.save`."""
    if zipfile.is_zipfile(path):
        names = zipfile.ZipFile(path).namelist()
        return any(name.rpartition("/")[2] == "data.pkl" for name in names)
    with contextlib.suppress(ValueError, IndexError, UnicodeDecodeError):
        opcodes = [opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())]
        return opcodes[0] == "PROTO" and opcodes[-1] == "STOP"
    return False


@pytest.mark.contract("F1")
def test_no_cache_is_a_pickle_and_none_is_unpickled(
    tmp_path: Path, marker: Path, bert: Path
) -> None:
    """Cached rows, tokens and baselines replaced by pickles are created again, not loaded."""
    write_pickle(tmp_path / "a.pkl", marker)
    write_torch(tmp_path / "b.pkl", marker)
    assert is_pickle(tmp_path / "a.pkl")
    assert is_pickle(tmp_path / "b.pkl")
    reviews, cache = data.write_reviews(tmp_path / "new.csv", seed=3), Path(os.environ["HF_HOME"])
    before = files_below(cache)
    options: dict[str, Any] = dict(dataset=str(reviews), model=str(bert), **TWO_STEPS)
    first = finetune.train("text", output_dir=str(tmp_path / "first"), **options)
    written = files_below(cache) - before
    assert written
    assert [path for path in written if is_pickle(path)] == []
    for path in written:
        path.unlink()  # the first training may have mapped it into memory
        write_pickle(path, marker)
    second = finetune.train("text", output_dir=str(tmp_path / "second"), **options)
    assert not marker.exists()
    pd.testing.assert_frame_equal(first.predictions, second.predictions)
    assert first.metrics.baseline == second.metrics.baseline


@pytest.mark.contract("F1")
def test_the_pickles_of_a_run_are_those_of_the_library(short_run: finetune.Run) -> None:
    """The only pickles in a run are the four files of a checkpoint that `Trainer` writes."""
    names = {path.name for path in files_below(short_run.path) if is_pickle(path)}
    assert names <= {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"}
    assert "optimizer.pt" in names


# ---- F2: secrets ---------------------------------------------------------------------------------

TOKEN, PASSWORD, USER = "hf_plantedTokenOfTheTest", "planted-password", "planted-user"
ADDRESS = f"{USER}:{PASSWORD}@127.0.0.1:1"


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment with a password in proxies and endpoint, and without a token."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "https_proxy", "HF_ENDPOINT"):
        monkeypatch.setenv(name, f"http://{ADDRESS}")
    monkeypatch.setenv("HF_TOKEN", "")  # so that the test restores it
    monkeypatch.delenv("HF_TOKEN")


def secrets_in(*places: Path | str) -> list[str]:
    """Return files with a secret in content or name, and lines of output with one."""
    secrets = (TOKEN, PASSWORD)
    paths = [path for place in places if isinstance(place, Path) for path in files_below(place)]
    lines = [line for place in places if isinstance(place, str) for line in place.splitlines()]
    leaks = [str(p) for p in paths for s in secrets if s.encode() in p.read_bytes() or s in p.name]
    return leaks + [line for line in lines for secret in secrets if secret in line]


#: Words, config file and environment variables that pass the token.
TOKENS: dict[str, tuple[list[str], str, dict[str, str]]] = {
    "flag": (["--hub_token", TOKEN], "", {}),
    "flag-with-dash": ([f"--hub-token={TOKEN}"], "", {}),
    "config": ([], f"hub_token: {TOKEN}\n", {}),
    "environment": ([], "", {"HF_TOKEN": TOKEN, "HUGGING_FACE_HUB_TOKEN": TOKEN}),
}


@pytest.mark.contract("F2")
@pytest.mark.usefixtures("proxies")
@pytest.mark.parametrize("case", TOKENS)
def test_a_training_writes_no_secret(
    case: str, cli: Cli, tmp_path: Path, reviews: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token and proxy password are in no file, cache or output of any verb."""
    words, config, environment = TOKENS[case]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "options.yaml").write_text(f"seed: 5\n{config}", encoding="utf-8")
    options = {**TWO_STEPS, "max_steps": 1, "output_dir": tmp_path / "out" / "run"}
    words += ["--no_baseline", "--config", str(tmp_path / "options.yaml"), *flags(**options)]
    finished = cli("text", "--dataset", reviews, "--model", bert, *words).succeeded()
    assert secrets_in(tmp_path / "out", finished.output) == []
    names = {path.name for path in files_below(tmp_path / "out")}
    assert names >= {"run.json", "report.html", "README.md", "training_args.bin"}
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    run, output = tmp_path / "out" / "run", tmp_path / "out" / "predicted.csv"
    verbs = [cli("predict", run, reviews, "--output", output), cli("evaluate", run)]
    assert [result.status for result in verbs] == [0, 0], verbs
    assert output.exists()
    cache = Path(os.environ["HF_HOME"])
    assert secrets_in(tmp_path / "out", cache, *(result.output for result in verbs)) == []


@pytest.mark.contract("F2")
@pytest.mark.usefixtures("proxies")
def test_a_token_in_python_is_passed_on_and_not_written(
    tmp_path: Path, reviews: Path, bert: Path
) -> None:
    """`hub_token=` reaches the trainer, and is in no file, event or variable."""
    events: list[Any] = []
    sources = dict(dataset=str(reviews), model=str(bert), output_dir=str(tmp_path / "run"))
    options = {**TWO_STEPS, **sources, "max_steps": 1, "hub_token": TOKEN, "baseline": False}
    finetune.train("text", progress=events.append, **options)
    assert [e.arguments.hub_token for e in events if hasattr(e, "arguments")] == [TOKEN]
    assert "HF_TOKEN" not in os.environ
    shown = [f"{event} {event!r}" for event in events]
    assert len(shown) >= 3
    assert secrets_in(tmp_path, Path(os.environ["HF_HOME"]), *shown) == []


#: Commands that are refused, and words of the message.
REFUSED_WITH_SECRETS = {
    f"text --dataset https://{ADDRESS}/a.csv": "127.0.0.1:1",
    "text --dataset nobody/nothing --model nobody/nothing": "nobody/nothing",
    f"text --hub_token {TOKEN} --max_steps many": "--max_steps",
    f"text --hub_tokn {TOKEN} --hub_token {TOKEN}": "--hub_tokn",
    f"text --hub_token={TOKEN} --hub-tokn={TOKEN}": "--hub-tokn",
    f"check text --hub_token {TOKEN} --max_steps many": "--max_steps",
    f"predict https://{ADDRESS}/run a.csv": "127.0.0.1:1",
}


@pytest.mark.contract("F2")
@pytest.mark.usefixtures("proxies")
@pytest.mark.parametrize("case", REFUSED_WITH_SECRETS)
def test_a_refusal_shows_no_secret(case: str, cli: Cli, tmp_path: Path, bert: Path) -> None:
    """An error message does not contain the token or password that was typed.

    That includes errors after a file was read: builders of `datasets` may open URLs.
    """
    rows = tmp_path / "rows.csv"
    lines = [f"text {number},{number % 2}" for number in range(40)]
    rows.write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    assert finetune.check("text", dataset=str(rows), model=str(bert)).splits
    finished = cli(*case.split()).refused()
    assert REFUSED_WITH_SECRETS[case] in finished.output
    assert secrets_in(finished.output) == []


BROKEN = """
import logging
import os
from finetune import TextRecipe


class Broken(TextRecipe):
    "Broken."

    def load(self):
        url, token = os.environ["HTTPS_PROXY"], os.environ["HF_TOKEN"]
        logging.getLogger("httpx").error("asked %s with %s", url, token)
        raise RuntimeError(f"no answer from {url}: Bearer {token}")
"""


@pytest.mark.contract("F2")
@pytest.mark.usefixtures("proxies")
def test_a_traceback_and_a_log_record_show_no_secret(
    cli: Cli, tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """A recipe that fails with a secret in its message is shown with the secret masked."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    (tmp_path / "broken.py").write_text(BROKEN, encoding="utf-8")
    output = ""
    with caplog.at_level(logging.ERROR):
        try:
            output = cli(tmp_path / "broken.py", "--model", bert).output
        except RuntimeError as error:  # Python calls the hook that the command line sets
            sys.excepthook(type(error), error, error.__traceback__)
    output += capsys.readouterr().err
    assert "no answer from" in output
    assert "asked" in caplog.text
    assert secrets_in(output, caplog.text) == []


# ---- F3: the current directory -------------------------------------------------------------------

PACKAGES = ["torch", "transformers", "datasets", "evaluate", "accelerate", "numpy", "pandas"]
PACKAGES += ["mlx", "wandb", "ray", "tensorboard", "optuna", "peft", "deepspeed", "tensorflow"]
PACKAGES += ["accuracy", "f1", "recipes", "metrics", "yaml", "xxhash"]
MODULES = ["csv", "json", "logging", "random", "dataclasses", "sklearn", "psutil", "comet_ml"]
#: Folders without `__init__.py`, which Python could import instead of the packages.
FOLDERS = ["flax", "jax", "bitsandbytes", "apex", "clearml"]


@pytest.fixture
def poisoned(tmp_path: Path, marker: Path) -> Path:
    """A directory with packages and modules that write their name to the marker file."""
    folder = tmp_path / "poisoned"
    paths = [f"{name}/{file}.py" for name in PACKAGES for file in ("__init__", name)]
    paths += [f"{name}.py" for name in MODULES] + [f"{name}/inner.py" for name in FOLDERS]
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"open({str(marker)!r}, 'a').write('{path} ')\n", "utf-8")
    for name in [*PACKAGES, *MODULES, *FOLDERS]:
        assert importlib.machinery.PathFinder.find_spec(name, [str(folder)]) is not None
    return folder


@pytest.mark.contract("F1", "F3")
def test_packages_in_the_current_directory_are_not_imported(
    command: Commands, poisoned: Path, tmp_path: Path, marker: Path, reviews: Path, bert: Path
) -> None:
    """`python -m finetune` trains there, and runs no copy in the cache of metrics."""
    import evaluate

    evaluate.load(str(ROOT / "metrics" / "accuracy"))
    cache = Path(shutil.copytree(evaluate.config.HF_MODULES_CACHE, tmp_path / "modules"))
    copies = list(cache.rglob("accuracy.py"))
    assert copies
    for copy in copies:
        copy.write_text(code(marker) + copy.read_text(encoding="utf-8"), encoding="utf-8")
    shutil.copy(reviews, poisoned / "reviews.csv")
    words = ["text", "--dataset", "reviews.csv", "--model", bert, "--no_baseline"]
    words += flags(**TWO_STEPS, output_dir="run")
    environment = {"PYTHONPATH": str(ROOT), "HF_MODULES_CACHE": str(cache)}
    finished = command(*words, launcher="fresh", cwd=poisoned, env=environment)
    assert not marker.exists(), marker.read_text(encoding="utf-8")
    assert finished.status == 0, finished.output
    run = finetune.Run.load(poisoned / "run")
    assert run.manifest.status == "finished"
    assert set(run.metrics.test) >= {"accuracy", "f1"}


# ---- F4: mistakes --------------------------------------------------------------------------------

#: Files in the current directory, which also has reviews.csv and model/.
FILES = {
    "unknown.yaml": "learning_rte: 1e-4\n",
    "broken.yaml": "max_length: [3\n",
    "list.yaml": "- max_length\n",
    "two.yaml": "learning_rte: 1\ntrain_samples: 1.5\n",
    "twice.yaml": "seed: 1\nmax_length: 16\nseed: 2\n",
    "cut/config.json": '{"model_type": "bert"}',
    "cut/tokenizer.json": '{"model": ',
    "broken.py": "x = 1\nclass Mine(\n",
    "mine/letter.txt": "dear\n",
    "runs/reviews/run.json": "{}\n",
}
#: Typed words -> words in the line of each mistake. T stands for `text D M`, data and model.
MISTAKES = """
T --learning_rte 1e-3 -> --learning_rte --learning_rate
T --learning-rte=1 -> --learning-rte --learning-rate
T --lr 1e-3 -> --lr --learning_rate
T --max_lenght 3 --sede 1 -> --max_lenght --max_length | --sede --seed
T --batch_size 8 -> --batch_size --global_batch_size
mnist --max_length 3 -> --max_length mnist
image D M --max_length 3 -> --max_length image | --model bert | --image_column
T sentiment -> 'sentiment'
T --learning_rate -> --learning_rate
T --csv_quoting all -> --csv_quoting all minimal none
T --lr_scheduler_type linera -> --lr_scheduler_type linera linear
T --max_length 1.5 -> --max_length '1.5'
T --eval_strategy sometimes -> --eval_strategy sometimes epoch
T --max_length 4096 -> --max_length 4096 model 128
T --eval_samples 0 -> --eval_samples 0
T --global_batch_size 0 -> --global_batch_size 0
T --num_train_epochs 0 -> --num_train_epochs 0
T --learning_rate=-1 -> --learning_rate -1
T --weight_decay inf -> --weight_decay inf finite
T --seed=-1 -> --seed -1
T --seed 4294967296 -> --seed 4294967296
T --metrics , -> --metrics
T --optim_args foo -> --optim_args foo
T --lr_scheduler_type cosine_with_min_lr -> --lr_scheduler_type cosine_with_min_lr min_lr_rate
T --lr_scheduler_kwargs foo -> --lr_scheduler_kwargs foo
T --accelerator_config foo -> 'foo'
T --warmup_steps -1 -> --warmup_steps -1
T --max_steps 0 -> --max_steps 0
T --precision bf61 -> --precision bf61 bf16
T --optim adamw_bnb_8bit -> --optim adamw_bnb_8bit pip install bitsandbytes
T --report_to wandbb -> --report_to wandbb wandb
T --eval_do_concat_batches true -> --eval_do_concat_batches
T --test_size=-0.1 -> --test_size -0.1
T --test_size 1.0 -> --test_size 1
T --metrics f1_makro -> --metrics f1_makro f1_macro
T --metric_for_best_model acuracy -> --metric_for_best_model acuracy accuracy
T --metrics ./none.py -> --metrics none.py
T --label_column a --label_columns a,b -> --label_column a --label_columns a,b | 'a' label
T --task single_label --label_separator ; -> --label_separator multi_label single_label
T --label_order bad,good --label_separator ; -> --label_separator multi_label ordinal
T --task ordinal --label_columns a,b -> --label_columns ordinal --label_column | --label_order
T --label_columns a,b --label_separator ; -> --label_separator --label_columns | 'a' | 'b'
T --resume --resume_from_checkpoint last -> --resume --resume_from_checkpoint
T --global_batch_size 16 --max_tokens_per_batch 512 -> \
    --global_batch_size --max_tokens_per_batch
T --global_batch_size 32 --per_device_train_batch_size 4 -> \
    --global_batch_size --per_device_train_batch_size
T --resume_from_checkpoint last -> --resume_from_checkpoint runs/text
T --resume_from_checkpoint runs/x/checkpoint-3 -> runs/x/checkpoint-3
T --output_dir mine -> --output_dir mine
T --output_dir reviews.csv/run -> --output_dir reviews.csv/run
text --dataset review.csv M -> review.csv 'reviews.csv'
T --label_column lable -> --label_column 'lable' 'label' text
T --text_column review -> --text_column 'review' text, label
T --text_column label --label_column label -> --text_column --label_column 'label'
text D --model ./mine -> --model ./mine config.json
text D --model ./cut -> --model ./cut JSONDecodeError damaged
T --config none.yaml -> --config none.yaml
T --config two.yaml -> two.yaml learning_rte learning_rate | two.yaml train_samples 1.5
T --config list.yaml -> --config list.yaml
T --config broken.yaml -> broken.yaml line 2
T --config twice.yaml -> twice.yaml seed
txet D M -> 'txet' 'text'
train yepl -> 'yepl' 'yelp'
yepl -> 'yepl' yelp image mnist sentiment text
--verison -> --verison --version
none/mine.py D M -> none/mine.py
broken.py D M -> broken.py line 2
--max_steps 3 text -> python -m finetune text
--embedded yelp -> python -m finetune yelp
evalaute runs/reviews -> 'evalaute' 'evaluate'
predict runs/reviews a.csv --ouput x.csv -> predict --ouput --output
evaluate runs/reviews --date x -> evaluate --date --data
evaluate runs/review -> runs/review 'runs/reviews'
predict reviews reviews.csv -> reviews 'runs/reviews'
report nowhere -> nowhere
predict runs/reviews -> INPUT
predict runs/reviews reviews.csv --text fine -> --text
compare runs/reviews -> compare
list extra -> list extra
check text --suspects= --deep -> --suspects
T --learning_rte 1 --bf16 maybe --seed=-1 --max_length long --warmup_ratio 0.1 -> \
    --learning_rte | --bf16 | --seed | --max_length | --warmup_ratio
T --config unknown.yaml --label_column lable --max_length 4096 --output_dir mine -> \
    unknown.yaml | --label_column | --max_length | --output_dir
text D --model ./none --text_column a --label_column b -> ./none | 'a' | 'b'
predict runs/reviews r.csv --output a.doc --batch_tokens 0 -> a.doc | --batch_tokens 0 | run.json
"""
TYPED = {"D": "--dataset reviews.csv", "M": "--model model"}
TYPED["T"] = f"text {TYPED['D']} {TYPED['M']}"


@pytest.fixture
def directory(cli: Cli, tmp_path: Path, reviews: Path, bert: Path) -> Path:
    """A working directory with the files of FILES, data and a model."""
    for name, content in FILES.items():
        (tmp_path / "cwd" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cwd" / name).write_text(content, encoding="utf-8")
    shutil.copy(reviews, tmp_path / "cwd" / "reviews.csv")
    shutil.copytree(bert, tmp_path / "cwd" / "model")
    return tmp_path / "cwd"


def listing(directory: Path) -> dict[Path, bytes]:
    """Return the content of all files in a directory, and its folders."""
    paths = directory.rglob("*")
    return {path: path.read_bytes() if path.is_file() else b"" for path in paths}


def assert_named(messages: list[str] | tuple[str, ...], mistakes: list[str]) -> None:
    """Assert that there is one message for each mistake with the words that name it."""
    assert len(messages) == len(mistakes), "\n".join(messages)
    for words in map(str.split, mistakes):
        patterns = [rf"(?<!\d){re.escape(word)}(?!\w)" for word in words]
        matching = [text for text in messages if all(re.search(part, text) for part in patterns)]
        assert len(matching) == 1, (words, *messages)


@pytest.mark.contract("F4", "A4", "A5")
@pytest.mark.parametrize("case", MISTAKES.strip().splitlines())
def test_a_mistake_is_named_and_leaves_nothing(case: str, cli: Cli, directory: Path) -> None:
    """Each message has the flag, the value and what to type; status 2; no new file."""
    typed, _, mistakes = case.partition(" -> ")
    before = listing(directory)
    finished = cli(*" ".join(TYPED.get(word, word) for word in typed.split()).split()).refused()
    messages = re.split(r"^.*?error: ", finished.stderr, flags=re.MULTILINE)[1:]
    assert_named(messages, mistakes.split(" | "))
    assert (finished.stdout, "Traceback" in finished.stderr) == ("", False)
    assert listing(directory) == before


@pytest.mark.contract("F4")
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--learning_rte 1 --label_column lable", ["--learning_rate", "'lable'", "'label'"]),
        ("--dataset none.csv --model ./none", ["none.csv", "./none"]),
        ("--depe", ["--depe"]),
    ],
)
def test_mistakes_that_check_finds_are_named(
    flags: str, words: list[str], cli: Cli, directory: Path
) -> None:
    """`check` lists all mistakes at once, exits with status 2 and writes nothing."""
    before = listing(directory)
    finished = cli("check", *TYPED["T"].split(), *flags.split()).refused()
    for word in words:
        assert word in finished.output
    assert "Traceback" not in finished.output
    assert listing(directory) == before


#: Keywords of `finetune.train`, and words of each mistake.
KEYWORDS: list[tuple[dict[str, Any], str]] = [
    (dict(task="sentiment"), "--task sentiment multi_label"),
    (dict(max_steps="three"), "--max_steps 'three'"),
    (dict(bf16="no"), "--bf16 'no'"),
    (dict(max_lenght=3, lerning_rate=1.0), "max_lenght max_length | lerning_rate learning_rate"),
    (dict(train_samples=-5), "--train_samples -5"),
    (dict(label_column="lable"), "--label_column 'lable' 'label'"),
    (dict(dataset="./none.csv"), "./none.csv"),
    (dict(dataset=[{"words": "a", "label": "b"}] * 40), "--text_column words label"),
    (
        dict(learning_rte=1, max_length=-5, label_column="lable", model="./nothing"),
        "learning_rte | --max_length -5 | 'lable' | ./nothing",
    ),
]


@pytest.mark.contract("E11", "F4")
@pytest.mark.parametrize(("options", "mistakes"), KEYWORDS)
def test_mistakes_in_python_come_at_once(
    options: dict[str, Any], mistakes: str,
    tmp_path: Path, reviews: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A `UserError` of `train` has a line for each, and `check` returns an error for each."""
    monkeypatch.chdir(tmp_path)
    options = {"dataset": str(reviews), "model": str(bert), **options}
    with pytest.raises(finetune.UserError) as error:
        finetune.train("text", **options)
    assert_named(error.value.mistakes, mistakes.split(" | "))
    check = finetune.check("text", **options)
    assert check.status == 2
    messages = [finding.message for finding in check.findings if finding.severity == "error"]
    assert_named(messages, mistakes.split(" | "))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.contract("F4")
def test_mistakes_of_verbs_in_python(
    tmp_path: Path, short_run: finetune.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown options and values, a missing run and a command-line flag are a `UserError`."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(finetune.UserError) as error:
        finetune.predict(short_run, ["fine"], batch_tokens=0, text_colum="a")
    assert_named(error.value.mistakes, ["text_colum text_column", "--batch_tokens 0"])
    with pytest.raises(finetune.UserError, match="--adapter foo: expected lora"):
        Text(adapter="foo")  # type: ignore[arg-type]
    for verb in (finetune.evaluate, finetune.report, finetune.Run.load):
        with pytest.raises(finetune.UserError, match="nowhere"):
            verb("nowhere")
    with pytest.raises(finetune.UserError, match="dry_run"):
        finetune.train("yelp", embedded=True, dry_run=True)
    with pytest.raises(finetune.UserError) as error:
        finetune.train("mnist", output_dir=None, dry_run="yes", embedded=True, split_seed=1.5)
    expected = ["output_dir text None", "dry_run true false 'yes'", "--split_seed whole 1.5"]
    assert_named(error.value.mistakes, expected)
    for recipe in (5, None, int):
        with pytest.raises(finetune.UserError, match="class of a recipe, found"):
            finetune.check(recipe)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


# ---- F5: formulas --------------------------------------------------------------------------------

FORMULAS = ["=1+1", "+cmd|'/c calc'!A0", "-2+3", "-", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("a")']
PLAIN = ["fine", "'=1", " =1", "a=b", "5-3", "me@here", "-1.5", "+2e3", "12"]
#: Names and texts that a page or a terminal would run.
ESCAPES = "\x1b[31m\x1b]0;title\x07\b\b\x9b"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LABELS = {"bad": f"=bad <xss-label> {ESCAPES}", "good": '@good" onmouseover="x <xss-name>'}
TEXT_COLUMN, LABEL_COLUMN = f"<xss-column>{ESCAPES}", f"<xss-target>{ESCAPES}"
FILE = "<xss-file>\x1b[31m.csv"


@pytest.fixture(scope="module")
def hostile_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose name, columns, labels and texts hold formulas, HTML and terminal escapes."""
    directory = tmp_path_factory.mktemp("hostile")
    rows = [
        (f"{FORMULAS[n % 8]} <xss-text> {ESCAPES} {text}", LABELS[label], f"<xss-{n % 2}>")
        for n, (text, label) in enumerate(data.labelled_sentences(240, seed=5))
    ]
    data.write_csv(directory / FILE, [TEXT_COLUMN, LABEL_COLUMN, "<xss-kind>"], rows)
    return directory


@pytest.fixture(scope="module")
def hostile_options(hostile_directory: Path, bert: Path) -> dict[str, str]:
    """Return the options of a training on that file."""
    place = dict(dataset=str(hostile_directory / FILE), model=str(bert), task="single_label")
    return place | dict(text_column=TEXT_COLUMN, label_column=LABEL_COLUMN)


@pytest.fixture
def hostile_words(hostile_options: dict[str, str]) -> list[str]:
    return flags(**hostile_options)


@pytest.fixture(scope="module")
def hostile_run(
    hostile_options: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> finetune.Run:
    """A run on that file, in a directory with escapes in its name."""
    place = tmp_path_factory.mktemp("runs") / "<xss-run>\x1b[31m"
    return finetune.train("text", **hostile_options, **TWO_STEPS, output_dir=str(place))


def write_inputs(path: Path) -> Path:
    """Write rows with formulas and other texts, a negative number, and a hostile column."""
    rows = [{"text": text, "n": -5, "=1+1": "=2"} for text in FORMULAS + PLAIN]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def read_cells(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


@pytest.mark.contract("F5")
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_csv_safe_escapes_formulas(
    suffix: str, cli: Cli, tmp_path: Path, hostile_run: finetune.Run
) -> None:
    """Only formulas get an apostrophe, in header and labels too."""
    source = write_inputs(tmp_path / "in.jsonl")
    paths = [tmp_path / f"{name}{suffix}" for name in ("plain", "safe")]
    words = ["predict", hostile_run.path, source, "--text_column", "text", "--all_probabilities"]
    assert cli(*words, "--output", paths[0]).status == 0
    assert cli(*words, "--output", paths[1], "--csv_safe").status == 0
    plain, safe = map(read_cells, paths)
    assert plain[0][:3] == ["text", "n", "=1+1"]
    assert safe[0][:3] == ["text", "n", "'=1+1"]
    assert [row[0] for row in plain[1:]] == FORMULAS + PLAIN
    assert [row[0] for row in safe[1:]] == [f"'{text}" for text in FORMULAS] + PLAIN
    assert {tuple(row[1:3]) for row in plain[1:]} == {("-5", "=2")}
    assert {tuple(row[1:3]) for row in safe[1:]} == {("-5", "'=2")}
    label = plain[0].index("label")
    assert {row[label] for row in plain[1:]} <= set(LABELS.values())
    assert [row[label] for row in safe[1:]] == [f"'{row[label]}" for row in plain[1:]]
    numbers = [column for column, name in enumerate(plain[0]) if name.startswith("probability")]
    assert len(numbers) == 3
    for row, other in zip(plain[1:], safe[1:], strict=True):
        assert [row[column] for column in numbers] == [other[column] for column in numbers]


@pytest.mark.contract("F5")
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_csv_safe_is_for_spreadsheets(
    suffix: str, cli: Cli, tmp_path: Path, short_run: finetune.Run
) -> None:
    """The flag is refused for other formats, which keep their texts."""
    source, output = write_inputs(tmp_path / "in.jsonl"), tmp_path / f"out{suffix}"
    cli("predict", short_run.path, source, "--output", output, "--csv_safe").refused(
        "--csv_safe", suffix
    )
    assert not output.exists()
    assert finetune.predict_file(short_run, source, output).rows == len(FORMULAS + PLAIN)
    frame = pd.read_parquet(output) if suffix == ".parquet" else pd.read_json(output, lines=True)
    assert frame["text"].tolist() == FORMULAS + PLAIN


def assert_no_formulas(suspects: Path) -> None:
    """Assert that no cell is a formula, and texts and labels are complete after the apostrophe."""
    with suspects.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 3
    for row in rows:
        assert row["text"][:2] in {f"'{text[0]}" for text in FORMULAS}
        assert f" <xss-text> {ESCAPES} " in row["text"]
        assert row["label"][1:] in LABELS.values()
        assert not [cell for cell in row.values() if re.match(r"[=+\-@\t\r]", cell)]


@pytest.mark.contract("F5")
def test_suspects_are_escaped(hostile_run: finetune.Run) -> None:
    """No cell of suspects.csv is a formula."""
    assert_no_formulas(hostile_run.path / "suspects.csv")


# ---- F5: HTML and terminals ----------------------------------------------------------------------


@pytest.mark.contract("F5")
def test_the_parser_of_pages_sees_what_a_browser_runs(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('<p onmouseover="x">a <xss-label>b</p>&lt;xss-name&gt;', "utf-8")
    page = Page(tmp_path / "a")
    assert page.tags == ["p", "xss-label"]
    assert page.attributes == [("p", "onmouseover", "x")]
    assert page.text == "a b<xss-name>"


def assert_only_text(path: Path, *names: str) -> None:
    """Assert that a page shows names with HTML as text, and a browser would not run them."""
    page = Page(path)
    assert_no_network(page)
    assert [tag for tag in page.tags if tag.startswith("xss")] == []
    for name in names:
        assert name in page.text


@pytest.mark.contract("E7", "F5")
def test_html_in_the_report_is_text(hostile_run: finetune.Run) -> None:
    """HTML in texts, labels, columns and file names is shown by report.html, not run."""
    names = ("<xss-text>", "<xss-label>", "<xss-name>", "<xss-file>", '" onmouseover="x')
    names += ("<xss-kind> = <xss-1>",)
    assert_only_text(hostile_run.path / "report.html", *names)


@pytest.mark.contract("F5")
def test_html_in_the_model_card_is_text(hostile_run: finetune.Run) -> None:
    """README.md has no HTML and no terminal escapes outside of code."""
    card = (hostile_run.path / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"(?ms)\A---.*?^---$|^```.*?^```$|^    .*?$|`[^`]*`", "", card)
    assert re.search(r"(?<!\\)<xss", prose) is None
    assert CONTROLS.search(card) is None


def escaped(text: str) -> str:
    return CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def assert_visible(output: str, *names: str) -> None:
    """Assert that escapes in an output are shown, and a terminal does not run them."""
    assert CONTROLS.search(output) is None
    for name in names:
        assert name in output


#: The words of a command, its status, and names that it shows with their escapes as text. `TRAIN`
#: are the options of a training, `MODEL` those of its model and task, `RUN` and `OTHER` are runs.
#: Paths are below the directory of the test.
ESCAPED: dict[str, tuple[list[str], int, list[str]]] = {
    "check": (
        ["check", "text", "TRAIN", "--suspects", "suspects\x1b[31m.csv"],
        3,
        [LABELS["bad"], TEXT_COLUMN, FILE],
    ),
    "train": (
        ["text", "TRAIN", "--no_baseline", "SHORT", "--output_dir", "run\x1b[31m"],
        0,
        [LABELS["bad"], "run\x1b[31m", FILE],
    ),
    "compare": (
        ["compare", "RUN", "OTHER", "--output", "page.html"],
        0,
        ["other\x1b[31m", "<xss-run>\x1b[31m"],
    ),
    "an unknown column": (
        ["text", "--dataset", "DATA", "--text_column", "none\x1b[31m", "MODEL"],
        2,
        ["none\x1b[31m", TEXT_COLUMN],
    ),
    "no such file": (["text", "--dataset", "none\x1b[31m.csv", "MODEL"], 2, ["none\x1b[31m.csv"]),
    "an unknown option": (["text", "TRAIN", "--bad\x1b[31m", "1"], 2, ["--bad\x1b[31m"]),
    "predict a text": (["predict", "RUN", "--text", "a text"], 0, [LABELS["bad"]]),
    "predict a file": (
        ["predict", "RUN", "in\x1b[31m.jsonl", "--text_column", "text", "--output",
         "out\x1b[31m.csv"],
        0,
        ["out\x1b[31m.csv"],
    ),
    "evaluate": (["evaluate", "RUN"], 0, ["<xss-run>\x1b[31m"]),
}  # fmt: skip


@pytest.mark.contract("E7", "F5")
@pytest.mark.parametrize("case", ESCAPED)
def test_escapes_in_an_output_are_shown(
    case: str, cli: Cli, tmp_path: Path, hostile_run: finetune.Run, hostile_options: dict[str, str]
) -> None:
    """Columns, labels, files and runs are printed escaped; suspects have no formulas, and pages
    show HTML as text.
    """
    typed, status, names = ESCAPED[case]
    write_inputs(tmp_path / "in\x1b[31m.jsonl")
    if case == "compare":  # with a run that predicts the other class for each row
        other = shutil.copytree(hostile_run.path, tmp_path / "other\x1b[31m")
        table = pd.read_parquet(other / "predictions.parquet")
        swapped = dict(zip(LABELS.values(), reversed(LABELS.values()), strict=True))
        columns = {f"probability of {a}": f"probability of {b}" for a, b in swapped.items()}
        table["prediction"] = table["prediction"].map(swapped)
        table.rename(columns=columns)[list(table)].to_parquet(other / "predictions.parquet")
    model = {name: hostile_options[name] for name in ("model", "task", "label_column")}
    places = {
        "RUN": [hostile_run.path],
        "OTHER": [tmp_path / "other\x1b[31m"],
        "DATA": [hostile_options["dataset"]],
        "TRAIN": flags(**hostile_options),
        "MODEL": flags(**model),
        "SHORT": flags(**{**TWO_STEPS, "max_steps": 8, "save_steps": 8, "eval_steps": 8}),
    }
    words: list[object] = []
    for word in typed:
        is_file = word.endswith((".csv", ".jsonl", ".html")) or word.startswith("run")
        words += places.get(word, [tmp_path / word if is_file else word])
    finished = cli(*words)
    assert finished.status == status, finished.output
    assert_visible(finished.output, *map(escaped, names))
    if case == "check":
        assert_no_formulas(tmp_path / "suspects\x1b[31m.csv")
    if case == "compare":
        shown = ("<xss-text>", "<xss-label>", "<xss-name>", "<xss-run>")
        assert_only_text(tmp_path / "page.html", *shown)
    if case == "predict a file":
        assert (tmp_path / "out\x1b[31m.csv").exists()


@pytest.mark.contract("F5")
def test_a_terminal_shows_escapes_and_a_pipe_gets_the_data(
    command: Commands, tmp_path: Path, hostile_run: finetune.Run
) -> None:
    """`predict` to a terminal prints texts and labels escaped."""
    source = tmp_path / "in.txt"
    source.write_text(f"the food was {ESCAPES}fine\n", encoding="utf-8")
    screen, terminal = pty.openpty()
    streams = {"stdin": subprocess.DEVNULL, "stdout": terminal}
    process = command.start("predict", hostile_run.path, source, **streams)
    os.close(terminal)
    printed = b""
    with contextlib.suppress(OSError), open(screen, "rb", buffering=0) as file:
        while part := file.read(4096):
            printed += part
    _, errors = process.communicate(timeout=HANGS)
    assert process.returncode == 0, errors
    assert_visible(printed.decode().replace("\r\n", "\n"), escaped(f"the food was {ESCAPES}fine"))
    assert CONTROLS.search(errors) is None
