"""Where a run comes from: data, base model, date, launch, versions and options."""

from __future__ import annotations

from pathlib import Path

from finetune.errors import counted
from finetune.reporting import wording
from finetune.runtime import hub
from finetune.training.manifest import Manifest

_EMBEDDED_BASE = "sentence-transformers/all-MiniLM-L6-v2"
_HUB = "https://huggingface.co/"


def base_on_hub(manifest: Manifest) -> str | None:
    """Return the name on the Hub of the model that was fine-tuned, if it is from there."""
    name = manifest.options.get("model")
    if name == "embedded:minilm":
        return _EMBEDDED_BASE
    return str(name) if hub.names_repository(name) else None


def provenance(manifest: Manifest) -> dict[str, str | tuple[str, str]]:
    """Return what made a run, by name: texts, or a text and the address of a page about it."""
    launch, data = manifest.launch, manifest.data
    facts: dict[str, str | tuple[str, str]] = {"base model": _base(manifest)}
    facts |= {
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
    return {name: fact for name, fact in facts.items() if fact}


def _base(manifest: Manifest) -> str | tuple[str, str]:
    name, on_hub = manifest.options.get("model"), base_on_hub(manifest)
    if not on_hub:
        return Path(name).name if name else ""
    if name != on_hub:
        return f"{on_hub} ({name})", f"{_HUB}{on_hub}"
    if not (revision := manifest.model_revision):
        return on_hub, f"{_HUB}{on_hub}"
    return f"{on_hub} at {revision[:12]}", f"{_HUB}{on_hub}/tree/{revision}"
