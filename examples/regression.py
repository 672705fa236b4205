"""The toy model of PyTorch's DDP tutorial as a recipe: one linear layer, 20 inputs, 1 output.

python -m finetune examples/regression.py
torchrun --nproc_per_node=2 -m finetune examples/regression.py

The tutorial's labels are random, and the gradient of its cross-entropy over one output is zero.
Here the label is a linear function of the inputs plus noise, and the loss is the squared error. It
shows a recipe outside the package that generates its data and predicts a number.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from finetune import Recipe, option

if TYPE_CHECKING:
    import torch
    from datasets import DatasetDict
    from transformers import EvalPrediction

INPUTS = 20


class Regression(Recipe):
    """A linear function of 20 numbers, plus noise."""

    input_column = "inputs"
    own_metrics = ("mse", "r2")
    training = dict(
        global_batch_size=32,
        optim="sgd",
        learning_rate=0.1,
        num_train_epochs=20,
        metric_for_best_model="mse",
        greater_is_better=False,
    )

    rows: int = option(2048, "number of rows to generate")
    noise: float = option(0.1, "standard deviation of the label noise")

    def load(self) -> "DatasetDict":
        import numpy as np
        from datasets import Dataset, DatasetDict

        generator = np.random.default_rng(0)
        inputs = generator.random((self.rows, INPUTS), dtype=np.float32)
        weights = generator.normal(size=INPUTS)
        labels = inputs @ weights + self.noise * generator.normal(size=self.rows)
        columns = {"id": range(self.rows), "inputs": inputs, "label": labels.astype(np.float32)}
        return DatasetDict(train=Dataset.from_dict(columns))

    def prepare(self, dataset: "DatasetDict") -> "DatasetDict":
        return dataset.rename_column("label", "labels").remove_columns("id")

    def build_model(self, labels: Sequence[str]) -> "torch.nn.Module":
        import torch

        class Linear(torch.nn.Linear):
            def forward(
                self, inputs: torch.Tensor, labels: torch.Tensor | None = None
            ) -> dict[str, torch.Tensor]:
                return {"logits": super().forward(inputs)}

        return Linear(INPUTS, 1)

    def data_collator(self) -> Callable[[list[dict[str, Any]]], dict[str, "torch.Tensor"]]:
        from transformers import default_data_collator

        return default_data_collator

    def loss(self, logits: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
        return (logits.squeeze(-1) - labels) ** 2

    def compute_metrics(self, prediction: "EvalPrediction") -> dict[str, float]:
        from sklearn.metrics import mean_squared_error, r2_score

        outputs = prediction.predictions[:, 0]
        return {
            "mse": float(mean_squared_error(prediction.label_ids, outputs)),
            "r2": float(r2_score(prediction.label_ids, outputs)),
        }
