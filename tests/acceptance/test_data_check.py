"""Data: `check`, the cache, and checks of the tokenizer (rows C9 to C11)."""

import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from transformers import AutoTokenizer

import finetune
from tests.acceptance.test_data import Row, text_recipe
from tests.acceptance.test_data_splits import HEAD, SPLITS, WORDS, split_rows, write
from tests.conftest import HANGS
from tests.jobs import free_port, rank_without_launcher

# ---- C9: check -----------------------------------------------------------------------------------

VOCABULARY = ["alpha", "beta", "gamma", "soup", "cold", "warm", "film", "great", "bad", "awful"]
VOCABULARY += ["lovely"]


def plain(count: int = 600) -> list[Row]:
    """Return rows without anything suspicious."""
    draw = random.Random(1)
    return [
        (f"{' '.join(draw.choices(VOCABULARY, k=12))} {number}x", draw.choice(["good", "bad"]))
        for number in range(count)
    ]


def changed(change: Callable[[int, str, str], Row]) -> list[Row]:
    return [change(number, *row) for number, row in enumerate(plain())]


def flip(label: str) -> str:
    return "good" if label == "bad" else "bad"


#: Rows, the count of the finding, words of its message, and whether it names a flag as fix.
FAULTS: dict[str, tuple[list[Row], int, list[str]]] = {
    "mojibake": (
        changed(lambda n, text, label: (text + " cafÃ©" * (n in (4, 500)), label)),
        2, ["2 of 600", "lines 6, 502"],
    ),
    "replacement_characters": (
        changed(lambda n, text, label: (text + " caf\ufffd" * (n == 9), label)),
        1, ["1 of 600", "line 11"],
    ),
    "control_characters": (
        changed(lambda n, text, label: (text + "\x07" * (n % 50 == 7), label)),
        12, ["12 of 600", "lines 9, 59, 109"],
    ),
    "no_words": (
        changed(lambda n, text, label: (f"{n} ?!" if n % 50 == 7 else text, label)),
        12, ["12 of 600", "lines 9, 59, 109"],
    ),
    "duplicates": (
        [*plain(), *plain(20)], 20, ["20 of 620", "lines 602, 603, 604"],
    ),
    "contradictions": (
        [*plain(), *((text, flip(label)) for text, label in plain(20))],
        40, ["40 of 620", "lines 2, 3,", "--keep_contradictions first"],
    ),
}  # fmt: skip


def check_rows(path: Path, model: Path, **options: Any) -> finetune.Check:
    defaults: dict[str, Any] = {"max_length": 64, "max_steps": 60, **options}
    return finetune.check("text", dataset=str(path), model=str(model), **defaults)


def warnings_of(result: finetune.Check) -> dict[str, Any]:
    return {finding.name: finding for finding in result.findings if finding.severity == "warning"}


@pytest.mark.contract("C9")
def test_nothing_is_suspicious_in_clean_rows(tmp_path: Path, bert: Path) -> None:
    """`check` exits with 0 and prints rows and classes of the splits and the training steps."""
    path = write(tmp_path / "a.csv", plain())
    result = check_rows(path, bert)
    assert (result.status, warnings_of(result), result.steps) == (0, {}, 60)
    splits = split_rows(text_recipe(path))
    for name, facts in result.splits.items():
        assert facts.rows == len(splits[name])
        assert facts.classes == Counter(label for _, label in splits[name])
    assert list(result.splits) == list(SPLITS)
    slow = check_rows(path, bert, warmup_steps=60)
    (message,) = [f.message for f in slow.findings if f.severity == "warning"]
    assert message.startswith("--warmup_steps 60: ")


@pytest.mark.contract("C9")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_data_is_found(name: str, tmp_path: Path, bert: Path) -> None:
    """The only finding has its name, rows and fix; the exit status is 3."""
    table, count, fragments = FAULTS[name]
    result = check_rows(write(tmp_path / "a.csv", table), bert)
    assert result.status == 3
    assert list(warnings_of(result)) == [name]
    finding = warnings_of(result)[name]
    assert finding.count == count
    for fragment in fragments:
        assert fragment in f"{finding.message} {finding.fix}"
    assert finding.fix
    repeated = [f for f in result.findings if re.search("duplicate|different labels", f.message)]
    assert len(repeated) == (name in ("duplicates", "contradictions"))  # reported once


