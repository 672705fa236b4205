"""A run tested again: on its own rows, and on a file whose labels are matched by name."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from datasets import Dataset, DatasetDict

import finetune
from finetune import Run, UserError, cli
from finetune.pipeline.evaluate import evaluate

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.trains]


@pytest.fixture(scope="module")
def run(uneven_reviews: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finetune.train(
        "sentiment",
        dataset=str(uneven_reviews),
        model=tiny_model,
        text_column="text",
        label_column="label",
        learning_rate=3e-3,
        num_train_epochs=8,
        precision="fp32",
        train_sampling_strategy="random",
        output_dir=str(tmp_path_factory.mktemp("evaluate") / "run"),
    )


def test_a_run_in_fp16_is_evaluated_on_a_cpu(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    of_a_gpu = Run(Path(shutil.copytree(run.path, tmp_path / "run")))
    of_a_gpu.update(arguments={**run.manifest["arguments"], "precision": "fp16"})
    assert evaluate(of_a_gpu).metrics == pytest.approx(run.metrics["test"], abs=1e-6)


def intervals(run: Run, data: Path) -> dict[str, dict[str, float]]:
    """The metrics of other data, each with its interval."""
    statistics = evaluate(run, str(data)).statistics
    assert statistics is not None
    return statistics.metrics


def test_a_run_evaluated_on_its_own_rows_has_its_metrics_again(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", str(run.path)]) == 0
    _, now, then = capsys.readouterr().out.strip().splitlines()[-3:]
    assert now.split()[1:] == then.split()[1:]
    assert evaluate(run).metrics == pytest.approx(run.metrics["test"], abs=1e-6)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_the_same_rows_in_a_file_have_the_same_metrics(
    run: Run, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In another order, so that the first label is another one."""
    rows = run.predictions[["text", "label"]].iloc[::-1]
    path = tmp_path / f"rows.{suffix}"
    if suffix == "csv":
        rows.to_csv(path, index=False)
    else:
        rows.to_json(path, orient="records", lines=True)
    assert cli.main(["evaluate", str(run.path), "--data", str(path)]) == 0
    found = intervals(run, path)
    for name in ("accuracy", "f1"):
        assert found[name]["value"] == pytest.approx(run.metrics["test"][name])
        assert found[name]["low"] <= found[name]["value"] <= found[name]["high"]
    assert found["log_loss"]["value"] == pytest.approx(run.metrics["test"]["loss"], abs=1e-6)
    assert 0.6 < found["accuracy"]["value"] < 1  # so that a mix of the labels would be seen
    said = capsys.readouterr().out
    assert f"{path}, {len(rows)} rows, 95% confidence intervals" in said
    assert [line.split()[0] for line in said.splitlines()[-2:]] == run.labels


def test_a_file_with_other_columns(run: Run, tmp_path: Path) -> None:
    table = run.predictions[["text", "label"]].rename(columns={"text": "said", "label": "stars"})
    table.loc[len(table)] = [None, "good"]
    table.to_csv(data := tmp_path / "other.csv", index=False)
    words = ["evaluate", str(run.path), "--data", str(data), "--text_column", "said"]
    assert cli.main([*words, "--label_column", "stars", "--drop_invalid"]) == 0
    assert cli.main(["evaluate", str(run.path), "--text_column", "said"]) == 2


