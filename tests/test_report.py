"""The page and the plots of a run: every section, every image, and the numbers of metrics.json."""

import base64
import dataclasses
import io
import re
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.special import softmax

import finetune
from finetune import Run, UserError, cli
from finetune.reporting import figure, page, wording
from finetune.statistics import mistakes
from finetune.statistics.probabilities import Probabilities
from finetune.statistics.scored import ScoredRows
from finetune.training.manifest import Statistics
from tests.conftest import ROOT
from tests.runs import trained, write_run

SECTIONS = ["Scores", "Training", "Classes", "Probabilities", "Length", "Slices", "Mistakes"]
PLOTS = {"learning_curves", "speed", "confusion", "classes", "roc", "precision_recall"}
PLOTS |= {"reliability", "coverage", "length"}
VOID = {"meta", "link", "br", "wbr", "img", "input", "hr"}


class Page(HTMLParser):
    """A page that must be well formed: its headings, links, images, cells and words, and what may
    be wider than a phone with what is around it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.around: list[dict[str, str | None]] = []
        self.wide: list[tuple[str, dict[str, str | None], dict[str, str | None]]] = []
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
        if tag in ("table", "svg", "pre"):
            self.wide.append((tag, given, self.around[-1]))
        if tag not in VOID:
            self.open.append(tag)
            self.around.append(given)
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
        self.around.pop()

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


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the drawings empty, for a test of the words around them: they take most of the time."""
    monkeypatch.setattr(figure.Plot, "svg", lambda plot: "<svg></svg>")
    monkeypatch.setattr(figure.Plot, "save", lambda plot, path: None)


@pytest.fixture(scope="module")
def seen(run: Run) -> Page:
    return Page(run.path / "report.html")


def test_a_report_has_every_section_and_image(run: Run, seen: Page) -> None:
    assert seen.headings[1:-1] == [*SECTIONS, "Provenance"]
    assert {link[1:] for link in seen.links if link.startswith("#")} == set(seen.ids)
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
    links = {link for link in seen.links if not link.startswith("#")}
    assert all("w3.org" in each for each in addresses - links)  # name spaces, the type of SVG


def test_a_report_has_the_numbers_of_metrics_json(run: Run, seen: Page) -> None:
    statistics, cells = run.metrics["statistics"], [" ".join(each.split()) for each in seen.cells]

    def shown(found: dict[str, float], signed: bool = False, to: int | None = None) -> str:
        value, low, high = wording.rounded(found, signed, to)
        return f"{value} {low} to {high}"

    gaps = statistics["beyond"]["majority class"]
    for name, each in statistics["metrics"].items():  # a column of the table has as many digits
        to = wording.column_digits([each, gaps[name]]) if name in gaps else None
        assert shown(each, to=to) in cells
        assert name not in gaps or shown(gaps[name], signed=True, to=to) in cells
    assert set(statistics["ordered"]) == {"mean_absolute_error", "quadratic_kappa", "within_one"}
    for each in [*statistics["top_k"].values(), *statistics["ordered"].values()]:
        assert shown(each) in cells
    for name, scores in statistics["classes"].items():
        assert name in cells
        for score in ("precision", "recall", "f1", "roc_area", "pr_area"):
            assert shown(scores[score], to=wording.digits(scores["f1"])) in cells
    assert sum(map(sum, statistics["confusion"])) == statistics["rows"] == 300


def rules(page: Page) -> str:
    match = re.search(r"<style>(.*?)</style>", page.text, re.DOTALL)
    assert match is not None
    return match[1]


