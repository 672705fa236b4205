"""Evaluation whose loss and predictions depend on the rows only, not on batches or processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import EvalPrediction
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput

from finetune.data import batches, windows
from finetune.errors import UserError
from finetune.training import gathering
from finetune.training.arguments import FinetuneArguments
from finetune.training.loss import GlobalLoss


class ExactEvaluation(transformers.Trainer):
    """The evaluating half of :class:`~finetune.training.trainer.Trainer`."""

    args: FinetuneArguments
    compute_loss_func: GlobalLoss
    eval_dataset: datasets.Dataset

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._keeps_outputs = False
        self._evaluated: dict[int | None, EvalLoopOutput] = {}  # by step: the best and the newest
        arguments = self.args
        in_batches = {
            "--batch_eval_metrics true": arguments.batch_eval_metrics,
            "--eval_do_concat_batches false": not arguments.eval_do_concat_batches,
            "--prediction_loss_only true": arguments.prediction_loss_only,
        }
        if self.compute_loss_func.pooling and any(in_batches.values()):
            raise UserError(
                *(
                    f"{flag}: --long_texts windows needs the outputs for all windows of a text "
                    "together; leave it out"
                    for flag, is_set in in_batches.items()
                    if is_set
                )
            )

    def _get_dataloader(self, dataset: datasets.Dataset, *args: Any, **kwargs: Any) -> Any:
        """Sort the rows of an evaluation by length, to pad little; `evaluation_loop` undoes it."""
        order, documents = None, windows.documents_of(dataset)
        together = self.args.eval_do_concat_batches and not self.args.batch_eval_metrics
        if together and isinstance(dataset, datasets.Dataset):
            lengths = batches.lengths_of(dataset, self.args.length_column_name)
            if lengths is not None:
                order = np.argsort(-lengths, kind="stable")
                dataset = dataset.select(order)
        loader = super()._get_dataloader(dataset, *args, **kwargs)
        loader.order, loader.documents = order, documents
        return loader

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int]:
        """Keep the order of the data: the library's, by length, would permute predictions."""
        return SequentialSampler(eval_dataset)

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate as the library does, with the loss of the gathered rows, in the data's order.

        Where rows are windows, the outputs are pooled first: loss and metrics are of documents.
        The library averages the means of padded batches, of which the last may be repeated; the
        loss would depend on the batch size and on the number of processes.
        """
        order, compute = getattr(dataloader, "order", None), self.compute_metrics
        # put together here: the library does it at every batch
        together = self.args.eval_do_concat_batches and not self.args.batch_eval_metrics
        pooling = self.compute_loss_func.pooling
        rows = _Rows(order, getattr(dataloader, "documents", None), pooling, together)
        if compute is not None and rows.change:
            self.compute_metrics = lambda found: compute(
                EvalPrediction(
                    rows.outputs(found.predictions),
                    rows.others(found.label_ids),
                    rows.others(found.inputs),
                    gathering.joined([*found.losses]) if found.losses else found.losses,
                )
            )
        self.args.eval_do_concat_batches = self.args.eval_do_concat_batches and not together
        try:
            with quiet_workers(self.args):
                output = super().evaluation_loop(
                    dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
                )
        finally:
            self.compute_metrics = compute
            self.args.eval_do_concat_batches = self.args.eval_do_concat_batches or together
        output = output._replace(
            predictions=rows.outputs(output.predictions), label_ids=rows.others(output.label_ids)
        )
        if output.predictions is not None and output.label_ids is not None:
            loss = self.compute_loss_func.of_rows(
                torch.as_tensor(output.predictions), torch.as_tensor(output.label_ids)
            )
            assert output.metrics is not None
            output.metrics[f"{metric_key_prefix}_loss"] = loss.double().mean().item()
        if self._keeps_outputs:
            best = {self.state.best_global_step} & self._evaluated.keys()
            self._evaluated = {step: self._evaluated[step] for step in best}
            self._evaluated[self.state.global_step] = output
        return output

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as the library does; see :meth:`predict_evaluated`."""
        self._keeps_outputs = self.is_in_train and eval_dataset is None
        try:
            return super().evaluate(eval_dataset, *args, **kwargs)
        finally:
            self._keeps_outputs = False

    def predict_evaluated(self) -> PredictionOutput:
        """Predict the evaluation rows with the model as ``train()`` left it.

        Where ``train()`` evaluated that very model, as it does at the end of an epoch, the outputs
        of then are returned, and nothing is computed twice.
        """
        step: int | None = self.state.global_step
        best = self.state.best_model_checkpoint
        if self.args.load_best_model_at_end and best is not None and Path(best).is_dir():
            step = self.state.best_global_step
        output = self._evaluated.get(step)
        if output is None or output.predictions is None:
            return self.predict(self.eval_dataset, metric_key_prefix="eval")
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)


class _Rows:
    """Brings what an evaluation gathered into the order of the data, one row a document.

    Args:
        order: The row of the data at each place of the evaluation; None if it is the same.
        documents: The document of each row of the data, where rows are windows.
        pooling: ``mean`` or ``max``; None where rows are documents.
        together: Whether batches are put together here; if not, they stay as they are.
    """

    def __init__(
        self,
        order: np.ndarray | None,
        documents: np.ndarray | None,
        pooling: str | None,
        together: bool,
    ) -> None:
        self._order, self._documents = order, documents
        self._pooling = pooling if documents is not None else None
        self.change = together
        self._known: dict[int, tuple[Any, Any]] = {}  # by the list, which is empty by then

    def _gathered(
        self, batches: Any, change: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> Any:
        """Return arrays of all batches in the order of the data, each changed; or None."""
        if batches is None or not self.change:
            return batches
        if id(batches) not in self._known:
            found = gathering.joined(batches, self._order)
            self._known[id(batches)] = batches, tree_map(change, found) if change else found
        return self._known[id(batches)][1]

    def outputs(self, batches: Any) -> Any:
        """Return the outputs of a model in order, pooled; an array, a tuple of them, or None."""

        def pooled(ordered: np.ndarray) -> np.ndarray:
            if self._documents is None or self._pooling is None:
                return ordered
            return windows.pooled(ordered, self._documents, self._pooling)

        return self._gathered(batches, pooled)

    def others(self, batches: Any) -> Any:
        """Return labels or inputs in order, those of the first window of each document."""

        def first(ordered: np.ndarray) -> np.ndarray:
            if self._documents is None or self._pooling is None:
                return ordered
            return np.asarray(ordered[windows.firsts(self._documents)])

        return self._gathered(batches, first)


@contextlib.contextmanager
def quiet_workers(arguments: FinetuneArguments) -> Iterator[None]:
    """Keep each forked worker from saying that tokenizers do not go parallel in it."""
    name = "TOKENIZERS_PARALLELISM"
    if not arguments.dataloader_num_workers or name in os.environ:
        yield
        return
    os.environ[name] = "false"
    try:
        yield
    finally:
        os.environ.pop(name, None)
