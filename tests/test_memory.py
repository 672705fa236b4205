"""Rows that are passed in Python: frames, data sets and lists, trained on and evaluated."""

import datetime
import decimal
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import PIL.Image
import polars as pl
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDataset, Value

import finetune
from finetune.data import arrow, caches, memory, positions, sources
from finetune.data.read import ReadOptions
from finetune.errors import UserError
from finetune.recipe import catalog
from finetune.runtime import hub

ROWS: list[dict[str, Any]] = [
    {"text": "a fine film", "label": "good", "n": 1},
    {"text": None, "label": "bad", "n": 2},
    {"text": "naïve\ncafé", "label": "NA", "n": None},
]
MAKERS: dict[str, Callable[[], Any]] = {
    "list": lambda: ROWS,
    "tuple": lambda: tuple(ROWS),
    "pandas": lambda: pd.DataFrame(ROWS).astype({"n": "Int64"}),
    "pandas_filtered": lambda: pd.DataFrame([*ROWS, *ROWS]).astype({"n": "Int64"})[3:],
    "pandas_category": lambda: pd.DataFrame(ROWS).astype({"n": "Int64", "label": "category"}),
    "pandas_arrow": lambda: pd.DataFrame(ROWS).convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda: pl.DataFrame(ROWS),
    "polars_category": lambda: pl.DataFrame(ROWS).cast({"label": pl.Categorical}),
    "polars_enum": lambda: pl.DataFrame(ROWS).cast({"label": pl.Enum(["good", "bad", "NA"])}),
    "table": lambda: pa.Table.from_pylist(ROWS),
    "Dataset": lambda: Dataset.from_list(ROWS),
    "Dataset_selected": lambda: Dataset.from_list([*ROWS[::-1], ROWS[0]]).select([2, 1, 0]),
    "one_split": lambda: {"train": ROWS},
}


def read(data: Any, **options: Any) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    notes: list[str] = []
    splits = sources.read(memory.named(data), note=notes.append, **options)
    return {name: rows.remove_columns("id").to_list() for name, rows in splits.items()}, notes


@pytest.mark.parametrize("made_of", MAKERS)
def test_rows_are_those_that_were_passed(made_of: str) -> None:
    assert read(MAKERS[made_of]()) == ({"train": ROWS}, [])


def test_the_name_depends_on_the_content_only() -> None:
    frame = pd.DataFrame({"text": [f"row {n}" for n in range(25_000)], "label": 1})
    name = memory.named(frame)
    assert name.startswith(memory.PREFIX)
    again = pd.concat([frame[:7], frame[7:]], ignore_index=True)
    twice = pd.concat([frame, frame])
    assert {memory.named(each) for each in (frame.copy(), again, twice[25_000:])} == {name}
    assert memory.named(frame[1:]) != name
    assert memory.named({"test": frame}) != name
    pieces = pa.Table.from_pandas(frame, preserve_index=False)
    chunked = pa.concat_tables([pieces.slice(0, 11), pieces.slice(11)])
    assert memory.named(pieces) == memory.named(chunked)


def test_a_name_stays_a_name(tmp_path: Path) -> None:
    assert memory.named("reviews.csv") == "reviews.csv"
    assert memory.named(tmp_path) == str(tmp_path)


def test_splits_of_any_kind() -> None:
    frame = pd.DataFrame(ROWS).astype({"n": "Int64"})
    found, notes = read({"train": frame, "validation": ROWS[:1], "test": pl.DataFrame(ROWS[:2])})
    assert found == {"train": ROWS, "validation": ROWS[:1], "test": ROWS[:2]}
    assert notes == []


def test_splits_of_a_data_set_keep_their_features() -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features)
    whole = DatasetDict({"train": rows, "validation_matched": rows, "unsupervised": rows})
    found = sources.read(memory.named(whole), note=(notes := list[str]()).append)
    assert found["train"].features == {**features, "id": Value("int64")}
    assert notes == [
        "not read: the split 'unsupervised'; --dataset_splits test=unsupervised takes it for test",
        "not read: the split 'validation_matched'; --dataset_splits test=validation_matched takes "
        "it for test",
    ]
    names = {"validation": "validation_matched"}
    assert set(read(whole, names=names)[0]) == {"train", "validation"}
    assert set(read({**whole, "test": rows}, names={"test": "none"})[0]) == {"train"}
    with pytest.raises(UserError, match=r"has no train split \(it has: val\); --dataset_splits"):
        read({"val": ROWS})


