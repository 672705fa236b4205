"""``README.md`` of a run: the model card, with the metadata that the Hub reads."""

from __future__ import annotations

import math
import re
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from finetune.data.comma_list import split_values
from finetune.errors import counted
from finetune.reporting import tables, wording
from finetune.runs.run import Run
from finetune.runtime import hub
from finetune.runtime.files import write_whole
from finetune.runtime.formats import visible
from finetune.training.manifest import Manifest

CARD = "README.md"
_TEMPLATE = Path(__file__).with_name("templates") / "card.md.jinja"
_EMBEDDED_BASE = "sentence-transformers/all-MiniLM-L6-v2"


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
        facts={"splits": "", **provenance(manifest), "data": _source(run)},
        fingerprint=manifest.data.fingerprint,
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
        base_model=_base_on_hub(manifest),
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
    most, is_text = options.get("max_length"), "max_length" in options
    task, arguments = run.kind.on_hub(is_text=is_text), {"truncation": True} if is_text else {}
    arguments |= run.kind.pipeline_arguments
    written = "".join(f", {name}={value}" for name, value in arguments.items())
    code = (
        "from transformers import pipeline\n\n"
        f'classify = pipeline("{task}", model="{run.path.name}"{written})'
    )
    if columns := options.get("text_columns"):
        code += f"\n{_call_with_columns(run, split_values(columns))}"
    if most is None:
        return code, ""
    cut = "windows" if options.get("long_texts") == "windows" else options.get("truncation", "head")
    part = {
        "head": f"its first {most:,} tokens",
        "tail": f"its last {most:,} tokens",
        "windows": f"overlapping windows of {most:,} tokens, whose logits were pooled",
    }.get(cut, f"{most:,} tokens of its beginning and its end")
    pipeline = "and so does" if cut in ("head", "tail") else "but not"
    reading = f"Of a long text the model was trained on {part}: `python -m finetune predict` reads "
    return code, f"{reading}the same, {pipeline} this `pipeline()`."


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


# ---- where a run comes from ----------------------------------------------------------------------


def provenance(manifest: Manifest) -> dict[str, str | tuple[str, str]]:
    """Return what made a run, by name: texts, or a text and the address of a page about it."""
    launch, data, base = manifest.launch, manifest.data, _base_on_hub(manifest)
    facts: dict[str, str | tuple[str, str]] = {
        "base model": Path(str(manifest.options.get("model") or "")).name,
        "trained": f"{manifest.finished[:16].replace('T', ', ')} UTC" if manifest.finished else "",
        "data": f"{data.source}, fingerprint {data.fingerprint}",
        "rows": ", ".join(f"{count:,} {name}" for name, count in data.rows.items()),
        "splits": data.split_how,
        "training": f"{manifest.steps:,} steps in {manifest.train_seconds:,.1f} s",
        "throughput": wording.speed(manifest.speed),
        "launch": f"{launch.parallel_mode}, {counted(launch.world_size, 'process')}, "
        f"{launch.device}, {launch.precision}",
        "versions": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
        "revision": manifest.git_revision or "not from a checkout",
    }
    if base:
        revision = manifest.model_revision if base != _EMBEDDED_BASE else None
        tree = f"/tree/{revision}" if revision else ""
        name = f"{base} at {revision[:12]}" if revision else base
        facts["base model"] = name, f"https://huggingface.co/{base}{tree}"
    return {name: fact for name, fact in facts.items() if fact}


def _base_on_hub(manifest: Manifest) -> str | None:
    """Return the name on the Hub of the model that was fine-tuned, if it is from there."""
    name = manifest.options.get("model")
    if name == "embedded:minilm":
        return _EMBEDDED_BASE
    return str(name) if hub.names_repository(name) else None
