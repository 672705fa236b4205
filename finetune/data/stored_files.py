"""Tell files of rows from files that lie beside them, such as those of an earlier save.

``Dataset.save_to_disk`` and the logs of table formats list the files that count; a reader of all
files would also read old rows and cached copies.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from finetune.data.labels import list_names
from finetune.errors import UserError
from finetune.runtime import formats

#: Files without rows that ``datasets`` writes.
METADATA = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
#: Folders of rows that were not committed, and of attributes of files.
_NOT_DATA = ("_temporary", "__MACOSX")
#: Logs of tables that also keep the files of old rows: of Delta Lake, Hudi, Iceberg and Spark.
_LOGS = ("_delta_log", ".hoodie", "metadata/*.metadata.json", "_spark_metadata")
#: What shards have in common, the number of all shards, and 16 digits of old versions of the Hub.
_SHARD = re.compile(r"(.*?)\d+[-_]of[-_](\d+)(?:-[0-9a-f]{16})?$")
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
            raise UserError(
                f"{path} cannot be read: it is a link to a missing file, or permission is denied: "
                "restore or remove it"
            )
        if path.is_file():
            files.append(path)
    return sorted(files, key=lambda path: re.sub(r"\d+", lambda n: n[0].zfill(20), str(path)))


def select_data(root: Path, paths: Sequence[Path]) -> list[Path]:
    """Return the paths below ``root`` that may be data.

    Raises:
        UserError: If a listed file is missing, or for a table format whose log is not read.
    """
    for log in _LOGS:
        if logs := sorted(root.glob(log)):
            raise UserError(
                f"{logs[0]}: {root} also has the files of old rows, and this log of them is not "
                "read: write the table as Parquet files into another folder"
            )
    unlisted = _unlisted(paths)
    data = []
    for path in paths:
        is_lock = path.name.startswith("~$")  # of an open workbook
        is_data = not set(_NOT_DATA).intersection(path.relative_to(root).parts)
        if path not in unlisted and not is_lock and is_data:
            data.append(path)
    return data


def _unlisted(paths: Sequence[Path]) -> set[Path]:
    """Return the files that ``load_from_disk`` does not read in folders of ``save_to_disk``."""
    unlisted = set()
    for folder in {path.parent for path in paths}:
        state = _read_json(folder / "state.json")
        if "_data_files" not in state:
            continue
        names = {file["filename"] for file in state["_data_files"]}
        splits = _read_json(folder.parent / "dataset_dict.json").get("splits", [folder.name])
        if folder.name not in splits:
            names = set()
        for name in names:
            if not (folder / name).is_file():
                raise UserError(
                    f"{folder / name} is missing, which state.json lists: copy it, or save the "
                    "data again"
                )
        for path in paths:
            if path.parent == folder and path.name not in names:
                unlisted.add(path)
    return unlisted


def _read_json(path: Path) -> Any:
    """Return the object in a file; empty if there is none."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}


def require_whole(split: str, paths: Sequence[Path]) -> None:
    """Raise a ``UserError`` if shards are missing or of two sets, or if rows are in two formats."""
    shards: dict[Path, list[str]] = defaultdict(list)
    counts: dict[Path, set[int]] = defaultdict(set)
    by_stem: dict[Path, Path] = {}
    for path in paths:
        stem = formats.stem(path)
        other = by_stem.setdefault(path.with_name(stem), path)
        if other != path:
            raise UserError(
                f"{other} and {path.name}: the {split} split in two formats: remove one, or pass "
                f"a file or a pattern: --dataset '{path.parent}/*{''.join(other.suffixes)}'"
            )
        if match := _SHARD.fullmatch(stem):
            prefix = path.with_name(match[1])
            shards[prefix].append(path.name)
            counts[prefix].add(int(match[2]))
    for prefix, names in shards.items():
        if counts[prefix] != {len(names)}:
            raise UserError(
                f"{prefix}*: expected all shards of one set, found {list_names(names)}: remove old "
                "ones, copy those that are missing, or pass a pattern to read them as they are: "
                f"--dataset '{prefix}*'"
            )


def folder_columns(path: Path) -> dict[str, str | None]:
    """Return the columns in the names of folders, as Hive and Spark write them: ``lang=de``."""
    columns: dict[str, str | None] = {}
    for folder in path.parts[:-1]:
        name, equals, value = folder.partition("=")
        if name and equals:
            columns[unquote(name)] = unquote(value)
            if value == _NULL:
                columns[unquote(name)] = None
    return columns


def refuse_pointer(beginning: bytes, place: str) -> None:
    """Raise a ``UserError`` for the file that Git LFS leaves where it downloaded nothing."""
    if beginning.startswith(_POINTER):
        raise UserError(f"{place} is a pointer of Git LFS, not the file: run git lfs pull")
