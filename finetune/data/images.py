"""Load, check and decode images.

Every image is converted to 8-bit RGB, upright, with transparent pixels white.
``transformers.pipeline`` instead ignores transparency and clips 16-bit pixels.
"""

import io
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Dataset, DatasetDict, Value
from PIL import Image, ImageOps, UnidentifiedImageError

from finetune.data.read_text import refuse_pointer
from finetune.data.targets import refuse_or_drop
from finetune.errors import Findings, UserError, first_line
from finetune.runtime import activity


def decode(image: Mapping[str, Any], *, is_draft: bool = False) -> Image.Image:
    """Return an image as RGB; raise a ``UserError`` with its path if it cannot be decoded.

    Args:
        image: The ``bytes`` or the ``path``, as in ``datasets.Image(decode=False)``.
        is_draft: Whether to decode a JPEG at an eighth of its size; the whole file is still read.
    """
    try:
        with Image.open(io.BytesIO(read_bytes(image))) as opened:
            if is_draft:
                opened.draft(None, (1, 1))
            return _convert(opened)
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many kinds, depending on the file
        reason = first_line(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = "not an image"
        place = image.get("path") or "an image"
        raise UserError(f"{place} cannot be decoded as an image: {reason}") from error


def _convert(image: Image.Image) -> Image.Image:
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in ("I", "F"):
        raise ValueError(f"32 bits per pixel (mode {image.mode}); expected 8 or 16")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB")


def thumbnail(image: Mapping[str, Any]) -> bytes:
    """Return an image as a JPEG of at most 64 x 64 pixels."""
    small = decode(image)
    buffer = io.BytesIO()
    small.thumbnail((64, 64))
    small.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def read_bytes(image: Mapping[str, Any]) -> bytes:
    """Return the encoded bytes of an image, read from its file if there is only a path."""
    content = image.get("bytes")
    if content is None:
        content = Path(str(image["path"])).read_bytes()
        refuse_pointer(content[:64], "it")
    return bytes(content)


def with_images(rows: Dataset, column: str, dataset: str) -> Dataset:
    """Return rows with a column ``image`` of images; paths are kept as ``file``.

    Args:
        rows: The rows of a split.
        column: The column of images, or of paths relative to the folder of ``dataset``.
        dataset: The path of the data set.

    Raises:
        UserError: If the column holds neither, or if another column is called ``image``.
    """
    feature = rows.features[column]
    dtype = str(getattr(feature, "dtype", ""))
    is_struct = isinstance(feature, dict) and set(feature) == {"bytes", "path"}
    has_images = isinstance(feature, datasets.Image) or is_struct or "binary" in dtype
    is_free = column == "image" or "image" not in rows.column_names
    if not is_free or not (has_images or "string" in dtype):
        expected = "expected a column of images or paths, and no other column 'image'"
        raise UserError(f"--image_column {column}: {expected}; found {feature}")
    if not has_images:
        path = Path(dataset).expanduser().absolute()
        folder = path if path.is_dir() else path.parent
        paths = [file and str(folder / Path(file).expanduser()) for file in rows[column][:]]
        if "file" not in rows.column_names:
            rows = rows.rename_column(column, "file")
        elif column == "image":
            rows = rows.remove_columns(column)
        rows = rows.add_column("image", paths, feature=Value("string"))
    elif column != "image":
        rows = rows.rename_column(column, "image")
    return rows.cast_column("image", datasets.Image())


def drop_unreadable(dataset: DatasetDict, report: Findings, *, drop: bool) -> DatasetDict:
    """Return ``dataset`` without missing and damaged images.

    Every image is decoded once, because only that finds truncated files.

    Args:
        dataset: Splits with a column ``image``.
        report: Gets a finding about the images that cannot be used.
        drop: Whether to drop them; otherwise they are errors.

    Raises:
        UserError: If there are such images, without ``drop``.
    """

    def check(image: Mapping[str, Any] | None) -> str:
        if not image or not (image["bytes"] or image["path"]):
            return "no image"
        try:
            decode(image, is_draft=True)
        except UserError as error:
            return str(error)
        return ""

    splits = DatasetDict(dataset)
    threads = min(8, os.cpu_count() or 1)
    for split, rows in dataset.items():
        images = rows.select_columns(["image"]).cast_column("image", datasets.Image(decode=False))
        results: list[str] = []
        with ThreadPoolExecutor(threads) as pool:  # Pillow releases the GIL
            for batch in images.iter(512):  # encoded images in memory
                activity.advance(f"decoding images of {split}", len(results), len(rows), "images")
                results += pool.map(check, batch["image"])
        if (is_unusable := np.array(results, dtype=object) != "").any():
            splits[split] = rows.select(np.flatnonzero(~is_unusable))
            examples = "; ".join(list(filter(None, results))[:5])
            description = f"with an image that cannot be used, such as {examples}"
            fix = "--drop_invalid leaves them out"
            numbers = np.flatnonzero(is_unusable)
            can_drop = drop and len(numbers) < len(rows)
            refuse_or_drop(report, description, fix, numbers, rows, split, drop=can_drop)
    report.raise_errors()
    return splits
