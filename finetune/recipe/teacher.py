"""The answers of a teacher, a run or an export, to training rows and to rows without a label.

The logits are computed some rows at a time. Each part is a file in the cache, named after the
teacher and the texts, so that a training that was stopped, or another one, computes the rest only.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash
from datasets import Dataset, DatasetDict, Image, List, Value, concatenate_datasets
from scipy.special import logit

from finetune.checking.rows import require_all_rows
from finetune.data import caches, columns, digests, encoding, targets, unlabelled
from finetune.data.comma_list import split_pairs, split_values
from finetune.data.labels import list_names, parse_number
from finetune.data.sources import Source
from finetune.data.tokenize import read_by_model
from finetune.errors import UserError, counted
from finetune.predicting import Options
from finetune.predicting.engines import OnnxSession, require_engine
from finetune.predicting.files import EXPORT, Export, ExportFacts, digest_of_model
from finetune.predicting.inference import FastTokenizer, Inference, text_inference
from finetune.recipe import catalog
from finetune.recipe.run import Run
from finetune.runtime import activity, files
from finetune.training.steps import LabelLayout

if TYPE_CHECKING:
    from finetune.recipe.base import Recipe

_PART_ROWS = 1024
_VERSION = 1  # increment when the same teacher and rows should yield other logits
#: Options of a recipe that decide how its model reads a row.
_ENCODING = ("max_length", "truncation", "long_texts", "stride", "pooling")


@dataclass(frozen=True)
class Teacher:
    """A model that answers for the labels of a recipe.

    Attributes:
        path: The directory of its run or export.
        task: The name of its task.
        labels: The names of its classes or targets, in the order of its outputs.
        columns: The names of the columns that it reads.
        digest: A hash of what decides its logits, apart from the rows.
        load: Returns the loaded model.
        shift: What its thresholds have added to each logit.
        fingerprint: That of the rows that it was trained on, with their splits; empty if unknown.
        saw_validation: Whether it was trained on its validation rows, too.
    """

    path: Path
    task: str
    labels: list[str]
    columns: list[str]
    digest: str
    load: Callable[[], Inference]
    shift: np.ndarray | float = 0.0
    fingerprint: str = ""
    saw_validation: bool = False

    @classmethod
    def open(cls, name: str) -> Teacher:
        """Return the teacher in a directory; its model is not loaded.

        Raises:
            UserError: If there is neither a run with a model nor a whole export.
        """
        path = Path(name).expanduser()
        if not (path / EXPORT).exists():
            return cls._of_run(path)
        require_engine("onnxruntime")
        export = Export.load(path)
        facts = export.facts
        if facts.function == "sigmoid":
            raise UserError(f"{path}: thresholds are part of this export; expected its run")

        load = functools.partial(_load_export, path, facts)
        return cls(path, facts.task, facts.labels, facts.encoding["columns"], export.digest, load)

    @classmethod
    def _of_run(cls, path: Path) -> Teacher:
        from finetune.recipe.inference import RecipeInference  # imports torch

        run = Run.load(path)
        run.require_model()
        if run.unfinished:
            raise UserError(run.unfinished)
        manifest = run.manifest
        file = Path(manifest.recipe)
        if file.suffix == ".py" and not catalog.imported(file.resolve()):
            command = f"python -m finetune export {path} --trust_recipe"
            raise UserError(f"{path} has a recipe file, {file}; expected its export: {command}")
        recipe = run.recipe(scores=False)
        kernels = manifest.arguments.get("cpu_kernels", "auto")
        options = Options(precision="fp32", cpu_kernels=kernels)
        facts = [_VERSION, digest_of_model(path), manifest.recipe, options]
        facts += [getattr(recipe, name, None) for name in _ENCODING]
        shift: np.ndarray | float = 0.0
        has_thresholds = getattr(recipe, "thresholds", "none") != "none"
        if manifest.not_scored and has_thresholds and recipe.resolved_task.label_kind == "labels":
            raise UserError(
                f"{path}: thresholds are part of this model; expected its run, {path.parent}"
            )
        if not manifest.not_scored and (thresholds := run.statistics.thresholds):
            shift = -logit([thresholds[label] for label in run.labels])
        digest = xxhash.xxh3_128_hexdigest(repr(facts).encode())
        load = functools.partial(RecipeInference, run, recipe, options)
        return cls(
            path,
            recipe.resolved_task.name,
            run.labels,
            recipe.columns_read(),
            digest,
            load,
            shift,
            manifest.data.fingerprint,
            manifest.saw_validation,
        )

    def require_same(self, recipe: Recipe) -> None:
        """Raise a ``UserError`` if it does not fit the labels and columns of a recipe."""
        task = recipe.resolved_task
        facts = (
            ("the task", [self.task], [task.name]),
            ("the labels", sorted(self.labels), sorted(task.labels)),
            ("the columns", self.columns, recipe.columns_read()),
        )
        for noun, found, expected in facts:
            if found != expected:
                names = list_names(found) or "a number"
                raise UserError(
                    f"{self.path}: expected a model for {noun} {list_names(expected) or 'a number'}"
                    f", found {names}"
                )

    def report_held_out_rows(self, recipe: Recipe) -> None:
        """Report if it knows the labels of validation rows, or may know those of test rows."""
        if self.fingerprint != digests.fingerprint(recipe.splits, recipe.input_column):
            reason = "was trained on other rows or splits"
            if not self.fingerprint:
                reason = "is an export, which does not say what it was trained on"
            recipe.note(
                f"teacher {self.path.name} {reason}: if it has seen validation or test rows of "
                "this run, their scores are too good"
            )
        elif self.saw_validation:
            recipe.report.warning(
                f"teacher {self.path.name} was trained on the validation rows, too, so their "
                "scores are too good here: train it with --final_epochs 0"
            )

    def _loaded(self) -> Inference:
        try:
            return self.load()
        except UserError as error:
            raise UserError(*_as_of_teacher(error)) from error

    def logits(self, values: Sequence[Any], hashes: Sequence[bytes]) -> np.ndarray:
        """Return the logits of rows without the shift, float32, shape ``(rows, outputs)``.

        Args:
            values: What the model reads of each row.
            hashes: The hash of each value.

        Raises:
            UserError: If a logit is not finite.
        """
        import torch

        threads = torch.get_num_threads()  # which the model may change
        folder = caches.directory("finetune-teachers", self.digest)
        model = None
        parts = []
        for start in range(0, len(values), _PART_ROWS):
            rows = slice(start, start + _PART_ROWS)
            path = folder / f"{xxhash.xxh3_128_hexdigest(b''.join(hashes[rows]))}.npy"
            part = None
            with contextlib.suppress(OSError, ValueError):  # not cached, or damaged
                part = np.load(path)
            if part is None:
                activity.advance(f"{self.path} answers", start, len(values))
                model = model or self._loaded()
                part = model(values[rows])
                with files.replacing(path) as new, new.open("wb") as file:
                    np.save(file, part)
            parts.append(part)
        if model is not None:
            model.close()
            torch.set_num_threads(threads)
        logits = np.concatenate(parts) - self.shift
        if not np.isfinite(logits).all():
            raise UserError(f"--teacher {self.path}: its outputs are not finite")
        return np.asarray(logits)


def _load_export(path: Path, facts: ExportFacts) -> Inference:
    return text_inference(FastTokenizer(path, facts), facts, OnnxSession(path, facts))


def _as_of_teacher(error: UserError) -> list[str]:
    """Return mistakes in a run, whose directory is the model of its recipe, as of a teacher."""
    return [f"--teacher {mistake.removeprefix('--model ')}" for mistake in error.mistakes]


def open_teachers(recipe: Recipe) -> list[Teacher]:
    """Return the models of ``--teacher``.

    Raises:
        UserError: With each that does not exist, or does not fit the labels and the columns.
    """
    teachers = []
    mistakes: list[str] = []
    for name in split_values(getattr(recipe, "teacher", None) or ""):
        try:
            teacher = Teacher.open(name)
            teacher.require_same(recipe)
            teachers.append(teacher)
        except UserError as error:
            mistakes += _as_of_teacher(error)
    if mistakes:
        raise UserError(*mistakes)
    return teachers


def label_layout(recipe: Any) -> LabelLayout | None:
    """Return the layout of the labels of :func:`training_rows`; None if they are targets."""
    task = recipe.resolved_task
    is_soft = bool(getattr(recipe, "label_probabilities", None))
    divergence = None
    if getattr(recipe, "teacher", None):
        divergence = functools.partial(task.divergence, temperature=recipe.teacher_temperature)
    elif not is_soft:
        return None
    has_class = task.has_one_class and not is_soft
    shape = () if has_class or not task.labels else (task.width,)
    return LabelLayout(shape, has_class=has_class, is_soft=is_soft, divergence=divergence)


def training_rows(recipe: Any) -> Dataset:
    """Return the prepared training rows with what the teacher answers, then unlabelled rows."""
    row_layout = label_layout(recipe)
    prepared = recipe.prepared["train"]
    if row_layout is None:
        return prepared
    teachers = recipe.teachers
    values = recipe.soft_labels
    if values is None:
        values = recipe.targets("train")
    answers = _answers(recipe, teachers, recipe.splits["train"])
    prepared = _with_labels(prepared, row_layout.pack(values, recipe.teacher_weight, answers))
    if (rows := recipe.unlabelled_rows) is not None:
        dataset = DatasetDict(train=rows, test=recipe.splits["test"].select([0]))
        zeros = np.zeros((len(rows), *row_layout.shape))
        labels = row_layout.pack(zeros, 1.0, _answers(recipe, teachers, rows))
        added = recipe.prepare(dataset)["train"]
        values = recipe.resolved_task.targets(targets.values(rows))
        require_all_rows(DatasetDict(train=added), DatasetDict(train=rows), lambda _: values)
        prepared = concatenate_datasets([prepared, _with_labels(added, labels)])
    if teachers:
        names = ", ".join(teacher.path.name for teacher in teachers)
        sentence = f"the answers of {names} have weight {recipe.teacher_weight:g}"
        if rows is not None:
            sentence += f", and 1 in {counted(len(rows), 'unlabelled row')}"
        recipe.note(sentence)
    return prepared


def _with_labels(rows: Dataset, labels: np.ndarray) -> Dataset:
    """Return prepared rows with the labels of the raw rows that they were made from."""
    documents = encoding.documents_of(rows)
    if documents is not None:
        labels = labels[documents]
    # rows that were not tokenized still have the raw column
    name = "labels" if "labels" in rows.column_names else "label"
    size = labels.shape[1]
    column = pa.FixedSizeListArray.from_arrays(pa.array(labels.ravel()), size)
    feature = List(Value("float32"), length=size)
    return rows.remove_columns(name).add_column(name, column, feature=feature)


def _answers(recipe: Any, teachers: Sequence[Teacher], rows: Dataset) -> np.ndarray:
    """Return the mean of the answers of teachers to raw rows, in the order of the recipe's labels,
    shape ``(rows, outputs)``; without teachers ``(rows, 0)``.
    """
    task = recipe.resolved_task
    hashes = digests.hash_rows(rows, recipe.input_column)
    answers = []
    for teacher in teachers:
        logits = teacher.logits(_values(recipe, rows), hashes)
        if task.labels:
            logits = logits[:, list(map(teacher.labels.index, task.labels))]
        answers.append(task.answers(logits, recipe.teacher_temperature))
    return np.mean(answers, axis=0) if answers else np.zeros((len(rows), 0))


def _values(recipe: Any, rows: Dataset) -> list[Any]:
    """Return what an :class:`Inference` reads of raw rows."""
    column = recipe.input_column
    if column == "text":
        return [tuple(text) if isinstance(text, list) else text for text in read_by_model(rows)]
    if isinstance(rows.features[column], Image):
        rows = rows.cast_column(column, Image(decode=False))
    return list(rows[column][:])


def unlabelled_rows(recipe: Any, name: str | None = None) -> Dataset | None:
    """Return the raw rows of ``--unlabelled`` that are in no split; None without the option.

    Args:
        recipe: The recipe, whose rows are loaded.
        name: The value of the option, if the recipe does not have it.
    """
    name = name or getattr(recipe, "unlabelled", None)
    if not name:
        return None
    source = Source(name, options=recipe.read_options())
    facts = recipe.columns_read(), recipe.splits, recipe.split_plan(), recipe.report
    return unlabelled.read_unlabelled(source, *facts)


def soft_labels(recipe: Any) -> np.ndarray | None:
    """Return the probabilities of ``--label_probabilities`` of the training rows, shape ``(rows,
    classes)``; None without the option.

    Raises:
        UserError: If a class has no column, if a column is missing, or with the rows whose values
            are no probabilities or votes.
    """
    text = getattr(recipe, "label_probabilities", None)
    if not text:
        return None
    rows, report = recipe.splits["train"], recipe.report
    flag = f"--label_probabilities {text}"
    pairs = split_pairs(text)
    if sorted(name for name, _ in pairs) != sorted(recipe.labels):
        report.fail(f"{flag}: expected each class once, with a column: {list_names(recipe.labels)}")
    names = dict(pairs)
    columns.require_columns(DatasetDict(train=rows), {flag: list(names.values())}, report)
    numbers = [list(map(parse_number, rows[names[label]][:])) for label in recipe.labels]
    values = np.array(numbers, dtype=float).T
    sums = np.where(values >= 0, values, np.nan).sum(axis=1)
    description = "whose probabilities or votes are negative, missing, no numbers, or all 0"
    positions = np.flatnonzero(~((sums > 0) & (sums < np.inf)))
    fix = f"correct the columns of {flag}, or remove the rows"
    targets.refuse_or_drop(report, description, fix, positions, rows, "train", drop=False)
    report.raise_errors()
    votes_of_label = values[np.arange(len(values)), rows["label"][:]]
    targets.report_rows(
        report,
        "contrary_votes",
        "whose label has fewer votes than another one",
        f"they are trained on the votes: correct the labels or the columns of {flag}",
        np.flatnonzero(votes_of_label < values.max(axis=1)),
        rows,
        "train",
    )
    return np.asarray(values / sums[:, None])
