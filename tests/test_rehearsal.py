"""What ``check --deep`` says a training takes, against what it takes."""

import csv
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import finetune
from finetune.errors import Finding
from finetune.training import memory

GIVEN: dict[str, Any] = {
    "max_length": 128,
    "global_batch_size": 16,
    "num_train_epochs": 3,
    "save_total_limit": 10,
    "baseline": False,
}


def drawn(rows: int = 1200, labels: Sequence[str] = ("good", "bad")) -> list[tuple[str, str]]:
    """Return texts of 25 words, some of which go with the label."""
    generator, table = random.Random(1), []
    for _ in range(rows):
        label = generator.choice(labels)
        words = generator.choices([f"word{number}" for number in range(400)], k=22)
        words += generator.choices([f"{label}ish{number}" for number in range(40)], k=3)
        table.append((" ".join(words), label))
    return table


def written(path: Path, rows: Sequence[tuple[str, str]]) -> Path:
    """Write rows with the columns ``text`` and ``label``."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


@pytest.fixture(scope="module")
def model(tiny_model: str) -> str:
    return tiny_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("rows") / "rows.csv", drawn(400))


def cost(path: Path, model: str, **options: Any) -> Finding:
    given = {**GIVEN, **options}
    found = finetune.check("text", dataset=str(path), model=model, deep=True, **given)
    (told,) = (each for each in found.findings if each.name in ("cost", "out_of_memory"))
    return told


def number(pattern: str, finding: Finding) -> float:
    found = re.search(pattern, finding.message)
    assert found, finding.message
    return float(found[1].replace(",", ""))


def test_what_is_estimated_is_what_a_training_takes(
    path: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = cost(path, model)
    assert list(tmp_path.iterdir()) == []
    assert told.severity == "info"
    run = finetune.train(
        "text", dataset=str(path), model=model, output_dir=str(tmp_path / "run"), **GIVEN
    )
    steps, taken = run.manifest["steps"], run.manifest["speed"]["seconds"]["step"]
    assert taken / 5 < steps * number(r"of ([\d.]+) s, from 3 timed", told) < 5 * taken
    assert number(r"\((\d+) steps of", told) == steps == 54
    files = (tmp_path / "run").rglob("*")
    size = sum(each.stat().st_size for each in files if each.suffix in (".safetensors", ".pt"))
    unit = {"kB": 1e3, "MB": 1e6}[re.findall(r"([kM]B) of disk", told.message)[0]]
    assert number(r"([\d.,]+) [kM]B of disk", told) * unit == pytest.approx(size, rel=0.2)
    assert "(3 checkpoints at once, and the model)" in told.message


def test_the_longest_rows_are_those_that_memory_is_measured_with(
    path: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from finetune.training import rehearsal

    seen: list[list[int]] = []
    both = rehearsal._both_passes
    monkeypatch.setattr(
        rehearsal,
        "_both_passes",
        lambda trainer, rows: (seen.append(rows["length"][:]), both(trainer, rows)),
    )
    rows = drawn(400)
    for place in random.Random(1).sample(range(400), 90):  # so that some of them are trained
        rows[place] = (" ".join(rows[place][0].split()[:1] * 200), rows[place][1])
    cost(written(tmp_path / "rows.csv", rows), model, max_length=256)
    assert len(seen[0]) == 16
    assert min(seen[0]) > 200


def test_too_little_memory_is_an_error(
    path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(transformers.Trainer, "training_step", fails)
    told = cost(path, model)
    assert (told.name, told.severity) == ("out_of_memory", "error")
    assert "out of memory on the CPU at step 1: a micro-batch of" in told.message


def test_nearly_all_memory_is_suspicious(
    path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda device: 2**20)
    told = cost(path, model)
    assert told.severity == "warning"
    assert " of 1.0 MiB of memory (forward and backward pass over" in told.message
    assert told.fix.startswith("--gradient_accumulation_steps 2")


def test_a_number_of_tokens_is_not_estimated(path: Path, model: str) -> None:
    told = cost(path, model, max_tokens_per_batch=2000, global_batch_size=None)
    assert told.message.startswith("--max_tokens_per_batch: the lengths of all texts decide")


def test_images_are_rehearsed() -> None:
    found = finetune.check("image", embedded=True, deep=True, train_samples=200).findings
    assert [each.severity for each in found if each.name == "cost"] == ["info"]
