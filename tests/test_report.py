"""The page and the plots of a run: every section, every image, and the numbers of metrics.json."""

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import finetune
from finetune import Run, UserError, cli
from finetune.reporting import page, wording
from finetune.statistics import mistakes
from finetune.statistics.scored import ScoredRows
from finetune.training.manifest import Statistics
from tests.conftest import ROOT
from tests.runs import write_run

SECTIONS = ["Scores", "Training", "Classes", "Probabilities", "Length", "Slices", "Mistakes"]
PLOTS = {"learning_curves", "speed", "confusion", "classes", "reliability", "coverage", "length"}
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """A page that must be well formed: its headings, links, images, cells and words."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.headings: list[str] = []
        self.links: list[str] = []
        self.images: list[str] = []
        self.cells: list[str] = []
        self.words = ""
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in given and "svg" not in self.open:
            self.ids.append(str(given["id"]))
        if tag == "a":
            self.links.append(str(given["href"]))
        if given.get("role") == "img":
            self.images.append(str(given["aria-label"]))
        if tag in ("td", "th"):
            self.cells.append("")
        if tag in ("h1", "h2", "h3"):
            self.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data
        if "td" in self.open or "th" in self.open:
            self.cells[-1] += data
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings[-1] += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    texts = [f"review {number} of a place" for number in range(300)]
    directory = tmp_path_factory.mktemp("report") / "run"
    run = write_run(
        directory,
        rows=300,
        names=("1 star", "2 star", "3 stars", "4 stars", "5 stars"),
        texts=texts,
        columns={"source": [("web", "paper")[number % 2] for number in range(300)]},
    )
    page.write(run)
    return run


@pytest.fixture(scope="module")
def seen(run: Run) -> Page:
    return Page(run.path / "report.html")


def test_a_report_has_every_section_and_image(run: Run, seen: Page) -> None:
    assert seen.headings[1:-1] == [*SECTIONS, "Provenance"]
    assert {link.removeprefix("#") for link in seen.links} == set(seen.ids)
    assert len(seen.images) == len(PLOTS)
    assert all(len(words) > 20 for words in seen.images)
    assert {path.stem for path in (run.path / "plots").glob("*.png")} == PLOTS
    for path in (run.path / "plots").iterdir():
        with Image.open(path) as picture:
            assert min(picture.size) > 200
            assert len(picture.convert("L").getcolors()) > 20  # something is drawn


def test_a_report_needs_no_network_and_no_script(seen: Page) -> None:
    assert not re.search(r"<script|<link|<img|src=|@import|url\((?!#)", seen.text)
    assert "</html>" in seen.text
    addresses = set(re.findall(r"https?://[^\s\"'<]+", seen.text))
    assert all("w3.org" in each for each in addresses)  # name spaces and the type of SVG


def test_a_report_has_the_numbers_of_metrics_json(run: Run, seen: Page) -> None:
    statistics, cells = run.metrics["statistics"], [" ".join(each.split()) for each in seen.cells]

    def shown(found: dict[str, float], signed: bool = False) -> str:
        low, high = (wording.score(found[name], signed) for name in ("low", "high"))
        return f"{wording.score(found['value'], signed)} {low} to {high}"

    for each in [*statistics["metrics"].values(), *statistics["top_k"].values()]:
        assert shown(each) in cells
    assert set(statistics["ordered"]) == {"mean_absolute_error", "quadratic_kappa", "within_one"}
    for each in statistics["ordered"].values():
        assert shown(each) in cells
    for each in statistics["beyond"]["majority class"].values():
        assert shown(each, signed=True) in cells
    for name, scores in statistics["classes"].items():
        assert name in cells
        for score in ("precision", "recall", "f1", "roc_area", "pr_area"):
            assert shown(scores[score]) in cells
    assert sum(map(sum, statistics["confusion"])) == statistics["rows"] == 300


def test_a_report_shows_the_worst_rows(run: Run, seen: Page) -> None:
    table = run.predictions
    wrong = table[table["label"] != table["prediction"]]
    sure = wrong[[name for name in table if name.startswith("probability of")]].max(axis=1)
    assert f"{len(wrong)} of 300 rows are wrong." in seen.words
    for index in sure.nlargest(5).index:
        assert table["text"][index] in seen.cells
    assert any(cell.startswith("source = ") for cell in seen.cells)


def test_a_row_is_shown_once_and_marked_if_its_label_is_suspected(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=1000, skill=0.5)
    page.write(run)
    cells = Page(run.path / "report.html").cells
    texts = [text for text in run.predictions["text"] if text in cells]
    assert len(texts) == 40
    assert all(cells.count(text) == 1 for text in texts)
    labels = [cells[cells.index(text) + 1] for text in texts]
    assert sum("likely wrong" in each for each in labels) == 20  # of two classes all the surest


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "a & b </td></table> <b>", "\"'>"])
def test_markup_in_a_review_is_text(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path / "run", rows=40, skill=0.0, texts=[text] * 40)
    page.write(run)
    found = Page(run.path / "report.html")
    assert text in found.cells
    assert "<script" not in found.text


@pytest.mark.parametrize("classes", [2, 50])
def test_few_and_many_classes_with_long_names(tmp_path: Path, classes: int) -> None:
    names = tuple(f"a class whose name is rather long, number {each}" for each in range(classes))
    run = write_run(tmp_path / "run", rows=40 * classes, names=names)
    page.write(run)
    found = Page(run.path / "report.html")
    assert all(name in found.cells for name in names)
    assert "ordered" not in run.metrics["statistics"]


def test_a_class_that_no_test_row_has_and_names_with_signs(tmp_path: Path) -> None:
    names = ("$0_to_$10", "$10^$20", *(f"<{each}>" for each in range(70)))
    run = write_run(tmp_path / "run", rows=100, names=names)
    assert any(each["support"] == 0 for each in run.metrics["statistics"]["classes"].values())
    page.write(run)
    found = Page(run.path / "report.html")
    assert all(name in found.cells for name in names)


def test_a_large_test_set_has_a_small_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=25_000, texts=["a long review, again " * 50] * 25_000)
    path = page.write(run)
    assert "25,000 rows" in Page(path).words
    assert path.stat().st_size < 3_000_000


def test_the_report_verb_makes_the_same_page_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run.path / "report.html").read_bytes()
    (run.path / "report.html").unlink()
    assert cli.main(["report", str(run.path)]) == 0
    assert (run.path / "report.html").read_bytes() == before
    out = capsys.readouterr().out
    assert out == f"report: {run.path}/report.html; model card: {run.path}/README.md\n"
    with pytest.raises(UserError, match="not the directory of a run"):
        Run.load(run.path / "nothing")


def test_a_run_without_statistics_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=40)
    dataclasses.replace(run.metrics, statistics=None).write(run.path)
    with pytest.raises(UserError, match="has no statistics"):
        page.write(run)


def test_a_regression_has_a_report(tmp_path: Path) -> None:
    run = finetune.train(
        str(ROOT / "examples" / "regression.py"),
        rows=300,
        output_dir=str(tmp_path / "run"),
    )
    found = Page(run.path / "report.html")
    assert found.headings[1:-1] == ["Scores", "Training", "Provenance"]
    statistics = run.metrics["statistics"]
    assert statistics["metrics"]["mse"]["value"] == pytest.approx(run.metrics["test"]["mse"])
    assert statistics["beyond"]["mean"]["mse"]["high"] < 0
    assert "Fine-tuning beats the baseline 'mean'" in found.words


# ---- what it is made of --------------------------------------------------------------------------


def gap(low: float, high: float) -> dict[str, float]:
    return {"value": (low + high) / 2, "low": low, "high": high}


@pytest.mark.parametrize(
    ("metric", "low", "high", "said"),
    [
        ("accuracy", 0.01, 0.03, "Fine-tuning beats"),
        ("accuracy", -0.01, 0.03, "Fine-tuning does not beat"),
        ("accuracy", -0.03, -0.01, "Fine-tuning is worse than"),
        ("mse", -0.03, -0.01, "Fine-tuning beats"),
        ("mse", 0.01, 0.03, "Fine-tuning is worse than"),
        ("own", 0.01, 0.03, "Against"),
    ],
)
def test_a_verdict_is_that_of_the_interval(metric: str, low: float, high: float, said: str) -> None:
    beyond = {"TF-IDF": {metric: gap(low, high)}}
    statistics = Statistics(rows=1, metrics={}, beyond=beyond)
    sentence = wording.against("TF-IDF", gap(low, high), metric)
    assert sentence.startswith(f"{said} the baseline 'TF-IDF'")
    beaten_or_unknown = "beats" in said or metric == "own"
    assert wording.unbeaten(statistics, metric) == ([] if beaten_or_unknown else [sentence])


def test_labels_that_were_changed_are_found() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=600)
    probabilities = np.full((600, 3), 0.05)
    probabilities[np.arange(600), labels] = 0.9
    changed = generator.choice(600, size=15, replace=False)
    given = labels.copy()
    given[changed] = (given[changed] + 1) % 3
    predicted = ScoredRows(["a", "b", "c"], given, probabilities)
    assert set(mistakes.likely_label_errors(predicted)) == set(changed)


def test_the_worst_slice_is_the_one_that_is_worst() -> None:
    labels = np.zeros(400, dtype=int)
    right = np.ones(400, dtype=bool)
    right[:50] = np.arange(50) % 2
    probabilities = np.where(right[:, None], [[0.9, 0.1]], [[0.1, 0.9]])
    table = pd.DataFrame(
        {
            "text": ["a"] * 400,
            "tokens": np.arange(400),
            "source": ["web"] * 50 + ["paper"] * 350,
            "number": np.arange(400),
        }
    )
    found = mistakes.worst_slices(ScoredRows(["a", "b"], labels, probabilities), table, 10)
    assert (found[0].name, found[0].rows, found[0].lower) == ("source = web", 50, True)
    assert found[0].accuracy.value == 0.5
    assert found[1].name == "0 to 98 tokens"
    assert not any(each.name.startswith("number") for each in found)
