"""Suspected rows go into a file, are corrected by hand, and come back."""

import csv
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

import finetune
from finetune import cli
from finetune.data import correction_files, corrections
from finetune.data.correction_files import FILE, digest_of, is_edited
from finetune.errors import UserError
from finetune.pipeline import corrected
from finetune.pipeline.report import report

GOOD = "lovely fine warm great superb moving".split()  # noqa: SIM905
BAD = "dull awful cold tired broken boring".split()  # noqa: SIM905
Rows = list[dict[str, str]]


def written(path: Path, wrong: int = 0, rows: int = 400) -> Path:
    """Write rows whose label a bag of words knows, the first ``wrong`` of them mislabelled."""
    generator = random.Random(0)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["text", "label"])
        for number in range(rows):
            good = generator.random() < 0.5
            words = generator.choices(GOOD if good else BAD, k=6)
            out.writerow([f"{' '.join(words)} {number}", ["bad", "good"][good != (number < wrong)]])
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("data") / "reviews.csv", wrong=30)


def splits() -> tuple[DatasetDict, DatasetDict]:
    """Return a source of ten rows, and splits of it."""
    features = Features(
        {"text": Value("string"), "label": ClassLabel(names=["bad", "good"]), "id": Value("int64")}
    )
    rows = {"text": [f"row {n}" for n in range(10)], "label": [n % 2 for n in range(10)]}
    source = Dataset.from_dict({**rows, "id": list(range(10))}, features)
    return (
        DatasetDict(
            train=source.select([7, 1, 3, 5, 0]),
            validation=source.select([2, 4]),
            test=source.select([6, 8]),
        ),
        DatasetDict(train=source),
    )


def row_of(number: int, **others: str) -> dict[str, Any]:
    return {
        "split": "train",
        "id": number,
        "label": ["bad", "good"][number % 2],
        "digest": digest_of(f"row {number}"),
        **others,
    }


def applied(
    path: Path, rows: list[dict[str, Any]], **files: list[str]
) -> tuple[DatasetDict, list[str]]:
    corrections.write(path, rows)
    notes: list[str] = []
    parts, source = splits()
    given: dict[str, Any] = {"relabel": [str(path)], "exclude": [], **files}
    return corrections.apply(parts, source, "text", note=notes.append, **given)[0], notes


def test_labels_change_and_rows_go(tmp_path: Path) -> None:
    path = tmp_path / "suspects.csv"
    rows = [row_of(3, new_label="bad"), row_of(0, new_label="drop"), row_of(6, new_label="good"),
            row_of(5), row_of(9, new_label="drop")]  # fmt: skip
    found, notes = applied(path, rows)
    assert list(zip(found["train"]["id"], found["train"]["label"], strict=True)) == [
        (7, 1), (1, 1), (3, 0), (5, 1)
    ]  # fmt: skip
    assert found["test"]["label"][:] == [1, 0]
    assert found["validation"]["label"][:] == [0, 0]
    assert found["train"].features == splits()[0]["train"].features
    assert notes == [
        f"--relabel {path}: relabelled 1 train row, 1 test row; left out 1 train row; 1 row of the "
        "file in no split: its test scores are not those of the same test set any more"
    ]
    found, _ = applied(path, [row_of(3), row_of(4)], relabel=[], exclude=[str(path)])
    assert found["train"]["id"][:] == [7, 1, 5, 0]
    assert found["validation"]["id"][:] == [2]


def test_labels_that_a_spreadsheet_would_compute_are_given_as_they_are_shown(
    tmp_path: Path,
) -> None:
    """The file has an apostrophe before such a label; it is copied with it."""
    source = DatasetDict(
        train=splits()[1]["train"].cast_column("label", ClassLabel(names=["-", "+"]))
    )
    path = tmp_path / "a.csv"
    corrections.write(path, [{**row_of(3), "label": "+", "suggested": "-"}])
    with path.open(newline="", encoding="utf-8-sig") as file:
        (row,) = csv.DictReader(file)
    assert row["suggested"] == "'-"
    corrections.write(path, [{**row_of(3, new_label="'-"), "label": "+"}])
    found, _ = corrections.apply(
        source, source, "text", note=lambda note: None, relabel=[str(path)], exclude=[]
    )
    assert found["train"]["label"][3] == 0


