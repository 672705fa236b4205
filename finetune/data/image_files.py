"""Folders of images: one for each class, alone or below the names of splits."""

from __future__ import annotations

from pathlib import Path

from datasets import Dataset, DatasetDict, Features, Image, Value

from finetune.data import images
from finetune.data.files_of_splits import SPLITS, find_classes, guess_split, is_hidden
from finetune.data.sources import number_rows
from finetune.errors import Report


def are_folders(dataset: str) -> bool:
    """Return whether a data set is a directory of folders, without a table ``train.*`` in it."""
    directory = Path(dataset).expanduser()
    return directory.is_dir() and not any(
        path.is_file() and path.stem in SPLITS and not is_image(path)
        for path in directory.iterdir()
    )


def are_classes(dataset: str) -> bool:
    """Return whether a data set is a directory of folders of classes, not of splits."""
    return are_folders(dataset) and not any(
        guess_split(folder.name) and any(path.is_dir() for path in folder.iterdir())
        for folder in Path(dataset).expanduser().iterdir()
        if folder.is_dir()
    )


def read_folders(dataset: str, report: Report) -> DatasetDict:
    """Return ``_row``, ``image``, ``file`` and ``label`` of the images below a directory.

    ``report`` gets a fact about files that are not read.

    Raises:
        UserError: If it holds no folders of classes.
    """
    directory = Path(dataset).expanduser()
    found = find_classes(directory, images.SUFFIXES, {})
    if found is None:
        report.fail(
            f"{directory}: expected a folder of images ({', '.join(images.SUFFIXES)}) for each "
            "class, or --dataset TABLE with a table of paths and labels"
        )
    for fact in found.facts:
        report.info(fact)
    features = Features({"file": Value("string"), "label": Value("string"), "image": Image()})
    splits = {}
    for split, paths in found.files.items():
        columns = {
            "image": [str(path.absolute()) for path in paths],
            "file": [str(path.relative_to(directory)) for path in paths],
            "label": found.labels[split],
        }
        splits[split] = Dataset.from_dict(columns, features)
    return number_rows(DatasetDict(splits))


def is_image(path: Path) -> bool:
    """Return whether a file has the name of an image."""
    return path.suffix.lower() in images.SUFFIXES and path.is_file() and not is_hidden(path.name)


def below(folder: Path) -> list[str]:
    """Return the images anywhere below a folder, relative to it, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if is_image(path))
