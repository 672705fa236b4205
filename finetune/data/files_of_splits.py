"""Which file is which split of a local data set: by its name, that of its folder, or a pattern.

The splits are called ``train``, ``validation`` and ``test``, unless ``--dataset_splits`` says
otherwise. What is probably a held-out split under another name is refused: it is neither trained on
nor left unread without notice.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finetune.errors import Report, UserError, suggestion
from finetune.runtime import formats

SPLITS = ("train", "validation", "test")
#: The split that a word in the name of a file or folder stands for: those of
#: ``datasets.data_files.SPLIT_KEYWORDS``, without the import.
KEYWORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
#: The name, in ``--dataset_splits``, of a validation or test split that is not to be read.
NONE = "none"
#: The number of a part at the end of a file's name: ``train-00000-of-00002``, ``train_1``.
_PART = re.compile(r"[-_.]?(?:part[-_.]?)?(?P<number>\d+)(?:[-_]of[-_](?P<total>\d+))?$")
#: Files by which a directory of ``Dataset.save_to_disk`` is recognized.
_SAVED = ("dataset_dict.json", "state.json")
#: Suffixes of tables that are not read, but that hold rows.
_OTHER_TABLES = (".xz", ".xls", ".xlsb", ".ods", ".zip", ".gz")
_SHOWN = 10


class NoTrainSplit(UserError):
    """A source has no split to train on.

    Args:
        mistake: The message.
        splits: The names of the splits that it has.
    """

    def __init__(self, mistake: str, splits: Iterable[str]) -> None:
        super().__init__(mistake)
        self.splits = list(splits)


@dataclass(frozen=True)
class SplitFiles:
    """The files of a local data set.

    Attributes:
        kind: Tables, texts in folders of their classes, or a directory that ``datasets`` saved.
        files: Of each split, in the order of their rows; of a saved data set its directory.
        unread: Other data files beside them, relative to the directory.
    """

    kind: Literal["tables", "texts", "saved"]
    files: Mapping[str, Sequence[Path]]
    unread: Sequence[str] = ()


def parse_split_names(text: str | None) -> dict[str, str]:
    """Return the names in the source of the splits that ``--dataset_splits`` lists.

    Raises:
        UserError: If it is not ``SPLIT=NAME,SPLIT=NAME``.
    """
    pairs = [pair.partition("=") for pair in (text or "").split(",") if pair]
    names = {split.strip(): name.strip() for split, _, name in pairs}
    is_valid = names.keys() <= {*SPLITS} and all(names.values()) and len(names) == len(pairs)
    if not is_valid or names.get("train") == NONE:
        raise UserError(
            f"--dataset_splits {text}: expected train=NAME, validation=NAME or test=NAME, "
            "separated by commas; test=none leaves the split out"
        )
    return names


def format_split_names(names: Mapping[str, str]) -> str:
    """Return the option that reads splits of these names: ``--dataset_splits validation=dev``."""
    pairs = ",".join(f"{split}={names[split]}" for split in SPLITS if split in names)
    return f"--dataset_splits {shlex.quote(pairs)}"


def guess_split(name: str) -> str | None:
    """Return the split that a keyword in a name stands for, those of ``datasets``; else None."""
    splits = {KEYWORDS.get(word) for word in re.split(r"[-._ 0-9]+", name.lower())}
    return next((split for split in reversed(SPLITS) if split in splits), None)


def select_splits(
    dataset: str, splits: Mapping[str, Any], split_names: Mapping[str, str], report: Report
) -> dict[str, Any]:
    """Return the splits of a source by our names; those that are not read are reported.

    Args:
        dataset: The name of the source, for messages.
        splits: By the names of the source.
        split_names: As :func:`parse_split_names` returns them.
        report: Gets the names of splits that are not read.

    Raises:
        UserError: If a named split is missing, or if a probable one would not be read.
    """
    names = _names_to_read(split_names)
    listed = ", ".join(splits)
    if missing := [
        f"--dataset_splits {split}={name}: {dataset} has no such split"
        f"{suggestion(name, splits)} (it has: {listed})"
        for split, name in names.items()
        if split in split_names and name not in splits
    ]:
        raise UserError(*missing)
    if names["train"] not in splits:
        raise NoTrainSplit(
            f"data set '{dataset}' has no train split (it has: {listed}); --dataset_splits "
            "train=NAME takes another",
            splits,
        )
    unread = [name for name in splits if name not in names.values()]
    present = [split for split in names if names[split] in splits]
    _refuse_probable(dataset, {name: name for name in unread}, present, split_names)
    for name in unread:
        report.info(f"not read: the split '{name}'")
    return {split: splits[name] for split, name in names.items() if name in splits}


def find_files(dataset: str, split_names: Mapping[str, str]) -> SplitFiles:
    """Return the files of each split of a local data set.

    Args:
        dataset: A file, a directory or a pattern such as ``data/train-*.parquet``.
        split_names: As :func:`parse_split_names` returns them.

    Raises:
        UserError: If there are none, or if it is not clear which they are.
    """
    from finetune.data.read import existing

    if is_pattern(dataset):
        return _find_matching(dataset, split_names)
    path = existing(dataset)
    if path.is_dir():
        return _find_in_directory(path, split_names)
    if split_names:
        raise UserError(f"--dataset_splits: {dataset} is a single file, whose rows are split off")
    _refuse_formats([path])
    return SplitFiles("tables", {"train": [path]})


def is_pattern(dataset: str) -> bool:
    """Return whether a data set is a pattern of file names."""
    return any(sign in dataset for sign in "*?[") and not Path(dataset).expanduser().exists()


def _refuse_formats(paths: Sequence[Path]) -> None:
    from finetune.data.read import conversion_hint

    expected = f"expected a file ending in {', '.join(formats.FILES)}"
    mistakes = [
        f"cannot read {path}: {expected}{conversion_hint(path)}"
        for path in paths
        if formats.suffix(path) not in formats.FILES
    ]
    if mistakes:
        raise UserError(*mistakes)


def _names_to_read(split_names: Mapping[str, str]) -> dict[str, str]:
    names = {split: split for split in SPLITS} | dict(split_names)
    return {split: name for split, name in names.items() if name != NONE}


def _find_matching(pattern: str, split_names: Mapping[str, str]) -> SplitFiles:
    """Return the files that match a pattern, all of ``train`` if none is named like a split."""
    matches = map(Path, glob.glob(str(Path(pattern).expanduser()), recursive=True))
    paths = sorted((path for path in matches if path.is_file()), key=_natural)
    if not paths:
        raise UserError(f"--dataset '{pattern}': no file matches")
    _refuse_formats(paths)
    names = _names_to_read(split_names)
    if files := _assign(paths, names, _file_names) or _assign(paths, names, _folder_names):
        return _complete(pattern, files, paths, split_names)
    guesses = {guess_split(name) or "train": name for path in paths for name in _file_names(path)}
    if len(guesses) > 1:
        raise UserError(
            f"--dataset '{pattern}': {_listed(paths)} would all be trained on, and some are named "
            f"like held-out data; {format_split_names(guesses)} names them, or rename those that "
            "are not"
        )
    return SplitFiles("tables", {"train": paths})


def _find_in_directory(directory: Path, split_names: Mapping[str, str]) -> SplitFiles:
    """Return the files of a directory, those in its folders ``train``, ``test`` included."""
    if any((directory / name).exists() for name in _SAVED):
        return SplitFiles("saved", {"train": [directory]})
    entries, names = _visible(directory), _names_to_read(split_names)
    tables = [path for path in entries if _is_table(path)]
    folders = [path for path in entries if path.is_dir()]
    inside = [path for folder in folders for path in _visible(folder) if _is_table(path)]
    files = _assign(tables, names, _file_names)
    for split, paths in _assign(inside, names, _folder_names).items():
        files[split] = [*files.get(split, ()), *paths]
    if files:
        used = {path.parent for paths in files.values() for path in paths} - {directory}
        beside = [path for path in entries if path not in used and _holds_rows(path)]
        beside += [path for folder in sorted(used) for path in _visible(folder)]
        return _complete(str(directory), files, beside, split_names)
    if [folder.name for folder in folders] == ["data"] and not tables:  # as on the Hub
        return _find_in_directory(folders[0], split_names)
    if not tables and (texts := _find_texts(directory, split_names)):
        return texts
    raise _without_train(str(directory), names["train"], {}, [*tables, *inside])


def _assign(
    paths: Sequence[Path], names: Mapping[str, str], names_of: Callable[[Path], Collection[str]]
) -> dict[str, list[Path]]:
    """Return the files of each split, one of whose names is that of the split."""
    files = {split: [p for p in paths if name in names_of(p)] for split, name in names.items()}
    return {split: parts for split, parts in files.items() if parts}


def _file_names(path: Path) -> list[str]:
    """Return the name of a file without suffixes, also without the number of a part."""
    stem = formats.stem(path)
    return [stem, _PART.sub("", stem) or stem]


def _folder_names(path: Path) -> list[str]:
    return [path.parent.name]


def _complete(
    where: str,
    files: Mapping[str, list[Path]],
    paths: Sequence[Path],
    split_names: Mapping[str, str],
) -> SplitFiles:
    """Return the files of splits of which nothing is missing or double; ``paths`` has others."""
    names = _names_to_read(split_names)
    used = {path for parts in files.values() for path in parts}
    unread = [path for path in paths if path not in used]
    mistakes = [
        f"--dataset_splits {split}={names[split]}: no such file"
        f"{suggestion(names[split], map(formats.stem, paths))}"
        for split in names
        if split in split_names and split not in files
    ]
    for split, parts in files.items():
        mistakes += _check_parts(split, names[split], parts)
    if mistakes:
        raise UserError(*(f"{where}: {mistake}" for mistake in mistakes))
    lacking = names.keys() - files.keys()
    _refuse_formats(
        [path for path in unread if path.is_file() and guess_split(path.name) in lacking]
    )
    candidates = {path.name: _file_names(path)[-1] for path in unread}
    _refuse_probable(where, candidates, files, split_names)
    if "train" not in files:
        raise _without_train(where, names["train"], files, [*used])
    ordered = {split: files[split] for split in SPLITS if split in files}
    return SplitFiles("tables", ordered, [path.name for path in unread])


def _check_parts(split: str, name: str, paths: Sequence[Path]) -> list[str]:
    """Return what is wrong with the parts of a split: a whole file beside them, or missing ones."""
    if len(paths) > 1 and name in map(formats.stem, paths):
        return [f"expected one file for '{split}', found {_listed(paths[:2])}"]
    parts = [match for path in paths if (match := _PART.search(formats.stem(path)))]
    totals = sorted({int(part["total"]) for part in parts if part["total"]})
    if len(totals) > 1:
        return [f"the parts of '{split}' are of two exports, of {totals[0]} and {totals[1]} parts"]
    total = max(totals, default=0)
    if len(parts) >= total:
        return []
    return [
        f"'{split}' has {len(parts)} of {total} parts: download the others, or to train on these, "
        f"rename them without -of-{total:05}"
    ]


def _refuse_probable(
    where: str,
    candidates: Mapping[str, str],
    present: Collection[str],
    split_names: Mapping[str, str],
) -> None:
    """Refuse files or splits that are probably those that are missing from ``present``.

    ``candidates`` has what is not read, with the name by which ``--dataset_splits`` reads it.
    """
    lacking = _names_to_read(split_names).keys() - {*present}
    probable = {shown: split for shown, name in candidates.items() if (split := guess_split(name))}
    shown = [name for name, split in probable.items() if split in lacking]
    if shown:
        names = {probable[name]: candidates[name] for name in reversed(shown)}
        raise UserError(
            f"{where}: {', '.join(shown)} would not be read; "
            f"{format_split_names({**split_names, **names})} reads them, and "
            f"SPLIT={NONE} leaves a split out"
        )


def _without_train(
    where: str, name: str, files: Iterable[str], paths: Sequence[Path]
) -> NoTrainSplit:
    advice = ""
    if paths:
        pattern = shlex.quote(f"{paths[0].parent}/*{paths[0].suffix}")
        advice = f"; --dataset_splits train=NAME names it, --dataset {pattern} reads all as one"
    return NoTrainSplit(
        f"{where}: expected a file {name}.csv, .jsonl, .parquet or of another known format (and "
        f"validation, test if there are any), found {_listed(paths) or 'none'}{advice}",
        files,
    )


def _find_texts(directory: Path, split_names: Mapping[str, str]) -> SplitFiles | None:
    """Return the texts in folders of their classes, alone or in folders of the splits."""
    roots = {split: directory / name for split, name in _names_to_read(split_names).items()}
    roots = {split: root for split, root in roots.items() if _class_folders(root)}
    if "train" in roots:
        others = {path.name for path in _visible(directory) if _class_folders(path)}
        others -= {root.name for root in roots.values()}
        _refuse_probable(str(directory), {name: name for name in others}, roots, split_names)
    elif _class_folders(directory):  # "test" may be a class
        roots = {"train": directory}
    else:
        return None
    files = {
        split: [text for folder in _class_folders(root) for text in _texts(folder)]
        for split, root in roots.items()
    }
    used = {path for texts in files.values() for path in texts}
    unread = [
        str(path.relative_to(directory))
        for path in sorted(directory.rglob("[!._]*"))
        if path.is_file() and path not in used
    ]
    return SplitFiles("texts", files, unread)


def _class_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder that hold texts."""
    return [path for path in _visible(folder) if _texts(path)]


def _texts(folder: Path) -> list[Path]:
    return [path for path in _visible(folder) if path.suffix.lower() == ".txt"]


def _is_table(path: Path) -> bool:
    return formats.suffix(path) in formats.FILES and path.is_file()


def _holds_rows(path: Path) -> bool:
    """Return whether there are rows in a file or a folder, in a format that is read or another."""
    tables = (*formats.FILES, *_OTHER_TABLES)
    return any(formats.suffix(entry).endswith(tables) for entry in (path, *_visible(path)))


def _visible(folder: Path) -> list[Path]:
    """Return what is in a folder, except what systems and programs put there; nothing of a file."""
    paths = folder.glob("[!._]*") if folder.is_dir() else ()
    return sorted(paths, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a key by which part 2 comes before part 10."""
    pieces = re.split(r"(\d+)", str(path))
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths[:_SHOWN])
