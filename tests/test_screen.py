"""What is printed: the start block, a line for each log, and how far long work is.

Several GPUs are told, not had, on this machine.
"""

import sys
from pathlib import Path

import datasets
import pytest

from finetune import cli
from finetune.cli import console
from finetune.pipeline.events import Advanced, Event, Logged, Noted, Predicted, Seldom, telling
from finetune.runtime import activity, distributed
from finetune.runtime.terminal import visible
from finetune.training.arguments import FinetuneArguments


@pytest.fixture
def words(reviews: Path, tiny_model: str) -> list[str]:
    """A dry run, which prints the start block and trains nothing."""
    return ["yelp", "--dataset", str(reviews), "--model", tiny_model, "--dry_run"]


def facts(printed: str) -> dict[str, str]:
    """The lines of a start block by their first word; what is folded is one line."""
    found: dict[str, str] = {}
    name = ""
    for line in printed.splitlines()[1:]:
        if not line.startswith("  "):
            break
        name = name if line.startswith("   ") else line.split()[0]
        found[name] = f"{found.get(name, '')} {line.strip().removeprefix(name).strip()}".strip()
    return found


def test_several_gpus_and_no_launcher_are_told_how_to_be_faster(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(distributed, "devices_in_training", lambda use_cpu: 4)
    assert cli.main(words) == 0
    found = facts(capsys.readouterr().out)
    assert "DataParallel on 4 GPUs, 1 process" in found["device"]
    assert "faster: torchrun --nproc_per_node=4 -m finetune yelp --dataset" in found["device"]
    assert "on one GPU only: CUDA_VISIBLE_DEVICES=0" in found["device"]
    assert found["batch"] == "8 per device x 1 accumulation x 4 GPUs = 32 rows per step"


def test_one_cpu_process_is_told_nothing_of_gpus(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 0
    found = facts(capsys.readouterr().out)
    assert found["device"].startswith("cpu, one device, 1 process, ")
    assert found["device"].endswith(" each")
    assert found["batch"] == "32 per device x 1 accumulation x 1 process = 32 rows per step"


@pytest.mark.parametrize(
    ("terminal", "rank", "bar"), [(True, 0, True), (False, 0, False), (True, 1, False)]
)
def test_a_progress_bar_where_somebody_watches(
    terminal: bool, rank: int, bar: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setattr(distributed, "ranks", lambda: distributed.Ranks(rank=rank))
    assert FinetuneArguments(output_dir=str(tmp_path)).disable_tqdm is not bar


def test_the_title_tells_nothing_of_the_recipes_own_data_where_the_data_is_another(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, model = Path(words[2]), words[4]
    monkeypatch.chdir(data.parent)
    (data.parent / "mine.py").write_text(
        '"""Mine."""\nfrom finetune import TextRecipe\n\n\n'
        "class Mine(TextRecipe):\n"
        f'    """Short reviews."""\n\n    dataset: str = "{data.name}"\n'
    )
    assert cli.main(words) == 0
    assert capsys.readouterr().out.splitlines()[0] == "yelp"
    assert cli.main(["mine.py", "--model", model, "--dry_run"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "mine.py: Short reviews."  # as typed


def test_a_verdict_is_folded_at_words_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = "\nFine-tuning beats the baseline 'TF-IDF + logistic regression' (difference in F1)."
    monkeypatch.setenv("COLUMNS", "60")
    console.sentence(verdict)
    assert capsys.readouterr().out == f"{verdict}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.sentence(verdict)
    said = capsys.readouterr().out
    assert said.split() == verdict.split()
    assert [len(line) <= 60 for line in said.splitlines()] == [True] * 3


def test_a_warm_up_beyond_the_last_step_is_told(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for steps, told in (("17", False), ("18", True), ("0.5", False)):
        more = ["--warmup_steps", steps, "--max_steps", "18"]
        assert cli.main([*words, *more]) == 0
        found = facts(capsys.readouterr().out)["data"]
        assert (f"--warmup_steps {steps}: the run has 18 steps, so the" in found) is told
    assert cli.main([*words, *more, "--warmup_steps", "99", "--lr_scheduler_type", "constant"]) == 0
    found = facts(capsys.readouterr().out)
    assert "never reaches" not in found["data"]
    assert "has no warm-up" in found["note"]


def test_a_flag_without_effect_stands_in_the_start_block(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, "--eval_steps", "7"]) == 0
    found = facts(capsys.readouterr().out)
    assert found["note"] == "--eval_steps has no effect: needs --eval_strategy steps"


# ---- a line for each log -------------------------------------------------------------------------


def test_a_logging_step_is_one_readable_line() -> None:
    values = {
        "loss": 0.342149,
        "grad_norm": 1.2345,
        "learning_rate": 1.83e-05,
        "epoch": 0.5,
        "rows_per_second": 1152.4,
        "memory_mib": 812.3,
    }
    line = "step  20/480  epoch 0.50  loss 0.3421  grad_norm 1.23  lr 1.83e-05  1,152 samples/s"
    assert str(Logged(20, 480, values)) == line


def test_an_evaluation_is_one_readable_line() -> None:
    values = {
        "eval_loss": 0.41,
        "eval_accuracy": 0.83124,
        "eval_f1": 0.831,
        "eval_runtime": 3.2,
        "eval_samples_per_second": 99.0,
        "eval_steps_per_second": 9.0,
        "epoch": 4.0,
    }
    line = "step 480/480  epoch 4.00  validation  loss 0.4100  accuracy 0.8312  f1 0.8310"
    assert str(Logged(480, 480, values)) == line


@pytest.mark.parametrize("terminal", [True, False])
def test_no_dictionary_of_the_library_is_printed(
    terminal: bool,
    words: list[str],
    without_report: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Neither by its progress bar nor without one."""
    bars = datasets.are_progress_bars_disabled()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    more = ["--max_steps", "2", "--logging_steps", "1", "--output_dir", str(tmp_path / "run")]
    assert cli.main([*words[:-1], *more]) == 0
    said = capfd.readouterr()
    (datasets.disable_progress_bars if bars else datasets.enable_progress_bars)()
    assert "{'" not in said.out + said.err
    lines = [line for line in said.out.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["1/2", "2/2", "2/2"]
    assert "  loss " in lines[0]
    assert "  validation  loss " in lines[-1]
    assert ("2/2 [" in said.err) is terminal  # the bar
    *_, last = said.out.splitlines()
    assert last == f"saved to {tmp_path / 'run'}; report: {tmp_path / 'run'}"


# ---- how far long work is ------------------------------------------------------------------------


def test_work_is_told_when_nothing_was_told_for_a_while() -> None:
    told: list[Event] = []
    now = 0.0
    tell = Seldom(told.append, seconds=30, clock=lambda: now)
    for second in range(101):
        now = float(second)
        if second == 50:
            tell(Noted("between"))
        tell(Advanced("training", second, 100, "steps"))
    assert [event.done if isinstance(event, Advanced) else 50 for event in told] == [30, 50, 80]


def test_only_events_of_the_kind_are_left_out() -> None:
    told: list[Event] = []
    tell = Seldom(told.append, Predicted, clock=lambda: 0.0)
    tell(Advanced("tokenizing", 1, 2, "rows"))
    tell(Predicted(1, 2, 1, counted=True))
    assert [type(event) for event in told] == [Advanced]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Advanced("training", 48, 480, "steps"), "training: 48 of 480 steps (10%)"),
        (
            Advanced("tokenizing train", 120_000, 650_000, "rows"),
            "tokenizing train: 120,000 of 650,000 rows (18%)",
        ),
        (
            Advanced("reading a.csv", 52_000_000, 104_000_000, "bytes"),
            "reading a.csv: 52 of 104 MB (50%)",
        ),
        (Advanced("reading a.parquet", 4096, None, "rows"), "reading a.parquet: 4,096 rows"),
    ],
)
def test_work_under_way_is_one_line(event: Advanced, line: str) -> None:
    assert str(event) == line


def test_reading_hashing_tokenizing_training_and_evaluating_are_told(
    words: list[str], tmp_path: Path, without_report: None
) -> None:
    """To whoever listens; each piece of work to its end."""
    heard: dict[str, tuple[int, int | None]] = {}

    def listen(work: str, done: int, total: int | None, unit: str) -> None:
        heard[f"{work} {unit}"] = done, total

    from recipes.yelp import Yelp

    options = dict(zip((word[2:] for word in words[1:5:2]), words[2:6:2], strict=True))
    with activity.listening(listen):
        recipe = Yelp(max_length=64, **options)
        trainer = recipe.trainer(max_steps=2, output_dir=str(tmp_path / "run"), use_cpu=True)
        trainer.train()
        trainer.predict(recipe.prepared["test"])
    size = Path(options["dataset"]).stat().st_size
    assert heard["converting reviews.csv bytes"] == (size, size)
    assert heard["tokenizing train rows"] == (144, 144)
    assert heard["training steps"] == (2, 2)
    assert heard["evaluating batches"] == (2, 2)
    assert "hashing rows" in heard


def test_other_ranks_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    monkeypatch.setattr(distributed, "ranks", lambda: distributed.Ranks(rank=1, world_size=2))
    with telling(told.append) as tell:
        tell(Noted("a word"))
        activity.advance("training", 1, 2)
    assert told == []


# ---- what a terminal must not obey ---------------------------------------------------------------


def test_escapes_are_shown() -> None:
    assert visible("plain") == "plain"
    assert visible("\x1b[31mred\x1b[0m\x07") == r"\x1b[31mred\x1b[0m\x07"
    assert visible("a\u202eb\x9bc\x7f") == r"a\u202eb\x9bc\x7f"
    assert visible("Größe 大 नी\u200cल\tx\ny") == "Größe 大 नी\u200cल\tx\ny"
    assert visible("a\rb\nc", keep="") == r"a\rb\nc"


def test_tables_and_blocks_show_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(["", "f1"], [["\x1b[2Jgood", "0.5"], ["bad\nbad", "0.5"]])
    console.block("\x1b]0;title\x07", {"classes": "2: \x1b[8mhidden"})
    console.tell("\x1b[1mnote")
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert r"  \x1b[2Jgood  0.5" in said.out
    assert r"  bad\nbad     0.5" in said.out


def test_escapes_in_labels_and_columns_are_shown_not_obeyed(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.csv"
    rows = (f"place {n} was {n % 2},\x1b[3{n % 2}mclass{n % 2}\n" for n in range(90))
    data.write_text("text,label\n" + "".join(rows))
    assert cli.main([words[0], "--dataset", str(data), *words[3:]]) == 0
    said = capsys.readouterr()
    assert r"\x1b[31mclass1" in said.out
    assert cli.main([words[0], "--dataset", str(data), *words[3:], "--text_column", "\x1b[5m"]) == 2
    said = capsys.readouterr()
    assert r"no column '\x1b[5m'" in said.err
    assert "\x1b" not in said.out + said.err
