"""Every command of the README runs as it stands there, from a directory full of decoys.

The Hub is the one on the loopback interface. The make targets are left out: one runs this. Of what
takes long, and does what other commands do, `make test` runs all up to the first batch.
"""

import json
import re
import shlex
import subprocess
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification

from tests.conftest import HANGS, LAUNCHERS, ROOT, SCRIPTS
from tests.hub import Hub
from tests.hub.repositories import MNIST, SENTIMENT, YELP
from tests.warm import Servers

README = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
COMMANDS = [
    shlex.split(line, comments=True)
    for line in re.findall(r"^    ((?:python|torchrun|accelerate) .*)$", README, re.MULTILINE)
]
#: Beside them stand a training with the same flags, and one of the same loop in `test_examples.py`.
LONG = [
    words
    for words in COMMANDS
    if "examples/native_ddp.py" in words
    or words[3:6] == ["yelp", "--embedded", "--train_samples"]
    or words[3:]
    in (["mnist", "--embedded"], shlex.split("yelp --train_samples 1000 --eval_samples 500"))
]
SHORT = [
    [*words, "--dry_run"] if words in LONG else words
    for words in COMMANDS
    if words[1] == "-m" or words not in LONG
]
LANES = {
    recipe: [words for words in SHORT if (recipe == "yelp") == ("yelp" in shlex.join(words))]
    for recipe in ("yelp", "the others")
}
MINE = '''
"""Reviews of my own."""
from finetune import TextRecipe


class Mine(TextRecipe):
    """Reviews of my own."""

    training = dict(global_batch_size=16, num_train_epochs=1)
    dataset: str = "reviews.csv"
    model: str = "DIRECTORY"
'''


@dataclass
class Shell:
    """Where the commands run, and what they printed, by command."""

    cwd: Path
    environment: dict[str, str]
    directory: str
    warm: Servers
    printed: dict[str, str] = field(default_factory=dict)
    downloads_before: dict[str, Counter[str]] = field(default_factory=dict)

    def run(self, words: list[str], cold: bool = False) -> str:
        """Run a command, warm unless it is to be cold; its output."""
        program, *rest = [
            {"DIRECTORY": self.directory}.get(word)
            or (str(ROOT / word) if word.startswith("examples/") else word)
            for word in words
        ]
        start = [str(SCRIPTS / program), *rest]
        if program == "python" and not cold:
            start = self.warm.words("finetune", rest[2:], self.environment)
        elif program == "torchrun" and not cold:
            flags, words = rest[: rest.index("-m")], rest[rest.index("-m") + 2 :]
            start = self.warm.torchrun(words, self.environment, *flags)
        elif program == "accelerate" and not cold:
            assert rest[:3] == ["launch", "-m", "finetune"]
            start = self.warm.accelerate(rest[3:], self.environment)
        answer = subprocess.run(
            start,
            cwd=self.cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANGS,
            check=False,
        )
        assert answer.returncode == 0, f"{shlex.join(words)}\n{answer.stdout}\n{answer.stderr}"
        assert "Traceback" not in answer.stderr
        return answer.stdout


