"""The subcommands but ``predict``, a function each: it parses, calls the pipeline and prints.

Its docstring is what ``--help`` shows. Under a launcher it runs on every rank, and rank 0 prints.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.cli import console
from finetune.cli.parser import RUN, TRUST, Parser, recipe_and_flags
from finetune.config.settings import Settings, require_hub
from finetune.errors import RunError, UserError, counted
from finetune.predicting import READING
from finetune.recipe import catalog
from finetune.runs.run import Run
from finetune.runtime import distributed, hub, stopping

if TYPE_CHECKING:
    from finetune.pipeline.check import Check


def train(words: Sequence[str]) -> int:
    """Fine-tune: python -m finetune train RECIPE [flags], where the word `train` may be left out.

    The flags of a recipe: python -m finetune RECIPE --help
    """
    Parser(train, {}).parse_known_args(words[:1])  # --help
    recipe, flags = recipe_and_flags(words)
    recipe_class = catalog.find(recipe)
    if {"-h", "--help"} & set(flags):
        from finetune.config.parser import RecipeParser

        print(RecipeParser(recipe_class).format_help(), end="")
        return 0
    require_hub(recipe_class, flags)
    console.import_libraries("finetune.training.trainer")
    from finetune.cli.screen import show
    from finetune.pipeline.train import run_training

    with stopping.handled():
        run_training(Settings.from_command_line(recipe, flags), show)
    return 0


def check(words: Sequence[str]) -> int:
    """Look for what is wrong or suspicious, before training.

        python -m finetune check text --dataset tickets.csv --model NAME
        python -m finetune check text --dataset tickets.csv --model NAME --deep
        python -m finetune check text --dataset tickets.csv --model NAME --json

    The data and the options are read and checked as a training with these flags would. Without
    --deep nothing is trained and no weights are loaded; no run is written. Exit status: 0, training
    would work; 2, training would refuse to start; 3, training would work, and something is
    suspicious.

    The flags of a recipe: python -m finetune RECIPE --help
    """
    flags_of_check = {
        "--deep": "also near duplicates, words and columns that reveal the label, labels that are "
        "probably wrong, and languages; about two minutes for 25,000 long texts",
        "--json": "one JSON document instead of the page",
        "--suspects FILE.csv": "write the rows that are suspected, to be corrected in a "
        "spreadsheet and given back to a training: --relabel FILE.csv, --exclude FILE.csv",
    }
    typed, other_words = Parser(check, flags_of_check).parse_known_args(words)
    recipe, flags = recipe_and_flags(other_words, "check ")
    from finetune.pipeline import check as checking

    try:
        require_hub(catalog.find(recipe), flags)
        console.import_libraries("finetune.training.arguments")
        suspects = None if typed.suspects is None else Path(typed.suspects).expanduser()
        if suspects is not None:
            checking.refuse_suspects(suspects)
        settings = Settings.from_command_line(recipe, flags)
        result = checking.examine(settings, deep=typed.deep)
        if suspects is not None:
            count = checking.write_suspects(suspects, result.findings, settings.recipe)
            console.tell(f"{suspects}: {counted(count, 'row')} to look at")
    except UserError as error:
        if not typed.json:
            raise
        result = checking.refused(error.mistakes)
    if typed.json:
        print(json.dumps(checking.as_json(result), indent=2, ensure_ascii=False))
    else:
        _show_check(result)
    return result.status


def _show_check(result: Check) -> None:
    if result.splits:
        total = sum(facts.rows for facts in result.splits.values())
        rows = []
        for split, facts in result.splits.items():
            counts = ", ".join(f"{name} {count:,}" for name, count in facts.classes.items())
            if len(facts.classes) > 6:
                values = facts.classes.values()
                counts = f"{len(values):,} classes of {min(values):,} to {max(values):,} rows"
            rows.append([split, f"{facts.rows:,}", f"{facts.rows / max(1, total):.0%}", counts])
        console.say(f"task: {result.task.replace('_', ' ')}")
        console.table(["", "rows", "share", "classes"], rows)
        console.say(f"splits: {result.split_how}\n" if result.split_how else "")
    for finding in result.findings:
        console.say(f"{finding.severity:<8} {finding.message}")
        if finding.fix:
            console.say(f"{'':<8} -> {finding.fix}")
    steps = f", {counted(result.steps, 'step')}" if result.steps is not None else ""
    severities = [finding.severity for finding in result.findings]
    errors, warnings = (severities.count(severity) for severity in ("error", "warning"))
    verdict = {
        0: f"nothing suspicious: training would work{steps}",
        2: f"training would refuse: {counted(errors, 'error')}",
        3: f"training would work{steps}; {counted(warnings, 'warning')} to look at first",
    }[result.status]
    console.say("\n" * bool(result.findings) + verdict)
    if result.status != 2:
        console.say(f"to train: {result.command}")


def evaluate(words: Sequence[str]) -> int:
    """Evaluate the model of a run.

        python -m finetune evaluate runs/yelp                      # its own test set again
        python -m finetune evaluate runs/yelp --data new.csv       # other data
        torchrun --nproc_per_node=2 -m finetune evaluate runs/yelp

    The test set is loaded, split and tokenized as for the training, and refused if its rows are not
    the same. Other data needs the columns that the run was trained on; its labels are matched by
    name. Of a directory or a data set on the Hub the test split is evaluated, without one the
    validation split, else train.
    """
    reading = [*READING, "label_column", "label_separator", "label_map", "drop_invalid"]
    reading += ["dataset_config", "dataset_splits"]
    flags = {
        **RUN,
        "--data FILE": "evaluate on this file or directory instead",
        "--per_device_eval_batch_size N": "rows of a batch on one device (default: 32)",
    }
    typed = Parser(evaluate, flags, reading).parse_args(words)
    names = [*reading, "per_device_eval_batch_size", "cpu_kernels"]
    values = {name: getattr(typed, name) for name in names}
    options = {
        name: value for name, value in values.items() if value is not None and value is not False
    }
    run = Run.load(typed.run, trust_recipe=typed.trust_recipe, tell=console.tell)
    sources = {"dataset": typed.data} if typed.data else {**run.manifest.options, "model": None}
    if not hub.missing(sources):
        hub.go_offline()
    console.import_libraries("finetune.training.trainer")
    from finetune.pipeline.evaluate import evaluate as evaluate_run

    result = evaluate_run(
        run,
        typed.data,
        progress=lambda event: None if sys.stderr.isatty() else console.tell(str(event)),
        **options,
    )
    from finetune.reporting import tables

    source = f"{result.source}, {counted(result.rows, 'row')}"
    notes = result.notes
    if (statistics := result.statistics) is None:
        names = [name for name, value in result.metrics.items() if isinstance(value, float)]
        scores = {"now": result.metrics, "recorded": result.recorded or {}}
        rows = [[tables.Cell(row), *tables.estimates(scores[row], names)] for row in scores]
        console.show(tables.Table(f"test set of {source}", ["", *names], rows))
    else:
        console.show(*tables.metrics(f"{source}, 95% confidence intervals", statistics))
        console.show(*tables.targets(statistics), *tables.classes(statistics))
        notes = [*statistics.notes, *notes]
    for note in notes:
        console.say(f"\n{note}")
    return 0


def compare(words: Sequence[str]) -> int:
    """Compare runs on the same test rows, each with the first.

        python -m finetune compare runs/yelp runs/yelp.1
        python -m finetune compare runs/a runs/b runs/c --output comparison.html

    The page has the rows on which they differ.
    """
    page = "page to write or replace (default: comparison.html, or comparison.1.html and so on)"
    parser = Parser(compare, {"--output PAGE": page, **TRUST})
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directories of runs, two or more")
    typed = parser.parse_args(words)
    from finetune.pipeline.report import compare as compare_runs
    from finetune.reporting import tables

    names = (f"comparison{f'.{n}' * (n > 0)}.html" for n in itertools.count())
    page = typed.output or next(name for name in names if not Path(name).exists())
    load = functools.partial(Run.load, trust_recipe=typed.trust_recipe, tell=console.tell)
    comparison = compare_runs([*map(load, typed.runs)], page)
    console.show(comparison.scores(comparison.headline))
    for sentence in comparison.verdicts:
        console.say(f"\n{sentence}")
    console.show(*tables.settings(comparison.names, comparison.settings))
    count = counted(len(comparison.disagreements), "row")
    console.say(f"\npredictions differ on {count}: see {page}")
    return 0


def report(words: Sequence[str]) -> int:
    """Write the report, the plots and the model card of a run again.

    python -m finetune report runs/yelp
    """
    typed = Parser(report, {"run": RUN["run"], **TRUST}).parse_args(words)
    from finetune.pipeline.report import report as write_report

    run = Run.load(typed.run, trust_recipe=typed.trust_recipe, tell=console.tell)
    written = write_report(run)
    console.say(f"report: {written.page}; model card: {written.card}")
    if written.suspects:
        console.say(
            f"suspected rows: {written.suspects}; copy it, write the right labels into new_label, "
            "and train with --relabel COPY"
        )
    return 0


def doctor(words: Sequence[str]) -> int:
    """Show devices, network and versions before a job.

    Under a launcher the ranks also connect to each other and time an all-reduce:

        python -m finetune doctor
        torchrun --nproc_per_node=2 -m finetune doctor
        torchrun --nnodes=2 --node_rank=0 --master_addr=ADDRESS -m finetune doctor   # on each
    """
    Parser(doctor, {}).parse_args(words)
    from finetune.pipeline import doctor as examination

    total = distributed.ranks().world_size
    if distributed.is_main_process():
        for title, facts in examination.describe_machine().items():
            console.block(title, facts)
    lines = examination.recommend() or ["nothing needs to be set"]
    console.block("\nfor a job on several machines, on each with its own interface:", {"": lines})
    if total == 1:
        return 0
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        distributed.join_process_group(None, 60, use_cpu=False)
        hosts = distributed.gather(os.uname().nodename)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise RunError(f"not every rank connected to {place} within 60 s: {reason}") from error
    console.say(f"\n{len(hosts)} of {total} ranks connected, on {', '.join(dict.fromkeys(hosts))}")
    # as nccl-tests define the speed of a link (doc/PERFORMANCE.md there)
    rows = [
        [f"{size / 1e6:.0f} MB", f"{seconds * 1e3:.2f}"]
        + [f"{size / seconds / 1e9 * factor:.2f}" for factor in (1, 2 * (total - 1) / total)]
        for size, seconds in examination.time_all_reduces()
    ]
    console.table(["all-reduce", "ms", "GB/s", "bus GB/s"], rows)
    distributed.leave()
    return 0
