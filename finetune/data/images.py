"""Images: which column has them, what is wrong with them, and their pixels as RGB.

Whatever a file holds becomes eight bits of red, green and blue, upright. Transparent pixels become
white. ``transformers.pipeline`` ignores transparency and clips 16 bits, so such images are counted.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Dataset, DatasetDict, Value
from PIL import Image, ImageOps

from finetune.data import ROW
from finetune.errors import Report, UserError, counted
from finetune.runtime import activity

#: Suffixes of files that are taken for images.
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_BATCH = 512  # images in memory, not decoded
_MOST_THREADS = 8
_THUMBNAIL = 64  # pixels
_SAMPLED_ROWS = 200
_MOST_NAMED = 5


def decode(image: Mapping[str, Any], name: str) -> Image.Image:
    """Return an image as RGB.

    Args:
        image: Its ``bytes``, or else its ``path``, as ``datasets.Image(decode=False)`` has them.
        name: For the message, if the image has no path.

    Raises:
        UserError: If it cannot be decoded, with its path.
    """
    return _decode(image, name)[0]


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


def _decode(
    image: Mapping[str, Any], name: str, *, is_draft: bool = False
) -> tuple[Image.Image, bool]:
    """Return an image as RGB, and whether ``pipeline()`` makes other pixels of it."""
    try:
        with Image.open(io.BytesIO(read_bytes(image))) as opened:
            if is_draft and opened.format == "JPEG":  # an eighth of the pixels, of the whole file
                opened.draft(None, (1, 1))
            return _convert(opened)
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many kinds, depending on the file
        reason = str(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, FileNotFoundError):
            reason = "no such file"
        elif "cannot identify image file" in reason:
            reason = "not an image"
        name = image.get("path") or name
        raise UserError(f"{name} cannot be decoded as an image: {reason}") from error


def _convert(image: Image.Image) -> tuple[Image.Image, bool]:
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in ("I", "F"):
        raise ValueError(f"32 bits a pixel (mode {image.mode}); expected 8 or 16")
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB"), True
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        rgba = image.convert("RGBA")
        if rgba.getchannel("A").getextrema() != (255, 255):
            white = Image.new("RGBA", rgba.size, "white")
            return Image.alpha_composite(white, rgba).convert("RGB"), True
    return image.convert("RGB"), False


def find_image_column(rows: Dataset, label_column: str, report: Report) -> str:
    """Return the only column of images, or else the only one of paths of images.

    Args:
        rows: Training rows as they were read.
        label_column: Which cannot be it; empty if it is not known.
        report: Gets the error.

    Raises:
        UserError: If not exactly one column holds images or paths.
    """
    names = [name for name in rows.column_names if name not in (ROW, label_column)]
    columns = [name for name in names if _holds(rows, name) == "images"]
    for name in [] if columns else names:
        cells = rows.select_columns(name)[:_SAMPLED_ROWS][name] if _holds(rows, name) else []
        paths = [cell for cell in cells if cell is not None]
        if paths and all(Path(path).suffix.lower() in SUFFIXES for path in paths):
            columns.append(name)
    if len(columns) != 1:
        report.fail(
            "--image_column: expected one column of images or of paths that end in "
            f"{', '.join(SUFFIXES)}, found {' and '.join(columns) or 'none'} (available: "
            f"{', '.join(names)})"
        )
    return str(columns[0])


def _holds(rows: Dataset, column: str) -> str:
    """Return whether a column holds ``images``, or ``texts``, which may be paths; empty if none."""
    feature = rows.features[column]
    dtype = str(getattr(feature, "dtype", ""))
    is_struct = isinstance(feature, dict) and set(feature) == {"bytes", "path"}
    if isinstance(feature, datasets.Image) or is_struct or "binary" in dtype:
        return "images"
    return "texts" if "string" in dtype else ""


def with_images(rows: Dataset, column: str, dataset: str) -> Dataset:
    """Return rows whose column ``image`` holds images; their paths stay beside it, as ``file``.

    Args:
        rows: As they were read.
        column: Of the images or of their paths.
        dataset: The table, to whose folder paths are relative; or any other source.

    Raises:
        UserError: If another column is called ``image``, or the column holds neither.
    """
    if column != "image" and "image" in rows.column_names:
        raise UserError(
            f"--image_column {column}: the data has another column 'image'; rename or remove it"
        )
    kind = _holds(rows, column)
    if not kind:
        raise UserError(
            f"--image_column {column}: expected images or paths, found {rows.features[column]}"
        )
    if kind == "texts":
        path = Path(dataset).expanduser().absolute()
        folder = path if path.is_dir() else path.parent
        files: list[str | None] = rows[column][:]
        if "file" not in rows.column_names:
            rows = rows.rename_column(column, "file")
        elif column == "image":
            rows = rows.remove_columns(column)
        paths = [file and str(folder / Path(file).expanduser()) for file in files]
        rows = rows.add_column("image", paths, feature=Value("string"))
    elif column != "image":
        rows = rows.rename_column(column, "image")
    return rows.cast_column("image", datasets.Image())


def drop_unreadable(dataset: DatasetDict, report: Report, *, drop: bool) -> DatasetDict:
    """Return ``dataset`` without images that are missing or cannot be decoded.

    Every image is decoded once: only that shows that a file is truncated.

    Args:
        dataset: Splits with ``image``.
        report: Gets what was dropped or is refused, and where ``pipeline()`` differs.
        drop: Whether to drop such rows instead of refusing them.

    Raises:
        UserError: If there are such rows and ``drop`` is false, or no others in a split.
    """
    splits = DatasetDict()
    for split, rows in dataset.items():
        problems, converted = _inspect(rows, split)
        if converted:
            report.info(
                f"{counted(converted, f'{split} image')} with transparent pixels, which become "
                "white, or 16 bits a pixel, scaled to 8: pipeline() ignores one and clips the other"
            )
        is_readable = np.ones(len(rows), dtype=bool)
        is_readable[[*problems]] = False
        splits[split] = rows.select(np.flatnonzero(is_readable)) if problems else rows
        if not problems:
            continue
        examples = "; ".join([*problems.values()][:_MOST_NAMED])
        more = f"; and {len(problems) - _MOST_NAMED:,} more" * (len(problems) > _MOST_NAMED)
        message = f"{len(problems):,} of {len(rows):,} {split} images: {examples}{more}"
        if drop and is_readable.any():
            report.warning(f"dropped {message}", split=split, rows=[*problems])
        else:
            fix = "--drop_invalid leaves them out" if is_readable.any() else ""
            report.error(message, split=split, rows=[*problems], fix=fix)
    report.raise_errors()
    return splits


def _inspect(rows: Dataset, split: str) -> tuple[dict[int, str], int]:
    """Return why images cannot be decoded, by row, and for how many ``pipeline()`` differs."""
    undecoded = rows.select_columns(["image"]).cast_column("image", datasets.Image(decode=False))
    problems: dict[int, str] = {}
    converted = start = 0
    workers = min(_MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:  # Pillow releases the interpreter's lock
        for batch in undecoded.iter(_BATCH):
            activity.advance(f"decoding images of {split}", start, len(rows), "images")
            for number, result in enumerate(pool.map(_inspect_one, batch["image"]), start):
                if isinstance(result, str):
                    problems[number] = result
                else:
                    converted += result
            start += len(batch["image"])
    return problems, converted


def _inspect_one(image: Mapping[str, Any] | None) -> bool | str:
    """Return whether ``pipeline()`` differs for an image, or why it cannot be decoded."""
    if image is None or (image.get("bytes") is None and not image.get("path")):
        return "no image"
    try:
        return _decode(image, "an image", is_draft=True)[1]
    except UserError as error:
        return str(error)