def test_rows_lack_what_others_have() -> None:
    found, _ = read([{"text": "a"}, {"text": "b", "label": "x"}])
    assert found["train"] == [{"text": "a", "label": None}, {"text": "b", "label": "x"}]


def test_what_is_not_a_number_is_missing() -> None:
    for data in (
        [{"text": "a", "label": 1.5}, {"text": float("nan"), "label": float("nan")}],
        pd.DataFrame({"text": ["a", np.nan], "label": [1.5, np.nan]}),
        pd.DataFrame({"text": pd.Series(["a", pd.NA], dtype="string"), "label": [1.5, None]}),
    ):
        assert read(data)[0]["train"] == [
            {"text": "a", "label": 1.5},
            {"text": None, "label": None},
        ]


def test_an_index_called_like_a_column_is_read_once_or_refused() -> None:
    frame = pd.DataFrame({"text": ["a", "b"], "label": ["x", "y"]})
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    assert read(frame.set_index("text", drop=False))[0]["train"] == rows
    assert read(frame.set_index(["text", "label"], drop=False))[0]["train"] == rows
    with pytest.raises(UserError, match=r"the index of the train data is called 'text', as one of"):
        read(frame.rename_axis("text"))


def test_periods_and_intervals_are_read_as_text() -> None:
    values = {
        "month": pd.array(["2020-01", None], dtype="period[M]"),
        "range": pd.cut(np.array([1, np.nan]), [0, 5]),
        "interval": pd.arrays.IntervalArray.from_tuples([(0, 1), (1, 2)]),
    }
    assert read(pd.DataFrame({"text": ["a", "b"]}).assign(**values))[0]["train"] == [
        {"text": "a", "month": "2020-01", "range": "(0.0, 5.0]", "interval": "(0, 1]"},
        {"text": "b", "month": None, "range": None, "interval": "(1, 2]"},
    ]


def test_a_column_without_a_name_does_not_clash_with_an_index_without_one() -> None:
    frame = pd.DataFrame([["a", "x", 3]], columns=pd.Index(["text", "label", None], dtype=object))
    assert read(frame)[0]["train"] == [{"text": "a", "label": "x", "None": 3}]


def test_an_index_with_a_name_is_a_column() -> None:
    frame = pd.DataFrame({"text": ["a", "b"], "label": ["x", "y"]})
    assert read(frame.set_index("label"))[0]["train"][0] == {"label": "x", "text": "a"}
    assert read(frame.set_index(pd.Index([7, 9])))[0]["train"][0] == {"text": "a", "label": "x"}


def test_lists_dates_and_numbers_are_kept() -> None:
    row = {
        "text": "a",
        "labels": ["x", "y"],
        "when": datetime.date(2024, 2, 3),
        "price": decimal.Decimal("1.50"),
        "more": {"stars": 5},
    }
    for data in ([row], pl.DataFrame([row]), Dataset.from_list([row])):
        assert read(data)[0]["train"] == [row]


