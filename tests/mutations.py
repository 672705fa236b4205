"""Test that the acceptance tests can fail: change one line of a copy at a time.

python tests/mutations.py --verify                  # each line occurs once and the change compiles
python tests/mutations.py --first 40 --jobs 2       # the first 40, two at a time; resumes
python tests/mutations.py --only lock               # those with this word in their name

Each mutation breaks a promise of the contract, so a test of its rows must fail. At most one
mutation in twenty may survive. The mutations were written without reading the tests. The suite must
first pass in an unchanged copy.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    *("finetune", "recipes", "metrics", "tests", "examples", "docs", "benchmarks", "notebooks"),
    *("pyproject.toml", "constraints.txt", "README.md", "Makefile", "CHANGELOG.md"),
)
TIMEOUT = 900  # seconds for one mutation; a timeout counts as red
UNCHANGED = "the code without a mistake"  # the name of the unchanged copy in the results
PYTEST = [sys.executable, "-m", "pytest", "tests/acceptance", "-q", "-p", "no:cacheprovider"]
ENTRIES = 55


@dataclass(frozen=True)
class Mutation:
    """A change of one line that breaks a promise.

    Attributes:
        name: What goes wrong; unique.
        path: The file, relative to the root of the repository.
        old: A part of one line that occurs once in the file.
        new: The replacement.
        rows: The rows of the contract that it breaks.
    """

    name: str
    path: str
    old: str
    new: str
    rows: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "the order of the rows depends on the rank",
        "finetune/training/steps.py",
        "torch.Generator().manual_seed(self.seed + epoch)",
        "torch.Generator().manual_seed(self.seed + epoch + self._ranks.rank)",
        ("D1",),
    ),
    Mutation(
        "a quotation mark that is never closed merges the rows up to the end of the file",
        "finetune/data/read_text.py",
        "quoting=quoting, strict=True)",
        "quoting=quoting, strict=False)",
        ("C3",),
    ),
    Mutation(
        "intervals of 80% are given as those of 95%",
        "finetune/statistics/estimates.py",
        "LEVEL, GROUPS = 0.95, 64",
        "LEVEL, GROUPS = 0.8, 64",
        ("E2",),
    ),
    Mutation(
        "id2label of the saved model is in reverse order",
        "finetune/models/pretrained.py",
        "config.id2label = dict(enumerate(labels))",
        "config.id2label = dict(enumerate(reversed(labels)))",
        ("E1", "C4"),
    ),
    Mutation(
        "with accumulation the loss is divided by the rows of the first micro-batch",
        "finetune/training/trainer.py",
        "float(self._row_weights[rows].sum())",
        "float(self._row_weights[: len(labels)].sum())",
        ("D1",),
    ),
    Mutation(
        "class weights change the divisor of the loss but not the rows",
        "finetune/training/steps.py",
        "return losses * logits.new_tensor(weights)[labels] if weights else losses",
        "return losses",
        ("B3",),
    ),
    Mutation(
        "hundreds of different whole numbers are taken for classes without a question",
        "finetune/tasks/detection.py",
        "MAX_OBVIOUS_CLASSES = 20",
        "MAX_OBVIOUS_CLASSES = 2000",
        ("B2",),
    ),
    Mutation(
        "check exits with 0 where something is suspicious",
        "finetune/pipeline/check.py",
        '= {"error": 2, "warning": 3, "info": 0}',
        '= {"error": 2, "warning": 0, "info": 0}',
        ("C9",),
    ),
    Mutation(
        "--split_seed is ignored",
        "finetune/recipe/options.py",
        "return Plan(**shared)",
        'return Plan(**shared | {"split_seed": 42})',
        ("A13",),
    ),
    Mutation(
        "the config file wins over flags",
        "finetune/config/settings.py",
        "user_options = merge_options(config, typed)",
        "user_options = merge_options(typed, config)",
        ("A5",),
    ),
    Mutation(
        "the user's own columns of text are left out of predictions.parquet",
        "finetune/data/prediction_columns.py",
        "if name not in _OF_ROWS and",
        'if name not in _OF_ROWS and feature != Value("string") and',
        ("E8",),
    ),
    Mutation(
        "predict --calibrated does not apply the temperature",
        "finetune/pipeline/request.py",
        "if self.options.calibrated:",
        "if False:",
        ("E4",),
    ),
    Mutation(
        "texts are not escaped in the report",
        "finetune/reporting/tables.py",
        "autoescape=True,",
        "autoescape=False,",
        ("E7", "F5"),
    ),
    Mutation(
        "a resume with another seed is accepted in silence",
        "finetune/pipeline/description.py",
        '    "grace_seconds",',
        '    *("grace_seconds", "seed"),',
        ("D6",),
    ),
    Mutation(
        "predict --resume has another name",
        "finetune/cli/predict.py",
        '"--resume": "resume an interrupted prediction"',
        '"--continue": "resume an interrupted prediction"',
        ("A12", "E4"),
    ),
    Mutation(
        "doctor leaves out the first line to export",
        "finetune/pipeline/doctor.py",
        "    return lines",
        "    return lines[1:]",
        ("E10",),
    ),
    Mutation(
        "a run that has diverged is called failed",
        "finetune/errors.py",
        'status = "diverged"',
        'status = "failed"',
        ("D8",),
    ),
    Mutation(
        "the sentiment recipe trains on neutral reviews too",
        "recipes/sentiment.py",
        "return division in NAMES",
        "return division is not None",
        ("A3",),
    ),
    Mutation(
        "the metric quadratic_kappa has linear weights",
        "metrics/quadratic_kappa/quadratic_kappa.py",
        'weights="quadratic",',
        'weights="linear",',
        ("B6",),
    ),
    Mutation(
        "the lock of a run directory is a file that nobody locks",
        "finetune/runs/directory.py",
        "            file_lock = FileLock(path, thread_local=False)",
        '            file_lock = FileLock(f"{path}{os.getpid()}", thread_local=False)',
        ("D7",),
    ),
    Mutation(
        "the checksums of a checkpoint are not compared",
        "finetune/runs/checkpoints.py",
        "if present.get(name) != saved.get(name):",
        'if present.get(name, {}).get("bytes") != saved.get(name, {}).get("bytes"):',
        ("D5",),
    ),
    Mutation(
        "a resumed run loses the losses since the last log",
        "finetune/training/trainer.py",
        "self._loss += losses[self.args.process_index] if is_same_job else mean",
        "self._loss += 0 * mean",
        ("D5",),
    ),
    Mutation(
        "the evaluation loss is the mean of the means of batches",
        "finetune/training/trainer.py",
        'return {**metrics, "loss": losses.mean().item()}',
        "return metrics",
        ("D3",),
    ),
    Mutation(
        "the worst epoch is taken for the best",
        "finetune/training/arguments.py",
        'if DIRECTIONS.get(str(best).removeprefix("eval_")) == -1:',
        'if DIRECTIONS.get(str(best).removeprefix("eval_")) == 1:',
        ("D10", "B6"),
    ),
    Mutation(
        "the words NA and null in a table count as missing",
        "finetune/data/read.py",
        "[field or None for field in column]",
        '[None if field in ("", "NA", "null") else field for field in column]',
        ("C4",),
    ),
    Mutation(
        "line numbers of a table are one too low",
        "finetune/data/read_text.py",
        "            line = reader.line_num + 1",
        "            line = reader.line_num",
        ("C3", "C5"),
    ),
    Mutation(
        "missing texts and labels are refused without their lines",
        "finetune/data/targets.py",
        "            rows=numbers,",
        "            rows=(),",
        ("C5",),
    ),
    Mutation(
        "training rows that are in a held-out split stay",
        "finetune/data/digests.py",
        'index = index[index["split"] == earliest]',
        "index = index.copy()",
        ("C6",),
    ),
    Mutation(
        "the newest rows become the validation set",
        "finetune/data/splits.py",
        'HELD_OUT = ("test", "validation")',
        'HELD_OUT = ("validation", "test")',
        ("C7",),
    ),
    Mutation(
        "--exclude leaves no row out",
        "finetune/checking/corrections.py",
        'if flag == "--exclude":',
        'if flag == "":',
        ("C8",),
    ),
    Mutation(
        "the probability columns of predict are swapped",
        "finetune/tasks/decoding.py",
        "columns[PROBABILITY] = values.max(axis=1)",
        "columns[PROBABILITY] = values.max(axis=1)\n        values = values[:, ::-1]",
        ("E4",),
    ),
    Mutation(
        "evaluate counts the rows that were tested on as those that were trained on",
        "finetune/pipeline/evaluate.py",
        'seen_in(rows, recipe.splits["train"], recipe.input_column)',
        'seen_in(rows, recipe.splits["test"], recipe.input_column)',
        ("E5",),
    ),
    Mutation(
        "the difference of two models in F1 has the wrong sign",
        "finetune/statistics/estimates.py",
        "replicates = second - first",
        "replicates = first - second",
        ("E6", "E3"),
    ),
    Mutation(
        "--csv_safe has no effect on cells",
        "finetune/pipeline/output.py",
        "writer.writerow(map(escape, values))",
        "writer.writerow(values)",
        ("F5",),
    ),
    Mutation(
        "the token of the Hub is written into training_args.bin",
        "finetune/training/arguments.py",
        'return {**self.__dict__, "hub_token": None}',
        "return {**self.__dict__}",
        ("F2",),
    ),
    Mutation(
        "a user's mistake ends with exit status 1",
        "finetune/runtime/stopping.py",
        "    return 2 if isinstance(error, UserError) else 1",
        "    return 1",
        ("F4",),
    ),
    Mutation(
        "a recipe file that run.json names is run without --trust_recipe",
        "finetune/recipe/catalog.py",
        'refuse_untrusted([Path(name)], "recipe", manifest)',
        'import_file(Path(name), "recipe")',
        ("F1",),
    ),
    Mutation(
        "an existing run is written over instead of moved aside",
        "finetune/runs/directory.py",
        "    if not _list_files(directory):",
        "    if not _list_files(directory) or directory.exists():",
        ("A9",),
    ),
    Mutation(
        "long texts lose the end that --truncation keeps",
        "finetune/recipe/pretrained.py",
        'side = "left" if self.truncation == "tail" else "right"',
        'side = "left" if self.truncation == "head" else "right"',
        ("B1",),
    ),
    Mutation(
        "the tokens of a row on a CPU attend to what fills it up",
        "finetune/models/cpu/unpadded.py",
        "visible = torch.from_numpy(is_token | ~is_token[:, :1])[:, None, None]",
        "visible = torch.ones(count, 1, 1, length, dtype=torch.bool)",
        ("D11",),
    ),
    Mutation(
        "--dry_run trains",
        "finetune/config/settings.py",
        'dry_run=bool(user_options.get("dry_run")),',
        'dry_run=user_options.get("dry_run") == "true",',
        ("A7",),
    ),
    Mutation(
        "the thresholds of labels are not folded into the saved model",
        "finetune/models/head.py",
        "_scaled(bias.double(), factor, torch.as_tensor(shift).to(factor))",
        "_scaled(bias.double(), factor)",
        ("B4",),
    ),
    Mutation(
        "batches are padded on the left",
        "finetune/models/families.py",
        'return {**settings, "padding_side": "right"}',
        'return {**settings, "padding_side": "left"}',
        ("B5",),
    ),
    Mutation(
        "files in Windows-1252 are read as Latin-1",
        "finetune/data/read_text.py",
        '    return "cp1252"',
        '    return "latin-1"',
        ("C2",),
    ),
    Mutation(
        "a batch that does not divide is answered with rows of one process",
        "finetune/rules/batch.py",
        "smaller = rows // shares * shares",
        "smaller = rows // shares",
        ("D2",),
    ),
    Mutation(
        "labels are suspected where the model is least confident",
        "finetune/statistics/mistakes.py",
        'np.argsort(-confidence, kind="stable")[:confident]',
        'np.argsort(confidence, kind="stable")[:confident]',
        ("E9",),
    ),
    Mutation(
        "finetune.train prints the dictionaries of the library",
        "finetune/pipeline/train.py",
        "trainer.remove_callback(PrinterCallback)",
        "trainer.remove_callback(ProgressCallback)",
        ("E11",),
    ),
    Mutation(
        "modules in the current directory are imported",
        "finetune/__init__.py",
        "[entry for entry in sys.path if os.path.realpath(entry or os.curdir) != directory]",
        "[entry for entry in sys.path]",
        ("F3",),
    ),
    Mutation(
        "any number of rows may wait in the queue of the server",
        "finetune/serving/batching.py",
        "if len(self._waiting) + len(rows) > self._max_waiting:",
        "if len(self._waiting) + len(rows) < 0:",
        ("H2",),
    ),
    Mutation(
        "the train_loss of a resumed run counts losses from before the stop",
        "finetune/training/trainer.py",
        "self._total_loss -= mean",
        "self._total_loss += mean",
        ("D5",),
    ),
    Mutation(
        "pairs lose the end that --truncation keeps",
        "finetune/data/encoding.py",
        'head = 0 if self.tokenizer.truncation_side == "left" else share',
        'head = 0 if self.tokenizer.truncation_side == "right" else share',
        ("B1",),
    ),
    Mutation(
        "intervals of shares are not corrected for bias",
        "finetune/statistics/estimates.py",
        "np.clip((value - _bias(mean) - scale.lowest) / width, 0, 1)",
        "np.clip((value - scale.lowest) / width, 0, 1)",
        ("E2",),
    ),
    Mutation(
        "a checkpoint that lacks weights is loaded",
        "finetune/training/trainer.py",
        "for same in names.values() if saved.isdisjoint(same)",
        "for same in names.values() if not saved",
        ("D5",),
    ),
    Mutation(
        "the user is asked for the task of whole numbers from 0 or 1 without gaps",
        "finetune/tasks/detection.py",
        "is_gapless = finite[0] in (0, 1) and",
        "is_gapless = finite[0] in () and",
        ("B2",),
    ),
    Mutation(
        "intervals over few seeds have the quantile of the normal distribution",
        "finetune/statistics/estimates.py",
        "float(stdtrit(max(1.0, freedom), _UPPER))",
        "float(ndtri(_UPPER))",
        ("G2",),
    ),
)


def mutated(mutation: Mutation, root: Path) -> str:
    """Return the source of the file with the mutation.

    Raises:
        SystemExit: If the old text does not occur exactly once, or the result does not compile.
    """
    source = (root / mutation.path).read_text(encoding="utf-8")
    if (count := source.count(mutation.old)) != 1 or "\n" in mutation.old:
        sys.exit(f"{mutation.path}: {mutation.name}: the line occurs {count} times, expected 1")
    changed = source.replace(mutation.old, mutation.new)
    try:
        compile(changed, mutation.path, "exec")
    except SyntaxError as error:
        sys.exit(f"{mutation.path}: {mutation.name}: {error}")
    return changed


def verify() -> None:
    """Exit if the table has another size or repeated names, or a line does not occur once."""
    names = {mutation.name for mutation in MUTATIONS}
    if len(MUTATIONS) != ENTRIES or len(names) != ENTRIES:
        sys.exit(f"expected {ENTRIES} mutations with different names, found {len(names)}")
    for mutation in MUTATIONS:
        mutated(mutation, ROOT)


def make_copy(workspace: Path) -> Path:
    """Copy the repository, and exit if another ``finetune`` would be imported in the copy."""
    tree = workspace / "tree"
    tree.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, tree / name)
    command = [sys.executable, "-c", "import finetune; print(finetune.__file__)"]
    output = subprocess.check_output(command, cwd=tree, env=environment(tree), text=True).strip()
    if Path(output).resolve() != (tree / "finetune" / "__init__.py").resolve():
        sys.exit(f"the copy is not imported: expected {tree}/finetune, found {output}")
    return tree


def environment(tree: Path) -> dict[str, str]:
    """Return the environment of a test run, with the copy first on the import path."""
    return {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }


def run_tests(mutation: Mutation, tree: Path) -> dict[str, Any]:
    """Run the tests of a mutation's rows in a copy, then restore the file."""
    path = tree / mutation.path
    source, start = path.read_text(encoding="utf-8"), time.monotonic()
    command = [*PYTEST, "-x", "--contract", ",".join(mutation.rows)]
    path.write_text(mutated(mutation, tree), encoding="utf-8")
    try:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment(tree),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # to kill the processes that the tests start, too
        )
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            outcome, failed = "red", f"timed out after {TIMEOUT} s"
        else:
            outcome = {0: "survived", 1: "red"}.get(process.returncode, "error")
            summary = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
            failed = summary[1] if summary else ""
            if outcome == "error":
                failed = failed or f"exit status {process.returncode}: {output.strip()[-300:]}"
    finally:
        path.write_text(source, encoding="utf-8")
    seconds = round(time.monotonic() - start, 1)
    return {"outcome": outcome, "failed": failed, "seconds": seconds}


