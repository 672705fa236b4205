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
from finetune.reporting import figure, page
from finetune.statistics import mistakes
from finetune.statistics.probabilities import Probabilities
from finetune.statistics.scored import ScoredRows
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


def test_a_report_needs_no_network_and_no_script(seen: Page) -> None:
    assert not re.search(r"<script|<link|<img|src=|@import|url\((?!#)", seen.text)
    assert "</html>" in seen.text
    addresses = set(re.findall(r"https?://[^\s\"'<]+", seen.text))
    links = {link for link in seen.links if not link.startswith("#")}
    assert all("w3.org" in each for each in addresses - links)  # name spaces, the type of SVG


def rules(page: Page) -> str:
    match = re.search(r"<style>(.*?)</style>", page.text, re.DOTALL)
    assert match is not None
    return match[1]


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


def test_plots_of_an_earlier_report_are_removed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=12)
    (run.path / "plots").mkdir()
    (run.path / "plots" / "coverage.png").touch()
    page.write(run)
    assert "coverage" not in {path.stem for path in (run.path / "plots").iterdir()}


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


def test_a_report_shows_the_worst_rows(run: Run, seen: Page) -> None:
    table = run.predictions
    wrong = table[table["label"] != table["prediction"]]
    sure = wrong[[name for name in table if name.startswith("probability of")]].max(axis=1)
    assert f"{len(wrong)} of 300 rows are wrong." in seen.words
    for index in sure.nlargest(5).index:
        assert table["text"][index] in seen.cells
    assert any(cell.startswith("source = ") for cell in seen.cells)


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


def test_a_run_that_never_ended_is_not_assessed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=40, status="failed", steps=None)
    dataclasses.replace(run.metrics, statistics=None).write(run.path)
    with pytest.raises(UserError, match=r"has not ended \(status 'failed'\)"):
        finetune.report(run)


# ---- what it is made of --------------------------------------------------------------------------


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
