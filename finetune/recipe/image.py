"""Recipes of images: one image and one label a row, on an image classifier of ``transformers``.

An image recipe is mostly fields::

    class Beans(ImageRecipe):
        dataset: str = "AI-Lab-Makerere/beans"
        model: str = "google/vit-base-patch16-224-in21k"
        training = dict(global_batch_size=32, learning_rate=5e-5, num_train_epochs=3)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.data import ROW
from finetune.recipe.base import Recipe
from finetune.recipe.options import ImageOptions, option

if TYPE_CHECKING:
    import torch
    from datasets import DatasetDict
    from transformers import BaseImageProcessor, PretrainedConfig

    from finetune.data.image_batches import Augmentation


class ImageRecipe(Recipe, ImageOptions):
    """Images with one label each, on an image classifier from ``transformers``."""

    input_column = "image"
    packaged_model = "embedded:vit"
    training = dict(remove_unused_columns=False)  # the collator makes `pixel_values` of `image`

    dataset: str = option(
        "", "folder with a folder for each class, table of paths and labels, or name on the Hub"
    )
    label_column: str = option("", "column that holds the label (unset: one with a usual name)")

    def load(self) -> DatasetDict:
        return self.labelled(self.read())

    def labelled(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``dataset`` with ``_row``, ``image``, ``file`` if there are paths, and ``label``;
        missing labels and images that cannot be decoded are refused. Other columns stay.
        """
        from datasets import DatasetDict

        from finetune.data import columns, images
        from finetune.data.label_columns import LabelOptions, parse_label_map
        from finetune.recipe import rows

        named = {"image": [self.image_column], "label": [self.label_column]}
        (image,), (label,) = columns.find_columns(dataset["train"], named)
        if (image, label) not in ((self.image_column, self.label_column), ("image", "label")):
            self.note(f"columns: '{image}' is the image, '{label}' the label")
            self.image_column, self.label_column = image, label
        sources = {"--image_column": [image], "--label_column": [label]}
        columns.require_columns(dataset, sources, self.report)
        dataset = columns.drop_own_columns(dataset, [image, label], self.report)
        dataset = DatasetDict(
            {name: images.with_images(part, image, self.dataset) for name, part in dataset.items()}
        )
        dataset = images.drop_unreadable(dataset, self.report, drop=self.drop_invalid)
        options = LabelOptions(
            columns=[label],
            task="single_label",
            names=self.label_names,
            renames=parse_label_map(self.label_map),
            drop_invalid=self.drop_invalid,
        )
        dataset, _ = rows.add_labels(self, dataset, (), options)
        return dataset

    @functools.cached_property
    def model_config(self) -> PretrainedConfig | None:
        """The configuration of the model, as it is stored; None if the recipe builds its own."""
        from finetune.models.pretrained import load_image_config

        is_custom = type(self).build_model is not ImageRecipe.build_model
        return None if is_custom else load_image_config(self.model, self.model_revision)

    def check(self) -> None:
        if self.model_config is not None:
            self.processing_class()

    def prepare(self, dataset: DatasetDict) -> DatasetDict:
        """Return the images as they are stored; they are decoded as they are collated."""
        from datasets import Image

        from finetune.data.image_batches import DRAWN_FROM

        prepared = dataset.cast_column("image", Image(decode=False))
        if "train" in prepared:
            prepared["train"] = prepared["train"].rename_column(ROW, DRAWN_FROM)
        return prepared

    def processing_class(self) -> BaseImageProcessor:
        return self._processor

    @functools.cached_property
    def _processor(self) -> BaseImageProcessor:
        from finetune.models.pretrained import load_processor

        return load_processor(self.model, self.model_revision)

    @functools.cached_property
    def augmentation(self) -> Augmentation:
        """The random crops and flips of training."""
        from finetune.data.image_batches import Augmentation

        return Augmentation(self.crop_scale, self.horizontal_flip)

    def build_model(self, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.pretrained import load_image_classifier

        problem_type = self.presumed_kind.problem_type
        model = load_image_classifier(self.model, labels, self.model_revision, problem_type)
        if count := sum("BatchNorm" in type(module).__name__ for module in model.modules()):
            self.note(f"{count} layers of BatchNorm: results depend on the number of processes")
        return model

    def load_model(self, directory: str | Path, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.pretrained import load_image_classifier

        return load_image_classifier(str(directory), labels)

    def data_collator(self) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
        from finetune.data.image_batches import Collator

        return Collator(self.processing_class(), self.augmentation, self.presumed_kind.targets)

    def trainer_kwargs(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        return {**super().trainer_kwargs(model), "callbacks": [self.augmentation]}
