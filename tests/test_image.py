"""Images: where they come from, how they are decoded and drawn, trained and predicted."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset, Features
from datasets import Image as ImageFeature
from PIL import Image, ImageOps
from transformers import (
    AutoModelForImageClassification,
    ResNetConfig,
    ViTConfig,
    ViTImageProcessorPil,
    pipeline,
)
from transformers.image_utils import load_image

import finetune
from finetune import ImageClassification, Run, UserError
from finetune.data import embedded, image_files, images
from finetune.data.augmentation import Augmentation
from finetune.data.splits import fingerprint
from finetune.pipeline.launch import in_fresh_processes
from finetune.recipe import catalog
from finetune.runtime import distributed

pytestmark = pytest.mark.usefixtures("one_thread")
SIDE = 8  # pixels
LABELS = ("down", "up")
#: What makes a training here short and exact.
TRAINING = dict(
    global_batch_size=12,
    num_train_epochs=2,
    learning_rate=1e-3,
    logging_steps=1,
    precision="fp32",
    num_threads=1,
    disable_tqdm=True,
)


def picture(number: int) -> Image.Image:
    """One of two classes, bright above or below, with noise: a flip changes it, not its class."""
    pixels = np.random.default_rng(number).integers(0, 120, (SIDE, SIDE, 3))
    pixels[: SIDE // 2] += 130 * (number % 2)
    pixels[SIDE // 2 :] += 130 * (1 - number % 2)
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two classes, 60 images each."""
    folder = tmp_path_factory.mktemp("data") / "photos"
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


