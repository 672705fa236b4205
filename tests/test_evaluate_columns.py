"""Labels of other data in several columns: matched with those of a run by name, or by position."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, Features

import finetune
from finetune import Run, UserError
from finetune.pipeline.evaluate import _in_own_flags, evaluate
from tests import number_runs

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.trains]
WORDS = {"service": "waiter", "food": "soup", "price": "bill"}


def table(rows: int = 160) -> pd.DataFrame:
    """Texts that say which labels they have, in a cell and as columns of 0 and 1."""
    has = np.arange(rows)[:, None] >> np.arange(3) & 1
    named = [[name for name, one in zip(WORDS, row, strict=True) if one] for row in has]
    texts = [
        f"the {' and '.join(map(WORDS.__getitem__, each)) or 'weather'} of visit {number}"
        for number, each in enumerate(named)
    ]
    frame = pd.DataFrame({"text": texts, "topics": [";".join(each) or "[]" for each in named]})
    return frame.assign(kind=has[:, 0] + 0, **dict(zip(WORDS, has.T, strict=True)))


@pytest.fixture(scope="module")
def run(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("columns")
    table().to_csv(place / "rows.csv", index=False)
    return finetune.train(
        "text",
        dataset=str(place / "rows.csv"),
        model=tiny_model,
        text_column="text",
        label_columns=list(WORDS),
        learning_rate=5e-3,
        num_train_epochs=4,
        global_batch_size=16,
        precision="fp32",
        output_dir=str(place / "run"),
    )


def scores(run: Run, frame: pd.DataFrame, path: Path, **reading: Any) -> dict[str, Any]:
    frame.to_csv(path, index=False)
    found = evaluate(run, path, **reading).statistics
    assert found is not None
    return {**found.metrics, **(found.classes or {})}


def refused(run: Run, path: Path, **reading: Any) -> str:
    with pytest.raises(UserError) as refusal:
        evaluate(run, path, **reading)
    return str(refusal.value)


def test_columns_of_labels_in_any_order_and_under_other_names(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "new.csv"
    usual = scores(run, table(), data)
    assert len({usual[name]["f1"]["value"] for name in WORDS}) > 1  # so that a mix would be seen
    assert scores(run, table(), data, label_columns="price,service,food") == usual
    assert scores(run, table(), data, label_column="topics", label_separator=";") == usual

    others = table().rename(columns={"service": "a", "food": "b", "price": "c"})
    assert scores(run, others, data, label_columns=["a", "b", "c"]) == usual
    said = "--label_columns a,b,c: taken for service, food, price, in this order"
    assert any(said in note for note in evaluate(run, data, label_columns="a,b,c").notes)
    mapped = "c=price,b=food,a=service"
    assert scores(run, others, data, label_columns="c,b,a", label_map=mapped) == usual


def test_a_label_that_is_left_out_or_unknown_is_refused(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "new.csv"
    table().assign(other=1).to_csv(data, index=False)
    predicts = "the model predicts 'service', 'food', 'price'"
    assert refused(run, data, label_columns="service,food") == (
        f"--label_columns service,food: {predicts}; missing: 'price'"
    )
    assert refused(run, data, label_columns=["service", "other", "food"]) == (
        f"--label_columns service,other,food: {predicts}; missing: 'price'; unknown: 'other'"
    )
    both = {"label_column": "topics", "label_columns": "service,food,price"}
    assert "give one of the two" in refused(run, data, **both)


def test_messages_name_the_column_and_the_line_but_no_split(run: Run, tmp_path: Path) -> None:
    data, frame = tmp_path / "new.csv", table().astype(str)
    frame.loc[3, "food"] = "x"
    frame.loc[5, "topics"] = "servise;food"
    frame.to_csv(data, index=False)
    assert refused(run, data) == "--label_columns: 'food' holds 'x': line 5; expected 0 and 1"
    reading = {"label_column": "topics", "label_separator": ";"}
    assert refused(run, data, **reading) == (
        "--label_column topics: the data has labels that the model does not know: 'servise' (it "
        "knows: 'service', 'food', 'price'): line 7; --label_map OLD=NEW renames labels"
    )


def test_columns_of_numbers_are_matched_by_name(tmp_path: Path) -> None:
    run, data = number_runs.trained(several=True), tmp_path / "new.csv"
    frame = pd.read_csv(number_runs.table())
    usual = scores(run, frame, data)
    assert scores(run, frame, data, label_columns="weight,score") == usual
    assert "missing: 'weight'; unknown: 'text'" in refused(run, data, label_columns="score,text")
    others = frame.rename(columns={"score": "a", "weight": "b"})
    assert scores(run, others, data, label_columns="a,b") == usual


def test_a_temperature_is_not_for_several_labels(run: Run) -> None:
    with pytest.raises(UserError, match=r"--calibrated: .* predicts any number of labels a row"):
        finetune.predict(run, ["a text"], calibrated=True)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("x, or --dataset TABLE with paths", "x, or --data TABLE with paths"),
        ("words are labels of --task single_label", "words are for runs trained with --task s"),
        (
            "several labels per row are --task multi_label;",
            "row are for runs trained with --task m",
        ),
    ],
)
def test_messages_of_the_data_name_flags_of_the_verb(sentence: str, expected: str) -> None:
    assert expected in _in_own_flags(sentence)
    assert not _in_own_flags(sentence).startswith("--task")


def test_classes_of_other_data_are_read_by_their_names(run: Run, tmp_path: Path) -> None:
    frame = table()
    usual = scores(run, frame, tmp_path / "rows.csv")
    rows = Dataset.from_pandas(frame)
    for name in WORDS:
        named = rows.features | {name: ClassLabel(names=["yes", "no"])}
        flags = [int(not each) for each in rows[name]]
        features = Features(named)
        rows = rows.remove_columns(name).add_column(name, flags).select_columns([*features])
        rows = rows.cast(features)
    rows.save_to_disk(str(tmp_path / "rows"))
    found = evaluate(run, tmp_path / "rows").statistics
    assert found is not None
    assert {**found.metrics, **(found.classes or {})} == usual
