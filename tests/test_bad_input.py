"""Each mistake gets one message and status 2, before any model is loaded, and leaves no run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from finetune import cli
from tests.conftest import Command

ROWS = [f"place {index} was {('bad', 'good')[index % 2]}" for index in range(60)]
GOOD = "text,label\n" + "".join(f"{row},{row.split()[-1]}\n" for row in ROWS)
MODEL = ["--model", "no-model-is-loaded"]


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    def make(cwd: Path) -> None:
        path = cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return make


def both(*makers: Callable[[Path], None]) -> Callable[[Path], None]:
    def make(cwd: Path) -> None:
        for each in makers:
            each(cwd)

    return make


CASES = {
    "unknown recipe": (
        None,
        ["ylep"],
        ["unknown recipe or subcommand 'ylep'", "did you mean 'yelp'"],
    ),
    "missing file": (
        write("reviews.csv", GOOD),
        ["yelp", "--dataset", "review.csv", *MODEL],
        ["no such file or directory: review.csv", "did you mean 'reviews.csv'"],
    ),
    "wrong column": (
        write("data.csv", GOOD),
        ["yelp", "--dataset", "data.csv", "--label_column", "lable", *MODEL],
        ["--label_column: no column 'lable'", "did you mean 'label'", "available: text, label"],
    ),
    "wrong column of a recipe that filters": (
        write("data.csv", GOOD),
        ["sentiment", "--dataset", "data.csv", *MODEL],
        ["no column 'review'", "no column 'division'", "available: text, label"],
    ),
    "no row of the classes": (
        write("data.csv", GOOD.replace("text,label", "review,division")),
        ["sentiment", "--dataset", "data.csv", *MODEL],
        ["column 'division' has neither 'positive' nor 'negative' (found: 'bad', 'good'); to "],
    ),
    "data of another kind": (
        write("data.csv", GOOD),
        ["mnist", "--dataset", "data.csv"],
        ["no column 'image' in the train data (available: text, label)"],
    ),
    "one column for both": (
        write("data.csv", GOOD),
        ["yelp", "--dataset", "data.csv", "--text_column", "label", *MODEL],
        ["--label_column: 'label' is named by --text_column already"],
    ),
    "no epochs": (
        None,
        ["yelp", "--embedded", "--num_train_epochs", "0"],
        ["expected more than 0"],
    ),
    "negative rate": (
        None,
        ["yelp", "--embedded", "--learning_rate=-1"],
        ["--learning_rate -1.0: expected 0 or more"],
    ),
    "sharding without accelerators": (
        None,
        ["yelp", "--embedded", "--fsdp", "full_shard", "--use_cpu"],
        ["--fsdp: the library shards on accelerators only"],
    ),
    "a loss that hangs on the launch": (
        None,
        ["yelp", "--embedded", "--average_tokens_across_devices", "false"],
        ["--average_tokens_across_devices false: the loss would depend on the number"],
    ),
    "a tracker that is not installed": (
        None,
        ["yelp", "--embedded", "--report_to", "wandb"],
        ["--report_to wandb: not installed; pip install wandb"],
    ),
    "unknown metric": (
        None,
        ["yelp", "--embedded", "--metric_for_best_model", "f2"],
        ["--metric_for_best_model: the recipe computes no 'f2'", "did you mean 'f1'"],
    ),
    "directory below a file": (
        write("data.csv", GOOD),
        ["yelp", "--dataset", "data.csv", "--output_dir", "data.csv/runs", *MODEL],
        ["--output_dir data.csv/runs: ", "data.csv is a file"],
    ),
    "no rows": (
        write("data.csv", "text,label\n"),
        ["yelp", "--dataset", "data.csv", *MODEL],
        ["data.csv holds no rows"],
    ),
    "no file of text": (
        write("data.csv", bytes(range(256)) * 20),
        ["text", "--dataset", "data.csv", *MODEL],
        ["data.csv is no text: it has bytes that no encoding of text has"],
    ),
    "one class left": (
        write(
            "a.csv",
            "text,label\n"
            + "".join(f"{row},x\n{row},x\n" for row in ROWS)
            + "".join(f"{row},y\n" for row in ROWS[30:]),
        ),
        ["text", "--dataset", "a.csv", *MODEL],
        ["the rows left for training have one class only in 'label' ('x')", "contradict"],
    ),
    "one group": (
        write(
            "data.csv",
            GOOD.replace("label", "label,by")
            .replace("bad\n", "bad,x\n")
            .replace("good\n", "good,x\n"),
        ),
        ["text", "--dataset", "data.csv", "--group_column", "by", *MODEL],
        ["--group_column by: ", "rows cannot be split off for test", "1 group"],
    ),
    "one class": (
        write("data.csv", GOOD.replace(",bad", ",good")),
        ["yelp", "--dataset", "data.csv", *MODEL],
        ["one class only in 'label' ('good')", "expected two or more"],
    ),
    "missing values": (
        write("data.csv", GOOD + ",good\n,bad\n"),
        ["yelp", "--dataset", "data.csv", *MODEL],
        ["2 of 62 train rows without a text in 'text': lines 62, 63", "--drop_invalid"],
    ),
    "no text": (
        write("data.csv", "text,label\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(40))),
        ["yelp", "--dataset", "data.csv", *MODEL],
        ["--text_column: the column 'text' of the train data holds numbers only, such as '0'"],
    ),
    "several labels": (
        write("data.csv", GOOD.replace(",bad", ",\"['bad', 'dull']\"")),
        ["yelp", "--dataset", "data.csv", *MODEL],
        [
            "holds lists, such as \"['bad', 'dull']\"",
            "several labels per row are --task multi_label",
        ],
    ),
    "several labels without a separator": (
        write("data.csv", GOOD.replace(",bad", ",bad;dull")),
        ["text", "--dataset", "data.csv", *MODEL],
        ["--task: 'label' holds 'bad;dull': line 2", "add --label_separator ';'"],
    ),
    "a label of its own in each row": (
        write("data.csv", "text,label\n" + "".join(f"{row},{row[6:8]}x\n" for row in ROWS)),
        ["text", "--dataset", "data.csv", *MODEL],
        ["one of 60 different labels in 60 rows: line 2; is --label_column the right column?"],
    ),
    "a stray number in columns of 0 and 1": (
        write(
            "data.csv",
            "text,a,b\n"
            + "".join(f"{row},1,{n % 2}\n" for n, row in enumerate(ROWS))
            + "the last,0,-1\n",
        ),
        ["text", "--dataset", "data.csv", "--label_columns", "a,b", *MODEL],
        ["--task: 'b' holds '-1'", "line 62", "add --task multi_label"],
    ),
    "words as numbers": (
        write("data.csv", GOOD),
        ["text", "--dataset", "data.csv", "--task", "regression", *MODEL],
        ["60 of 60 train rows with a value that is not a finite number in 'label'"],
    ),
    "label unknown in training": (
        both(
            write("data/train.csv", GOOD),
            write("data/test.csv", "text,label\nplace 99 was odd,odd\nplace 98 was bad,bad\n"),
        ),
        ["yelp", "--dataset", "data", *MODEL],
        ["the test data has labels in 'label' that the training data does not have: 'odd'"],
    ),
    "train_samples 0": (
        None,
        ["yelp", "--embedded", "--train_samples", "0"],
        ["--train_samples 0: expected a number of rows"],
    ),
    "unknown key": (
        write("options.yaml", "learnin_rate: 1e-4\n"),
        ["yelp", "--embedded", "--config", "options.yaml"],
        ["options.yaml: unknown option 'learnin_rate'", "did you mean 'learning_rate'"],
    ),
    "wrong type": (
        None,
        ["yelp", "--embedded", "--num_train_epochs", "many"],
        ["--num_train_epochs: expected a number, found 'many'"],
    ),
    "wrong type in a file": (
        write("options.yaml", "max_length: long\n"),
        ["yelp", "--embedded", "--config", "options.yaml"],
        ["options.yaml: 'max_length': expected a whole number, found 'long'"],
    ),
    "fewer rows than a step": (
        write("data.csv", GOOD),
        ["yelp", "--dataset", "data.csv", "--global_batch_size", "64", *MODEL],
        ["43 training rows are fewer than one global batch of 64"],
    ),
    "unknown model": (
        write("data.csv", GOOD),
        ["yelp", "--dataset", "data.csv", "--model", "./nothing"],
        ["--model ./nothing: expected a directory that holds a config.json"],
    ),
    "foreign directory": (
        both(write("data.csv", GOOD), write("mine/letter.txt", "dear")),
        ["yelp", "--dataset", "data.csv", "--output_dir", "mine", *MODEL],
        ["--output_dir mine holds files but no run"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_told_and_leaves_no_run(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, words, expected = CASES[case]
    if make:
        make(tmp_path)
    monkeypatch.chdir(tmp_path)
    # the Hub and the positions of a model have tests of their own
    monkeypatch.setattr("finetune.runtime.hub.missing", lambda wanted: [])
    monkeypatch.setattr("finetune.TextRecipe._fit_model", lambda recipe: None)
    status = cli.main(words)
    said = capsys.readouterr()
    assert status == 2
    for each in expected:
        assert each in said.err
    assert 1 <= said.err.count("error: ") <= 2
    assert "Traceback" not in said.err
    assert said.out == ""
    assert not (tmp_path / "runs").exists()


def test_mistakes_in_flags_file_data_and_directory_come_together(
    tmp_path: Path,
    tiny_model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    both(write("data.csv", GOOD), write("o.yaml", "sede: 1\n"), write("mine/letter", "dear"))(
        tmp_path
    )
    monkeypatch.chdir(tmp_path)
    words = ["yelp", "--dataset", "data.csv", "--model", tiny_model, "--label_column", "lable"]
    words += ["--config", "o.yaml", "--learning_rte", "1", "--warmup_ratio", "0.1"]
    words += ["--bf16", "maybe", "--seed", "-1", "--max_length", "1024", "--output_dir", "mine"]
    assert cli.main(words) == 2
    said = capsys.readouterr().err.splitlines()
    for line in said:
        assert line.startswith("error: ")
    starts = [
        "--bf16: expected true or false, found 'maybe'",
        "unknown option --learning_rte; did you mean '--learning_rate'?",
        "--warmup_ratio is gone from transformers; use --warmup_steps",
        "o.yaml: unknown option 'sede'",
        "--seed -1: expected a number from 0",
        "--output_dir mine holds files but no run",
        f"--max_length 1024: {tiny_model} has 512 positions",
        "--label_column: no column 'lable'",
    ]
    found = [[line for line in said if line.startswith(f"error: {start}")] for start in starts]
    assert [len(lines) for lines in found] == [1] * len(starts)
    assert len(said) == len(starts)


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("unknown", [True, False])
def test_a_hub_out_of_reach_hides_no_mistake(
    unknown: bool,
    local: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "data.csv").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        "finetune.data.sources.load_dataset", lambda *words, **more: pytest.fail("it was asked")
    )
    data = ["--dataset", "data.csv", "--label_column", "lable"] if local else []
    more = ["--modle", "x"] if unknown else []
    assert cli.main(["yelp", *data, *more, "--weight_decay", "-1"]) == 2
    said = capsys.readouterr().err
    assert ("error: unknown option --modle; did you mean '--model'?" in said) is unknown
    assert "error: --weight_decay -1.0: expected 0 or more" in said
    assert ("--label_column: no column 'lable'" in said) is local
    # an unknown option may be meant to say where the model is
    assert said.count("cannot be loaded") == (not unknown)
    assert ("google-bert/bert-base-cased' cannot be loaded: HF_HUB_OFFLINE is set" in said) is (
        not unknown
    )
    assert ("HF_HUB_OFFLINE=0 or HF_HOME" in said) is (not unknown)


@pytest.mark.processes
def test_two_processes_tell_a_mistake_once(tmp_path: Path, command: Command) -> None:
    (tmp_path / "data.csv").write_text(GOOD)
    answer = command(
        *["yelp", "--dataset", tmp_path / "data.csv", "--text_column", "txt", *MODEL[:1], tmp_path],
        launcher="torchrun",
        cwd=tmp_path,
    )
    assert answer.returncode != 0
    assert answer.stderr.count("error: --text_column: no column 'txt' in the train data") == 1
    assert "finetune/" not in answer.stderr  # no traceback of ours
    assert not (tmp_path / "runs").exists()
