"""Between runs and engines: the facts of a run, and the session of an export as a module."""

from typing import Any

import torch

from finetune.errors import UserError
from finetune.predicting import Options
from finetune.predicting.engines import OnnxSession, require_engine
from finetune.predicting.files import Export, Facts, digest_of_model
from finetune.recipe import TextRecipe
from finetune.recipe.run import Run


def facts_of(run: Run, recipe: Any) -> Facts:
    """Return the facts about a run that an export of it records.

    Raises:
        UserError: If it does not read texts, or if they cannot be tokenized without the recipe.
    """
    run.require_model()
    if not isinstance(recipe, TextRecipe):
        raise UserError(f"{run.path}: expected a run that reads texts; use finetune.predict")
    tokenizer: Any = recipe.processing_class()
    padding = {
        "input_ids": tokenizer.pad_token_id,
        "token_type_ids": tokenizer.pad_token_type_id,
        "attention_mask": 0,
    }
    return Facts(
        task=run.kind.name,
        labels=run.labels,
        function=run.kind.function,
        threshold=0.5 if run.kind.function == "sigmoid" else None,
        temperature=run.manifest.temperature,
        encoding=recipe.encoding_facts(),
        padding={"side": tokenizer.padding_side, **padding},
        inputs=[name for name in tokenizer.model_input_names if name in padding],
        source={"run": run.path.resolve().name, "sha256": digest_of_model(run.path)},
    )


class SessionModule(torch.nn.Module):
    """A model whose logits an engine computes; it has no weights."""

    def __init__(self, session: OnnxSession) -> None:
        super().__init__()
        self._session = session

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return ``{"logits": ...}``, float32, shape ``(rows, outputs)``."""
        tensors: dict[str, Any] = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
        }
        logits = self._session({name: tensors[name].cpu() for name in self._session.inputs})
        return {"logits": torch.from_numpy(logits).to(input_ids.device)}


def engine_session(run: Run, options: Options, workers: int = 0) -> OnnxSession | None:
    """Return the export of a run, loaded by the engine that options name; None for torch.

    With ``workers``, as many threads compute batches at once, each on one core.

    Raises:
        UserError: If there is no such export, or if the options are not for this engine.
    """
    engine = options.engine or "torch"
    require_engine(engine)
    if engine == "torch":
        return None
    for name, value in {"precision": "fp32", "cpu_kernels": "off"}.items():
        if (typed := getattr(options, name)) not in (None, value):
            raise UserError(f"--{name} {typed}: --engine {engine} expects {value}")
    export = Export.of_run(run.path, engine)
    return OnnxSession(export.path, export.facts, engine, workers)