def test_files_are_applied_one_after_the_other(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    corrections.write(first, [row_of(3, new_label="bad"), row_of(1, new_label="bad")])
    again = {**row_of(3, new_label="good"), "label": "bad"}
    found, _ = applied(second, [again], relabel=[str(first), str(second)], exclude=[str(first)])
    assert dict(zip(found["train"]["id"], found["train"]["label"], strict=True)) == {
        7: 1, 5: 1, 0: 0
    }  # fmt: skip


def test_a_text_that_was_edited_is_told(tmp_path: Path) -> None:
    """Only ``new_label`` is read; a spreadsheet cuts texts off and writes other spaces itself."""
    path = tmp_path / "a.csv"
    edited = [row_of(3, new_label="bad", text="row three"), row_of(7, text="row 8")]
    kept = [row_of(1, text="'row\u00a0"), row_of(5, new_label="bad", text="row 5"), row_of(0)]
    _, notes = applied(path, [*edited, *kept])
    told = f"--relabel {path}: lines 2, 3: 'text' was edited, which changes nothing in the data"
    assert told in notes
    assert len(notes) == 2


def test_rows_that_moved_are_found_by_their_text(tmp_path: Path) -> None:
    moved = {**row_of(3, new_label="bad"), "id": "8"}
    found, _ = applied(tmp_path / "a.csv", [moved, {**row_of(1), "id": "one"}])
    assert dict(zip(found["train"]["id"], found["train"]["label"], strict=True))[3] == 0


@pytest.mark.parametrize("kind", ["int64", "string", "float64"])
def test_rows_are_found_whatever_the_order_of_the_source_and_its_ids(
    kind: str, tmp_path: Path
) -> None:
    _, source = splits()
    rows = source["train"].cast_column("id", Value(kind)).select(list(range(9, -1, -1)))
    parts = DatasetDict(
        {
            name: rows.select([*range(first, 10, 3)])
            for first, name in enumerate(("train", "validation", "test"))
        }
    )
    own, other = str(rows[2]["id"]), str(rows[5]["id"])
    path = tmp_path / "a.csv"
    there = {**row_of(7, new_label="drop"), "id": own}
    moved = {**row_of(4, new_label="drop"), "id": "none"}
    corrections.write(path, [there, moved])
    given: dict[str, Any] = {"relabel": [str(path)], "exclude": [], "note": lambda sentence: None}
    found, _ = corrections.apply(parts, DatasetDict(train=rows), "text", **given)
    kept = {str(number) for each in found.values() for number in each["id"]}
    assert kept == {str(number) for number in rows["id"]} - {own, other}


def test_rows_that_were_left_out_are_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Duplicates, say: they are where they were in the source, of which no other row is hashed."""
    hashed: list[str] = []
    rows = [row_of(9, new_label="drop"), row_of(3, new_label="drop")]

    def counting(text: str) -> str:
        hashed.append(text)
        return digest_of(text)

    monkeypatch.setattr(corrections, "digest_of", counting)
    found, notes = applied(tmp_path / "a.csv", rows)
    assert found["train"]["id"][:] == [7, 1, 5, 0]
    assert notes[0].endswith("left out 1 train row; 1 row of the file in no split")
    assert sorted(hashed) == ["row 3", "row 9"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row_of(3)], r"no row has a 'new_label': write the right label there, or drop"),
        ([row_of(3, new_label="god")], r"line 2: there is no label 'god'; did you mean 'good'"),
        (
            [row_of(3, new_label="bad", digest="x0"), row_of(1, new_label="bad")],
            r"1 row of 2 are not in the data: line 2; is it the file of another data set",
        ),
        (
            [row_of(3, new_label="bad", label="bad?")],
            r"line 2: the label was 'bad\?' when the file was written and is 'good' now",
        ),
        ([row_of(3, new_label="bad", digest="")], r"line 2: 'digest' must be as it was written"),
        (
            [row_of(3, new_label="bad"), row_of(3, new_label="drop")],
            r"line 3 and .*line 2 want different things of one row",
        ),
    ],
)
def test_files_that_correct_nothing_are_refused(
    rows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        applied(tmp_path / "a.csv", rows)


def test_an_edited_label_is_not_dropped(tmp_path: Path) -> None:
    """Where the new one belongs into another column; a spreadsheet may write it otherwise."""
    path, new = tmp_path / "a.csv", row_of(3, new_label="bad")
    edited = {**row_of(5), "label": "bad"}
    with pytest.raises(UserError, match=r"a\.csv: line 3: 'label' .*edit new_label, not label"):
        applied(path, [new, edited])
    for label in ("GOOD", "", " good"):
        assert applied(path, [new, {**row_of(5), "label": label}])[1]
    assert applied(path, [new, {**edited, "digest": "x0"}])[1]  # of another row
    assert applied(path, [new, edited], relabel=[], exclude=[str(path)])[1]
    again = tmp_path / "b.csv"  # written before the first corrected the row, or after
    for label in ("good", "bad"):
        rows = [{**row_of(3), "label": label}, row_of(1, new_label="bad")]
        corrections.write(path, [new])
        assert applied(again, rows, relabel=[str(path), str(again)])[1]


@pytest.mark.parametrize(
    ("written", "label", "edited"),
    [
        ("1", "1.0", False), ("1,5", "1.5", True), ("2", "1.0", True), ("TRUE", "True", False),
        ("'=a", "=a", False), ('["b", "a"]', '["a", "b"]', False), ('["b"]', '["a", "b"]', True),
        (None, "a", False), ("b", "a", True),
    ],
)  # fmt: skip
def test_what_a_spreadsheet_writes_is_no_edit(
    written: str | None, label: str, edited: bool
) -> None:
    assert is_edited(written, label) == edited


def test_one_row_is_not_corrected_twice(tmp_path: Path) -> None:
    """Also where it has another number in the file than in the data."""
    path = tmp_path / "a.csv"
    rows = [{**row_of(3, new_label="bad"), "id": "none"}, row_of(3, new_label="drop")]
    with pytest.raises(UserError, match=r"line 2 and line 3 want|line 3 and line 2 want"):
        applied(path, rows)


def test_a_row_that_is_relabelled_and_left_out_is_told(tmp_path: Path) -> None:
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    corrections.write(other, [row_of(3), row_of(0)])
    rows = [row_of(3, new_label="bad"), row_of(5, new_label="bad")]
    found, notes = applied(path, rows, exclude=[str(other)])
    assert found["train"]["id"][:] == [7, 1, 5]
    assert notes[2:] == [
        f"--exclude {other}: 1 row of these is in a file of --relabel too, with a new label: left "
        "out nevertheless"
    ]


@pytest.mark.parametrize("flag", ["relabel", "exclude"])
def test_the_directory_of_a_run_is_no_file(flag: str, tmp_path: Path) -> None:
    options = {"relabel": [], "exclude": [], flag: [str(tmp_path)]}
    with pytest.raises(UserError, match=rf"--{flag} .* is a directory; name .*/suspects\.csv"):
        applied(tmp_path / "a.csv", [row_of(3)], **options)


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\nrow 1,good\n")
    parts, source = splits()
    with pytest.raises(UserError, match=r"no column 'split' \(columns: text, label\)"):
        corrections.apply(
            parts, source, "text", relabel=[], exclude=[str(path)], note=lambda sentence: None
        )


def test_several_labels_of_a_row(tmp_path: Path) -> None:
    names = ClassLabel(names=["a", "b", "c"])
    features = Features({"text": Value("string"), "label": List(names), "id": Value("int64")})
    rows = Dataset.from_dict(
        {"text": ["row 0", "row 1"], "label": [[0], [1, 2]], "id": [0, 1]}, features
    )
    path = tmp_path / "a.csv"
    corrections.write(path, [{**row_of(1, new_label='["c", "a"]'), "label": '["b", "c"]'}])
    given = DatasetDict(train=rows)
    found, _ = corrections.apply(
        given, given, "text", relabel=[str(path)], exclude=[], note=lambda sentence: None
    )
    assert found["train"]["label"][:] == [[0], [0, 2]]


def test_several_numbers_of_a_row_are_not_corrected(tmp_path: Path) -> None:
    numbers = List(Value("float64"))
    features = Features({"text": Value("string"), "label": numbers, "id": Value("int64")})
    given = DatasetDict(train=Dataset.from_dict(
        {"text": ["row 0", "row 1"], "label": [[0.5, 1.0], [2.0, 3.0]], "id": [0, 1]}, features
    ))  # fmt: skip
    path = tmp_path / "a.csv"
    for new, message in (
        ("4", "a row has several numbers, which only drop corrects"),
        ("drop", ""),
    ):
        corrections.write(path, [{**row_of(1, new_label=new), "label": ""}])
        if message:
            with pytest.raises(UserError, match=message):
                corrections.apply(given, given, "text", relabel=[str(path)], exclude=[], note=print)
        else:
            found, _ = corrections.apply(
                given, given, "text", relabel=[str(path)], exclude=[], note=print
            )
            assert found["train"]["label"][:] == [[0.5, 1.0]]


def test_many_rows_are_corrected_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions are for messages only: to look each up reads the file again."""
    monkeypatch.setattr(correction_files, "line_numbers", lambda *_: 1 / 0)
    found, _ = applied(tmp_path / "a.csv", [row_of(n, new_label="drop") for n in (0, 1, 3)])
    assert found["train"]["id"][:] == [7, 5]


def as_excel(content: bytes) -> bytes:
    """Return a file as a spreadsheet of a country with decimal commas writes it again."""
    text = content.decode("utf-8-sig")
    rows = list(csv.reader(text.splitlines()))
    lines = "\r\n".join(";".join(cell if ";" not in cell else f'"{cell}"' for cell in row)
                        for row in rows)  # fmt: skip
    return lines.encode("cp1252")


def test_a_spreadsheet_may_have_written_it_again(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    corrections.write(path, [row_of(3, new_label="bad", text="=1+1 été"), row_of(1)])
    assert "'=1+1" in path.read_text(encoding="utf-8-sig")
    path.write_bytes(as_excel(path.read_bytes()))
    parts, source = splits()
    found, _ = corrections.apply(
        parts, source, "text", relabel=[str(path)], exclude=[], note=lambda sentence: None
    )
    assert found["train"]["label"][:] == [1, 1, 0, 1, 0]


def edited(path: Path, change: Callable[[dict[str, str]], str]) -> int:
    """Fill in the column as a person would; return how many rows got a label."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["new_label"] = change(row)
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        out = csv.DictWriter(file, corrections.COLUMNS)
        out.writeheader()
        out.writerows(rows)
    return sum(bool(row["new_label"]) for row in rows)


def truth(row: dict[str, str]) -> str:
    right = "good" if row["text"].split()[0] in GOOD else "bad"
    return right if right != row["label"] else ""


@pytest.mark.trains
@pytest.mark.usefixtures("one_thread")
def test_the_loop_of_mending(
    source: Path, tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Train, look at the suspects, correct them, train again; the report says what that changed."""
    output = tmp_path / "run"
    words = ["text", "--dataset", str(source), "--model", tiny_model, "--output_dir", str(output)]
    words += ["--num_train_epochs", "6", "--learning_rate", "3e-3", "--precision", "fp32"]
    words += ["--global_batch_size", "16"]
    assert cli.main(words) == 0
    suspects = output / FILE
    with suspects.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert {row["split"] for row in rows} == {"train"}  # of which the test rows were split off
    assert {row["why"] for row in rows} <= {"label may be wrong", "confident mistake"}
    count = edited(suspects, truth)
    assert count >= 3
    capsys.readouterr()
    assert report(output).suspects == suspects
    assert edited(suspects, truth) == count  # the report has not written over it
    edited(suspects, truth)
    assert cli.main([*words, "--relabel", str(suspects)]) == 2
    assert "is in the directory of the run" in capsys.readouterr().err
    kept = tmp_path / "mended.csv"
    kept.write_bytes(suspects.read_bytes())
    assert cli.main([*words, "--relabel", str(kept)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"relabelled {count} test row" in said

    run = finetune.Run.load(output)
    (done,) = run.manifest.data.corrections
    assert (done["relabelled"], done["excluded"]) == ({"test": count}, {})
    assert len(done["sha256"]) == 64
    change = run.statistics.corrected
    assert change is not None
    assert change["run"] == f"{output}.1"
    assert change["rows"] == 80 - count
    before = finetune.Run.load(f"{output}.1")
    assert list(run.predictions["id"]) == list(before.predictions["id"])
    right = {name: each.set_index("id") for name, each in
             (("before", before.predictions), ("after", run.predictions))}  # fmt: skip
    same = right["before"]["label"] == right["after"]["label"]
    for name in ("before", "after"):
        some = right[name][same]
        accuracy = (some["label"] == some["prediction"]).mean()
        assert change[name]["accuracy"] == pytest.approx(accuracy)
    for path in ("report.html", "README.md"):
        assert change["sentence"][:60] in (output / path).read_text()
    assert finetune.evaluate(run).metrics["accuracy"] == run.metrics.test["accuracy"]
    edited(kept, lambda row: row["new_label"] and "drop")
    more = [*words, "--relabel", str(kept), "--resume", "--num_train_epochs", "7"]
    assert cli.main(more) == 2
    said = capsys.readouterr().err
    assert "data" in said
    assert "--allow_changed" in said
    kept.write_bytes(b"")
    with pytest.raises(UserError, match="holds no rows"):
        finetune.evaluate(run)


def test_a_run_that_is_gone_is_said(tmp_path: Path) -> None:
    class Data:
        corrections = [{"file": "a.csv", "relabelled": {"train": 2}, "excluded": {}, "run": "x y"}]

    class Fake:
        path = tmp_path / "run"
        manifest = type("Manifest", (), {"data": Data})

    found = corrected.measured(Fake)  # type: ignore[arg-type]
    assert found == {
        "sentence": "Corrected: a.csv relabelled 2 train rows. The run before, x y, was not found."
    }


OFFLINE = """
import sys
from finetune import cli
status = cli.main(sys.argv[1:])
from huggingface_hub import constants
print(status, constants.HF_HUB_OFFLINE)
"""


@pytest.mark.processes
def test_suspects_do_not_make_the_libraries_ask_the_hub(
    source: Path, tmp_path: Path, tiny_model: str
) -> None:
    """They read the variable when they are imported, which has to be set by then."""
    words = ["check", "text", "--dataset", str(source), "--model", tiny_model]
    words += ["--suspects", str(tmp_path / "found.csv")]
    environment = {name: each for name, each in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "3 True"


def test_check_writes_what_it_suspects(
    source: Path, tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = source.read_text().splitlines()
    doubled = tmp_path / "doubled.csv"
    doubled.write_text("\n".join([*rows, *rows[1:41]]) + "\n")
    words = ["check", "text", "--dataset", str(doubled), "--model", tiny_model]
    path = tmp_path / "found.csv"
    assert cli.main([*words, "--suspects", str(path)]) == 3
    with path.open(newline="", encoding="utf-8-sig") as file:
        found = list(csv.DictReader(file))
    repeated = [row for row in found if row["why"].startswith("duplicates")]
    assert [int(row["id"]) for row in repeated] == list(range(400, 440))
    assert repeated[0]["place"] == "line 402"
    again = finetune.check("text", dataset=str(doubled), model=tiny_model, exclude=str(path))
    assert sum(facts.rows for facts in again.splits.values()) == 400  # the first of each stays
    assert any("40 rows of the file in no split" in each.message for each in again.findings)
    again_file = path.read_bytes()
    path.write_bytes(again_file.replace(b"duplicates", b"my duplicates", 1))
    assert cli.main([*words, "--suspects", str(path)]) == 3  # nobody has written a label
    assert path.read_bytes() == again_file
    edited(path, lambda row: "drop")
    kept = path.read_bytes()
    capsys.readouterr()
    for other, said in ((path, "has new labels, which would be lost"),
                        (doubled, "is no list of suspects")):  # fmt: skip
        assert cli.main([*words, "--suspects", str(other)]) == 2
        assert f"--suspects {other}: the file that is there {said}" in capsys.readouterr().err
    assert path.read_bytes() == kept
    (tmp_path / "folder.csv").mkdir()
    for words_of_file in (
        ["--suspects", str(tmp_path)],
        ["--suspects", str(tmp_path / "folder.csv")],
        ["--suspects=nosuch/a.csv"],
        ["--suspects"],
    ):
        assert cli.main([*words, *words_of_file]) == 2
        assert "expected the name of a .csv" in capsys.readouterr().err
