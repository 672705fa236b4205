"""A bar on standard error that follows rank 0 through an input, where somebody watches."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from finetune.pipeline.events import Event, Predicted
from finetune.runtime import distributed


class Bar:
    """Shows :class:`~finetune.pipeline.events.Predicted`."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, event: Event) -> None:
        """Move to the position of the event."""
        if not isinstance(event, Predicted):
            return
        if self._bar is None:
            self._bar = tqdm(
                total=event.total,
                unit=" rows" if event.counted else "B",
                unit_scale=True,
                disable=distributed.ranks().rank != 0 or not sys.stderr.isatty(),
                dynamic_ncols=True,
            )
        self._bar.set_postfix_str(f"{event.rows:,} rows", refresh=False)
        self._bar.update(event.position - self._bar.n)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
