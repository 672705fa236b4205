"""Files as people have them: each is read and checked, and what is found in it is printed.

    python benchmarks/bench.py odd-files

They are written here, from the same 400 sentences of Rotten Tomatoes, some of them with accents,
quotation marks and commas, and what is read is compared with what was written.
"""

import datetime
import gzip
import tempfile
from pathlib import Path
from typing import Any

ROWS, SEED = 400, 0
#: Words of the sentences that are written with accents.
ACCENTS = {"cliche": "cliché", "role": "rôle", "naive": "naïve", "fiance": "fiancé"}


def measure(rounds: int, other: Path | None) -> list[dict[str, Any]]:
    """Return a line for each file, read once."""
    with tempfile.TemporaryDirectory() as directory:
        return [look_at(file, table) for file, table in write(Path(directory)).items()]


def write(directory: Path) -> dict[Path, Any]:
    """Write the files; return the rows of each, ``body`` and ``queue``, in their order."""
    import openpyxl
    import pandas as pd

    from finetune.data import embedded

    table = embedded.read("embedded:rotten-tomatoes")["train"].to_pandas()
    table = table.sample(ROWS, random_state=SEED).reset_index(drop=True)
    # some have dashes and quotes of Windows-1252 that were read as Latin-1
    texts = table["text"].str.replace(
        r"[\x80-\x9f]", lambda match: match[0].encode("latin-1").decode("cp1252"), regex=True
    )
    queue = table["label"].map({0: "negative", 1: "positive"})
    table = pd.DataFrame({"body": texts.replace(ACCENTS, regex=True), "queue": queue})
    files: dict[Path, Any] = {}

    def add(name: str, rows: Any = table) -> Path:
        files[directory / name] = rows[["body", "queue"]].reset_index(drop=True)
        return directory / name

    shuffled = table.sample(frac=1, random_state=SEED)
    shuffled.to_csv(add("index_column.csv", shuffled))
    quoted = table.assign(body='"' + table["body"].str.replace(", ", ",\n", n=1) + '"')
    quoted.to_csv(add("line_ends.csv", quoted), index=False)
    decimal = table.assign(share=[f"{n % 10},5" for n in range(ROWS)])
    decimal.to_csv(add("semicolons.csv"), index=False, sep=";")
    table.to_csv(add("windows_1252.csv"), index=False, encoding="cp1252", lineterminator="\r\n")
    table.to_csv(add("utf_16.csv"), index=False, sep="\t", encoding="utf-16")
    add("compressed.tsv.gz").write_bytes(
        gzip.compress(table.to_csv(index=False, sep="\t").encode())
    )
    without = table.assign(queue=table["queue"].where(table.index % 20 != 7, None))
    without.to_json(add("null_labels.jsonl", without), orient="records", lines=True)
    book = openpyxl.Workbook()
    sheet = book.worksheets[0]
    sheet.append(["body", "queue", "date"])
    for number, row in enumerate(table.itertuples(index=False)):
        if number == ROWS // 2:
            sheet.append([])
        sheet.append([*row, datetime.date(2024, 1, 1) + datetime.timedelta(number)])
    book.save(add("empty_row.xlsx"))
    return files


def look_at(file: Path, written: Any) -> dict[str, Any]:
    """Read and check a file, and print what is found in it."""
    import finetune

    options: dict[str, Any] = {"dataset": str(file), "model": "embedded:minilm", "max_length": 64}
    options |= {"text_column": "body", "label_column": "queue"}
    found = finetune.TextRecipe(**options).read()["train"].to_pandas()[["body", "queue"]]
    print(f"\n{file.name}")
    status = []
    for drop_invalid in (False, True):
        check = finetune.check("text", drop_invalid=drop_invalid, **options)
        status.append(str(check.status))
        for finding in check.findings:
            print(f"    {finding.severity:8} {finding.message.replace(f'{file.parent}/', '')}")
        if check.status != 2:
            break
    columns = (written.astype(object), found.astype(object))
    same = len(written) == len(found) and (columns[0].fillna("") == columns[1].fillna("")).all(1)
    return {
        "case": "odd files",
        "way": file.name,
        "rows that differ": ROWS - int(getattr(same, "sum", lambda: 0)()),
        "check": ", then ".join(status),
    }