def test_rows_that_the_model_was_trained_on_are_told(
    run: Run, uneven_reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = run.predictions[["text", "label"]]
    held_out.to_csv(tmp_path / "new.csv", index=False)
    new = evaluate(run, str(tmp_path / "new.csv"))
    assert (new.rows_trained_on, new.notes) == (0, [])

    old = evaluate(run, str(uneven_reviews))
    assert old.rows_trained_on == run.manifest.data.rows["train"] == 144
    assert old.notes == [
        "the model was trained on 144 of 200 rows evaluated: the scores are too good; remove "
        "these rows from the file, or use other data"
    ]
    assert cli.main(["evaluate", str(run.path), "--data", str(uneven_reviews)]) == 0
    assert capsys.readouterr().out.rstrip().endswith(old.notes[0])


def test_rows_that_are_there_twice_are_told(run: Run, tmp_path: Path) -> None:
    held_out = run.predictions[["text", "label"]]
    pd.concat([held_out, held_out[:3]]).to_csv(path := tmp_path / "twice.csv", index=False)
    assert evaluate(run, str(path)).notes == [
        f"3 of {len(held_out) + 3} rows evaluated repeat another one: they count twice, and the "
        "intervals are too narrow"
    ]


def test_one_row_has_no_interval(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.predictions[["text", "label"]].head(1).to_csv(data := tmp_path / "one.csv", index=False)
    assert cli.main(["evaluate", str(run.path), "--data", str(data)]) == 0
    title, *rest = capsys.readouterr().out.strip().splitlines()
    assert title == f"{data}, 1 row, 95% confidence intervals"
    assert rest[0].split()[0] == "accuracy"  # and no empty header
    (loss,) = [line for line in rest if line.startswith("  log loss")]
    assert "[" not in loss  # of one value there is none; of a share there is
    assert "[" in rest[0]


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_a_run_without_a_model_is_refused_with_what_resumes_it(
    verb: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = Run(Path(shutil.copytree(run.path, tmp_path / "run")))
    (left.path / "model.safetensors").unlink()
    command = "python -m finetune sentiment --output_dir somewhere"
    left.update(status="interrupted", command=command)
    words = [verb, str(left.path), *(["in.csv"] if verb == "predict" else [])]
    (tmp_path / "in.csv").write_text("text\nfine\n")
    words = [str(tmp_path / "in.csv") if word == "in.csv" else word for word in words]
    assert cli.main(words) == 2
    assert capsys.readouterr().err == (
        f"error: {left.path} has no model (status 'interrupted'): expected a finished run; to "
        f"resume it: {command} --output_dir {left.path} --resume_from_checkpoint last\n"
    )
    arguments = {**left.manifest.arguments, "output_dir": str(left.path)}
    left.update(command="finetune.train('sentiment')", arguments=arguments)
    with pytest.raises(UserError, match=r"resume it: finetune.train\('sentiment', resume_from_"):
        evaluate(left)
    for checkpoint in left.path.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    with pytest.raises(UserError, match=r"to train it: finetune.train\('sentiment'\)$"):
        evaluate(left)


def test_rows_left_out_of_an_evaluation_are_counted(run: Run, tmp_path: Path) -> None:
    table = run.predictions[["text", "label"]].copy()
    table.loc[len(table)] = ["never seen", None]
    table.to_csv(data := tmp_path / "gap.csv", index=False)
    found = evaluate(run, str(data), drop_invalid=True)
    assert found.rows == len(table) - 1
    assert found.notes == ["dropped 1 of 41 rows without a label in 'label': line 42"]


@pytest.mark.parametrize(
    ("splits", "note"),
    [
        (["train"], "evaluated the train split, as {} has no test split"),
        (
            ["train", "validation"],
            "evaluated the validation split, as {} has no test split; not evaluated: train",
        ),
        (
            ["train", "validation", "test"],
            "evaluated the test split; not evaluated: train, validation",
        ),
        (["test"], "evaluated the test split"),
        (["test", "validation"], "evaluated the test split; not evaluated: validation"),
        (["validation"], "evaluated the validation split, as {} has no test split"),
    ],
)
def test_the_split_of_a_directory_that_is_evaluated_is_told(
    splits: list[str], note: str, run: Run, tmp_path: Path
) -> None:
    held_out = run.predictions[["text", "label"]]
    some = {split: held_out.head(10 + len(split)) for split in splits}
    (folder := tmp_path / "files").mkdir()
    for split, rows in some.items():
        rows.to_csv(folder / f"{split}.csv", index=False)
    DatasetDict(
        {split: Dataset.from_pandas(rows, preserve_index=False) for split, rows in some.items()}
    ).save_to_disk(saved := tmp_path / "saved")
    for data in (folder, folder / "*.csv", *[saved] * (splits != ["train"])):
        found = evaluate(run, str(data))
        assert found.rows == 10 + len(note.split()[2])
        assert found.notes == [note.format(data)]


@pytest.mark.parametrize(
    ("splits", "rows", "note"),
    [
        (["dev", "testing"], 17, "evaluated the test split; not evaluated: validation"),
        (["dev"], 13, "evaluated the validation split, as {} has no test split"),
    ],
)
def test_held_out_splits_may_have_other_names(
    splits: list[str], rows: int, note: str, run: Run, tmp_path: Path
) -> None:
    held_out = run.predictions[["text", "label"]]
    some = {
        split: Dataset.from_pandas(held_out.head(10 + len(split)), preserve_index=False)
        for split in splits
    }
    DatasetDict(some).save_to_disk(saved := tmp_path / "saved")
    found = evaluate(run, str(saved))
    assert found.rows == rows
    assert found.notes == [note.format(saved)]


def test_a_mistake_in_a_test_split_names_that_split(run: Run, tmp_path: Path) -> None:
    rows = {"text": [["a list"]] * 3, "label": ["negative"] * 3}
    DatasetDict(test=Dataset.from_dict(rows)).save_to_disk(saved := tmp_path / "saved")
    with pytest.raises(UserError) as told:
        evaluate(run, str(saved))
    assert "train" not in str(told.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.unlink(), "could not be checked: no such file or directory"),
        (
            lambda path: path.write_text(path.read_text().replace("place 7 ", "place seven ")),
            "could not be checked: the data of the run has changed",
        ),
    ],
)
def test_data_of_the_run_that_is_gone_cannot_be_compared(
    change: Callable[[Path], object], said: str, run: Run, uneven_reviews: Path, tmp_path: Path
) -> None:
    gone = tmp_path / "gone.csv"
    gone.write_text(uneven_reviews.read_text())
    moved = Run(Path(shutil.copytree(run.path, tmp_path / "run")))
    moved.update(options={**run.manifest["options"], "dataset": str(gone)})
    change(gone)
    found = evaluate(moved, str(uneven_reviews))
    assert (found.rows, found.rows_trained_on) == (200, None)
    assert len(found.notes) == 1
    assert said in found.notes[0]


def test_rows_of_one_class_only_can_be_evaluated(run: Run, tmp_path: Path) -> None:
    rows = run.predictions.query("label == 'good'")[["text", "label"]]
    rows.to_csv(tmp_path / "good.csv", index=False)
    found = intervals(run, tmp_path / "good.csv")
    right = (run.predictions["prediction"] == "good")[rows.index].mean()
    assert found["accuracy"]["value"] == pytest.approx(right)
    assert found.keys() == {"accuracy", "f1", "log_loss", "brier_score"}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            {"text": ["a", "b"], "label": ["good", "odd"]},
            "model does not know: 'odd' (it knows: 'bad', 'good'): line 3",
        ),
        ({"words": ["a"], "label": ["good"]}, "--text_column: no column 'text' in "),
        (
            {"text": ["a", None], "label": ["good", "bad"]},
            "1 of 2 rows without a text in 'text': line 3; --drop_invalid leaves them out",
        ),
    ],
)
def test_mistakes_of_evaluate_are_told(
    run: Run, tmp_path: Path, table: dict[str, list[str | None]], said: str
) -> None:
    pd.DataFrame(table).to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(UserError) as raised:
        evaluate(run, str(tmp_path / "rows.csv"))
    assert said in str(raised.value)
    assert "train" not in str(raised.value).replace(str(tmp_path), "")
    if "words" in table:
        assert f"no column 'text' in {tmp_path / 'rows.csv'} (available: words, " in str(
            raised.value
        )
    with pytest.raises(UserError, match="no such file"):
        evaluate(run, str(tmp_path / "row.csv"))


def test_a_run_whose_data_has_changed_is_refused(
    run: Run, uneven_reviews: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "reviews.csv"
    changed.write_text(uneven_reviews.read_text().replace("place 7 ", "place seven "))
    moved = Run(tmp_path / "run")
    moved.path.symlink_to(run.path)
    options = {**run.manifest["options"], "dataset": str(changed)}
    before = run.manifest["options"]
    run.update(options=options)
    try:
        with pytest.raises(UserError, match="the data has changed since the training"):
            evaluate(moved)
    finally:
        run.update(options=before)
