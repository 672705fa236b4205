"""How a file of text is written is found out: compression, encoding, separator."""

import bz2
import gzip
import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import finetune
from finetune import cli
from finetune.data import conversion, delimited, files, layout, positions, sources
from finetune.data.layout import ReadOptions
from finetune.errors import UserError
from finetune.recipe import catalog
from finetune.runtime import formats, hub

TEXT = 'text,label\n"a, ""b""\nc",good\nnaïve café – ½,bad\n,good\n'  # noqa: RUF001
ROWS = [
    {"text": 'a, "b"\nc', "label": "good"},
    {"text": "naïve café – ½", "label": "bad"},  # noqa: RUF001
    {"text": None, "label": "good"},
]


def zipped(content: bytes, name: str = "tickets.csv") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
    ".zip": zipped,
}


def read(
    path: Path, options: ReadOptions | None = None
) -> tuple[list[dict[str, object]], list[str]]:
    notes: list[str] = []
    rows = sources.read(str(path), options=options, note=notes.append)["train"]
    return rows.remove_columns("id").to_list(), notes


def test_every_compression_is_tested() -> None:
    assert tuple(COMPRESSED) == formats.COMPRESSIONS


@pytest.mark.parametrize("name", ["tickets.csv", "TICKETS.CSV"])
@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_compressed_file_has_the_rows_it_holds(suffix: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}{suffix if name.islower() else suffix.upper()}"
    path.write_bytes(COMPRESSED[suffix](TEXT.encode()))
    found, notes = read(path)
    assert found == ROWS
    assert notes == ["tickets.csv" in path.name.lower() and notes[0]]  # the line break in quotes
    assert positions.places(str(path), "train", [1, 2]) == "lines 4, 5"
    assert not hub.names_repository(path.name)


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_compressed_file_that_is_cut_off_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    content = COMPRESSED[suffix]("".join(f'{{"text": "row {n}"}}\n' for n in range(5000)).encode())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"a\.jsonl\.\w+ is damaged or cut off: .*; copy or down"):
        read(path)


