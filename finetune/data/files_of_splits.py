"""Find the files of each split of a local data set.

A split is chosen by ``--dataset_splits``, else by the names ``train``, ``validation`` and ``test``
of files or folders, else by a keyword of ``datasets`` in a name, such as ``dev``, if only one name
has it. Files that are not read are reported: ``Dataset.save_to_disk`` and the logs of table formats
list the files that count, and a reader of all files would also read old rows and cached copies.
"""

import glob
import itertools
import json
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from datasets.data_files import SPLIT_KEYWORDS

from finetune.data.comma_list import split_pairs
from finetune.data.read import existing
from finetune.errors import UserError, list_first, suggestion
from finetune.runtime import formats

SPLITS = ("train", "validation", "test")
#: The split of each keyword of ``datasets``, e.g. ``dev``: ``validation``.
KEYWORDS = {word: str(split) for split, words in SPLIT_KEYWORDS.items() for word in words}
#: The value in ``--dataset_splits`` for a validation or test split that is not read.
NONE = "none"
#: Suffixes of image files.
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_MAX_LISTED = 10  # names in a message
#: The number of a shard, and of all shards, at the end of a file's name: ``train-00000-of-00002``,
#: ``train_1``. Old versions of the Hub added 16 digits; Spark adds a UUID:
#: ``part-00000-<UUID>-c000.snappy``.
_SHARD = re.compile(
    r"(?P<begin>[-_.]?)\d+(?:[-_]of[-_](?P<count>\d+))?(?:-[0-9a-f]{8}-?[0-9a-f]{4}[-0-9a-f]{4}.*)?$"
)
#: Files without rows that ``datasets`` writes.
_METADATA = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
#: Folders of rows that were not committed, and of attributes of files.
_NOT_DATA = ("_temporary", "__MACOSX")
#: Logs of tables that also keep the files of old rows: of Delta Lake, Hudi, Iceberg and Spark.
_LOGS = ("_delta_log", ".hoodie", "metadata/*.metadata.json", "_spark_metadata")
#: The missing value in the name of a folder.
_NULL = "__HIVE_DEFAULT_PARTITION__"


class NoTrainSplit(UserError):
    """A data set has no ``train`` split, only ``splits``; they are lost when it is pickled."""

    splits: Sequence[str] = ()


@dataclass(frozen=True)
class SplitFiles:
    """The files of a local data set.

    Attributes:
        kind: ``tables``, or ``texts`` or ``images`` in folders named by class.
        files: The files of each split, in the order of their rows.
        root: The folder below which the names of folders may be columns, such as ``lang=de``.
        facts: Files that are not read, and splits that were chosen by a keyword.
        class_level: The depth of the class folders below the directory: 0, or 1 in split folders.
    """

    kind: str
    files: Mapping[str, Sequence[Path]]
    root: Path
    facts: Sequence[str]
    class_level: int = 0


def parse_split_names(text: str | None) -> dict[str, str]:
    """Return the value of ``--dataset_splits`` as a dict from split to its name in the source.

    Raises:
        UserError: If the value is not ``SPLIT=NAME,SPLIT=NAME`` with each split once.
    """
    pairs = split_pairs(text or "")
    names = dict(pairs)
    is_known = names.keys() <= set(SPLITS) and all(names.values()) and len(names) == len(pairs)
    if not is_known or names.get("train") == NONE:
        expected = "train=NAME, validation=NAME or test=NAME, each once (NAME none: not read)"
        raise UserError(f"--dataset_splits {text}: expected {expected}, separated by commas")
    return names


def guess_split(name: str) -> str | None:
    """Return the split whose keyword of ``datasets`` is in a name, e.g. ``dev``; else None."""
    splits = set(map(KEYWORDS.get, re.split(r"[-._ 0-9]+", name.lower())))
    return next((split for split in reversed(SPLITS) if split in splits), None)


