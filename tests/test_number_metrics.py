"""The local `evaluate` metrics of numbers: scores, several targets, constants and documentation."""

import doctest
import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import evaluate
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from finetune.statistics import metrics
from finetune.statistics.metrics import METRICS
from finetune.statistics.scored import ScoredNumbers
from tests.test_metrics import METRICS_DIR, NUMBERS, README_SECTIONS, load, run_doctest

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "mae": sklearn.metrics.mean_absolute_error,
    "mse": sklearn.metrics.mean_squared_error,
    "pearson": scipy.stats.pearsonr,
    "r2": sklearn.metrics.r2_score,
    "rmse": sklearn.metrics.root_mean_squared_error,
    "spearman": scipy.stats.spearmanr,
}
PREDICTIONS = np.random.default_rng(0).normal(size=(60, 3)).round(2)
REFERENCES = PREDICTIONS + np.random.default_rng(1).normal(size=(60, 3)).round(2)


def expected(name: str, predictions: np.ndarray, references: np.ndarray) -> float:
    found = FUNCTIONS[name](references, predictions)
    return float(getattr(found, "statistic", found))


def test_every_metric_of_numbers_has_a_folder_and_an_interval() -> None:
    assert (
        sorted(FUNCTIONS)
        == sorted(NUMBERS)
        == sorted(name for kind, name in METRICS if kind == "numbers")
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scores_are_those_of_the_libraries(name: str) -> None:
    metric: evaluate.Metric = load(name)
    each = [expected(name, PREDICTIONS[:, k], REFERENCES[:, k]) for k in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = metric.compute(predictions=PREDICTIONS[:, 0], references=REFERENCES[:, 0])
        several = metric.compute(predictions=PREDICTIONS, references=REFERENCES)
    assert one == {name: pytest.approx(each[0])}
    assert several == {name: pytest.approx(np.mean(each))}
    assert type(one[name]) is float
    rows = ScoredNumbers(REFERENCES, PREDICTIONS)
    estimate = metrics.estimate(rows, {name: METRICS["numbers", name]})[name]
    assert estimate["value"] == pytest.approx(several[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_constants_and_single_rows_have_no_correlation(name: str) -> None:
    metric, true = load(name), [1.0, 2.0, 4.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        constant = metric.compute(predictions=[0.1, 0.1, 0.1], references=true)[name]
        same = metric.compute(predictions=true, references=[0.1, 0.1, 0.1])[name]
        single = metric.compute(predictions=[1.0], references=[2.0])[name]
    assert np.isnan(constant) == (name in ("pearson", "spearman"))
    assert np.isnan(same) == np.isnan(single) == (name in ("pearson", "spearman", "r2"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bad_input_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Mismatch"):
        load(name).compute(predictions=[0.0, 1.0, 1.0], references=[0.0, 1.0])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_documentation_is_whole_and_its_examples_are_right(name: str) -> None:
    metric = load(name)
    assert metric.name == name
    assert metric.description
    assert metric.citation
    assert "Args:" in metric.inputs_description
    assert FUNCTIONS[name].__name__ in metric.reference_urls[0]
    module = inspect.getmodule(type(metric))
    assert module is not None
    assert sum(run_doctest(test) for test in doctest.DocTestFinder().find(module)) > 0
    path = METRICS_DIR / name / "README.md"
    text, globs = path.read_text("utf-8"), {"metrics_path": str(METRICS_DIR)}
    assert run_doctest(doctest.DocTestParser().get_doctest(text, globs, name, str(path), 0)) > 2
    sections = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert sections == README_SECTIONS
    assert "- Constants: " in text
    assert "- Several targets: " in text
    assert FUNCTIONS[name].__name__ in text.partition("## Implementation")[2]
