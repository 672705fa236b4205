"""Export the model of a run to ONNX, and compare its answers with those of the model in fp32, and
with each other.
"""

import contextlib
import functools
import inspect
import itertools
import logging
import tempfile
import timeit
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from finetune.data.targets import values
from finetune.data.tokenize import read_by_model
from finetune.data.words import without_tags, words_in
from finetune.errors import RunError, UserError, first_line
from finetune.exporting.predictor import facts_of
from finetune.exporting.quantization import quantize_weights
from finetune.models.families import NOT_EXPORTED
from finetune.predicting.engines import OnnxSession
from finetune.predicting.files import EXPORT, FOLDER, MODEL, TOKENIZER, Export, ExportFacts
from finetune.predicting.inference import FastTokenizer, text_inference
from finetune.predicting.session import TorchSession
from finetune.recipe.run import Run
from finetune.runtime import hub
from finetune.runtime.files import hash_file
from finetune.runtime.importing import require_packages
from finetune.statistics.metrics import estimate, estimate_difference, find_metrics

_MAX_ROWS = 1000  # validation rows of the check
_MAX_DIFFERENCE = 1e-4  # of probabilities; of numbers, in standard deviations
_MAX_CHANGED_SHARE = 0.01  # share of rows whose decision quantization may change
_MAX_WEIGHT_BYTES = 2**31 - 2**20  # bytes: the file is one protobuf message
_ALONE = 32  # rows that are also answered alone
_STEP = 4  # ratio of the words of made texts
_LIBRARIES = ("torch", "transformers", "tokenizers", "onnx", "onnxscript", "onnxruntime")


def export(
    run: Run | str | Path,
    output: str | Path | None = None,
    *,
    quantize: str | None = None,
    accept_changes: bool = False,
    trust_recipe: bool = False,
) -> Export:
    """Export the model of a run to ONNX, for use without torch, and check it.

    On up to 1,000 validation rows of the run, and on texts of up to ``max_length`` words that are
    made from them, no decision may differ from that of the model in fp32, and no probability by
    more than 1e-4 (no predicted number by more than 1e-4 standard deviations). The answer to a row
    alone, in a batch or padded must be the same in this sense, also with ``quantize``. If a check
    fails, no directory is written.

    Args:
        run: A run that reads texts, or its directory.
        output: The directory to write; an export that is there is replaced. None for ``export`` in
            the directory of the run, where ``--engine`` finds it.
        quantize: ``int8`` for weights in 8 bits; activations are quantized with a scale for each
            token, so that an answer does not depend on the other rows of its batch.
        accept_changes: Whether quantization may change more than 1% of the decisions.
        trust_recipe: See :meth:`Run.load`.

    Returns:
        The export; ``facts.check`` and ``facts.quantized`` have what was checked.

    Raises:
        UserError: If the run cannot be exported, or if quantization changes too many decisions.
        RunError: If the export does not answer as the run, or depends on the other rows.
    """
    require_packages("export", "onnx", "onnxscript", "onnxruntime", extra="onnx")
    if quantize not in (None, "int8"):
        raise UserError(f"--quantize {quantize}: expected int8")
    run = Run.load(run, trust_recipe=trust_recipe)
    if run.unfinished:
        raise UserError(run.unfinished)
    recipe = run.recipe(scores=False)
    facts = facts_of(run, recipe)
    config = recipe.model_config
    if config is not None and config.model_type in NOT_EXPORTED:
        raise UserError(
            f"{run.path}: torch.onnx cannot export models of the type '{config.model_type}'; use "
            f"finetune.predict, or serve {run.path}"
        )
    target = Path(output or run.path / FOLDER).expanduser()
    if target.exists() and not (target / EXPORT).exists():
        raise UserError(f"--output {target} exists and is no export: name another directory")
    texts, targets = _validation_rows(run, recipe)
    model = run.model()
    names = inspect.signature(model.forward).parameters
    versions = run.manifest.versions | {name: version(name) for name in _LIBRARIES}
    facts = replace(facts, inputs=[n for n in facts.inputs if n in names], versions=versions)
    tokenizer = recipe.processing_class()
    with _renamed_at_the_end(target) as directory:
        _write_model(model, facts, directory / MODEL)
        _write_tokenizer(tokenizer, facts, directory / TOKENIZER)
        reference = text_inference(tokenizer, facts, TorchSession(model))
        rows = _Verification(run, texts, targets, facts, reference)
        check, _ = rows.check(directory)
        if _has_changed(check) or _has_changed(check["neighbours"]):
            raise RunError(f"{run.path}: the export does not answer as the run: {_listed(check)}")
        facts = replace(facts, check=check | _measure(directory, facts))
        if quantize:
            quantize_weights(directory / MODEL)
            check, outputs = rows.check(directory)
            if _has_changed(check["neighbours"]):
                raise RunError(f"{run.path}: --quantize {quantize}: {_listed(check)}")
            if check["changed"] > _MAX_CHANGED_SHARE * check["rows"] and not accept_changes:
                raise UserError(
                    f"--quantize {quantize}: {_listed(check)}; add --accept_changes, or export "
                    "without --quantize"
                )
            check |= rows.scores(outputs)
            check |= {"weights": quantize} | _measure(directory, facts)
            facts = replace(facts, quantized=check)
        files = {name: hash_file(directory / name) for name in (MODEL, TOKENIZER)}
        facts = replace(facts, files=files)
        replace(facts, sha256=facts.digest()).write(directory)
    return Export.load(target)


