"""Which file is which split of a local data set: by its name, that of its folder, or a pattern.

A split is what ``--dataset_splits`` says, else what is called ``train``, ``validation`` or
``test``, else the only one that has a keyword of ``datasets`` in its name, such as ``dev``. What is
not read is reported.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from datasets.data_files import SPLIT_KEYWORDS

from finetune.errors import Report, UserError, suggestion
from finetune.runtime import formats

SPLITS = ("train", "validation", "test")
#: The split that a word in a name stands for.
KEYWORDS = {word: str(split) for split, words in SPLIT_KEYWORDS.items() for word in words}
#: The name, in ``--dataset_splits``, of a validation or test split that is not to be read.
NONE = "none"
#: The number of a part at the end of a file's name: ``train-00000-of-00002``, ``train_1``.
_PART = re.compile(r"[-_.]?(?:part[-_.]?)?\d+(?:[-_]of[-_](?P<total>\d+))?$")
#: Files by which a directory of ``Dataset.save_to_disk`` is recognized.
_SAVED = ("dataset_dict.json", "state.json")
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
        kind: Tables, files in folders of their classes, or a directory that ``datasets`` saved.
        files: Of each split, in the order of their rows; of a saved data set its directory.
        labels: Of each file of each split, in folders of classes.
        facts: What is not read, and splits that were recognized by a keyword.
    """

    kind: Literal["tables", "classes", "saved"]
    files: Mapping[str, Sequence[Path]]
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    facts: Sequence[str] = ()


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


def guess_split(name: str) -> str | None:
    """Return the split that a keyword in a name stands for, those of ``datasets``; else None."""
    splits = {KEYWORDS.get(word) for word in re.split(r"[-._ 0-9]+", name.lower())}
    return next((split for split in reversed(SPLITS) if split in splits), None)


