"""Decode images as RGB, and look at each of them once, before anything is trained on them.

Whatever a file holds becomes eight bits of red, green and blue, upright: grey, palette, CMYK, 16
bits of grey and the orientation that a camera wrote down. Transparent pixels become white.
``transformers.pipeline`` does the same but for two things: it ignores transparency and clips 16
bits, so :func:`inspect` counts such images.

A truncated JPEG is only noticed by decoding it. What was found is kept in the cache by path, size
and time of change, so that the next run reads no image before it needs it.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL
import pyarrow.compute as pc
from datasets import Dataset
from PIL import Image, ImageOps

from finetune.data import caches
from finetune.errors import UserError
from finetune.runtime import activity

#: Of the files that are taken for images.
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
#: What :func:`inspect` finds an image to be.
PLAIN, TRANSPARENT, DEEP, MISSING, UNREADABLE = range(5)
_CACHE_VERSION = 1  # increment when the same images should be judged otherwise
_AT_ONCE = 512  # images in memory, not decoded
_DIGEST = 16  # bytes
_FOLDER = "finetune-images"
_MOST_THREADS = 8
_THUMBNAIL = 64  # pixels


@dataclass(frozen=True)
class Inspection:
    """What is known of the images of a split.

    Attributes:
        digests: A hash of the content of each, shape ``(rows, 16)``, uint8.
        kinds: ``PLAIN`` or one of the others, shape ``(rows,)``, uint8.
    """

    digests: np.ndarray
    kinds: np.ndarray

    def count(self, kind: int) -> int:
        """Return how many images are of that kind."""
        return int((self.kinds == kind).sum())


def decoded(image: Mapping[str, Any], place: str) -> Image.Image:
    """Return an image as RGB.

    Args:
        image: Its ``bytes``, or else its ``path``, as ``datasets.Image(decode=False)`` has them.
        place: For the message, of an image without a path.

    Raises:
        UserError: if it cannot be decoded, with its path.
    """
    try:
        with Image.open(io.BytesIO(content(image))) as opened:
            return _converted(opened)[0]
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises of all kinds, by what is in the file
        name = image.get("path") or place
        raise UserError(f"{name} cannot be decoded as an image: {reason(error)}") from error


def thumbnail(image: Mapping[str, Any]) -> bytes:
    """Return a JPEG of an image, at most 64 pixels wide and high."""
    small = decoded(image, "an image")
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    written = io.BytesIO()
    small.save(written, "JPEG", quality=85)
    return written.getvalue()


def content(image: Mapping[str, Any]) -> bytes:
    """Return the bytes of an image, from its file where the data has only its path."""
    found = image.get("bytes")
    return bytes(found) if found is not None else Path(str(image["path"])).read_bytes()


def digest(value: bytes) -> bytes:
    """Return a short hash of the content of an image."""
    return hashlib.blake2b(value, digest_size=_DIGEST).digest()


def reason(error: Exception) -> str:
    """Return in a line why an image cannot be decoded."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    text = (getattr(error, "strerror", None) or str(error)).partition("\n")[0]
    return "not an image" if "cannot identify image file" in text else text or type(error).__name__


def inspect(rows: Dataset, column: str, work: str) -> Inspection:
    """Decode every image of a split, or return what was found when that was done before.

    Args:
        rows: As they were read: files that do not change while the process lives.
        column: Of the images.
        work: Of the images, for the progress: ``images of train``.
    """
    undecoded = rows.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    facts = _facts(undecoded, column)
    if facts and (known := caches.load_arrays(_FOLDER, facts)):
        return Inspection(**known)
    digests, kinds = np.zeros((len(rows), _DIGEST), np.uint8), np.zeros(len(rows), np.uint8)
    for number, (hashed, kind) in enumerate(_looked_at(undecoded, column)):
        digests[number], kinds[number] = np.frombuffer(hashed, np.uint8), kind
        if not number % _AT_ONCE:
            activity.advance(f"decoding {work}", number, len(rows), "images")
    if facts:
        caches.save_arrays(_FOLDER, facts, digests=digests, kinds=kinds)
    return Inspection(digests, kinds)


def _looked_at(undecoded: Dataset, column: str) -> Iterator[tuple[bytes, int]]:
    workers = min(_MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:  # Pillow decodes without the lock of the interpreter
        for batch in undecoded.iter(_AT_ONCE):
            yield from pool.map(_look_at, batch[column])


def _look_at(image: Mapping[str, Any] | None) -> tuple[bytes, int]:
    """Return the digest and the kind of an image."""
    if image is None or (image.get("bytes") is None and not image.get("path")):
        return bytes(_DIGEST), MISSING
    found = b""
    try:
        found = content(image)
        with Image.open(io.BytesIO(found)) as opened:
            if opened.format == "JPEG":  # an eighth of the pixels, of the whole of the file
                opened.draft(None, (1, 1))
            return digest(found), _converted(opened)[1]
    except MemoryError:
        raise
    except Exception:  # which `decoded` tells
        return digest(found), UNREADABLE


def _converted(image: Image.Image) -> tuple[Image.Image, int]:
    """Return an opened image as RGB, and which kind it is."""
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in ("I", "F"):
        raise ValueError(f"32 bits a pixel (mode {image.mode}); expected 8 or 16")
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB"), DEEP
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        whole = image.convert("RGBA")
        if whole.getchannel("A").getextrema() != (255, 255):
            white = Image.new("RGBA", whole.size, "white")
            return Image.alpha_composite(white, whole).convert("RGB"), TRANSPARENT
    return image.convert("RGB"), PLAIN


def _facts(undecoded: Dataset, column: str) -> str:
    """Return a hash of what changes when an image may have changed; empty of images in memory."""
    images = undecoded.with_format("arrow")[:][column]
    in_files = pc.struct_field(images, "bytes").null_count
    if in_files == len(images):
        paths = [path for path in pc.struct_field(images, "path").to_pylist() if path]
    else:
        paths = [] if in_files else sorted({each["filename"] for each in undecoded.cache_files})
    if not paths:
        return ""
    stamps = []
    for path in paths:
        about = os.stat(path) if os.path.exists(path) else None
        stamps.append((path, about and about.st_size, about and about.st_mtime_ns))
    facts = (_CACHE_VERSION, PIL.__version__, column, len(images), stamps)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
