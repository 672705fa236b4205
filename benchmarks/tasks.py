"""What each task costs: a training step of the same tokens, and the start, beside one label a row.

python benchmarks/bench.py tasks
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import start
import training
import turns

ROWS, TOKENS, BATCH, STEPS = 1000, 128, 32, 4
SINGLE, IMAGES = "single label", "images"
Options = dict[str, str]
#: Options of each way to train on the composed set, every row of which has all the tokens.
WAYS: dict[str, Options] = {
    SINGLE: dict(text_column="text", label_column="label"),
    "class weights": dict(text_column="text", label_column="label", class_weights="balanced"),
    "focal loss": dict(text_column="text", label_column="label", loss_function="focal"),
    "multi label": dict(text_column="text", label_column="names"),
    "regression": dict(text_column="text", label_column="number"),
    "ordinal, emd": dict(
        text_column="text", label_column="grade", task="ordinal", loss_function="emd"
    ),
    "pairs": dict(text_columns="first,second", label_column="label"),
    "windows": dict(text_column="text", label_column="label", long_texts="windows"),
}
_RECIPE = '''
"""Own data, until the first step."""

from benchmarks.start import StopAtFirstStep
from recipes.{module} import {base}


class Mine({base}):
    """Own data."""

    dataset: str = {data!r}

    def load(self):
        return super().load()

    def trainer_kwargs(self, model=None):
        return {{**super().trainer_kwargs(model), "callbacks": [StopAtFirstStep()]}}
'''


def compose(home: Path) -> Path:
    """Write reviews of more than enough tokens with labels of every kind; what they say is no
    matter.
    """
    from finetune.data import embedded

    rows = training.drawn(embedded.read("embedded:imdb")["train"], 4 * ROWS)
    texts = [text.split() for text in rows["text"][:]]
    path, lines = home / "reviews.jsonl", []
    for words in [each[:400] for each in texts if len(each) >= 2 * TOKENS][:ROWS]:
        number = len(lines)
        row = {
            "text": " ".join(words),
            "first": " ".join(words[:TOKENS]),
            "second": " ".join(words[TOKENS:]),
            "label": ("bad", "good")[number % 2],
            "names": [name for bit, name in enumerate("abcd") if number >> bit & 1],
            "number": number / 7,
            "grade": number % 4,
        }
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def of_task(data: str, options: Options) -> Callable[[], float]:
    """Return the steps of a training; the seconds that they took."""
    recipe = training.recipe_over(
        "text", dataset=data, model=training.MODEL, max_length=TOKENS, **options
    )
    trainer = training.ours(recipe, BATCH * STEPS, global_batch_size=BATCH, max_steps=STEPS)

    def turn() -> float:
        trainer.train()
        return float(trainer.throughput.seconds)

    return turn


def steps(rounds: int) -> dict[str, turns.Way]:
    """Every way to train, in turns."""
    with tempfile.TemporaryDirectory() as name:
        data = str(compose(Path(name)))
        ways = {way: (of_task, (data, options)) for way, options in WAYS.items()}
        return turns.take(ways, rounds, warm_up=1)


def starts(rounds: int) -> dict[str, float]:
    """Median seconds from the start of a process to its first step, on cached data."""
    from compose import digits

    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        files = {
            "text": ("Text", str(compose(home))),
            "image": ("Image", str(digits(home))),
        }
        for module, (base, data) in files.items():
            page = _RECIPE.format(module=module, base=base, data=data)
            (home / f"own_{module}.py").write_text(page, encoding="utf-8")
        kinds = {
            way: [*_mine(home, "text"), f"--max_length={TOKENS}", *_flags(options)]
            for way, options in WAYS.items()
        }
        kinds[IMAGES] = [*_mine(home, "image"), "--embedded", f"--dataset={files['image'][1]}"]
        return start.timed(kinds, home, rounds)


def _mine(home: Path, module: str) -> list[str]:
    model = [f"--model={training.MODEL}"] if module == "text" else []
    return ["-m", "finetune", str(home / f"own_{module}.py"), "--no_baseline", *model]


def _flags(options: Options) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]