@pytest.fixture(scope="session")
def vit(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with a ViT of one layer, for images of 8 x 8 pixels."""
    config = ViTConfig(
        image_size=SIDE,
        patch_size=4,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.2,
    )
    return saved(config, tmp_path_factory.mktemp("models") / "vit")


@pytest.fixture(scope="session")
def run(photos: Path, vit: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("runs") / "image"
    longer = {**TRAINING, "num_train_epochs": 6, "learning_rate": 1e-2}
    return finetune.train("image", dataset=str(photos), model=vit, **longer, output_dir=str(place))


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


# ---- where images come from ----------------------------------------------------------------------


def test_a_folder_of_classes(photos: Path) -> None:
    loaded = recipe(photos).load()["train"]
    assert loaded.features["label"].names == list(LABELS)
    assert loaded[0]["file"] == "down/000.png"
    assert loaded[0]["image"].size == (SIDE, SIDE)
    assert [loaded.features["label"].names[each] for each in loaded["label"][:]] == [
        Path(file).parent.name for file in loaded["file"]
    ]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_table_of_paths_is_the_same_as_the_folder(photos: Path, suffix: str) -> None:
    subject = recipe(table(photos, photos.parent / f"list{suffix}"), label_column="kind")
    assert fingerprint(subject.splits, "image") == fingerprint(recipe(photos).splits, "image")
    assert "columns: 'photo' is the image, 'kind' the label" in subject.notes
    assert "light" in subject.splits["test"].column_names
    assert subject.splits["test"]["file"][0].startswith("photos/")


def test_images_in_a_parquet_file(photos: Path, tmp_path: Path) -> None:
    files = sorted(photos.rglob("*.png"))
    rows = {
        "image": [{"bytes": path.read_bytes(), "path": path.name} for path in files],
        "label": [path.parent.name for path in files],
    }
    Dataset.from_dict(rows, features=None).to_parquet(tmp_path / "plain.parquet")
    of_hub = Dataset.from_dict({**rows, "image": list(map(str, files))})
    of_hub.cast_column("image", ImageFeature()).to_parquet(tmp_path / "hub.parquet")
    expected = fingerprint(recipe(photos).splits, "image")
    for name in ("plain.parquet", "hub.parquet"):
        assert fingerprint(recipe(tmp_path / name).splits, "image") == expected


def test_folders_of_splits(photos: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(photos.rglob("*.png"))):
        split = ("train", "train", "val", "test")[number % 4]
        place = tmp_path / split / path.parent.name / "deep" / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    (tmp_path / "train" / "down" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "up" / "._001.png").write_text("what a system puts there")
    subject = recipe(tmp_path)
    assert {name: len(rows) for name, rows in subject.splits.items()} == {
        "train": 60,
        "validation": 30,
        "test": 30,
    }
    assert [note for note in subject.notes if "not read" in note] == [
        f"not read, expected {', '.join(images.SUFFIXES)}: 'train/down/notes.txt'"
    ]


def test_a_class_may_be_called_test(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "test").symlink_to(photos / "down")
    (tmp_path / "other").symlink_to(photos / "up")
    loaded = recipe(tmp_path).load()
    assert list(loaded) == ["train"]
    assert loaded["train"].features["label"].names == ["other", "test"]


def test_labels_are_mapped_and_metrics_chosen_as_those_of_texts(photos: Path) -> None:
    subject = recipe(photos, label_map="up=rise,down=fall", metrics="accuracy")
    assert subject.labels == ["fall", "rise"]
    with pytest.raises(UserError, match=r"--label_map: no label 'left' in the data \(labels: 'd"):
        _ = recipe(photos, label_map="left=x").splits


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (["a.png"], {}, "1 image outside of the folders of the classes ('a.png'): expected a fold"),
        (["list.csv"], {}, "expected a folder for each class with its images, or --dataset TABLE"),
        (["validation/up/a.png"], {}, "expected a folder 'train' beside 'validation', with a fold"),
        (["train/up/a.png", "val/up/a.png", "dev/up/a.png"], {}, "one folder for 'validation', fo"),
        (["train/up/a.png", "more/up/a.png"], {}, "'more' is neither train, validation nor test"),
        (["up/a.png", "down/b.png"], {"csv_quoting": "none"}, "--csv_quoting none: "),
        (["up/a.png", "down/b.png"], {"label_column": "x"}, "--label_column x: "),
    ],
)
def test_folders_that_cannot_be_read(
    files: list[str], options: dict[str, str], message: str, tmp_path: Path
) -> None:
    for number, name in enumerate(files):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(tmp_path / name, "PNG")
    with pytest.raises(UserError, match=re.escape(message)):
        recipe(tmp_path, **options).load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_column": "phot"}, "--image_column: no column 'phot' in the train data; did you m"),
        ({"label_column": "kin"}, "--label_column: no column 'kin' in the train data; did you mea"),
        (
            {"image_column": "light", "label_column": "kind"},
            "3 of 3 train images cannot be decoded: ",
        ),
        ({"image_column": "kind", "label_column": "kind"}, "are both 'kind'"),
    ],
)
def test_columns_that_cannot_be_read(
    options: dict[str, str], message: str, photos: Path, tmp_path: Path
) -> None:
    place = photos.parent / "three.csv"
    lines = table(photos, photos.parent / "whole.csv").read_text().splitlines()
    place.write_text("\n".join(lines[:4]) + "\n")
    with pytest.raises(UserError, match=re.escape(message)):
        recipe(place, **options).load()


def test_a_table_without_images_says_what_there_is(reviews: Path) -> None:
    with pytest.raises(UserError, match=r"no column holds images or paths .*available: text, la"):
        recipe(reviews).load()


# ---- images that cannot be decoded ---------------------------------------------------------------


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


def test_damaged_images_are_named_before_a_model_is_loaded(photos: Path, tmp_path: Path) -> None:
    folder = damaged(photos, tmp_path / "photos")
    with pytest.raises(UserError) as told:
        _ = recipe(folder, model="embedded:vit").splits
    assert re.fullmatch(
        f"2 of 122 train images cannot be decoded: {folder}/down/text.png: not an image; "
        rf"{folder}/up/cut.jpg: image file is truncated \(\d+ bytes not processed\); "
        "--drop_invalid leaves them out",
        str(told.value),
    )
    subject = recipe(folder, drop_invalid=True)
    assert sum(map(len, subject.splits.values())) == 120
    assert any(note.startswith("dropped 2 of 122 train images") for note in subject.notes)


def test_rows_of_a_table_without_an_image_are_named_by_line(photos: Path) -> None:
    place = photos.parent / "gaps.csv"
    lines = table(photos, photos.parent / "whole.csv").read_text().splitlines()
    lines[3] = ",down,1"
    lines[5] = "photos/down/gone.png,down,1"
    lines[7] = f"{lines[7].split(',')[0]},,1"
    place.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError) as told:
        recipe(place, label_column="kind").load()
    gone = photos / "down" / "gone.png"
    assert list(told.value.mistakes) == [
        "1 of 120 train rows without an image: line 4; --drop_invalid leaves them out",
        f"1 of 120 train images cannot be decoded: {gone}: no such file (line 6); --drop_invalid "
        "leaves them out",
    ]
    kept = recipe(place, label_column="kind", drop_invalid=True)
    assert sum(map(len, kept.load().values())) == 117


def test_images_are_looked_at_once(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = recipe(photos)
    subject.load()
    looked: list[Any] = []
    look_at = images._look_at
    monkeypatch.setattr(images, "_look_at", lambda each: looked.append(each) or look_at(each))
    recipe(photos).load()
    assert not looked
    one = photos / "up" / "001.png"
    one.touch()
    recipe(photos).load()
    assert len(looked) == 120


def test_an_image_that_breaks_later_is_named_when_it_is_decoded(
    photos: Path, vit: str, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    for path in sorted(photos.rglob("*.png")):
        place = folder / path.relative_to(photos)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    subject = recipe(folder, model=vit)
    rows = subject.prepared["train"]
    Path(rows[0]["image"]["path"]).write_bytes(b"")
    with pytest.raises(UserError, match=rf"{folder}/\w+/\d+.png cannot be decoded as an image: n"):
        subject.data_collator()([rows[0]])


# ---- pixels --------------------------------------------------------------------------------------


def written(image: Image.Image, form: str = "PNG", **options: Any) -> dict[str, Any]:
    content = io.BytesIO()
    image.save(content, form, **options)
    return {"bytes": content.getvalue(), "path": None}


def exact(image: dict[str, Any]) -> np.ndarray:
    found = images.decoded(image, "row 1")
    assert found.mode == "RGB"
    return np.asarray(found)


@pytest.mark.parametrize(
    ("mode", "form"),
    [
        *((mode, "PNG") for mode in ("RGB", "L", "P", "1", "RGBA", "LA")),
        *(("CMYK", "TIFF"), ("P", "GIF"), ("RGB", "WEBP"), ("YCbCr", "TIFF"), ("CMYK", "JPEG")),
    ],
)
def test_images_of_every_mode_are_decoded_as_the_library_does(mode: str, form: str) -> None:
    image = written(picture(1).convert(mode), form)
    assert np.array_equal(exact(image), load_image(Image.open(io.BytesIO(image["bytes"]))))
    assert images._look_at(image)[1] == images.PLAIN


def test_the_orientation_of_a_camera_is_followed() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    turned = exact(written(picture(1), exif=exif))
    assert np.array_equal(turned, np.rot90(np.asarray(picture(1)), -1))


def test_transparent_pixels_are_white() -> None:
    shape = picture(1).convert("RGBA")
    shape.putalpha(Image.fromarray(np.tile([0, 255], (SIDE, SIDE // 2)).astype(np.uint8)))
    found = exact(written(shape))
    assert (found[:, ::2] == 255).all()
    assert np.array_equal(found[:, 1::2], np.asarray(picture(1))[:, 1::2])
    palette = ImageOps.grayscale(picture(1)).convert("P")
    clear = exact(written(palette, transparency=palette.getpixel((0, 0))))
    assert clear[0, 0].tolist() == [255] * 3


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    deep = np.linspace(0, 65535, SIDE * SIDE).astype(np.uint16).reshape(SIDE, SIDE)
    assert np.array_equal(exact(written(Image.fromarray(deep)))[:, :, 1], deep >> 8)
    with pytest.raises(UserError, match=r"row 1 cannot be decoded .* 32 bits a pixel \(mode F\)"):
        exact(written(Image.fromarray(deep.astype(np.float32)), "TIFF"))


def test_what_pipeline_sees_otherwise_is_said(photos: Path, tmp_path: Path) -> None:
    for path in sorted(photos.rglob("*.png"))[::2]:
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        (tmp_path / path.parent.name / path.name).write_bytes(path.read_bytes())
    clear = picture(1).convert("RGBA")
    clear.putpixel((0, 0), (0, 0, 0, 0))
    clear.save(tmp_path / "up" / "clear.png")
    Image.fromarray(np.eye(SIDE, dtype=np.uint16) * 40000).save(tmp_path / "up" / "deep.png")
    subject = recipe(tmp_path)
    subject.load()
    assert subject.notes == [
        "1 train image with transparent pixels: they are made white (pipeline() ignores "
        "transparency)",
        "1 train image of 16 bits a pixel: scaled to 8 bits (pipeline() clips them)",
    ]


# ---- crops and flips -----------------------------------------------------------------------------


def seen(augmentation: Augmentation, row: int, epoch: int = 0, seed: int = 42) -> bytes:
    augmentation.set_epoch(epoch, seed)
    image = augmentation(picture(1).resize((40, 30)), row)
    return image.tobytes() + str(image.size).encode()


def test_crops_depend_on_seed_epoch_and_row_alone() -> None:
    every = [(row, epoch, seed) for row in range(3) for epoch in range(3) for seed in (1, 2)]
    first = {key: seen(Augmentation(0.5, True), *key) for key in every}
    one = Augmentation(0.5, True)
    assert {key: seen(one, *key) for key in reversed(every)} == first
    assert len(set(first.values())) == len(every)


def test_crops_keep_their_share_and_flips_are_half() -> None:
    image = Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40).astype(np.uint8))
    cropping, flipping = Augmentation(0.6, False), Augmentation(1, True)
    areas = [np.prod(cropping(image, row).size) / 1200 for row in range(500)]
    assert 0.58 < min(areas) < 0.65
    assert max(areas) > 0.9
    flipped = [flipping(image, row).tobytes() != image.tobytes() for row in range(500)]
    assert 0.4 < np.mean(flipped) < 0.6
    assert Augmentation(1, False)(image, 0) is image


def test_only_images_of_training_are_drawn(photos: Path, vit: str) -> None:
    subject = recipe(photos, model=vit)
    collate = subject.data_collator()
    for split, changes in {"train": True, "validation": False, "test": False}.items():
        rows = [subject.prepared[split][index] for index in range(4)]
        collate.set_epoch(0)
        first = collate(rows)["pixel_values"]
        collate.set_epoch(1)
        assert torch.equal(collate(rows)["pixel_values"], first) != changes
    plain = recipe(photos, model=vit, crop_scale=1.0, horizontal_flip=False)
    rows = [plain.prepared["train"][0]]
    image = Image.open(rows[0]["image"]["path"])
    expected = ViTImageProcessorPil.from_pretrained(vit)(image, return_tensors="pt")["pixel_values"]
    assert torch.equal(plain.data_collator()(rows)["pixel_values"], expected)
    with pytest.raises(UserError, match=r"--crop_scale 0: expected a share of the area, above 0"):
        recipe(photos, crop_scale=0)


def test_digits_are_not_mirrored() -> None:
    assert catalog.find("image").embedded["horizontal_flip"] is False


# ---- training ------------------------------------------------------------------------------------


def observe(dataset: str, model: str, directory: str, changes: list[dict[str, Any]]) -> list[Any]:
    """Train once for each of ``changes``; return the losses and the logits of the test rows."""
    found = []
    for change in changes:
        options = {key: each for key, each in change.items() if key == "crop_scale"}
        subject = ImageClassification(dataset=dataset, model=model, **options)
        quiet = dict(save_strategy="no", eval_strategy="no", load_best_model_at_end=False)
        given = {key: each for key, each in change.items() if key not in options}
        trainer = subject.trainer(**{**TRAINING, **quiet, **given}, output_dir=directory)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        found.append((losses, trainer.predict(subject.prepared["test"]).predictions))
    distributed.leave()
    return found


@pytest.mark.processes
def test_every_launch_sees_the_same_pixels(photos: Path, vit: str, tmp_path: Path) -> None:
    words = (str(photos), vit, str(tmp_path))
    accumulated = {"gradient_accumulation_steps": 2}
    workers = {"dataloader_num_workers": 2}
    living = {**workers, "dataloader_persistent_workers": True}
    tried = [{}, accumulated, workers, living, {"crop_scale": 1.0}, {"seed": 7}]
    one, *same, uncropped, other = observe(*words, tried)
    # fresh processes would start their workers afresh too, which takes seconds
    forked = {**living, "dataloader_multiprocessing_context": "fork"}
    same += in_fresh_processes(2, observe, *words, [{}, accumulated, forked])[1]
    same += in_fresh_processes(3, observe, *words, [{}])[2]
    for losses, logits in same:
        assert np.abs(np.subtract(losses, one[0])).max() < 1e-5
        assert np.abs(logits - one[1]).max() < 1e-5
    for losses, _ in (uncropped, other):
        assert np.abs(np.subtract(losses, one[0])).max() > 1e-3
    assert len(one[0]) == 14


@pytest.mark.parametrize("at", [4, 7])
def test_a_resumed_training_sees_the_same_pixels(
    at: int, photos: Path, vit: str, tmp_path: Path, without_report: None
) -> None:
    class Stop(finetune.UserError):
        """As if the machine had failed."""

    from transformers import TrainerCallback

    class Stopping(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == at:
                raise Stop("stopped")

    def trainer(directory: str) -> Any:
        subject = ImageClassification(dataset=str(photos), model=vit)
        saving = dict(save_strategy="steps", eval_strategy="steps", save_steps=1, eval_steps=1)
        return subject.trainer(**TRAINING, **saving, output_dir=str(tmp_path / directory))

    whole = trainer("whole")
    whole.train()
    stopped = trainer("stopped")
    stopped.add_callback(Stopping())
    with pytest.raises(Stop):
        stopped.train()
    resumed = trainer("stopped")
    resumed.train(resume_from_checkpoint=True)
    assert not resumed.collator_draws()
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_the_trainer_of_the_library_is_told_the_epochs(
    photos: Path, vit: str, tmp_path: Path
) -> None:
    from transformers import Trainer, TrainingArguments

    subject = ImageClassification(dataset=str(photos), model=vit)
    parts, told = subject.parts(), []
    collator = parts["data_collator"]

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        told.append(tuple(subject.augmentation.state.tolist()))
        found: dict[str, torch.Tensor] = collator(rows)
        return found

    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=84,
        remove_unused_columns=False,
        seed=3,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(**{**parts, "data_collator": collate}, args=arguments).train()
    assert set(told) == {(3, 0), (3, 1)}


def test_a_run_of_images(run: Run, photos: Path) -> None:
    manifest, found = run.manifest, run.predictions
    assert manifest.status == "finished"
    assert manifest.labels == list(LABELS)
    assert run.metrics.test["accuracy"] > 0.8
    assert list(found["file"].str.partition("/")[0]) == list(found["label"])
    wrong = found["label"] != found["prediction"]
    assert found["thumbnail"].notna().sum() == min(40, wrong.sum())
    page = (run.path / "report.html").read_text()
    assert page.count('<img src="data:image/jpeg;base64,') == min(20, wrong.sum())
    card = (run.path / "README.md").read_text()
    assert "pipeline_tag: image-classification" in card
    assert 'pipeline("image-classification", model="image")' in card


def test_models_with_batch_norm_are_told_of(photos: Path, tmp_path: Path, vit: str) -> None:
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic")
    subject = recipe(photos, model=saved(config, tmp_path))
    for _ in range(2):
        subject.build_model(["a", "b"])
    (note,) = subject.notes
    assert re.match(r"\d layers of BatchNorm normalise by the rows that a device", note)
    assert "not launch-invariant" in note
    other = recipe(photos, model=vit)
    other.build_model(["a", "b"])
    assert not other.notes


def test_models_that_do_not_read_images(photos: Path, vit: str, tiny_model: str) -> None:
    with pytest.raises(UserError, match="a model of type 'bert' does not classify images; expect"):
        recipe(photos, model=tiny_model).check()
    with pytest.raises(UserError, match="--model: this recipe names no model of its own"):
        recipe(photos).check()


def test_a_model_without_an_image_processor(photos: Path, vit: str, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((Path(vit) / name).read_bytes())
    with pytest.raises(UserError, match=r"--model .* cannot be loaded: .*preprocessor_config.json"):
        recipe(photos, model=str(tmp_path)).check()


def test_weights_are_saved_under_the_names_that_are_read(vit: str, tmp_path: Path) -> None:
    model: Any = recipe("x", model=vit).build_model(LABELS)
    model.save_pretrained(tmp_path)
    again: Any = recipe("x", model=vit).load_model(tmp_path, LABELS)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    assert again.config.id2label == dict(enumerate(LABELS))
    assert again.config.problem_type == "single_label_classification"


# ---- prediction and evaluation -------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected(run: Run, photos: Path) -> dict[str, float]:
    """The probability of ``up``, of ``transformers.pipeline`` over the files, by name."""
    classify = pipeline("image-classification", model=str(run.path), top_k=2)
    return {
        path.name: next(each["score"] for each in classify(str(path)) if each["label"] == "up")
        for path in sorted(photos.rglob("*.png"))[::7]
    }


def same(found: pd.DataFrame, column: str, expected: dict[str, float]) -> None:
    """Assert that the predictions are those of the pipeline, for every file it has."""
    of_file = dict(zip(found[column].map(lambda each: Path(each).name), found.index, strict=True))
    for name, probability in expected.items():
        row = found.loc[of_file[name]]
        assert abs(row["probability of up"] - probability) < 1e-5
        assert row["predicted"] == LABELS[probability > 0.5]


Predict = Callable[..., pd.DataFrame]


@pytest.fixture
def predicted(run: Run, tmp_path: Path) -> Predict:
    def predict(source: Path, **options: Any) -> pd.DataFrame:
        place = tmp_path / "out.csv"
        finetune.predict_file(run, source, place, all_probabilities=True, **options)
        found = pd.read_csv(place)
        label = "predicted label" if "predicted label" in found else "label"
        return found.rename(columns={label: "predicted"})

    return predict


def test_folders_tables_and_frames_are_predicted_as_pipeline_does(
    predicted: Predict, run: Run, photos: Path, expected: dict[str, float]
) -> None:
    found = predicted(photos)
    assert list(found["file"][:2]) == ["down/000.png", "down/002.png"]
    same(found, "file", expected)
    place = table(photos, photos.parent / "again.csv")
    same(predicted(place, image_column="photo"), "photo", expected)
    place.write_text(place.read_text().replace("photo,", "image,"))
    same(predicted(place), "image", expected)
    paths = [str(path) for path in sorted(photos.rglob("*.png"))]
    framed = finetune.predict(run, paths, all_probabilities=True)
    same(framed.rename(columns={"label": "predicted"}), "image", expected)
    name, probability = next(iter(expected.items()))
    (one,) = photos.rglob(name)
    same(predicted(one), "file", {name: probability})


def test_inputs_that_cannot_be_predicted(run: Run, photos: Path, tmp_path: Path) -> None:
    def refused(source: Path, message: str, **options: Any) -> None:
        with pytest.raises(UserError, match=message):
            finetune.predict_file(run, source, tmp_path / "out.csv", **options)

    folder = damaged(photos, tmp_path / "photos")
    refused(folder, rf"{folder}/down/text.png cannot be decoded as an image: not an image")
    place = table(photos, photos.parent / "again.csv")
    refused(place, "--image_column: no column 'image' in .*available: photo, kind, light")
    refused(place, "reads images: --image_column", text_column="photo")
    refused(place, r"/down cannot be decoded as an image: no such file", image_column="kind")


def test_evaluation_of_other_images(run: Run, photos: Path) -> None:
    place = table(photos, photos.parent / "again.csv")
    of_folder = finetune.evaluate(run, photos)
    of_table = finetune.evaluate(run, place, image_column="photo", label_column="kind")
    assert of_folder.rows == of_table.rows == 120
    assert of_folder.metrics == of_table.metrics
    assert of_folder.rows_trained_on == run.manifest.data.rows["train"]
    own = finetune.evaluate(run)
    assert own.metrics["accuracy"] == run.metrics.test["accuracy"]


def test_the_embedded_digits_as_a_folder(tmp_path: Path, vit: str) -> None:
    rows = embedded.read("embedded:digits")["train"].select(range(0, 5000, 20))
    for number, row in enumerate(rows):
        place = tmp_path / "digits" / str(row["label"]) / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        row["image"].save(place)
    subject = recipe(tmp_path / "digits", model="embedded:vit", horizontal_flip=False)
    assert subject.labels == list("0123456789")
    batch = subject.data_collator()([subject.prepared["train"][0]])
    assert batch["pixel_values"].shape == (1, 3, 28, 28)
    model: Any = subject.build_model(subject.labels)
    assert model(pixel_values=batch["pixel_values"]).logits.shape == (1, 10)


def test_images_inside_and_outside_of_files_have_the_same_digests(photos: Path) -> None:
    one = sorted(photos.rglob("*.png"))[:1]
    rows = [{"image": str(one[0])}, {"image": {"bytes": one[0].read_bytes(), "path": None}}]
    features = Features({"image": ImageFeature()})
    tables = [Dataset.from_list([row], features) for row in rows]
    first, second = (images.inspect(each, "image", "images") for each in tables)
    assert np.array_equal(first.digests, second.digests)
    assert image_files.below(photos)[0] == "down/000.png"