@pytest.mark.contract("C9")
@pytest.mark.parametrize(
    ("name", "label", "rare", "often"),
    [("imbalance", "good", "bad", "good"), ("few_rows_of_a_class", "odd", "odd", "")],
)
def test_a_class_of_most_or_of_few_rows_is_found(
    name: str, label: str, rare: str, often: str, tmp_path: Path, bert: Path
) -> None:
    """A class with more than 90% of the training rows, or fewer than 10 of them."""
    step = 25 if often else 100
    table = changed(lambda n, text, label: (text, rare if n % step == 0 else often or label))
    path = write(tmp_path / "a.csv", table)
    by_name = warnings_of(check_rows(path, bert))
    count = Counter(label for _, label in split_rows(text_recipe(path))["train"])[label]
    assert list(by_name) == [name]
    assert by_name[name].count == count
    assert f"'{label}'" in by_name[name].message
    assert (f"{count / 432:.1%}" if often else f"({count})") in by_name[name].message


@pytest.mark.contract("C9")
def test_faults_of_splits_are_found(tmp_path: Path, bert: Path) -> None:
    """Rows in two splits and classes without a test row are found."""
    table = plain()
    train = [*table[:500], *((f"{text} odd", "odd") for text, _ in table[:50])]
    test = [(text, "good") for text, label in table[500:] if label == "good"]
    validation = [*test[:30], *((f"{text} too", label) for text, label in table[:50]), *table[:10]]
    parts = {"train": train, "validation": validation, "test": [*test, *table[10:40]]}
    for name, part in parts.items():
        write(tmp_path / f"{name}.csv", part)
    findings = check_rows(tmp_path, bert).findings
    by_name = {finding.name: finding for finding in findings}
    overlaps = [finding.message for finding in findings if finding.name == "overlap"]
    assert len(overlaps) == 3
    for fragments in (
        ("30 of 550 train rows", "test data", "lines 12, 13, 14, 15, 16"),
        ("10 of 550 train rows", "validation data", "lines 2, 3, 4, 5, 6"),
        ("30 of 90 validation rows", "test data", "lines 2, 3, 4, 5, 6"),
    ):
        assert [all(part in message for part in fragments) for message in overlaps].count(True) == 1
    assert "'odd'" in by_name["not_in_test"].message


