"""Images: in a table, what is wrong with them, and their pixels as RGB.

Whatever a file holds becomes eight bits of red, green and blue, upright. Transparent pixels become
white; ``transformers.pipeline`` ignores transparency and clips 16 bits.
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

from finetune.data.targets import refuse_or_drop
from finetune.errors import Report, UserError
from finetune.runtime import activity


def decode(image: Mapping[str, Any], *, is_draft: bool = False) -> Image.Image:
    """Return an image as RGB; refuse one that cannot be decoded, by its path if it has one.

    Args:
        image: Its ``bytes``, or else its ``path``, as ``datasets.Image(decode=False)`` has them.
        is_draft: Whether an eighth of the pixels of a JPEG do, of the whole file.
    """
    try:
        with Image.open(io.BytesIO(read_bytes(image))) as opened:
            if is_draft:
                opened.draft(None, (1, 1))
            return _convert(opened)
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many kinds, depending on the file
        reason = str(error).partition("\n")[0] or type(error).__name__
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else reason
        place = image.get("path") or "an image"
        raise UserError(f"{place} cannot be decoded as an image: {reason}") from error


def _convert(image: Image.Image) -> Image.Image:
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in ("I", "F"):
        raise ValueError(f"32 bits a pixel (mode {image.mode}); expected 8 or 16")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB")


def thumbnail(image: Mapping[str, Any]) -> bytes:
    """Return a JPEG of an image, at most 64 pixels wide and high."""
    small = decode(image)
    buffer = io.BytesIO()
    small.thumbnail((64, 64))
    small.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def read_bytes(image: Mapping[str, Any]) -> bytes:
    """Return the bytes of an image, from its file if the data has only its path."""
    content = image.get("bytes")
    return bytes(content) if content is not None else Path(str(image["path"])).read_bytes()


def with_images(rows: Dataset, column: str, dataset: str) -> Dataset:
    """Return rows whose column ``image`` holds images; their paths stay beside it, as ``file``.

    ``column`` has the images, or paths that are relative to the folder of ``dataset``.
    """
    feature = rows.features[column]
    dtype = str(getattr(feature, "dtype", ""))
    is_struct = isinstance(feature, dict) and set(feature) == {"bytes", "path"}
    has_images = isinstance(feature, datasets.Image) or is_struct or "binary" in dtype
    is_free = column == "image" or "image" not in rows.column_names
    if not is_free or not (has_images or "string" in dtype):
        expected = "expected images or paths, and no other column 'image'"
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


def drop_unreadable(dataset: DatasetDict, report: Report, *, drop: bool) -> DatasetDict:
    """Return ``dataset`` without images that are missing or cannot be decoded, or refuse them.

    Every image is decoded once: only that shows that a file is truncated.
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
        with ThreadPoolExecutor(threads) as pool:  # Pillow releases the interpreter's lock
            for batch in images.iter(512):  # that are in memory, not decoded
                activity.advance(f"decoding images of {split}", len(results), len(rows), "images")
                results += pool.map(check, batch["image"])
        if (is_unusable := np.array(results, dtype=object) != "").any():
            splits[split] = rows.select(np.flatnonzero(~is_unusable))
            examples = "; ".join([*filter(None, results)][:5])
            description = f"with an image that cannot be used, such as {examples}"
            fix = "--drop_invalid leaves them out"
            numbers = np.flatnonzero(is_unusable)
            can_drop = drop and len(numbers) < len(rows)
            refuse_or_drop(report, description, fix, numbers, rows, split, drop=can_drop)
    report.raise_errors()
    return splits
