"""``repeat`` and ``search``: several runs of a recipe."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finetune.cli import console
from finetune.cli.parser import Parser, recipe_and_flags
from finetune.config.settings import require_hub
from finetune.recipe import catalog
from finetune.runtime import distributed, stopping
from finetune.search import require_optuna


def repeat(words: Sequence[str]) -> int:
    """Train a recipe with several seeds, on the same splits.

        python -m finetune repeat sentiment --seeds 5
        torchrun --nproc_per_node=2 -m finetune repeat sentiment --seeds 5 --learning_rate 5e-5
        python -m finetune compare runs/sentiment-seeds runs/other-seeds

    It prints the test scores of each seed, their standard deviation, and their mean with a
    confidence interval for other seeds and other test rows. `compare` of two such directories says
    whether a change is more than luck. The same command continues after an interruption.

    The flags of a recipe: python -m finetune RECIPE --help
    """
    return _run(repeat, words, {"--seeds N": "number of runs (default: 5)"})


def search(words: Sequence[str]) -> int:
    """Search for the best options of a recipe, judged by the validation rows.

        python -m finetune search sentiment --trials 20
        python -m finetune search text --dataset tickets.csv --model NAME \\
            --space learning_rate=1e-5..1e-3:log,num_train_epochs=1..6,hidden_dropout=0.0|0.1

    A trial is a run whose test rows are never scored; a bad one is stopped early. The best trial is
    scored once on the test rows. The same command continues after an interruption, and joins the
    search from another terminal, or from another machine with the same file system.

    The flags of a recipe: python -m finetune RECIPE --help
    """
    flags = {
        "--space RANGES": "options to vary: NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A|B, with "
        "commas between them (default: by task)",
        "--trials N": "number of trials in all (default: 20)",
    }
    return _run(search, words, flags)


def _run(
    verb: Callable[[Sequence[str]], int], words: Sequence[str], flags: Mapping[str, str]
) -> int:
    """Parse words, call ``run_repeat`` or ``run_search``, and print the table of the set."""
    typed, other_words = Parser(verb, flags).parse_known_args(words)
    recipe, recipe_flags = recipe_and_flags(other_words, f"{verb.__name__} ")
    if verb is search:
        require_optuna()
    require_hub(catalog.find(recipe), recipe_flags)
    console.import_libraries("finetune.training.trainer")
    from finetune.cli.screen import print_event
    from finetune.search.run_set import from_words

    options = {name: value for name, value in vars(typed).items() if value is not None}
    module: Any = importlib.import_module(f"finetune.search.{verb.__name__}")
    with stopping.handled():
        settle = from_words(recipe, recipe_flags)
        run_set = getattr(module, f"run_{verb.__name__}")(settle, print_event, **options)
    if distributed.is_main_process():
        print_set(run_set)
    return 0


def print_set(path: Any) -> None:
    """Write the report of a set of runs, and print its table and verdicts."""
    from finetune.search import pages

    page, table, verdicts = pages.write(path)
    console.print_tables(table)
    for verdict in verdicts:
        console.print_line(f"\n{verdict}")
    console.print_line(f"\nreport: {page}")
