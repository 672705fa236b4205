"""Read the labels of words: tags of words, or spans of a text, as words with IOB2 tags.

The label of a row is the list of its words, each with ``start``, ``end`` and ``tag``, whose names
are ``O``, then ``B-TYPE`` and ``I-TYPE`` of each type. A scheme says how the data writes tags:

=========  ====================================================================================
``iob2``   ``B-`` begins an entity, ``I-`` continues it
``iob1``   ``I-`` also begins an entity; ``B-`` does where one of the same type ends
``iobes``  ``E-`` ends an entity and ``S-`` is a whole one; in BILOU these are ``L-`` and ``U-``
``plain``  types without prefixes: neighbours of the same type are one entity
=========  ====================================================================================
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from datasets import ClassLabel, Dataset, DatasetDict, List, Value

from finetune.data import targets, words
from finetune.data.columns import describe_columns
from finetune.data.labels import natural_key, parse_list
from finetune.data.targets import OUTSIDE, refuse_or_drop
from finetune.errors import Findings, UserError, counted

AUTO = "auto"
_ANSWER = "answer"
#: The usual columns of words, and of tags or spans.
TOKEN_COLUMNS = ("tokens", "words", "1")
LABEL_COLUMNS = ("ner_tags", "tags", "labels", "spans", "entities", "label")
_TAG = re.compile(r"([BIOESLUM])[-_](.+)", re.DOTALL)
#: Letters of other names of IOBES: BILOU, BMEWO and the like.
_LETTERS = {"L": "E", "U": "S", "M": "I"}
_NAMES = {
    "iob2": "IOB2",
    "iob1": "IOB1",
    "iobes": "IOBES or BILOU",
    "plain": "types without prefixes",
}


class Tagged(NamedTuple):
    """A text with start and end of each word, and the IOB2 tag of each."""

    text: str
    places: Sequence[tuple[int, int]]
    tags: Sequence[str]


class Invalid(Exception):
    """The reason why a row cannot be used, and an example of it."""

    def __init__(self, reason: str, example: object = "") -> None:
        super().__init__(reason)
        self.example = example


@dataclass(frozen=True, kw_only=True)
class TagOptions:
    """How the labels of words are written.

    Attributes:
        text: The column of texts, for spans.
        tokens: The column of words; None for the usual ones.
        labels: The column of tags or spans; empty for the usual ones.
        scheme: A key of the table above, or ``auto``.
        renames: The new names of types or tags, by their names in the data.
        drop_invalid: Whether rows with an invalid label are left out; otherwise they are errors.
    """

    text: str = "text"
    tokens: str | None = None
    labels: str = ""
    scheme: str = AUTO
    renames: Mapping[str, str] = field(default_factory=dict)
    drop_invalid: bool = False


def tag_names(types: Iterable[str]) -> list[str]:
    """Return the names of the tags of entity types, in the order of their ids."""
    names = [OUTSIDE]
    for name in types:
        names += [f"B-{name}", f"I-{name}"]
    return names


def feature(types: Iterable[str]) -> Any:
    """Return the feature of the column ``label``."""
    place = Value("int32")
    return List({"start": place, "end": place, "tag": ClassLabel(names=tag_names(types))})


class Columns(NamedTuple):
    """The columns that are read."""

    labels: str
    input: str  # of texts, or of lists of words
    have_spans: bool


def find_columns(dataset: DatasetDict, options: TagOptions) -> Columns:
    """Return the columns that are read.

    Raises:
        UserError: If one is missing.
    """
    train = dataset["train"]
    # of a file with a word a line the first and the last field
    numbers = sorted(filter(str.isdecimal, train.column_names), key=int)
    labels = _find(train, "--label_column", options.labels, [*LABEL_COLUMNS, *numbers[:0:-1]])
    items = [item for cell in _cells(train, labels) for item in _list(cell)]
    has_no_words = not items and options.text in train.column_names
    if has_no_words or any(isinstance(item, (dict, list)) for item in items):
        columns = Columns(labels, options.text, have_spans=True)
    else:
        tokens = _find(train, "--token_column", options.tokens, TOKEN_COLUMNS)
        columns = Columns(labels, tokens, have_spans=False)
    flags = {labels: "--label_column", columns.input: "--token_column"}
    if columns.have_spans:
        flags[columns.input] = "--text_column"
    mistakes = []
    for split, rows in dataset.items():
        for column, flag in flags.items():
            if column not in rows.column_names:
                listed = describe_columns(rows, column)
                mistakes.append(f"{flag}: no column '{column}' in the {split} data{listed}")
    if mistakes:
        raise UserError(*mistakes)
    return columns


def read(
    dataset: DatasetDict, columns: Columns, options: TagOptions, report: Findings
) -> tuple[DatasetDict, Sequence[str], str]:
    """Return the splits with ``text`` and ``label`` instead of the columns that these are read
    from, the names in ``renames`` that the data does not have, and how labels are written.

    Args:
        dataset: The splits of the source.
        columns: From :func:`find_columns`.
        options: How labels are written.
        report: Gets the rows that are invalid.

    Raises:
        UserError: Without ``drop_invalid``, if a row is invalid.
    """
    reader = _Reader(options, columns.labels)
    if columns.have_spans:
        if options.scheme != AUTO:
            report.fail(f"--tag_scheme {options.scheme}: '{columns.labels}' has spans, not tags")
        reader.scheme = "plain"
        reason = f"the spans in '{columns.labels}' are the entities"
        parse: Callable[[Any, Any], Tagged] = reader.from_spans
    else:
        reader.choose_scheme(reader.labels(dataset["train"]))
        reason = f"the tags in '{columns.labels}' are {_NAMES[reader.scheme]}"
        parse = reader.from_tags
    parsed = {}
    for split, rows in dataset.items():
        parsed[split] = _parse(rows, split, columns.input, reader, parse, report)
    if reader.padded:
        spans = counted(reader.padded, "span")
        report.info(f"{spans} with blanks at the beginning or end: the blanks are left out")
    if not options.drop_invalid:
        report.raise_errors()
    types = sorted(reader.types, key=natural_key)
    if not types:
        report.fail(f"--label_column: the column '{columns.labels}' has no entities")
    splits = DatasetDict()
    for split, rows in dataset.items():
        rows = rows.remove_columns([columns.labels, columns.input])
        splits[split] = _encode(rows, parsed[split], types)
    return splits, sorted(options.renames.keys() - reader.names), reason


def _find(rows: Dataset, flag: str, typed: str | None, usual: Sequence[str]) -> str:
    """Return the column that is typed, or the first of the usual ones."""
    names = [typed] if typed else usual
    for name in names:
        if name in rows.column_names:
            return name
    hint = describe_columns(rows, names[0])
    if {"data", "annotations"} <= set(rows.column_names):
        hint += "; from Label Studio, export JSON-MIN"
    raise UserError(f"{flag}: expected a column {' or '.join(names)}{hint}")


def _list(cell: Any) -> list[Any]:
    return cell if isinstance(cell, list) else []


def _cells(rows: Dataset, column: str) -> list[Any]:
    """Return the cells of a column; texts of lists, as a ``.csv`` has them, as lists."""
    cells = []
    for cell in rows[column][:]:
        values = parse_list(cell)
        cells.append(cell if values is None else values)
    return cells


def _parse(
    rows: Dataset,
    split: str,
    column: str,
    reader: _Reader,
    parse: Callable[[Any, Any], Tagged],
    report: Findings,
) -> list[Tagged | None]:
    """Return the words and tags of each row, None for invalid ones, which are reported."""
    values = rows[column][:]
    if parse == reader.from_tags:
        values = _cells(rows, column)
    items: list[Tagged | None] = []
    invalid: dict[str, list[int]] = defaultdict(list)
    examples: dict[str, object] = {}
    answers: Sequence[Any] = [None] * len(rows)
    if _ANSWER in rows.column_names:
        answers = rows[_ANSWER][:]
    for row, cells in enumerate(zip(values, reader.labels(rows), strict=True)):
        item = None
        try:
            if answers[row] in ("reject", "ignore"):
                raise Invalid(f"that were not accepted (the column '{_ANSWER}' of Prodigy)")
            item = parse(*cells)
        except Invalid as error:
            invalid[str(error)].append(row)
            examples.setdefault(str(error), error.example)
        items.append(item)
    for reason, positions in invalid.items():
        if examples[reason]:
            reason += f", such as {examples[reason]}"
        fix = "correct them, or leave them out: --drop_invalid"
        if "impossible" in reason:
            fix += f" (read as {_NAMES[reader.scheme]}; --tag_scheme reads them in another way)"
        drop = reader.options.drop_invalid
        refuse_or_drop(report, reason, fix, positions, rows, split, drop)
    return items


def _encode(rows: Dataset, items: Sequence[Tagged | None], types: Sequence[str]) -> Dataset:
    """Return rows with the columns ``text`` and ``label``, without those that have none."""
    numbers = {name: number for number, name in enumerate(tag_names(types))}
    texts: list[str] = []
    labels: list[list[dict[str, int]]] = []
    valid = []
    for row, item in enumerate(items):
        if item is None:
            continue
        valid.append(row)
        texts.append(item.text)
        labels.append([])
        for (start, end), tag in zip(item.places, item.tags, strict=True):
            labels[-1].append({"start": start, "end": end, "tag": numbers[tag]})
    if len(valid) < len(rows):
        rows = rows.select(valid)
    rows = rows.add_column("text", texts, feature=Value("string"))
    return rows.add_column("label", labels, feature=feature(types))


class _Reader:
    """Reads the labels of rows; notes the types, and all names of the data."""

    def __init__(self, options: TagOptions, column: str) -> None:
        self.options = options
        self.scheme = options.scheme
        self.types: set[str] = set()
        self.names: set[str] = set()
        self.padded = 0  # spans that began or ended with blanks
        self._column = column

    def labels(self, rows: Dataset) -> list[Any]:
        """Return the cells of the label column, with the names of class ids."""
        cells = _cells(rows, self._column)
        names = targets.class_names(rows, self._column)
        if names:
            cells = [[names[number] for number in _list(cell)] for cell in cells]
        return cells

    def choose_scheme(self, cells: Sequence[Any]) -> None:
        """Set the scheme that fits the tags of the training rows, unless the user has."""
        if self.scheme != AUTO:
            return
        letters = set()  # also those of the first word of an entity
        plain = []
        for cell in cells:
            previous = ""
            for tag in _list(cell):
                name = self._rename(tag)
                match = _TAG.fullmatch(name)
                if match is not None:
                    letter = _LETTERS.get(match[1], match[1])
                    letters.add(letter)
                    if match[2] != previous:
                        letters.add(f"{letter} first")
                elif name != OUTSIDE:
                    plain.append(name)
                previous = match[2] if match else ""
        if plain and letters:
            raise UserError(
                f"--tag_scheme: '{self._column}' has tags with a prefix, such as B-, and without, "
                f"such as {plain[0]!r}: set plain if B- is part of a type, or correct the tags"
            )
        self.scheme = "iob2"
        if plain:
            self.scheme = "plain"
        elif letters & {"E", "S"}:
            self.scheme = "iobes"
        elif "I first" in letters and "B first" not in letters:
            self.scheme = "iob1"

    def _rename(self, tag: Any) -> str:
        """Return the name of a tag or a type with ``--label_map``, for numbers too."""
        name = str(tag)
        self.names.add(name)
        renames = self.options.renames
        if name in renames:
            return renames[name]
        if self.scheme != "plain" and (match := _TAG.fullmatch(name)):
            self.names.add(match[2])
            renamed = renames.get(match[2], match[2])
            return OUTSIDE if renamed == OUTSIDE else f"{match[1]}-{renamed}"
        return name

    def from_tags(self, tokens: Any, cells: Any) -> Tagged:
        """Return words with a tag each.

        Raises:
            Invalid: If they are none.
        """
        if not isinstance(tokens, list) or not isinstance(cells, list) or not tokens:
            raise Invalid("without a list of words and a list of tags")
        if len(tokens) != len(cells):
            raise Invalid("with more words than tags, or fewer", f"{len(tokens)} and {len(cells)}")
        for token in tokens:
            if not isinstance(token, str) or not token.strip():
                raise Invalid("with a word that is empty or no text", repr(token))
        tags: list[str] = []
        letter = previous = ""  # of the word before, and its type
        for cell in (*cells, OUTSIDE):
            following, name = self._split_tag(cell)
            if self._is_impossible(letter, previous, following, name):
                shown = f"{following}-{name}" if name else OUTSIDE
                before = f"{letter}-{previous}" if previous else "the beginning or O"
                place = f"{shown} after {before} (word {len(tags) + 1})"
                raise Invalid("with an impossible sequence of tags", place)
            begins = following in "BS" if self.scheme in ("iob2", "iobes") else following == "B"
            begins = begins or (bool(name) and name != previous)
            tags.append(OUTSIDE)
            if name:
                self.types.add(name)
                tags[-1] = f"B-{name}" if begins else f"I-{name}"
            letter, previous = following, name
        return Tagged(*words.join_words(tokens), tags[:-1])

    def _split_tag(self, tag: Any) -> tuple[str, str]:
        """Return the letter of the prefix of a tag, and its type; both empty without one."""
        name = self._rename(tag)
        if name == OUTSIDE:
            return "", ""
        if name.isdecimal() or not name.strip() or tag is None:
            raise Invalid("with a tag without a name (--label_map 0=O,1=B-NAME gives names)", tag)
        if self.scheme == "plain":
            return "I", name
        match = _TAG.fullmatch(name)
        if match is None:
            raise Invalid(f"with a tag that is not {_NAMES[self.scheme]}", repr(name))
        return _LETTERS.get(match[1], match[1]), match[2]

    def _is_impossible(self, letter: str, previous: str, following: str, name: str) -> bool:
        """Return whether a word with a letter and a type cannot follow another one."""
        continues = bool(name) and previous == name
        if self.scheme == "iob2":
            return following not in ("", "B", "I") or (following == "I" and not continues)
        if self.scheme == "iobes":
            is_open = letter in ("B", "I")
            needs_open = following in ("I", "E")
            return is_open != needs_open or (needs_open and not continues)
        return following not in ("", "B", "I")

    def from_spans(self, text: Any, spans: Any) -> Tagged:
        """Return the words of a text, with the tags of spans.

        Raises:
            Invalid: If there is no text, or if a span cannot be the words of one entity.
        """
        if not isinstance(text, str) or not text.strip():
            raise Invalid("without a text")
        if not isinstance(spans, list):
            raise Invalid("without a list of spans")
        places = words.split_words(text)
        starts, ends = map(list, zip(*places, strict=True))
        tags = [OUTSIDE] * len(places)
        for span in spans:
            start, end, label = _split_span(span)
            name = self._rename(label)
            if not 0 <= start < end <= len(text):
                raise Invalid("with a span outside of the text", f"{start} to {end}")
            content = text[start:end]
            end = start + len(content.rstrip())
            start += len(content) - len(content.lstrip())
            self.padded += content != text[start:end]
            first = bisect.bisect_left(starts, start)
            last = bisect.bisect_left(ends, end)
            if starts[first : first + 1] != [start] or ends[last : last + 1] != [end]:
                raise Invalid("with a span that begins or ends inside a word", repr(content))
            if any(tag != OUTSIDE for tag in tags[first : last + 1]):
                raise Invalid("with spans that overlap", repr(content))
            if name != OUTSIDE:
                self.types.add(name)
                tags[first] = f"B-{name}"
                tags[first + 1 : last + 1] = [f"I-{name}"] * (last - first)
        return Tagged(text, places, tags)


def _split_span(span: Any) -> tuple[int, int, str]:
    """Return start, end and type of a span: a list of these, or an object."""
    if isinstance(span, Mapping):
        label = span.get("label", span.get("labels"))
        if isinstance(label, list) and len(label) == 1:  # of Label Studio
            label = label[0]
        start, end = span.get("start"), span.get("end")
        if start is None:  # of doccano
            start, end = span.get("start_offset"), span.get("end_offset")
        span = [start, end, label]
    if isinstance(span, list) and len(span) == 3:
        start, end, label = span
        if type(start) is int and type(end) is int and isinstance(label, str) and label.strip():
            return start, end, label
    raise Invalid("with a span that is not {start, end, label} or [start, end, label]", repr(span))
