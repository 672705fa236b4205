"""Splits by group and by time, their sizes, and what is sampled before it is checked."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from finetune import TextClassification
from finetune.data import arrow, splits, stratification
from finetune.data.plan import Plan
from finetune.errors import UserError

SPLITS = ("train", "validation", "test")


class Texts(TextClassification):
    """Of a file."""

    dataset: str = ""


def frame(rows: int = 200, **columns: Any) -> pd.DataFrame:
    numbers = np.arange(rows)
    texts = [f"text {number}" for number in numbers]
    labels = np.where(numbers % 4, "often", "rare")
    return pd.DataFrame({"text": texts, "label": labels, **columns})


def recipe(path: Path, table: pd.DataFrame, **options: Any) -> Texts:
    table.to_csv(path / "rows.csv", index=False)
    return Texts(dataset=str(path / "rows.csv"), **options)


def directory(path: Path, **tables: pd.DataFrame) -> str:
    for name, table in tables.items():
        table.to_csv(path / f"{name}.csv", index=False)
    return str(path)


# ---- by group ------------------------------------------------------------------------------------


def drawn(trial: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Labels and groups of a random shape, and how many rows are wanted."""
    generator = np.random.default_rng(trial)
    rows, classes = int(generator.integers(10, 600)), int(generator.integers(2, 8))
    many = int(generator.integers(3, max(4, rows // int(generator.integers(1, 10)))))
    sizes = generator.dirichlet(np.full(many, generator.choice([0.5, 5.0])))
    groups = np.unique(generator.choice(many, rows, p=sizes), return_inverse=True)[1]
    tilt = generator.dirichlet(np.full(classes, generator.choice([0.3, 3.0])), groups.max() + 1)
    labels = np.array([generator.choice(classes, p=tilt[group]) for group in groups])
    if trial % 3 == 0:  # several labels a row
        labels = generator.random((rows, classes)) < 0.3
    return labels, groups, round(0.2 * rows)


@pytest.mark.parametrize("trial", range(200))
def test_no_group_is_split_and_no_class_leaves_training(trial: int) -> None:
    labels, groups, size = drawn(trial)
    taken, again = (
        stratification.apart_by_group(labels, groups, size, seed=trial) for _ in range(2)
    )

    assert np.array_equal(taken, again)
    assert not set(groups[taken]) & set(groups[~taken])
    assert not taken.all()
    if labels.ndim == 1:
        assert set(labels[taken]) <= set(labels[~taken])
    else:
        assert not (labels[taken].any(axis=0) & ~labels[~taken].any(axis=0)).any()
    if taken.any():
        assert abs(taken.sum() - size) <= np.bincount(groups).max()


def test_groups_of_one_row_keep_shares_as_rows_do() -> None:
    labels = np.repeat([0, 1, 2], [700, 250, 50])
    taken = stratification.apart_by_group(labels, np.arange(1000), 200, seed=0)

    assert np.bincount(labels[taken]).tolist() == [140, 50, 10]


def test_shares_are_nearer_than_those_of_stratified_group_k_fold() -> None:
    """Of the classes, in the fold that would be the test set; and its size."""
    from sklearn.model_selection import StratifiedGroupKFold

    gaps: list[list[float]] = []
    for trial in range(1, 60):
        labels, groups, size = drawn(trial)
        if labels.ndim == 2 or min(np.bincount(labels)) < 5 or groups.max() < 15:
            continue
        ours = stratification.apart_by_group(labels, groups, size, seed=0)
        folds = StratifiedGroupKFold(5, shuffle=True, random_state=0).split(labels, labels, groups)
        theirs = np.isin(np.arange(len(labels)), next(folds)[1])
        share = np.bincount(labels) / len(labels)
        gaps.append(
            [
                each
                for taken in (ours, theirs)
                for each in (
                    np.abs(np.bincount(labels[taken], minlength=len(share)) / taken.sum() - share)
                    .max(),
                    abs(taken.mean() - 0.2),
                )
            ]
        )  # fmt: skip
    shares, sizes, their_shares, their_sizes = np.mean(gaps, axis=0)
    assert len(gaps) > 10
    assert shares < their_shares
    assert sizes < their_sizes


def test_no_author_is_in_two_splits(tmp_path: Path) -> None:
    table = frame(300, author=[f"author {number // 3 % 40}" for number in range(300)])
    found = recipe(tmp_path, table, group_column="author")
    authors = [set(found.splits[name]["author"]) for name in SPLITS]

    assert sum(map(len, authors)) == 40
    assert len(set.union(*authors)) == 40
    assert found.splits.num_rows["test"] == pytest.approx(60, abs=8)
    assert "no 'author' in two splits (seed 42)" in found.split_how
    assert found.splits["test"]["label"][:].count(1) > 0


@pytest.mark.parametrize("other", ["3 ann ", "3\u00a0Ann", "3 Ann\u200b", "3\tAnn", "003"])
def test_groups_written_in_several_ways_are_told(other: str, tmp_path: Path) -> None:
    authors = [f"{number % 20} Ann" for number in range(199)] + [other]
    authors = [each.removesuffix(" Ann") if other.isdigit() else each for each in authors]
    found = recipe(tmp_path, frame(author=authors), group_column="author")
    _ = found.splits
    both = " and ".join(map(repr, sorted(["3" if other.isdigit() else "3 Ann", other])))
    told = (
        "--group_column author: 1 group written in several ways, which are different groups and "
        f"can be in different splits: {both}; write each in one way"
    )
    assert told in found.notes
    assert told in found.remarks


def test_whole_numbers_with_and_without_a_fraction_are_alike_as_groups(tmp_path: Path) -> None:
    authors = [str(number % 20) for number in range(199)] + ["7.0"]
    found = recipe(tmp_path, frame(author=authors), group_column="author")
    _ = found.splits
    assert any("'7' and '7.0'" in each for each in found.remarks)


@pytest.mark.parametrize(("rows", "is_told"), [(30, True), (8, False)])
@pytest.mark.parametrize("name", ["N/A", "none", "unknown", "-"])
def test_a_group_called_like_a_missing_one_is_told(
    name: str, rows: int, is_told: bool, tmp_path: Path
) -> None:
    authors = [name] * rows + [f"author {number % 40}" for number in range(200 - rows)]
    found = recipe(tmp_path, frame(author=authors), group_column="author")
    _ = found.splits
    told = f"--group_column author: {rows} of 200 rows are in the group {name!r}, and are kept in"
    assert any(each.startswith(told) for each in found.remarks) == is_told


def test_groups_of_given_splits_are_not_trained_on(tmp_path: Path) -> None:
    train = frame(200, author=[f"author {number % 20}" for number in range(200)])
    test = frame(20, author="author 3").assign(text=[f"other {number}" for number in range(20)])
    found = Texts(dataset=directory(tmp_path, train=train, test=test), group_column="author")

    assert len(found.splits["test"]) == 20
    assert "author 3" not in {
        *found.splits["train"]["author"],
        *found.splits["validation"]["author"],
    }
    assert "dropped 10 training rows whose 'author' held-out data has too" in found.notes


def test_given_splits_without_the_column_are_used_as_they_are(tmp_path: Path) -> None:
    train = frame(200, author=[f"author {number % 20}" for number in range(200)])
    test = frame(20).assign(text=[f"other {number}" for number in range(20)])
    found = Texts(dataset=directory(tmp_path, train=train, test=test), group_column="author")

    assert len(found.splits["test"]) == 20
    assert any("the test data has no such column" in note for note in found.notes)


@pytest.mark.parametrize(
    ("authors", "message"),
    [
        (
            ["one"] * 200,
            "no rows are left for test: the data has 1 group for 3 splits",
        ),
        (
            ["one", "two"] * 100,
            "no rows are left for validation: the data has 2 groups for 3 splits",
        ),
        ([None, "a", "b", "c"] * 50, "50 of 200 training rows with no 'author': lines 2, 6, 10"),
        ([" ", "a", "b", "c"] * 50, "--drop_invalid leaves them out"),
    ],
)
def test_groups_that_cannot_be_split(
    tmp_path: Path, authors: list[str | None], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        _ = recipe(tmp_path, frame(author=authors), group_column="author").splits


def test_rows_without_a_group_are_left_out_if_asked_for(tmp_path: Path) -> None:
    table = frame(author=[None, *(f"author {number % 20}" for number in range(199))])
    found = recipe(tmp_path, table, group_column="author", drop_invalid=True)

    assert sum(found.splits.num_rows.values()) == 199
    assert "dropped 1 of 200 training rows with no 'author': line 2" in found.notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_column": "autor"}, "--group_column: no column 'autor' in the train data"),
        ({"group_column": "label"}, "--group_column: 'label' is named by --label_column already"),
    ],
)
def test_columns_that_rows_cannot_be_split_by(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        _ = recipe(tmp_path, frame(author="one"), **options).splits


def test_group_and_time_are_given_one_at_a_time() -> None:
    with pytest.raises(UserError, match="--group_column a and --time_column b: give one of the tw"):
        Texts(group_column="a", time_column="b")


# ---- by time -------------------------------------------------------------------------------------


def dates(rows: int, form: str) -> list[str]:
    return pd.date_range("2023-11-20", periods=rows, freq="D").strftime(form).tolist()


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ", "%d.%m.%Y", "%m/%d/%Y", "%s"])
def test_the_newest_rows_are_the_test_set(tmp_path: Path, form: str) -> None:
    order = np.random.default_rng(0).permutation(200)
    table = frame(day=dates(200, form), number=np.arange(200)).iloc[order]
    found = recipe(tmp_path, table, time_column="day")

    numbers = {name: sorted(map(int, found.splits[name]["number"])) for name in SPLITS}
    assert numbers["test"] == list(range(160, 200))
    assert numbers["validation"] == list(range(144, 160))
    assert f"test 20.0% from {table['day'].loc[160]} on" in found.split_how


@pytest.mark.parametrize("form", ["%d%m%Y", "%m%d%Y", "%d%m%y", "%m%d%y", "%-d%m%Y", "%-m%d%y"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_digits_with_the_day_or_month_first_are_refused(
    tmp_path: Path, form: str, suffix: str
) -> None:
    table = frame(day=dates(200, form))
    if suffix == ".parquet":
        table["day"] = table["day"].astype(int)
    path = tmp_path / f"rows{suffix}"
    table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)
    first = dates(1, form)[0]
    told = f"'{first}', which looks like the date 2023-11-20 and would be .* write dates as 2023-11"
    with pytest.raises(UserError, match=told):
        _ = Texts(dataset=str(path), time_column="day").splits


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_months_with_the_month_first_are_refused(tmp_path: Path, suffix: str) -> None:
    table = frame(month=[f"{1 + number % 12}.{2022 + number % 3}" for number in range(200)])
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        table["month"] = table["month"].astype(float)
    table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)
    with pytest.raises(UserError, match=r"holds '1\.2022', which looks like a month and a year"):
        _ = Texts(dataset=str(path), time_column="month").splits


@pytest.mark.parametrize(
    "days",
    [
        dates(200, "%Y%m%d"),
        dates(200, "%y%m%d"),
        [str(123_400 + 7 * number) for number in range(200)],
        [str(9_950 + number) for number in range(200)],
        [str(10_112_020 + number) for number in range(200)],
    ],
)
def test_digits_that_sort_as_they_are_stay_numbers(tmp_path: Path, days: list[str]) -> None:
    found = recipe(tmp_path, frame(day=days), time_column="day")
    assert found.splits["test"]["text"][:] == [f"text {number}" for number in range(160, 200)]


def test_times_of_parquet_are_read_as_they_are(tmp_path: Path) -> None:
    table = frame(day=pd.date_range("2023-11-20", periods=200, freq="h", tz="Europe/Berlin"))
    table.to_parquet(tmp_path / "rows.parquet")
    found = Texts(dataset=str(tmp_path / "rows.parquet"), time_column="day")

    assert found.splits["test"]["text"][:] == [f"text {number}" for number in range(160, 200)]


def test_rows_of_one_time_stay_together(tmp_path: Path) -> None:
    table = frame(day=np.repeat(["2023-01-01", "2023-01-02", "2023-01-03"], [90, 60, 50]))
    found = recipe(tmp_path, table, time_column="day")

    days = [set(found.splits[name]["day"]) for name in SPLITS]
    assert days == [{"2023-01-01"}, {"2023-01-02"}, {"2023-01-03"}]


def test_the_oldest_of_duplicates_is_kept(tmp_path: Path) -> None:
    table = frame(day=dates(200, "%Y-%m-%d")[::-1])
    table.loc[0, ["text", "label"]] = table.loc[150, ["text", "label"]]  # the newest is an old one
    found = recipe(tmp_path, table, time_column="day")

    assert "text 150" in found.splits["train"]["text"][:]
    assert "text 150" not in found.splits["test"]["text"][:]


@pytest.mark.parametrize(
    ("days", "message"),
    [
        (["2023-01-01"] * 200, "all 200 rows that are left have the same time \\(2023-01-01\\)"),
        ([*["n/a"] * 3, *dates(197, "%Y-%m-%d")], "3 of 200 training rows with no time in 'day' "
         "\\(but 'n/a'\\): lines 2, 3, 4; --drop_invalid leaves them out"),
        (["05/06/2023", "07/08/2023"] * 100, "'05/06/2023' can be"),
        (["soon", "later"] * 100, "the column holds 'soon'; expected dates or numbers"),
        ([None] * 200, "--time_column day: all 200 training rows are with no time in 'day'"),
    ],
)  # fmt: skip
def test_times_that_cannot_be_split(tmp_path: Path, days: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        _ = recipe(tmp_path, frame(day=days), time_column="day").splits


def test_too_few_rows_for_a_share_are_told_as_that(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"4 rows of 5 left.*none is split off for validation"):
        _ = recipe(tmp_path, frame(5, day=dates(5, "%Y-%m-%d")), time_column="day").splits


def test_a_class_that_is_only_in_the_newest_rows_is_refused(tmp_path: Path) -> None:
    table = frame(day=dates(200, "%Y-%m-%d"))
    table.loc[190:, "label"] = "new"
    with pytest.raises(UserError, match=r"does not have: 'new': line 192; the rows are split by"):
        _ = recipe(tmp_path, table, time_column="day").splits


def test_given_splits_leave_nothing_to_be_split_by_time(tmp_path: Path) -> None:
    tables = {
        name: frame(50, day=dates(50, "%Y-%m-%d")).assign(text=[f"{name} {n}" for n in range(50)])
        for name in SPLITS
    }
    found = Texts(dataset=directory(tmp_path, **tables), time_column="day")

    assert found.splits.num_rows == {"train": 50, "validation": 50, "test": 50}
    assert found.split_how == ""
    assert (
        "--time_column day splits nothing: the data has validation and test splits" in found.notes
    )
    assert any("50 of 50 training rows not older than the oldest test" in n for n in found.notes)


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"test_size": 0.5}, [90, 10, 100]),
        ({"validation_size": 0.3}, [100, 60, 40]),
        ({"test_size": 0.3, "validation_size": 0.3}, [80, 60, 60]),
        ({"test_size": 25, "validation_size": 15}, [160, 15, 25]),
    ],
)
def test_sizes(tmp_path: Path, options: dict[str, float], rows: list[int]) -> None:
    found = recipe(tmp_path, frame(), **options)

    assert [*found.splits.num_rows.values()] == rows
    assert f"test {rows[2] / 200:.1%}" in found.split_how