def test_nothing_is_wider_than_a_phone(seen: Page) -> None:
    """What may be wider scrolls by itself; a plot is drawn so narrow that its labels stay legible,
    or is marked as wide and scrolls, too.
    """
    assert re.search(r"\.scroll \{[^}]*overflow-x: auto", rules(seen))
    assert re.search(r"pre \{[^}]*overflow-x: auto", rules(seen))
    assert re.search(r"h1 \{[^}]*overflow-wrap: anywhere", rules(seen))
    assert not re.search(r"(?<!max-)(?<!min-)width: \d+(px|rem)", rules(seen))
    assert {tag for tag, *_ in seen.wide} == {"table", "svg", "pre"}
    for tag, given, around in seen.wide:
        assert tag == "pre" or around["class"] == "scroll"
        if tag == "svg" and "tabindex" not in around:
            assert float(str(given["width"]).removesuffix("pt")) <= 72 * 4.7
    assert len([around for tag, _, around in seen.wide if tag == "table"]) >= 4
    for tag, _, around in seen.wide:  # a keyboard can scroll it
        assert tag != "table" or (around["tabindex"], around["role"]) == ("0", "region")


def test_a_matrix_of_many_classes_scrolls_instead_of_shrinking(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=600, names=tuple(f"class {each}" for each in range(30)))
    page.write(run)
    wide = [around for tag, _, around in Page(run.path / "report.html").wide if tag == "svg"]
    assert ["tabindex" in around for around in wide].count(True) == 1


def test_plots_have_no_white_in_the_dark(seen: Page) -> None:
    """No background, no text in a colour of its own, and images that begin with nothing."""
    drawings = "".join(re.findall(r"<svg.*?</svg>", seen.text, re.DOTALL))
    assert not re.search(r"(fill|stroke): ?(#fff|white)", drawings)
    assert "#000000" not in drawings
    assert figure.INK not in drawings
    assert "currentColor" in drawings
    encoded = re.findall(r"data:image/png;base64,([^\"]+)", drawings)
    assert len(encoded) == 1  # the confusion matrix
    with Image.open(io.BytesIO(base64.b64decode(encoded[0]))) as image:
        lowest, highest = image.convert("RGBA").getchannel("A").getextrema()
    assert lowest < 60
    assert highest < 215  # dark text is legible on it


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    shares = [int(colour[each : each + 2], 16) / 255 for each in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_colours_have_the_contrast_of_wcag_aa(seen: Page, mode: str) -> None:
    light, dark = re.findall(r":root \{([^}]*)\}", rules(seen))
    values = dict(re.findall(r"--(\w+): (#\w{6})", light if mode == "light" else dark))
    assert set(values) == {"ink", "paper", "faint", "line", "band", "good", "bad", "link"}
    for name in ("ink", "faint", "good", "bad", "link"):
        assert contrast(values[name], values["paper"]) >= 4.5, name
    for colour in (*figure.COLOURS, figure.GREY):
        assert contrast(colour, values["paper"]) >= 3, colour
    paper, blue = (
        np.array([int(each[n : n + 2], 16) for n in (1, 3, 5)])
        for each in (values["paper"], figure.BLUE)
    )
    shade = 0.2 * paper + 0.8 * blue  # of a cell of the confusion matrix that has all rows
    assert contrast("#" + "".join(f"{round(c):02x}" for c in shade), values["ink"]) >= 4.5


def test_what_a_short_run_cannot_show_is_left_out(tmp_path: Path) -> None:
    first = [dict(trained().manifest.history[0])]
    run = write_run(tmp_path / "run", rows=12, history=first)
    page.write(run)
    found = Page(run.path / "report.html")
    assert found.headings[1:-1] == [
        *("Scores", "Training", "Classes", "Probabilities", "Mistakes", "Provenance")
    ]
    assert [path.stem for path in (run.path / "plots").glob("*.png")] == ["confusion"]
    assert (
        "Too little data to plot: learning curves, throughput by step, F1 by class, ROC"
        in found.words
    )


def test_plots_of_an_earlier_report_are_removed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=12)
    (run.path / "plots").mkdir()
    (run.path / "plots" / "coverage.png").touch()
    page.write(run)
    assert "coverage" not in {path.stem for path in (run.path / "plots").iterdir()}


@pytest.mark.parametrize(
    ("low", "high", "digits"),
    [
        (0.47, 0.91, 2),  # of 12 rows
        (0.80, 0.89, 2),  # of 200
        (0.832, 0.866, 3),  # of 1,700
        (0.8691, 0.8724, 4),  # of 160,000
        (0.0, 1.0, 2),
        (1200.0, 1300.0, 0),
        (0.5, 0.5, None),
    ],
)
def test_digits_suit_the_width_of_the_interval(low: float, high: float, digits: int | None) -> None:
    found = {"value": (low + high) / 2, "low": low, "high": high}
    assert wording.digits(found) == digits
    assert wording.rounded(found)[1] == wording.score(low, digits=digits)


