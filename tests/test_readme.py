"""Every command of the README runs as it stands there, from a directory full of decoys.

The Hub is the one on the loopback interface. The make targets are left out: one runs this. Long
trainings run up to their first batch.
"""

import re
import shlex
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import HANGS, ROOT, SCRIPTS
from tests.hub import Hub

README = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
COMMANDS = [
    shlex.split(line, comments=True)
    for line in re.findall(r"^    ((?:python|torchrun|accelerate) .*)$", README, re.MULTILINE)
]
BLOCKS = [
    block
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    if "pipeline(" in block or "evaluate.load" in block
]
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
    """Where the commands run, one after the other, in the order of the README."""

    directory: Path
    environment: dict[str, str]
    model: str

    def run(self, words: list[str]) -> str:
        """Run a command and return its output."""
        program, *words = [
            {"DIRECTORY": self.model}.get(word)
            or (str(ROOT / word) if word.startswith("examples/") else word)
            for word in words
        ]
        process = subprocess.run(
            [str(SCRIPTS / program), *words],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANGS,
            check=False,
        )
        output = f"{shlex.join(words)}\n{process.stdout}\n{process.stderr}"
        assert process.returncode == 0, output
        assert "Traceback" not in process.stderr, output
        return process.stdout


@pytest.fixture(scope="module")
def shell(hub: Hub, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    directory = tmp_path_factory.mktemp("readme")
    for decoy in ("recipes", "metrics", "accuracy", "mlx"):
        (directory / decoy).mkdir()
        for name in ("__init__", "accuracy", "yelp", decoy):
            (directory / decoy / f"{name}.py").write_text("raise SystemExit('decoy')\n")
    rows = [f"place {index} was {('dull', 'great')[index % 2]},{index % 2}" for index in range(120)]
    (directory / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (directory / "path" / "to").mkdir(parents=True)
    (directory / "path" / "to" / "mine.py").write_text(MINE.replace("DIRECTORY", tiny_model))
    return Shell(directory, hub.environment(tmp_path_factory.mktemp("home")), tiny_model)


def test_the_readme_has_commands_and_blocks() -> None:
    assert len(COMMANDS) >= 12
    assert shlex.split("torchrun --nproc_per_node=2 -m finetune yelp") in COMMANDS
    assert len(BLOCKS) == 2


@pytest.mark.parametrize("words", COMMANDS, ids=shlex.join)
def test_each_command_runs(shell: Shell, words: list[str]) -> None:
    recipe = {"yelp", "mnist", "sentiment"} & set(words)
    is_long = "-m" in words and recipe and {"--embedded", "--train_samples"} & set(words)
    shell.run([*words, "--dry_run"] if is_long else words)


def test_the_blocks_of_a_run_and_of_a_metric_run(shell: Shell) -> None:
    """After the commands: the first one reads one of their runs."""
    script = []
    for block in BLOCKS:
        lines = textwrap.dedent(block.replace('"metrics/', f'"{ROOT}/metrics/')).strip()
        *before, last = lines.splitlines()
        script += [*before, f"print({last})"]
    output = shell.run(["python", "-P", "-c", "\n".join(script)])
    assert re.search(r"'label': '(positive|negative)'", output)
    assert "'f1': 0.6" in output
