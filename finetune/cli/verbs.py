"""The subcommands: each function parses, calls the pipeline and prints.

It returns the answer that ``--json`` prints (docs/json.md), if there is one. Its docstring is shown
by ``--help``. Under a launcher every rank runs it; rank 0 prints.
"""

import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from finetune.checking import summary
from finetune.cli import console
from finetune.cli.launch import start_processes
from finetune.cli.parser import JSON, PROCESSES, RECIPE, RUN, TRUST, Answer, Parser
from finetune.cli.predict import predict as predict
from finetune.config.settings import Settings, require_hub
from finetune.errors import Finding, UserError, counted
from finetune.predicting import READING
from finetune.recipe import catalog
from finetune.recipe.run import Run
from finetune.runtime import distributed, hub
from finetune.runtime.files import write_whole
from finetune.runtime.importing import require_packages
from finetune.sets import is_set, require_optuna
from finetune.training.options import without_none


def train(words: Sequence[str]) -> Answer:
    """Fine-tune a recipe: python -m finetune train RECIPE [flags]. The word `train` is optional.

    The flags of a recipe: python -m finetune RECIPE --help
    """
    recipe = Parser(train, RECIPE).parse_args(words[:1]).recipe
    flags = [word for word in words[1:] if word != "--json"]
    recipe_class = catalog.find(recipe)
    if {"-h", "--help"} & set(flags):
        from finetune.config.parser import RecipeParser

        parser = RecipeParser(recipe_class)
        parser.groups["run"].add_argument("--json", action="store_true", help=JSON["--json"])
        print(parser.format_help(), end="")
        return None
    require_hub(recipe_class, flags)
    start_processes("train", words)
    console.import_libraries("finetune.training.trainer")
    from finetune.cli.screen import print_event
    from finetune.pipeline.train import run_training

    settings = Settings.from_command_line(recipe, flags)
    run = run_training(settings, print_event)
    if not distributed.is_main_process():
        return None
    if settings.dry_run:
        return {"run": run.path, "dry_run": True}
    return _describe_run(run)


def _describe_run(run: Run) -> dict[str, Any]:
    from finetune.reporting import tables

    manifest = run.manifest
    return {
        "run": run.path,
        "task": manifest.task,
        "labels": manifest.labels,
        "rows": manifest.data.rows,
        "findings": manifest.data.findings,
        "steps": manifest.steps,
        "validation": run.metrics.validation,
        "test": run.metrics.test,
        "intervals": run.statistics.metrics,
        "baseline": run.metrics.baseline,
        "differences": run.statistics.differences,
        "verdicts": tables.verdicts(run),
    }


def repeat(words: Sequence[str]) -> None:
    """Train a recipe with several seeds, on the same splits.

        python -m finetune repeat sentiment --seeds 5
        python -m finetune repeat sentiment --seeds 5 --learning_rate 5e-5 --num_processes 2
        python -m finetune compare runs/sentiment-seeds runs/other-seeds

    It prints the test scores of each seed, their standard deviation, and their mean with a
    confidence interval for other seeds and other test rows. `compare` of two such directories says
    whether a change is more than luck. The same command continues after an interruption.
    """
    _run_set(repeat, words, {"--seeds N": "number of runs (default: 5)"})


def search(words: Sequence[str]) -> None:
    """Search for the best options of a recipe, judged by the validation rows.

        python -m finetune search sentiment --trials 20
        python -m finetune search text --dataset tickets.csv --model NAME \\
            --space learning_rate=1e-5..1e-3:log,num_train_epochs=1..6,hidden_dropout=0.0|0.1

    A trial is a run whose test rows are never scored; a bad one is stopped early. The best trial is
    scored once on the test rows. The same command continues after an interruption, and joins the
    search from another terminal, or from another machine with the same file system.
    """
    flags = {
        "--space RANGES": "options to vary: NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A|B, with "
        "commas between them (default: by task)",
        "--trials N": "number of trials in all (default: 20)",
        "--pruner median|hyperband|none": "when to stop a bad trial early (default: median)",
    }
    _run_set(search, words, flags)


def _run_set(
    verb: Callable[[Sequence[str]], None], words: Sequence[str], flags: Mapping[str, str]
) -> None:
    """Parse words, call ``run_repeat`` or ``run_search``, and print the table of the set."""
    typed, recipe_flags = Parser(verb, {**RECIPE, **flags}).parse_known_args(words)
    options = without_none(vars(typed))
    recipe = options.pop("recipe")
    if verb is search:
        require_optuna()
    if "model=" not in options.get("space", ""):  # those may be on the Hub
        require_hub(catalog.find(recipe), recipe_flags)
    start_processes(verb.__name__, words)
    console.import_libraries("finetune.training.trainer")
    from finetune.cli.screen import print_event
    from finetune.sets.repeat import run_repeat
    from finetune.sets.search import run_search

    run = run_search if verb is search else run_repeat
    base = Settings.from_command_line(recipe, recipe_flags)
    run_set = run(base, print_event, **options)
    if distributed.is_main_process():
        _print_set(run_set)


