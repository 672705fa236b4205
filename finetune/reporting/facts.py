"""Where a run comes from: data, base model, date, launch, versions and options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finetune.reporting import wording
from finetune.runtime import hub
from finetune.training.manifest import Manifest

_EMBEDDED_BASE = "sentence-transformers/all-MiniLM-L6-v2"
_HUB = "https://huggingface.co/"


@dataclass(frozen=True)
class Fact:
    """Something known of a run, with a page about it if there is one."""

    text: str
    link: str | None = None


def base_on_hub(manifest: Manifest) -> str | None:
    """Return the name on the Hub of the model that was fine-tuned, if it is from there."""
    name = manifest.options.get("model")
    if name == "embedded:minilm":
        return _EMBEDDED_BASE
    return str(name) if hub.names_repository(name) else None


def provenance(manifest: Manifest) -> dict[str, Fact]:
    """Return what made a run, by name."""
    launch, data = manifest.launch, manifest.data
    processes = f"{launch.world_size} process{'es' * (launch.world_size > 1)}"
    texts = {}
    if manifest.finished:
        texts["trained"] = f"{manifest.finished[:10]}, {manifest.finished[11:16]} UTC"
    texts["data"] = f"{data.source}, fingerprint {data.fingerprint}"
    texts["rows"] = ", ".join(f"{count:,} {name}" for name, count in data.rows.items())
    if data.split_how:
        texts["splits"] = data.split_how
    texts["training"] = f"{manifest.steps:,} steps in {manifest.train_seconds:,.1f} s"
    if manifest.speed:
        texts["throughput"] = wording.speed(manifest.speed)
    texts["launch"] = f"{launch.parallel_mode}, {processes}, {launch.device}, {launch.precision}"
    texts["versions"] = ", ".join(
        f"{name} {version}" for name, version in manifest.versions.items()
    )
    texts["revision"] = str(manifest.git_revision or "not from a checkout")
    facts = {name: Fact(text) for name, text in texts.items()}
    if base := _base(manifest):
        facts = {"base model": base, **facts}
    return facts


def _base(manifest: Manifest) -> Fact | None:
    name, on_hub = manifest.options.get("model"), base_on_hub(manifest)
    if not on_hub:
        return Fact(Path(name).name) if name else None
    text, link = on_hub, f"{_HUB}{on_hub}"
    if name != on_hub:
        text += f" ({name})"
    elif manifest.model_revision:
        text += f" at {manifest.model_revision[:12]}"
        link += f"/tree/{manifest.model_revision}"
    return Fact(text, link)


def options(manifest: Manifest) -> dict[str, str]:
    """Return the options of the recipe, and the training arguments that matter most."""
    names = (
        *("global_batch_size", "max_tokens_per_batch", "learning_rate", "num_train_epochs"),
        *("max_steps", "seed", "optim", "lr_scheduler_type", "weight_decay", "warmup_steps"),
        "max_grad_norm",
    )
    arguments = manifest.arguments
    # what is not set is written as "None"
    chosen = {name: arguments[name] for name in names if str(arguments.get(name)) != "None"}
    return {name: str(value) for name, value in {**manifest.options, **chosen}.items()}