@pytest.mark.usefixtures("without_pictures")
def test_a_report_has_date_base_model_and_validation(tmp_path: Path) -> None:
    options = {**trained().manifest.options, "model": "google-bert/bert-base-cased"}
    facts = {"finished": "2026-02-03T04:05:06+00:00", "model_revision": "0123456789abcdef"}
    run = write_run(tmp_path / "run", options=options, **facts)
    page.write(run)
    found = Page(run.path / "report.html")
    assert "2026-02-03, 04:05 UTC" in found.words
    link = "https://huggingface.co/google-bert/bert-base-cased"
    assert f"{link}/tree/0123456789abcdef" in found.links
    rows = run.manifest.data.rows["validation"]
    place = found.cells.index(f"on the {rows} validation rows")
    value = run.metrics.validation["accuracy"]
    assert found.cells[place + 1] == wording.score(value, digits=2)


@pytest.mark.usefixtures("without_pictures")
def test_a_run_of_an_older_release_has_no_date(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", finished=None)
    page.write(run)
    found = Page(run.path / "report.html")
    assert "UTC" not in found.words
    assert not [link for link in found.links if link.startswith("http")]  # the model is a directory


def test_the_end_of_training_is_in_the_manifest() -> None:
    finished = datetime.fromisoformat(str(trained().manifest.finished))
    assert finished.utcoffset() == timedelta(0)


@pytest.mark.usefixtures("without_pictures")
def test_curves_of_two_classes_are_those_of_the_positive_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=400)
    page.write(run)
    found = Page(run.path / "report.html")
    classes = run.statistics.classes or {}
    for kind, area in (("ROC AUC", "roc_area"), ("Average precision", "pr_area")):
        value = wording.rounded(classes["good"][area])[0]
        assert f"{kind} of 'good': {value}." in found.images


@pytest.mark.usefixtures("without_pictures")
def test_of_many_classes_the_lowest_curves_are_shown_and_a_mean(tmp_path: Path) -> None:
    names = tuple(f"class {each}" for each in range(12))
    run = write_run(tmp_path / "run", rows=1200, names=names, skill=1.0)
    page.write(run)
    (alt,) = [each for each in Page(run.path / "report.html").images if each.startswith("ROC AUC")]
    assert "the 5 lowest of 12, and the mean of 7 others" in alt
    areas = {name: each["roc_area"]["value"] for name, each in run.statistics.classes.items()}
    assert f"lowest for '{min(areas, key=areas.__getitem__)}'" in alt


def test_a_report_shows_the_worst_rows(run: Run, seen: Page) -> None:
    table = run.predictions
    wrong = table[table["label"] != table["prediction"]]
    sure = wrong[[name for name in table if name.startswith("probability of")]].max(axis=1)
    assert f"{len(wrong)} of 300 rows are wrong." in seen.words
    for index in sure.nlargest(5).index:
        assert table["text"][index] in seen.cells
    assert any(cell.startswith("source = ") for cell in seen.cells)


