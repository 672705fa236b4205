"""Tests of the local `evaluate` metrics: scores, types, isolation and documentation."""

import ast
import doctest
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import evaluate
import numpy as np
import pytest
import sklearn.metrics

METRICS_DIR = Path(__file__).resolve().parent.parent / "metrics"
FOLDERS = sorted(p.name for p in METRICS_DIR.iterdir() if p.is_dir() and p.name[0] not in "._")
#: Metrics of predicted numbers: see test_number_metrics.py.
NUMBERS = ("mae", "mse", "pearson", "r2", "rmse", "spearman")
METRICS = [name for name in FOLDERS if name not in NUMBERS]
#: Those that take scores of each class; the others take classes.
RANKED = ("average_precision", "roc_auc")
DECIDED = [name for name in METRICS if name not in RANKED]


def cohen_kappa_score(references: Any, predictions: Any, **options: Any) -> float:
    """Quadratic, of all classes between the first and the last; NaN where it is undefined."""
    classes = range(min(*references, *predictions), max(*references, *predictions) + 1)
    return float(
        sklearn.metrics.cohen_kappa_score(
            references,
            predictions,
            labels=classes,
            weights="quadratic",
            **options,
        )
    )


SKLEARN_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "accuracy": sklearn.metrics.accuracy_score,
    "average_precision": sklearn.metrics.average_precision_score,
    "f1": sklearn.metrics.f1_score,
    "matthews_correlation": sklearn.metrics.matthews_corrcoef,
    "mean_absolute_error": sklearn.metrics.mean_absolute_error,
    "precision": sklearn.metrics.precision_score,
    "quadratic_kappa": cohen_kappa_score,
    "recall": sklearn.metrics.recall_score,
    "roc_auc": sklearn.metrics.roc_auc_score,
}
AVERAGED = ("f1", "precision", "recall")

README_SECTIONS = [
    "What it measures",
    "How to use",
    "Inputs",
    "Output values",
    "Examples",
    "Limitations",
    "Implementation",
    "Citation",
]

_RNG = np.random.default_rng(7)
# Case name -> (predictions, references). "absent" is a five-class task whose class 1 occurs
# nowhere, class 3 only in the references and class 4 only in the predictions.
DATA: dict[str, tuple[list[int], list[int]]] = {
    "multiclass": (_RNG.integers(0, 4, 60).tolist(), _RNG.integers(0, 4, 60).tolist()),
    "binary": (_RNG.integers(0, 2, 40).tolist(), _RNG.integers(0, 2, 40).tolist()),
    "only_negatives": ([0, 0, 0], [0, 0, 0]),
    "only_positives": ([1, 1, 1], [1, 1, 1]),
    "constant_predictions": ([1, 1, 1, 1], [0, 1, 0, 1]),
    "constant_references": ([0, 1, 0, 1], [1, 1, 1, 1]),
    "nothing_shared": ([0, 0, 2], [4, 4, 1]),
    "absent": ([0, 2, 2, 4, 0, 4], [0, 2, 3, 3, 2, 0]),
}


