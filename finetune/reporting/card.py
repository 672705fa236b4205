"""``README.md`` of a run: the model card, with the metadata that the Hub reads."""

from __future__ import annotations

import math
import re
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from finetune.data.comma_list import split_values
from finetune.reporting import facts, tables, wording
from finetune.runs.run import Run
from finetune.runtime import hub
from finetune.runtime.files import write_whole
from finetune.runtime.terminal import visible

CARD = "README.md"
_TEMPLATE = Path(__file__).with_name("templates") / "card.md.jinja"


def write(run: Run) -> Path:
    """Write the card of a finished run; one that is there is replaced."""
    manifest, headline = run.manifest, run.headline
    code, reading = _describe_use(run)
    card = ModelCard.from_template(
        _metadata(run),
        template_path=str(_TEMPLATE),
        name=Path(manifest.recipe).stem,
        verdicts=wording.verdicts(run.statistics, headline, wording.directions(manifest)),
        rows=run.statistics.rows,
        scores=tables.scores(run.metrics, headline).markdown(),
        facts={"splits": "", **facts.provenance(manifest), "data": _source(run)},
        notes=[*manifest.data.notes, *run.statistics.notes],
        code=code,
        reading=reading,
        command=manifest.command,
    )
    # HTML, as in the name of a file, is text; code stays as it is
    code_blocks = r"(?ms)^```.*?^```$|^    .*?$|`[^`]*`"
    card.text = re.sub(
        rf"{code_blocks}|<",
        lambda match: r"\<" if match[0] == "<" else match[0],
        visible(card.text),
    )
    path = run.path / CARD
    write_whole(path, f"{card.content.rstrip()}\n")
    return path


def _metadata(run: Run) -> ModelCardData:
    manifest, scores = run.manifest, {name: run.metrics.test[name] for name in run.headline}
    source = manifest.options["dataset"]
    on_hub, from_library = hub.names_repository(source), "model" in manifest.options
    task = run.kind.on_hub(is_text="max_length" in manifest.options)
    return ModelCardData(
        model_name=Path(manifest.recipe).stem,
        library_name="transformers" if from_library else "pytorch",
        pipeline_tag=task if from_library else None,
        base_model=facts.base_on_hub(manifest),
        datasets=[source] if on_hub else None,
        metrics=list(scores),
        tags=["finetune"],
        eval_results=[
            EvalResult(
                task_type=task,
                dataset_type=source if on_hub else "other",
                dataset_name=_source(run),
                dataset_split="test",
                metric_type=name,
                metric_name=name,
                metric_value=value,
            )
            for name, value in scores.items()
            if not math.isnan(value)
        ],
    )


def _source(run: Run) -> str:
    """Return where the data came from; of a local path its name, not where it lies."""
    path = Path(str(run.manifest.options["dataset"] or "-"))
    return path.name if path.is_absolute() else str(run.manifest.data.source)


def _describe_use(run: Run) -> tuple[str, str]:
    """Return the code that loads the model, and what it reads of a long text."""
    options = run.manifest.options
    if "model" not in options:
        return f'from finetune import Run\n\nmodel = Run.load("{run.path.name}").model()', ""
    task = run.kind.on_hub(is_text="max_length" in options)
    arguments = "".join(f", {name}={value}" for name, value in run.kind.pipeline_arguments.items())
    if task == "text-classification":
        arguments = f", truncation=True{arguments}"
    code = (
        "from transformers import pipeline\n\n"
        f'classify = pipeline("{task}", model="{run.path.name}"{arguments})'
    )
    if columns := options.get("text_columns"):
        code += f"\n{_call_with_columns(run, split_values(columns))}"
    if (most := options.get("max_length")) is None:
        return code, ""
    if options.get("long_texts") == "windows":
        part = f"in overlapping windows of {most:,} tokens, whose logits are pooled"
    else:
        part = {"head": "up to", "tail": "from its end, up to"}.get(
            options.get("truncation", "head"), "from its beginning and its end, up to"
        )
        part += f" {most:,} tokens"
    reading = f"A text was read {part}, as `python -m finetune predict` reads it"
    if options.get("truncation", "head") in ("head", "tail") and "windows" not in part:
        return code, f"{reading}, and a `pipeline()` with `truncation=True`."
    return code, f"{reading}; a `pipeline()` reads the beginning."


def _call_with_columns(run: Run, columns: list[str]) -> str:
    """Return how to hand several columns to ``pipeline()`` so that the tokens are those of the
    training: as a pair where the tokenizer knows pairs, else joined.
    """
    from finetune.data.encoding import is_pair, separator
    from finetune.models.pretrained import load_tokenizer

    tokenizer = load_tokenizer(str(run.path))
    names = [name if name.isidentifier() else f"text_{n}" for n, name in enumerate(columns, 1)]
    if is_pair(tokenizer, len(columns)):
        return f'classify({{"text": {names[0]}, "text_pair": {names[1]}}})'
    return f"classify({separator(tokenizer)!r}.join([{', '.join(names)}]))"
