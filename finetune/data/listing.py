"""Which files a data set is made of: one, several that a pattern names, or those of a directory."""

from __future__ import annotations

import glob
import itertools
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from finetune.data import read, split_names
from finetune.data.split_names import OTHER_NAMES, SPLITS, NoTrainSplit
from finetune.errors import UserError, suggestion
from finetune.runtime import formats

#: Suffixes of data that is not read as it is, among others.
_DATA = {each[1:] for each in formats.FILES} | {"xz", "txt"}
#: What follows the name of a split in that of a part of it: ``train-00000-of-00002``, ``train_1``.
_PART = r"[-_.]?(?:part[-_.]?)?(?P<number>\d+)(?:[-_]of[-_](?P<of>\d+))?"
#: How a name begins that ends with a day or a month: files of days are no parts.
_DATE = re.compile(r"\d{4}(?:[-_.]?\d{2})?$")
_SAVED = ("dataset_dict.json", "state.json")
_SHOWN = 10
#: The name, in ``--dataset_splits``, of a validation or test split that is not to be read.
NONE = "none"

Kind = Literal["rows", "texts", "saved"]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a data set.

    Attributes:
        kind: Files of rows, texts in folders of their classes, or a directory that ``datasets``
            saved.
        files: Of each split, in the order of their rows; of a saved data set its directory.
        unread: Names of data files that lie there, too, and are not read.
        gaps: A sentence for each series of files of which some seem to be missing.
    """

    kind: Kind = "rows"
    files: Mapping[str, Sequence[Path]]
    unread: Sequence[str] = field(default_factory=list)
    gaps: Sequence[str] = field(default_factory=list)


def listed(dataset: str, names: Mapping[str, str] | None = None) -> Listing:
    """Return the files of each split of a local data set.

    Args:
        dataset: A file, a directory or a pattern such as ``data/train-*.parquet``.
        names: What splits are called there, where that is not their usual name; of :data:`NONE`
            they are not read.

    Raises:
        UserError: if there are none, or if it is not clear which they are.
    """
    called = called_splits(names)
    if is_pattern(dataset):
        return _matching(dataset, called)
    path = read.existing(dataset)
    if path.is_dir():
        return _below(path, called)
    if names:
        raise UserError(f"--dataset_splits: {dataset} is a single file, whose rows are split off")
    return Listing(files={"train": [_readable(path)]})


def called_splits(names: Mapping[str, str] | None) -> dict[str, str]:
    """Return what a source calls the splits that are read, by our names."""
    called = {split: split for split in SPLITS} | dict(names or {})
    return {split: name for split, name in called.items() if name != NONE}


def unread(split: str) -> str:
    """Return what to type if the labels of a held-out split are hidden, to follow a sentence."""
    return (
        f"; if its labels are hidden, --dataset_splits {split}={NONE} does not read the split, and "
        "splits off another one"
    )


def is_pattern(dataset: str) -> bool:
    """Return whether a data set is a pattern of names of files."""
    return any(each in dataset for each in "*?[") and not Path(dataset).expanduser().exists()


def _readable(path: Path) -> Path:
    """Return a file that can be read.

    Raises:
        UserError: if it is of no format that is known.
    """
    if formats.suffix(path) not in formats.FILES:
        known = ", ".join(formats.FILES)
        hint = read.conversion_hint(path)
        raise UserError(f"cannot read {path}: expected a file ending in {known}{hint}")
    return path


def _matching(pattern: str, called: Mapping[str, str]) -> Listing:
    """Return the files that a pattern names, all of ``train`` if none is named like a split."""
    there = [Path(each) for each in glob.glob(str(Path(pattern).expanduser()), recursive=True)]
    found = sorted((path for path in there if path.is_file()), key=_natural)
    if not found:
        raise UserError(
            f"--dataset '{pattern}': no file has such a name"
            + (", only directories" if there else "")
        )
    several = [_readable(path) for path in found]
    splits = _by_split(several, called) or _by_split(several, called, by_folder=True)
    if not splits:
        if advice := _of_splits(several):
            raise UserError(
                f"--dataset '{pattern}': "
                f"{', '.join(path.name for path in several[:_SHOWN])} would all be trained on, and "
                f"some are named like held-out data; {advice}, or rename those that are not"
            )
        return Listing(files={"train": several}, gaps=_gaps(several))
    return _complete(pattern, splits, called, several)


def _below(directory: Path, called: Mapping[str, str]) -> Listing:
    """Return the files of a directory."""
    if any((directory / each).exists() for each in _SAVED):
        return Listing(kind="saved", files={"train": [directory]})
    there = _visible(directory)
    folders = [each for each in there if each.is_dir()]
    readable = [each for each in there if each.is_file() and formats.suffix(each) in formats.FILES]
    inside = [each for folder in folders for each in _rows_in(folder)]
    splits = _by_split(readable, called)
    for split, some in _by_split(inside, called, by_folder=True).items():
        if split in splits:
            both = f"{splits[split][0].name} and the folder {some[0].parent.name}"
            raise UserError(f"{directory}: expected one place for '{split}', found {both}")
        splits[split] = some
    mistakes = [f"{directory}: {each}" for each in _misnamed(there, called, splits, _rows_in)]
    if "train" in splits and not mistakes:
        found = _complete(str(directory), splits, called, [*readable, *inside])
        used = {path.parent for several in splits.values() for path in several} - {directory}
        known = {*inside}
        others = [
            f"{each.relative_to(directory)}{'/' * each.is_dir()}"
            for folder in sorted(used)
            for each in _visible(folder)
            if each not in known
        ]
        return replace(found, unread=[*found.unread, *others])
    if not splits and not mistakes:
        if len(folders) == 1 and folders[0].name == "data" and not readable:
            return _below(folders[0], called)  # as data sets on the Hub are laid out
        if not readable and (texts := _of_texts(directory, called)):
            return texts
    if "train" not in splits:
        mistakes.append(
            f"{directory}: expected a file {called['train']}{'|'.join(formats.FILES)} (and "
            "validation, test if there are any), found "
            f"{', '.join(each.name for each in there[:_SHOWN]) or 'nothing'}{_advice(readable)}"
        )
        if len(mistakes) == 1:
            raise NoTrainSplit(mistakes[0], splits)
    raise UserError(*mistakes)


def _advice(readable: Sequence[Path]) -> str:
    """Return what to type if files of rows lie in a directory that have no names of splits."""
    if not readable:
        return ""
    if len(readable) == 1:
        return f": for its rows, --dataset {shlex.quote(str(readable[0]))}"
    if advice := _of_splits(readable):
        return f": {advice}"
    pattern = shlex.quote(str(readable[0].parent / f"*{readable[0].suffix}"))
    return f": to read several files as one, --dataset {pattern}"


def _of_splits(several: Sequence[Path]) -> str:
    """Return how to read files whose names say which split they are; empty if they do not."""
    whole = [formats.stem(path) for path in several]
    advice = split_names.advice([re.sub(f"{_PART}$", "", stem) or stem for stem in whole])
    is_clear = len(set(whole)) == len(whole)  # else they are of several folders or formats
    return advice if is_clear or not advice else split_names.FOLDERS


def _rows_in(folder: Path) -> list[Path]:
    return [each for each in _visible(folder) if formats.suffix(each) in formats.FILES]


def _by_split(
    several: Sequence[Path], called: Mapping[str, str], *, by_folder: bool = False
) -> dict[str, list[Path]]:
    """Return the files that are named like a split, or lie in a folder that is; parts in order."""
    found: dict[str, list[Path]] = {}
    for split, name in called.items():
        part = re.compile(re.escape(name) + _PART)
        some = [
            path
            for path in several
            if (path.parent.name if by_folder else formats.stem(path)) == name
            or (not by_folder and part.fullmatch(formats.stem(path)))
        ]
        if some:
            found[split] = sorted(some, key=_natural)
    return found


def _complete(
    where: str, splits: Mapping[str, list[Path]], called: Mapping[str, str], there: Sequence[Path]
) -> Listing:
    """Return the listing of splits of which no part is missing or there twice.

    Raises:
        UserError: if it is not so.
    """
    if "train" not in splits:
        found = ", ".join(path.name for several in splits.values() for path in several[:_SHOWN])
        raise NoTrainSplit(f"{where}: expected files of '{called['train']}', found {found}", splits)
    mistakes = [
        f"{where}: --dataset_splits {split}={name}: no such file{suggestion(name, _stems(there))}"
        for split, name in called.items()
        if split != name and split not in splits
    ]
    for split, several in splits.items():
        parts = [re.fullmatch(f".*?{_PART}", formats.stem(path)) for path in several]
        whole = [path for path in several if formats.stem(path) == called[split]]
        if len(several) > 1 and whole:
            two = " and ".join(path.name for path in several[:2])
            mistakes.append(f"{where}: expected one file for '{split}', found {two}")
        numbers = {int(part["number"]) for part in parts if part and part["of"]}
        expected = {int(part["of"]) for part in parts if part and part["of"]}
        if len(expected) > 1:
            counts = " and ".join(map(str, sorted(expected)))
            mistakes.append(
                f"{where}: the parts of '{split}' are of two exports, of {counts} parts: remove "
                "those of the older one"
            )
        elif expected and len(numbers) < (most := expected.pop()):
            mistakes.append(
                f"{where}: '{split}' has {len(numbers)} of {most} parts, the last that is there is "
                f"{several[-1].name}: download the others, or to train on these, rename them "
                f"without -of-{most:05}"
            )
    if mistakes:
        raise UserError(*mistakes)
    read = {path for several in splits.values() for path in several}
    unread = sorted({path.name for path in {*there} - read})
    gaps = [gap for split in SPLITS for gap in _gaps(splits.get(split, ()))]
    return Listing(files={s: splits[s] for s in SPLITS if s in splits}, unread=unread, gaps=gaps)


def _gaps(several: Sequence[Path]) -> list[str]:
    """Return a sentence for each series of files, ``a_1`` and ``a_3``, of which parts are missing:
    fewer than there are, or any where the names say how many there should be.
    """
    series: dict[tuple[str, str, str | None], dict[int, Path]] = {}
    for path in several:
        part = re.fullmatch(f"(?P<name>.*?){_PART}", formats.stem(path))
        if part and not _DATE.search(part["name"]):
            key = (str(path.parent), part["name"], part["of"])
            series.setdefault(key, {})[int(part["number"])] = path
    gaps = []
    for (_, _, of), parts in series.items():
        numbers = sorted(parts)
        last = numbers[-1] if of is None else max(int(of) - (numbers[0] == 0), numbers[-1])
        first = numbers[0] if of is None else min(numbers[0], 1)
        lacking = last + 1 - first - len(numbers)
        if lacking and (of or lacking < len(numbers)):
            each = (str(n) for n in range(first, last + 1) if n not in parts)
            shown = ", ".join(itertools.islice(each, _SHOWN)) + ", ..." * (lacking > _SHOWN)
            gaps.append(
                f"{parts[numbers[0]].name} to {parts[numbers[-1]].name}: "
                f"no part{'s' * (lacking > 1)} {shown}; is a file missing?"
            )
    return gaps


def _misnamed(
    there: Sequence[Path],
    called: Collection[str],
    found: Collection[str],
    inside: Callable[[Path], Sequence[Path]],
) -> list[str]:
    """Return a sentence for what was probably meant to be one of the missing splits.

    Args:
        there: What is in the directory: files, parts of several, and folders.
        called: The splits that are to be read.
        found: Those that are not missing.
        inside: Returns what a folder holds of a split.
    """
    mistakes = []
    for path in there:
        stem, *suffixes = path.name.lower().split(".")
        name = re.sub(f"{_PART}$", "", stem)
        split = OTHER_NAMES.get(name, name)
        if split not in called or split in found:
            continue
        if path.is_dir():
            expected, is_data = f"a folder {split}", bool(inside(path))
        else:
            expected = f"{split}.{{{','.join(each[1:] for each in formats.FILES)}}}"
            is_data = not _DATA.isdisjoint(suffixes)
        if is_data:
            mistakes.append(
                f"{path.name} would not be read; expected {expected}"
                + (f", or --dataset_splits {split}={name}" if name in OTHER_NAMES else "")
            )
    return mistakes


def _of_texts(directory: Path, called: Mapping[str, str]) -> Listing | None:
    """Return the texts in folders of their classes, alone or in folders of the splits."""
    splits = {split: directory / name for split, name in called.items()}
    splits = {split: folder for split, folder in splits.items() if _classes(folder)}
    if "train" not in splits:  # "test" may be a class
        splits = {"train": directory}
    elif mistakes := _misnamed(sorted(directory.iterdir()), called, splits, _classes):
        raise UserError(*(f"{directory}: {each}" for each in mistakes))
    classes = {split: _classes(folder) for split, folder in splits.items()}
    found = {
        split: [path for folder in folders for path in _texts_in(folder)]
        for split, folders in classes.items()
    }
    beside = [each for folder in splits.values() for each in _files_in(folder)]
    of_classes = [folder for folders in classes.values() for folder in folders]
    inside = [each for folder in of_classes for each in _files_in(folder)]
    read = {path for several in found.values() for path in several}
    known = {*read, *splits.values(), *of_classes}
    others = [
        f"{each.relative_to(directory)}/"
        for folder in (*splits.values(), *of_classes)
        for each in _visible(folder)
        if each not in known and each.is_dir()
    ]
    texts = [each for each in beside if each.suffix.lower() == ".txt"]
    unread = [str(each.relative_to(directory)) for each in [*texts, *inside] if each not in read]
    if not found["train"]:
        return None
    return Listing(kind="texts", files=found, unread=[*others, *unread])


def _files_in(folder: Path) -> list[Path]:
    return [each for each in _visible(folder) if each.is_file()]


def _classes(folder: Path) -> list[Path]:
    """Return the folders in a folder that hold texts."""
    if not folder.is_dir():
        return []
    return [each for each in _visible(folder) if each.is_dir() and _texts_in(each)]


def _texts_in(folder: Path) -> list[Path]:
    return [each for each in _visible(folder) if each.suffix.lower() == ".txt"]


def _stems(there: Sequence[Path]) -> list[str]:
    return [formats.stem(path) for path in there]


def _visible(folder: Path) -> list[Path]:
    """Return what is in a folder, but for what systems and programs put there."""
    there = (each for each in folder.iterdir() if not each.name.startswith((".", "_")))
    return sorted(there, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a key by which part 2 comes before part 10."""
    return [
        (int(each), "") if each.isdecimal() else (-1, each)
        for each in re.split(r"(\d+)", str(path))
    ]