def run(chosen: Sequence[Mutation], jobs: int, path: Path) -> dict[str, Any]:
    """Run the mutations without a result, and write each result as soon as it is known."""
    results: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    waiting = [mutation for mutation in chosen if mutation.name not in results]
    trees: queue.Queue[Path] = queue.Queue()
    recording = threading.Lock()

    def record(mutation: Mutation) -> None:
        tree = trees.get()
        try:
            result = run_tests(mutation, tree)
        finally:
            trees.put(tree)
        with recording:
            results[mutation.name] = result
            path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
            print(f"{result['outcome']:<8} {result['seconds']:6.1f} s  {mutation.name}", flush=True)

    with tempfile.TemporaryDirectory(prefix="mutations-") as directory:
        for number in range(min(jobs, len(waiting))):
            trees.put(make_copy(Path(directory, str(number))))
        if waiting and UNCHANGED not in results:
            tree = trees.queue[0]
            command = [*PYTEST, "-n", str(jobs), "--dist", "loadfile"]
            if subprocess.run(command, cwd=tree, env=environment(tree), check=False).returncode:
                sys.exit("the acceptance suite fails without a mutation: none was run")
            results[UNCHANGED] = {"outcome": "green"}
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            for future in [pool.submit(record, mutation) for mutation in waiting]:
                future.result()
    return results


