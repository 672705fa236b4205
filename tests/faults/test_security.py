"""Nothing in a data set, a model directory, a run or a cache runs code, and no secret leaves.

Each test plants something hostile, a canary, and looks whether it ran or was seen.
"""

import csv
import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.distributed.checkpoint as sharded

import finetune
from finetune import Run, UserError
from finetune.cli import dispatch
from finetune.data.sources import Source
from finetune.statistics import baselines
from finetune.tasks import kinds
from finetune.training import checkpoint as checkpoints
from finetune.training.checkpoint import Checkpoint
from finetune.training.pickles import refuse_code
from tests.conftest import LAUNCHERS, ROOT, Command
from tests.hub import Hub
from tests.runs import trained, write_run

pytestmark = pytest.mark.usefixtures("one_thread")

RECIPE = """
from pathlib import Path
from finetune import TextRecipe

Path({canary!r}).touch()

class Planted(TextRecipe):
    "Planted."

    own_metrics = ("own",)

    def compute_metrics(self, prediction):
        return {{"own": 1.0}}
"""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """The file that hostile code makes."""
    return tmp_path / "the canary sang"


@pytest.fixture
def planted(tmp_path: Path, canary: Path) -> Path:
    """A recipe file that makes the canary when it is imported."""
    path = tmp_path / "elsewhere" / "planted.py"
    path.parent.mkdir()
    path.write_text(RECIPE.format(canary=str(canary)), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A copy of a trained run."""
    return Run.load(shutil.copytree(trained().path, tmp_path / "run"))


def changed(path: Path, **fields: Any) -> None:
    """Change fields of a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **fields}), encoding="utf-8")


def refused(*words: object, capsys: pytest.CaptureFixture[str]) -> str:
    """The one message with which the command line refuses; no traceback, no second line."""
    assert dispatch.main([str(word) for word in words]) == 2
    told = capsys.readouterr().err.strip()
    assert "Traceback" not in told
    assert len(told.splitlines()) == 1, told
    return told


