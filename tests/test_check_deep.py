"""``check --deep``: every finding has a file with that fault, and a clean file has none."""

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import finetune
from finetune import cli
from finetune.checking.finding import Finding
from finetune.runtime import extras

NEUTRAL = [f"word{number}" for number in range(400)]
TELLING = {
    label: [f"{label}ish{number}" for number in range(40)] for label in ("good", "bad", "odd")
}
ROWS = 1200
#: Told of labels that are drawn at random: they cannot be checked.
_BY_CHANCE = "suspected_labels"
Row = tuple[str, ...]


def drawn(rows: int = ROWS, labels: Sequence[str] = ("good", "bad"), seed: int = 1) -> list[Row]:
    """Texts of 25 words, a few of which tell the label, as people write."""
    generator, found = random.Random(seed), []
    for _ in range(rows):
        label = generator.choice(labels)
        words = generator.choices(NEUTRAL, k=22)
        for _ in range(4):
            mood = label if generator.random() < 0.8 else generator.choice(labels)
            words.insert(generator.randrange(len(words)), generator.choice(TELLING[mood]))
        found.append((" ".join(words), label))
    return found


def written(path: Path, rows: Sequence[Row], header: Row = ("text", "label")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def model(tiny_model: str) -> str:
    return tiny_model


def checked(path: Path, model: str, **options: Any) -> list[Finding]:
    given: dict[str, Any] = {"max_length": 256, "max_steps": 60, **options}
    found = finetune.check("text", dataset=str(path), model=str(model), deep=True, **given)
    assert all("--" in each.mend for each in found.findings if each.suspects)
    return [each for each in found.findings if each.name not in ("lengths", "note", "cost")]


def other(label: str) -> str:
    return "bad" if label == "good" else "good"


@pytest.mark.parametrize("labels", [("good", "bad"), ("good", "bad", "odd")])
def test_nothing_is_found_in_clean_rows(
    labels: tuple[str, ...], model: str, tmp_path: Path
) -> None:
    assert checked(written(tmp_path / "rows.csv", drawn(labels=labels)), model) == []


def test_near_duplicates_are_found_with_the_row_they_resemble(model: str, tmp_path: Path) -> None:
    rows = drawn()
    more = [
        (f"{text} again", other(label) if number < 4 else label)
        for number, (text, label) in enumerate(rows[:30])
    ]
    path = written(tmp_path / "rows.csv", [*rows, *more])
    (found,) = checked(path, model)
    assert (found.name, found.severity, found.count, found.rows) == (
        "near_duplicates",
        "warning",
        30,
        1230,
    )
    assert found.message == (
        "30 of 1,230 train rows that are nearly the same as another one (4 of them with another "
        "label): lines 1202, 1203, 1204, 1205, 1206, ..."
    )
    assert found.mend == "--drop_duplicates near keeps one of each"
    assert [(each.id, each.why) for each in found.suspects][:2] == [
        (1200, "near-duplicate of id 0 of train"),
        (1201, "near-duplicate of id 1 of train"),
    ]
    assert all(0.8 <= (each.score or 0) < 1 for each in found.suspects)
    (still,) = checked(path, model, drop_duplicates="near")
    assert (still.name, still.severity) == ("near_duplicates", "info")  # it is of the file
    assert still.mend == "left out by --drop_duplicates near"


def test_rows_like_test_rows_are_found_and_what_a_score_owes_to_them(
    model: str, tmp_path: Path
) -> None:
    generator = random.Random(5)
    rows = [(text, generator.choice(["good", "bad"])) for text, _ in drawn(1400)]
    written(tmp_path / "train.csv", rows[:900])
    written(tmp_path / "validation.csv", rows[900:1000])
    alike = [(f"well {text}", label) for text, label in rows[:150]]
    twin = (f"well {rows[1000][0]}", rows[1000][1])  # of a test row, which is no matter here
    written(tmp_path / "test.csv", [*rows[1000:], *alike, twin])
    found = {each.name: each for each in checked(tmp_path, model)}
    assert {*found} == {"near_overlap", "near_duplicates", "score_of_resembling_rows", _BY_CHANCE}
    overlap, score = found["near_overlap"], found["score_of_resembling_rows"]
    assert (overlap.count, overlap.mend) == (150, "--drop_overlap near leaves them out")
    assert overlap.suspects[0].why == "near-duplicate of id 400 of test"
    assert (score.count, score.rows, score.severity) == (150, 551, "warning")
    assert score.message.endswith(")")
    assert "without the 150 that are nearly the same as a training row" in score.message
    assert score.mend == "--drop_overlap near"
    after = checked(tmp_path, model, drop_overlap="near")
    assert {(each.name, each.severity) for each in after} == {
        ("near_overlap", "info"),
        ("near_duplicates", "info"),
        (_BY_CHANCE, "info"),
    }


def test_a_word_that_tells_the_label_is_found(model: str, tmp_path: Path) -> None:
    rows = [
        (f"{text} [ref:{number}]" if label == "bad" and number % 5 else text, label)
        for number, (text, label) in enumerate(drawn())
    ]
    (found,) = checked(written(tmp_path / "rows.csv", rows), model)
    assert (found.name, found.severity) == ("revealing_words", "warning")
    assert "% of the training texts of 'bad', and 100.0% of the" in found.message
    assert found.message.count(" of the training texts of ") == 1  # "ref", "[ ref" and "]" are one
    assert "like these" in found.message


def test_a_column_that_tells_the_label_is_found(model: str, tmp_path: Path) -> None:
    generator = random.Random(2)
    rows = [
        (
            text,
            label,
            str(generator.randint(4, 5) if label == "good" else generator.randint(1, 3)),
            f"{(label == 'good') + generator.gauss(0, 0.1):.4f}",
            generator.choice(["web", "phone"]),
            f"customer {number}",
        )
        for number, (text, label) in enumerate(drawn())
    ]
    header = ("text", "label", "stars", "score", "channel", "customer")
    path = written(tmp_path / "rows.csv", rows, header)
    found = checked(path, model)
    assert [each.message.split("'")[1] for each in found] == ["stars", "score"]
    assert {(each.name, each.severity) for each in found} == {("revealing_column", "info")}
    assert all("the model does not read it" in each.message for each in found)
    read = checked(path, model, text_columns="text,channel")
    assert [each.message.split("'")[1] for each in read] == ["stars", "score"]


def test_a_column_that_is_read_and_tells_the_label_is_suspicious(
    model: str, tmp_path: Path
) -> None:
    rows = [
        (text, label, "cheerful customer" if label == "good" else "grim customer")
        for text, label in drawn()
    ]
    path = written(tmp_path / "rows.csv", rows, ("text", "label", "mood"))
    found = [
        each
        for each in checked(path, model, text_columns="text,mood")
        if each.name == "revealing_column"
    ]
    (column,) = found
    assert column.severity == "warning"
    assert column.message.startswith("the column 'mood' alone tells the label of 100.0%")
    assert column.mend == "leave it out of --text_columns, unless it is known before the label is"


def test_wrong_labels_are_found(model: str, tmp_path: Path) -> None:
    rows = drawn(3000)
    flipped = set(random.Random(4).sample(range(3000), 240))
    noisy = [
        (text, other(label) if number in flipped else label)
        for number, (text, label) in enumerate(rows)
    ]
    (found,) = checked(written(tmp_path / "rows.csv", noisy), model)
    assert (found.name, found.severity) == ("suspected_labels", "warning")
    right = [each.id in flipped for each in found.suspects]
    assert len(right) == found.count > 10
    assert sum(right) >= 0.9 * len(right)
    assert all(each.suggested == rows[each.id][1] for each in found.suspects if each.id in flipped)
    scores = [each.score or 0 for each in found.suspects]
    assert scores == sorted(scores, reverse=True)


def test_labels_that_cannot_be_checked_are_told(model: str, tmp_path: Path) -> None:
    generator = random.Random(2)
    rows = [(text, generator.choice(["good", "bad"])) for text, _ in drawn()]
    (found,) = (
        each
        for each in checked(written(tmp_path / "rows.csv", rows), model)
        if each.name == "suspected_labels"
    )
    assert found.severity == "info"
    assert found.message.startswith("the labels could not be checked: a bag of words")


FRENCH = [
    "Le film est vraiment magnifique et je le recommande à tout le monde",
    "Très mauvais service, je suis déçu et je ne reviendrai plus jamais ici",
    "La livraison est arrivée en retard et le produit était cassé",
]
ENGLISH = [
    "The film is really wonderful and I recommend it to everybody I know",
    "Very bad service, I am disappointed and will never come back here again",
    "The delivery was late and the product was broken when we opened it",
]


def spoken(rows: int, french: int, seed: int) -> list[Row]:
    generator = random.Random(seed)
    return [
        (
            f"{generator.choice(FRENCH if number < french else ENGLISH)} "
            + " ".join(str(generator.randrange(9999)) for _ in range(20)),
            generator.choice(["good", "bad"]),
        )
        for number in range(rows)
    ]


def test_languages_are_told(model: str, tmp_path: Path) -> None:
    (tmp_path / "english").mkdir()
    clean = checked(written(tmp_path / "english.csv", spoken(600, 0, 1)), model)
    assert [each.name for each in clean] == [_BY_CHANCE]
    written(tmp_path / "english" / "train.csv", spoken(600, 60, 1))
    written(tmp_path / "english" / "test.csv", spoken(200, 100, 2))
    found = checked(tmp_path / "english", model)
    one, other = (each for each in found if each.name != _BY_CHANCE)
    assert (one.name, one.severity, one.count) == ("languages", "warning", len(one.suspects))
    assert one.message.startswith(
        f"{one.count} of 540 training texts looked at are in another language than 'en': "
        f"'fr' {one.count}: lines 2, "
    )
    assert {(each.why, each.id < 60) for each in one.suspects} == {("language 'fr'", True)}
    assert (other.name, other.severity, other.count) == ("languages_of_test", "warning", 100)
    assert other.message == (
        f"50.0% of the test texts looked at, and {one.count / 540:.1%} of the training texts, are "
        "in the language 'fr'"
    )


def test_little_is_found_in_the_embedded_sentences(model: str) -> None:
    """What docs/data.md says is found where nothing is wrong."""
    found = finetune.check(
        "text", dataset="embedded:rotten-tomatoes", model=model, deep=True, max_length=128
    )
    assert found.status == 0
    counts = {each.name: each.count for each in found.findings if each.suspects}
    assert counts == {"near_duplicates": 2, "languages": 9, "suspected_labels": 15}
    assert sum(counts.values()) < 0.01 * 8530
    assert {each.name for each in found.findings} == {*counts, "lengths", "note", "cost"}
    for each in found.findings:
        if each.name == "languages":
            assert {suspect.why for suspect in each.suspects} == {"language 'es'", "language 'pt'"}


@pytest.mark.slow
def test_little_is_found_in_the_embedded_reviews(model: str) -> None:
    """Likewise; with the duplicates that the set is known to have."""
    found = finetune.check("text", dataset="embedded:imdb", model=model, deep=True, max_length=128)
    counts = {each.name: each.count for each in found.findings if each.suspects}
    assert counts == {
        "duplicates": 96,
        "control_characters": 2,
        "near_duplicates": 21,
        "suspected_labels": 5,
    }
    assert [each.name for each in found.findings if each.severity == "warning"] == ["lengths"]


def test_numbers_few_rows_and_images_are_told(model: str, tmp_path: Path) -> None:
    rows = [(text, f"{number / 7:.3f}") for number, (text, _) in enumerate(drawn(300))]
    (found,) = checked(written(tmp_path / "numbers.csv", rows), model, task="regression")
    assert "looked for near duplicates and languages only" in found.message
    few = checked(written(tmp_path / "few.csv", drawn(60)), model)
    assert [each.message for each in few if each.name == "deep"] == [
        "--deep looks at labels of 100 training rows or more; here it looked for near duplicates "
        "and languages only"
    ]
    images = finetune.check("image", embedded=True, deep=True).findings
    assert [each.message for each in images if each.name == "deep"] == [
        "--deep looks at texts, and this recipe reads none"
    ]


def test_a_class_of_a_few_rows_is_no_fault_of_it(model: str, tmp_path: Path) -> None:
    rows = [
        (text, "odd" if number in (3, 50) else "good")
        for number, (text, _) in enumerate(drawn(300))
    ]
    found = checked(written(tmp_path / "rows.csv", rows), model)
    assert {each.name for each in found if each.severity == "warning"} == {
        "imbalance", "few_rows_of_a_class", "not_in_test"
    }  # fmt: skip
    assert [each.name for each in found if each.severity == "info"] == ["suspected_labels"]


@pytest.mark.parametrize("wrong", [{"text_column": "body"}, {"metrics": "f2"}])
def test_what_is_refused_comes_first(wrong: dict[str, str], model: str, tmp_path: Path) -> None:
    found = checked(written(tmp_path / "rows.csv", drawn(200)), model, **wrong)
    assert [each.name for each in found] == ["refused", "deep"]
    assert found[1].message == "--deep looked no further: first mend what training would refuse"


def test_texts_without_words_are_no_fault_of_it(model: str, tmp_path: Path) -> None:
    rows = [("?" * (number + 1), label) for number, (_, label) in enumerate(drawn(200))]
    found = checked(written(tmp_path / "rows.csv", rows), model)
    assert {each.name for each in found} <= {"no_words"}


def test_the_command_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = drawn()
    path = written(tmp_path / "rows.csv", [*rows, *((f"{t} again", n) for t, n in rows[:30])])
    words = ["check", "text", "--dataset", str(path), "--model", str(model), "--max_length", "256"]
    assert cli.main([*words, "--max_steps", "60"]) == 0
    assert "nearly" not in capsys.readouterr().out
    assert cli.main([*words, "--max_steps", "60", "--deep", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["name"] == "near_duplicates"
    assert "--deep" not in document["command"]
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert cli.main([*words, "--deep"]) == 2
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "--deep: datasketch and py3langid are not installed; pip install 'trainer-recipes[check]'"
        in told
    )
