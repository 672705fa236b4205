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
from finetune.errors import UserError
from finetune.recipe.options import option
from finetune.recipe.sourced import Sourced

if TYPE_CHECKING:
    import torch
    from datasets import DatasetDict
    from transformers import BaseImageProcessor

    from finetune.data.image_batches import Augmentation

#: Options that a folder of images has no use for.
_OF_TABLES = (
    *("image_column", "label_column", "dataset_revision"),
    *("csv_quoting", "csv_separator", "encoding"),
)


class ImageRecipe(Sourced):
    """Images with one label each, on an image classifier from ``transformers``."""

    input_column = "image"
    packaged_model = "embedded:vit"
    help_group = "image"
    help_groups = {
        **dict.fromkeys(("model", "model_revision"), "model"),
        **dict.fromkeys(("label_column", "label_map", "drop_invalid"), "labels"),
    }
    training = dict(remove_unused_columns=False)  # the collator makes `pixel_values` of `image`

    dataset: str = option(
        "", "folder with a folder for each class, table of paths and labels, or name on the Hub"
    )
    model: str = option("", "name of a model on the Hub, a local directory, or embedded:vit")
    model_revision: str | None = option(
        None, "commit, tag or branch of the model on the Hub (unset: the newest)"
    )
    image_column: str = option(
        "", "column that holds the image or its path (unset: the one that obviously does)"
    )
    label_column: str = option(
        "", "column that holds the label (unset: the one that obviously does)"
    )
    label_map: str | None = option(
        None,
        "other names for labels, the same for those to be merged",
        several="LABEL=NAME,LABEL=NAME",
    )
    drop_invalid: bool = option(
        False, "drop rows without a label or a readable image (unset: refuse them)"
    )
    crop_scale: float = option(
        0.5, "least share of the area that random crops of training keep (1: no crops)"
    )
    horizontal_flip: bool = option(
        True, "mirror every other image of training; false where left and right mean something"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._unmapped: Sequence[str] = ()
        if not 0 < self.crop_scale <= 1:
            raise UserError(
                f"--crop_scale {self.crop_scale}: expected a share of the area, above 0, at most 1"
            )

    def load(self) -> DatasetDict:
        return self.labelled(self.read())

    def read(self) -> DatasetDict:
        """Return the source as it is, with the column ``_row``."""
        from finetune.data import image_files

        if image_files.are_folders(self.dataset):
            for name in _OF_TABLES:
                if (given := getattr(self, name)) not in ("", "auto", None):
                    raise UserError(f"--{name} {given}: {self.dataset} is a folder of images")
            return image_files.read_folders(self.dataset, self.report)
        return super().read()

    def places(self, split: str, rows: Sequence[int]) -> str:
        from finetune.data import image_files

        if image_files.are_folders(self.dataset):
            return ""
        return super().places(split, rows)

    def list_places(self, split: str, rows: Sequence[int]) -> list[str]:
        from finetune.data import image_files

        if image_files.are_folders(self.dataset):
            return [""] * len(rows)
        return super().list_places(split, rows)

    def labelled(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``dataset`` with ``_row``, ``image``, ``file`` if there are paths, and ``label``.

        Missing labels and images that cannot be decoded are refused. Other columns stay, for the
        slices of the report.
        """
        from datasets import DatasetDict

        from finetune.data import columns, images
        from finetune.data.label_columns import LabelOptions, parse_label_map
        from finetune.tasks import decision

        train, label = dataset["train"], self.label_column
        image = self.image_column or images.find_image_column(train, label, self.report)
        if not label:
            has_label = "label" in train.column_names and image != "label"
            label = "label" if has_label else columns.find_columns(train, [image], "")[1]
        if (image, label) not in ((self.image_column, self.label_column), ("image", "label")):
            self.note(f"columns: '{image}' is the image, '{label}' the label")
            self.image_column, self.label_column = image, label
        split_by = self.split_columns()
        named = {"--image_column": [image], "--label_column": [label]}
        columns.require_columns(dataset, named, self.report, split_by)
        split_columns = [*split_by.values()]
        dataset = columns.drop_clashes(dataset, [image, label], self.report, split_columns)
        dataset = DatasetDict(
            {name: images.with_images(rows, image, self.dataset) for name, rows in dataset.items()}
        )
        dataset = images.drop_unreadable(dataset, self.report, drop=self.drop_invalid)
        options = LabelOptions(
            columns=[label],
            task="single_label",
            names=self.label_names,
            renames=parse_label_map(self.label_map),
            drop_invalid=self.drop_invalid,
        )
        labels = decision.read_columns(dataset, (), options, self.report)
        decision.warn_of_sets(labels["train"][0], options, self.report)
        encoded = decision.encode_labels(labels, options, self.report)
        self._unmapped = encoded.unmapped
        return encoded.added_to(dataset.remove_columns([label]))

    def split(self, dataset: DatasetDict) -> DatasetDict:
        from finetune.data import labels

        labels.check_label_map(self._unmapped, dataset, self.report)
        self.report.raise_errors()
        return super().split(dataset)

    def check(self) -> None:
        if type(self).build_model is ImageRecipe.build_model:
            from finetune.models import vision

            vision.load_config(self.model, revision=self.model_revision)
            self.processing_class()

    def prepare(self, dataset: DatasetDict) -> DatasetDict:
        """Return the images as they are stored; they are decoded as they are collated."""
        from datasets import DatasetDict, Image

        from finetune.data.image_batches import DRAWN_FROM

        undecoded = dataset.cast_column("image", Image(decode=False))
        return DatasetDict(
            {
                name: rows.rename_column(ROW, DRAWN_FROM) if name == "train" else rows
                for name, rows in undecoded.items()
            }
        )

    def processing_class(self) -> BaseImageProcessor:
        return self._processor

    @functools.cached_property
    def _processor(self) -> BaseImageProcessor:
        from finetune.models.vision import load_processor

        return load_processor(self.model, self.model_revision)

    @functools.cached_property
    def augmentation(self) -> Augmentation:
        """The random crops and flips of training."""
        from finetune.data.image_batches import Augmentation

        return Augmentation(self.crop_scale, self.horizontal_flip)

    def build_model(self, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.vision import batch_norms, load_classifier

        model = load_classifier(
            self.model, labels, self.model_revision, self.presumed_kind.problem_type
        )
        told = (
            "layers of BatchNorm normalise by the rows that a device computes at once: this model "
            "is not launch-invariant, its result depends on the number of processes and on "
            "accumulation; ViT, Swin and ConvNeXT have no BatchNorm"
        )
        if (count := batch_norms(model)) and not any(told in note for note in self.notes):
            self.note(f"{count} {told}")
        return model

    def base_revision(self) -> str | None:
        from finetune.models.pretrained import commit

        return commit(self.model, self.model_revision)

    def load_model(self, directory: str | Path, labels: Sequence[str]) -> torch.nn.Module:
        from finetune.models.vision import load_classifier

        return load_classifier(str(directory), labels)

    def data_collator(self) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
        from finetune.data.image_batches import Collator

        return Collator(self.processing_class(), self.augmentation, self.presumed_kind.targets)

    def trainer_kwargs(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        from finetune.data.image_batches import Epochs

        return {**super().trainer_kwargs(model), "callbacks": [Epochs(self.augmentation)]}
