"""The verb ``check``: every finding has a file with that fault, and a clean file has none."""

import csv
import json
import random
import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

import finetune
from finetune import Recipe, cli
from finetune.checking import lengths, texts
from finetune.checking.finding import Finding, status
from finetune.data.encoding import Encoder
from finetune.pipeline import check
from finetune.recipe import catalog

WORDS = "alpha beta gamma soup cold warm film great bad awful lovely printer broken".split()  # noqa: SIM905
Row = tuple[str, str]
ROWS = 1000


@pytest.fixture(scope="module")
def model(tiny_model: str) -> str:
    return tiny_model


def drawn(rows: int = ROWS) -> list[Row]:
    generator = random.Random(1)
    return [
        (
            " ".join(generator.choices(WORDS, k=12)) + f" {number}x",
            generator.choice(["good", "bad"]),
        )
        for number in range(rows)
    ]


def written(path: Path, rows: Sequence[Row]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def changed(change: Callable[[int, str, str], Row]) -> list[Row]:
    return [change(number, *row) for number, row in enumerate(drawn())]


def checked(path: Path, model: str, **options: Any) -> finetune.Check:
    few: dict[str, Any] = {"max_length": 128, "max_steps": 60, **options}
    found = finetune.check("text", dataset=str(path), model=str(model), **few)
    assert all("--" in each.mend for each in found.findings if each.suspects)
    return found


def named(found: finetune.Check, severity: str = "warning") -> dict[str, Finding]:
    return {each.name: each for each in found.findings if each.severity == severity}


def test_nothing_is_found_in_clean_rows(model: str, tmp_path: Path) -> None:
    found = checked(written(tmp_path / "clean.csv", drawn()), model)
    assert found.status == 0
    assert [each.name for each in found.findings] == ["lengths", "note"]
    assert found.steps == 60
    assert {split: facts.rows for split, facts in found.splits.items()} == {
        "train": 720,
        "validation": 80,
        "test": 200,
    }
    assert sum(found.splits["train"].classes.values()) == 720


CUT = " ".join(WORDS * 5)[:255]
FAULTS: dict[str, tuple[list[Row], int, str]] = {
    "mojibake": (
        changed(lambda n, text, label: (text + " cafÃ©" * (n in (4, 700)), label)),
        2,
        "2 of 1,000 train rows with UTF-8 that was read in another encoding, like 'Ã©' for 'é': "
        "lines 6, 702",
    ),
    "replacement_characters": (
        changed(lambda n, text, label: (text + " caf\ufffd" * (n == 9), label)),
        1,
        "lost: line 11",
    ),
    "control_characters": (
        changed(lambda n, text, label: (text + "\x07" * (n % 50 == 0), label)),
        20,
        "20 of 1,000 train rows with control characters",
    ),
    "no_words": (
        changed(lambda n, text, label: (f"{n} ?!" if n % 50 == 0 else text, label)),
        20,
        "20 of 1,000 train rows without a letter",
    ),
    "cut_off": (
        changed(lambda n, text, label: (f"{n} {CUT}"[:255] if n % 50 == 0 else text, label)),
        20,
        "20 of 1,000 train rows of exactly 255 characters, and few just below",
    ),
    "duplicates": (
        [*drawn(), *drawn(20)],
        20,
        "20 of 1,020 train rows that repeat another one exactly: lines 1002, 1003, 1004",
    ),
    "contradictions": (
        [*drawn(), *((text, "good" if label == "bad" else "bad") for text, label in drawn(20))],
        40,
        "40 of 1,020 train rows with the same text and different labels: lines 2, 3,",
    ),
    "imbalance": (
        changed(lambda n, text, label: (text, "bad" if n % 25 == 0 else "good")),
        691,
        "96.0% of the training rows are of the class 'good'",
    ),
    "few_rows_of_a_class": (
        changed(lambda n, text, label: (text, "odd" if n % 125 == 0 else label)),
        6,
        "1 class with fewer than 10 training rows: 'odd' (6)",
    ),
}


def test_a_text_far_longer_than_others_is_found_and_quickly_counted(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenized: list[int] = []
    call = Encoder.__call__
    monkeypatch.setattr(
        Encoder,
        "__call__",
        lambda self, rows: tokenized.append(max(map(len, rows))) or call(self, rows),
    )
    rows = changed(lambda n, text, label: (text * (1 if n != 70 else 50_000), label))
    found = checked(written(tmp_path / "rows.csv", rows), model)
    only = named(found)
    assert list(only) == ["far_longer"]
    length = len(rows[70][0])
    assert only["far_longer"].message.startswith(
        f"1 of 1,000 train rows far longer than the others, up to {length:,} characters, where half"
    )
    assert only["far_longer"].message.endswith("line 72")
    assert [each.id for each in only["far_longer"].suspects] == [70]
    (lengths,) = (each for each in found.findings if each.name == "lengths")
    usual, longest = (
        int(lengths.message.split(before)[1].split(maxsplit=1)[0].strip(";").replace(",", ""))
        for before in ("texts have ", "the longest ")
    )
    assert 0.5 < longest / (usual * 50_000) < 2
    assert max(tokenized) == 200_000  # of 3,800,000 characters, which took 9 s


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_null_bytes_are_found_and_told(suffix: str, model: str, tmp_path: Path) -> None:
    """In a `.csv` they are refused."""
    path, table = tmp_path / f"rows.{suffix}", pd.DataFrame(drawn(), columns=["text", "label"])
    table.loc[[4, 8], "text"] += "a\0b"
    if suffix == "parquet":
        table.to_parquet(path)
    else:
        table.to_json(path, orient="records", lines=True)
    only = named(checked(path, model))
    assert list(only) == ["null_bytes"]
    where = "rows 5, 9" if suffix == "parquet" else "lines 5, 9"
    assert only["null_bytes"].message == (
        "2 of 1,000 train rows with null bytes, which no text has unless its file was damaged: "
        f"{where}"
    )
    recipe = catalog.find("text")(dataset=str(path), model=model)
    _ = recipe.splits
    assert any("null bytes" in each for each in recipe.notes)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, model: str, tmp_path: Path) -> None:
    rows, count, message = FAULTS[name]
    found = checked(written(tmp_path / "rows.csv", rows), model)
    assert found.status == 3
    only = named(found)
    assert list(only) == [name]
    assert message in only[name].message
    assert only[name].count == count
    assert only[name].mend


def test_labels_that_differ_by_case_are_merged_as_it_says(model: str, tmp_path: Path) -> None:
    rows = changed(lambda n, text, label: (text, label.upper() if n % 20 == 0 else label))
    path = written(tmp_path / "rows.csv", rows)
    (told,) = (each.fix for each in checked(path, model).findings if each.name == "similar_labels")
    assert told.endswith("or --label_map BAD=bad,GOOD=good")
    merged = checked(path, model, label_map="BAD=bad,GOOD=good")
    assert merged.status == 0
    assert list(merged.splits["train"].classes) == ["bad", "good"]


def test_rows_that_overlap_are_found_in_each_split(model: str, tmp_path: Path) -> None:
    rows = drawn()
    written(tmp_path / "train.csv", rows[:800])
    written(tmp_path / "validation.csv", [*rows[800:890], *rows[:10]])
    written(tmp_path / "test.csv", [*rows[890:], *rows[10:40]])
    told = [each.message for each in checked(tmp_path, model).findings if each.name == "overlap"]
    assert told == [
        "30 of 800 train rows that are also in the test data: lines 12, 13, 14, 15, 16, ...",
        "10 of 800 train rows that are also in the validation data: lines 2, 3, 4, 5, 6, ...",
    ]


def test_a_class_without_a_test_row_is_told(model: str, tmp_path: Path) -> None:
    rows = drawn()
    written(
        tmp_path / "train.csv", [*rows[:800], *((text + " odd", "odd") for text, _ in rows[:50])]
    )
    written(tmp_path / "test.csv", rows[800:])
    assert named(checked(tmp_path, model))["not_in_test"].count == 45


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column": "body"}, "--text_column: no column 'body'"),
        ({"metrics": "f2"}, "--metrics: no metric 'f2'"),
        ({"metric_for_best_model": "f3"}, "--metric_for_best_model: the recipe computes no 'f3'"),
        ({"max_length": 700}, "--max_length 700"),
        ({"learning_rat": 1}, "learning_rat"),
    ],
)
def test_what_training_refuses_is_an_error(
    options: dict[str, Any], message: str, model: str, tmp_path: Path
) -> None:
    found = checked(written(tmp_path / "rows.csv", drawn()), model, **options)
    assert found.status == 2
    assert [message in each.message for each in found.findings if each.severity == "error"] == [
        True
    ]


