"""``python -m finetune evaluate RUN``: the model of a run on its own test set again.

The data is loaded, split and prepared as the run did it, and it is an error if the rows are not
the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from finetune import hub, job
from finetune.commands.parser import Parser
from finetune.errors import UserError
from finetune.run import Run


def main(words: Sequence[str]) -> int:
    """``finetune evaluate RUN [--per_device_eval_batch_size N]``."""
    parser = Parser("evaluate", __doc__)
    parser.add_argument("run", metavar="RUN", help="directory of a run, like runs/yelp")
    parser.add_argument("--per_device_eval_batch_size", type=int, default=32, metavar="N")
    given = parser.parse_args(words)
    run = Run.load(given.run)
    missing = hub.missing({"dataset": run.manifest["options"]["dataset"]})
    if job.ranks().rank == 0 and (unreachable := hub.unreachable(missing)):
        raise unreachable
    evaluate(run, given.per_device_eval_batch_size)
    return 0


def evaluate(run: Run, per_device_eval_batch_size: int = 32) -> dict[str, float]:
    """The metrics of the test set, computed anew; every rank calls it.

    Args:
        run: A finished run.
        per_device_eval_batch_size: Rows of a batch on one device.

    Raises:
        UserError: if the test rows are not those of the run any more.
    """
    from finetune import provenance
    from finetune.commands import console
    from finetune.data.splits import fingerprint
    from finetune.training.arguments import FinetuneArguments
    from finetune.training.defaults import training_arguments, with_defaults
    from finetune.training.trainer import build_trainer

    console.quiet()
    manifest, recipe = run.manifest, run.recipe()
    recorded = run.metrics["test"]

    def prepared() -> None:
        found = fingerprint(recipe.splits, recipe.input_column)
        if found != manifest["data"]["fingerprint"]:
            raise UserError(
                f"the data is not that of the run any more: fingerprint {found}, the run had "
                f"{manifest['data']['fingerprint']} ({manifest['data']['source']})"
            )
        _ = recipe.prepared

    given = {
        "output_dir": str(run.path),
        "per_device_eval_batch_size": per_device_eval_batch_size,
        "per_device_train_batch_size": 1,
    }
    draft = FinetuneArguments.check(with_defaults(recipe.defaults(), given))
    job.rank_zero_first(prepared)
    job.join(draft.ddp_backend, draft.ddp_timeout, draft.use_cpu)
    arguments = training_arguments(recipe.defaults(), given)
    trainer = build_trainer(
        lambda: recipe.parts(recipe.load_model(run.path, run.labels)), arguments
    )
    metrics = trainer.predict(recipe.prepared["test"]).metrics or {}
    job.leave()
    scores = provenance.scores_only(metrics, "test_")
    console.say(f"\ntest set of {run.path}, {manifest['data']['rows']['test']:,} rows")
    console.table(
        ["", *scores],
        [
            ["now", *(f"{value:.4f}" for value in scores.values())],
            ["in the run", *(f"{recorded[name]:.4f}" for name in scores)],
        ],
    )
    return scores