def _print_set(path: Any, trust_recipe: bool = False) -> None:
    """Write the report of a set of runs, and print its table and verdicts."""
    from finetune.sets.report import write_report

    page, table, verdicts = write_report(path, trust_recipe)
    console.print_parts(table, *verdicts, f"report: {page}")


def check(words: Sequence[str]) -> Answer:
    """Find errors and suspicious rows before training.

        python -m finetune check text --dataset tickets.csv --model NAME
        python -m finetune check text --dataset tickets.csv --model NAME --deep
        python -m finetune check text --dataset tickets.csv --model NAME --json

    The command reads and checks data and options as a training with the same flags would. It writes
    no run, and without --deep it trains nothing and loads no weights. Exit status: 0 if training
    would work, 3 if it would work but there are warnings, 2 if it would refuse to start.

    The flags of a recipe: python -m finetune RECIPE --help
    """
    flags_of_check = {
        **RECIPE,
        "--deep": "also find near duplicates, words and columns that reveal the label, probably "
        "wrong labels, and other languages; about two minutes for 25,000 long texts",
        **JSON,
        "--suspects FILE.csv": "write the suspicious rows; correct them in a spreadsheet, then "
        "train with --relabel FILE.csv or --exclude FILE.csv",
    }
    typed, flags = Parser(check, flags_of_check).parse_known_args(words)
    from finetune.checking.suspects import refuse_path, write_findings
    from finetune.pipeline import check as checking

    try:
        require_hub(catalog.find(typed.recipe), flags)
        console.import_libraries("finetune.training.arguments")
        suspects = None
        if typed.suspects is not None:
            suspects = Path(typed.suspects).expanduser()
            refuse_path(suspects)
        settings = Settings.from_command_line(typed.recipe, flags)
        result = checking.check_settings(settings, deep=typed.deep)
        if suspects is not None:
            count = write_findings(suspects, result.findings, settings.recipe)
            console.print_stderr(f"{suspects}: {counted(count, 'suspicious row')}")
    except UserError as error:
        if not typed.json:
            raise
        mistakes = [Finding(name="refused", severity="error", message=m) for m in error.mistakes]
        result = checking.Check(findings=mistakes)
    if result.splits:
        rows = summary.describe_splits(result.splits)
        console.print_line(f"task: {result.task.replace('_', ' ')}")
        console.print_columns(["", "rows", "share", "classes"], rows)
        if result.split_how:
            console.print_line(f"splits: {result.split_how}")
        console.print_line()
    for finding in result.findings:
        console.print_line(f"{finding.severity:<8} {finding.message}")
        if finding.fix:
            console.print_line(f"{'':<8} -> {finding.fix}")
    if result.findings:
        console.print_line()
    console.print_line(summary.verdict(result))
    if result.status != 2:
        console.print_line(f"to train: {result.command}")
    verdict = {0: "ok", 2: "error", 3: "warning"}[result.status]
    return {"schema": 2, "status": result.status, "verdict": verdict, **asdict(result)}


def evaluate(words: Sequence[str]) -> Answer:
    """Evaluate the model of a run.

        python -m finetune evaluate runs/yelp                      # its own test set again
        python -m finetune evaluate runs/yelp --data new.csv       # other data
        python -m finetune evaluate runs/yelp --num_processes 2    # faster on several cores or GPUs

    The test set is loaded, split and tokenized as for the training; the command refuses if its rows
    have changed. Other data needs the columns that the run was trained on; its labels are matched
    by name. If --data is a directory or a data set on the Hub, its test split is evaluated; if it
    has none, its validation split, or else its train split.
    """
    reading = [
        *READING,
        "label_column",
        "token_column",
        "tag_scheme",
        "label_separator",
        "label_map",
        "drop_invalid",
        "dataset_config",
        "dataset_splits",
    ]
    flags = {
        **RUN,
        "--data FILE": "evaluate on this file, directory or data set on the Hub instead",
        "--per_device_eval_batch_size N": "rows per batch and device (default: 32)",
        **PROCESSES,
        **JSON,
    }
    typed = vars(Parser(evaluate, flags, reading).parse_args(words))
    options = {n: v for n, v in typed.items() if v is not None and v is not False}  # 0 is typed
    run = Run.load(options.pop("run"), trust_recipe=options.pop("trust_recipe", False))
    options.pop("num_processes", None)
    start_processes("evaluate", words)
    options.pop("json", None)
    data = options.get("data")
    sources = {"dataset": data} if data else {**run.manifest.options, "model": None}
    hub.go_offline(sources)
    console.import_libraries("finetune.training.trainer")
    from finetune.cli.screen import print_event
    from finetune.pipeline.evaluate import evaluate as evaluate_run
    from finetune.reporting import tables

    result = evaluate_run(run, progress=print_event, **options)
    console.print_parts(*tables.evaluation(result))
    return {"run": run.path, **asdict(result)}


