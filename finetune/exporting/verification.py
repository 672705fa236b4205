"""Compare the answers of an export with those of the model in fp32, and with each other."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finetune.predicting.engines import OnnxSession
from finetune.predicting.files import Facts
from finetune.predicting.text import FastTokenizer, TextInference
from finetune.recipe.run import Run
from finetune.statistics.metrics import estimate, estimate_difference, find_metrics
from finetune.statistics.scored import agreement

_ALONE = 32  # rows that are also answered alone
_STEP = 4  # ratio of the words of made texts


class Verification:
    """Answers of an export to validation rows, and to texts of any length that are made from them.

    Args:
        run: The run.
        texts: Validation rows, as the model reads them.
        labels: Their labels.
        facts: Those of the export.
        logits: Returns the logits of the model in fp32.
    """

    def __init__(
        self,
        run: Run,
        texts: Sequence[Any],
        labels: np.ndarray,
        facts: Facts,
        logits: Callable[[Sequence[Any]], np.ndarray],
    ) -> None:
        self._run = run
        self._facts = facts
        self._rows = len(texts)
        self._texts = [*texts, *_make_texts(texts, facts.encoding["max_length"])]
        self._labels = np.resize(labels, (len(self._texts), *labels.shape[1:]))
        spread = np.linspace(0, self._rows - 1, min(_ALONE, self._rows)).astype(int)
        self._alone = np.append(spread, np.arange(self._rows, len(self._texts)))
        self._reference = logits(self._texts)

    def check(self, directory: Path) -> tuple[dict[str, Any], np.ndarray]:
        """Return how an export agrees with the model, how its answers depend on other rows, and
        its logits.

        Returns:
            See :func:`finetune.statistics.scored.agreement`; ``neighbours`` has the same for the
            answers to a row in a batch, alone, and padded to the greatest length.
        """
        facts = self._facts
        tokenizer, session = FastTokenizer(directory, facts), OnnxSession(directory, facts)
        export = TextInference(tokenizer, facts, session)
        outputs = export(self._texts)
        alone, padded = outputs.copy(), outputs.copy()
        texts = [self._texts[number] for number in self._alone]
        alone[self._alone] = [export([text])[0] for text in texts]
        export = TextInference(tokenizer, facts, session, facts.encoding["max_length"])
        padded[self._alone] = export(texts)
        agreements = [self._agreement(alone, outputs), self._agreement(alone, padded)]
        neighbours: dict[str, Any] = {"rows": len(texts)}
        for name in ("changed", "largest_difference"):
            values = [agreement[name] for agreement in agreements]
            neighbours[name] = np.max(values).item()  # NaN if one is
        return self._agreement(self._reference, outputs) | {"neighbours": neighbours}, outputs

    def scores(self, outputs: np.ndarray) -> dict[str, Any]:
        """Return the score of logits on the validation rows, and its difference to fp32."""
        kind, labels = self._run.kind, self._labels[: self._rows]
        answers = kind.scored(labels, outputs[: self._rows])
        reference = kind.scored(labels, self._reference[: self._rows])
        name, metric = next(iter(find_metrics(kind.label_kind, kind.metrics).items()))
        difference = estimate_difference(reference, answers, {name: metric})
        return {"score": estimate(answers, {name: metric}), "difference": difference}

    def _agreement(self, first: np.ndarray, second: np.ndarray) -> dict[str, Any]:
        scored = self._run.kind.scored
        return agreement(scored(self._labels, first), scored(self._labels, second))


def _make_texts(texts: Sequence[Any], max_length: int) -> list[Any]:
    """Return texts, or tuples of texts, of 1, 4, 16 ... and ``max_length`` words."""
    columns = zip(*([text] if isinstance(text, str) else text for text in texts), strict=True)
    words = [" ".join(column[:max_length]).split() for column in columns]
    counts = [1]
    while counts[-1] < max_length:
        counts.append(min(_STEP * counts[-1], max_length))
    rows = []
    for count in counts:
        row = tuple(" ".join(part[:count]) for part in words)
        rows.append(row if isinstance(texts[0], tuple) else row[0])
    return rows
