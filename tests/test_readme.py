"""Test that every command of README and docs/quickstart.md runs, in a directory of decoys.

The Hub is on the loopback interface. Long trainings stop at their first batch.
"""

import dataclasses
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import HANGS, ROOT, SCRIPTS
from tests.hub import Hub

README = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
QUICKSTART = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8").replace("\\\n", " ")
COMMANDS, FIRST_HOUR = (
    [
        shlex.split(line, comments=True)
        for line in re.findall(r"^    ((?:python|torchrun|accelerate) .*)$", page, re.MULTILINE)
    ]
    for page in (README, QUICKSTART)
)
BLOCKS = [
    block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "pipeline(" in block
]
MINE = '''
"""Reviews of my own."""
from finetune import TextRecipe
class Mine(TextRecipe):
    training = dict(global_batch_size=16, num_train_epochs=1)
    dataset: str = "reviews.csv"
    model: str = "DIRECTORY"
'''


@dataclasses.dataclass
class Shell:
    """The directory and environment in which the commands run, in the order of the page."""

    directory: Path
    environment: dict[str, str]
    model: str

    def run(self, words: list[str], status: int = 0) -> str:
        """Run a command, assert that it exits with ``status``, and return its standard output."""
        loop = "examples/native_ddp.py"
        places = {"DIRECTORY": self.model, loop: str(ROOT / loop)}
        program, *words = [places.get(word, word) for word in words]
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
        assert process.returncode == status, output
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
    (directory / "path/to").mkdir(parents=True)
    (directory / "path/to/mine.py").write_text(MINE.replace("DIRECTORY", tiny_model))
    return Shell(directory, hub.environment(tmp_path_factory.mktemp("home")), tiny_model)


def test_the_readme_has_commands_and_blocks() -> None:
    assert len(COMMANDS) >= 12
    assert len(FIRST_HOUR) >= 9
    assert shlex.split("torchrun --nproc_per_node=2 -m finetune yelp") in COMMANDS
    assert len(BLOCKS) == 1


@pytest.mark.parametrize("words", COMMANDS, ids=shlex.join)
def test_each_command_runs(shell: Shell, words: list[str]) -> None:
    recipe = {"yelp", "mnist", "sentiment"} & set(words)
    is_long = "-m" in words and recipe and {"--embedded", "--train_samples"} & set(words)
    words = [*words, "--dry_run"] if is_long and "--dry_run" not in words else words
    shell.run(words)


def test_the_python_block_runs(shell: Shell) -> None:
    """The block reads a run of the commands before."""
    *statements, expression = BLOCKS[0].strip().splitlines()
    output = shell.run(["python", "-P", "-c", "\n".join([*statements, f"print({expression})"])])
    assert re.search(r"'label': '(positive|negative)'", output)


def test_the_first_hour(shell: Shell, tmp_path: Path) -> None:
    """`check` prints the output on the page; trainings stop after two steps."""
    shell = dataclasses.replace(shell, directory=tmp_path)
    script, config = re.findall(r"```(?:python|yaml)\n(.*?)```", QUICKSTART, re.DOTALL)
    (tmp_path / "make_reviews.py").write_text(script)
    (tmp_path / "reviews.yaml").write_text(config)
    for words in FIRST_HOUR:
        if "check" in words:
            printed = shell.run(words, status=3 if "--drop_invalid" in words else 2)
            assert all(f"    {line}\n" in QUICKSTART for line in printed.splitlines() if line)
        else:
            shell.run([*words, "--max_steps", "2"] if "text" in words[:4] else words)
    assert (tmp_path / "predicted.csv").read_text().count("\n") == 101