def export(words: Sequence[str]) -> None:
    """Export the model of a run to ONNX, for use without torch, and check it.

        python -m finetune export runs/yelp
        python -m finetune export runs/yelp --quantize int8 --output yelp-int8

    It is written only if it answers as the run, on up to 1,000 of its validation rows.
    """
    flags = {
        "run": RUN["run"],
        "--output DIR": "directory to write or replace (default: RUN/export)",
        "--quantize int8": "weights in 8 bits, smaller and faster; a few answers change",
        "--accept_changes": "even if more than 1%% of the answers change",
        **TRUST,
    }
    options = vars(Parser(export, flags).parse_args(words))
    run = Run.load(options.pop("run"), trust_recipe=options.pop("trust_recipe"))
    hub.go_offline({**run.manifest.options, "model": None})
    console.import_libraries("finetune.exporting.create")
    from finetune.exporting.create import export as export_run
    from finetune.reporting import tables

    exported = export_run(run, **options)
    console.print_parts(*tables.export(exported), f"saved to {exported.path}")


def serve(words: Sequence[str]) -> None:
    """Serve a run or an export over HTTP, with a page to try it.

        python -m finetune serve runs/yelp/export
        curl --data '{"text": "The soup was cold."}' http://127.0.0.1:8000/predict

    With the environment variable FINETUNE_API_KEY, POST /predict needs the header Authorization:
    Bearer KEY. Ctrl-C or SIGTERM ends the server once the requests that have arrived are answered.
    """
    flags = {
        "run": "directory of a run, or of an export, which starts faster: runs/yelp/export",
        "--host ADDRESS": "address to listen on (default: 127.0.0.1, for this machine only)",
        "--port N": "port to listen on (default: 8000)",
        "--engine torch|onnxruntime|openvino": "default: torch, or onnxruntime for an export",
        **TRUST,
    }
    typed = Parser(serve, flags).parse_args(words)
    require_packages("serve", "fastapi", "uvicorn", "httptools", "prometheus_client", extra="serve")
    from finetune.serving import server

    options = without_none(vars(typed))
    server.serve(**options, ready=console.print_line)


def push(words: Sequence[str]) -> None:
    """Push the model of a run to the Hugging Face Hub: model, tokenizer, card, metrics, export.

        python -m finetune push runs/yelp --repo yelp            # lists the files
        python -m finetune push runs/yelp --repo yelp --yes      # sends them, in one commit

    Nothing else is sent: no texts, predictions, reports, checkpoints or settings.
    """
    flags = {"run": RUN["run"], "--repo NAME": "repository, e.g. yelp or my-team/yelp"}
    flags |= {"--yes": "send the files", "--public": "a public repository (default: private)"}
    typed = Parser(push, flags).parse_args(words)
    if not typed.repo:
        raise UserError("push: expected --repo NAME, e.g. --repo yelp")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # read when huggingface_hub is imported
    from finetune.exporting.push import push as push_run
    from finetune.reporting import tables

    options = {"public": typed.public, "dry_run": not typed.yes}
    pushed = push_run(typed.run, typed.repo, **options, progress_bar=sys.stderr.isatty())
    outcome = "nothing was sent; to send the files, type it again with --yes"
    if typed.yes:
        outcome = pushed.url or "the repository has these files already: no commit"
    console.print_parts(tables.push(pushed, is_sent=typed.yes), outcome)


