"""The command line: one file a verb, which parses, calls the pipeline and shows the result."""

from finetune.cli.dispatch import VERBS, main, usage

__all__ = ["VERBS", "main", "usage"]
