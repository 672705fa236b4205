"""Check and train on files with common oddities, and print how they were read.

    python benchmarks/odd_files.py                # about two minutes on two cores
    python benchmarks/odd_files.py DIRECTORY      # keep files and runs in DIRECTORY

No package has such files, so they are written here, all from the same 400 sentences of Rotten
Tomatoes, some with accents, quotation marks and commas. The rows that are read are compared with
those written; a difference ends the script with status 1.
"""

import argparse
import datetime
import sys
import tempfile
from pathlib import Path
from typing import Any

import openpyxl
import pandas as pd

import finetune
from finetune.data import embedded
from finetune.data.sources import Source

ROWS, SEED = 400, 0
#: Words that are written with accents.
ACCENTS = {"cliche": "cliché", "role": "rôle", "naive": "naïve", "fiance": "fiancé"}


def rows() -> pd.DataFrame:
    """Return the rows of all files, with the columns ``body`` and ``queue``."""
    table = embedded.read("embedded:rotten-tomatoes")["train"].to_pandas()
    sample = table.sample(ROWS, random_state=SEED).reset_index(drop=True)
    # some have dashes and quotes in Windows-1252 that were read as Latin-1
    texts = sample["text"].str.replace(
        r"[\x80-\x9f]", lambda match: match[0].encode("latin-1").decode("cp1252"), regex=True
    )
    texts = texts.replace(ACCENTS, regex=True)
    queue = sample["label"].map({0: "negative", 1: "positive"})
    return pd.DataFrame({"body": texts, "queue": queue})


def write_files(directory: Path) -> dict[str, tuple[str, pd.DataFrame]]:
    """Write the files; return what is odd about each, and its rows, by file name."""
    table = rows()
    shuffled = table.sample(frac=1, random_state=SEED)
    shuffled.to_csv(directory / "index_column.csv")
    broken = table.assign(body='"' + table["body"].str.replace(", ", ",\n", n=1) + '"')
    broken.to_csv(directory / "line_ends.csv", index=False)
    decimals = table.assign(share=[f"{n % 10},5" for n in range(len(table))])
    decimals.to_csv(directory / "semicolons.csv", index=False, sep=";")
    windows = directory / "windows_1252.csv"
    table.to_csv(windows, index=False, encoding="cp1252", lineterminator="\r\n")
    table.to_csv(directory / "utf_16.csv", index=False, sep="\t", encoding="utf-16")
    table.to_csv(directory / "compressed.tsv.gz", index=False, sep="\t")
    nulls = table.assign(queue=table["queue"].where(table.index % 20 != 7, None))
    nulls.to_json(directory / "null_labels.jsonl", orient="records", lines=True)
    book = openpyxl.Workbook()
    book.worksheets[0].title = "About"
    book.worksheets[0].append(["Tickets of 2024"])
    sheet = book.create_sheet("Tickets")
    sheet.append(["body", "queue", "date"])
    for number, row in enumerate(table.itertuples(index=False)):
        if number == ROWS // 2:
            sheet.append([])
        sheet.append([*row, datetime.date(2024, 1, 1) + datetime.timedelta(number)])
    book.save(directory / "export.xlsx")
    return {
        "index_column.csv": ("the index column of to_csv, for a shuffled frame", shuffled),
        "line_ends.csv": ("line breaks, commas and quotation marks in quoted fields", broken),
        "semicolons.csv": ("semicolons, as spreadsheets use with decimal commas", decimals),
        "windows_1252.csv": ("Windows-1252 and Windows line endings", table),
        "utf_16.csv": ("Unicode text of a spreadsheet program: UTF-16 and tabs", table),
        "export.xlsx": ("a spreadsheet with a title page, dates and an empty row", table),
        "compressed.tsv.gz": ("tabs, in gzip", table),
        "null_labels.jsonl": ("null for every twentieth label", nulls),
    }


def differs(path: Path, written: pd.DataFrame) -> bool:
    """Return whether the rows read from a file differ from those written."""
    columns = ["body", "queue"]
    read = Source(str(path)).load()["train"].to_pandas()[columns]
    expected = written[columns].reset_index(drop=True)
    return not read.astype(object).equals(expected.astype(object))


def check_and_train(path: Path, directory: Path) -> None:
    """Check a file, train on it and print the findings and notes."""
    options: dict[str, Any] = {"dataset": str(path), "model": "embedded:minilm", "max_length": 64}
    options |= {"text_column": "body", "label_column": "queue"}
    for drop_invalid in (False, True):
        options["drop_invalid"] = drop_invalid
        checked = finetune.check("text", **options)
        print(f"  check: status {checked.status}{', --drop_invalid' * drop_invalid}")
        for finding in checked.findings:
            fix = f" -> {finding.fix}" * bool(finding.fix)
            print(f"    {finding.severity:8} {finding.message}{fix}".replace(f"{path.parent}/", ""))
        if checked.status != 2:
            break
    run = finetune.train(
        "text",
        **options,
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
    with tempfile.TemporaryDirectory() as temporary:
        directory = parser.parse_args().directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        wrong = []
        files = write_files(directory)
        for name, (what, written) in files.items():
            print(f"\n{name}: {what}")
            if differs(directory / name, written):
                wrong.append(name)
            check_and_train(directory / name, directory)
    print(f"\nread as written: {len(files) - len(wrong)} of {len(files)} files", *wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
