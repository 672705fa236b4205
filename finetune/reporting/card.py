"""``README.md`` of a run: the model card, with the metadata that the Hub reads."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError

from finetune.data import embedded
from finetune.data.comma_list import split_values
from finetune.data.encoding import is_pair, separator
from finetune.models.pretrained import load_tokenizer
from finetune.reporting import facts, wording
from finetune.runs.run import Run
from finetune.runtime import hub
from finetune.runtime.files import write_whole
from finetune.training.manifest import Manifest, Metrics

CARD = "README.md"


def write(run: Run) -> Path:
    """Write the card of a finished run; one that is there is replaced."""
    path = run.path / CARD
    write_whole(path, str(of(run)))
    return path


def of(run: Run) -> ModelCard:
    """Return the card, of facts in ``run.json`` and ``metrics.json`` alone."""
    manifest, metrics = run.manifest, run.metrics
    data = _metadata(run, {name: metrics.test[name] for name in run.headline})
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{_text(run, manifest, metrics)}")


def _metadata(run: Run, scores: Mapping[str, float]) -> ModelCardData:
    manifest = run.manifest
    source = manifest.options["dataset"]
    on_hub = hub.names_repository(source)
    is_text, from_library = "max_length" in manifest.options, "model" in manifest.options
    task = run.kind.on_hub(is_text=is_text)
    base, licence = _base(manifest)
    return ModelCardData(
        model_name=Path(manifest.recipe).stem,
        library_name="transformers" if from_library else "pytorch",
        pipeline_tag=task if from_library else None,
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
            if not math.isnan(value)
        ],
    )


def _source(manifest: Manifest) -> str:
    """Return where the data came from; of a local path its name, not where it lies."""
    path = Path(str(manifest.options["dataset"] or "-"))
    return path.name if path.is_absolute() else str(manifest.data.source)


def _base(manifest: Manifest) -> tuple[str | None, str | None]:
    """Return the model on the Hub that was fine-tuned, and its licence where it is known."""
    name = manifest.options.get("model")
    if not name:
        return None, None
    if on_hub := facts.base_on_hub(manifest):
        if on_hub != name:  # an installed package has it
            return on_hub, "apache-2.0"
        found = _card_on_hub(name)
        return name, found.license if found else None
    own = Path(name) / CARD
    if not own.is_file():
        return None, None
    found = ModelCard.load(own).data
    return found.base_model, found.license


def _card_on_hub(name: str) -> ModelCardData | None:
    """Return the metadata of a model on the Hub, from the cache or, if it answers, from there."""
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
    own = [wording.rounded(statistics.metrics[name]) for name in headline]
    digits = {name: wording.digits(statistics.metrics[name]) for name in headline}
    table = [
        ["---"] * (len(headline) + 1),
        [
            "fine-tuned",
            *(f"{value} ({low} to {high})" if low != high else value for value, low, high in own),
        ],
        *(
            [baseline, *(wording.score(scores[name], digits=digits[name]) for name in headline)]
            for baseline, scores in metrics.baseline.items()
        ),
    ]
    lines = [
        f"# {Path(manifest.recipe).stem}",
        "",
        wording.verdict(statistics, headline, wording.directions(manifest)),
        "",
        f"On {statistics.rows:,} test rows (95% confidence intervals in parentheses):",
        "",
        f"| | {' | '.join(map(wording.name, headline))} |",
        *(f"| {' | '.join(cells)} |" for cells in table),
        "",
        "## Data",
        "",
        f"{_source(manifest)}: "
        + ", ".join(f"{rows:,} {name}" for name, rows in data.rows.items())
        + f" rows (fingerprint `{data.fingerprint}`).",
        *([f"{data.split_how[0].upper()}{data.split_how[1:]}."] if data.split_how else []),
        *(f"{note[0].upper()}{note[1:]}." for note in [*data.notes, *statistics.notes]),
        "",
        "## Use",
        "",
        *_use(run, manifest),
        *_truncation(manifest),
        "",
        "## Training",
        "",
        f"    {manifest.command}",
        "",
        f"{manifest.steps:,} steps in {manifest.train_seconds:,.0f} s"
        + (f", {manifest.finished[:10]} " if manifest.finished else " ")
        + f"({manifest.launch.parallel_mode}, {manifest.launch.precision}); "
        + ", ".join(f"{name} {each}" for name, each in manifest.versions.items())
        + ".",
        "",
        "## Limits",
        "",
        "The confidence intervals cover the sampling of the test rows. They do not cover another "
        "training run, or data of another kind. Mistakes, slices and calibration are in "
        "`report.html`.",
    ]
    base = str(manifest.options.get("model") or embedded.PREFIX)
    if _base(manifest)[1] is None and not base.startswith(embedded.PREFIX):
        lines.append("The licence of the base model applies; it could not be determined.")
    return "\n".join(lines) + "\n"


def _truncation(manifest: Manifest) -> list[str]:
    if (most := manifest.options.get("max_length")) is None:
        return []
    if manifest.options.get("long_texts") == "windows":
        return _windows(manifest, most)
    truncation = manifest.options.get("truncation", "head")
    cuts_nothing = "without `truncation=True` a `pipeline()` truncates nothing, and may fail on it"
    if truncation == "head_tail":
        return [
            "",
            f"Of a text longer than {most:,} tokens the first {most // 4:,} and the last ones are "
            f"read, {most:,} in all. `pipeline()` reads the first {most:,}, and {cuts_nothing}; "
            "`python -m finetune predict` reads what training did.",
        ]
    kept = {"head": "first", "tail": "last"}[truncation]
    if manifest.options.get("text_columns"):
        return [
            "",
            f"Of texts of more than {most:,} tokens together, the longest is truncated first: its "
            f"{kept} tokens are read.",
        ]
    return [
        "",
        f"Of a text longer than {most:,} tokens the {kept} {most:,} are read; {cuts_nothing}.",
    ]


def _windows(manifest: Manifest, most: int) -> list[str]:
    """Return how a long text is read in windows without this toolkit."""
    options = manifest.options
    pooling = options["pooling"]
    stride = most // 4 if options["stride"] is None else options["stride"]
    pooled = {"mean": "mean", "max": "amax"}[pooling]
    return [
        "",
        f"A text longer than {most:,} tokens was read in windows of {most:,}, each sharing "
        f"{stride:,} tokens with the next and the last ending with the text; the {pooling} of "
        "their logits is the prediction, and so were the scores above computed. `python -m "
        "finetune predict` does the same. A `pipeline()` knows no windows: it reads the first "
        f"{most:,} tokens, and without `truncation=True` may fail. To pool windows without this "
        "toolkit:",
        "",
        "```python",
        "import torch",
        "",
        "tokenizer, model = classify.tokenizer, classify.model.eval()",
        'tokenizer.truncation_side = "right"',
        f"cut = tokenizer(text, truncation=True, stride={stride}, return_overflowing_tokens=True)",
        'windows = cut["input_ids"]',
        'tokenizer.truncation_side = "left"  # the last window ends with the text',
        'windows[-1] = tokenizer(text, truncation=True)["input_ids"]',
        "with torch.inference_mode():",
        f"    logits = model(torch.tensor(windows, device=model.device)).logits.{pooled}(dim=0)",
        "```",
    ]


def _use(run: Run, manifest: Manifest) -> list[str]:
    if "model" in manifest.options:
        task = run.kind.on_hub(is_text="max_length" in manifest.options)
        imported = "from transformers import pipeline"
        more = "".join(f", {n}={each}" for n, each in run.kind.pipeline_arguments.items())
        more = f", truncation=True{more}" if task == "text-classification" else more
        line = f'classify = pipeline("{task}", model="{run.path.name}"{more})'
        if columns := manifest.options.get("text_columns"):
            return _use_of_several(run, [imported, "", line], split_values(columns))
    else:
        imported = "from finetune import Run"
        line = f'model = Run.load("{run.path.name}").model()'
    return ["```python", imported, "", line, "```"]


def _use_of_several(run: Run, lines: list[str], columns: list[str]) -> list[str]:
    """Return how to hand several columns to ``pipeline()`` so that the tokens are those of the
    training: as a pair where the tokenizer knows pairs, else joined.
    """
    tokenizer = load_tokenizer(str(run.path))
    names = [name if name.isidentifier() else f"text_{n}" for n, name in enumerate(columns, 1)]
    if is_pair(tokenizer, len(columns)):
        row = f'{{"text": {names[0]}, "text_pair": {names[1]}}}'
        said = "The two columns are a pair of the tokenizer."
    else:
        between = separator(tokenizer)
        row = f"{between!r}.join([{', '.join(names)}])"
        said = (
            f"The columns are joined by `{between!r}`. Where they are longer than the model reads, "
            "`pipeline()` truncates the whole, not the longest column: take `python -m finetune "
            "predict`."
        )
    return [
        "```python",
        *lines,
        f"classify({row})",
        "```",
        "",
        said,
    ]