class Hostile:
    """What makes the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.canary}'",)


# ---- modules of the current directory ------------------------------------------------------------

#: Modules of the standard library that the toolkit imports, its first ones among them.
SHADOWED = "__future__ ast csv dataclasses difflib json logging random tempfile typing wandb mlx"


@pytest.mark.processes
@pytest.mark.parametrize("launcher", ["python", "torchrun"])
def test_a_module_of_the_current_directory_shadows_none(
    launcher: str, tmp_path: Path, canary: Path
) -> None:
    for name in SHADOWED.split():
        code = f"open({str(canary)!r}, 'a').write('{name} ')\n"
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [*LAUNCHERS[launcher], "doctor" if launcher == "python" else "list"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not canary.exists(), canary.read_text(encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_a_program_that_imports_the_toolkit_keeps_its_own_modules(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import finetune, neighbour\n", encoding="utf-8")
    (tmp_path / "neighbour.py").touch()
    for words in (["mine.py"], ["-m", "mine"]):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, check=True)


# ---- recipes that a run names --------------------------------------------------------------------

VERBS: dict[str, Callable[[Path], Any]] = {
    "predict": lambda path: finetune.predict(path, ["fine"]),
    "predict_file": lambda path: finetune.predict_file(path, path / "run.json", path / "o.csv"),
    "evaluate": lambda path: finetune.evaluate(path),
    "report": finetune.report,
    "compare": lambda path: finetune.compare([path, path]),
    "recipe": lambda path: Run.load(path).recipe(),
    "model": lambda path: Run.load(path).model(),
}


@pytest.mark.parametrize("verb", ["predict", "evaluate", "recipe", "model"])
def test_a_run_imports_no_file(verb: str, run: Run, planted: Path, canary: Path) -> None:
    changed(run.path / "run.json", recipe=str(planted))
    with pytest.raises(UserError) as told:
        VERBS[verb](run.path)
    assert not canary.exists()
    assert str(told.value) == (
        f"{run.path}/run.json names a recipe file, {planted}, which would be run as code: if you "
        "trust that file, add --trust_recipe (in Python trust_recipe=True, or import it first)"
    )


@pytest.mark.parametrize("name", ["os", "antigravity", "../elsewhere/planted", "planted.py", ""])
@pytest.mark.parametrize("verb", ["predict", "evaluate", "recipe"])
def test_a_run_imports_nothing_by_a_name(
    verb: str, name: str, run: Run, planted: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(planted.parent)
    monkeypatch.chdir(planted.parent)
    changed(run.path / "run.json", recipe=name)
    with pytest.raises(UserError, match=r"names the recipe '.*', which is not installed") as told:
        VERBS[verb](run.path)
    assert not canary.exists()
    assert "available: image, mnist, sentiment, text, yelp" in str(told.value)


@pytest.mark.parametrize("verb", ["report", "compare"])
def test_report_and_compare_need_no_recipe(
    verb: str, tmp_path: Path, planted: Path, canary: Path
) -> None:
    run = write_run(tmp_path / "run", recipe=str(planted))
    if verb == "report":  # the statistics are computed again
        dataclasses.replace(run.metrics, statistics=None).write(run.path)
    VERBS[verb](run.path)
    assert not canary.exists()


@pytest.mark.parametrize("verb", ["report", "compare"])
def test_report_and_compare_import_no_file_for_metrics_of_its_own(
    verb: str, tmp_path: Path, planted: Path, canary: Path
) -> None:
    run = write_run(tmp_path / "run", recipe=str(planted), scoring={})
    if verb == "report":
        dataclasses.replace(run.metrics, statistics=None).write(run.path)
    with pytest.raises(UserError, match="trust_recipe"):
        VERBS[verb](run.path)
    assert not canary.exists()


def test_a_trusted_recipe_is_imported_and_named(
    run: Run, planted: Path, canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import hashlib

    changed(run.path / "run.json", recipe=str(planted))
    assert "--trust_recipe" in refused("predict", run.path, "--text", "fine", capsys=capsys)
    words = ["predict", str(run.path), "--text", "fine", "--trust_recipe"]
    assert dispatch.main(words) == 0
    told = capsys.readouterr()
    digest = hashlib.sha256(planted.read_bytes()).hexdigest()
    assert told.err == f"importing the recipe {planted} (sha256 {digest})\n"
    assert told.out.startswith(("good", "bad"))
    assert canary.exists()
    assert type(Run.load(run.path).recipe()).__name__ == "Planted"  # imported: asked no more


def test_what_is_trusted_is_what_was_hashed(run: Run, planted: Path, canary: Path) -> None:
    """And not a compiled copy of something else beside it, which Python would take instead."""
    import py_compile

    source = planted.read_text(encoding="utf-8").replace(f"Path({str(canary)!r}).touch()", "")
    hostile = planted.read_bytes()
    py_compile.compile(
        str(planted), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    planted.write_text(source, encoding="utf-8")
    changed(run.path / "run.json", recipe=str(planted))
    with pytest.warns(UserWarning, match=r"importing the recipe .*planted.py \(sha256 "):
        finetune.predict(run.path, ["fine"], trust_recipe=True)
    assert not canary.exists()
    assert hostile != planted.read_bytes()


def test_a_trusted_recipe_that_is_gone_is_named(run: Run) -> None:
    changed(run.path / "run.json", recipe="/nowhere/mine.py")
    with pytest.raises(UserError, match=r"recipe file /nowhere/mine.py cannot be read: No such"):
        finetune.evaluate(run, trust_recipe=True)


def test_a_recipe_of_ones_own_is_used_where_it_was_imported(run: Run, tmp_path: Path) -> None:
    from finetune.recipe import catalog

    mine = tmp_path / "mine.py"
    mine.write_text(RECIPE.format(canary=str(tmp_path / "other")), encoding="utf-8")
    changed(run.path / "run.json", recipe=catalog.origin(catalog.find(str(mine))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(finetune.predict(run.path, ["fine"])) == 1


# ---- weights, optimizers and random states -------------------------------------------------------


def plain_pickle(path: Path, canary: Path) -> None:
    path.write_bytes(pickle.dumps(Hostile(canary)))


def archive(path: Path, canary: Path) -> None:
    torch.save({"state": Hostile(canary)}, path)


def test_the_canary_sings(tmp_path: Path, canary: Path) -> None:
    archive(tmp_path / "hostile.pt", canary)
    torch.load(tmp_path / "hostile.pt", weights_only=False)
    assert canary.exists()


@pytest.fixture
def model(tmp_path: Path, tiny_model: str) -> Path:
    """A copy of a model directory."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


