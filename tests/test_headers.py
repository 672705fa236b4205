"""A table without a line of names would lose its first row without a word."""

from pathlib import Path

import pytest

import finetune
from finetune import TextClassification, UserError
from finetune.recipe import catalog

ROWS = [(f"the soup of visit {n} was {'good' if n % 3 else 'cold'}", n % 3) for n in range(60)]


class Texts(TextClassification):
    """Of a file."""

    dataset: str = ""


def lines(first: str, separator: str = ",", labels: tuple[str, ...] = ("bad", "good", "ok")) -> str:
    return first + "".join(f"{text}{separator}{labels[label]}\n" for text, label in ROWS)


@pytest.mark.parametrize(
    ("name", "content", "columns", "why"),
    [
        ("a.csv", lines(""), (ROWS[0][0], "bad"), "('bad' is both the name of a column and a "),
        ("a.csv", lines("", ";"), (ROWS[0][0], "bad"), "add a line 'text;label' on top"),
        ("a.tsv", lines("", "\t"), (ROWS[0][0], "bad"), "add a line 'text\\tlabel' on top"),
        ("a.csv", lines(f"{'long ' * 20}!,rare\n"), (f"{'long ' * 20}!", "rare"), "a column is"),
        ("a.csv", lines(f"{ROWS[3][0]},rare\n"), (ROWS[3][0], "rare"), "and a text in it"),
        ("a.csv", lines("", labels=("1.5", "2", "3")), (ROWS[0][0], "1.5"), "'1.5' is both the"),
        ("a.csv", lines("one soup here,2.5\n", labels=("1.5", "2", "3")), ("one soup here", "2.5"),
         "columns are called 'one soup here' and '2.5'"),
    ],
)  # fmt: skip
def test_a_first_line_that_is_a_row_is_told(
    name: str, content: str, columns: tuple[str, str], why: str, tmp_path: Path
) -> None:
    (path := tmp_path / name).write_text(content)
    recipe = Texts(dataset=str(path), text_column=columns[0], label_column=columns[1])
    recipe.load()
    (told,) = (each for each in recipe.notes if "first line" in each)
    assert told.startswith(f"{name}: the first line looks like a row, not like names of columns (")
    assert why in told


@pytest.mark.parametrize(
    ("header", "labels"),
    [
        ("text,label", ("bad", "good", "ok")),
        (
            "What did you like about the service that you got this year?,good or bad",
            ("1", "2", "3"),
        ),
        ("0,1", ("0", "1", "2")),
        ("body,stars", ("1", "2", "3")),
        ("label text,is spam", ("yes", "no", "spam")),
    ],
)
def test_names_of_columns_are_no_row(header: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text(lines(f"{header}\n", labels=labels))
    text, _, label = header.partition(",")
    recipe = Texts(dataset=str(path), text_column=text, label_column=label)
    recipe.load()
    assert not [each for each in recipe.notes if "first line" in each]


def test_it_is_told_where_columns_are_chosen_or_missing(tmp_path: Path, tiny_model: str) -> None:
    (path := tmp_path / "a.csv").write_text(lines(""))
    found = finetune.check("text", dataset=str(path), model=tiny_model)
    (warning,) = (each for each in found.findings if "looks like a row" in each.message)
    assert warning.severity == "warning"
    with pytest.raises(UserError, match="'bad' is a value of the column of that name, too: is the"):
        catalog.find("yelp")(dataset=str(path)).load()


def test_names_of_columns_among_the_rows_are_told(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text(lines("text,label\n") + lines("text,label\n"))
    recipe = Texts(dataset=str(path))
    recipe.load()
    assert (
        "a.csv: the names of the columns are 1 row, too: were files joined with" in recipe.notes[0]
    )
