"""Files as people have them, each checked and trained on: how it was read is printed.

    python benchmarks/odd_files.py                # about two minutes on two cores
    python benchmarks/odd_files.py DIRECTORY      # keeps files and runs there

No such files are published in a package, so they are written here, from the same 400 sentences of
Rotten Tomatoes, some of them with accents, quotation marks and commas. What is read is compared
with what was written: a difference ends the script with status 1.
"""

import argparse
import datetime
import gzip
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pandas as pd

import finetune
from finetune.data import embedded
from finetune.data.sources import Source

ROWS, SEED = 400, 0
#: Words of the sentences that are written with accents.
ACCENTS = {"cliche": "cliché", "role": "rôle", "naive": "naïve", "fiance": "fiancé"}


def rows() -> pd.DataFrame:
    """Return the rows that every file holds: ``body``, of several lines in part, and ``queue``."""
    table = embedded.read("embedded:rotten-tomatoes")["train"].to_pandas()
    some = table.sample(ROWS, random_state=SEED).reset_index(drop=True)
    # some have dashes and quotes of Windows-1252 that were read as Latin-1
    texts = some["text"].str.replace(
        r"[\x80-\x9f]", lambda found: found[0].encode("latin-1").decode("cp1252"), regex=True
    )
    texts = texts.replace(ACCENTS, regex=True)
    queue = some["label"].map({0: "negative", 1: "positive"})
    return pd.DataFrame({"body": texts, "queue": queue})


def index_column(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Write the index of a shuffled frame, as ``to_csv`` writes it."""
    shuffled = table.sample(frac=1, random_state=SEED)
    shuffled.to_csv(path / "index_column.csv")
    return shuffled


def line_ends(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Write line ends, commas and quotation marks within quoted fields."""
    table = table.assign(body='"' + table["body"].str.replace(", ", ",\n", n=1) + '"')
    table.to_csv(path / "line_ends.csv", index=False)
    return table


def semicolons(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Write semicolons, as spreadsheets do in countries of decimal commas."""
    table = table.assign(share=[f"{n % 10},5" for n in range(len(table))])
    table.to_csv(path / "semicolons.csv", index=False, sep=";")
    return table


def windows_1252(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Write the encoding of Windows, and its line ends."""
    file = path / "windows_1252.csv"
    table.to_csv(file, index=False, encoding="cp1252", lineterminator="\r\n")
    return table


def utf_16(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Write the Unicode text of a spreadsheet: UTF-16 with a byte order mark, and tabs."""
    table.to_csv(path / "utf_16.csv", index=False, sep="\t", encoding="utf-16")
    return table


def export(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Write a spreadsheet with a title page, dates and an empty row."""
    book = openpyxl.Workbook()
    book.worksheets[0].title = "About"
    book.worksheets[0].append(["Tickets of 2024"])
    sheet = book.create_sheet("Tickets")
    sheet.append(["body", "queue", "date"])
    for number, row in enumerate(table.itertuples(index=False)):
        if number == ROWS // 2:
            sheet.append([])
        sheet.append([*row, datetime.date(2024, 1, 1) + datetime.timedelta(number)])
    book.save(path / "export.xlsx")
    return table


def compressed(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Write tabs, in gzip."""
    content = table.to_csv(index=False, sep="\t")
    (path / "compressed.tsv.gz").write_bytes(gzip.compress(content.encode()))
    return table


def null_labels(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Write null for every twentieth label."""
    table = table.assign(queue=table["queue"].where(table.index % 20 != 7, None))
    table.to_json(path / "null_labels.jsonl", orient="records", lines=True)
    return table


FILES: dict[str, Callable[[Path, pd.DataFrame], pd.DataFrame]] = {
    "index_column.csv": index_column,
    "line_ends.csv": line_ends,
    "semicolons.csv": semicolons,
    "windows_1252.csv": windows_1252,
    "utf_16.csv": utf_16,
    "export.xlsx": export,
    "compressed.tsv.gz": compressed,
    "null_labels.jsonl": null_labels,
}


def differs(path: Path, written: pd.DataFrame) -> bool:
    """Return whether what is read of a file is not what was written."""
    columns = ["body", "queue"]
    found = Source(str(path)).load()["train"].to_pandas()[columns]
    expected = written[columns].reset_index(drop=True)
    return not found.astype(object).equals(expected.astype(object))


def looked_at(path: Path, directory: Path) -> None:
    """Check a file, train on it and print what is said of it."""
    given: dict[str, Any] = {"dataset": str(path), "model": "embedded:minilm", "max_length": 64}
    given |= {"text_column": "body", "label_column": "queue"}
    for drop_invalid in (False, True):
        given["drop_invalid"] = drop_invalid
        found = finetune.check("text", **given)
        print(f"  check: status {found.status}{', --drop_invalid' * drop_invalid}")
        for each in found.findings:
            fix = f" -> {each.fix}" * bool(each.fix)
            print(f"    {each.severity:8} {each.message}{fix}".replace(f"{path.parent}/", ""))
        if found.status != 2:
            break
    run = finetune.train(
        "text",
        **given,
        max_steps=20,
        global_batch_size=16,
        baseline=False,
        output_dir=str(directory / f"run of {path.name}"),
        disable_tqdm=True,
    )
    counts = ", ".join(f"{split} {count}" for split, count in run.manifest.data.rows.items())
    print(f"  trained 20 steps; rows: {counts}")
    for note in run.manifest.data.notes:
        print(f"    {note}".replace(f"{path.parent}/", ""))


def main() -> int:
    """Write the files, check and train on each; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, nargs="?")
    with tempfile.TemporaryDirectory() as own:
        directory = parser.parse_args().directory or Path(own)
        directory.mkdir(parents=True, exist_ok=True)
        wrong = []
        for name, write in FILES.items():
            written = write(directory, rows())
            print(f"\n{name}: {(write.__doc__ or '')[6:].partition('.')[0]}")
            if differs(directory / name, written):
                wrong.append(name)
            looked_at(directory / name, directory)
    print(f"\nread as written: {len(FILES) - len(wrong)} of {len(FILES)} files", *wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
