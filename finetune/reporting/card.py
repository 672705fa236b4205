"""``README.md`` of a run: the model card, with the metadata that the Hub reads."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError

from finetune.reporting import wording
from finetune.runs.run import Run
from finetune.runtime import hub
from finetune.runtime.files import write_whole
from finetune.training.manifest import Manifest, Metrics

CARD = "README.md"
_EMBEDDED_BASE = "sentence-transformers/all-MiniLM-L6-v2"


def write(run: Run) -> Path:
    """Write the card of a finished run; one that is there is replaced."""
    path = run.path / CARD
    write_whole(path, str(of(run)))
    return path


def of(run: Run) -> ModelCard:
    """The card, of facts in ``run.json`` and ``metrics.json`` alone."""
    manifest, metrics = run.manifest, run.metrics
    data = _metadata(manifest, {name: metrics.test[name] for name in run.headline})
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{_text(run, manifest, metrics)}")


def _metadata(manifest: Manifest, scores: Mapping[str, float]) -> ModelCardData:
    source = manifest.options["dataset"]
    on_hub = hub.names_repository(source)
    is_text = "max_length" in manifest.options
    if not manifest.labels:
        task = "tabular-regression"
    else:
        task = "text-classification" if is_text else "image-classification"
    base, licence = _base(manifest)
    return ModelCardData(
        model_name=Path(manifest.recipe).stem,
        library_name="transformers" if is_text else "pytorch",
        pipeline_tag=task if is_text else None,
        base_model=base,
        license=licence,
        datasets=[source] if on_hub else None,
        metrics=list(scores),
        tags=["finetune"],
        eval_results=[
            EvalResult(
                task_type=task,
                dataset_type=source if on_hub else "other",
                dataset_name=_source(manifest),
                dataset_split="test",
                metric_type=name,
                metric_name=wording.name(name),
                metric_value=value,
            )
            for name, value in scores.items()
        ],
    )


def _source(manifest: Manifest) -> str:
    """Where the data came from; of a local path its name, not where it lies."""
    path = Path(str(manifest.options["dataset"] or "-"))
    return path.name if path.is_absolute() else str(manifest.data.source)


def _base(manifest: Manifest) -> tuple[str | None, str | None]:
    """The model on the Hub that was trained further, and its licence where it is known."""
    name = manifest.options.get("model")
    if name == "embedded:minilm":
        return _EMBEDDED_BASE, "apache-2.0"
    if not name:
        return None, None
    if hub.names_repository(name):
        found = _card_on_hub(name)
        return name, found.license if found else None
    own = Path(name) / CARD
    if not own.is_file():
        return None, None
    found = ModelCard.load(own).data
    return found.base_model, found.license


def _card_on_hub(name: str) -> ModelCardData | None:
    """The metadata of a model on the Hub, from the cache or, if it answers, from there."""
    for from_cache in (True, False):
        if not from_cache and (hub.offline() or not hub.answers(hub.endpoint())):
            return None
        with contextlib.suppress(EntryNotFoundError, RepositoryNotFoundError, HfHubHTTPError):
            path = hf_hub_download(name, CARD, local_files_only=from_cache)
            data: ModelCardData = ModelCard.load(path).data
            return data
    return None


def _text(run: Run, manifest: Manifest, metrics: Metrics) -> str:
    statistics, data = run.statistics, manifest.data
    headline = run.headline
    own = [statistics.metrics[name] for name in headline]
    table = [
        ["---"] * (len(headline) + 1),
        ["fine-tuned", *(f"{e['value']:.4f} ({e['low']:.3f} to {e['high']:.3f})" for e in own)],
        *(
            [baseline, *(f"{scores[name]:.4f}" for name in headline)]
            for baseline, scores in metrics.baseline.items()
        ),
    ]
    lines = [
        f"# {Path(manifest.recipe).stem}",
        "",
        wording.verdict(statistics, headline),
        "",
        f"On {statistics.rows:,} test rows, with 95% confidence intervals:",
        "",
        f"| | {' | '.join(map(wording.name, headline))} |",
        *(f"| {' | '.join(cells)} |" for cells in table),
        "",
        "## Data",
        "",
        f"{_source(manifest)}: "
        + ", ".join(f"{rows:,} {name}" for name, rows in data.rows.items())
        + f" rows (fingerprint `{data.fingerprint}`).",
        *(f"{note[0].upper()}{note[1:]}." for note in [*data.notes, *statistics.notes]),
        "",
        "## Use",
        "",
        *_use(run, manifest),
        "",
        "## Training",
        "",
        f"    {manifest.command}",
        "",
        f"{manifest.steps:,} steps in {manifest.train_seconds:,.0f} s "
        f"({manifest.launch.parallel_mode}, {manifest.launch.precision}); "
        + ", ".join(f"{name} {each}" for name, each in manifest.versions.items())
        + ".",
        "",
        "## Limits",
        "",
        "The intervals say what other rows of the same kind might have given; they say nothing of "
        "texts of another kind, nor of another training. Known mistakes, slices and calibration "
        "are in `report.html`.",
    ]
    if _base(manifest)[1] is None and manifest.options.get("model"):
        lines.append("The licence of the base model holds; it is not known here.")
    return "\n".join(lines) + "\n"


def _use(run: Run, manifest: Manifest) -> list[str]:
    if "max_length" in manifest.options:
        imported = "from transformers import pipeline"
        line = f'classify = pipeline("text-classification", model="{run.path.name}")'
    else:
        imported = "from finetune import Run"
        line = f'model = Run.load("{run.path.name}").model()'
    return ["```python", imported, "", line, "```"]
