"""Images: which column has them, what is wrong with them, and their pixels as RGB.

Whatever a file holds becomes eight bits of red, green and blue, upright. Transparent pixels become
white. ``transformers.pipeline`` ignores transparency and clips 16 bits, so such images are counted.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Dataset, DatasetDict, Value
from PIL import Image, ImageOps

from finetune.data import ROW
from finetune.errors import Report, UserError, counted, suggestion
from finetune.runtime import activity

#: Suffixes of files that are taken for images.
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_PLAIN, _TRANSPARENT, _DEEP, _MISSING, _UNREADABLE = range(5)
_BATCH = 512  # images in memory, not decoded
_DIGEST_SIZE = 16  # bytes
_MOST_THREADS = 8
_THUMBNAIL = 64  # pixels
_SAMPLED_ROWS = 200
_MOST_NAMED = 5
_WINDOWS_PATH = re.compile(r"\\|^[A-Za-z]:/")


def decode(image: Mapping[str, Any], name: str) -> Image.Image:
    """Return an image as RGB.

    Args:
        image: Its ``bytes``, or else its ``path``, as ``datasets.Image(decode=False)`` has them.
        name: For the message, if the image has no path.

    Raises:
        UserError: If it cannot be decoded, with its path.
    """
    try:
        with Image.open(io.BytesIO(read_bytes(image))) as opened:
            return _convert(opened)[0]
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many kinds, depending on the file
        name = image.get("path") or name
        raise UserError(f"{name} cannot be decoded as an image: {_reason(error)}") from error


def thumbnail(image: Mapping[str, Any]) -> bytes:
    """Return a JPEG of an image, at most 64 pixels wide and high."""
    small = decode(image, "an image")
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def read_bytes(image: Mapping[str, Any]) -> bytes:
    """Return the bytes of an image, from its file if the data has only its path."""
    content = image.get("bytes")
    return bytes(content) if content is not None else Path(str(image["path"])).read_bytes()


def _convert(image: Image.Image) -> tuple[Image.Image, int]:
    """Return an opened image as RGB with its kind."""
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in ("I", "F"):
        raise ValueError(f"32 bits a pixel (mode {image.mode}); expected 8 or 16")
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB"), _DEEP
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        rgba = image.convert("RGBA")
        if rgba.getchannel("A").getextrema() != (255, 255):
            white = Image.new("RGBA", rgba.size, "white")
            return Image.alpha_composite(white, rgba).convert("RGB"), _TRANSPARENT
    return image.convert("RGB"), _PLAIN


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    text = (getattr(error, "strerror", None) or str(error)).partition("\n")[0]
    return "not an image" if "cannot identify image file" in text else text or type(error).__name__


def find_image_column(
    dataset: DatasetDict, image_column: str, label_column: str, report: Report
) -> str:
    """Return the column of images, or of their paths: the named one, or the only one.

    Args:
        dataset: As it was read.
        image_column: The value of ``--image_column``; empty if it is not given.
        label_column: The value of ``--label_column``, likewise.
        report: Gets the errors.

    Raises:
        UserError: If a named column is missing or holds something else, or not exactly one holds
            images.
    """
    rows = dataset["train"]
    names = [name for name in rows.column_names if name != ROW]
    for flag, name in (("--image_column", image_column), ("--label_column", label_column)):
        lacking = [split for split, part in dataset.items() if name not in part.column_names]
        if name and lacking:
            report.error(
                f"{flag}: no column '{name}' in the {' and '.join(lacking)} data"
                f"{suggestion(name, names)} (available: {', '.join(names)})"
            )
    if image_column and image_column == label_column:
        report.error(f"--image_column and --label_column are both '{image_column}'")
    report.raise_errors()
    if image_column:
        if not _holds_images(rows, image_column, bool):
            report.fail(
                f"--image_column: the column '{image_column}' holds neither images nor paths but "
                f"{rows.features[image_column]}"
            )
        return image_column
    tests: tuple[Callable[[str], bool], ...] = (
        lambda value: False,  # a column of images goes before one of paths
        lambda value: Path(value).suffix.lower() in SUFFIXES,
        lambda value: "://" in value,
    )
    columns: list[str] = []
    for is_path in tests:
        columns = columns or [
            name for name in names if name != label_column and _holds_images(rows, name, is_path)
        ]
    if len(columns) == 1:
        return columns[0]
    if columns:
        report.fail(f"--image_column: several columns could be the image ({', '.join(columns)})")
    report.fail(
        f"--image_column: no column holds images or paths of images (available: {', '.join(names)})"
    )


def _holds_images(rows: Dataset, name: str, is_path: Callable[[str], bool]) -> bool:
    feature = rows.features[name]
    dtype = str(getattr(feature, "dtype", ""))
    is_struct = isinstance(feature, dict) and set(feature) == {"bytes", "path"}
    if isinstance(feature, datasets.Image) or is_struct or "binary" in dtype:
        return True
    if "string" not in dtype:
        return False
    sample = [v for v in rows.select_columns(name)[:_SAMPLED_ROWS][name] if v is not None]
    return bool(sample) and all(map(is_path, sample))


def with_images(rows: Dataset, column: str, dataset: str) -> Dataset:
    """Return rows whose column ``image`` holds images; their paths stay beside it, as ``file``.

    Args:
        rows: As they were read.
        column: Of the images or of their paths.
        dataset: The table, to whose folder paths are relative; or any other source.

    Raises:
        UserError: If another column is called ``image``, or the paths are URLs or of Windows.
    """
    if column != "image" and "image" in rows.column_names:
        raise UserError(
            f"--image_column {column}: the data has another column 'image'; rename or remove it"
        )
    if "string" not in str(getattr(rows.features[column], "dtype", "")):
        if column != "image":
            rows = rows.rename_column(column, "image")
        return rows.cast_column("image", datasets.Image())
    path = Path(dataset).expanduser().absolute()
    folder = path if path.is_dir() else path.parent
    files: list[str | None] = rows[column][:]
    foreign = [file for file in files if file and ("://" in file or _WINDOWS_PATH.search(file))]
    if 2 * len(foreign) > len([file for file in files if file]):
        kind, fix = "Windows paths", "write them relative to the table and with slashes, as a/1.png"
        if "://" in foreign[0]:
            kind, fix = "URLs", "download the images and write their paths, relative to the table"
        raise UserError(f"--image_column: '{column}' holds {kind}, such as '{foreign[0]}': {fix}")
    if "file" not in rows.column_names:
        rows = rows.rename_column(column, "file")
    elif column == "image":
        rows = rows.remove_columns(column)
    paths = [file and str(folder / Path(file).expanduser()) for file in files]
    rows = rows.add_column("image", paths, feature=Value("string"))
    return rows.cast_column("image", datasets.Image())


def drop_unreadable(
    dataset: DatasetDict, report: Report, *, drop: bool
) -> tuple[DatasetDict, dict[str, np.ndarray]]:
    """Return ``dataset`` without images that are missing or cannot be decoded, and content hashes.

    Every image is decoded once: only that shows that a file is truncated.

    Args:
        dataset: Splits with ``image``.
        report: Gets what was dropped or is refused, and where ``pipeline()`` differs.
        drop: Whether to drop such rows instead of refusing them.

    Returns:
        The splits, and the hashes of the rows that are left in each, shape ``(rows, 16)``, uint8.

    Raises:
        UserError: If there are such rows and ``drop`` is false.
    """
    splits, hashes, problems = {}, {}, []
    for split, rows in dataset.items():
        digests, kinds = _inspect(rows, split)
        positions = np.flatnonzero(kinds < _MISSING)
        splits[split] = rows.select(positions) if len(positions) < len(rows) else rows
        hashes[split] = digests[positions]
        missing, unreadable = (np.flatnonzero(kinds == kind) for kind in (_MISSING, _UNREADABLE))
        if len(missing):
            message = f"{len(missing):,} of {len(rows):,} {split} rows without an image"
            problems.append((message, split, missing.tolist()))
        if len(unreadable):
            reasons = "; ".join(_reasons(rows.select(unreadable[:_MOST_NAMED])))
            more = len(unreadable) - _MOST_NAMED
            message = f"{len(unreadable):,} of {len(rows):,} {split} images cannot be decoded: "
            message += reasons + (f"; and {more:,} more" if more > 0 else "")
            problems.append((message, split, unreadable.tolist()))
        for kind, text in (
            (_TRANSPARENT, "with transparent pixels: they are made white (pipeline() ignores "
             "transparency)"),
            (_DEEP, "of 16 bits a pixel: scaled to 8 bits (pipeline() clips them)"),
        ):  # fmt: skip
            if count := int((kinds == kind).sum()):
                report.info(f"{counted(count, f'{split} image')} {text}")
    has_rows = all(len(rows) for rows in splits.values())
    for message, split, numbers in problems:
        if drop and has_rows:
            report.warning(f"dropped {message}", split=split, rows=numbers)
        else:
            fix = "--drop_invalid leaves them out" if has_rows else ""
            report.error(message, split=split, rows=numbers, fix=fix)
    report.raise_errors()
    return DatasetDict(splits), hashes


def _inspect(rows: Dataset, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash of the content of each image with its kind."""
    undecoded = rows.select_columns(["image"]).cast_column("image", datasets.Image(decode=False))
    digests, kinds = np.zeros((len(rows), _DIGEST_SIZE), np.uint8), np.zeros(len(rows), np.uint8)
    workers = min(_MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:  # Pillow releases the interpreter's lock
        start = 0
        for batch in undecoded.iter(_BATCH):
            activity.advance(f"decoding images of {split}", start, len(rows), "images")
            for number, (digest, kind) in enumerate(pool.map(_inspect_one, batch["image"]), start):
                digests[number], kinds[number] = np.frombuffer(digest, np.uint8), kind
            start += len(batch["image"])
    return digests, kinds


def _inspect_one(image: Mapping[str, Any] | None) -> tuple[bytes, int]:
    if image is None or (image.get("bytes") is None and not image.get("path")):
        return bytes(_DIGEST_SIZE), _MISSING
    digest = bytes(_DIGEST_SIZE)
    try:
        content = read_bytes(image)
        digest = hashlib.blake2b(content, digest_size=_DIGEST_SIZE).digest()
        with Image.open(io.BytesIO(content)) as opened:
            if opened.format == "JPEG":  # decodes an eighth of the pixels, of the whole file
                opened.draft(None, (1, 1))
            return digest, _convert(opened)[1]
    except MemoryError:
        raise
    except Exception:  # `decode` names the reason
        return digest, _UNREADABLE


def _reasons(rows: Dataset) -> list[str]:
    reasons = []
    undecoded = rows.cast_column("image", datasets.Image(decode=False))["image"]
    for number, image in enumerate(undecoded):
        try:
            decode(image, f"image {number + 1}")
        except UserError as error:
            reasons.append(str(error).replace(" cannot be decoded as an image:", ":"))
    return reasons
