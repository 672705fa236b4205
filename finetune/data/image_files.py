"""Read images that lie in folders named by their classes.

A data set of folders has a folder for each class, the images anywhere below it; or such folders
below ``train``, ``validation`` and ``test``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from datasets import Dataset, DatasetDict, Features, Image, Value

from finetune.data import ROW, images
from finetune.data.files_of_splits import KEYWORDS, SPLITS
from finetune.data.label_columns import list_names
from finetune.errors import Report, UserError, counted
from finetune.runtime import formats

_MOST_NAMED = 5


def are_folders(dataset: str) -> bool:
    """Return whether a data set is a directory of folders, without a table ``train.*`` in it."""
    directory = Path(dataset).expanduser()
    return directory.is_dir() and not any(
        each.is_file() and each.stem in SPLITS and each.suffix.lower() not in images.SUFFIXES
        for each in directory.iterdir()
    )


def are_classes(dataset: str) -> bool:
    """Return whether a data set is a directory of folders of classes, not of splits."""
    directory = Path(dataset).expanduser()
    return are_folders(dataset) and _splits(directory) == {"train": directory}


def read_folders(dataset: str, report: Report) -> DatasetDict:
    """Return row number, ``image``, ``file`` and ``label`` of the images below a directory.

    Args:
        dataset: The directory.
        report: Gets the files that are not read.

    Raises:
        UserError: if it holds no folders of classes, or images outside of them.
    """
    directory = Path(dataset).expanduser()
    splits = _splits(directory)
    return DatasetDict({name: _read(path, directory, report) for name, path in splits.items()})


def _splits(directory: Path) -> dict[str, Path]:
    """Return the folder of each split; the directory itself is ``train`` if it has none."""
    folders = _folders(directory)
    found: dict[str, list[Path]] = {}
    for path in folders:
        if split := KEYWORDS.get(path.name.lower()):
            found.setdefault(split, []).append(path)
    if not found or not any(_folders(path) for several in found.values() for path in several):
        return {"train": directory}  # "test" may be a class
    mistakes = [
        f"{directory}: expected one folder for '{split}', found "
        f"{' and '.join(path.name for path in several[:2])}"
        for split, several in found.items()
        if len(several) > 1
    ]
    if "train" not in found:
        mistakes.append(
            f"{directory}: expected a folder 'train' beside {list_names(_names(found))}, with a "
            "folder for each class in it"
        )
    known = {path for several in found.values() for path in several}
    if others := [path.name for path in folders if path not in known]:
        mistakes.append(
            f"{directory}: {list_names(others)} {'is' if len(others) == 1 else 'are'} neither "
            "train, validation nor test: classes belong into these folders"
        )
    if mistakes:
        raise UserError(*mistakes)
    return {split: found[split][0] for split in SPLITS if split in found}


def _names(found: dict[str, list[Path]]) -> list[str]:
    return [path.name for several in found.values() for path in several]


def _read(folder: Path, directory: Path, report: Report) -> Dataset:
    """Return the images of a split, by class and name."""
    classes, paths, labels, others = _folders(folder), [], [], []
    if loose := [path.name for path in sorted(folder.iterdir()) if is_image(path)]:
        raise UserError(
            f"{folder}: {counted(len(loose), 'image')} outside of the folders of the classes "
            f"({list_names(loose)}): expected a folder for each class, or --dataset TABLE with a "
            f"table of paths and labels{_tables(folder)}"
        )
    if not classes:
        raise UserError(
            f"{folder}: expected a folder for each class with its images, or --dataset TABLE with "
            f"a table of paths and labels{_tables(folder)}"
        )
    for path in classes:
        below = sorted(each for each in path.rglob("*") if each.is_file() and not _hidden(each))
        found = [each for each in below if is_image(each)]
        others += [each for each in below if not is_image(each)]
        paths += found
        labels += [path.name] * len(found)
        if not found:
            report.info(f"{path} has no images: no class '{path.name}'")
    if others:
        names = list_names([str(each.relative_to(directory)) for each in others])
        report.info(f"not read, expected {', '.join(images.SUFFIXES)}: {names}")
    found_rows = {
        ROW: np.arange(len(paths)),
        "image": [str(path.absolute()) for path in paths],
        "file": [str(path.relative_to(directory)) for path in paths],
        "label": labels,
    }
    types = {ROW: Value("int64"), "file": Value("string"), "label": Value("string")}
    return Dataset.from_dict(found_rows, Features({**types, "image": Image()}))


def _tables(folder: Path) -> str:
    """Return which tables lie there, to be named instead of the folder."""
    there = [
        str(path) for path in sorted(folder.iterdir()) if formats.suffix(path) in formats.FILES
    ]
    return f" (found: {', '.join(there[:_MOST_NAMED])})" if there else ""


def is_image(path: Path) -> bool:
    """Return whether a file has the name of an image."""
    return path.suffix.lower() in images.SUFFIXES and path.is_file() and not _hidden(path)


def below(folder: Path) -> list[str]:
    """Return the images anywhere below a folder, relative to it, sorted."""
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if is_image(each))


def _folders(directory: Path) -> list[Path]:
    return sorted(each for each in directory.iterdir() if each.is_dir() and not _hidden(each))


def _hidden(path: Path) -> bool:
    """Return whether systems put a file there: ``.DS_Store``, ``._cat.png``, ``__MACOSX``."""
    return path.name.startswith((".", "__"))
