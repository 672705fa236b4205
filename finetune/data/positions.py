"""Where rows are in the source that they were read from, for messages and files of suspects."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from finetune.data import listing, memory, sources
from finetune.data.read import ReadOptions, line_numbers, read_file
from finetune.errors import SHOWN_PLACES


def places(
    dataset: str,
    split: str,
    rows: Sequence[int],
    options: ReadOptions | None = None,
    names: Mapping[str, str] | None = None,
) -> str:
    """Return the positions of rows of a split in its file: ``lines 5, 9``, else ``rows 4, 8``; of
    several files with their names; in memory ``positions 3, 7``, from 0.

    Args:
        dataset: As passed to :func:`finetune.data.sources.read`.
        split: The split of the rows.
        rows: Their ``id``, sorted; at least one.
        options: As passed to :func:`finetune.data.sources.read`.
        names: Likewise.
    """
    told = []
    some = _located(dataset, split, rows[:SHOWN_PLACES], options, names)
    for (name, noun), several in itertools.groupby(some, key=lambda each: each[:2]):
        numbers = [number for _, _, number in several if number is not None]
        told.append(f"{name} {shown_places(noun, numbers) if numbers else ''}".strip())
    are_files = some[0][2] is None
    more = ", ..." * (len(rows) > SHOWN_PLACES)
    return (", " if are_files else "; ").join(told) + more


def shown_places(noun: str, numbers: Sequence[int]) -> str:
    """Return positions in words: ``lines 5, 9``."""
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def each_place(
    dataset: str,
    split: str,
    rows: Sequence[int],
    options: ReadOptions | None = None,
    names: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the position of each row, as :func:`places` would of it alone; in any order.

    Args:
        dataset: As for :func:`places`, like the others.
        split: The split of the rows.
        rows: Their ``id``, in any order.
        options: What the user says of files.
        names: What the source calls its splits.
    """
    return [
        f"{name} {'' if number is None else f'{noun} {number}'}".strip()
        for name, noun, number in _located(dataset, split, rows, options, names)
    ]


def _located(
    dataset: str,
    split: str,
    rows: Sequence[int],
    options: ReadOptions | None,
    names: Mapping[str, str] | None,
) -> list[tuple[str, str, int | None]]:
    """Return of each row the file, if there are several, what a position is called, and the
    position; None of a row that is a file.
    """
    if memory.is_memory(dataset):
        return [("", "position", row) for row in rows]
    if not dataset or not sources.is_local(dataset):
        return [("", "row", row + 1) for row in rows]
    listed, options = listing.listed(dataset, names), options or ReadOptions()
    several = listed.files.get(split, ())
    if listed.kind == "texts":
        return [(str(several[row]), "", None) for row in rows]
    if listed.kind == "saved" or not several:
        return [("", "row", row + 1) for row in rows]
    found: dict[int, tuple[str, str, int | None]] = {}
    begin = 0
    for path in several:
        end = begin + len(read_file(path, options)) if len(several) > 1 else max(rows) + 1
        own = [row for row in rows if begin <= row < end]
        if own:
            noun, numbers = line_numbers(path, [row - begin for row in own], options)
            name = path.name if len(several) > 1 else ""
            found |= {row: (name, noun, n) for row, n in zip(own, numbers, strict=True)}
        if len(found) == len({*rows}):
            break
        begin = end
    return [found[row] for row in rows]
