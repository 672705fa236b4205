"""Write ``README.md`` of a run: the model card, with metadata for the Hub.

It is made to be shared: it has no local path and nothing that quotes the data, as notes may.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from finetune.data.comma_list import split_values
from finetune.errors import counted
from finetune.predicting.files import TOKENIZER
from finetune.recipe.run import Run
from finetune.reporting import tables
from finetune.runs.records import Manifest
from finetune.runtime import hub
from finetune.runtime.files import write_whole
from finetune.runtime.formats import visible

_HYPERPARAMETERS = (
    "learning_rate",
    "lr_scheduler_type",
    "num_train_epochs",
    "final_epochs",
    "global_batch_size",
    "max_tokens_per_batch",
    "weight_decay",
    "label_smoothing_factor",
    "seed",
)
_UNSET = (None, "None", 0)
_TEMPLATE = Path(__file__).with_name("templates") / "card.md.jinja"
#: Matches code, which keeps its HTML, and any other `<`, which is escaped (e.g. in a file name).
_CODE_OR_HTML = re.compile(r"^```.*?^```$|^    .*?$|`[^`]*`|<", re.M | re.S)


def write(run: Run) -> Path:
    """Write the model card of a finished run, or replace it, and return its path."""
    manifest = run.manifest
    arguments = manifest.arguments
    rows, scores, positive = 0, "", None
    if manifest.not_scored is None:
        statistics = run.statistics
        rows, positive = statistics.rows, statistics.positive_label
        scores = tables.scores(run).markdown()
    card = ModelCard.from_template(
        _metadata(run),
        template_path=str(_TEMPLATE),
        name=Path(manifest.recipe).stem,
        verdicts=tables.verdicts(run),
        rows=rows,
        scores=scores,
        positive=positive,
        facts={"splits": "", "teacher": "", **provenance(manifest), "data": _source(run)},
        fingerprint=manifest.data.fingerprint,
        hyperparameters=[(n, v) for n in _HYPERPARAMETERS if (v := arguments.get(n)) not in _UNSET],
        code=_code(run),
    )
    card.text = _CODE_OR_HTML.sub(
        lambda match: r"\<" if match[0] == "<" else match[0], visible(card.text)
    )
    path = run.path / "README.md"
    write_whole(path, f"{card.content.rstrip()}\n")
    return path


def _metadata(run: Run) -> ModelCardData:
    manifest = run.manifest
    scores = {}
    if manifest.not_scored is None:
        scores = {name: run.metrics.test[name] for name in run.headline}
    source = manifest.options["dataset"]
    on_hub = hub.names_repository(source)
    from_library = "model" in manifest.options
    inputs = "text" if "max_length" in manifest.options else "image"
    if run.task.labels_words:
        inputs = "token"
    task = f"{inputs}-classification"
    results = []
    for name, value in scores.items():
        if not math.isnan(value):
            result = EvalResult(
                task_type=task,
                dataset_type=source if on_hub else "other",
                dataset_name=_source(run),
                dataset_split="test",
                metric_type=name,
                metric_name=name,
                metric_value=value,
            )
            results.append(result)
    return ModelCardData(
        model_name=Path(manifest.recipe).stem,
        library_name="transformers" if from_library else "pytorch",
        pipeline_tag=task if from_library else None,
        base_model=_base_on_hub(manifest),
        datasets=[source] if on_hub else None,
        metrics=list(scores) or None,
        tags=["finetune"],
        eval_results=results or None,
    )


def _source(run: Run) -> str:
    """Return the source of the data; for local paths only their last parts."""
    source = str(run.manifest.options["dataset"] or "-")
    if Path(source).is_absolute():
        return Path(source).name
    parts = str(run.manifest.data.source).split(", ")
    if not hub.names_repository(source):
        parts = [Path(part).name for part in parts]
    return ", ".join(parts)


def _code(run: Run) -> str:
    """Return code that uses the model: ``pipeline()`` if it reads inputs as the training did."""
    options = run.manifest.options
    if run.task.labels_words and _splits_words(run):
        return (
            "from transformers import pipeline\n\n"
            "# of a text above max_length it reads the start; finetune.predict_file() reads all\n"
            f'label = pipeline("token-classification", model="{run.path.name}", '
            'aggregation_strategy="first")'
        )
    is_cut = options.get("long_texts") != "windows" and options.get("truncation") != "head_tail"
    if "model" not in options or not is_cut or options.get("text_columns"):
        return f'import finetune\n\nfinetune.predict_file("{run.path.name}", "new.csv", "out.csv")'
    kind, arguments = "image", ""
    if "max_length" in options:
        kind, arguments = "text", ", truncation=True"
    if run.labels and not run.task.has_one_class:
        arguments += ", top_k=None"  # returns the scores of all labels
    return (
        "from transformers import pipeline\n\n"
        f'classify = pipeline("{kind}-classification", model="{run.path.name}"{arguments})'
    )


def _splits_words(run: Run) -> bool:
    """Return whether the tokenizer of a run splits texts into words as the toolkit does."""
    path = run.path / TOKENIZER
    if not path.is_file():
        return False
    name: str = json.loads(path.read_text(encoding="utf-8"))["model"]["type"]
    return name == "WordPiece"


def provenance(manifest: Manifest) -> dict[str, str]:
    """Return the facts that describe how a run was made, by name."""
    launch = manifest.launch
    data = manifest.data
    base = _base_on_hub(manifest) or Path(str(manifest.options.get("model") or "")).name
    if manifest.model_revision and base:
        base = f"{base} at {manifest.model_revision[:12]}"
    if layers := manifest.options.get("layers"):
        base += f", {layers} of its layers"
    facts = {
        "base model": base,
        "trained": f"{manifest.finished[:16].replace('T', ', ')} UTC" if manifest.finished else "",
        "data": f"{data.source}, fingerprint {data.fingerprint}",
        "rows": ", ".join(f"{count:,} {name}" for name, count in data.rows.items()),
        "splits": data.split_how,
        "teacher": _teacher(manifest.options),
        "training": f"{manifest.steps:,} steps in {manifest.train_seconds:,.1f} s",
        "throughput": tables.format_speed(manifest.speed),
        "launch": f"{launch.parallel_mode}, {counted(launch.world_size, 'process')}, "
        f"{launch.device}, {launch.precision}",
        "versions": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
        "revision": manifest.git_revision or "not from a checkout",
    }
    return {name: fact for name, fact in facts.items() if fact}


def _teacher(options: Mapping[str, Any]) -> str:
    """Return the names of the teachers, without their paths, and how they count."""
    names = [Path(name).name for name in split_values(options.get("teacher") or "")]
    if not names:
        return ""
    weight, temperature = options["teacher_weight"], options["teacher_temperature"]
    return f"{', '.join(names)}, weight {weight:g}, temperature {temperature:g}"


def _base_on_hub(manifest: Manifest) -> str | None:
    """Return the Hub's name of the base model; None if it is not from the Hub."""
    name = manifest.options.get("model")
    if name == "embedded:minilm":
        return "sentence-transformers/all-MiniLM-L6-v2"
    return str(name) if hub.names_repository(name) else None