def generator() -> Iterator[dict[str, Any]]:
    yield from ROWS


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "expected a file, .*; found int$"),
        ([], "the train data holds no rows"),
        (pd.DataFrame({"text": [], "label": []}), "the train data holds no rows"),
        ({}, "expected splits, found an empty dict"),
        ({"train": ROWS, "test": 5}, r"dataset\['test'\]: expected .* found int"),
        ({"text": ["a"], "label": ["b"]}, "list of dicts, found str at position 0 .*from_dict"),
        ([("a", "good")], "expected a list of dicts, found tuple at position 0 of the train data"),
        (pl.LazyFrame(ROWS), r"found LazyFrame; call its collect\(\)"),
        (pl.Series(["a"]), "found Series; its frame has the labels, too"),
        (pd.Series(["a"]), "found Series; its frame has the labels, too"),
        (pa.chunked_array([["a"]]), "found ChunkedArray$"),
        (generator(), r"found generator; list\(\) makes a list of it"),
        (IterableDataset.from_generator(generator), "found IterableDataset; Dataset.from_gener"),
        (
            [{"text": "a", "label": 1}, {"text": "b", "label": "x"}],
            "the column 'label' of the train data holds values of several types: int at position "
            "0, str at position 1; make them one",
        ),
        (
            pd.DataFrame({"text": ["a", 2]}),
            "the column 'text' of the train data holds values of several types: str at position 0",
        ),
        ([{"text": object()}], "the column 'text' of the train data holds object, which Arrow"),
        ([{"text": "a\ud83d"}], "'text' at position 0: .ud83d is half of a character"),
        (
            pd.DataFrame({"text": pd.Series(["b", "a\ud83d"], dtype=object)}),
            "'text' at position 1: .ud83d is half of a character",
        ),
        (
            pa.table({"a": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}),
            "the column 'a' is of the Arrow type month_day_nano_interval, which datasets does not",
        ),
        (
            pd.DataFrame([["a", "b"]], columns=["text", "text"]),
            "two columns of the train data are called 'text'",
        ),
        ({"../x": ROWS}, r"'\.\./x' cannot be the name of a split"),
    ],
)
def test_what_cannot_be_rows_is_refused(data: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        memory.named(data)
    assert not list(caches.place(caches.MEMORY, "").glob(".*"))


def test_sparse_columns_and_maps_are_read() -> None:
    frame = pd.DataFrame({"a": pd.arrays.SparseArray([0, 0, 1]), "b": ["x", "y", "z"]})
    assert [row["a"] for row in read(frame)[0]["train"]] == [0, 0, 1]
    maps = pa.table({"a": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64()))})
    assert read(maps)[0]["train"] == [{"a": [{"key": "k", "value": 1}]}, {"a": None}]


def test_options_of_files_are_refused() -> None:
    with pytest.raises(UserError, match="--encoding cp1252: rows in memory"):
        read(ROWS, options=ReadOptions(encoding="cp1252"))
    with pytest.raises(UserError, match=r"--dataset_revision main: memory:\w+ is not from the Hub"):
        read(ROWS, revision="main")


def test_positions_count_as_in_python() -> None:
    name = memory.named(ROWS)
    assert positions.places(name, "train", [2]) == "position 2"
    assert positions.places(name, "train", [*range(1, 9)]) == "positions 1, 2, 3, 4, 5, ..."
    assert not hub.names_repository(name)


def test_rows_that_are_gone_or_damaged_are_refused() -> None:
    name = memory.named([{"text": "gone", "label": "x"}])
    (path,) = caches.place(caches.MEMORY, name.removeprefix(memory.PREFIX)).glob("*.arrow")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match=f"{name}: rows that were passed in Python, and are not in"):
        sources.read(name)
    assert read([{"text": "gone", "label": "x"}])[0]["train"][0]["text"] == "gone"  # written again
    path.unlink()
    with pytest.raises(UserError, match="pass them again, as dataset=FRAME"):
        sources.read(name)


def test_categories_of_files_are_their_values(tmp_path: Path) -> None:
    pd.DataFrame(ROWS).astype({"label": "category"}).to_parquet(tmp_path / "pandas.parquet")
    pl.DataFrame(ROWS).cast({"label": pl.Categorical}).write_parquet(tmp_path / "polars.parquet")
    pl.DataFrame(ROWS).cast({"label": pl.Categorical}).write_ipc(tmp_path / "polars.arrow")
    for path in tmp_path.iterdir():
        assert sources.read(str(path))["train"]["label"][:] == ["good", "bad", "NA"]


def test_nested_views_have_a_type_of_the_library() -> None:
    views = pa.struct([("a", pa.list_(pa.string_view())), ("b", pa.binary_view())])
    plain = pa.struct([("a", pa.list_(pa.string())), ("b", pa.binary())])
    assert arrow.stored(pa.schema([("x", views)])).field("x").type == plain


