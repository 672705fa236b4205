"""Thresholds of several labels a row: folded into the last layer, or not where it has no bias."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, GPT2Config, GPT2ForSequenceClassification, pipeline

import finetune
from finetune import Run, UserError
from finetune.pipeline.events import Noted

WORDS = {"service, fast": "waiter", 'the "food"': "soup", "Preis/€": "bill"}


def table(path: Path, rows: int = 120) -> str:
    """Write texts that say their labels, whose names have commas, quotes and other letters."""
    lines = []
    for number in range(rows):
        names = [name for place, name in enumerate(WORDS) if number >> place & 1]
        said = " and ".join(WORDS[name] for name in names) or "weather"
        lines.append(json.dumps({"text": f"the {said} of visit {number}", "label": names}))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def decoder(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A GPT-2 of one layer, whose head has no bias."""
    directory = str(tmp_path_factory.mktemp("decoder"))
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_layer=1, n_head=2, n_positions=64, pad_token_id=0
    )
    GPT2ForSequenceClassification(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def trained(
    data: str, model: str, directory: Path, thresholds: str = "label"
) -> tuple[Run, list[str]]:
    notes: list[str] = []
    run = finetune.train(
        "text",
        dataset=data,
        model=model,
        max_length=32,
        max_steps=4,
        thresholds=thresholds,
        global_batch_size=16,
        precision="fp32",
        output_dir=str(directory),
        attention_dropout=None,
        progress=lambda event: notes.append(str(event)) if isinstance(event, Noted) else None,
    )
    return run, notes


@pytest.mark.trains
def test_thresholds_are_left_out_where_there_is_no_bias(decoder: str, tmp_path: Path) -> None:
    data, told = table(tmp_path / "rows.jsonl"), "no bias that thresholds could be folded into"
    run, notes = trained(data, decoder, tmp_path / "run")
    assert any(told in note for note in notes), notes
    assert any(told in note for note in run.manifest.data.notes)
    assert run.statistics.thresholds is None
    page = (run.path / "report.html").read_text()
    assert ">threshold<" not in page
    assert told in page
    assert told in (run.path / "README.md").read_text()
    plain, notes = trained(data, decoder, tmp_path / "plain", thresholds="none")
    assert not any(told in note for note in notes)
    assert plain.metrics.baseline == run.metrics.baseline
    assert plain.metrics.validation == pytest.approx(run.metrics.validation, abs=1e-6)


@pytest.mark.trains
def test_thresholds_are_told_and_predictions_written(tiny_model: str, tmp_path: Path) -> None:
    data = table(tmp_path / "rows.jsonl")
    run, notes = trained(data, tiny_model, tmp_path / "run")
    assert not any("no bias" in note for note in notes)
    assert set(run.statistics.thresholds or {}) == set(WORDS)
    assert ">threshold<" in (run.path / "report.html").read_text()
    texts = [f"the {word} of visit 3" for word in WORDS.values()]
    found = finetune.predict(run, texts, all_probabilities=True, precision="fp32")
    classify = pipeline("text-classification", model=str(run.path), top_k=None)
    for (_, row), scores in zip(found.iterrows(), classify(texts), strict=True):
        assert list(row["label"]) == [
            each for each in run.labels if row[f"probability of {each}"] > 0.5
        ]
        for each in scores:
            assert row[f"probability of {each['label']}"] == pytest.approx(each["score"], abs=1e-4)


def test_label_smoothing_is_refused(tiny_model: str, tmp_path: Path) -> None:
    data = table(tmp_path / "rows.jsonl")
    with pytest.raises(UserError, match="a task of multi_label has no classes of which a row has"):
        finetune.train("text", dataset=data, model=tiny_model, label_smoothing_factor=0.1)