@pytest.fixture(scope="module")
def shell(
    hub: Hub, tiny_model: str, tmp_path_factory: pytest.TempPathFactory, warm: Servers
) -> Shell:
    cwd = tmp_path_factory.mktemp("readme")
    for decoy in ("recipes", "metrics", "accuracy", "mlx"):
        (cwd / decoy).mkdir()
        for name in ("__init__", "accuracy", "yelp", decoy):
            (cwd / decoy / f"{name}.py").write_text(f"raise SystemExit('decoy {decoy}')\n")
    rows = [f"place {index} was {('dull', 'great')[index % 2]},{index % 2}" for index in range(120)]
    (cwd / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (cwd / "path" / "to").mkdir(parents=True)
    (cwd / "path" / "to" / "mine.py").write_text(MINE.replace("DIRECTORY", tiny_model))
    # under a launcher a process takes all cores, which two lanes and the other tests share
    environment = {
        **hub.environment(tmp_path_factory.mktemp("home")),
        "LOKY_MAX_CPU_COUNT": "1",
    }
    shell = Shell(cwd, environment, tiny_model, warm)
    # the server is that of all tests of this process
    shell.downloads_before = {name: hub.downloads(name) for name in (YELP, SENTIMENT, MNIST)}

    def run(lane: list[list[str]]) -> None:
        for words in lane:
            shell.printed[shlex.join(words)] = shell.run(words)

    with ThreadPoolExecutor() as pool:  # commands that share no run beside each other
        list(pool.map(run, LANES.values()))
    return shell


def test_the_readme_has_the_commands() -> None:
    assert len(COMMANDS) >= 12
    assert shlex.split("torchrun --nproc_per_node=2 -m finetune yelp") in COMMANDS
    assert shlex.split("accelerate launch -m finetune sentiment") in COMMANDS
    assert shlex.split("python -m finetune mnist") in COMMANDS
    assert LAUNCHERS["python"][1:] == ["-m", "finetune"]
    assert len(LONG) == 4
    assert all(
        words[:3] == ["python", "-m", "finetune"] for words in COMMANDS if words[0] == "python"
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "names", "kept"),
    [
        (
            "torchrun --nproc_per_node=2 -m finetune yelp",
            ["1 star", "2 star", "3 stars", "4 stars", "5 stars"],
            "356 train, 40 validation, 100 test",
        ),
        (
            "accelerate launch -m finetune sentiment",
            ["positive", "negative"],
            "425 train, 47 validation, 118 test",
        ),
    ],
)
def test_mission_commands_leave_a_model_with_the_names_of_its_labels(
    shell: Shell, command: str, names: list[str], kept: str
) -> None:
    printed = shell.printed[command]
    recipe = command.rpartition(" ")[2]
    assert printed.count("rows per step") == 1  # one start block, from rank 0
    assert kept in printed
    assert "fine-tuned" in printed
    assert "majority class" in printed
    assert "TF-IDF + logistic regression" in printed
    assert f"saved to runs/{recipe}; report: runs/{recipe}/report.html" in printed
    first = next(
        path
        for path in sorted((shell.cwd / "runs").glob(f"{recipe}*"))
        if json.loads((path / "run.json").read_text())["command"].endswith(f"finetune {recipe}")
    )
    model = AutoModelForSequenceClassification.from_pretrained(first)
    assert list(model.config.id2label.values()) == names
    assert json.loads((first / "run.json").read_text())["status"] == "finished"


@pytest.mark.processes
def test_global_batch_is_divided_over_the_processes(shell: Shell) -> None:
    printed = shell.printed["torchrun --nproc_per_node=2 -m finetune yelp"]
    assert "16 per device x 1 accumulation x 2 processes = 32 rows per step" in printed


@pytest.mark.processes
def test_dropped_rows_are_counted_out_loud(shell: Shell) -> None:
    printed = " ".join(shell.printed["accelerate launch -m finetune sentiment"].split())
    assert "dropped 90 of 680 rows" in printed
    assert "590 are left" in printed


@pytest.mark.processes
def test_each_data_set_was_downloaded_once(shell: Shell, hub: Hub) -> None:
    for name in (YELP, SENTIMENT, MNIST):
        downloads = hub.downloads(name) - shell.downloads_before[name]
        assert sum(file.endswith((".parquet", ".csv")) for file in downloads) >= 1
        assert set(downloads.values()) == {1}, downloads


@pytest.mark.processes
def test_runs_of_one_name_are_moved_aside(shell: Shell) -> None:
    runs = sorted(path.name for path in (shell.cwd / "runs").glob("yelp*"))
    trained = [
        words for words in SHORT if "yelp" in words and not {"--help", "--dry_run"} & set(words)
    ]
    assert runs == ["yelp", *(f"yelp.{number}" for number in range(1, len(trained)))]


@pytest.mark.processes
def test_python_blocks_of_a_run_and_of_a_metric(shell: Shell) -> None:
    blocks = [
        block
        for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        if "pipeline(" in block or "evaluate.load" in block
    ]
    assert len(blocks) == 2
    script = []
    for block in blocks:
        lines = (
            textwrap.dedent(block.replace('"metrics/', f'"{ROOT}/metrics/')).strip().splitlines()
        )
        script += [*lines[:-1], f"print({lines[-1]})"]
    answer = subprocess.run(
        [str(SCRIPTS / "python"), "-P", "-c", "\n".join(script)],
        cwd=shell.cwd,
        env=shell.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"'label': '(positive|negative)'", answer.stdout)
    assert "'f1': 0.6" in answer.stdout


@pytest.mark.slow  # the same up to the first batch, and starts of their own under the launchers
@pytest.mark.processes
@pytest.mark.parametrize("words", COMMANDS, ids=shlex.join)
def test_each_command_runs_from_a_start_of_its_own(shell: Shell, words: list[str]) -> None:
    shell.run(words, cold=True)