@pytest.mark.usefixtures("without_pictures")
def test_a_row_is_shown_once_and_marked_if_its_label_is_suspected(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=4000, skill=4.0, wrong_labels=0.1)
    page.write(run)
    found = Page(run.path / "report.html")
    table = run.predictions
    sure = table[["probability of bad", "probability of good"]].max(axis=1).nlargest(400).index
    wrong = (table["label"] != table["prediction"])[sure].sum()
    assert 20 < wrong < 80
    assert f"Of the 400 most confident predictions {wrong} contradict the label" in found.words
    cells = found.cells
    texts = [text for text in table["text"] if text in cells]
    assert len(texts) == min(40, wrong)
    assert all(cells.count(text) == 1 for text in texts)
    labels = [cells[cells.index(text) + 1] for text in texts]
    # the most confident mistakes are those that are suspected
    assert sum("label may be wrong" in each for each in labels) == 20


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(
    ("rows", "skill", "said"),
    [
        (400, 0.0, "there are too few rows, or too many mistakes, to tell"),
        (400, 0.4, "there are too few rows, or too many mistakes, to tell"),
        (80, 3.0, "there are too few rows, or too many mistakes, to tell"),
        (400, 6.0, "Of the 40 most confident predictions none contradicts its label"),
    ],
)
def test_no_label_is_suspected_by_a_model_that_cannot_tell(
    rows: int, skill: float, said: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", rows=rows, skill=skill)
    page.write(run)
    found = Page(run.path / "report.html")
    assert said in found.words
    assert "no label is suspected" in found.words.lower()
    assert "label may be wrong" not in found.words


@pytest.mark.usefixtures("without_pictures")
def test_no_label_is_suspected_by_a_model_that_beats_no_baseline(tmp_path: Path) -> None:
    """One that only knew the majority class was said to know of labels that are likely wrong."""
    run = write_run(tmp_path / "run", rows=400, wrong_labels=0.1)
    page.write(run)
    assert "label may be wrong" in Page(run.path / "report.html").words
    alike = {"majority class": {name: gap(-0.1, 0.1) for name in ("accuracy", "f1")}}
    statistics = dataclasses.replace(run.statistics, beyond=alike)
    dataclasses.replace(run.metrics, statistics=statistics).write(run.path)
    page.write(run)
    words = Page(run.path / "report.html").words
    assert "No label is suspected: the model is not known to beat a baseline" in words
    assert "label may be wrong" not in words


@pytest.mark.usefixtures("without_pictures")
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
    assert " ".join(out.split()) == (
        f"report: {run.path}/report.html; model card: {run.path}/README.md suspected rows: "
        f"{run.path}/suspects.csv; copy it, write the right labels into new_label, and train with "
        "--relabel COPY"
    )
    with pytest.raises(UserError, match="not the directory of a run"):
        Run.load(run.path / "nothing")


def test_a_run_without_statistics_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=40)
    dataclasses.replace(run.metrics, statistics=None).write(run.path)
    with pytest.raises(UserError, match="has no statistics"):
        page.write(run)


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize("status", ["failed", "finished"])
def test_a_run_whose_statistics_failed_is_assessed_from_its_predictions(
    status: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It used to be told to be trained again."""
    run = write_run(tmp_path / "run", rows=300, status=status, temperature=None)
    before = run.statistics
    dataclasses.replace(run.metrics, statistics=None, baseline={}).write(run.path)
    assert cli.main(["report", str(run.path)]) == 0
    found = run.statistics
    assert found.metrics["accuracy"] == before.metrics["accuracy"]
    assert found.metrics["log_loss"] == pytest.approx(before.metrics["log_loss"])
    assert found.classes == before.classes
    assert found.beyond == {}
    words = Page(run.path / "report.html").words
    assert "there are no baselines and no temperature" in words
    assert "No label is suspected: the model is not known to beat a baseline" in words
    assert run.manifest.status == status


def test_a_run_that_never_ended_is_not_assessed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=40, status="failed", steps=None)
    dataclasses.replace(run.metrics, statistics=None).write(run.path)
    with pytest.raises(UserError, match=r"has not ended \(status 'failed'\)"):
        finetune.report(run)


def test_a_regression_has_a_report(tmp_path: Path) -> None:
    run = finetune.train(
        str(ROOT / "examples" / "regression.py"),
        rows=300,
        output_dir=str(tmp_path / "run"),
    )
    found = Page(run.path / "report.html")
    assert found.headings[1:-1] == ["Scores", "Predictions", "Training", "Provenance"]
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
        ("own", 0.01, 0.03, "Difference to"),
    ],
)
def test_a_verdict_is_that_of_the_interval(metric: str, low: float, high: float, said: str) -> None:
    beyond = {"TF-IDF": {metric: gap(low, high)}}
    statistics = Statistics(rows=1, metrics={}, beyond=beyond)
    sentence = wording.against("TF-IDF", beyond["TF-IDF"], [metric])
    assert sentence.startswith(f"{said} the baseline 'TF-IDF'")
    beaten_or_unknown = "beats" in said or metric == "own"
    assert wording.unbeaten(statistics, [metric]) == ([] if beaten_or_unknown else [sentence])
    assert wording.beats_a_baseline(statistics, [metric]) == ("beats" in said)


def test_a_verdict_goes_by_the_first_metric_and_names_any_other_that_is_worse() -> None:
    """It used to go by accuracy, and call a significant loss of F1 one that may be chance."""
    gaps = {"accuracy": gap(-0.02, 0.04), "f1": gap(-0.16, -0.06)}
    statistics = Statistics(rows=400, metrics={}, beyond={"TF-IDF": gaps})
    worse = "F1 \N{MINUS SIGN}0.11, 95% CI \N{MINUS SIGN}0.16 to \N{MINUS SIGN}0.06"
    assert wording.unbeaten(statistics, ["f1", "accuracy"]) == [
        f"Fine-tuning is worse than the baseline 'TF-IDF' (difference in {worse})."
    ]
    (sentence,) = wording.unbeaten(statistics, ["accuracy", "f1"])
    assert sentence == (
        "Fine-tuning does not beat the baseline 'TF-IDF' (difference in accuracy +0.01, 95% CI "
        "\N{MINUS SIGN}0.02 "
        "to +0.04); the difference may be chance. It is significantly worse in F1 "
        "(\N{MINUS SIGN}0.11, 95% CI \N{MINUS SIGN}0.16 to \N{MINUS SIGN}0.06)."
    )
    better = Statistics(
        rows=400, metrics={}, beyond={"TF-IDF": {**gaps, "accuracy": gap(0.01, 0.04)}}
    )
    (sentence,) = wording.unbeaten(better, ["accuracy", "f1"])
    assert sentence.startswith(
        "Fine-tuning beats the baseline 'TF-IDF' (difference in accuracy +0.0"
    )
    assert "It is significantly worse in F1" in sentence
    said = wording.between("b", "a", gaps, ["f1", "accuracy"])
    assert said == f"b is worse than a (difference in {worse})."


def test_also_worse_is_said_only_where_something_was_worse() -> None:
    worse = {"accuracy": gap(-0.04, -0.02), "f1": gap(-0.16, -0.06)}
    said = wording.between("b", "a", worse, ["f1", "accuracy"])
    assert ". It is also significantly worse in accuracy (" in said
    assert "also" not in wording.between(
        "b", "a", worse | {"f1": gap(0.06, 0.16)}, ["f1", "accuracy"]
    )


def test_a_difference_of_zero_is_the_same_score() -> None:
    same = {"f1": gap(0.0, 0.0), "accuracy": gap(0.0, 0.0)}
    assert wording.between("b", "a", same, ["f1"]) == "b scores the same F1 as a."
    said = wording.against("TF-IDF", same, ["f1", "accuracy"])
    assert said == "Fine-tuning scores the same F1 as the baseline 'TF-IDF'."


@pytest.mark.parametrize(("greater_is_better", "verb"), [(False, "beats"), (True, "is worse than")])
def test_a_metric_of_the_recipes_own_has_the_direction_that_chose_the_checkpoint(
    greater_is_better: bool, verb: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run")
    arguments = {"metric_for_best_model": "cost", "greater_is_better": greater_is_better}
    better = wording.directions(dataclasses.replace(run.manifest, arguments=arguments))
    gaps = {"cost": gap(-3.0, -1.0)}
    statistics = Statistics(rows=400, metrics={"cost": gap(1, 2)}, beyond={"mean": gaps})
    assert f"Fine-tuning {verb} the baseline 'mean'" in wording.verdict(
        statistics, ["cost"], better
    )
    assert wording.beats_a_baseline(statistics, ["cost"], better) == (verb == "beats")
    assert better["f1"] == 1
    assert better["mse"] == -1


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(
    ("chosen", "first"),
    [("f1", "f1"), ("eval_f1", "f1"), ("accuracy", "accuracy"), ("loss", "accuracy")],
)
def test_the_metric_that_chose_the_checkpoint_decides(
    chosen: str, first: str, tmp_path: Path
) -> None:
    arguments = {"metric_for_best_model": chosen}
    run = write_run(tmp_path / "run", rows=40, arguments=arguments)
    assert run.headline == sorted(["accuracy", "f1"], key=lambda name: name != first)
    page.write(run)
    words = {"f1": "F1", "accuracy": "accuracy"}[first]
    assert (
        f"the baseline 'majority class' (difference in {words} +"
        in Page(run.path / "report.html").words
    )


@pytest.mark.parametrize(
    ("value", "low", "high", "said"),
    [
        (0.8734, 0.8612, 0.8841, "0.873, 95% CI 0.861 to 0.884"),
        (0.6667, 0.3906, 0.8619, "0.67, 95% CI 0.39 to 0.86"),
        (0.98765, 0.98701, 0.98812, "0.9877, 95% CI 0.9870 to 0.9881"),
        (1234.5, 1190.1, 1280.2, "1,234, 95% CI 1,190 to 1,280"),
        (0.5, 0.5, 0.5, "0.5000"),
    ],
)
def test_a_figure_has_the_digits_that_its_rows_support(
    value: float, low: float, high: float, said: str
) -> None:
    assert wording.interval({"value": value, "low": low, "high": high}) == said


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(
    ("temperature", "after", "said"),
    [
        (None, None, "No temperature mends these probabilities"),
        (1.0, None, "the probabilities need none"),
        (1.8, 0.02, "the model was overconfident; the temperature fitted there, 1.80, brings"),
        (0.6, 0.02, "the model was underconfident; the temperature fitted there, 0.60, brings"),
        (
            1.8,
            0.09,
            "1.80, does not help on the test rows: there the error is 0.090 with it, 0.050",
        ),
    ],
)
def test_a_temperature_is_told_by_what_it_does_to_the_test_rows(
    temperature: float | None, after: float | None, said: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", rows=40)
    found = dict(run.statistics.calibration or {})
    found |= {"temperature": temperature, "expected_calibration_error": 0.05}
    changed = found.pop("after")
    if after is not None:
        found["after"] = {**changed, "expected_calibration_error": after}
    statistics = dataclasses.replace(run.statistics, calibration=found)
    dataclasses.replace(run.metrics, statistics=statistics).write(run.path)
    page.write(run)
    words = Page(run.path / "report.html").words
    assert said in words
    assert ("predict --calibrated" in words) == ("brings" in said)


@pytest.mark.parametrize(("classes", "scale"), [(2, 3), (5, 12)])
@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_most_suspected_labels_are_wrong(noise: float, classes: int, scale: float) -> None:
    """Of a model that is right on three of four rows and was itself fitted to noisy labels."""
    generator, found = np.random.default_rng(0), []
    for _ in range(20):
        logits = scale * generator.normal(size=(2000, classes)) * generator.random((2000, 1))
        true = softmax(logits, axis=1)
        labels = (true.cumsum(axis=1) > generator.random((2000, 1))).argmax(axis=1)
        probabilities = (1 - noise) * true + noise / classes
        changed = generator.random(2000) < noise
        given = np.where(changed, (labels + 1) % classes, labels)
        suspicion = mistakes.suspicion(
            ScoredRows(given, list("abcde"[:classes]), Probabilities(probabilities))
        )
        assert suspicion is not None
        assert len(suspicion.rows) <= suspicion.wrong.low * 2000  # no more than there is noise
        found.append(changed[suspicion.rows].mean())
    assert np.mean(found) > 0.7


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
    found = mistakes.worst_slices(
        ScoredRows(labels, ["a", "b"], Probabilities(probabilities)), table, 10
    )
    assert (found[0]["name"], found[0]["rows"], found[0]["lower"]) == ("source = web", 50, True)
    assert found[0]["accuracy"]["value"] == 0.5
    assert found[1].name == "0 to 98 tokens"
    assert not any(each.name.startswith("number") for each in found)
