"""The path as a library: values in, results out, and nothing of the caller's is touched."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import transformers
from datasets.utils import logging as datasets_logging

import finetune
from finetune import Run, UserError
from finetune.pipeline import events
from finetune.pipeline.assess import refuse_other_labels
from finetune.runtime import distributed, hub
from finetune.training.directory import clear_way
from finetune.training.manifest import SCHEMA, Manifest
from tests.runs import trained, write_run

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.trains]


@pytest.fixture
def options(reviews: Path, tiny_model: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "dataset": str(reviews),
        "model": tiny_model,
        "text_column": "text",
        "label_column": "label",
        "max_steps": 2,
        "precision": "fp32",
        "output_dir": str(tmp_path / "run"),
    }


def levels() -> dict[str, Any]:
    """What the caller may have set, and a library function must not."""
    return {
        "transformers": transformers.logging.get_verbosity(),
        "datasets": datasets_logging.get_verbosity(),
        "bars of datasets": datasets.are_progress_bars_disabled(),
        "bars of transformers": transformers.utils.logging.is_progress_bar_enabled(),
        "torch.distributed": logging.getLogger("torch.distributed").level,
        "accelerate": logging.getLogger("accelerate").level,
        "root": (logging.root.level, list(logging.root.handlers)),
    }


@pytest.fixture
def silent_libraries() -> Iterator[None]:
    """The libraries say nothing of their own, so that all that is captured is ours."""
    before = transformers.logging.get_verbosity(), datasets_logging.get_verbosity()
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    datasets_logging.set_verbosity(logging.CRITICAL)
    datasets.disable_progress_bars()
    yield
    transformers.logging.set_verbosity(before[0])
    transformers.logging.enable_progress_bar()
    datasets_logging.set_verbosity(before[1])
    datasets.enable_progress_bars()


def test_the_whole_path_prints_nothing_and_leaves_logging_as_it_is(
    options: dict[str, Any],
    silent_libraries: None,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before, variables = levels(), dict(os.environ)

    run = finetune.train("sentiment", **options)
    evaluated = finetune.evaluate(run)
    predicted = finetune.predict(run, ["the food was great"])
    compared = finetune.compare([run, run], tmp_path / "page.html")
    report = finetune.report(run)

    assert "".join(capfd.readouterr()) == ""
    assert levels() == before
    assert dict(os.environ) == variables
    assert run.manifest.status == "finished"
    assert evaluated.metrics == pytest.approx(run.metrics.test, abs=1e-6)
    assert evaluated.recorded == run.metrics.test
    assert list(predicted.columns) == ["text", "label", "probability"]
    assert compared.rows == len(run.predictions)
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert report.page.exists()
    assert report.card.exists()


@pytest.mark.parametrize("verbosity", [logging.DEBUG, logging.ERROR])
def test_the_verbosity_of_the_caller_stays(options: dict[str, Any], verbosity: int) -> None:
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(verbosity)
    try:
        finetune.train("sentiment", **options)
        assert transformers.logging.get_verbosity() == verbosity
    finally:
        transformers.logging.set_verbosity(before)


def test_progress_is_given_what_happens_in_its_order(
    options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    finetune.train("sentiment", **options)
    happened: list[events.Event] = []
    run = finetune.train("sentiment", progress=happened.append, logging_steps=1, **options)
    kinds = [type(event) for event in happened]
    assert kinds[:2] == [events.Started, events.MovedAside]
    assert kinds[-1] is events.Finished
    logged = [event for event in happened if isinstance(event, events.Logged)]
    losses = [event.values["loss"] for event in logged if "loss" in event.values]
    assert losses == [entry["loss"] for entry in run.manifest.history if "loss" in entry]
    started = happened[0]
    assert isinstance(started, events.Started)
    assert started.steps == run.manifest.steps == 2
    assert str(happened[1]).endswith(f"{options['output_dir']}.1")
    assert str(happened[-1]).startswith("finished: loss ")
    assert all("\n" not in str(event) for event in happened)


def test_a_dry_run_is_for_the_command_line(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="dry_run is for the command line"):
        finetune.train("sentiment", dry_run=True, **options)


# ---- predict: rows in, a frame out ---------------------------------------------------------------


def test_a_frame_is_returned_with_its_columns_and_its_index() -> None:
    frame = pd.DataFrame(
        {"text": ["place 1 was fine", None, "place 2 was dull"], "stars": [5, 3, 1]},
        index=["a", "b", "c"],
    )
    before = frame.copy()
    found = finetune.predict(trained(), frame)
    pd.testing.assert_frame_equal(frame, before)
    assert list(found.index) == ["a", "b", "c"]
    assert list(found.columns) == ["text", "stars", "label", "probability"]
    assert found["stars"].tolist() == [5, 3, 1]
    assert set(found["label"].dropna()) <= {"bad", "good"}
    assert found.loc["b", ["label", "probability"]].isna().all()
    alone = finetune.predict(trained(), ["place 1 was fine", "place 2 was dull"])
    assert alone["label"].tolist() == found["label"].dropna().tolist()
    np.testing.assert_allclose(alone["probability"], found["probability"].dropna(), atol=1e-5)


def test_rows_may_come_from_a_generator_or_as_mappings() -> None:
    texts = [f"place {number} was fine" for number in range(5)]
    of_texts = finetune.predict(trained(), (text for text in texts), all_probabilities=True)
    of_rows = finetune.predict(trained(), [{"said": text} for text in texts], text_column="said")
    assert of_texts["label"].tolist() == of_rows["label"].tolist()
    total = of_texts["probability of bad"] + of_texts["probability of good"]
    np.testing.assert_allclose(total, 1, atol=1e-6)


@pytest.mark.parametrize("dtype", [None, object, "str", "string"])
def test_a_missing_text_in_a_series_has_no_prediction(dtype: Any) -> None:
    texts = pd.Series(["place 1 was fine", None], dtype=dtype)
    for data in (texts, pd.DataFrame({"text": texts})):
        found = finetune.predict(trained(), data)
        assert found["label"].isna().tolist() == [False, True]


def test_no_rows_give_a_frame_without_rows() -> None:
    found = finetune.predict(trained(), [])
    assert (list(found.columns), len(found)) == (["text", "label", "probability"], 0)


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        ("one text", {}, "put one text or row into a list"),
        ([1, 2], {}, "the data, row 1: expected a text, found 1 (all rows are texts,"),
        (["a", None, 3.5], {}, "the data, row 3: expected a text, found 3.5"),
        ([{"text": "a"}, "b"], {}, "the data, row 2: expected a mapping, as before, found 'b'"),
        (
            pd.DataFrame([["a", "b"]], columns=["text", "text"]),
            {},
            "the data has two columns named 'text': rename one",
        ),
        (["a", "b\ud83d"], {}, r"the data, row 2: \ud83d is half of a character (a surrogate)"),
        ({"text": ["a", "b"]}, {}, "put one text or row into a list, columns into a frame"),
        (pd.DataFrame({"words": ["a"]}), {}, "no column 'text' in the data"),
        (pd.DataFrame(["a"]), {}, "no column 'text' in the data"),
        (["a"], {"text_colum": "a"}, "unknown option 'text_colum'; did you mean 'text_column'"),
        (["a"], {"precision": "fp64"}, "--precision fp64: expected fp32 or bf16"),
    ],
)
def test_what_cannot_be_predicted_is_refused(data: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refusal:
        finetune.predict(trained(), data, **options)
    assert said in str(refusal.value)


# ---- what asking does not do ---------------------------------------------------------------------


def test_a_trainer_touches_no_directory_before_it_trains(
    options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from recipes.sentiment import Sentiment

    del options["max_steps"]
    output_dir = options.pop("output_dir")
    recipe = Sentiment(**{name: options[name] for name in options if name != "precision"})
    trainer = recipe.trainer(output_dir=output_dir, max_steps=1, precision="fp32")
    assert not Path(output_dir).exists()
    trained_there = write_run(Path(output_dir), rows=20)
    trainer = recipe.trainer(output_dir=output_dir, max_steps=1, precision="fp32")
    assert trained_there.manifest.status == "finished"
    trainer.train()
    assert Run.load(f"{output_dir}.1").manifest.status == "finished"
    assert f"moved the run in {output_dir} to {output_dir}.1" in caplog.text


def test_asking_for_the_ranks_sets_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    before = dict(os.environ)
    assert distributed.ranks() == distributed.Ranks(
        rank=3, local_rank=1, world_size=4, local_world_size=2
    )
    assert distributed.under_launcher()
    assert dict(os.environ) == before


def test_asking_for_the_hub_sets_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    before = dict(os.environ)
    assert hub.missing({"dataset": "embedded:imdb"}) == []
    assert dict(os.environ) == before
    hub.go_offline()
    assert os.environ["HF_HUB_OFFLINE"] == "1"


# ---- the record ----------------------------------------------------------------------------------


def test_a_manifest_without_a_schema_is_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=20)
    path = run.path / "run.json"
    content = json.loads(path.read_text())
    for name in ("schema", "model_revision"):
        del content[name]
    del content["data"]["revision"]
    path.write_text(json.dumps(content))
    assert run.manifest == Manifest.read(run.path)
    assert run.manifest.schema == SCHEMA
    assert run.manifest.data.revision is None


@pytest.mark.parametrize("name", ["run.json", "metrics.json"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "has schema 2, and this release reads schemas up to 1"),
        ({"schema": "1"}, "has schema 1, and this release"),
        (None, "lacks"),
        ("[]", "is damaged: expected an object"),
        ("{", "is damaged"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused_by_name(
    name: str, change: dict[str, Any] | str | None, said: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", rows=20)
    path = run.path / name
    content = json.loads(path.read_text())
    if isinstance(change, dict):
        path.write_text(json.dumps({**content, **change}))
    elif change is None:
        path.write_text(json.dumps({"schema": 1}))
    else:
        path.write_text(change)
    with pytest.raises(UserError) as refusal:
        _ = run.manifest if name == "run.json" else run.metrics
    assert str(refusal.value).startswith(str(path))
    assert said in str(refusal.value)


@pytest.mark.parametrize("content", ["{", '{"schema": 2, "status": "finished"}', "{}"])
def test_a_run_whose_manifest_cannot_be_read_is_moved_aside(content: str, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "run.json").write_text(content)
    assert clear_way(directory) == f"moved the run in {directory} to {directory}.1"
    assert (tmp_path / "run.1" / "run.json").read_text() == content


def test_a_callback_that_fails_leaves_a_finished_run_finished(options: dict[str, Any]) -> None:
    def fail(event: events.Event) -> None:
        if isinstance(event, events.Finished):
            raise ValueError("of the caller")

    with pytest.raises(ValueError, match="of the caller"):
        finetune.train("sentiment", progress=fail, **options)
    assert Run.load(options["output_dir"]).manifest.status == "finished"


def test_labels_in_another_order_than_their_rows_are_refused() -> None:
    rows = np.array([0, 1, 1, 0])
    refuse_other_labels(rows, np.array([0, 1, 1, 0]))
    for label_ids in ([1, 0, 1, 0], [0, 1, 1]):
        with pytest.raises(RuntimeError, match="are not those of the rows"):
            refuse_other_labels(rows, np.array(label_ids))


def test_a_training_whose_evaluation_comes_back_in_another_order_fails(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from finetune.training.trainer import Trainer

    whole = Trainer.predict

    def reversed_(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        found = whole(self, *args, **kwargs)
        return found._replace(label_ids=found.label_ids[::-1])

    monkeypatch.setattr(Trainer, "predict", reversed_)
    with pytest.raises(RuntimeError, match="are not those of the rows"):
        finetune.train("sentiment", **options)
    run = Run.load(options["output_dir"])
    assert run.manifest.status == "failed"
    assert not (run.path / "predictions.parquet").exists()


def test_arguments_are_built_once(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from finetune.pipeline import resumption
    from finetune.training.arguments import FinetuneArguments

    built: list[str] = []
    initialise, look = FinetuneArguments.__post_init__, resumption.wanted

    def counted(self: FinetuneArguments) -> None:
        built.append("arguments")
        initialise(self)

    def looked(*words: Any, **options: Any) -> Any:
        built.append("checkpoint")
        return look(*words, **options)

    monkeypatch.setattr(FinetuneArguments, "__post_init__", counted)
    monkeypatch.setattr(resumption, "wanted", looked)
    finetune.train("sentiment", **options)
    assert sorted(built) == ["arguments", "checkpoint"]
