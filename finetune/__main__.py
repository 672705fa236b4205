"""Run the command line: ``python -m finetune``."""

import sys

try:
    from finetune.cli import main
except KeyboardInterrupt:
    sys.stderr.write("interrupted\n")
    raise SystemExit(130) from None

raise SystemExit(main())
