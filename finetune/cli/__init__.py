"""The command line: one file per subcommand, which parses, calls the pipeline and prints."""

from finetune.cli.dispatch import main as main