@pytest.mark.parametrize("size", [0, 1, 1.0, -0.5, 2.5, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["test_size", "validation_size"])
def test_sizes_that_are_none(name: str, size: float) -> None:
    with pytest.raises(UserError, match=f"--{name} .*: expected a share above 0 and below 1, or"):
        Texts(**{name: size})


def test_shares_that_leave_nothing() -> None:
    with pytest.raises(UserError, match=r"0.5 and --validation_size 0.5: nothing is left to train"):
        Texts(test_size=0.5, validation_size=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_size": 200}, "--test_size 200: 200 rows, and the training data has 200; expected"),
        ({"test_size": 0.001}, "--test_size 0.001: 0 rows of 200; expected 2 or more"),
        ({"test_size": 150, "validation_size": 50}, "50 rows beside 150 of the test set, and the"),
    ],
)
def test_sizes_of_more_rows_than_there_are(
    tmp_path: Path, options: dict[str, float], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        _ = recipe(tmp_path, frame(), **options).splits


def test_the_size_of_a_given_split_is_refused(tmp_path: Path) -> None:
    other = frame(1).assign(text="other")
    path = directory(tmp_path, train=frame(), test=other)

    with pytest.raises(UserError, match=r"--test_size 0.2: the data has a test split of 1 row, w"):
        _ = Texts(dataset=path, test_size=0.2).splits
    found = Texts(dataset=path)
    assert len(found.splits["test"]) == 1
    assert "the test data has one row: a score on it says nothing of other rows" in found.notes


# ---- sampled before it is checked ----------------------------------------------------------------


def many(rows: int, kind: str = "class", seed: int = 0, prefix: str = "text") -> Dataset:
    """Rows of which a tenth stand there twice, some with another label."""
    generator = np.random.default_rng(seed)
    texts = [f"{prefix} {number}" for number in generator.integers(0, 9 * rows, rows)]
    numbers = generator.integers(0, 4, rows)
    label: Any = {
        "class": ClassLabel(names=list("abcd")),
        "set": List(ClassLabel(names=list("abcd"))),
        "number": Value("float32"),
    }[kind]
    labels: list[Any] = [[int(n)] for n in numbers] if kind == "set" else numbers.tolist()
    features = Features({"text": Value("string"), "label": label, "group": Value("int64")})
    groups = generator.integers(0, rows // 10, rows) + 35 * seed
    return Dataset.from_dict({"text": texts, "label": labels, "group": groups}, features=features)


@pytest.mark.parametrize("kind", ["class", "set", "number"])
@pytest.mark.parametrize("by", [{}, {"group_column": "group"}, {"time_column": "group"}])
@pytest.mark.parametrize("given", [(), ("test",), ("validation", "test")])
def test_sampled_rows_do_not_leak(
    kind: str, by: dict[str, str], given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "CHECKED_WHOLE", 1000)
    sources = {name: many(400, kind, 1 + number) for number, name in enumerate(given)}
    dataset = DatasetDict(train=many(3000, kind), **sources)
    plan = Plan(train_samples=300, eval_samples=100, **by)
    notes: list[str] = []
    (found, _), (again, _) = (
        splits.three_way(dataset, plan, column="text", note=told.append) for told in (notes, [])
    )

    assert any(
        note.startswith("duplicates were looked for among the rows sampled") for note in notes
    )
    assert [*found.num_rows.values()] == [300, 100, 100]
    assert {name: rows.to_dict() for name, rows in found.items()} == {
        name: rows.to_dict() for name, rows in again.items()
    }
    texts = {name: set(rows["text"]) for name, rows in found.items()}
    assert not texts["train"] & (texts["validation"] | texts["test"])
    assert not texts["validation"] & texts["test"]
    assert len(texts["train"]) == 300
    if "group_column" in by:
        groups = {name: set(rows["group"]) for name, rows in found.items()}
        assert not groups["train"] & (groups["validation"] | groups["test"])
    if "time_column" in by and not given:
        oldest = {name: min(rows["group"]) for name, rows in found.items()}
        assert max(found["train"]["group"]) < oldest["validation"] < oldest["test"]


def test_few_rows_are_hashed_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    from finetune.data import digests

    monkeypatch.setattr(splits, "CHECKED_WHOLE", 1000)
    source = many(5000)
    plan = Plan(train_samples=100, eval_samples=50)
    splits.three_way(DatasetDict(train=source), plan, column="text", note=lambda sentence: None)

    assert 200 <= digests._DIGESTS[source]["text"].known.sum() <= 300


def test_more_is_sampled_where_most_rows_are_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "CHECKED_WHOLE", 1000)
    texts = [f"text {number % 400}" for number in range(4000)]
    labels = [number % 400 % 2 for number in range(4000)]
    source = Dataset.from_dict({"text": texts, "label": labels}).cast_column(
        "label", ClassLabel(names=["a", "b"])
    )
    plan = Plan(train_samples=200, eval_samples=30)
    found, _ = splits.three_way(
        DatasetDict(train=source), plan, column="text", note=lambda sentence: None
    )

    assert found.num_rows["train"] <= 200
    assert len({text for rows in found.values() for text in rows["text"]}) == sum(
        found.num_rows.values()
    )


# ---- Arrow ---------------------------------------------------------------------------------------


def test_a_column_is_added_beside_an_indices_mapping() -> None:
    import pyarrow as pa

    rows = Dataset.from_dict({"text": list("abcdef")}).select([5, 0, 3])
    added = arrow.with_column(rows, "label", pa.array([1, 2, 3]), ClassLabel(names=list("wxyz")))

    assert added[:] == {"text": ["f", "a", "d"], "label": [1, 2, 3]}
    assert added.select([1])[:] == {"text": ["a"], "label": [2]}
    assert added.data.column("text").chunk(0).buffers()[2].address == (
        rows.data.column("text").chunk(0).buffers()[2].address
    )


def test_rows_that_stand_there_twice_get_their_own_values() -> None:
    import pyarrow as pa

    rows = Dataset.from_dict({"text": list("abc")}).select([1, 1, 0])
    added = arrow.with_column(rows, "number", pa.array([1, 2, 3]), Value("int64"))

    assert added[:] == {"text": ["b", "b", "a"], "number": [1, 2, 3]}