def compare(words: Sequence[str]) -> Answer:
    """Compare each run with the first one, on the same test rows.

        python -m finetune compare runs/yelp runs/yelp.1
        python -m finetune compare runs/a runs/b runs/c --output comparison.html

    The page shows the rows on which their predictions differ.
    """
    page = "page to write or replace (default: comparison.html, or comparison.1.html and so on)"
    parser = Parser(compare, {"--output PAGE": page, **TRUST, **JSON})
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directories of two or more runs")
    typed = parser.parse_args(words)
    if any(map(is_set, typed.runs)):
        from finetune.sets.compare import compare_sets

        if typed.output:
            raise UserError("--output: a comparison of sets of runs has no page")
        table, verdict, facts = compare_sets(typed.runs, typed.trust_recipe)
        console.print_parts(table, verdict)
        return {"names": typed.runs, **facts, "verdicts": [verdict]}
    from finetune.pipeline.compare import compare as compare_runs
    from finetune.reporting import tables

    page = typed.output or _free_page()
    comparison = compare_runs(typed.runs, page, trust_recipe=typed.trust_recipe)
    settings = tables.settings(comparison.names, comparison.settings)
    note = f"predictions differ on {counted(len(comparison.disagreements), 'row')}: see {page}"
    scores = comparison.scores(comparison.headline)
    console.print_parts(scores, *comparison.verdicts, settings, note)
    facts = vars(comparison) | {"disagreements": len(comparison.disagreements), "page": page}
    del facts["tables"]
    return facts


def _free_page() -> str:
    """Return ``comparison.html``, or ``comparison.1.html`` and so on if that exists."""
    page = "comparison.html"
    numbers = itertools.count(1)
    while Path(page).exists():
        page = f"comparison.{next(numbers)}.html"
    return page


def report(words: Sequence[str]) -> None:
    """Write the report, the plots and the model card of a run again.

        python -m finetune report runs/yelp

    It also writes suspects.csv, the test rows whose label may be wrong, unless you have edited it.
    To correct them, copy the file, fill in its column new_label, and train with --relabel COPY.
    """
    typed = Parser(report, {"run": RUN["run"], **TRUST}).parse_args(words)
    if is_set(typed.run):
        _print_set(typed.run, typed.trust_recipe)
        return
    from finetune.pipeline.report import report as write_report

    written = write_report(typed.run, trust_recipe=typed.trust_recipe)
    console.print_line(f"report: {written.page}; model card: {written.card}")
    if written.suspects:
        console.print_line(f"suspicious rows: {written.suspects}")


def doctor(words: Sequence[str]) -> Answer:
    """Show devices, network and versions before a job.

    Under a launcher, the ranks also connect to each other and time an all-reduce:

        python -m finetune doctor
        python -m finetune doctor --num_processes 2
        torchrun --nnodes=2 --node_rank=0 --master_addr=ADDRESS -m finetune doctor   # on each
    """
    Parser(doctor, {**PROCESSES, **JSON}).parse_args(words)
    start_processes("doctor", words)
    from finetune.pipeline import doctor as machine

    facts: dict[str, Any] = dict(machine.describe_machine())
    for title, block in facts.items():
        console.print_block(title, block)
    world_size = distributed.ranks().world_size
    if world_size > 1:
        facts |= _time_all_reduces(world_size)
    return facts


def _time_all_reduces(world_size: int) -> dict[str, Any]:
    """Connect the ranks, and print and return how long an all-reduce takes."""
    from finetune.pipeline import doctor as machine

    distributed.join_process_group(None, 60, use_cpu=False)
    hosts = distributed.gather(os.uname().nodename)
    names = ", ".join(dict.fromkeys(hosts))
    console.print_line(f"\n{len(hosts)} of {world_size} ranks connected, on {names}")
    bus_factor = 2 * (world_size - 1) / world_size  # from nccl-tests, doc/PERFORMANCE.md
    rows = []
    times = []
    for size, seconds in machine.time_all_reduces():
        times.append({"bytes": size, "seconds": seconds})
        speed = size / seconds / 1e9
        speeds = f"{speed:.2f}", f"{speed * bus_factor:.2f}"
        rows.append([f"{size / 1e6:.0f} MB", f"{seconds * 1e3:.2f}", *speeds])
    console.print_columns(["all-reduce", "ms", "GB/s", "bus GB/s"], rows)
    distributed.leave_process_group()
    return {"hosts": hosts, "all_reduces": times}


def skill(words: Sequence[str]) -> None:
    """Install the skill that tells an agent how to use this toolkit.

        python -m finetune skill                     # into .agents/skills
        python -m finetune skill ~/my-agent/skills

    It prints the path of the file.
    """
    parser = Parser(skill, {"--force": "replace the file, even if it is a different one"})
    parser.add_argument(
        "directory",
        metavar="DIRECTORY",
        nargs="?",
        default=".agents/skills",
        help="where your agent looks for skills (default: .agents/skills)",
    )
    typed = parser.parse_args(words)
    name = "finetune-classifier/SKILL.md"
    content = (resources.files("finetune") / "skills" / name).read_text(encoding="utf-8")
    path = Path(typed.directory).expanduser() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_bytes() != content.encode() and not typed.force:
            raise UserError(f"{path} is a different file: to replace it, add --force")
        write_whole(path, content)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}") from error
    console.print_line(str(path))