def labelled(rows: int, seed: int = 0) -> pd.DataFrame:
    draw = random.Random(seed)
    words = {"bad": ["awful", "dull", "bland"], "good": ["great", "lovely", "fine"]}
    labels = [("bad", "good")[n % 2] for n in range(rows)]
    texts = [f"{draw.choice(words[each])} film number {seed}{n}" for n, each in enumerate(labels)]
    return pd.DataFrame({"body": texts, "queue": labels})


COLUMNS = {"text_column": "body", "label_column": "queue"}


@pytest.mark.trains
@pytest.mark.usefixtures("one_thread", "without_report")
def test_a_frame_goes_all_the_way(tmp_path: Path, tiny_model: str) -> None:
    """Trained on, checked, resumed, evaluated, and told where it is from."""
    given: dict[str, Any] = {"dataset": labelled(80), "model": tiny_model, **COLUMNS}
    given |= {"max_steps": 2, "baseline": False, "output_dir": str(tmp_path / "run")}
    assert finetune.check("text", dataset=labelled(80), model=tiny_model, **COLUMNS).splits
    run = finetune.train("text", **given)
    name = run.manifest.options["dataset"]
    assert run.manifest.data.source == f"in memory ({name.removeprefix('memory:')})"
    assert f"dataset='{name}'" in run.manifest.command
    assert finetune.evaluate(run).metrics == run.metrics.test
    other = finetune.evaluate(run, labelled(20, seed=1), **COLUMNS)
    assert (other.rows, other.rows_trained_on, other.notes) == (20, 0, [])
    assert other.source.startswith("in memory (")
    seen = finetune.evaluate(
        run, {"train": labelled(4), "test": pl.DataFrame(labelled(80))}, **COLUMNS
    )
    assert seen.rows == 80
    assert seen.rows_trained_on
    assert seen.notes[0] == "evaluated the test split; not evaluated: train"
    alone = finetune.evaluate(run, {"test": labelled(20, seed=1)}, **COLUMNS)
    assert (alone.metrics, alone.source, alone.notes) == (other.metrics, other.source, [])
    held = {"val": labelled(4), "Test": labelled(20, seed=1)}
    assert (found := finetune.evaluate(run, held, **COLUMNS)).metrics == other.metrics
    assert found.notes == ["evaluated the Test split; not evaluated: val"]
    again = finetune.train("text", **given, resume=True)  # the same rows, in another object
    assert again.path == run.path
    frame = pl.DataFrame(labelled(3)).cast({"queue": pl.Categorical})
    predicted = finetune.predict(run, frame, text_column="body")
    assert list(predicted) == ["body", "queue", "label", "probability"]
    assert predicted["queue"].tolist() == ["bad", "good", "bad"]
    assert list(finetune.predict(run, pl.Series(["a film"]))["text"]) == ["a film"]
    with pytest.raises(UserError, match="1 of 20 rows without a text in 'body': position 3; --dro"):
        finetune.evaluate(run, labelled(20).assign(body=lambda f: f.body.where(f.index != 3)),
                          **COLUMNS)  # fmt: skip


def test_a_recipe_takes_rows(tiny_model: str) -> None:
    recipe = catalog.find("text")(dataset=labelled(40), model=tiny_model, **COLUMNS)
    assert recipe.dataset.startswith(memory.PREFIX)
    assert sum(map(len, recipe.splits.values())) == 40


def test_images_in_memory_are_images() -> None:
    rows = [{"image": PIL.Image.new("L", (8, 8), n % 256), "label": "ab"[n % 2]} for n in range(40)]
    recipe = catalog.find("image")(dataset=Dataset.from_list(rows), model="embedded:vit")
    assert sum(map(len, recipe.splits.values())) == 40
    assert recipe.splits["train"][0]["image"].size == (8, 8)


@pytest.mark.slow
@pytest.mark.trains
@pytest.mark.processes
def test_processes_read_the_rows_that_were_passed(tmp_path: Path, tiny_model: str) -> None:
    run = finetune.launch(
        "text",
        num_processes=2,
        dataset=labelled(80),
        model=tiny_model,
        max_steps=2,
        global_batch_size=8,
        baseline=False,
        output_dir=str(tmp_path / "run"),
        **COLUMNS,
    )
    assert run.manifest.launch.world_size == 2
    assert run.manifest.options["dataset"] == memory.named(labelled(80))
