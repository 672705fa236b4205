"""The command line: one file per subcommand, which parses, calls the pipeline and prints."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; see :func:`finetune.cli.dispatch.main`."""
    try:
        from finetune.cli import dispatch
    except KeyboardInterrupt:  # from here on it is handled there
        print("interrupted", file=sys.stderr)
        return 130
    return dispatch.main(words)