def test_all_that_is_refused_is_told_at_once(model: str, tmp_path: Path) -> None:
    rows = [(text, "" if number == 7 else label) for number, (text, label) in enumerate(drawn())]
    path = written(tmp_path / "rows.csv", rows)
    found = checked(path, model, metric_for_best_model="f3", global_batch_size=-1)
    told = [each.message for each in found.findings]
    assert any("1 of 1,000 train rows without a label in 'label': line 9" in each for each in told)
    assert any("global_batch_size" in each for each in told)
    assert found.splits == {}


def test_the_page_and_the_document_say_the_same(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _, message = FAULTS["mojibake"]
    path = written(tmp_path / "rows.csv", rows)
    monkeypatch.chdir(tmp_path)
    words = ["check", "text", "--dataset", str(path), "--model", str(model), "--max_length", "128"]
    assert cli.main([*words, "--max_steps", "60"]) == 3
    page = capsys.readouterr().out
    assert f"warning  {message}" in page
    assert page.splitlines()[-2] == "training would work, 60 steps; 1 warning to look at first"
    assert page.splitlines()[-1].startswith("to train: python -m finetune text --dataset")
    assert cli.main([*words, "--max_steps", "60", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["status"], document["verdict"]) == (1, 3, "warning")
    assert document["findings"][0]["message"] == message
    assert [each["id"] for each in document["findings"][0]["suspects"]] == [4, 700]
    assert document["splits"]["train"]["rows"] == 720
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.csv"]  # no run, no lock


def test_training_says_what_check_says(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = FAULTS["mojibake"][0]
    words = ["--dataset", str(written(tmp_path / "rows.csv", rows)), "--model", str(model)]
    output = str(tmp_path / "run")
    assert (
        cli.main(["text", *words, "--output_dir", output, "--dry_run", "--max_length", "128"]) == 0
    )
    assert capsys.readouterr().out.replace("\n", " ").count("was read in another encoding") == 1


def test_images_and_numbers_are_checked_too(tmp_path: Path, model: str) -> None:
    assert finetune.check("image", embedded=True).status in (0, 3)
    rows = [(text, f"{number / 7:.3f}") for number, (text, _) in enumerate(drawn())]
    found = checked(written(tmp_path / "numbers.csv", rows), model, task="regression")
    assert (found.status, found.task) == (0, "regression")
    assert found.splits["train"].classes == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cafÃ©", True),
        ("donâ€™t", True),
        ("Â£5", True),
        ("ðŸ\u02dc€", True),
        ("Åódź? Å‚adnie", False),  # a letter before a comma  # noqa: RUF001
        ("ksiÄ…Å¼ka Å‚adna", True),  # noqa: RUF001
        ("ÐŸÑ€Ð¸Ð²ÐµÑ‚", True),  # noqa: RUF001
        ("SÃO PAULO", False),
        ("“CAFÉ”", False),
        ("café", False),
        ("Â\xa0bien", True),
        ("À la carte, Ânge", False),
        ("日本語", False),
        ("â la", False),
    ],
)
def test_misread_text_is_told_from_accents(text: str, expected: bool) -> None:
    assert texts.is_misread(text) == expected


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
@pytest.mark.parametrize("text", ["Zoë", "naïve \u2013 “quoted”", "Æsir", "200 °C"])
def test_whatever_is_misread_is_found(text: str, encoding: str) -> None:
    try:
        misread = text.encode().decode(encoding)
    except UnicodeDecodeError:
        misread = text.encode().decode("latin-1")
    assert texts.is_misread(misread)
    assert not texts.is_misread(text)


def test_texts_cut_at_a_limit_of_databases_are_found_beside_longer_ones() -> None:
    texts_cut = ["x" * 255] * 40 + ["words " * (n % 80) for n in range(460)]
    rows = Dataset.from_dict({"id": range(500), "text": texts_cut})
    (found,) = texts.findings(rows, "train", ["text"], lambda split, ids: "")
    assert (found.name, found.count) == ("cut_off", 40)


def test_texts_of_all_lengths_were_not_cut() -> None:
    rows = Dataset.from_dict({"id": range(500), "text": ["word " * (n % 100) for n in range(500)]})
    assert [*texts.findings(rows, "train", ["text"], lambda split, ids: "")] == []


def test_long_texts_are_told_from_a_file(model: str, tmp_path: Path) -> None:
    long = changed(lambda n, text, label: (text + " soup" * 200 if n % 3 == 0 else text, label))
    path = written(tmp_path / "rows.csv", long)
    found = named(checked(path, model))
    assert [*found] == ["lengths"]
    assert "% are cut at --max_length 128" in found["lengths"].message
    assert 0.25 * 720 < found["lengths"].count < 0.42 * 720
    few = changed(lambda n, text, label: (text + " soup" * 200 if n % 5 == 0 else text, label))
    found = named(checked(written(path, few), model), "info")  # a fifth is cut
    assert 0.1 * 720 < found["lengths"].count < 0.25 * 720
    assert found["lengths"].mend


def test_advice_on_length_fits_the_model() -> None:
    tokens = np.arange(1, 1001)
    (found,) = lengths.findings(tokens, 5000, max_length=500, positions=512)
    assert found.severity == "warning"
    assert "about 50.0% are cut at --max_length 500" in found.message
    assert found.mend == "--long_texts windows reads all of them"
    (found,) = lengths.findings(tokens, 1000, max_length=900, positions=None)
    assert (found.severity, found.mend) == ("info", "--max_length 992 cuts 1%")
    assert "10.0% are cut" in found.message


def test_the_worst_decides_the_status() -> None:
    kinds = [Finding(name="it", severity=each, message="") for each in ("info", "warning", "error")]
    assert [status(kinds[:count]) for count in range(4)] == [0, 0, 3, 2]


@pytest.mark.parametrize(
    ("recipe", "flags", "message"),
    [
        ("text", ["--group_column", "grp", "--time_column", "grp"], "--group_column grp and --tim"),
        ("nosuch", [], "unknown recipe 'nosuch'"),
        ("text", ["--suspects", "rows.txt"], "--suspects rows.txt: expected the name of a .csv"),
    ],
)
def test_mistakes_in_the_options_are_a_document_too(
    recipe: str,
    flags: list[str],
    message: str,
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [(*row, n % 20) for n, row in enumerate(drawn(200))]
        csv.writer(file).writerows([("text", "label", "grp"), *rows])
    words = ["check", recipe, "--dataset", str(path), "--model", str(model), *flags]
    assert cli.main([*words, "--max_length", "128", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["status"], document["verdict"]) == (2, "error")
    (refused,) = (each for each in document["findings"] if each["severity"] == "error")
    assert refused["name"] == "refused"
    assert message in refused["message"]
    # options that contradict each other do not hide what is wrong with the rows
    assert bool(document["splits"]) == ("--group_column" in flags)


def test_rows_of_the_test_set_are_left_out_by_a_file(model: str, tmp_path: Path) -> None:
    rows = drawn()
    written(tmp_path / "train.csv", rows[:700])
    turned = [(text, "good" if label == "bad" else "bad") for text, label in rows[700:705]]
    written(tmp_path / "test.csv", [*rows[700:], *rows[710:715], *turned])
    found = {each.name: each for each in checked(tmp_path, model).findings}
    assert "check --suspects FILE.csv, then --exclude FILE.csv" in found["duplicates"].mend
    assert "check --suspects FILE.csv, then --relabel FILE.csv" in found["contradictions"].mend


@pytest.mark.parametrize("words", [["check", "--json", "text"], ["check", "nosuch"]])
def test_mistakes_are_one_message(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_recipe_of_ones_own_is_checked() -> None:
    from recipes.mnist import Mnist

    recipe: Recipe = Mnist(dataset="embedded:digits", train_samples=500)
    found = finetune.check(recipe)
    assert found.status == 0
    assert len(found.splits["train"].classes) == 10
    assert check.as_json(found)["verdict"] == "ok"


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        (("no", "yes"), ""),
        (("LABEL_0", "LABEL_1"), ""),
        (("LABEL_0", "LABEL_1", "LABEL_2"), "and 2 are needed: it is replaced by a new one"),
        (("yes", "no"), "trained for, output by output: 'yes' becomes 'no', 'no' becomes 'yes'"),
        (("a", "b", "c"), "('a', 'b', 'c'), and 2 are needed: it is replaced by a new one"),
    ],
)
def test_a_head_that_was_trained_for_something_else_is_told(
    outputs: tuple[str, ...], told: str, short_model: str, tmp_path: Path
) -> None:
    shutil.copytree(short_model, model := tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config["id2label"] = dict(enumerate(outputs))
    config["label2id"] = {name: number for number, name in enumerate(outputs)}
    (model / "config.json").write_text(json.dumps(config))
    rows = "".join(f"the text {n},{('no', 'yes')[n % 2]}\n" for n in range(60))
    (path := tmp_path / "a.csv").write_text(f"text,label\n{rows}")
    found = finetune.check("text", dataset=str(path), model=str(model), max_length=32).findings
    heads = [each for each in found if "the head of" in each.message]
    assert [each.severity for each in heads] == ["info"] * bool(told)
    assert all(told in each.message for each in heads)
    path.write_text("text,label\n" + "".join(f"the text {n},{n / 7}\n" for n in range(60)))
    found = finetune.check("text", dataset=str(path), model=str(model), max_length=32).findings
    of_numbers = [each.message for each in found if "the head of" in each.message]
    assert len(of_numbers) == 1
    assert "and 1 is needed" in of_numbers[0]
    rows = "".join(f"the text {n},{n % 4}\n" for n in range(120))
    path.write_text(f"text,label\n{rows}")
    found = finetune.check(
        "text", dataset=str(path), model=str(model), max_length=32, task="single_label"
    ).findings
    assert any("and 4 are needed: it is replaced by a new one" in each.message for each in found)


def test_nothing_is_suspicious_in_the_embedded_sentences() -> None:
    """Of the faults that are looked for none is in these 8,530 sentences."""
    found = finetune.check("text", dataset="embedded:rotten-tomatoes", model="embedded:minilm")
    assert found.status == 0
    assert {each.name for each in found.findings} == {"lengths", "note"}
    assert found.splits["train"].classes == {"negative": 3071, "positive": 3071}


def test_texts_shortened_between_words_are_found() -> None:
    words = [" ".join(WORDS[n % 12 :] + WORDS * 3)[: 20 + 7 * (n % 40)] for n in range(400)]
    short = [textwrap.shorten(each, 200, placeholder=" ...") for each in words]
    rows = Dataset.from_dict({"id": range(400), "text": short})
    (found,) = texts.findings(rows, "train", ["text"], lambda split, ids: "")
    assert (found.name, found.severity) == ("cut_off", "warning")
    ending = {number for number, each in enumerate(short) if each.endswith("...")}
    assert {each.id for each in found.suspects} <= ending
    assert found.count >= 0.9 * len(ending) > 50
    whole = Dataset.from_dict({"id": range(400), "text": words})
    assert [*texts.findings(whole, "train", ["text"], lambda split, ids: "")] == []
    ended = Dataset.from_dict({"id": range(400), "text": [f"{each} ..." for each in words]})
    assert [*texts.findings(ended, "train", ["text"], lambda split, ids: "")] == []


@pytest.mark.parametrize("length", [150, 512])
def test_sequences_of_one_length_were_not_cut(length: int) -> None:
    def names(texts_of: list[str]) -> list[str]:
        rows = Dataset.from_dict({"id": range(300), "text": texts_of})
        return [each.name for each in texts.findings(rows, "train", ["text"], lambda *_: "")]

    generator = random.Random(0)
    reads = ["".join(generator.choices("ACGT", k=length)) for _ in range(300)]
    assert "cut_off" not in names(reads)
    prose = [" ".join(generator.choices(WORDS, k=300))[:length] for _ in range(300)]
    assert "cut_off" in names(prose)


def test_texts_cut_at_a_number_of_bytes_are_found_once() -> None:
    def of_bytes(number: int) -> str:
        some = "né " * (number % 3) + " ".join(WORDS[number % 12 :] + WORDS * 5)
        return (some.encode() if number % 2 else some[:90].encode())[:255].decode(errors="ignore")

    rows = Dataset.from_dict({"id": range(300), "text": [of_bytes(n) for n in range(300)]})
    (found,) = texts.findings(rows, "train", ["text"], lambda split, ids: "")
    assert "of exactly 255 " in found.message
    assert {each.id % 2 for each in found.suspects} == {1}


def test_each_column_of_several_is_looked_at(model: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [(f"t{n}", f"Ã©t {text}" if n == 7 else text[: 50 if n % 5 == 0 else 70], label)
                for n, (text, label) in enumerate(drawn())]  # fmt: skip
        csv.writer(file).writerows([("title", "body", "label"), *rows])
    found = named(checked(path, model, text_columns="title,body"))
    assert "in 'body': line 9" in found["mojibake"].message
    assert "title" not in found["mojibake"].message


def test_a_test_set_with_other_shares_is_told(model: str, tmp_path: Path) -> None:
    rows = drawn()
    written(tmp_path / "train.csv", rows[:700])
    written(tmp_path / "test.csv", [(text, "good") for text, _ in rows[700:800]])
    found = named(checked(tmp_path, model))
    assert "'good' has 100.0% and" in found["shift"].message or "'bad' has 0.0%" in (
        found["shift"].message
    )
    written(tmp_path / "test.csv", rows[700:800])
    assert "shift" not in named(checked(tmp_path, model))


def test_a_label_that_nearly_all_rows_have_is_told(model: str, tmp_path: Path) -> None:
    rows = [(text, "any;good" if label == "good" else "any") for text, label in drawn()]
    found = named(checked(written(tmp_path / "a.csv", rows), model, label_separator=";"))
    assert "100.0% of the training rows have the label 'any'" in found["imbalance"].message


def test_check_says_how_rows_are_split_and_what_has_no_effect(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "rows.csv", drawn())
    words = ["check", "text", "--dataset", str(path), "--model", str(model), "--max_length", "128"]
    assert cli.main([*words, "--max_steps", "60", "--stride", "9", "--thresholds", "label"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "splits: of 1,000 training rows split off: test 20.0%, validation 8.0%" in page
    assert "info --stride has no effect: needs --long_texts windows" in page
    assert "info --thresholds has no effect: only a task of several labels a row has any" in page


def numbers_of(*changes: tuple[int, float]) -> list[Row]:
    generator, values = random.Random(2), dict(changes)
    drawn_values = [round(generator.gauss(50, 5), 2) for _ in range(ROWS)]
    return [
        (text, f"{values.get(number, drawn_values[number]):g}")
        for number, (text, _) in enumerate(drawn())
    ]


def test_targets_far_from_all_others_are_told(model: str, tmp_path: Path) -> None:
    path = written(tmp_path / "rows.csv", numbers_of((4, 200), (9, -80)))
    only = named(checked(path, model, task="regression"))
    assert list(only) == ["far_targets"]
    assert only["far_targets"].message.startswith("2 of 1,000 train rows more than 10 robust stand")
    assert only["far_targets"].message.endswith("; the farthest is 200: lines 6, 11")
    assert [each.id for each in only["far_targets"].suspects] == [4, 9]
    recipe = catalog.find("text")(dataset=str(path), model=model, task="regression")
    _ = recipe.splits
    assert any("robust standard deviations" in each for each in recipe.notes)


@pytest.mark.parametrize("code", [-1, -99, -999, 9999])
def test_a_number_that_stands_for_missing_is_told(code: float, model: str, tmp_path: Path) -> None:
    path = written(tmp_path / "rows.csv", numbers_of(*((each, code) for each in range(0, 60, 4))))
    only = named(checked(path, model, task="regression"))
    assert list(only) == ["missing_code"]
    assert only["missing_code"].message.startswith(
        f"15 of 1,000 train rows with {code} in 'label', which is far from all others: is it a code"
    )


@pytest.mark.parametrize("spread", [1, 100])
def test_targets_of_a_wide_range_are_no_codes(spread: int, model: str, tmp_path: Path) -> None:
    rows = [(text, str(spread * (n % 21 - 10))) for n, (text, _) in enumerate(drawn())]
    rows[5:20] = [(text, str(-99 if spread == 100 else 9)) for text, _ in rows[5:20]]
    assert named(checked(written(tmp_path / "rows.csv", rows), model, task="regression")) == {}
