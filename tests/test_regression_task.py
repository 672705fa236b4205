"""What the task of numbers does with arrays and models; no training."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value

from finetune.errors import UserError
from finetune.models import head
from finetune.models.pretrained import load_classifier
from finetune.statistics.scored import ScoredNumbers
from finetune.tasks import kinds
from finetune.tasks.regression import Regression
from finetune.training.loss import GlobalLoss
from tests.models import small


def rows_of(labels: list[Any], feature: Any) -> Dataset:
    return Dataset.from_dict({"label": labels}, features=Features(label=feature))


ONE = kinds.of_rows(rows_of([900.0, 1000.0, 1100.0], Value("float32")))
TWO = kinds.of_rows(
    rows_of([[1.0, 0.0], [3.0, 0.5], [5.0, 0.1]], List(Value("float32"), length=2)),
    target_names=["stars", "share"],
)


def test_the_training_rows_say_mean_and_deviation() -> None:
    assert isinstance(ONE, Regression)
    assert isinstance(TWO, Regression)
    assert (ONE.labels, ONE.width) == ([], 1)
    assert ONE.mean == [1000]
    assert ONE.deviation == pytest.approx([np.std([900, 1000, 1100])])
    assert (TWO.labels, TWO.width) == (["stars", "share"], 2)
    again = kinds.from_manifest("regression", TWO.labels, ordered=False, facts=TWO.facts)
    assert again == TWO
    assert kinds.from_manifest("regression", [], ordered=False, facts={}).facts == {}
    unnamed = kinds.of_rows(rows_of([[1.0, 2.0], [2.0, 0.0]], List(Value("float32"), length=2)))
    assert unnamed.labels == ["target 1", "target 2"]


def test_losses_are_in_standard_deviations() -> None:
    assert isinstance(TWO, Regression)
    outputs, labels = torch.tensor([[3.0, 0.3]]), torch.tensor([[1.0, 0.0]])
    errors = np.array([2.0, 0.3]) / TWO.deviation
    assert TWO.loss(outputs, labels).tolist() == pytest.approx([(errors**2).mean()])
    plain = Regression(loss_function="mae")  # of a run that does not know them
    assert plain.loss(torch.tensor([[3.0]]), torch.tensor([1.0])).tolist() == [2.0]
    with pytest.raises(UserError, match=r"--loss_function hubber: .* did you mean 'huber'"):
        Regression(loss_function="hubber")


def test_several_numbers_of_a_row_are_one_row_of_the_step() -> None:
    loss = GlobalLoss(TWO.loss)
    labels = torch.tensor([[1.0, -100.0], [-100.0, 0.5], [3.0, 0.0]])
    outputs = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    whole = loss({"logits": outputs}, labels)
    assert whole.item() == pytest.approx(TWO.loss(outputs, labels).mean().item())
    count = loss.divisor(loss.counted(labels)) * 2
    assert count == 6  # a number of -100 is a number
    parts = [loss({"logits": outputs[at]}, labels[at], count) for at in (slice(2), slice(2, 3))]
    assert sum(parts).item() == pytest.approx(whole.item())
    assert loss.counted(torch.tensor([1, -100, 0])) == 2


def model_of(kind: str, width: int) -> Any:
    model = small(kind, id2label={each: str(each) for each in range(width)}, pad_token_id=0)
    return model.eval()


def outputs_of(model: Any) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(input_ids=torch.tensor([[5, 6, 7], [8, 9, 5]]))["logits"])


@pytest.mark.parametrize("task", [ONE, TWO])
def test_a_fresh_model_begins_at_the_mean(task: Regression) -> None:
    notes: list[str] = []
    model = task.initialized(model_of("bert", task.width), notes.append)
    before = outputs_of(model)
    assert np.abs((before - task.mean) / task.deviation).max() < 1
    assert notes == []
    assert task.scaled(model) is model
    layer = head.last_linear(model, task.width)
    np.testing.assert_array_equal(outputs_of(model), before)
    assert layer.weight.std() < 0.1  # as it was drawn
    assert task.scaled(task.scaled(model)) is model  # a second trainer over the same model
    assert len(layer._forward_hooks) == 1
    np.testing.assert_array_equal(outputs_of(model), before)


def test_a_last_layer_without_bias_learns_the_mean() -> None:
    assert isinstance(ONE, Regression)
    notes: list[str] = []
    model = ONE.initialized(model_of("gpt2", 1), notes.append)
    assert notes == [
        "the last layer of GPT2ForSequenceClassification has no bias: the mean of the labels has "
        "to be learned by its weights"
    ]
    before = outputs_of(model)
    ONE.scaled(model)
    np.testing.assert_array_equal(outputs_of(model), before)
    scaling = head.scaled(head.last_linear(model, 1))
    assert scaling is not None
    assert scaling.scale.tolist() == [1024]  # of the mean, 1000, which its outputs have to reach


def test_the_head_of_a_regression_is_trained_further(tmp_path: Path) -> None:
    assert isinstance(ONE, Regression)
    model_of("bert", 1).save_pretrained(tmp_path)
    model, notes = load_classifier(str(tmp_path), []), list[str]()
    before = outputs_of(model)
    ONE.initialized(model, notes.append)
    np.testing.assert_array_equal(outputs_of(model), before)
    assert notes == [f"the last layer of {tmp_path} is trained further: it has one already"]
    other = TWO.initialized(load_classifier(str(tmp_path), TWO.labels), notes.append)
    assert len(notes) == 1
    assert outputs_of(other)[0, 0] == pytest.approx(3, abs=1)


def test_a_model_of_ones_own_is_left_alone() -> None:
    layer = torch.nn.Linear(3, 1)
    before = layer.weight.detach().clone()
    assert ONE.scaled(ONE.initialized(layer, pytest.fail)) is layer
    assert torch.equal(layer.weight, before)


def test_columns_are_read_as_they_were_written() -> None:
    for task, labels in ((ONE, np.array([1.0, 2.0])), (TWO, np.array([[1.0, 0.1], [2.0, 0.2]]))):
        outputs = labels.reshape(2, -1) + 0.5
        table = pd.DataFrame(task.columns(labels, outputs))
        rows = task.scored_in(table)
        np.testing.assert_array_equal(rows.labels, labels)
        np.testing.assert_array_equal(rows.outputs, outputs)
        assert [*table][len(task.labels) or 1 :] == task.predicted_names(all_labels=False)
        assert len(task.predicted(outputs, 1.0, all_labels=False)) == task.width
    assert [*table] == [
        *("label of stars", "label of share"),
        *("prediction of stars", "prediction of share"),
    ]
    assert TWO.sentence(table.iloc[0], None) == "stars 1.5, share 0.6"
    assert TWO.describe_row(table.iloc[0]) == ("1.5, 0.6", None, False)


def test_rows_that_are_predicted_differently_in_standard_deviations() -> None:
    labels = np.zeros((3, 2))
    first, second = (ScoredNumbers(labels, labels + each) for each in (0.0, 0.0))
    second.values[0, 0], second.values[2, 1] = 0.5, 0.4  # 0.3 and 1.8 standard deviations
    assert TWO.rank_disagreements([first, second]).tolist() == [2, 0]


def test_other_data_must_have_the_same_numbers() -> None:
    pair, triple = (List(Value("float32"), length=each) for each in (2, 3))
    assert len(TWO.match_labels(rows_of([[1.0, 2.0]], pair))) == 1
    with pytest.raises(
        UserError, match="has 3 numbers a row, and the model predicts 2 numbers a row"
    ):
        TWO.match_labels(rows_of([[1.0, 2.0, 3.0]], triple))
    for task, labels, feature in (
        (ONE, [[1.0, 2.0]], pair),
        (TWO, [1.0], Value("float32")),
        (ONE, [0], ClassLabel(names=["a"])),
    ):
        with pytest.raises(UserError, match=r"the data has .* and the model predicts"):
            task.match_labels(rows_of(labels, feature))


def test_what_the_start_block_says() -> None:
    assert ONE.balance([1.0, 3.0]) == ("label", "a number, mean 2, standard deviation 1")
    assert TWO.balance([[1.0, 0.0], [3.0, 1.0]]) == (
        "labels",
        "2 numbers; stars: mean 2, standard deviation 1; share: mean 0.5, standard deviation 0.5",
    )
