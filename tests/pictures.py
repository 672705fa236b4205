"""Small images of two classes, in folders and tables, and models for them."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from transformers import AutoModelForImageClassification, ViTConfig, ViTImageProcessorPil

from finetune.recipe import catalog

SIDE = 8  # pixels
LABELS = ("down", "up")


def picture(number: int) -> Image.Image:
    """One of two classes, bright above or below, with noise: a flip changes it, not its class."""
    pixels = np.random.default_rng(number).integers(0, 120, (SIDE, SIDE, 3))
    pixels[: SIDE // 2] += 130 * (number % 2)
    pixels[SIDE // 2 :] += 130 * (1 - number % 2)
    return Image.fromarray(pixels.astype(np.uint8))


def write_photos(folder: Path) -> Path:
    """Write a folder of two classes, 60 images each."""
    for number in range(120):
        place = folder / LABELS[number % 2] / f"{number:03d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(place)
    return folder


def saved(config: Any, directory: Path) -> str:
    torch.manual_seed(0)
    AutoModelForImageClassification.from_config(config).save_pretrained(directory)
    size = {"height": SIDE, "width": SIDE}
    ViTImageProcessorPil(size=size).save_pretrained(directory)
    return str(directory)


def tiny_vit(directory: Path) -> str:
    """Write a ViT of one layer, for images of 8 x 8 pixels, and its image processor."""
    config = ViTConfig(
        image_size=SIDE,
        patch_size=4,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.2,
    )
    return saved(config, directory)


def recipe(dataset: Path | str, **options: Any) -> Any:
    return catalog.find("image")(dataset=str(dataset), **options)


def table(photos: Path, place: Path) -> Path:
    """Write the images of the folder as a table beside it, with paths relative to the table."""
    there = [(path, path.parent.name) for path in sorted(photos.rglob("*.png"))]
    rows = [
        {"photo": str(path.relative_to(place.parent)), "kind": kind, "light": number % 3}
        for number, (path, kind) in enumerate(there)
    ]
    if place.suffix == ".jsonl":
        place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif place.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(place)
    else:
        with place.open("w", newline="") as file:
            delimiter = {".csv": ",", ".tsv": "\t"}[place.suffix]
            writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    return place


def damaged(photos: Path, directory: Path) -> Path:
    """Write a copy of the folder in which two images are not what their names say."""
    for path in sorted(photos.rglob("*.png")):
        place = directory / path.relative_to(photos)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    whole = io.BytesIO()
    picture(3).resize((64, 64)).save(whole, "JPEG")
    (directory / "up" / "cut.jpg").write_bytes(whole.getvalue()[:-40])
    (directory / "down" / "text.png").write_text("no image")
    return directory
