"""``python -m finetune report RUN``: regenerate the report, plots and model card of a run.

python -m finetune report runs/yelp
"""

from __future__ import annotations

from collections.abc import Sequence

from finetune.cli.parser import Parser, load_run


def main(words: Sequence[str]) -> int:
    """``finetune report RUN``."""
    parser = Parser("report", __doc__)
    parser.add_argument("run", metavar="RUN", help="directory of a run, like runs/yelp")
    parser.add_trust_recipe()
    arguments = parser.parse_args(words)
    parser.refuse_launcher()

    from finetune.cli import console
    from finetune.pipeline.report import report

    written = report(load_run(arguments.run, arguments.trust_recipe))
    console.say(f"report: {written.page}; model card: {written.card}")
    if written.suspects:
        console.say(
            f"suspected rows: {written.suspects}; copy it, write the right labels into new_label, "
            "and train with --relabel COPY"
        )
    return 0