def choose_splits(
    dataset: str, names: Collection[str], split_names: Mapping[str, str], hint: str = ""
) -> tuple[dict[str, str], list[str]]:
    """Return the name in the source of each split, and facts for the user.

    Args:
        dataset: The name of the data set, for messages.
        names: The names of the splits of the source.
        split_names: The value of ``--dataset_splits``.
        hint: Added to the message if there is no ``train`` split.

    Raises:
        UserError: If a name in ``split_names`` is not in ``names``, or if a split is ambiguous.
        NoTrainSplit: If there is no ``train`` split.
    """
    chosen = {split: name for split, name in split_names.items() if name != NONE}
    listed = ", ".join(names) or "none"
    mistakes = []
    for split, name in chosen.items():
        if name not in names:
            mistakes.append(
                f"--dataset_splits {split}={name}: {dataset} has no split '{name}'"
                f"{suggestion(name, names)} (available: {listed})"
            )
    unread = [name for name in names if name not in chosen.values()]
    facts = []
    for split in SPLITS:
        candidates = _find_candidates(split, unread)
        if split in split_names or not candidates:
            continue
        option = f"--dataset_splits {split}={shlex.quote(candidates[0])}"
        chosen[split] = candidates[0]
        if len(candidates) > 1:
            mistakes.append(
                f"{dataset}: expected one '{split}' split, found {', '.join(candidates)}; "
                f"{option} chooses one, {split}={NONE} leaves it out"
            )
        elif candidates != [split]:
            facts.append(f"read '{candidates[0]}' as the {split} split ({option})")
    if mistakes:
        raise UserError(*mistakes)
    if "train" not in chosen:
        mistake = f"data set '{dataset}' has no train split (it has: {listed}); choose another with"
        error = NoTrainSplit(f"{mistake} --dataset_splits train=NAME{hint}")
        error.splits = list(names)
        raise error
    if unread := [name for name in unread if name not in chosen.values()]:
        facts.append(f"not read: {list_first(unread, _MAX_LISTED)} (--dataset_splits SPLIT=NAME)")
    return {split: chosen[split] for split in SPLITS if split in chosen}, facts


def _find_candidates(split: str, names: Sequence[str]) -> list[str]:
    """Return the name of a split, if it is in ``names``, else the names with a keyword of it."""
    if split in names:
        return [split]
    return [name for name in names if name not in SPLITS and guess_split(name) == split]


def find_files(dataset: str, split_names: Mapping[str, str], suffixes: Sequence[str]) -> SplitFiles:
    """Return the files of each split of a directory. A file, or a pattern such as
    ``data/2024-*.csv``, is a single split.

    Args:
        dataset: The file, the directory or the pattern.
        split_names: The name in the directory of each split (``--dataset_splits``); may be empty.
        suffixes: Those of files of rows.

    Raises:
        UserError: If there are no files, or if their splits are ambiguous.
    """
    path = Path(dataset).expanduser()
    root = path.parent
    paths = [path]
    facts = []
    if glob.has_magic(dataset) and not path.exists():
        # a folder that exists is no pattern, even with brackets in its name
        root = next(folder for folder in path.parents if folder.is_dir())
        matches = glob.glob(str(path.relative_to(root)), root_dir=root, recursive=True)
        files = _sorted_files(root / match for match in matches)
        paths = _select_data(root, files)
        facts = _name_unread(files, paths, root)
    elif existing(dataset).is_dir():
        return _find_in_directory(path, split_names, suffixes)
    if split_names:
        raise UserError(f"--dataset_splits: {dataset} is not a directory: leave the flag out")
    foreign = [str(path) for path in paths if formats.suffix(path) not in suffixes]
    if foreign or not paths:
        names = list_first(foreign or [dataset], _MAX_LISTED)
        raise UserError(
            f"cannot read {names}: expected a file ending in {', '.join(suffixes)}; "
            f"text may be compressed: {', '.join(formats.COMPRESSIONS)}"
        )
    folders = {path.parent.name for path in paths}
    stems = set(map(formats.stem, paths))
    if len(folders) > 1:
        stems |= folders
    if len(set(map(guess_split, stems)) - {None}) > 1:
        raise UserError(
            f"'{dataset}': expected files of one split, found several: pass their directory"
        )
    return SplitFiles("tables", {"train": paths}, root, facts)