def main() -> int:
    """Parse the command line, run the selected mutations and print the table."""
    parser = argparse.ArgumentParser(description="Run mutations that the tests must detect")
    parser.add_argument("--only", metavar="NAME_PART", help="mutations whose name contains this")
    parser.add_argument("--first", type=int, metavar="N", help="the first N mutations")
    parser.add_argument("--jobs", type=int, default=2, help="parallel mutations (default: 2)")
    parser.add_argument("--results", type=Path, default=Path("mutations.json"), metavar="FILE")
    parser.add_argument("--verify", action="store_true", help="only check the table")
    options = parser.parse_args()
    verify()
    if options.verify:
        print(f"{len(MUTATIONS)} mutations, each of one line that occurs once")
        return 0
    chosen = [m for m in MUTATIONS[: options.first] if (options.only or "") in m.name]
    if not chosen:
        sys.exit(f"--only {options.only}: no mutation has a name with this text")
    results = run(chosen, options.jobs, options.results)
    print()
    for mutation in chosen:
        result = results[mutation.name]
        print(f"{result['outcome']:<8}  {','.join(mutation.rows):<8}  {mutation.name}")
        print(f"{'':<20}{result['failed']}")
    red = sum(results[mutation.name]["outcome"] == "red" for mutation in chosen)
    print(f"{red} of {len(chosen)} mutations turned the suite red")
    return int(red < len(chosen) - len(chosen) // 20)  # at most 2 of 40 may survive


if __name__ == "__main__":
    sys.exit(main())
