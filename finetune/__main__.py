"""Run the command line: ``python -m finetune``."""

from finetune.cli import main

raise SystemExit(main())
