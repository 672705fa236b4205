"""A bar on standard error that follows rank 0 through the input, where somebody watches."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from finetune import job
from finetune.predicting.inputs import Chunk, Input


class Progress:
    """Moves smoothly: a chunk of long texts takes a minute.

    Args:
        input: Measured in bytes where its rows are not known before they are read.
    """

    def __init__(self, input: Input) -> None:
        counted = input.kind in (".parquet", "folder")
        self._bar: Any = tqdm(
            total=input.total,
            unit=" rows" if counted else "B",
            unit_scale=True,
            disable=job.ranks().rank != 0 or not sys.stderr.isatty(),
            dynamic_ncols=True,
        )
        self._step = 0.0
        self._rows = 0

    def begin(self, chunk: Chunk) -> None:
        """The next rows are those of this chunk."""
        self._step = (chunk.end - self._bar.n) / len(chunk)

    def advance(self, rows: int) -> None:
        """So many more are done."""
        self._bar.update(rows * self._step)

    def end(self, chunk: Chunk) -> None:
        """All of the chunk are done, here or elsewhere."""
        self._rows += len(chunk)
        self._bar.set_postfix_str(f"{self._rows:,} rows", refresh=False)
        self._bar.update(chunk.end - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
