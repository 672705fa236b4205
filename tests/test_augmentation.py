"""Test crops and flips of training images. A test of D1 checks that they depend only on the row."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessorPil

from finetune import ImageRecipe, UserError
from finetune.data.batches import Augmentation
from tests.acceptance.data import write_photos, write_vit


def test_crops_have_the_area_and_half_of_the_images_are_flipped() -> None:
    image = Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40).astype(np.uint8))
    cropping, flipping = Augmentation(0.6, False), Augmentation(1, True)
    areas = [np.prod(cropping(image, row).size) / 1200 for row in range(500)]
    assert 0.58 < min(areas) < 0.65
    assert max(areas) > 0.9
    flipped = [flipping(image, row).tobytes() != image.tobytes() for row in range(500)]
    assert 0.4 < np.mean(flipped) < 0.6
    assert Augmentation(1, False)(image, 0) is image


def test_only_training_images_change(tmp_path: Path) -> None:
    photos, model = write_photos(tmp_path / "photos"), str(write_vit(tmp_path / "vit"))
    recipe = ImageRecipe(dataset=str(photos), model=model)
    collate = recipe.data_collator()
    for split, changes in {"train": True, "validation": False, "test": False}.items():
        rows = [recipe.prepared[split][index] for index in range(4)]
        recipe.augmentation.set_epoch(0)
        first = collate(rows)["pixel_values"]
        recipe.augmentation.set_epoch(1)
        assert torch.equal(collate(rows)["pixel_values"], first) != changes
    plain = ImageRecipe(dataset=str(photos), model=model, crop_scale=1.0, horizontal_flip=False)
    rows = [plain.prepared["train"][0]]
    image = Image.open(rows[0]["image"]["path"])
    processor = ViTImageProcessorPil.from_pretrained(model)
    expected = processor(image, return_tensors="pt")["pixel_values"]
    assert torch.equal(plain.data_collator()(rows)["pixel_values"], expected)
    with pytest.raises(UserError, match=r"--crop_scale 0: expected a share of the area, above 0"):
        ImageRecipe(dataset=str(photos), crop_scale=0)
