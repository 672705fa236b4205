"""Images: crops and flips, training, prediction and evaluation."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from transformers import (
    ResNetConfig,
    ViTConfig,
    ViTImageProcessorPil,
    pipeline,
)

import finetune
from finetune import ImageRecipe, Run, UserError
from finetune.data.image_batches import Augmentation
from finetune.recipe import catalog
from finetune.runtime import distributed
from tests.pictures import LABELS, SIDE, damaged, picture, recipe, saved, table
from tests.warm import in_warm_processes

pytestmark = pytest.mark.usefixtures("one_thread")
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


@pytest.fixture(scope="session")
def run(photos: Path, vit: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("runs") / "image"
    longer = {**TRAINING, "num_train_epochs": 6, "learning_rate": 1e-2}
    return finetune.train("image", dataset=str(photos), model=vit, **longer, output_dir=str(place))


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
        subject = ImageRecipe(dataset=dataset, model=model, **options)
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
    tried = [{}, workers, living, {"crop_scale": 1.0}, {"seed": 7}]
    one, *same, uncropped, other = observe(*words, tried)
    # fresh processes would start their workers afresh too, which takes seconds
    forked = {**accumulated, **living, "dataloader_multiprocessing_context": "fork"}
    same += in_warm_processes(2, observe, *words, [forked])[1]
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
        subject = ImageRecipe(dataset=str(photos), model=vit)
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

    subject = ImageRecipe(dataset=str(photos), model=vit)
    parts, told = subject.trainer_kwargs(), []
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


def test_other_images_are_other_rows(run: Run, tmp_path: Path) -> None:
    same = shutil.copytree(run.path, tmp_path / "same")
    assert finetune.compare([run, same]).rows == len(run.predictions)
    table = run.predictions
    table.loc[3, "digest"] = table.loc[4, "digest"]
    table.to_parquet(same / "predictions.parquet", index=False)
    with pytest.raises(UserError, match="different test rows"):
        finetune.compare([run, same])


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


def test_models_that_do_not_read_images(photos: Path, tiny_model: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a model of type 'bert' does not classify images; expect"):
        recipe(photos, model=tiny_model).check()
    with pytest.raises(UserError, match="--model: this recipe names no model of its own"):
        recipe(photos).check()
    config = ViTConfig(image_size=SIDE, patch_size=4, num_channels=1, num_hidden_layers=1)
    grey = saved(config, tmp_path / "grey")
    with pytest.raises(UserError, match="it takes images of 1 channels; images are read as RGB"):
        recipe(photos, model=grey).check()


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
    for number in range(6):
        (folder / f"bad{number}.png").write_bytes(b"nothing")
    with pytest.raises(UserError) as refusal:
        finetune.predict_file(run, folder, tmp_path / "out.csv")
    *named, more = refusal.value.mistakes
    assert [each.partition(" ")[0] for each in named] == [
        str(folder / f"bad{number}.png") for number in range(5)
    ]
    assert re.fullmatch(r"\d images cannot be decoded", more)
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