@pytest.mark.contract("C9", "G5")
def test_a_check_does_not_load_the_model(tmp_path: Path, pretrained_bert: Path) -> None:
    """Its weights may be a download. A training of so few rows loads it to choose its defaults."""
    model = shutil.copytree(pretrained_bert, tmp_path / "model")
    (model / "model.safetensors").write_bytes(b"cut off")
    path = write(tmp_path / "a.csv", plain())
    result = finetune.check("text", dataset=str(path), model=str(model))
    rows = result.splits["train"].rows
    steps = math.ceil((100 + 5 * 2) * 32 / rows) * (rows // 32)  # of the table of defaults
    assert (result.status, result.steps) == (0, steps)


@pytest.mark.contract("C9")
def test_what_training_refuses_is_an_error(tmp_path: Path, bert: Path) -> None:
    """All errors come at once with status 2; without readable rows there are no splits."""
    table = [(text, "" if number == 7 else label) for number, (text, label) in enumerate(plain())]
    result = check_rows(write(tmp_path / "a.csv", table), bert, metrics="f2", learning_rat=1)
    messages = [finding.message for finding in result.findings if finding.severity == "error"]
    assert (result.status, result.splits) == (2, {})
    for fragment in ("line 9", "--metrics", "learning_rat"):
        assert sum(fragment in message for message in messages) == 1


@pytest.mark.contract("C9")
@pytest.mark.parametrize("name", ["clean", "mojibake", "wrong"])
def test_text_page_and_json_of_check_agree(
    name: str, cli: Callable[..., Any], tmp_path: Path, bert: Path
) -> None:
    """The exit status is that of the worst finding, and no file is written."""
    path = write(tmp_path / "a.csv", FAULTS[name][0] if name in FAULTS else plain())
    flags = ["--dataset", path, "--model", bert, "--max_length", "64", "--max_steps", "60"]
    flags += ["--text_column", "txt"] if name == "wrong" else []
    page, document = cli("check", "text", *flags), cli("check", "text", *flags, "--json")
    status = {"clean": 0, "mojibake": 3, "wrong": 2}[name]
    assert (page.status, document.status) == (status, status)
    facts = json.loads(document.stdout)
    assert facts["status"] == status
    worst = {"clean": "info", "mojibake": "warning", "wrong": "error"}[name]
    assert facts["findings"][0]["severity"] == worst
    words = " ".join(page.stdout.split())
    for finding in facts["findings"]:
        assert " ".join(finding["message"].split()) in words
    if name == "mojibake":
        assert [row["row"] for row in facts["findings"][0]["suspects"]] == [4, 500]
        assert facts["splits"]["train"]["rows"] == 432
    assert list((tmp_path / "cwd").iterdir()) == []


@pytest.mark.contract("C9")
def test_a_terminal_may_lack_letters_of_the_labels(
    cli: Callable[..., Any], tmp_path: Path, bert: Path
) -> None:
    """They are printed as escapes."""
    path = write(tmp_path / "a.csv", changed(lambda n, text, label: (text, f"{label} \u20ac")))
    flags = ["--dataset", path, "--model", bert, "--max_length", "64", "--max_steps", "60"]
    page = cli("check", "text", *flags, encoding="latin-1")
    assert page.status == 0, page.stderr
    assert "good \\u20ac" in page.stdout


FRENCH = "Le film est vraiment magnifique et je le recommande à tout le monde sans hésiter"
ENGLISH = "The film is really wonderful and I recommend it to everybody whom I know"
MOODS = {label: [f"{label}ish{number}" for number in range(40)] for label in ("good", "bad")}


def moody(count: int, seed: int = 1) -> list[Row]:
    """Return texts of 25 words, four of which usually depend on the label."""
    draw, table = random.Random(seed), []
    for _ in range(count):
        label = draw.choice(["good", "bad"])
        words = draw.choices(WORDS, k=22)
        for _ in range(4):
            mood = label if draw.random() < 0.8 else draw.choice(["good", "bad"])
            words.insert(draw.randrange(len(words)), draw.choice(MOODS[mood]))
        table.append((" ".join(words), label))
    return table


@pytest.mark.contract("C9")
def test_deep_finds_leaks_of_labels_and_rows(tmp_path: Path, bert: Path) -> None:
    """`--deep` finds near duplicates in and across splits, revealing words and columns."""
    table, draw = moody(900), random.Random(3)
    marked = [
        (f"{text} [ref:{number}]" if label == "bad" and number % 5 else text, label)
        for number, (text, label) in enumerate(table)
    ]
    train = [*marked[:600], *((f"{text} again", label) for text, label in marked[:20])]
    test = [*marked[600:], *((f"well {text}", label) for text, label in marked[100:150])]
    for name, part in (("train", train), ("test", test)):
        columns = [(*row, draw.choice("45" if row[1] == "good" else "123")) for row in part]
        write(tmp_path / f"{name}.csv", columns, (*HEAD, "stars"))
    result = check_rows(tmp_path, bert, deep=True)
    by_name = {finding.name: finding for finding in result.findings}
    assert result.status == 3
    near, overlap = by_name["near_duplicates"], by_name["near_overlap"]
    assert (near.severity, near.count, near.examined) == ("warning", 20, 620)
    assert "lines 602, 603, 604, 605, 606" in near.message
    assert "--drop_duplicates near" in near.fix
    assert (overlap.severity, overlap.count) == ("warning", 50)
    assert "--drop_overlap near" in overlap.fix
    assert "'bad'" in by_name["revealing_words"].message
    assert by_name["revealing_words"].severity == "warning"
    assert "'stars'" in by_name["revealing_column"].message
    splits = check_rows(tmp_path, bert, drop_overlap="near").splits
    assert {name: split.rows for name, split in splits.items()} == {
        "train": 513, "validation": 57, "test": 350  # 50 of 620 training rows are dropped
    }  # fmt: skip


@pytest.mark.contract("C9")
def test_deep_finds_wrong_labels_and_other_languages(tmp_path: Path, bert: Path) -> None:
    """Most suspected labels are flipped ones, and the right label is suggested."""
    table, flipped = moody(3000), set(random.Random(4).sample(range(3000), 240))
    noisy = [
        (text, flip(label) if n in flipped else label) for n, (text, label) in enumerate(table)
    ]
    by_name = {
        f.name: f for f in check_rows(write(tmp_path / "a.csv", noisy), bert, deep=True).findings
    }
    suspected = by_name["suspected_labels"]
    right = [row.row in flipped for row in suspected.suspects]
    assert (suspected.severity, len(right)) == ("warning", suspected.count)
    assert len(right) > 10
    assert sum(right) >= 0.9 * len(right)
    suspects = [row for row in suspected.suspects if row.row in flipped]
    assert all(row.suggested == table[row.row][1] for row in suspects)
    mixed = [
        (f"{FRENCH if n % 10 == 0 else ENGLISH} {n} {n * n}", "ab"[n // 10 % 2]) for n in range(400)
    ]
    by_name = {
        f.name: f for f in check_rows(write(tmp_path / "b.csv", mixed), bert, deep=True).findings
    }
    languages = by_name["languages"]
    assert languages.severity == "warning"
    assert "'fr'" in languages.message
    assert {row.row % 10 for row in languages.suspects} == {0}
    assert len(languages.suspects) == languages.count >= 25


# ---- C10: tokenized once -------------------------------------------------------------------------


def cached_files() -> dict[str, tuple[int, int]]:
    """Return the files of the cache that are not empty, with inode and modification time."""
    paths = Path(os.environ["HF_HOME"]).rglob("*")
    files = [path for path in paths if path.is_file() and path.stat().st_size]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def tokenized_rows(path: Path, model: Path, **options: Any) -> dict[str, list[list[int]]]:
    recipe = text_recipe(path, model=str(model), **{"max_length": 21, **options})
    return {name: split["input_ids"][:] for name, split in recipe.prepared.items()}


@pytest.mark.contract("C10")
def test_texts_are_tokenized_as_the_tokenizer_does_and_only_once(
    tmp_path: Path, bert: Path
) -> None:
    """A second recipe, also with other training options, writes no file."""
    path = write(
        tmp_path / "a.csv", [(f"{text} {tmp_path.name}", label) for text, label in plain(120)]
    )
    first = tokenized_rows(path, bert, preprocessing_num_workers=1)
    tokenizer = AutoTokenizer.from_pretrained(bert)
    for name, split in split_rows(text_recipe(path)).items():
        texts = [text for text, _ in split]
        assert first[name] == tokenizer(texts, truncation=True, max_length=21)["input_ids"]
    files = cached_files()
    again = tokenized_rows(path, bert, preprocessing_num_workers=2, class_weights="balanced")
    assert again == first
    assert cached_files() == files
    other = tokenized_rows(path, bert, max_length=9)
    assert max(map(len, other["train"])) == 9
    assert set(cached_files()) > set(files)


@pytest.mark.contract("C1", "C3", "C10")
@pytest.mark.parametrize("way", ["rewritten", "replaced", "touched"])
def test_a_file_that_changed_is_read_again(way: str, tmp_path: Path, bert: Path) -> None:
    """That includes a file of the same size and modification time, but not a touched one."""
    path = write(tmp_path / "a.csv", plain(60))
    os.utime(path, (0, 0))
    first = tokenized_rows(path, bert)
    renamed = [(text.replace("alpha", "gamma"), label) for text, label in plain(60)]
    if way == "touched":
        path.touch()
        files = cached_files()
        assert tokenized_rows(path, bert) == first
        after = cached_files()
        assert after.items() >= files.items()
        assert {Path(name).resolve() for name in after} == {Path(name).resolve() for name in files}
        return
    target = path if way == "rewritten" else tmp_path / "b.csv"
    write(target, renamed)
    os.utime(target, (0, 0))
    target.replace(path)
    texts = sorted(text for split in split_rows(text_recipe(path)).values() for text, _ in split)
    assert texts == sorted(text for text, _ in renamed)
    assert tokenized_rows(path, bert) != first


@pytest.mark.contract("C3", "C10")
def test_a_copy_of_rows_in_python_that_is_cut_off_is_not_read() -> None:
    """Arrow itself reads a stream without its last batches."""
    rows = [{"text": f"text {n} of a list", "label": "ab"[n % 2]} for n in range(20_000)]
    recipe = text_recipe(rows)
    name = recipe.dataset.removeprefix("memory:")
    (copy,) = Path(os.environ["HF_HOME"]).rglob(f"{name}/train.arrow")
    with pa.ipc.open_stream(copy.read_bytes()) as stream:
        batch = stream.read_next_batch()
    assert len(batch) < len(rows)
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, batch.schema).write_batch(batch)
    copy.write_bytes(sink.getvalue())
    with pytest.raises(finetune.UserError, match="pass the rows again"):
        recipe.load()


@pytest.mark.contract("C10")
def test_processes_that_start_at_once_read_the_same_rows(
    command: Any, tmp_path: Path, bert: Path
) -> None:
    """Rank 0 prepares for both; a later start in one process writes no file of rows."""
    path = write(tmp_path / "a.csv", [(f"{text} at once", label) for text, label in plain(90)])
    flags = ["--dataset", path, "--model", bert, "--max_length", "23", "--dry_run", "--text_column"]
    command("text", *flags, "text", "--label_column", "label", launcher="torchrun").succeeded()
    files = cached_files()
    expected = tokenized_rows(path, bert, max_length=23)
    assert sum(map(len, expected.values())) == 90
    assert cached_files() == files


@pytest.mark.contract("C10", "D4")
@pytest.mark.parametrize("is_in_group", [False, True])
def test_many_rows_are_tokenized_in_order_by_several_processes(
    is_in_group: bool, tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process group too, with the threads of gloo, whom no worker needs."""
    table = [(f"w{n} {'great ' * (n % 7)} {tmp_path.name}", "ab"[n % 2]) for n in range(8_000)]
    path = write(tmp_path / "a.csv", table)
    forks: list[str] = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append("forked") or fork())
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    recipe = text_recipe(path, model=str(bert), max_length=21, preprocessing_num_workers=2)
    assert recipe.splits
    if is_in_group:
        store = f"file://{tmp_path}/store"
        torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        token_ids = recipe.prepared["train"]["input_ids"][:]
    finally:
        if is_in_group:
            torch.distributed.destroy_process_group()
    assert len(forks) >= 2
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    texts = list(recipe.splits["train"]["text"])
    tokenizer = AutoTokenizer.from_pretrained(bert)
    assert token_ids == tokenizer(texts, truncation=True, max_length=21)["input_ids"]


@pytest.mark.contract("C10", "D4")
def test_machines_that_share_no_cache_tokenize_for_themselves(tmp_path: Path, bert: Path) -> None:
    """Their data are compared afterwards, see the refusals of several machines."""
    path, port = write(tmp_path / "a.csv", plain(90)), free_port()
    words = [sys.executable, "-m", "finetune", "text", "--dataset", path, "--model", bert]
    words += ["--dry_run", "--text_column", "text", "--label_column", "label"]
    jobs = []
    for rank in range(2):
        home = {"HF_HOME": str(tmp_path / f"home{rank}"), "GROUP_WORLD_SIZE": "2"}
        environment = {**os.environ, **rank_without_launcher(rank, 2, port), **home}
        pipes: Any = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        jobs.append(subprocess.Popen(list(map(str, words)), env=environment, **pipes))
    outputs = [job.communicate(timeout=HANGS)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    for rank in range(2):
        assert any((tmp_path / f"home{rank}" / "datasets" / "finetune-tokenized").iterdir())


# ---- C11: what the tokenizer makes of texts ------------------------------------------------------


@pytest.mark.contract("C11")
@pytest.mark.parametrize(("share", "severity"), [(0.0, "info"), (0.2, "info"), (0.3, "warning")])
def test_lengths_in_tokens_are_those_of_the_tokenizer(
    share: float, severity: str, tmp_path: Path, bert: Path
) -> None:
    """Median, the longest, and the share that is cut, a warning from 25% on."""
    table = [(f"{'great ' * (1 + n % 40)}{n}", "ab"[n // 40 % 2]) for n in range(400)]
    path = write(tmp_path / "a.csv", table)
    tokenizer = AutoTokenizer.from_pretrained(bert)
    texts = text_recipe(path).splits["train"]["text"][:]
    lengths = sorted(len(ids) for ids in tokenizer(texts)["input_ids"])
    limit = lengths[round((1 - share) * (len(lengths) - 1))]
    cut = sum(length > limit for length in lengths)
    assert abs(cut / len(lengths) - share) < 0.04
    result = check_rows(path, bert, max_length=limit)
    (finding,) = [finding for finding in result.findings if finding.name == "lengths"]
    for fragment in (
        str(statistics.median_low(lengths)),
        str(lengths[-1]),
        f"--max_length {limit}",
    ):
        assert re.search(rf"(?<!\d){fragment}(?!\d)", finding.message)
    assert (finding.count, finding.severity) == (cut, severity)


def amharic(count: int = 160) -> list[Row]:
    """Return distinct texts in a script that the tokenizer of the tests does not know."""
    draw, texts = random.Random(0), dict[str, str]()
    words = ["ጥሩ", "ደስ", "ግሩም", "ውብ", "ድንቅ", "መጥፎ", "ክፉ", "አሰልቺ", "ደካማ", "ፊልም", "ታሪክ"]
    while len(texts) < count:
        texts.setdefault(" ".join(draw.choices(words, k=3 + len(texts) % 4)), "ab"[len(texts) % 2])
    return list(texts.items())


@pytest.mark.contract("C11")
@pytest.mark.parametrize(("unknown", "status"), [(160, 2), (20, 3)])
def test_texts_that_the_tokenizer_does_not_know_are_found(
    unknown: int, status: int, tmp_path: Path, bert: Path
) -> None:
    """An error where most texts become equal, a warning from 5% unknown tokens on."""
    path = write(tmp_path / "a.csv", [*amharic()[:unknown], *plain(200 if unknown < 99 else 0)])
    result = check_rows(path, bert, max_steps=200)
    assert result.status == status
    (message,) = (finding.message for finding in result.findings if "unknown" in finding.message)
    assert str(bert) in message
    if status == 2:
        options: Any = dict(dataset=str(path), model=str(bert), output_dir=str(tmp_path / "run"))
        with pytest.raises(finetune.UserError, match="multilingual"):
            finetune.train("text", **options, max_steps=1)
        assert not (tmp_path / "run").exists()


@pytest.mark.contract("C11")
def test_a_model_without_tokenizer_files_is_refused(tmp_path: Path, bert: Path) -> None:
    """The message names the missing files."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model").mkdir(exist_ok=True)
        shutil.copy(bert / name, tmp_path / "model" / name)
    result = check_rows(write(tmp_path / "a.csv", plain(100)), tmp_path / "model")
    assert result.status == 2
    (message,) = (finding.message for finding in result.findings if "tokenizer" in finding.message)
    assert {"tokenizer.json", "vocab.txt"} <= set(re.findall(r"[\w.]+\w", message))
    assert "save_pretrained" in message
