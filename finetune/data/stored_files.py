"""Tell files of rows from files that lie beside them, such as those of an earlier save.

``Dataset.save_to_disk`` and the logs of table formats list the files that count; a reader of all
files would also read old rows and cached copies.
"""

import functools
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from finetune.errors import UserError
from finetune.runtime import formats

#: Files without rows that ``datasets`` writes.
METADATA = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
#: Folders of rows that were not committed, and of attributes of files.
_NOT_DATA = ("_temporary", "__MACOSX")
#: Logs of tables that also keep the files of old rows: of Delta Lake, Hudi, Iceberg and Spark.
_LOGS = ("_delta_log", ".hoodie", "metadata/*.metadata.json", "_spark_metadata")
#: The number of a shard, the number of all shards, and the hash that old versions of the Hub added.
_SHARD = re.compile(r"(.*?)(\d+)[-_]of[-_](\d+)(?:-[0-9a-f]{16})?$")
#: The missing value in the name of a folder.
_NULL = "__HIVE_DEFAULT_PARTITION__"
#: The beginning of a file of Git LFS that stands for one that was not downloaded.
_POINTER = b"version https://git-lfs.github.com/spec/v1"


def sorted_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files among paths, 2 sorted before 10.

    Raises:
        UserError: If a file or folder cannot be read, such as a link to one that is gone.
    """
    files = []
    for path in paths:
        if not os.access(path, os.R_OK):
            reason = "it is a link to a missing file" if path.is_symlink() else "permission denied"
            raise UserError(f"{path} cannot be read, {reason}: restore or remove it")
        if path.is_file():
            files.append(path)
    return sorted(files, key=lambda path: re.sub(r"\d+", lambda n: n[0].zfill(20), str(path)))


def select_data(root: Path, paths: Sequence[Path]) -> list[Path]:
    """Return the paths below ``root`` that may be data.

    Raises:
        UserError: If a listed file is missing, or for a table format whose log is not read.
    """
    for log in _LOGS:
        if found := sorted(root.glob(log)):
            raise UserError(
                f"{found[0]}: {root} also has the files of old rows, and this log of them is not "
                "read: write the table as Parquet files into another folder"
            )
    is_listed = _listed()
    return [
        path
        for path in paths
        if is_listed(path)
        and not path.name.startswith("~$")  # the lock of an open workbook
        and not set(_NOT_DATA).intersection(path.relative_to(root).parts)
    ]


def _listed() -> Callable[[Path], bool]:
    """Return a function that tells whether ``load_from_disk`` reads a file, True for others."""

    @functools.cache
    def read(path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    @functools.cache
    def names_in(folder: Path) -> set[str] | None:
        state = read(folder / "state.json")
        if "_data_files" not in state:
            return None
        names = {file["filename"] for file in state["_data_files"]}
        missing = sorted(name for name in names if not (folder / name).is_file())
        if missing or state.get("_indices_data_files"):
            reason = f"{missing[0]} is missing" if missing else "it has indices of rows"
            raise UserError(f"{folder / 'state.json'}: {reason}: save the data set again")
        return names

    def is_listed(path: Path) -> bool:
        names = names_in(path.parent)
        splits = read(path.parent.parent / "dataset_dict.json").get("splits")
        is_split = names is None or splits is None or path.parent.name in splits
        return is_split and (names is None or path.name in names)

    return is_listed


def require_whole(split: str, paths: Sequence[Path]) -> None:
    """Raise a ``UserError`` if shards are missing or of two sets, or if rows are in two formats."""
    shards: dict[tuple[Path, str], list[tuple[int, int]]] = defaultdict(list)
    names: dict[tuple[Path, str], Path] = {}
    for path in paths:
        stem = formats.stem(path)
        other = names.setdefault((path.parent, stem), path)
        if other != path:
            raise UserError(
                f"{other} and {path.name}: the {split} split in two formats: remove one, or pass "
                f"a file or a pattern: --dataset '{path.parent}/*{''.join(other.suffixes)}'"
            )
        if match := _SHARD.fullmatch(stem):
            shards[path.parent, match[1]].append((int(match[2]), int(match[3])))
    for (folder, name), numbers in shards.items():
        count = max(total for _, total in numbers)
        whole = [[(number + start, count) for number in range(count)] for start in (0, 1)]
        if sorted(numbers) not in whole:
            listed = ", ".join(f"{number} of {total}" for number, total in sorted(numbers)[:10])
            raise UserError(
                f"{folder / name}*: expected all shards of one set, found {listed}: remove old "
                f"ones, copy those that are missing, or pass a pattern to read them as they are: "
                f"--dataset '{folder / name}*'"
            )


def folder_columns(path: Path) -> dict[str, str | None]:
    """Return the columns in the names of folders, as Hive and Spark write them: ``lang=de``."""
    columns: dict[str, str | None] = {}
    for folder in path.parts[:-1]:
        name, equals, value = folder.partition("=")
        if name and equals:
            columns[unquote(name)] = None if value == _NULL else unquote(value)
    return columns


def refuse_pointer(beginning: bytes, place: str) -> None:
    """Raise a ``UserError`` for the file that Git LFS leaves where it downloaded nothing."""
    if beginning.startswith(_POINTER):
        raise UserError(f"{place} is a pointer of Git LFS, not the file: run git lfs pull")
