"""``main``: run a subcommand or a recipe. torch is imported only when one of them needs it.

python -m finetune RECIPE [flags]
"""

import contextlib
import io
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.errors import RunError, UserError, first_line, masked, suggestion
from finetune.recipe import catalog
from finetune.runtime import __version__, distributed, stopping
from finetune.runtime.files import to_json_values

VERBS = {
    "train": "fine-tune a recipe, the same as `python -m finetune RECIPE`: train RECIPE",
    "repeat": "fine-tune with several seeds, for the mean and its interval: repeat RECIPE",
    "search": "search for the best learning rate, epochs and so on: search RECIPE",
    "check": "find errors and suspicious rows before training: check RECIPE",
    "evaluate": "evaluate the model of a run on its test set or on other data: evaluate RUN",
    "predict": "label new rows with the model of a run: predict RUN INPUT",
    "export": "export the model of a run to ONNX, for use without torch: export RUN",
    "serve": "serve a run or an export over HTTP, with a page to try it: serve RUN",
    "push": "push the model of a run to the Hugging Face Hub: push RUN --repo NAME",
    "compare": "compare runs on the same test rows: compare RUN RUN",
    "report": "regenerate the report, plots and model card of a run: report RUN",
    "doctor": "show devices, network and versions; under torchrun, also time an all-reduce",
    "list": "list the recipes, or the runs in a directory: list [DIRECTORY]",
    "skill": "install the skill that tells an agent how to use this: skill [DIRECTORY]",
}
#: Verbs whose work a signal stops so that it can be continued.
_TRAINING = ("train", "repeat", "search")
_USAGE = """\
usage: python -m finetune RECIPE [flags]
       python -m finetune RECIPE [flags] --num_processes 2
       torchrun --nproc_per_node=2 -m finetune RECIPE [flags]
       accelerate launch -m finetune RECIPE [flags]

recipes (or the path of your own recipe, e.g. path/to/mine.py)
{recipes}

subcommands
{verbs}

python -m finetune RECIPE --help   the flags of a recipe
python -m finetune --version"""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command.

    With ``--json``, standard output has one JSON object: the answer, or the errors. All else that
    is printed goes to standard error.

    Args:
        words: The command-line arguments; ``sys.argv[1:]`` if None.

    Returns:
        The exit status: 0 for success, 1 if a run failed, 2 for a user's mistake, 3 if ``check``
        found warnings, 75 if a signal stopped a training, 130 if Ctrl-C ended another command.
    """
    if words is None:
        words = sys.argv[1:]
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no C++ stacks of closed connections
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no "USDT: profiler_start" from --profile
    stopping.keep_secrets()
    if isinstance(sys.stdout, io.TextIOWrapper):  # whose encoding may lack letters of the data
        sys.stdout.reconfigure(errors="backslashreplace")
    is_json = "--json" in words
    answer: Mapping[str, Any]
    try:
        with contextlib.ExitStack() as stack:
            if is_json:
                stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            answer = _run(list(words)) or {}
    except BrokenPipeError:
        _close_stdout()
        return 0
    except (stopping.Stopped, Exception) as error:
        mistakes = getattr(error, "mistakes", None) or [masked(first_line(error))]
        answer = {"status": stopping.stop(error), "errors": mistakes}
    except KeyboardInterrupt:
        if distributed.is_main_process():
            print("interrupted", file=sys.stderr)
        answer = {"status": 130, "errors": ["interrupted"]}
    answer = {"schema": 1, "status": 0, **answer}
    if is_json and distributed.is_main_process():
        try:
            print(json.dumps(to_json_values(answer), indent=2, allow_nan=False), flush=True)
        except OSError as error:
            _close_stdout()
            if not isinstance(error, BrokenPipeError):  # the disk is full
                return stopping.stop(RunError(f"standard output: {error.strerror}"))
    return int(answer["status"])


def _close_stdout() -> None:
    """Discard what is printed from now on: the reader, such as `head`, has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> Any:
    """Run a command, and return its answer for ``--json``, if it has one."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(_USAGE.format(recipes=_table(catalog.summaries()), verbs=_table(VERBS)))
        return None
    if words[0] in ("--version", "-V"):
        print(f"finetune {__version__}")
        return None
    verb, *rest = words
    if verb == "list":
        return _list([word for word in rest if word != "--json"])
    if verb not in VERBS:
        names = catalog.summaries()
        if not (verb in names or verb.endswith(".py")):
            raise UserError(
                f"unknown recipe or subcommand '{verb}'"
                f"{suggestion(verb, [*VERBS, *names, '--help', '--version'])} (python -m finetune "
                f"RECIPE [flags]; available: {', '.join([*names, *VERBS])}, or the path of a "
                "recipe file, .py)"
            )
        verb, rest = "train", words
    one_process = ("check", "compare", "export", "push", "report", "serve", "skill")
    if verb in one_process and distributed.under_launcher():
        raise UserError(f"{verb} runs in one process: type python -m finetune {verb} ...")
    if verb not in ("doctor", "search"):  # processes of a search are its workers
        distributed.refuse_separate_processes()
    with contextlib.ExitStack() as stack:
        if verb in _TRAINING:  # also while libraries are imported
            stack.enter_context(stopping.handled())
        from finetune.cli import console, verbs

        warnings.showwarning = lambda message, *_, **__: console.print_stderr(str(message))
        return getattr(verbs, verb)(rest)


def _list(words: list[str]) -> dict[str, Any]:
    """List the recipes, or the runs in a directory."""
    if len(words) > 1:
        raise UserError(f"list: expected at most a directory, found {' '.join(words)}")
    if words in ([], ["--help"]):
        recipes = catalog.summaries()
        print(_table(recipes))
        return {"recipes": recipes}
    from finetune.sets.listing import describe, list_runs

    runs = list_runs(*words)
    print(_table({name: describe(facts) for name, facts in runs.items()}))
    return {"runs": runs}


def _table(descriptions: Mapping[str, str]) -> str:
    """Return one line per name, indented by two spaces, with the descriptions aligned."""
    width = max(map(len, descriptions), default=0)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in descriptions.items())
