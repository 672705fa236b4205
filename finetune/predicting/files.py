"""The directory of an export: ``model.onnx``, ``tokenizer.json``, and ``export.json`` about them.

It is read without torch and transformers. Each file is compared with its digest in ``export.json``.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from finetune.errors import UserError
from finetune.runs.records import JsonFile
from finetune.runtime.files import hash_file, to_json_values
from finetune.tasks.decoding import Function

FOLDER = "export"  # the default directory of an export, in that of its run
MODEL, TOKENIZER, EXPORT = "model.onnx", "tokenizer.json", "export.json"


@dataclass(frozen=True, kw_only=True)
class ExportFacts(JsonFile):
    """``export.json``: what is needed to decode answers, and what was checked."""

    NAME = EXPORT

    task: str  # see ``finetune.tasks``
    labels: list[str]  # in the order of the outputs; empty for a regression with one target
    function: Function  # that turns logits into probabilities
    threshold: float | None  # of a probability, for multi-label; fitted ones are in the model
    temperature: float | None  # fitted on the validation rows; the answers do not use it
    encoding: dict[str, Any]  # how rows become tokens, see ``TextRecipe.encoding_facts``
    padding: dict[str, Any]  # ``side``, and the value that pads each input
    inputs: list[str]  # of the model, int64, shape (rows, tokens); its output is ``logits``
    source: dict[str, str]  # the run, and the sha256 of its model
    versions: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # sha256 of each
    check: dict[str, Any] = field(default_factory=dict)  # on validation rows of the run
    quantized: dict[str, Any] | None = None  # the same for ``--quantize``, with scores
    sha256: str = ""  # of the other facts, see :meth:`digest`

    def digest(self) -> str:
        """Return the sha256 of all other facts, in the order of their names."""
        facts = {name: value for name, value in asdict(self).items() if name != "sha256"}
        return _digest([json.dumps(to_json_values(facts), sort_keys=True)])


@dataclass(frozen=True)
class Export:
    """An export in a directory."""

    path: Path
    facts: ExportFacts

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the export in a directory.

        Raises:
            UserError: If it is not a whole export, or one of its files has changed.
        """
        directory = Path(path).expanduser()
        if not (directory / EXPORT).exists():
            reason = "no such directory"
            if directory.exists():
                reason = f"no {EXPORT} in it"
            hint = "to make one: python -m finetune export RUN"
            raise UserError(f"{path} is neither a run nor a whole export: {reason}; {hint}")
        facts = ExportFacts.read(directory)
        hint = "copy the directory again, or make it again"
        if facts.sha256 != facts.digest():
            raise UserError(f"{directory / EXPORT} has changed since the export: {hint}")
        for name in (MODEL, TOKENIZER):
            file = directory / name
            if not file.is_file() or hash_file(file) != facts.files.get(name):
                state = "has changed since the export" if file.is_file() else "is missing"
                raise UserError(f"{file} {state}: {hint}")
        return cls(directory, facts)

    @classmethod
    def of_run(cls, run: Path, engine: str) -> Self:
        """Return the export in the directory of a run, which ``engine`` needs.

        Raises:
            UserError: If there is none, or if it was made from another model than the run has now.
        """
        command = f"python -m finetune export {run}"
        if not (run / FOLDER).exists():
            raise UserError(f"--engine {engine}: {run} has no export; to make one: {command}")
        export = cls.load(run / FOLDER)
        if export.facts.source["sha256"] != digest_of_model(run):
            raise UserError(
                f"{export.path} was made from another model than {run} has now; to make it again: "
                f"{command}"
            )
        return export

    @property
    def digest(self) -> str:
        """The sha256 that identifies model, tokenizer and labels."""
        return _digest([*self.facts.files.values(), *self.facts.labels])


def digest_of_model(run: Path) -> str:
    """Return the sha256 that identifies weights, labels and tokenizer in a run."""
    files = [*sorted(run.glob("*.safetensors")), run / "config.json", run / TOKENIZER]
    return _digest(hash_file(file) for file in files if file.exists())


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
