"""A table without a line of names would lose its first row without a word."""

import subprocess
from pathlib import Path

import openpyxl
import pytest

import finetune
from finetune import TextClassification, UserError
from finetune.data import files, sources

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


def test_a_first_column_whose_name_begins_like_a_comment_is_no_comment(tmp_path: Path) -> None:
    rows = "".join(f"{number},fine {number},good\n" for number in range(9))
    (path := tmp_path / "a.csv").write_text(f"# likes received,text,label\n{rows}")
    recipe = Texts(dataset=str(path), text_column="text", label_column="label")
    recipe.load()
    assert not [each for each in recipe.notes if "first line" in each]
    path.write_text("id\n1\n2\n")
    with pytest.raises(UserError, match="no column 'text'"):
        Texts(dataset=str(path), text_column="text", label_column="label").load()


def test_it_is_told_where_columns_are_chosen(tmp_path: Path, tiny_model: str) -> None:
    (path := tmp_path / "a.csv").write_text(lines(""))
    found = finetune.check("text", dataset=str(path), model=tiny_model)
    (warning,) = (each for each in found.findings if "looks like a row" in each.message)
    assert warning.severity == "warning"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("names", "row"), [("text,label", "{},{}"), ('number,"text",label', '1,"{}",{}')]
)
def test_names_of_columns_among_the_rows_are_refused(
    names: str, row: str, mark: str, tmp_path: Path
) -> None:
    once = f"{mark}{names}\n" + "".join(row.format(*each) + "\n" for each in ROWS)
    (path := tmp_path / "a.csv").write_text(once * 3, "utf-8")
    with pytest.raises(UserError, match=r"a.csv, lines 62, 123: the names of the columns again: w"):
        Texts(dataset=str(path)).load()
    (path := tmp_path / "one.csv").write_text("text\ngood\ntext\n")  # a text may be that word
    assert sources.read(str(path))["train"]["text"][:] == ["good", "text"]
    book = openpyxl.Workbook()
    for each in (("text", "label"), ("a", "x"), ("text", "label")):
        book.worksheets[0].append(each)
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(UserError, match="sheet 'Sheet', row 3: the names of the columns again"):
        sources.read(str(tmp_path / "a.xlsx"))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt", "utf16.jsonl", "quoted.csv"])
def test_byte_order_marks_of_files_that_were_joined_are_left_out(name: str, tmp_path: Path) -> None:
    parts = {
        "a.csv": ["text,label\na,x\n", "b,y\n"],
        "quoted.csv": ["text,label\na,x\n", '"b",y\n'],
        "a.txt": ["a\n", "b\n"],
    }
    some = parts.get(name, ['{"text": "a"}\n', '{"text": "b"}\n'])
    encoding = "utf-16" if name.startswith("utf16") else "utf-8-sig"
    (path := tmp_path / name).write_bytes(b"".join(each.encode(encoding) for each in some))
    assert [row["text"] for each in files.chunks(path) for row in each.dictionaries()] == ["a", "b"]


@pytest.mark.parametrize(
    ("first", "kind"),
    [("# exported by tool 3, on 2024", "comment"), ("Tickets of 2024,", "title")],
)
def test_a_comment_or_a_title_above_the_names_is_told(
    first: str, kind: str, tmp_path: Path
) -> None:
    (path := tmp_path / "a.csv").write_text(f"{first}\n" + lines("text,label\n"))
    columns = first.split(",")
    recipe = Texts(dataset=str(path), text_column=columns[0])
    recipe.label_column = columns[1] or "Unnamed: 1"
    recipe.load()
    assert f"{columns[0]!r}, looks like a {kind}, not like names of columns" in recipe.notes[0]


def test_values_without_a_name_are_told(tmp_path: Path) -> None:
    """A comma at the end of the names, and texts with commas that stand in no quotation marks."""
    rows = "".join(f"{'ab'[n % 2]},a text {n},{' but more' * (n % 3 == 0)}\n" for n in range(30))
    (path := tmp_path / "a.csv").write_text(f"label,text,\n{rows}")
    recipe = Texts(dataset=str(path))
    recipe.load()
    assert "a column without a name has something in 10 rows" in recipe.notes[0]
    path.write_text(f"label,text,\n{rows.replace(' but more', '')}")
    recipe = Texts(dataset=str(path))
    recipe.load()
    assert not any("without a name" in each for each in recipe.notes)


def test_the_lines_that_a_form_writes_below_the_names_are_told(tmp_path: Path) -> None:
    ids = '"{""ImportId"":""QID1""}","{""ImportId"":""QID2""}"'
    below = f"Q1,Q2\nWhat is it?,How was it?\n{ids}\n"
    (path := tmp_path / "a.csv").write_text(lines(below))
    recipe = Texts(dataset=str(path), text_column="Q1", label_column="Q2", task="single_label")
    recipe.load()
    assert "below the names are the questions and ImportIds of a form" in recipe.notes[0]
    assert recipe.remarks_of_source == recipe.notes[:1]


@pytest.mark.parametrize("first", ["# exported by tool 3", "Tickets; all of 2024"])
def test_a_first_line_of_one_field_may_be_a_title(first: str, tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text(f"{first}\n" + lines("text,label\n"))
    with pytest.raises(UserError, match=f"or if the first line, '{first}', is a title or a comme"):
        sources.read(str(path))
    book = openpyxl.Workbook()
    for each in ((first,), ("text", "label"), ("a", "x")):
        book.worksheets[0].append(each)
    book.save(path := tmp_path / "a.xlsx")
    with pytest.raises(UserError, match=f"is the first row, '{first}', a title[?]"):
        sources.read(str(path))


@pytest.mark.parametrize("name", ["a.csv", "it's a.csv"])
def test_quotation_marks_behind_a_backslash_are_refused(name: str, tmp_path: Path) -> None:
    (path := tmp_path / name).write_text('text,label\n"a, b",x\n"say \\"hi\\", twice",y\n')
    with pytest.raises(UserError, match=r"a.csv, line 3: quotation marks inside of texts are") as e:
        sources.read(str(path))
    command = str(e.value).partition("convert it: ")[2]
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    assert sources.read(str(tmp_path / "NEW.csv"))["train"]["text"][:] == [
        "a, b",
        'say "hi", twice',
    ]
    path.write_text('text,label\n"C:\\dir\\",x\n"b",y\n')
    assert sources.read(str(path))["train"]["text"][:] == ["C:\\dir\\", "b"]