WEIGHTS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "pickle": (
        lambda directory, canary: plain_pickle(directory / "pytorch_model.bin", canary),
        "its weights are a pickle that holds more than tensors; nothing in it was run",
    ),
    "archive": (
        lambda directory, canary: archive(directory / "pytorch_model.bin", canary),
        "its weights are a pickle that holds more than tensors; nothing in it was run",
    ),
    "garbage": (
        lambda directory, _: (directory / "model.safetensors").write_bytes(b"garbage" * 9) and None,
        "header too large",
    ),
    "huge header": (
        lambda directory, _: (
            (directory / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
            and None
        ),
        "header too large",
    ),
    "nested header": (
        lambda directory, _: (
            (directory / "model.safetensors").write_bytes(
                (10**6).to_bytes(8, "little") + b"[" * 10**6
            )
            and None
        ),
        "invalid JSON in header",
    ),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_hostile_weights_of_a_model_are_one_message(
    kind: str,
    model: Path,
    tmp_path: Path,
    canary: Path,
    capsys: pytest.CaptureFixture[str],
    reviews: Path,
) -> None:
    plant, expected = WEIGHTS[kind]
    (model / "model.safetensors").unlink()
    plant(model, canary)
    words = ["sentiment", "--dataset", reviews, "--model", model, "--text_column", "text"]
    words += ["--label_column", "label", "--max_steps", 1, "--output_dir", tmp_path / "out"]
    told = refused(*words, capsys=capsys)
    assert f"--model {model} cannot be loaded: " in told
    assert expected in told
    assert not canary.exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", WEIGHTS)
def test_hostile_weights_of_a_run_are_one_message(
    kind: str, run: Run, canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant, expected = WEIGHTS[kind]
    (run.path / "model.safetensors").unlink()
    plant(run.path, canary)
    told = refused("predict", run.path, "--text", "fine", capsys=capsys)
    assert expected in told or f"{run.path} holds no model" in told
    with pytest.raises(UserError, match=expected):
        finetune.evaluate(run)
    assert not canary.exists()


def committed_again(path: Path) -> None:
    """Whoever plants a file can write its checksum too."""
    content = Checkpoint.read(path)
    (path / Checkpoint.NAME).unlink()
    checkpoints.complete(path, content.world_size, content.configuration, content.pending)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_hostile_file_of_a_checkpoint_is_one_message_that_names_it(
    name: str, run: Run, canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = max(run.path.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    words = ["sentiment", "--resume_from_checkpoint", checkpoint, "--output_dir", run.path]
    for option in ("dataset", "model", "text_column", "label_column", "max_length"):
        words += [f"--{option}", run.manifest.options[option]]
    archive(checkpoint / name, canary)
    committed_again(checkpoint)
    before = (run.path / "run.json").read_bytes()
    told = refused(*words, "--num_train_epochs", 9, capsys=capsys)
    assert f"{checkpoint / name} holds more than tensors: posix.system" in told
    plain_pickle(checkpoint / name, canary)
    committed_again(checkpoint)
    told = refused(*words, "--num_train_epochs", 9, capsys=capsys)
    assert f"{checkpoint / name} cannot be read as a file of torch.save" in told
    assert not canary.exists()
    assert (run.path / "run.json").read_bytes() == before


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_hostile_shards_are_named_and_those_of_torch_are_not(tmp_path: Path, canary: Path) -> None:
    """As FSDP saves them; torch would unpickle both places."""
    shards = tmp_path / "checkpoint-3" / "pytorch_model_fsdp_0"
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.zeros(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": layer.state_dict(), "optimizer": optimizer.state_dict(), "n": 3}
    sharded.save(state, checkpoint_id=shards, no_dist=True)
    refuse_code(tmp_path / "checkpoint-3")

    shutil.rmtree(shards)
    sharded.save({**state, "n": Hostile(canary)}, checkpoint_id=shards, no_dist=True)
    with pytest.raises(UserError, match=r"\.metadata holds more than tensors: posix.system"):
        refuse_code(tmp_path / "checkpoint-3")
    plain_pickle(shards / ".metadata", canary)
    with pytest.raises(UserError, match=r"\.metadata holds more than tensors: posix.system"):
        refuse_code(tmp_path / "checkpoint-3")
    (shards / ".metadata").write_bytes(b"no pickle")
    with pytest.raises(UserError, match=r"cannot be read as a file of torch\.distributed"):
        refuse_code(tmp_path / "checkpoint-3")
    assert not canary.exists()


# ---- code of models ------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["config.json", "tokenizer_config.json"])
def test_code_of_a_model_is_never_asked_for(
    place: str, model: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from finetune.models.pretrained import load_classifier, load_config, load_tokenizer

    def ask(question: str = "") -> str:
        raise AssertionError(f"asked: {question}")

    monkeypatch.setattr("builtins.input", ask)
    (model / "code.py").write_text(f"open({str(canary)!r}, 'w')\n", encoding="utf-8")
    if place == "config.json":
        code = {"AutoConfig": "code.C", "AutoModelForSequenceClassification": "code.M"}
        changed(model / place, auto_map=code, model_type="unheard_of", architectures=["M"])
        loading = (load_config, load_tokenizer, lambda name: load_classifier(name, ["a", "b"]))
        for load in loading:
            with pytest.raises(UserError, match=r"needs code of its own .* which is never run"):
                load(str(model))
    else:
        changed(model / place, auto_map={"AutoTokenizer": ["code.T", None]}, tokenizer_class="T")
        load_tokenizer(str(model))
    assert not canary.exists()


def test_attention_code_from_the_hub_is_refused(model: Path) -> None:
    from finetune.models.pretrained import load_classifier

    changed(model / "config.json", attn_implementation="someone/kernel")
    with pytest.raises(UserError, match="asks for code from the Hub, attn_implementation 'someone"):
        load_classifier(str(model), ["a", "b"])


# ---- files ---------------------------------------------------------------------------------------


@pytest.fixture
def umask() -> Iterator[None]:
    """That of a group that shares its files."""
    before = os.umask(0o002)
    yield
    os.umask(before)


def test_files_are_written_beside_links_and_with_the_modes_of_the_umask(
    tmp_path: Path, umask: None
) -> None:
    run = write_run(tmp_path / "run")
    (treasure := tmp_path / "treasure").write_text("untouched", encoding="utf-8")
    (run.path / "plots").mkdir()
    names = "run.json metrics.json predictions.parquet report.html README.md plots/confusion.png"
    written = [run.path / name for name in names.split()]
    for path in written:
        for name in (path, path.with_suffix(".tmp"), path.with_name(f"{path.name}.tmp")):
            name.unlink(missing_ok=True)
            name.symlink_to(treasure)
    finetune.report(write_run(tmp_path / "run"))
    assert treasure.read_text(encoding="utf-8") == "untouched"
    for path in written:
        assert not path.is_symlink()
        assert path.stat().st_mode & 0o777 == 0o664, path
    assert not list(run.path.rglob(".*.tmp"))


def test_a_prediction_is_written_through_no_link(run: Run, tmp_path: Path, umask: None) -> None:
    (treasure := tmp_path / "treasure").write_text("untouched", encoding="utf-8")
    (source := tmp_path / "in.csv").write_text("text\nfine\n", encoding="utf-8")
    (output := tmp_path / "out.csv").symlink_to(treasure)
    finetune.predict_file(run, source, output)
    assert treasure.read_text(encoding="utf-8") == "untouched"
    assert not output.is_symlink()
    assert output.stat().st_mode & 0o777 == 0o664
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.csv.part").symlink_to(elsewhere)
    with pytest.raises(UserError, match=f"out.csv.part is a link to {elsewhere}, where nothing is"):
        finetune.predict_file(run, source, output, resume=True)
    assert list(elsewhere.iterdir()) == []


def test_plots_of_a_run_are_not_written_elsewhere(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (pictures := tmp_path / "pictures").mkdir()
    (pictures / "holiday.png").touch()
    (run.path / "plots").symlink_to(pictures)
    with pytest.raises(UserError, match="plots is a link to"):
        finetune.report(run)
    assert [path.name for path in pictures.iterdir()] == ["holiday.png"]


def test_names_of_files_that_are_being_written_cannot_be_guessed(tmp_path: Path) -> None:
    from finetune.runtime.files import replacing

    with replacing(tmp_path / "a.json") as one, replacing(tmp_path / "a.json") as other:
        assert one != other
        assert one.parent == tmp_path
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([one.name, other.name])
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


# ---- passwords and tokens ------------------------------------------------------------------------

PASSWORD, TOKEN = "planted-password", "hf_plantedToken"
SMALL = ["yelp", "--train_samples=64", "--eval_samples=20", "--max_steps=1", "--precision=fp32"]
SMALL += ["--no_baseline", "--max_length=32", "--global_batch_size=16", "--save_strategy=steps"]
SMALL += ["--save_steps=1"]
MORE = ("--max_steps=2", "--resume")


def leaks(text: str) -> list[str]:
    return [line for line in text.splitlines() if PASSWORD in line or TOKEN in line]


def test_no_secret_of_the_environment_is_seen(hub: Hub, tmp_path: Path, command: Command) -> None:
    proxy = f"http://planted-user:{PASSWORD}@proxy.invalid:3128"
    environment = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        **hub.environment(tmp_path / "home"),
        "HF_ENDPOINT": hub.url.replace("//", f"//planted-user:{PASSWORD}@"),
        "HF_TOKEN": TOKEN,
        "ALL_PROXY": proxy,
        "HTTPS_PROXY": proxy,
        "NO_PROXY": "127.0.0.1",
    }
    environment.pop("HF_HUB_OFFLINE", None)
    away = {**environment, "HF_ENDPOINT": f"http://planted-user:{PASSWORD}@127.0.0.1:1"}
    away["HF_HOME"] = str(tmp_path / "empty")
    told = {
        "train": command(*SMALL, "--output_dir", tmp_path / "run", env=environment),
        "resume": command(*SMALL, "--output_dir", tmp_path / "run", *MORE, env=environment),
        "doctor": command("doctor", env=environment),
        "no such data": command("yelp", "--dataset", "nobody/nothing", env=environment),
        "no Hub": command("yelp", "--dataset", f"https://u:{PASSWORD}@h/a.csv", env=away),
    }
    assert {name: done.returncode for name, done in told.items()} == {
        "train": 0,
        "resume": 0,
        "doctor": 0,
        "no such data": 2,
        "no Hub": 2,
    }
    assert f"resuming from {tmp_path / 'run' / 'checkpoint-1'}" in told["resume"].stdout
    assert "http://127.0.0.1:1 does not answer" in told["no Hub"].stderr
    assert [each for done in told.values() for each in leaks(done.stdout + done.stderr)] == []
    planted = (PASSWORD.encode(), TOKEN.encode())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"run.json", "report.html", "training_args.bin"}
    assert [path for path in files if any(each in path.read_bytes() for each in planted)] == []


def test_tracebacks_and_logs_of_the_libraries_show_no_secret(
    tmp_path: Path, command: Command
) -> None:
    recipe = tmp_path / "broken.py"
    recipe.write_text(
        "import logging, os\n"
        f"url = 'https://planted-user:{PASSWORD}@host/path'\n"
        "logging.getLogger('httpx').error('asked %s with %s', url, os.environ['HF_TOKEN'])\n"
        "logging.getLogger('httpx').error('not for', 'this message')\n"
        "from finetune import TextRecipe\n"
        "class Broken(TextRecipe):\n"
        "    def load(self):\n"
        "        raise RuntimeError(f'no answer from {url}: Bearer ' + os.environ['HF_TOKEN'])\n",
        encoding="utf-8",
    )
    done = command(
        recipe, "--embedded", "--model", "embedded:minilm", env={**os.environ, "HF_TOKEN": TOKEN}
    )
    assert done.returncode == 1
    assert "asked https://host/path with ***" in done.stderr
    assert "RuntimeError: no answer from https://host/path: Bearer ***" in done.stderr
    assert leaks(done.stderr) == []


# ---- nesting and decompression -------------------------------------------------------------------


def test_brackets_in_texts_and_beside_each_other_are_no_nesting(tmp_path: Path) -> None:
    path = tmp_path / "flat.jsonl"
    row = {"text": '[{"' * 10**5 + '\\"', "more": [[number] for number in range(1000)]}
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert Source(str(path)).load()["train"][0]["text"] == row["text"]


@pytest.mark.parametrize("name", ["run.json", "metrics.json"])
def test_a_nested_manifest_is_one_message(name: str, run: Run) -> None:
    (run.path / name).write_text("[" * 10**6, encoding="utf-8")
    with pytest.raises(UserError, match=f"{name} is damaged: maximum recursion depth exceeded"):
        finetune.report(run)


# ---- caches --------------------------------------------------------------------------------------

SCORED = """
import sys
from pathlib import Path
import evaluate
from finetune.recipe.scoring import load
from finetune.runtime.importing import HOUSE

evaluate.load(str(HOUSE / "metrics" / "accuracy"), keep_in_memory=True)  # leaves a copy
copies = list(Path(sys.argv[1]).rglob("accuracy.py"))
for copy in copies:
    copy.write_text(f"open({sys.argv[2]!r}, 'w')\\n" + copy.read_text())
for name in [name for name in sys.modules if name.startswith("evaluate_modules")]:
    del sys.modules[name]
print(len(copies), load("accuracy").compute(predictions=[0, 1], references=[0, 0]))
"""


def test_a_copy_of_a_metric_in_the_shared_cache_is_not_run(tmp_path: Path, canary: Path) -> None:
    cache = tmp_path / "modules"
    done = subprocess.run(
        [sys.executable, "-c", SCORED, cache, canary],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_MODULES_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "1 {'accuracy': 0.5}\n", done.stderr
    assert not canary.exists()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "cache"
    monkeypatch.setattr("finetune.runtime.hub.caches", lambda: {"datasets": place, "hub": place})
    return place


def test_a_damaged_baseline_is_fitted_again_and_no_cache_is_a_pickle(
    cache: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    some = {"text": ["dull food", "fine food"] * 20, "label": [0, 1] * 20}
    splits = DatasetDict(dict.fromkeys(("train", "test"), Dataset.from_dict(some, features)))

    source = baselines.Source(
        splits=splits, column="text", seed=0, fingerprint="x", fit=True, note=pytest.fail
    )

    def outputs() -> list[Any]:
        return [each.tolist() for _, each in kinds.of_rows(splits["train"]).baselines(source)]

    expected = outputs()
    (cached,) = cache.rglob("*.npy")
    assert [path.name for path in cached.parent.iterdir()] == [cached.name]
    with monkeypatch.context() as patched:
        patched.setattr(baselines, "_terms", lambda *_: pytest.fail("it was fitted before"))
        assert outputs() == expected
    cut_off(cached)
    assert outputs() == expected
    plain_pickle(cached, canary)
    assert outputs() == expected
    assert not canary.exists()


# ---- formulas ------------------------------------------------------------------------------------

FORMULAS = ["=1+1", "+cmd|'/c calc'!A0", "-2+3", "@SUM(A1)", "\tx", "\rx", "\nx", "＝1"]  # noqa: RUF001
PLAIN = ["fine", "'=1", " =1", "-1.5", "+2e3", "a=b"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_formulas_are_written_as_text_where_that_is_asked_for(
    suffix: str, run: Run, tmp_path: Path
) -> None:
    rows = pd.DataFrame({"text": FORMULAS + PLAIN, "=HYPERLINK(1)": range(-7, 7)})
    source = tmp_path / "in.jsonl"
    rows.to_json(source, orient="records", lines=True)

    def written(**options: Any) -> list[list[str]]:
        output = tmp_path / f"out{suffix}"
        finetune.predict_file(run, source, output, **options)
        separator = "," if suffix == ".csv" else "\t"
        with output.open(encoding="utf-8", newline="") as file:
            return list(csv.reader(file, delimiter=separator))

    header, *plain = written()
    assert [row[0] for row in plain] == FORMULAS + PLAIN
    safe_header, *safe = written(csv_safe=True)
    assert header[1] == "=HYPERLINK(1)"
    assert safe_header[1] == "'=HYPERLINK(1)"
    assert [row[0] for row in safe] == [f"'{text}" for text in FORMULAS] + PLAIN
    assert [row[1:] for row in safe] == [row[1:] for row in plain]  # numbers, labels


def test_csv_safe_is_refused_where_it_means_nothing(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source := tmp_path / "in.csv").write_text("text\nfine\n", encoding="utf-8")
    words = ["predict", run.path, source, "--csv_safe", "--output", tmp_path / "out.jsonl"]
    told = refused(*words, capsys=capsys)
    assert told == "error: --csv_safe: the output is .jsonl; expected .csv or .tsv"
    words = ["predict", run.path, "--text", "fine", "--csv_safe"]
    assert refused(*words, capsys=capsys) == "error: --csv_safe: not with --text"
    with pytest.raises(UserError, match="csv_safe: expected predict_file"):
        finetune.predict(run, ["fine"], csv_safe=True)


@pytest.mark.trains
def test_every_file_of_a_training_has_the_modes_of_the_umask(
    tmp_path: Path, reviews: Path, tiny_model: str, umask: None, without_report: None
) -> None:
    run = finetune.train(
        "sentiment",
        dataset=str(reviews),
        model=tiny_model,
        text_column="text",
        label_column="label",
        max_steps=1,
        save_strategy="steps",
        eval_strategy="steps",
        save_steps=1,
        eval_steps=1,
        baseline=False,
        output_dir=str(tmp_path / "run"),
    )
    modes = {path: path.stat().st_mode & 0o777 for path in run.path.rglob("*") if path.is_file()}
    assert {path.name for path in modes} >= {"model.safetensors", "optimizer.pt", "run.json"}
    assert {path: oct(mode) for path, mode in modes.items() if mode != 0o664} == {}
