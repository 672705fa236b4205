"""Images: where they come from, which of them are refused, and what pixels they have."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, Features
from datasets import Image as ImageFeature
from PIL import Image, ImageOps
from torch.utils.data import DataLoader
from transformers.image_utils import load_image

from finetune import UserError
from finetune.data import embedded, image_files, images
from finetune.data.digests import fingerprint
from tests.conftest import Command
from tests.hub import Hub
from tests.hub.repositories import MNIST
from tests.pictures import LABELS, SIDE, damaged, picture, recipe, table

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


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("https://a.org/{}.png?size=9", "URLs, such as 'https://a.org/0.png?size=9': download"),
        ("photos\\{}.png", "paths of Windows, such as 'photos\\0.png': write them relative to"),
        ("C:/photos/{}.png", "paths of Windows, such as 'C:/photos/0.png': write them relative"),
    ],
)
def test_paths_of_another_system_are_refused_once(path: str, told: str, tmp_path: Path) -> None:
    rows = [f"{path.format(n)},{LABELS[n % 2]}\n" for n in range(8)]
    (tmp_path / "list.csv").write_text("".join(["file,kind\n", *rows]))
    with pytest.raises(UserError, match=re.escape(f"--image_column: 'file' holds {told}")) as error:
        recipe(tmp_path / "list.csv", label_column="kind").load()
    assert len(error.value.mistakes) == 1


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


def test_several_labels_in_a_cell_are_one_class_with_a_warning(photos: Path) -> None:
    lines = table(photos, photos.parent / "whole.csv").read_text().splitlines()
    header, row, *rest = lines
    photo, _, light = row.split(",")
    row = f"{photo},a;b,{light}"
    (place := photos.parent / "several.csv").write_text("\n".join([header, row, *rest]) + "\n")
    read = recipe(place, label_column="kind")
    assert "a;b" in read.load()["train"].features["label"].names
    assert any("'a;b', which looks like several labels with ';'" in note for note in read.notes)
    named = recipe(place, label_column="kind", label_map="a;b=odd").load()["train"]
    assert "odd" in named.features["label"].names


def test_a_table_without_images_says_what_there_is(reviews: Path) -> None:
    with pytest.raises(UserError, match=r"no column holds images or paths .*available: text, la"):
        recipe(reviews).load()


# ---- images that cannot be decoded ---------------------------------------------------------------


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
    for workers in (0, 1):
        loader = DataLoader(rows, collate_fn=subject.data_collator(), num_workers=workers)
        with pytest.raises(UserError) as told:
            next(iter(loader))
        assert len(str(told.value).splitlines()) == 1


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


def test_a_data_set_of_the_hub(hub: Hub, command: Command, vit: str, tmp_path: Path) -> None:
    environment = hub.environment(tmp_path / "home")
    words = ["image", "--dataset", MNIST, "--model", vit, "--max_steps", "1", "--no_baseline"]
    words += ["--train_samples", "40", "--eval_samples", "10", "--output_dir", tmp_path / "run"]
    done = command(*words, env=environment)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["data"]["revision"] == hub.repositories[MNIST].commit
    assert manifest["labels"] == [str(digit) for digit in range(10)]
    assert manifest["data"]["rows"] == {"train": 40, "validation": 10, "test": 10}
