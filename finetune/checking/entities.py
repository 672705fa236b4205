"""Check labelled entities: words with a label in most places and another one in a few, and types
with few entities.

What most places say of the same words is out of the sample of the few others. So it needs no model,
and finds what annotators overlooked where they tagged the same name elsewhere.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from datasets import Dataset

from finetune.data import tags, targets
from finetune.data.targets import OUTSIDE, RELABEL, report_rows
from finetune.errors import Findings, Severity, counted, list_first

#: The fewest places with the same words, and the share of them that has to agree.
_MIN_PLACES, _MIN_SHARE = 5, 0.8
#: The share of entities that contradict others above which there is a warning.
_SUSPICIOUS = 0.03
_MAX_WORDS = 10  # of an entity that is looked for elsewhere
_MIN_ENTITIES = 50  # of a type, to learn it and to score it
_MAX_LISTED = 5


class _Place(NamedTuple):
    """Words of a row that are an entity, or that are one elsewhere."""

    row: int
    start: int  # in characters
    end: int
    label: str  # the type, or O


def check_entities(rows: Dataset, report: Findings) -> None:
    """Report contradicting labels of the same words, and types with few entities.

    Args:
        rows: The training rows.
        report: Gets the findings.
    """
    names = targets.class_names(rows)
    spans = [tags.spans_of(labels, names) for labels in targets.values(rows)]
    counts = Counter(name for row in spans for *_, name in row)
    few = [f"'{name}' {counts[name]:,}" for name in names if 0 < counts[name] < _MIN_ENTITIES]
    if few:
        message = f"{counted(len(few), 'type')} with fewer than {_MIN_ENTITIES} training entities"
        report.info(f"{message}: {list_first(few, _MAX_LISTED)}", "few_entities_of_a_type")
    contradicting: dict[int, list[tuple[_Place, str, str, float]]] = defaultdict(list)
    total = 0
    for words, places in _places(rows, spans).items():
        (label, count), *others = Counter(place.label for place in places).most_common()
        if not others or count < max(_MIN_PLACES, _MIN_SHARE * len(places)):
            continue
        reason = f"'{' '.join(words)}' is {label} in {count:,} of {len(places):,} places"
        for place in places:
            if place.label != label:
                total += 1
                fact = place, label, reason, count / len(places)
                contradicting[place.row].append(fact)
    severity: Severity = "info"
    if total > _SUSPICIOUS * counts.total():
        severity = "warning"
    positions = sorted(contradicting)
    reasons, suggested, scores = [], [], []
    for row in positions:
        facts = sorted(contradicting[row], key=lambda fact: fact[0].start - fact[0].end)
        reasons.append(", ".join(reason for _, _, reason, _ in facts))
        suggested.append(tags.spans_text(_corrected(spans[row], facts)))
        scores.append(max(score for *_, score in facts))
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


def _places(
    rows: Dataset, spans: Sequence[Sequence[tags.Span]]
) -> dict[tuple[str, ...], list[_Place]]:
    """Return where the words of entities are, as an entity or outside of all entities; words that
    are a part of an entity do not count.
    """
    places: dict[tuple[str, ...], list[_Place]] = defaultdict(list)
    outside: list[list[tuple[int, int, str]]] = []
    for row, (words, entities) in enumerate(zip(_words(rows), spans, strict=True)):
        free = []
        for start, end, name in entities:
            inside = [text for first, _, text in words if start <= first < end]
            places[tuple(inside)].append(_Place(row, start, end, name))
        for first, last, text in words:
            is_free = not any(start <= first < end for start, end, _ in entities)
            free.append((first, last, text if is_free else ""))
        outside.append(free)
    lengths = sorted({len(key) for key in places if len(key) <= _MAX_WORDS})
    for row, words in enumerate(outside):
        for length in lengths:
            for number in range(len(words) - length + 1):
                part = words[number : number + length]
                key = tuple(text for *_, text in part)
                if key in places:
                    places[key].append(_Place(row, part[0][0], part[-1][1], OUTSIDE))
    return places


def _words(rows: Dataset) -> Iterator[list[tuple[int, int, str]]]:
    """Yield start, end and text of the words of each row."""
    for text, labels in zip(rows["text"][:], targets.values(rows), strict=True):
        row = []
        for word in labels:
            row.append((word["start"], word["end"], text[word["start"] : word["end"]]))
        yield row


def _corrected(
    spans: Sequence[tags.Span], facts: Sequence[tuple[_Place, str, str, float]]
) -> list[tags.Span]:
    """Return the entities of a row as most places have them; of words that overlap the longest."""
    corrected = {span[:2]: span for span in spans}
    taken: set[int] = set()
    for place, label, *_ in facts:
        characters = set(range(place.start, place.end))
        if taken & characters:
            continue
        taken |= characters
        corrected.pop((place.start, place.end), None)
        if label != OUTSIDE:
            corrected[place.start, place.end] = (place.start, place.end, label)
    return sorted(corrected.values())
