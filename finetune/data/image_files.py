"""Folders of images: one for each class, or such folders below the names of splits.

Split folders have the names that ``datasets``' ``imagefolder`` takes for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset, DatasetDict, Features, Image, Value
from datasets.data_files import SPLIT_KEYWORDS

from finetune.data import ROW, images
from finetune.errors import Report, counted
from finetune.runtime import formats

_SPLITS = {word: str(split) for split, words in SPLIT_KEYWORDS.items() for word in words}
_MOST_NAMED = 5


def are_folders(dataset: str) -> bool:
    """Return whether a data set is a directory of folders, without a table ``train.*`` in it."""
    directory = Path(dataset).expanduser()
    return directory.is_dir() and not any(
        path.is_file() and path.stem in _SPLITS.values() and not is_image(path)
        for path in directory.iterdir()
    )


def are_classes(dataset: str) -> bool:
    """Return whether a data set is a directory of folders of classes, not of splits."""
    return are_folders(dataset) and not _split_folders(Path(dataset).expanduser())


def read_folders(dataset: str, report: Report) -> DatasetDict:
    """Return ``_row``, ``image``, ``file`` and ``label`` of the images below a directory.

    Args:
        dataset: The directory.
        report: Gets a fact about files that are not read.

    Raises:
        UserError: If it holds no folders of classes, or images outside of them.
    """
    directory = Path(dataset).expanduser()
    folders = _split_folders(directory) or {"train": [directory]}
    for split, paths in folders.items():
        if len(paths) > 1:
            report.error(
                f"{directory}: expected one folder for '{split}', found "
                f"{' and '.join(path.name for path in paths[:2])}"
            )
    if "train" not in folders:
        report.error(
            f"{directory}: expected a folder 'train' beside {_name_some([*folders])}, with a "
            "folder for each class in it"
        )
    others = {*_folders(directory)} - {path for paths in folders.values() for path in paths}
    if directory not in folders.get("train", []) and others:
        report.error(
            f"{directory}: {_name_some(sorted(path.name for path in others))}: expected only "
            "train, validation and test beside each other; classes belong into these folders"
        )
    report.raise_errors()
    order = [split for split in ("train", "validation", "test") if split in folders]
    return DatasetDict({split: _read(folders[split][0], directory, report) for split in order})


def _split_folders(directory: Path) -> dict[str, list[Path]]:
    """Return the folders of each split; none if the folders are classes."""
    splits: dict[str, list[Path]] = {}
    for path in _folders(directory):
        if split := _SPLITS.get(path.name.lower()):
            splits.setdefault(split, []).append(path)
    has_classes = any(_folders(path) for paths in splits.values() for path in paths)
    return splits if has_classes else {}  # "test" may be a class


def _read(folder: Path, directory: Path, report: Report) -> Dataset:
    """Return the images of a split, by class and name."""
    tables = [str(path) for path in sorted(folder.iterdir())
              if formats.suffix(path) in formats.FILES]  # fmt: skip
    advice = "expected a folder for each class, or --dataset TABLE with a table of paths and labels"
    advice += f" (found: {', '.join(tables[:_MOST_NAMED])})" if tables else ""
    if loose := [path.name for path in sorted(folder.iterdir()) if is_image(path)]:
        report.fail(
            f"{folder}: {counted(len(loose), 'image')} outside of the folders of the classes "
            f"({_name_some(loose)}): {advice}"
        )
    if not (classes := _folders(folder)):
        report.fail(f"{folder}: {advice}")
    paths: list[Path] = []
    labels: list[str] = []
    unread: list[str] = []
    for path in classes:
        files = sorted(file for file in path.rglob("*") if file.is_file() and not _is_hidden(file))
        image_paths = [file for file in files if is_image(file)]
        unread += [str(file.relative_to(directory)) for file in files if not is_image(file)]
        paths += image_paths
        labels += [path.name] * len(image_paths)
        if not image_paths:
            report.info(f"{path} has no images: no class '{path.name}'")
    if unread:
        report.info(f"not read, expected {', '.join(images.SUFFIXES)}: {_name_some(unread)}")
    columns = {
        ROW: np.arange(len(paths)),
        "image": [str(path.absolute()) for path in paths],
        "file": [str(path.relative_to(directory)) for path in paths],
        "label": labels,
    }
    text, number = Value("string"), Value("int64")
    features = Features({ROW: number, "file": text, "label": text, "image": Image()})
    return Dataset.from_dict(columns, features)


def _name_some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + ", ..." * (len(names) > _MOST_NAMED)


def is_image(path: Path) -> bool:
    """Return whether a file has the name of an image."""
    return path.suffix.lower() in images.SUFFIXES and path.is_file() and not _is_hidden(path)


def below(folder: Path) -> list[str]:
    """Return the images anywhere below a folder, relative to it, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if is_image(path))


def _folders(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir() and not _is_hidden(path))


def _is_hidden(path: Path) -> bool:
    """Return whether systems put a file there: ``.DS_Store``, ``._cat.png``, ``__MACOSX``."""
    return path.name.startswith((".", "__"))