def test_a_directory_has_splits_in_any_format(tmp_path: Path) -> None:
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "test.json").write_text('[{"text": "x", "label": "good"}]')
    assert {split: len(rows) for split, rows in sources.read(str(tmp_path)).items()} == {
        "train": 3,
        "test": 1,
    }


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", None),
        ("utf-8-sig", None),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16-le"),
        ("utf-16-be", "utf-16-be"),
        ("utf-32", "utf-32"),
        ("cp1252", "cp1252"),
    ],
)
def test_the_encoding_is_found(encoding: str, shown: str | None, tmp_path: Path) -> None:
    path = tmp_path / "tickets.csv"
    path.write_bytes(TEXT.encode(encoding))
    found, notes = read(path)
    assert found == ROWS
    assert [f"read as {shown}, as in 'naïve' (--encoding)" in each for each in notes] == [
        shown is not None
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("– the café is fine", "café"),  # noqa: RUF001
        ("a – b", "–"),  # noqa: RUF001
        ("x" * 200_000 + " é", "é"),
        ("x" * 50 + "é" + "y" * 50, "x" * 20 + "é" + "y" * 20),
        ("plain", None),
    ],
)
def test_the_encoding_is_shown_by_a_word(text: str, shown: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode("utf-16"))
    _, told = layout.detected(tmp_path / "a.txt", ReadOptions())
    assert told == f"a.txt: read as utf-16{f', as in {shown!r}' if shown else ''} (--encoding)"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1251", "Отличный фильм всем советую посмотреть его ещё раз"),  # noqa: RUF001
        ("shift_jis", "とても良い映画でした。もう一度見たいと思います。"),
        ("gb18030", "这部电影非常好看，我还想再看一遍。"),  # noqa: RUF001
    ],
)
def test_other_alphabets_are_read_or_can_be_named(encoding: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "tickets.csv"
    path.write_bytes(("text,label\n" + f"{text},good\n" * 20).encode(encoding))
    found, _ = read(path, ReadOptions(encoding=encoding))
    assert {row["text"] for row in found} == {text}
    guessed, notes = read(path)
    assert "(--encoding)" in notes[0]  # whatever was guessed is told, with a word
    if encoding in ("cp1251", "gb18030"):
        assert {row["text"] for row in guessed} == {text}


def test_an_encoding_that_is_said_is_used(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\nŁódź,good\n".encode("cp1250"))
    assert read(path, ReadOptions(encoding="cp1250"))[0][0]["text"] == "Łódź"
    with pytest.raises(UserError, match="--encoding utf9: not known; did you mean 'utf-8'"):
        read(path, ReadOptions(encoding="utf9"))
    with pytest.raises(UserError, match=r"a.csv is not utf-8 throughout: .*line 2, byte 0xa3"):
        read(path, ReadOptions(encoding="utf-8"))


@pytest.mark.parametrize(
    ("encoding", "line"),
    [
        ("cp1252", "le café était froid; déçu à côté"),
        ("cp1252", "schöne Grüße aus Köln, für 5 €"),
        ("cp1252", "don’t – it’s “fine”"),  # noqa: RUF001
        ("cp1250", "Łódź jest piękna, a książka była świetna i ciekawa"),
        ("latin-1", "ça va très bien"),
    ],
)
@pytest.mark.parametrize("lines", [1, 50])
def test_western_text_is_told_from_central_european(
    encoding: str, line: str, lines: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(f"{line}\n".encode(encoding) * lines)
    found, _ = layout.detected(path, ReadOptions())
    assert path.read_bytes().decode(found.encoding) == f"{line}\n" * lines


WESTERN = "le café nº {} était déçu, dommage pour l’été à côté\n"  # noqa: RUF001


@pytest.mark.parametrize("plain", [0, 30_000])  # beyond the beginning by which a file is judged
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize(
    ("first", "second", "lines"),
    [("utf-8", "cp1252", (1, 41)), ("cp1252", "utf-8", (41, 1)), ("cp1251", "utf-8", (41, 1))],
)
def test_a_file_of_two_encodings_is_refused(
    first: str, second: str, lines: tuple[int, int], suffix: str, plain: int, tmp_path: Path
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    text = "Отличный фильм {}, всем советую\n" if "cp1251" in (first, second) else WESTERN
    rows = [text.format(n) for n in range(40)]
    ascii_rows = b"a plain text of some forty characters\n" * plain
    parts = ["".join(rows).encode(first), ascii_rows, "".join(rows).encode(second)]
    if "cp1251" in (first, second):  # or nothing would show another alphabet
        parts = [parts[0], b"", parts[2]]
    content = b"".join(parts)
    path.write_bytes(COMPRESSED[suffix](content) if suffix else content)
    is_utf8, is_not = (line + (plain if line > 1 and parts[1] else 0) for line in lines)
    with pytest.raises(UserError) as refused:
        [*files.chunks(path)]
    message = str(refused.value)
    assert f"is not utf-8 throughout: line {is_utf8} is ('" in message
    assert f"line {is_not} is not (byte 0x" in message
    assert "--encoding NAME" in message


@pytest.mark.parametrize(
    "odd",
    ["cafÃ©", "LE CAFÉ\xa0!", "Spaß…"],  # UTF-8 that was misread before; UTF-8 by chance
)
def test_a_few_lines_that_are_utf8_too_are_no_other_encoding(odd: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    content = "".join(WESTERN.format(n) for n in range(40)) + f"{odd}\n" * (
        1 + 9 * ("Ã" not in odd)
    )
    path.write_bytes(content.encode("cp1252"))
    assert layout.detected(path, ReadOptions())[0].encoding == "cp1252"


@pytest.mark.parametrize(
    ("content", "separator"),
    [
        ("text;label\na, b;good\nc;bad\n", ";"),
        ('text;label\n"a; b";good\nc;bad\n', ";"),
        ("text|label\na|good\n", "|"),
        ("text\tlabel\na\tgood\n", "\t"),
        ("text,label\na;b,good\n", ","),
        ("text\na; b\nc; d\n", ","),  # a header of one column
        ("a;b\nx;y;z\nx\n", ","),  # not in every row
        ("one, two\nthree; four\n", ","),
        ('"text, long";label\na, b, c;good\nd;bad\n', ";"),
        ("text, long;label\na, b, c;good\nd;bad\n", ";"),
        ("text, long\tlabel\na\tgood\nb, c, d\tbad\n", "\t"),
        ("text,label;x\na,b;c\n", ","),  # as many with either
        ("text,label\na,b,c\nd,e\n", ","),  # uneven, and no other is even
    ],
)
def test_the_separator_is_found(content: str, separator: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    found, told = layout.detected(path, ReadOptions())
    assert found.separator == separator
    assert ("(--csv_separator)" in told) == (separator != ",")


@pytest.mark.parametrize("separator", ["^", "~", ":", "¦"])
def test_an_unusual_separator_is_hinted_at(separator: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"text{separator}label\na{separator}good\nb c d e{separator}bad\n")
    found, told = layout.detected(path, ReadOptions())
    assert found.separator == ","
    hint = f"--csv_separator '{separator}'"
    assert told == f"a.csv: one column, but every row has as many {separator!r}: {hint}?"
    recipe = catalog.find("yelp")(dataset=str(path))
    with pytest.raises(
        UserError, match=re.escape(f"fields are separated by '{separator}': {hint}")
    ):
        recipe.load()
    assert read(path, ReadOptions(separator=separator))[0][0] == {"text": "a", "label": "good"}


def test_a_sentence_with_a_colon_is_no_hint(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("note: a text\nfirst\nsecond: one\n")
    assert layout.detected(tmp_path / "a.csv", ReadOptions())[1] == ""


@pytest.mark.parametrize(
    ("row", "mend"),
    [
        ("a, b,good", "found 3: put a text that holds commas in quotation marks"),
        ("a", "found 1: is the line cut off, or a line break in a text without quotation marks"),
    ],
)
def test_another_number_of_fields_is_refused_with_an_edit(
    row: str, mend: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(f"text,label\nb,good\n{row}\n")
    with pytest.raises(UserError) as refused:
        read(tmp_path / "a.csv")
    assert f"line 3: expected 2 fields as in the first line, {mend}" in str(refused.value)


def test_a_field_beyond_the_limit_is_refused_with_both_causes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "_LONGEST_FIELD", 1000)
    (tmp_path / "a.csv").write_text(f"text,label\nx,good\n{'x' * 1001},good\n")
    with pytest.raises(UserError) as refused:
        read(tmp_path / "a.csv")
    message = str(refused.value)
    assert "a.csv, line 3: a field of more than 1,000 characters: if a quotation mark is" in message
    assert "shorten it, or write the rows as .jsonl or .parquet" in message


@pytest.mark.parametrize(("typed", "separator"), [("tab", "\t"), ("\\t", "\t"), (";", ";")])
def test_a_separator_that_is_said_is_used(typed: str, separator: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"text{separator}label\na,b{separator}good\nc{separator}bad\n")
    found, notes = read(path, ReadOptions(separator=typed))
    assert found[0] == {"text": "a,b", "label": "good"}
    assert notes == []


@pytest.mark.parametrize(
    ("options", "name", "message"),
    [
        (ReadOptions(separator="::"), "a.csv", "--csv_separator ::: expected one character"),
        (ReadOptions(separator=";"), "a.jsonl", "--csv_separator ;: .* is not a .csv or .tsv file"),
        (ReadOptions(encoding="cp1252"), "a.parquet", "--encoding cp1252: .* not a file of text"),
    ],
)
def test_options_that_cannot_be_are_refused(
    options: ReadOptions, name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("text,label\na,b\n")
    with pytest.raises(UserError, match=message):
        files.inspected(tmp_path / name, options)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("ascii", r"is not ascii throughout: .* \(line 3, byte 0xc3\); .* such as utf-8"),
        ("utf-16", "UTF-16 stream does not start with BOM"),
        ("utf-16-le", "is not utf-16-le throughout"),
        ("shift_jis", r"is not shift-jis throughout: .* \(line 3, byte"),
    ],
)
def test_another_encoding_than_the_file_has_is_refused(
    named: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\nplain,good\nnaïve \N{SNOWMAN},bad\n", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read(path, ReadOptions(encoding=named))
    with pytest.raises(UserError, match=message):
        [*files.chunks(path, layout=files.inspected(path, ReadOptions(encoding=named))[0])]


def test_half_a_character_in_a_document_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(r'[{"text": "whole \ud83d\ude00"}, {"text": "half \ud83d"}]')
    with pytest.raises(UserError, match=r"a\.json, row 2: \\ud83d is half of a character"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": "b\0c"}\n', ", line 2: a null byte (character 12), w"),
        (
            "a.jsonl",
            '{"text": "b\tc"}\n',
            ", line 1: '\\t' in a text (character 12): write it as \\t",
        ),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": "b\n',
            ", line 2: a text has no closing quotation mark",
        ),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', ", line 2: ends before a value"),
        ("a.jsonl", '{"text": "a"}{"text": "b"}\n', ", line 1: more than one value (character 14)"),
        ("a.json", '[{"text": "a"}, {"text": "b', ", line 1: a text has no closing quotation mark"),
        ("a.json", '[{"text": "a\0"}]', ", line 1: a null byte (character 13), which is no text"),
        ("a.json", "", " holds no rows"),
        ("a.json", " \n", " holds no rows"),
    ],
)
def test_broken_json_is_explained(name: str, content: str, message: str, tmp_path: Path) -> None:
    (path := tmp_path / name).write_text(content)
    with pytest.raises(UserError) as refused:
        read(path)
    assert f"{path}{message}" in str(refused.value)


def test_pandas_split_documents_are_tables(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": ["a", "b", "c"], "label": ["x", "y", "x"], "n": [1, 2, 3]})
    frame.to_json(tmp_path / "a.json", orient="split")  # as many columns as rows
    assert read(tmp_path / "a.json")[0] == frame.to_dict("records")


def test_columns_of_json_are_joined_by_their_keys(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        '{"text": {"1": "a", "2": "b"}, "label": {"2": "y", "1": "x"}}'
    )
    assert read(tmp_path / "a.json")[0] == [
        {"text": "a", "label": "x"},
        {"text": "b", "label": "y"},
    ]


def test_a_stream_of_arrow_is_read_like_a_file_of_it(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"], "label": ["x", "y"]})
    for name, writer in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
        path = tmp_path / f"{name}.arrow"
        with writer(str(path), table.schema) as out:
            out.write_table(table)
        assert [row["text"] for row in read(path)[0]] == ["a", "b"]


def test_archives_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", TEXT)
        archive.writestr("b.csv", TEXT)
    with pytest.raises(UserError, match=r"expected an archive of one file, found a.csv, b.csv"):
        read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__MACOSX/._a.csv", "x")
        archive.writestr("a.csv", TEXT)
    assert read(path)[0] == ROWS


@pytest.mark.parametrize(
    ("name", "hint"),
    [("data/b.jsonl", r"rename it to a\.jsonl\.zip"), ("b.xlsx", "unzip it")],
)
def test_an_archive_of_another_format_is_refused(name: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv.zip"
    path.write_bytes(zipped(b'{"text": "x"}\n', name))
    with pytest.raises(UserError, match=rf"a\.csv\.zip holds {name}: {hint}"):
        read(path)


def claiming(size: int) -> bytes:
    """An archive that says of its file that it has this size."""
    content = bytearray(zipped(TEXT.encode()))
    directory = content.index(b"PK\x01\x02")
    name = content.index(b"tickets.csv", directory)
    extra = b"\x01\x00\x08\x00" + size.to_bytes(8, "little")  # in ZIP64
    content[directory + 24 : directory + 28] = b"\xff" * 4
    content[directory + 30 : directory + 32] = len(extra).to_bytes(2, "little")
    end = content.index(b"PK\x05\x06")
    length = int.from_bytes(content[end + 12 : end + 16], "little") + len(extra)
    content[end + 12 : end + 16] = length.to_bytes(4, "little")
    content[name + 11 : name + 11] = extra
    return bytes(content)


def test_an_archive_that_would_fill_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv.zip"
    path.write_bytes(claiming(100 * 2**30))
    with pytest.raises(
        UserError, match=r"to 100\.0 GiB, [\d,]+ times its size, which no text does"
    ):
        read(path)
    monkeypatch.setattr(layout, "_LARGEST_RATIO", 10**15)  # also one of a usual ratio
    path.write_bytes(claiming(100 * 2**40))
    with pytest.raises(UserError, match=r"would unpack to 102,400.0 GiB, and the disk of .* has"):
        read(path)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.zst"])
def test_rows_that_would_fill_the_disk_are_refused_and_removed(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = ("text,label\n" + "the soup was cold,bad\n" * 3000).encode()
    path, cache = tmp_path / f"a{suffix}", tmp_path / "cache"
    path.write_bytes(COMPRESSED[path.suffix](content) if path.suffix in COMPRESSED else content)
    monkeypatch.setattr(conversion.caches, "place", lambda kind, name: cache / kind / name)
    free = iter([2**31, 2**20])
    usage = lambda directory: (2**40, 0, next(free))  # noqa: E731
    monkeypatch.setattr(conversion.shutil, "disk_usage", usage)
    monkeypatch.setattr(conversion, "_FEW", 1000)
    with pytest.raises(
        UserError, match=r"more than fits on the disk of .*cache: 0.0 GiB of rows"
    ) as refused:
        read(path)
    assert ("unpacks to" in str(refused.value)) == (suffix != ".csv")
    assert len(refused.value.mistakes) == 1
    assert not [each for each in cache.rglob("*") if each.is_file()]


@pytest.mark.trains
@pytest.mark.usefixtures("one_thread")
def test_one_export_goes_all_the_way(tmp_path: Path, tiny_model: str) -> None:
    """The export of a spreadsheet: semicolons, Windows-1252, zipped."""
    rows = [f"le café nº {n} était {'bon' if n % 2 else 'froid'};{n % 2}" for n in range(80)]
    rows[3] = rows[3].replace("café", "cafÃ©")
    path = tmp_path / "export.csv.zip"
    path.write_bytes(zipped("\r\n".join(["texte;avis", *rows]).encode("cp1252")))
    words = ["--dataset", str(path), "--model", tiny_model, "--max_steps", "2"]
    columns = ["--text_column", "texte", "--label_column", "avis", "--task", "single_label"]
    output = str(tmp_path / "run")
    assert cli.main(["text", *words, *columns, "--output_dir", output, "--no_baseline"]) == 0
    run = finetune.Run.load(output)
    assert any("cp1252, as in 'café' (--encoding), fields separated by semicolons" in each
               for each in run.manifest.data.notes)  # fmt: skip
    (found,) = (each for each in run.manifest.data.findings if each["name"] == "mojibake")
    assert (found["count"], found["severity"]) == (1, "warning")
    assert found["message"].endswith("line 5")
    assert finetune.evaluate(run, path, text_column="texte", label_column="avis").rows == 80
    predicted = tmp_path / "out.jsonl"
    done = finetune.predict_file(run, path, predicted, text_column="texte")
    assert done.rows == 80
    (first, *_) = (row for chunk in files.chunks(predicted) for row in chunk.dictionaries())
    assert first["texte"] == "le café nº 0 était froid"