def choose_splits(
    dataset: str, names: Collection[str], split_names: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return the name in a source of each split that it has, and facts for the user.

    Args:
        dataset: The name of the source, for messages.
        names: What the source has, in its order.
        split_names: As :func:`parse_split_names` returns them.

    Raises:
        UserError: If a name of ``split_names`` is missing, or several names may be a split.
        NoTrainSplit: If there is no split to train on.
    """
    chosen = {split: name for split, name in split_names.items() if name != NONE}
    listed = ", ".join(names) or "none"
    mistakes = [
        f"--dataset_splits {split}={name}: {dataset} has no such split"
        f"{suggestion(name, names)} (it has: {listed})"
        for split, name in chosen.items()
        if name not in names
    ]
    unread = [name for name in names if name not in chosen.values()]
    facts = []
    for split in (split for split in SPLITS if split not in split_names):
        candidates = [name for name in unread if name == split]
        if not candidates:
            candidates = [name for name in unread if guess_split(name) == split]
            candidates = [name for name in candidates if name not in SPLITS]
        if not candidates:
            continue
        chosen[split] = candidates[0]
        unread.remove(candidates[0])
        option = f"--dataset_splits {split}={shlex.quote(candidates[0])}"
        if len(candidates) > 1:
            mistakes.append(
                f"{dataset}: expected one '{split}' split, found {', '.join(candidates)}; {option} "
                f"chooses one, {split}={NONE} leaves it out"
            )
        elif candidates != [split]:
            facts.append(f"read '{candidates[0]}' as the {split} split ({option})")
    if mistakes:
        raise UserError(*mistakes)
    if "train" not in chosen:
        raise NoTrainSplit(
            f"data set '{dataset}' has no train split (it has: {listed}); --dataset_splits "
            "train=NAME takes another",
            names,
        )
    if unread:
        facts.append(f"not read: {_list_names(unread)} (--dataset_splits SPLIT=NAME)")
    return {split: chosen[split] for split in SPLITS if split in chosen}, facts


def select_splits(
    dataset: str, splits: Mapping[str, Any], split_names: Mapping[str, str], report: Report
) -> dict[str, Any]:
    """Return the splits of a source by our names; see :func:`choose_splits`."""
    chosen, facts = choose_splits(dataset, splits, split_names)
    for fact in facts:
        report.info(fact)
    return {split: splits[name] for split, name in chosen.items()}


def is_pattern(dataset: str) -> bool:
    """Return whether a data set is a pattern of file names."""
    return any(sign in dataset for sign in "*?[") and not Path(dataset).expanduser().exists()


def find_files(dataset: str, split_names: Mapping[str, str]) -> SplitFiles:
    """Return the files of each split of a local data set.

    Args:
        dataset: A file, a directory or a pattern such as ``data/train-*.parquet``.
        split_names: As :func:`parse_split_names` returns them.

    Raises:
        UserError: If there are none, or if it is not clear which they are.
    """
    from finetune.data.read import existing

    if not is_pattern(dataset) and (path := existing(dataset)).is_dir():
        return _find_in_directory(path, split_names)
    if is_pattern(dataset):
        matches = map(Path, glob.glob(str(Path(dataset).expanduser()), recursive=True))
        paths = sorted((match for match in matches if match.is_file()), key=_natural_order)
    elif split_names:
        raise UserError(f"--dataset_splits: {dataset} is a single file, whose rows are split off")
    else:
        paths = [path]
    if not paths:
        raise UserError(f"--dataset '{dataset}': no file matches")
    if foreign := [path for path in paths if formats.suffix(path) not in formats.FILES]:
        raise UserError(
            f"cannot read {_list_names(list(map(str, foreign)))}: expected a file ending in "
            f"{', '.join(formats.FILES)}, or as text also in {', '.join(formats.COMPRESSIONS)} "
            "after that: convert it"
        )
    by_name, by_folder = defaultdict(list), defaultdict(list)
    for path in paths if is_pattern(dataset) else ():
        by_name[_without_part(path)].append(path)
        by_folder[path.parent.name].append(path)
    for groups in (by_name, by_folder if len(by_folder) > 1 else {}):
        if any(guess_split(name) or name in split_names.values() for name in groups):
            return _choose_files(dataset, groups, split_names)
    if split_names:
        return _choose_files(dataset, by_name, split_names)
    return SplitFiles("tables", {"train": paths})


def _find_in_directory(directory: Path, split_names: Mapping[str, str]) -> SplitFiles:
    if any((directory / name).exists() for name in _SAVED):
        return SplitFiles("saved", {"train": [directory]})
    entries, groups = _visible(directory), defaultdict(list)
    unread: list[str] = []
    for entry in entries:
        for file in [entry] if entry.is_file() else _visible(entry):
            if formats.suffix(file) in formats.FILES and file.is_file():
                groups[_without_part(entry)].append(file)
            else:
                unread.append(str(file.relative_to(directory)))
    if [entry.name for entry in entries if entry.is_dir()] == [*groups] == ["data"]:
        return _find_in_directory(directory / "data", split_names)  # as on the Hub
    if not groups and (classes := find_classes(directory, (".txt",), split_names)):
        return classes
    try:
        return _choose_files(str(directory), groups, split_names, unread)
    except NoTrainSplit as error:
        if not groups:
            raise
        suffix = next(iter(groups.values()))[0].suffix
        hint = f"--dataset {shlex.quote(f'{directory}/*{suffix}')} reads all as one"
        raise NoTrainSplit(f"{error}; {hint}", error.splits) from None


def _choose_files(
    dataset: str,
    groups: Mapping[str, Sequence[Path]],
    split_names: Mapping[str, str],
    unread: Sequence[str] = (),
) -> SplitFiles:
    """Return the files of splits of which nothing is missing or double; ``others`` are not read."""
    chosen, facts = choose_splits(dataset, groups, split_names)
    files = {split: groups[name] for split, name in chosen.items()}
    mistakes = []
    for split, paths in files.items():
        stems = [formats.stem(path) for path in paths]
        parts = [part for part in map(_PART.search, stems) if part]
        totals = sorted({int(part["total"]) for part in parts if part["total"]})
        is_double = chosen[split] in stems or len({path.parent for path in paths}) > 1
        if len(paths) > 1 and is_double:
            mistakes.append(
                f"expected one file for '{split}', or its parts in one folder, found "
                f"{_list_names([path.name for path in paths])}"
            )
        elif len(totals) > 1 or len(parts) < max(totals, default=0):
            mistakes.append(
                f"'{split}' has {len(parts)} of {' or '.join(map(str, totals))} parts: download "
                "the others, or to train on these, rename them without -of-NUMBER"
            )
    if mistakes:
        raise UserError(*(f"{dataset}: {mistake}" for mistake in mistakes))
    if unread:
        facts.append(f"not read: {_list_names(unread)}")
    return SplitFiles("tables", files, facts=facts)


def find_classes(
    directory: Path, suffixes: Collection[str], split_names: Mapping[str, str]
) -> SplitFiles | None:
    """Return the files in folders of their classes, alone or below folders of the splits.

    Args:
        directory: That has the folders.
        suffixes: Of the files, in lower case.
        split_names: As :func:`parse_split_names` returns them.

    Returns:
        The files and their labels, or None if there are none.
    """
    classes: dict[str, list[Path]] = defaultdict(list)
    splits: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    unread, outside = [], []
    for path in sorted(directory.rglob("*"), key=_natural_order):
        parts = path.relative_to(directory).parts
        if any(map(is_hidden, parts)) or not path.is_file():
            continue
        if path.suffix.lower() not in suffixes or len(parts) == 1:
            unread.append("/".join(parts))
            continue
        classes[parts[0]].append(path)
        if len(parts) == 2:
            outside.append("/".join(parts))
        else:
            splits[parts[0]][parts[1]].append(path)
    facts: list[str] = []
    if split_names or any(map(guess_split, splits)):
        chosen, facts = choose_splits(str(directory), splits, split_names)
        groups = {split: splits[name] for split, name in chosen.items()}
        unread += outside
    elif classes:  # "test" may be a class
        groups = {"train": classes}
    else:
        return None
    if unread:
        facts.append(f"not read: {_list_names(unread)}")
    files: dict[str, list[Path]] = defaultdict(list)
    labels: dict[str, list[str]] = defaultdict(list)
    for split, group in groups.items():
        for label, paths in group.items():
            files[split] += paths
            labels[split] += [label] * len(paths)
    return SplitFiles("classes", files, labels, facts)


def is_hidden(name: str) -> bool:
    """Return whether systems put a file there: ``.DS_Store``, ``._cat.png``, ``__MACOSX``."""
    return name.startswith((".", "__"))


def _without_part(path: Path) -> str:
    stem = formats.stem(path)
    return path.name if path.is_dir() else _PART.sub("", stem) or stem


def _visible(folder: Path) -> list[Path]:
    paths = [path for path in folder.iterdir() if not is_hidden(path.name)]
    return sorted(paths, key=_natural_order)


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a key by which part 2 comes before part 10."""
    pieces = re.split(r"(\d+)", str(path))
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