def _validation_rows(run: Run, recipe: Any) -> tuple[list[Any], np.ndarray]:
    """Return what the model reads of up to 1,000 validation rows, and their targets."""
    hub.require({**run.manifest.options, "model": None, "unlabelled": None})
    rows = recipe.splits["validation"]
    if len(rows) > _MAX_ROWS:
        rows = rows.select(np.linspace(0, len(rows) - 1, _MAX_ROWS).astype(int))
    labels = values(rows)
    targets = run.task.targets(labels)
    if run.task.labels_words:  # the words of the labels, as other words have no tags
        return list(map(words_in, rows["text"], labels)), targets
    texts = [text if isinstance(text, str) else tuple(text) for text in read_by_model(rows)]
    return texts, targets


class _Verification:
    """Answers of an export to validation rows, and to texts of any length that are made from them.

    Args:
        run: The run.
        texts: Validation rows, as the model reads them.
        labels: Their labels.
        facts: Those of the export.
        logits: Returns the logits of the model in fp32.
    """

    def __init__(
        self,
        run: Run,
        texts: Sequence[Any],
        labels: np.ndarray,
        facts: ExportFacts,
        logits: Callable[[Sequence[Any]], np.ndarray],
    ) -> None:
        self._run = run
        self._facts = facts
        self._size = len(labels)
        made_texts = _make_texts(texts, facts.encoding["max_length"])
        self._texts = [*texts, *made_texts]
        self._labels = np.resize(labels, (len(self._texts), *labels.shape[1:]))
        if run.task.labels_words:
            _, labels_of_words = without_tags(made_texts)
            self._labels = np.append(labels, run.task.targets(labels_of_words))
        count = len(texts)
        spread = np.linspace(0, count - 1, min(_ALONE, count)).astype(int)
        self._alone = np.append(spread, np.arange(count, len(self._texts)))
        places = run.task.places(self._labels)
        self._places = np.concatenate([places[number] for number in self._alone])
        self._reference = logits(self._texts)

    def check(self, directory: Path) -> tuple[dict[str, Any], np.ndarray]:
        """Return how an export agrees with the model, how its answers depend on other rows, and
        its logits.

        Returns:
            See :meth:`finetune.tasks.base.Task.agreement`; ``neighbours`` has the same for the
            answers to a row in a batch, alone, and padded to the greatest length.
        """
        facts = self._facts
        tokenizer, session = FastTokenizer(directory, facts), OnnxSession(directory, facts)
        export = text_inference(tokenizer, facts, session)
        outputs = export(self._texts)
        alone, padded = outputs.copy(), outputs.copy()
        texts = [self._texts[number] for number in self._alone]
        alone[self._places] = np.concatenate([export([text]) for text in texts])
        export = text_inference(tokenizer, facts, session, facts.encoding["max_length"])
        padded[self._places] = export(texts)
        agreement = functools.partial(self._run.task.agreement, self._labels)
        in_batch, with_padding = agreement(alone, outputs), agreement(alone, padded)
        neighbours = {"rows": len(texts)}
        for name in ("changed", "largest_difference"):
            greater = np.maximum(in_batch[name], with_padding[name])  # NaN if one is
            neighbours[name] = greater.item()
        return agreement(self._reference, outputs) | {"neighbours": neighbours}, outputs

    def scores(self, outputs: np.ndarray) -> dict[str, Any]:
        """Return the score of logits on the validation rows, and its difference to fp32."""
        task, labels = self._run.task, self._labels[: self._size]
        answers = task.scored(labels, outputs[: self._size])
        reference = task.scored(labels, self._reference[: self._size])
        name, metric = next(iter(find_metrics(task.label_kind, task.metrics).items()))
        difference = estimate_difference(reference, answers, {name: metric})
        return {"score": estimate(answers, {name: metric}), "difference": difference}