@pytest.fixture(autouse=True)
def isolated_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test its own empty caches of `evaluate`, whatever was loaded before it.

    `evaluate` reads the cache folders from the environment when it is first imported, possibly by
    another test file; hence its configuration is patched instead. Metric modules imported from
    other caches, and the places where they would be found, are hidden for the test.
    """
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", tmp_path / "caches" / "modules")
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path / "caches" / "metrics")
    monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)
    monkeypatch.setattr(
        sys, "path", [p for p in sys.path if not Path(p, "evaluate_modules").is_dir()]
    )
    hidden = _pop_loaded_metric_modules()
    yield
    _pop_loaded_metric_modules()
    sys.modules.update(hidden)


def _pop_loaded_metric_modules() -> dict[str, Any]:
    names = [name for name in sys.modules if name.split(".")[0] == "evaluate_modules"]
    return {name: sys.modules.pop(name) for name in names}


def load(name: str, keep_in_memory: bool = True) -> evaluate.Metric:
    """Load one of the metrics under test by the absolute path of its folder."""
    return evaluate.load(str(METRICS_DIR / name), keep_in_memory=keep_in_memory)


def expected_score(
    name: str, predictions: list[int], references: list[int], options: dict[str, Any]
) -> Any:
    """Call the scikit-learn function of a metric, with the metric's own `zero_division`; rankings
    of two classes take the second, of which a prediction is the score.
    """
    if name in AVERAGED:
        options = {"zero_division": 0, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SKLEARN_FUNCTIONS[name](references, predictions, **options)


def option_sets(name: str, predictions: list[int], references: list[int]) -> list[dict[str, Any]]:
    """List the `compute` options with which a metric is compared to scikit-learn."""
    weights = [1.0 + i % 3 for i in range(len(references))]
    if name not in AVERAGED:
        sets: list[dict[str, Any]] = [{}, {"sample_weight": weights}]
        if name == "accuracy":
            sets += [{"normalize": False}, {"normalize": False, "sample_weight": weights}]
        return sets
    sets = [{"average": average} for average in ("macro", "micro", "weighted", None)]
    sets += [
        {"average": "macro", "sample_weight": weights},
        {"average": None, "labels": range(5)},
        {"average": None, "labels": [2, 0]},
        {"average": "macro", "labels": [4, 1, 0]},
        {"average": "macro", "labels": range(5), "zero_division": 1},
        {"average": None, "labels": range(5), "zero_division": float("nan")},
    ]
    if set(predictions) | set(references) <= {0, 1}:  # what average="binary" accepts
        sets += [{}, {"sample_weight": weights}, {"zero_division": 1}, {"pos_label": 0}]
    return sets


def run_doctest(test: doctest.DocTest) -> int:
    """Run one doctest and return its number of examples; fail with its report."""
    report: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert results.failed == 0, "".join(report)
    return results.attempted


def test_metrics_are_discovered() -> None:
    assert len(METRICS) >= 9
    assert set(RANKED) < set(METRICS)
    assert set(METRICS) == set(SKLEARN_FUNCTIONS), "give a new metric its scikit-learn function"


def test_metrics_folder_is_a_documented_package() -> None:
    assert ast.get_docstring(ast.parse((METRICS_DIR / "__init__.py").read_text("utf-8")))


@pytest.mark.parametrize("case", DATA)
@pytest.mark.parametrize("name", DECIDED)
def test_agrees_with_scikit_learn(name: str, case: str) -> None:
    predictions, references = DATA[case]
    metric = load(name)
    for options in option_sets(name, predictions, references):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = metric.compute(predictions=predictions, references=references, **options)
        expected = expected_score(name, predictions, references, options)

        assert list(result) == [name]
        score = result[name]
        np.testing.assert_array_equal(score, expected, err_msg=f"{options}")
        if name in AVERAGED and options.get("average", "binary") is None:
            assert type(score) is list
            assert {type(value) for value in score} == {float}
        else:
            assert type(score) is float


def ranked(references: list[int], classes: int) -> np.ndarray:
    """Scores of each class, in quarters, so that there are ties; right ones are a bit higher."""
    drawn = np.random.default_rng(len(references)).random((len(references), classes))
    return np.round(4 * (drawn + 0.4 * np.eye(classes)[references])) / 4


@pytest.mark.parametrize("case", DATA)
@pytest.mark.parametrize("name", RANKED)
def test_rankings_agree_with_scikit_learn(name: str, case: str) -> None:
    """Each class against the others; those that no example, or every example, has are left out."""
    references, classes = DATA[case][1], max(map(max, DATA[case])) + 1
    scores = ranked(references, classes)
    expected = [
        SKLEARN_FUNCTIONS[name](has, scores[:, index])
        if 0 < (has := np.array(references) == index).sum() < len(has)
        else np.nan
        for index in range(classes)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        each = load(name).compute(prediction_scores=scores, references=references, average=None)
        mean = load(name).compute(prediction_scores=scores, references=references)
    assert list(each) == list(mean) == [name]
    np.testing.assert_array_equal(each[name], expected)
    assert {type(value) for value in each[name]} == {type(mean[name])} == {float}
    defined = [value for value in expected[classes == 2 :] if not np.isnan(value)]
    assert mean[name] == pytest.approx(np.mean(defined) if defined else np.nan, nan_ok=True)


@pytest.mark.parametrize("name", RANKED)
def test_rankings_of_labels_agree_with_scikit_learn(name: str) -> None:
    generator = np.random.default_rng(3)
    scores, has = generator.random((50, 4)).round(1), generator.integers(2, size=(50, 4))
    metric = evaluate.load(str(METRICS_DIR / name), "multilabel", keep_in_memory=True)
    for average in ("macro", None):
        found = metric.compute(prediction_scores=scores, references=has, average=average)
        expected = SKLEARN_FUNCTIONS[name](has, scores, average=average)
        np.testing.assert_allclose(found[name], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "options", "score"),
    [  # TP = 2, FP = 1, FN = 2, TN = 3 for class 1
        ("accuracy", {}, 5 / 8),
        ("f1", {}, 4 / 7),
        ("precision", {}, 2 / 3),
        ("recall", {}, 2 / 4),
        ("matthews_correlation", {}, (2 * 3 - 1 * 2) / (3 * 4 * 4 * 5) ** 0.5),
        ("mean_absolute_error", {}, 3 / 8),
        ("quadratic_kappa", {}, 1 - 3 / ((3 * 4 + 5 * 4) / 8)),
        ("precision", {"average": None}, [3 / 5, 2 / 3]),
        ("recall", {"average": "macro"}, (3 / 4 + 2 / 4) / 2),
        ("recall", {"average": "micro"}, 5 / 8),
    ],
)
def test_hand_computed_scores(name: str, options: dict[str, Any], score: Any) -> None:
    predictions = [1, 1, 1, 0, 0, 0, 0, 0]
    references = [1, 1, 0, 1, 1, 0, 0, 0]
    result = load(name).compute(predictions=predictions, references=references, **options)
    assert result[name] == pytest.approx(score)


@pytest.mark.parametrize("case", ["only_negatives", "constant_predictions", "constant_references"])
def test_matthews_correlation_of_degenerate_input_is_zero(case: str) -> None:
    predictions, references = DATA[case]
    result = load("matthews_correlation").compute(predictions=predictions, references=references)
    assert result == {"matthews_correlation": 0.0}


def test_a_class_that_does_not_occur_is_still_a_step_between_its_neighbours() -> None:
    for name, expected in (
        ("quadratic_kappa", 1 - (4 + 1) / (60 / 4)),
        ("mean_absolute_error", 0.75),
    ):
        result = load(name).compute(predictions=[2, 0, 3, 3], references=[0, 0, 3, 2])
        assert result[name] == pytest.approx(expected)


@pytest.mark.parametrize("name", AVERAGED)
def test_binary_average_rejects_other_classes(name: str) -> None:
    metric = load(name)
    with pytest.raises(ValueError, match="multiclass"):
        metric.compute(predictions=[0, 1, 2], references=[0, 1, 1])
    with pytest.raises(ValueError, match="pos_label"):
        metric.compute(predictions=[0, 2], references=[2, 2])


def inputs_of(name: str, predictions: list[int], references: list[int]) -> dict[str, Any]:
    """What `compute` of a metric takes; a prediction has the score 1, all others 0."""
    if name not in RANKED:
        return {"predictions": predictions, "references": references}
    return {"prediction_scores": np.eye(2)[predictions], "references": references}


@pytest.mark.parametrize("name", RANKED)
def test_rankings_reject_bad_input(name: str) -> None:
    metric, inputs = load(name), inputs_of(name, [0, 1], [0, 1])
    with pytest.raises(ValueError, match=r"average='micro': expected 'macro' or None"):
        metric.compute(**inputs, average="micro")
    with pytest.raises(ValueError, match=r"don't match|Mismatch"):
        metric.compute(**{**inputs, "references": [0, 1, 1]})
    with pytest.raises(ValueError, match="NaN"):
        metric.compute(**{**inputs, "prediction_scores": [[np.nan, 1.0], [0.5, 0.5]]})


@pytest.mark.parametrize("name", DECIDED)
def test_rejects_bad_input(name: str) -> None:
    metric = load(name)
    with pytest.raises(ValueError, match="empty"):
        metric.compute(predictions=[], references=[])
    with pytest.raises(ValueError, match="inconsistent"):
        metric.compute(predictions=[0, 1], references=[0, 1], sample_weight=[1.0])
    with pytest.raises(ValueError, match="Mismatch"):
        metric.compute(predictions=[0, 1, 1], references=[0, 1])


@pytest.mark.parametrize("keep_in_memory", [True, False])
@pytest.mark.parametrize("name", METRICS)
def test_loads_from_another_directory_with_decoys(
    name: str, keep_in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for package in {*METRICS, "metrics"}:
        (elsewhere / package).mkdir(parents=True)
        for file in ("__init__.py", f"{package}.py"):
            (elsewhere / package / file).write_text("raise RuntimeError('decoy was imported')\n")
    monkeypatch.chdir(elsewhere)
    monkeypatch.syspath_prepend(str(elsewhere))  # as with `python -c` or a script started there
    predictions, references = DATA["binary"]

    metric = load(name, keep_in_memory)
    inputs = inputs_of(name, predictions, references)
    result = metric.compute(**inputs)

    assert metric.name == name
    assert result == {name: expected_score(name, predictions, references, {})}
    with pytest.raises(RuntimeError, match="decoy"):  # the decoys do work
        evaluate.load(name)


@pytest.mark.parametrize("keep_in_memory", [True, False])
def test_metrics_loaded_together_do_not_mix(keep_in_memory: bool) -> None:
    macro, recall, binary = (load(name, keep_in_memory) for name in ("f1", "recall", "f1"))
    many, two = DATA["multiclass"], DATA["binary"]

    macro.add_batch(predictions=many[0][:20], references=many[1][:20])
    recall.add_batch(predictions=many[0], references=many[1])
    binary.add_batch(predictions=two[0], references=two[1])
    macro.add_batch(predictions=many[0][20:], references=many[1][20:])

    for metric, data, options in (
        (recall, many, {"average": None, "labels": [3, 1]}),
        (binary, two, {"pos_label": 0}),
        (macro, many, {"average": "macro"}),
    ):
        expected = expected_score(metric.name, *data, options)
        np.testing.assert_array_equal(metric.compute(**options)[metric.name], expected)
    # Neither the options nor the data of the first round remain.
    assert binary.compute(predictions=[1, 0], references=[1, 1]) == {"f1": pytest.approx(2 / 3)}


@pytest.mark.parametrize("name", METRICS)
def test_describes_itself(name: str) -> None:
    metric = load(name)
    assert metric.name == name
    classes, scores = datasets.Value("int64"), datasets.List(datasets.Value("float64"))
    assert metric.features == (
        {"prediction_scores": scores, "references": classes}
        if name in RANKED
        else {"predictions": classes, "references": classes}
    )
    assert metric.description
    assert metric.citation
    assert "Args:" in metric.inputs_description
    assert SKLEARN_FUNCTIONS[name].__name__ in metric.reference_urls[0]


@pytest.mark.parametrize("name", METRICS)
def test_docstring_examples(name: str) -> None:
    module = inspect.getmodule(type(load(name)))
    assert module is not None
    assert sum(run_doctest(test) for test in doctest.DocTestFinder().find(module)) > 0


@pytest.mark.parametrize("name", METRICS)
def test_readme_examples(name: str) -> None:
    path = METRICS_DIR / name / "README.md"
    globs = {"metrics_path": str(METRICS_DIR)}
    test = doctest.DocTestParser().get_doctest(path.read_text("utf-8"), globs, name, str(path), 0)
    assert run_doctest(test) > 2


@pytest.mark.parametrize("name", METRICS)
def test_readme_sections(name: str) -> None:
    text = (METRICS_DIR / name / "README.md").read_text("utf-8")
    title, *parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))

    assert title.startswith("# ")
    assert list(sections) == README_SECTIONS
    assert all(body.strip() for body in sections.values())
    assert SKLEARN_FUNCTIONS[name].__name__ in sections["Implementation"]
    for argument in inspect.signature(load(name)._compute).parameters:
        assert f"| `{argument}` |" in sections["Inputs"]
    for topic in ("zero division", "absent classes"):
        assert topic in sections["Limitations"].lower()
    assert "```bibtex" in sections["Citation"]
