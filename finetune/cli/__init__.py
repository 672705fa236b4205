"""The command line: one file per subcommand, which parses, calls the pipeline and prints."""

from finetune.cli.dispatch import VERBS, main, usage

__all__ = ["VERBS", "main", "usage"]
