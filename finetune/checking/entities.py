"""Check labelled entities: words with a label in most places and another one in a few, and types
with few entities.

What most places say of the same words is out of the sample of the few others. So it needs no model,
and finds what annotators overlooked where they tagged the same name elsewhere.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from datasets import Dataset

from finetune.data import tags, targets, words
from finetune.data.targets import OUTSIDE, RELABEL, report_rows
from finetune.errors import Findings, Severity, counted, list_first

#: The fewest places with the same words, and the share of them that has to agree.
_MIN_PLACES, _MIN_SHARE = 5, 0.8
#: The share of entities that contradict others above which there is a warning.
_SUSPICIOUS = 0.03
_MAX_WORDS = 10  # of an entity that is looked for elsewhere
_MIN_ENTITIES = 50  # of a type, to learn it and to score it
_MAX_LISTED = 5


class _Contradiction(NamedTuple):
    """A place whose words have another label in most places."""

    span: tags.Span  # with its label, the type or O
    label: str  # that of most places
    share: float  # of the places
    reason: str


def check_entities(rows: Dataset, report: Findings) -> None:
    """Report contradicting labels of the same words, and types with few entities.

    Args:
        rows: The training rows.
        report: Gets the findings.
    """
    names = targets.class_names(rows)
    labels = targets.values(rows)
    spans = [tags.spans_of(row, names) for row in labels]
    counts = Counter(name for row in spans for *_, name in row)
    few = [f"'{name}' {counts[name]:,}" for name in names if 0 < counts[name] < _MIN_ENTITIES]
    if few:
        message = f"{counted(len(few), 'type')} with fewer than {_MIN_ENTITIES} training entities"
        report.info(f"{message}: {list_first(few, _MAX_LISTED)}", "few_entities_of_a_type")
    contradictions: dict[int, list[_Contradiction]] = defaultdict(list)
    total = 0
    for entity, places in _find_places(rows["text"][:], labels, names).items():
        frequencies = Counter(label for _, (*_, label) in places)
        label, count = frequencies.most_common(1)[0]
        if count == len(places) or count < max(_MIN_PLACES, _MIN_SHARE * len(places)):
            continue
        reason = f"'{' '.join(entity)}' is {label} in {count:,} of {len(places):,} places"
        for row, span in places:
            if span[2] != label:
                total += 1
                contradiction = _Contradiction(span, label, count / len(places), reason)
                contradictions[row].append(contradiction)
    severity: Severity = "info"
    if total > _SUSPICIOUS * counts.total():
        severity = "warning"
    positions = sorted(contradictions)
    reasons, suggested, scores = [], [], []
    for row in positions:
        longest_first = sorted(contradictions[row], key=lambda part: part.span[0] - part.span[1])
        reasons.append(", ".join(part.reason for part in longest_first))
        suggested.append(tags.spans_text(_corrected(spans[row], longest_first)))
        scores.append(max(part.share for part in longest_first))
    example = ""
    if reasons:
        example = f", such as {reasons[0]}"
    report_rows(
        report,
        "contradicting_entities",
        f"with words that are labelled otherwise in most places{example}",
        f"read them, as some words have two meanings; {RELABEL}",
        positions,
        rows,
        "train",
        severity=severity,
        suspects=(reasons, suggested, scores),
    )


def _find_places(
    texts: Sequence[str], labels: Sequence[Sequence[words.Word]], types: Sequence[str]
) -> dict[tuple[str, ...], list[tuple[int, tags.Span]]]:
    """Return by the words of an entity in which rows they are, and where: as an entity, or outside
    of all entities; words that are a part of an entity do not count.
    """
    places: dict[tuple[str, ...], list[tuple[int, tags.Span]]] = defaultdict(list)
    words_of_rows = list(map(words.words_in, texts, labels))
    for row, label in enumerate(labels):
        tags_of_row = np.array([word["tag"] for word in label])
        for first, end, kind in words.find_entities(tags_of_row).tolist():
            span = label[first]["start"], label[end - 1]["end"], types[kind]
            places[tuple(words_of_rows[row][first:end])].append((row, span))
    lengths = sorted({len(entity) for entity in places if len(entity) <= _MAX_WORDS})
    for row, label in enumerate(labels):
        for length in lengths:
            for first in range(len(label) - length + 1):
                part = label[first : first + length]
                entity = tuple(words_of_rows[row][first : first + length])
                if entity in places and not any(word["tag"] for word in part):
                    span = part[0]["start"], part[-1]["end"], OUTSIDE
                    places[entity].append((row, span))
    return places


def _corrected(
    spans: Sequence[tags.Span], contradictions: Sequence[_Contradiction]
) -> list[tags.Span]:
    """Return the entities of a row as most places have them; of words that overlap the longest."""
    corrected = set(spans)
    changed: list[tags.Span] = []
    for span, label, *_ in contradictions:
        start, end, _ = span
        if any(start < other[1] and other[0] < end for other in changed):
            continue
        changed.append(span)
        corrected.discard(span)
        if label != OUTSIDE:
            corrected.add((start, end, label))
    return sorted(corrected)