def _find_in_directory(
    directory: Path, split_names: Mapping[str, str], suffixes: Sequence[str]
) -> SplitFiles:
    def is_split(name: str) -> bool:
        return guess_split(name) is not None or name in split_names.values()

    files = files_below(directory)
    paths = [path.relative_to(directory) for path in _select_data(directory, files)]
    tables = [path for path in paths if formats.suffix(path) in suffixes]
    groups = _group_tables(tables, is_split)
    kind = "tables"
    class_level = 0
    if not any(map(is_split, groups)):
        images = _in_folders(paths, IMAGES)
        texts = []
        if ".txt" not in suffixes:
            texts = _in_folders(paths, (".txt",))
        if images or texts:
            kind = "images" if images else "texts"
            class_level, groups = _group_classified(images or texts, bool(split_names))
        elif len(groups) == 1 and not split_names:  # also a folder of `Dataset.save_to_disk`
            groups = {"train": next(iter(groups.values()))}
    chosen, facts = choose_splits(
        str(directory),
        groups,
        split_names,
        f"; or read several files as one with a pattern: --dataset '{directory}/*.csv'",
    )
    chosen_files = {}
    for split, name in chosen.items():
        chosen_files[split] = [directory / path for path in groups[name]]
        if kind == "tables":
            _require_whole(split, chosen_files[split])
            if len(groups[name]) > 1:
                names = list_first(groups[name], _MAX_LISTED)
                facts.append(f"read as the {split} split: {names}")
    data = {directory / path for path in itertools.chain(*groups.values())}
    facts += _name_unread(files, data, directory)
    return SplitFiles(kind, chosen_files, directory, facts, class_level)


def _in_folders(paths: Iterable[Path], suffixes: Sequence[str]) -> list[Path]:
    return [path for path in paths if len(path.parts) > 1 and path.suffix.lower() in suffixes]


def _group_classified(
    paths: Sequence[Path], has_split_names: bool
) -> tuple[int, dict[str, list[Path]]]:
    """Return the depth of the class folders, and the files by split."""
    deeper = [path for path in paths if len(path.parts) > 2]
    # without deeper files, a folder "test" may be a class
    if not has_split_names and not any(guess_split(path.parts[0]) for path in deeper):
        return 0, {"train": list(paths)}
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in deeper:
        groups[path.parts[0]].append(path)
    return 1, groups


def _group_tables(paths: Iterable[Path], is_split: Callable[[str], bool]) -> dict[str, list[Path]]:
    """Return tables by the first folder that names a split, else by the name without its shard.

    Folders such as ``lang=de`` are columns, except ``split=test``.
    """
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        stem = formats.stem(path)
        names = []
        for folder in path.parts[:-1]:
            name = folder.removeprefix("split=")
            if "=" not in name:
                names.append(name)
        names.append(_SHARD.sub("", stem) or stem)
        groups[next(filter(is_split, names), names[0])].append(path)
    return groups


def files_below(directory: Path) -> list[Path]:
    """Return all files below a directory, 2 sorted before 10, without hidden files."""
    names = map(Path, glob.glob("**", root_dir=directory, recursive=True))
    return _sorted_files(directory / name for name in names if name.name not in _METADATA)


def _name_unread(files: Sequence[Path], data: Collection[Path], directory: Path) -> list[str]:
    """Return a fact about the files below ``directory`` that are no data, if there are any."""
    names = [str(path.relative_to(directory)) for path in files if path not in data]
    if not names:
        return []
    return [f"not read: {list_first(names, _MAX_LISTED)}"]


def _sorted_files(paths: Iterable[Path]) -> list[Path]:
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


def _select_data(root: Path, paths: Sequence[Path]) -> list[Path]:
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


def _require_whole(split: str, paths: Sequence[Path]) -> None:
    """Raise a ``UserError`` if shards are missing or of two sets, or if rows are in two formats."""
    shards: dict[Path, dict[str, int]] = defaultdict(dict)  # the count in each name, by pattern
    by_stem: dict[Path, Path] = {}
    for path in paths:
        stem = formats.stem(path)
        other = by_stem.setdefault(path.with_name(stem), path)
        if other != path:
            raise UserError(
                f"{other} and {path.name}: the {split} split in two formats: remove one, or pass "
                f"a file or a pattern: --dataset '{path.parent}/*{''.join(other.suffixes)}'"
            )
        match = _SHARD.search(stem)
        if match is not None and match["count"]:
            pattern = path.with_name(f"{stem[: match.end('begin')]}*")
            shards[pattern][path.name] = int(match["count"])
    for pattern, counts in shards.items():
        if set(counts.values()) != {len(counts)}:
            names = list_first(list(map(repr, counts)), _MAX_LISTED)
            raise UserError(
                f"{pattern}: expected all shards of one set, found {names}: "
                "remove old ones, copy those that are missing, or pass a pattern to read them as "
                f"they are: --dataset '{pattern}'"
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
