"""The command line: it parses, calls the pipeline and prints."""

from finetune.cli.dispatch import main as main