def _make_texts(texts: Sequence[Any], max_length: int) -> list[Any]:
    """Return texts, tuples of texts or lists of words, of 1, 4, 16 ... and ``max_length`` words."""
    if isinstance(texts[0], tuple):
        columns = []
        for column in zip(*texts, strict=True):
            columns.append(_make_texts(column, max_length))
        return list(zip(*columns, strict=True))
    counts = [1]
    while counts[-1] < max_length:
        counts.append(min(_STEP * counts[-1], max_length))
    if isinstance(texts[0], list):
        # with as many words as tokens, and special tokens, the longest has several windows
        words_of_all = itertools.cycle(itertools.chain(*texts))
        longest = list(itertools.islice(words_of_all, max_length))
        return [longest[:count] for count in counts]
    words = " ".join(texts[:max_length]).split()
    return [" ".join(words[:count]) for count in counts]


def _has_changed(check: dict[str, Any]) -> bool:
    return bool(check["changed"] or not check["largest_difference"] <= _MAX_DIFFERENCE)


def _listed(check: dict[str, Any]) -> str:
    neighbours = check["neighbours"]
    return (
        f"{check['changed']:,} of {check['rows']:,} rows have another prediction, the largest "
        f"difference is {check['largest_difference']:.2g}; in a batch or padded, "
        f"{neighbours['changed']:,} of {neighbours['rows']:,} have another prediction than alone, "
        f"the largest difference is {neighbours['largest_difference']:.2g}"
    )


@contextlib.contextmanager
def _renamed_at_the_end(target: Path) -> Iterator[Path]:
    """Give a new directory beside ``target``, which takes its place at the end of the block."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as parent:
        new = Path(parent, "new")
        new.mkdir()
        yield new
        if target.exists():
            target.rename(Path(parent, "old"))
        new.rename(target)


class _Logits(torch.nn.Module):
    """A model that takes its inputs by position and returns only its logits."""

    def __init__(self, model: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)))["logits"]


def _write_model(model: torch.nn.Module, facts: ExportFacts, path: Path) -> None:
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    if size > _MAX_WEIGHT_BYTES:
        raise UserError(f"the model has {size / 2**30:.1f} GiB of weights, an export at most 2")
    # the values do not matter, but torch takes a size of 1 for a constant
    shape = (2, max(2, min(8, facts.encoding["max_length"])))
    inputs = {name: torch.ones(shape, dtype=torch.int64) for name in facts.inputs}
    if "token_type_ids" in inputs:
        inputs["token_type_ids"].zero_()
    sizes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},) * len(inputs)
    try:
        with _quiet(), torch.no_grad():
            program: Any = torch.onnx.export(
                _Logits(model, list(inputs)),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=["logits"],
                dynamic_shapes=(sizes,),
                verbose=False,
            )
        for node in program.model.graph.all_nodes():  # they have paths of this machine
            node.metadata_props.clear()
        program.save(path, external_data=False)
    except torch.onnx.errors.OnnxExporterError as error:
        cause = first_line(error.__cause__ or error)
        raise UserError(
            f"torch {torch.__version__} cannot export {type(model).__name__}: {cause:.200}; use "
            "finetune.predict, or serve the run"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings and logs of the libraries that write models, which are about their own code."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled)


def _write_tokenizer(source: Any, facts: ExportFacts, path: Path) -> None:
    """Write the tokenizer with truncation and padding, for users of ``tokenizers``. It has no
    truncation if it cannot shorten texts as the run does.
    """
    tokenizer = Tokenizer.from_str(source.backend_tokenizer.to_str())
    if facts.encoding["long_texts"] == "cut" and facts.encoding["truncation"] != "head_tail":
        side = "left" if facts.encoding["truncation"] == "tail" else "right"
        tokenizer.enable_truncation(facts.encoding["max_length"], direction=side)
    tokenizer.enable_padding(
        direction=source.padding_side,
        pad_id=source.pad_token_id,
        pad_type_id=source.pad_token_type_id,
        pad_token=source.pad_token,
    )
    tokenizer.save(str(path))


def _measure(directory: Path, facts: ExportFacts) -> dict[str, Any]:
    """Return the size of the model, and the median milliseconds for a row of 32 tokens."""
    session = OnnxSession(directory, facts)
    tokens = np.ones((1, min(32, facts.encoding["max_length"])), np.int64)
    row = {name: tokens * (name != "token_type_ids") for name in facts.inputs}
    if end := facts.encoding["eos_token"]:  # BART and T5 read the text there
        number = Tokenizer.from_file(str(directory / TOKENIZER)).token_to_id(end)
        row["input_ids"] = np.append(tokens[:, 1:], [[number]], axis=1)
    seconds = timeit.repeat(lambda: session(row), number=1, repeat=30)
    latency = round(float(np.median(seconds)) * 1e3, 2)
    return {"bytes": (directory / MODEL).stat().st_size, "latency_ms": latency}
