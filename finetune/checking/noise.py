"""Labels of training rows that are probably wrong.

A bag of words, as in the baseline, predicts each training row from the other four fifths. As in the
report (docs/decisions/suspected-labels.md), a label is suspected where one of the most
confident tenth of the predictions contradicts it, if they beat the most frequent class.
"""

from __future__ import annotations

import numpy as np

from finetune.checking.bag import Bag
from finetune.checking.finding import MOST_SUSPECTS, RELABEL
from finetune.data import ROW, targets
from finetune.errors import Finding, Suspect
from finetune.statistics import intervals
from finetune.statistics.mistakes import suspicion
from finetune.statistics.scored import ScoredRows

_FOLDS = 5
#: The share of wrong labels, at the lower end of its interval, from which on it is suspicious: of
#: the clean embedded sets up to 2% are estimated.
_MUCH = 0.03


def findings(bag: Bag) -> list[Finding]:
    """Return the labels that are suspected.

    Args:
        bag: Of rows with one class each.
    """
    rows, names = bag.splits["train"], targets.class_names(bag.splits["train"])
    probabilities = bag.out_of_fold(_FOLDS)
    if probabilities is None:
        return []
    scored = ScoredRows(names, bag.labels, probabilities)
    found = suspicion(scored)
    right = intervals.of_share(float(scored.right.sum()), len(scored))
    # else it mostly says the most frequent class, and contradicts whatever is rare
    beats_constant = right.low > np.bincount(bag.labels).max() / len(bag.labels)
    if found is None or not beats_constant:
        return [
            Finding(
                name="suspected_labels",
                severity="info",
                message="the labels could not be checked: a bag of words trained on other rows is "
                f"wrong about {1 - right.value:.0%} of them, so that its predictions say little",
                fix="train, and read suspects.csv of the run: the model knows more",
                examined=len(bag.labels),
            )
        ]
    if not len(found.rows):
        return []
    chosen = found.rows[:MOST_SUSPECTS]
    ids = [int(each) for each in rows.select(bag.rows[chosen])[ROW][:]]
    return [
        Finding(
            name="suspected_labels",
            severity="warning" if found.wrong.low > _MUCH else "info",
            message=f"{len(found.rows):,} of the {found.confident:,} most confident predictions of "
            "a bag of words, each for a training row that it was not trained on, contradict the "
            f"label. About {found.wrong.value:.1%} of all labels or fewer "
            f"are wrong (95% CI {found.wrong.low:.1%} to {found.wrong.high:.1%})",
            fix=f"read them, some are right and only unusual; {RELABEL}",
            count=len(found.rows),
            split="train",
            rows=ids,
            examined=len(bag.labels),
            suspects=[
                Suspect(
                    row=number,
                    reason=f"label '{names[bag.labels[row]]}' is contradicted",
                    suggested=names[int(np.argmax(probabilities[row]))],
                    score=float(f"{probabilities[row].max():.3g}"),
                )
                for number, row in zip(ids, chosen.tolist(), strict=True)
            ],
        )
    ]
