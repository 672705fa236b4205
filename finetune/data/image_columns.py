"""Which column of a table holds images or their paths, and which of them can be decoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset, DatasetDict, Image, Value

from finetune.data import ROW, columns, images
from finetune.data.headers import separator_hint
from finetune.errors import UserError, counted, suggestion

_LOOKED_AT = 200  # rows
_OF_WINDOWS = re.compile(r"\\|^[A-Za-z]:/")
_MOST_NAMED = 5


def columns_of(dataset: DatasetDict, image_column: str, label_column: str) -> tuple[str, str]:
    """Return the columns of the images, or their paths, and of the labels.

    Args:
        dataset: As it was read.
        image_column: Its name; if empty, the only one that holds images or paths is chosen.
        label_column: Its name; if empty, the only one that looks like labels is chosen.

    Raises:
        UserError: if there is no such column, or not exactly one; it lists those there are.
    """
    rows, mistakes = dataset["train"], []
    names = [name for name in rows.column_names if name != ROW]
    for flag, column in (("--image_column", image_column), ("--label_column", label_column)):
        lacking = [split for split, each in dataset.items() if column not in each.column_names]
        if column and lacking:
            mistakes.append(
                f"{flag}: no column '{column}' in the {' and '.join(lacking)} data"
                f"{separator_hint(names) or suggestion(column, names)} "
                f"(available: {', '.join(names)})"
            )
        elif column == ROW:
            mistakes.append(f"{flag} id: the toolkit numbers rows in a column of that name")
    if mistakes:
        raise UserError(*mistakes)
    if image_column and not _holds_images(rows, image_column, is_path=bool):
        raise UserError(
            f"--image_column: the column '{image_column}' holds neither images nor paths but "
            f"{rows.features[image_column]}"
        )
    if not image_column:
        found = [name for name in names if _holds_images(rows, name, is_path=_never)]
        for is_path in (_is_path, _is_url):
            found = found or [name for name in names if _holds_images(rows, name, is_path=is_path)]
        several = f"several columns could be the image ({', '.join(found)})"
        none = f"no column holds images or paths of images (available: {', '.join(names)})"
        if len(found) != 1:
            raise UserError(f"--image_column: {several if found else none}")
        image_column = found[0]
    if image_column == label_column:
        raise UserError(f"--image_column and --label_column are both '{image_column}'")
    if not label_column and "label" in names:
        return image_column, "label"
    return image_column, columns.find_columns(rows, [image_column], label_column)[1]


def _holds_images(rows: Dataset, name: str, is_path: Callable[[str], bool]) -> bool:
    feature = rows.features[name]
    if isinstance(feature, Image):
        return True
    if isinstance(feature, dict):
        return {"bytes", "path"} == set(feature)
    kind = str(getattr(feature, "dtype", ""))
    if "binary" in kind:
        return True
    if "string" not in kind:
        return False
    some = [each for each in rows.select_columns(name)[:_LOOKED_AT][name] if each is not None]
    return bool(some) and all(map(is_path, some))


def _never(value: str) -> bool:
    """Return that a text is no path: a column of images goes before one of paths."""
    return False


def _is_path(value: str) -> bool:
    return Path(value).suffix.lower() in images.SUFFIXES


def _is_url(value: str) -> bool:
    return "://" in value


def _refuse_elsewhere(column: str, files: Sequence[str | None]) -> None:
    """Refuse a column of which most are URLs, or paths that only Windows can read."""
    paths = [each for each in files if each]
    found = [each for each in paths if _is_url(each) or _OF_WINDOWS.search(each)]
    if 2 * len(found) <= len(paths):
        return
    kind, mend = "paths of Windows", "write them relative to the table and with slashes, as a/1.png"
    if _is_url(found[0]):
        kind, mend = "URLs", "download the images, and write their paths, relative to the table"
    raise UserError(f"--image_column: '{column}' holds {kind}, such as '{found[0]}': {mend}")


def with_images(rows: Dataset, column: str, dataset: str) -> Dataset:
    """Return rows whose column ``image`` holds images; their paths stay beside it, as ``file``.

    Args:
        rows: As they were read.
        column: Of the images or of their paths.
        dataset: The table, to whose folder paths are relative; or any other source.

    Raises:
        UserError: if another column is called ``image``, or the paths are none of this system.
    """
    if column != "image" and "image" in rows.column_names:
        raise UserError(
            f"--image_column {column}: the data has another column 'image'; rename or remove it"
        )
    if "string" in str(getattr(rows.features[column], "dtype", "")):
        path = Path(dataset).expanduser().absolute()
        folder = path if path.is_dir() else path.parent
        files: list[str | None] = rows[column][:]
        _refuse_elsewhere(column, files)
        whole = [file and str(folder / Path(file).expanduser()) for file in files]
        if "file" not in rows.column_names:
            rows = rows.rename_column(column, "file")
        elif column == "image":
            rows = rows.remove_columns(column)
        rows = rows.add_column("image", whole, feature=Value("string"))
    elif column != "image":
        rows = rows.rename_column(column, "image")
    return rows.cast_column("image", Image())


def inspected(
    dataset: DatasetDict,
    *,
    drop: bool,
    note: Callable[[str], None],
    places: Callable[[str, list[int]], str],
) -> tuple[DatasetDict, dict[str, np.ndarray]]:
    """Return ``dataset`` without images that are missing or cannot be decoded, and hashes of all.

    Args:
        dataset: Splits with row number and ``image``, as they were read.
        drop: Whether to drop such rows instead of refusing them.
        note: Called with sentences about what was dropped, and where ``pipeline()`` differs.
        places: Returns the positions of rows of a split, by number; empty where paths say it.

    Returns:
        The splits; of each split the hashes by row number, shape ``(rows, 16)``, uint8.

    Raises:
        UserError: if there are such rows and ``drop`` is false; it counts and names them.
    """
    mistakes, kept, hashes = [], {}, {}
    for split, rows in dataset.items():
        found = images.inspect(rows, "image", f"images of {split}")
        hashes[split] = found.digests
        bad = found.kinds >= images.MISSING
        kept[split] = rows.select(np.flatnonzero(~bad)) if bad.any() else rows
        whole = len(rows)
        if count := found.count(images.MISSING):
            where = places(split, np.flatnonzero(found.kinds == images.MISSING).tolist())
            mistakes.append(f"{count:,} of {whole:,} {split} rows without an image: {where}")
        if count := found.count(images.UNREADABLE):
            unread = np.flatnonzero(found.kinds == images.UNREADABLE)
            such = "; ".join(_reasons(rows.select(unread[:_MOST_NAMED])))
            more = f"; and {count - _MOST_NAMED:,} more" if count > _MOST_NAMED else ""
            where = places(split, unread.tolist())
            mistakes.append(
                f"{count:,} of {whole:,} {split} images cannot be decoded: {such}{more}"
                + (f" ({where})" if where else "")
            )
        if count := found.count(images.TRANSPARENT):
            note(
                f"{counted(count, f'{split} image')} with transparent pixels: they are made white "
                "(pipeline() ignores transparency)"
            )
        if count := found.count(images.DEEP):
            note(
                f"{counted(count, f'{split} image')} of 16 bits a pixel: scaled to 8 bits "
                "(pipeline() clips them)"
            )
    if mistakes and not drop:
        hint = "; --drop_invalid leaves them out" * all(len(rows) for rows in kept.values())
        raise UserError(*(f"{each}{hint}" for each in mistakes))
    for each in mistakes:
        note(f"dropped {each}")
    return DatasetDict(kept), hashes


def _reasons(rows: Dataset) -> Iterator[str]:
    """Yield the paths of unreadable images with what is wrong with each."""
    for row in rows.cast_column("image", Image(decode=False)):
        image = row["image"]
        try:
            images.decoded(image, f"row {row[ROW]}")
        except UserError as error:
            yield str(error).replace(" cannot be decoded as an image:", ":")
