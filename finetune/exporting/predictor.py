"""``Predictor``: a callable from a batch of texts to a frame, for servers and clusters."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from finetune.data import words
from finetune.errors import UserError, suggestion
from finetune.predicting.engines import OnnxSession, require_engine
from finetune.predicting.files import EXPORT, Export, ExportFacts, digest_of_model
from finetune.predicting.inference import FastTokenizer, Inference, text_inference
from finetune.runs.records import Manifest
from finetune.tasks import decoding

if TYPE_CHECKING:
    from finetune.recipe.run import Run


class Predictor:
    """Predicts batches of rows with a run or an export.

        predictor = finetune.Predictor("runs/yelp/export")
        predictor(["a warm and funny film"])  # a frame with label and probability

    It can be pickled; each process loads the model at its first call. With an export, neither torch
    nor transformers is imported.

    Args:
        source: A run, or the directory of a run or an export.
        engine: ``torch`` for a run, in fp32; ``onnxruntime`` or ``openvino`` for an export, or for
            a run with an export in its directory. None for ``torch`` or ``onnxruntime``. OpenVINO
            computes the classes of texts in bf16 where the processor has it; words in fp32, as
            that changes entities.
        trust_recipe: See :meth:`Run.load`.

    Attributes:
        engine: The name of the engine.
        facts: The facts of the model, as in ``export.json``.
        task: The name of the task.
        labels: The names of the classes, in the order of their ids, or of the types of entities.
        columns: The number of texts per row.
        digest: The sha256 that identifies the model.

    Raises:
        UserError: If there is no such run, export or engine, or if a file has changed.
    """

    def __init__(
        self, source: str | Path | Run, engine: str | None = None, *, trust_recipe: bool = False
    ) -> None:
        path = Path(source if isinstance(source, str | Path) else source.path).expanduser()
        self._path = path
        is_export = (path / EXPORT).exists() or not Manifest.exists_in(path)
        self.engine = engine or ("onnxruntime" if is_export else "torch")
        require_engine(self.engine)
        self._trust_recipe = trust_recipe
        if self.engine == "torch":
            if is_export:
                raise UserError(f"--engine torch: {path} is an export; expected its run")
            from finetune.recipe.run import Run

            self._run = Run.load(path, trust_recipe=trust_recipe)
            if self._run.unfinished:
                warnings.warn(self._run.unfinished, stacklevel=2)
            self._recipe = self._run.recipe(scores=False)
            self.facts = facts_of(self._run, self._recipe)
            self.digest = self.facts.source["sha256"]
        else:
            self._export = Export.load(path) if is_export else Export.of_run(path, self.engine)
            self.facts, self.digest = self._export.facts, self._export.digest
        self.task, self.labels = self.facts.task, self.facts.labels
        self._labels_words = self.facts.encoding["pooling"] == words.POOLING
        if self._labels_words:
            self.labels = decoding.entity_types(self.labels)
        self._names = self.facts.encoding["columns"]
        self.columns = len(self._names)

    def __reduce__(self) -> tuple[Any, ...]:
        create = functools.partial(type(self), trust_recipe=self._trust_recipe)
        return create, (self._path, self.engine)

    def __call__(
        self,
        batch: Sequence[Any] | Mapping[str, Any] | pd.DataFrame,
        *,
        all_probabilities: bool = False,
    ) -> pd.DataFrame:
        """Return the columns that :func:`finetune.predict` adds to rows.

        Args:
            batch: Texts; tuples of texts if the model reads several; lists of words if it labels
                words; or a frame or a dict of columns, with the names of the training. A row with a
                missing text gets missing predictions.
            all_probabilities: Whether to add the probability of every class.

        Raises:
            UserError: If the batch is not what the model reads, or if ``all_probabilities`` is for
                a model that labels words.
        """
        if all_probabilities and self._labels_words:
            raise UserError("all_probabilities: the model predicts entities")
        rows = self._rows(batch)
        numbers = [number for number, row in enumerate(rows) if row is not None]
        values = [rows[number] for number in numbers]
        logits = self._inference(values)
        if self._labels_words:
            columns = decoding.predicted_entities(logits, self.facts.labels, values)
        else:
            columns = decoding.predicted(
                logits, self.labels, self.facts.function, all_labels=all_probabilities
            )
        frame = pd.DataFrame(columns, numbers).reindex(range(len(rows)))
        if isinstance(batch, pd.DataFrame):
            return frame.set_index(batch.index)
        return frame

    @functools.cached_property
    def _inference(self) -> Inference:
        """The loaded model."""
        facts = self.facts
        if self.engine == "torch":
            from finetune.predicting.session import TorchSession

            kernels = self._run.manifest.arguments.get("cpu_kernels", "auto")
            session = TorchSession(self._run.model(), cpu_kernels=kernels)
            return text_inference(self._recipe.processing_class(), facts, session)
        path = self._export.path
        bf16 = facts.function is not None and not self._labels_words
        engine = OnnxSession(path, facts, self.engine, bf16=bf16)
        return text_inference(FastTokenizer(path, facts), facts, engine)

    def _rows(self, batch: Any) -> list[Any]:
        """Return the text, the texts or the words of each row; None where one is missing."""
        if batch is None or isinstance(batch, str | bytes):
            raise UserError(f"expected a list of rows, found {batch!r:.60}: put it into a list")
        if isinstance(batch, Mapping) or hasattr(batch, "columns"):
            names = self._choose_columns(batch)
            columns = [list(batch[name]) for name in names]
            if names != self._names:
                _refuse_texts(names[0], columns[0])
            if len(set(map(len, columns))) > 1:
                sizes = ", ".join(str(len(column)) for column in columns)
                raise UserError(f"expected columns of the same length, found {sizes} rows")
            batch = zip(*columns, strict=True)
        rows: list[Any] = []
        for number, row in enumerate(batch, 1):
            values = row if isinstance(row, tuple) else (row,)
            if len(values) != self.columns:
                raise UserError(
                    f"the data, row {number}: expected {self.columns} texts "
                    f"({', '.join(self._names)}), found {len(values)}"
                )
            texts = tuple(self._read(value, number) for value in values)
            if None in texts:
                rows.append(None)
            else:
                rows.append(texts if self.columns > 1 else texts[0])
        return rows

    def _read(self, value: Any, number: int) -> Any:
        """Return a text of a row, or its words; None if it is missing."""
        if not self._labels_words or not isinstance(value, list | np.ndarray):
            return _text(value, number)
        row = [_text(word, number) for word in value]
        if not all(word and word.strip() for word in row):
            raise UserError(f"the data, row {number}: expected words, found {row!r:.60}")
        return row

    def _choose_columns(self, batch: Any) -> list[str]:
        """Return the columns that are read: of words, if there is one, else of texts."""
        available = list(map(str, getattr(batch, "columns", batch)))
        names: list[str] = self._names
        for name in self.facts.encoding.get("token_columns", ()):
            if name in available and all(map(_may_be_words, batch[name])):
                names = [name]
                break
        for name in names:
            if available.count(name) > 1:
                raise UserError(f"the data has two columns named '{name}': rename one")
            if name not in available:
                raise UserError(
                    f"the data has no column '{name}'{suggestion(name, available)} (available: "
                    f"{', '.join(available)})"
                )
        return names


def facts_of(run: Run, recipe: Any) -> ExportFacts:
    """Return the facts about a run that an export of it records.

    Raises:
        UserError: If it does not read texts, or if they cannot be tokenized without the recipe.
    """
    from finetune.recipe import TextRecipe

    run.require_model()
    if not isinstance(recipe, TextRecipe):
        raise UserError(f"{run.path}: expected a run that reads texts; use finetune.predict")
    tokenizer = recipe.processing_class()
    padding = {
        "input_ids": tokenizer.pad_token_id,
        "token_type_ids": tokenizer.pad_token_type_id,
        "attention_mask": 0,
    }
    return ExportFacts(
        task=run.task.name,
        labels=run.labels,
        function=run.task.function,
        threshold=0.5 if run.task.function == "sigmoid" else None,
        temperature=run.manifest.temperature,
        encoding=recipe.encoding_facts(),
        padding={"side": tokenizer.padding_side, **padding},
        inputs=[name for name in tokenizer.model_input_names if name in padding],
        source={"run": run.path.resolve().name, "sha256": digest_of_model(run.path)},
    )


def _refuse_texts(name: str, values: Sequence[Any]) -> None:
    """Raise a ``UserError`` if a column of words has a text, maybe a list that is not parsed."""
    for number, value in enumerate(values, 1):
        if isinstance(value, str):
            raise UserError(
                f"the data, row {number}: expected a list of words in '{name}', found the text "
                f"{value!r:.60}"
            )


def _may_be_words(value: Any) -> bool:
    return _is_missing(value) or words.may_be_words(value)


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN or ``pandas.NA``."""
    return value is None or bool(pd.api.types.is_scalar(value) and pd.isna(value))


def _text(value: Any, number: int) -> str | None:
    """Return a text of a row, None if it is missing."""
    if _is_missing(value):
        return None
    try:
        str.encode(value)
    except (TypeError, UnicodeEncodeError) as error:  # half of a surrogate pair
        raise UserError(f"the data, row {number}: expected a text, found {value!r:.60}") from error
    return str(value)
