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

import bisect
import itertools
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, List, Value

from finetune.data import prediction_columns, targets, words
from finetune.data.columns import (
    NOT_ACCEPTED,
    describe_columns,
    find_rejected,
    require_columns,
)
from finetune.data.comma_list import join_values
from finetune.data.labels import list_names, natural_key, parse_list
from finetune.data.targets import OUTSIDE, refuse_or_drop, report_rows
from finetune.data.words import Place, Word
from finetune.errors import Facts, Findings, UserError

AUTO = "auto"
#: The usual columns of words, and of tags or spans.
TOKEN_COLUMNS = ("tokens", "words", "1")
LABEL_COLUMNS = ("ner_tags", "tags", "labels", "spans", "entities", "label")
_UNSPACED = re.compile(f"[{words.UNSPACED}]")
#: JavaScript counts the characters after it twice.
_LAST_COUNTED_ONCE = "\uffff"
_TAG = re.compile(r"([BIOESLUM])[-_](.+)", re.DOTALL)
#: A tag with a letter that is not read as one: ``B``, ``b-PER``, ``B:PER`` or ``PER-B``.
_OTHER_TAG = re.compile(
    r"(?P<letter>[BI])([-_:./](?P<after>.*))?|(?P<before>.+)[-_:./](?P<last>[BI])",
    re.IGNORECASE | re.DOTALL,
)
#: Letters of other names of IOBES: BILOU, BMEWO and the like.
_OTHER_LETTERS = {"L": "E", "U": "S", "M": "I"}
_LETTERS = {
    "iob2": ("B", "I"),
    "iob1": ("B", "I"),
    "iobes": ("B", "I", "E", "S"),
    "plain": ("",),
}
_NAMES = {
    "iob2": "IOB2",
    "iob1": "IOB1",
    "iobes": "IOBES or BILOU",
    "plain": "types without prefixes",
}
#: A text, start and end of each word, and the IOB2 tag of each.
Tagged = tuple[str, Sequence[Place], list[str]]
#: First character of an entity, the one after it, and its type.
Span = tuple[int, int, str]
NO_SPANS = "[]"  # as a cell of ``suspects.csv``


class Invalid(Exception):
    """A row cannot be used. The arguments are the reason, and there may be an example of it."""


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


def is_tag(text: str) -> bool:
    """Return whether a text is a tag, such as ``O`` or ``B-NAME``."""
    return text == OUTSIDE or _TAG.fullmatch(text) is not None


@dataclass(kw_only=True)
class TagReader:
    """Reads the labels of words.

    Attributes:
        text: The column of texts, for spans.
        tokens: The column of words; None for the usual ones.
        labels: The column of tags or spans; empty for the usual ones.
        scheme: A key of the table above, or ``auto``, which is replaced by the one that fits.
        renames: The new names of types or tags, by their names in the data.
        drop_invalid: Whether rows with an invalid label are left out; otherwise they are errors.
        names: All names of tags and types in the data that were read.
        padded: Whether each row whose spans were read has one with blanks at its beginning or end.
        uncertain: Whether it has one that would be at another place, unnoticed, if characters
            were counted as JavaScript does.
    """

    text: str
    tokens: str | None
    labels: str
    scheme: str
    renames: Mapping[str, str]
    drop_invalid: bool
    names: set[str] = field(default_factory=set)
    padded: list[bool] = field(default_factory=list)
    uncertain: list[bool] = field(default_factory=list)

    def read(self, dataset: DatasetDict, report: Findings) -> DatasetDict:
        """Return the splits with ``text`` and ``label`` instead of the columns that these are read
        from.

        Args:
            dataset: The splits of the source.
            report: Gets the rows that are invalid, the name of the column of labels, and how they
                are written.

        Raises:
            UserError: If a column is missing, or, without ``drop_invalid``, if a row is invalid.
        """
        labels, column, have_spans = self._find_columns(dataset, report)
        dataset = prediction_columns.set_aside(dataset, read=[labels, column])
        parse = self._from_tags
        if have_spans:
            if self.scheme != AUTO:
                report.fail(f"--tag_scheme {self.scheme}: '{labels}' has spans, not tags")
            parse = self._from_spans
            reason = f"the spans in '{labels}' are the entities"
        else:
            if self.scheme == AUTO:
                self.scheme = self._find_scheme(_cells(dataset["train"], labels))
                if self.scheme == "plain":
                    _refuse_halves(self.names - self.renames.keys(), report, have_spans=False)
            reason = f"the tags in '{labels}' are {_NAMES[self.scheme]}"
        items = {}
        tags: set[str] = set()
        for split, rows in dataset.items():
            self.padded.clear()
            self.uncertain.clear()
            items[split], invalid = _parse(rows, column, labels, parse)
            for description, positions in invalid.items():
                fix = "correct them, or leave them out: --drop_invalid"
                refuse_or_drop(report, description, fix, positions, rows, split, self.drop_invalid)
            self._report_spans(items[split], rows, split, report)
            for *_, tags_of_row in items[split].values():
                tags.update(tags_of_row)
        if have_spans:
            _refuse_halves(self.names - self.renames.keys(), report, have_spans=True)
        self._warn_of_outside(have_spans, tags, report)
        if not self.drop_invalid:
            report.raise_errors()
        types = sorted({tag[2:] for tag in tags if tag != OUTSIDE}, key=natural_key)
        if not types:
            report.fail(f"--label_column: the column '{labels}' has no entities")
        if all(text.replace(" ", "").isdecimal() for text, *_ in items["train"].values()):
            flag = f"--{'text' if have_spans else 'token'}_column"
            report.warning(f"{flag}: the column '{column}' has numbers only, instead of words")
        splits = DatasetDict()
        for split, rows in dataset.items():
            splits[split] = _encode(rows, column, labels, items[split], types)
        unmapped = sorted(self.renames.keys() - self.names)
        report.facts = Facts([labels], unmapped, reason)
        return splits

    def _report_spans(
        self, items: Collection[int], rows: Dataset, split: str, report: Findings
    ) -> None:
        """Report rows of a split with spans whose place may not be meant."""
        padded = list(itertools.compress(items, self.padded))
        description = "with blanks at the beginning or end of a span"
        fix = "the blanks are left out"
        report_rows(
            report,
            "padded_spans",
            description,
            fix,
            padded,
            rows,
            split,
            severity="info",
            suspects=[[]],
        )
        uncertain = list(itertools.compress(items, self.uncertain))
        description = (
            "with a span after an emoji or another rare character, which JavaScript counts twice"
        )
        fix = "see whether the spans are at their places: here each character counts once"
        report_rows(
            report,
            "uncertain_spans",
            description,
            fix,
            uncertain,
            rows,
            split,
            severity="warning",
            suspects=[[]],
        )

    def _warn_of_outside(self, have_spans: bool, tags: Collection[str], report: Findings) -> None:
        """Warn of a type with the name that stands for no entity, unless ``renames`` has it; and of
        types without prefixes where ``tags`` have no such name.
        """
        if have_spans:
            pattern = OUTSIDE
        elif self.scheme == "plain":
            if OUTSIDE not in tags:
                types = list_names(sorted(self.names - {OUTSIDE}))
                report.warning(
                    f"no word has the tag {OUTSIDE}: each is in an entity of {types}",
                    fix=f"if a name stands for no entity, rename it: --label_map NAME={OUTSIDE}",
                )
            return
        else:
            pattern = f"[BIOESLUM][-_]{OUTSIDE}"
        names = sorted(self.names - self.renames.keys())
        names = [name for name in names if re.fullmatch(pattern, name)]
        if names:
            fix = f"if it is a type, rename it: --label_map {names[0]}="
            fix += names[0].removesuffix(OUTSIDE) + "NAME"
            report.warning(f"{list_names(names)} is read as no entity", fix=fix)

    def _find_columns(self, dataset: DatasetDict, report: Findings) -> tuple[str, str, bool]:
        """Return the columns of labels, and of texts or words, and whether the labels are spans."""
        train = dataset["train"]
        # of a file with a word a line the first and the last field
        numbers = sorted(filter(str.isdecimal, train.column_names), key=int)
        labels = _find(train, "--label_column", self.labels, [*LABEL_COLUMNS, *numbers[:0:-1]])
        flags = {"--label_column": [labels]}
        require_columns(dataset, flags, report)
        cells = (cell for cell in _cells(train, labels) if isinstance(cell, list))
        example = next(itertools.chain.from_iterable(cells), None)
        has_no_words = example is None and self.text in train.column_names
        have_spans = has_no_words or isinstance(example, dict | list)
        if have_spans:
            column = self.text
            flags["--text_column"] = [column]
        else:
            column = _find(train, "--token_column", self.tokens, TOKEN_COLUMNS)
            flags["--token_column"] = [column]
        require_columns(dataset, flags, report)
        return labels, column, have_spans

    def _find_scheme(self, cells: Iterable[Any]) -> str:
        """Return the scheme that fits the tags of rows."""
        letters = set()
        plain = set()  # types without a letter
        first_letters = set()  # of the first word of an entity
        for cell in cells:
            previous = ""
            if not isinstance(cell, list):
                continue
            for tag in cell:
                letter, name, _ = self._split_tag(tag)
                if letter:
                    letters.add(letter)
                elif name:
                    plain.add(name)
                if name != previous:
                    first_letters.add(letter)
                previous = name
        if not letters:
            return "plain"
        if plain:
            raise UserError(
                "--tag_scheme: there are tags with a prefix, such as B-, and without, such as "
                f"{min(plain)!r}: set plain if B- is part of a type, or correct the tags"
            )
        if letters & {"E", "S"}:
            return "iobes"
        if "I" in first_letters and "B" not in first_letters:
            return "iob1"
        return "iob2"

    def _rename(self, name: str) -> str:
        self.names.add(name)
        return self.renames.get(name, name)

    def _split_tag(self, tag: Any) -> tuple[str, str, str]:
        """Return the letter of the prefix of a tag, if it has one, and its type, both with their
        names in ``--label_map``, and empty for :data:`OUTSIDE`; and its type in the data.
        """
        letter = ""
        written = str(tag)
        name = self._rename(written)
        match = _TAG.fullmatch(name)
        if match is not None and self.scheme != "plain":
            letter = _OTHER_LETTERS.get(match[1], match[1])
            written = name = match[2]
            if str(tag) not in self.renames:
                name = self._rename(name)
        if name == OUTSIDE:
            return "", "", OUTSIDE
        return letter, name, written

    def _from_tags(self, value: Any, labels: Any) -> Tagged:
        """Return words with a tag each; raise :class:`Invalid` if they are none."""
        tokens = parse_list(value)
        if not tokens or not isinstance(labels, list):
            raise Invalid("without a list of words and a list of tags")
        if len(tokens) != len(labels):
            raise Invalid("with more words than tags, or fewer", f"{len(tokens)} and {len(labels)}")
        for token in tokens:
            if not isinstance(token, str) or not token.strip():
                raise Invalid("with a word that is empty or no text", repr(token))
        tags: list[str] = []
        scheme = f"{_NAMES[self.scheme]} (--tag_scheme sets another)"
        has_begin = self.scheme in ("iob2", "iobes")
        previous_letter = previous = previous_written = ""
        for before, cell in itertools.pairwise(["the beginning", *labels, OUTSIDE]):
            letter, name, written = self._split_tag(cell)
            if cell is None or not str(cell).strip() or (not letter and name.isdecimal()):
                raise Invalid("with a tag without a name (--label_map 0=O,1=B-NAME gives names)")
            if name and letter not in _LETTERS[self.scheme]:
                raise Invalid(f"with a tag that is not {scheme}", repr(cell))
            continues = name == previous and letter not in ("B", "S")
            if not has_begin:  # neighbours of two types that --label_map makes one are two entities
                continues = continues and written == previous_written
            if self._is_impossible(previous_letter, letter, continues):
                place = f"{cell} after {before} (word {len(tags) + 1})"
                raise Invalid(f"with an impossible sequence of tags in {scheme}", place)
            if not name:
                tags.append(OUTSIDE)
            elif continues:
                tags.append(f"I-{name}")
            else:
                tags.append(f"B-{name}")
            previous_letter, previous, previous_written = letter, name, written
        return *words.join_words(tokens), tags[:-1]

    def _is_impossible(self, previous_letter: str, letter: str, continues: bool) -> bool:
        """Return whether a tag cannot follow another one.

        Args:
            previous_letter: The letter of the tag before; empty if it is outside.
            letter: The letter of the tag.
            continues: Whether its type is that of the tag before, and its letter begins nothing.
        """
        if self.scheme not in ("iob2", "iobes"):
            return False
        needs_open = letter in ("I", "E")
        if needs_open and not continues:
            return True
        # what is open, and only that, is continued
        return self.scheme == "iobes" and needs_open != (previous_letter in ("B", "I"))

    def _from_spans(self, value: Any, labels: Any) -> Tagged:
        """Return the words of a text with the tags of spans; raise :class:`Invalid` if there is no
        text, or if a span is not the words of one entity. Blanks around a span are left out.
        """
        if not isinstance(value, str) or not value.strip():
            raise Invalid("without a text")
        if not isinstance(labels, list):
            raise Invalid("without a list of spans ([] is no entity)")
        places = words.split_words(value)
        tags = [OUTSIDE] * len(places)
        is_padded = is_uncertain = False
        for span in labels:
            start, end, label = split_span(span)
            name = self._rename(label)
            if not 0 <= start < end <= len(value):
                raise Invalid(
                    "with a span outside of the text (positions count characters)",
                    f"{start} to {end}",
                )
            content = value[start:end].strip()
            if isinstance(span, Mapping):
                _require_text(span.get("text"), content)
            is_padded = is_padded or content != value[start:end]
            # a span of another script would begin inside a word
            has_text = isinstance(span, Mapping) and isinstance(span.get("text"), str)
            if not has_text and _UNSPACED.search(content):
                is_uncertain = is_uncertain or max(value[:end]) > _LAST_COUNTED_ONCE
            start += value[start:end].find(content)
            _add_span(tags, places, start, start + len(content), name, repr(content))
        self.padded.append(is_padded)
        self.uncertain.append(is_uncertain)
        return value, places, tags


def _require_text(text: Any, content: str) -> None:
    """Raise :class:`Invalid` if a span of Label Studio has another text than its place; blanks,
    and line breaks, which may be written as ``\\n``, do not count.
    """
    if not isinstance(text, str):
        return
    if "".join(text.replace("\\n", "").split()) != "".join(content.split()):
        raise Invalid(
            "with a span whose 'text' is not at its place (positions count characters; in "
            "JavaScript an emoji counts twice)",
            f"{text!r}, and {content!r} there",
        )


def _refuse_halves(names: Iterable[str], report: Findings, *, have_spans: bool) -> None:
    """Refuse names of types of which one is the first word of an entity, the other its next words.

    Args:
        names: The names in the data that ``--label_map`` does not rename.
        report: Gets the error.
        have_spans: Whether they are names of spans, not tags.

    Raises:
        UserError: If there are such names.
    """
    halves: dict[str, dict[str, str]] = defaultdict(dict)
    for name in sorted(names):
        match = _OTHER_TAG.fullmatch(name)
        if match is not None:
            letter = match["letter"] or match["last"]
            halves[match["after"] or match["before"] or ""][letter.upper()] = name
    halved: list[str] = []
    pairs = []
    for kind, tags in halves.items():
        if len(tags) == 2:
            if kind in ("", OUTSIDE):
                kind = "NAME"
            halved += tags.values()
            pairs += [f"{name}={letter}-{kind}" for letter, name in tags.items()]
    if not halved:
        return
    if have_spans:
        advice = "write one span for an entity, with its type"
    else:
        option = shlex.quote(join_values(pairs))
        advice = f"--label_map {option} makes it one type, --tag_scheme plain keeps two"
    names_of_halves = list_names(halved)
    report.fail(
        f"--label_column: {names_of_halves} are the first and the next words of entities: {advice}"
    )


def _add_span(
    tags: list[str],
    places: Sequence[Place],
    start: int,
    end: int,
    name: str,
    example: str,
) -> None:
    """Write an entity into the IOB2 tags of words; raise :class:`Invalid` with an example of it if
    it is not some of the words, or overlaps another one.

    Args:
        tags: The tag of each word.
        places: Start and end of each word.
        start: The first character of the entity.
        end: The character after it.
        name: Its type; ``O`` adds nothing.
        example: How the message shows it.
    """
    first = bisect.bisect_left(places, start, key=itemgetter(0))
    last = bisect.bisect_right(places, end, key=itemgetter(1))
    if first >= last or (places[first][0], places[last - 1][1]) != (start, end):
        raise Invalid(
            "with a span that begins or ends inside a word (positions count characters, and the "
            "end is the one after the last)",
            example,
        )
    if set(tags[first:last]) != {OUTSIDE}:
        raise Invalid("with spans that overlap", example)
    if name != OUTSIDE:
        tags[first:last] = [f"B-{name}"] + [f"I-{name}"] * (last - first - 1)


def spans_of(labels: Sequence[Word], types: Sequence[str]) -> list[Span]:
    """Return start, end and type of each entity of a row, from its words."""
    spans: list[Span] = []
    for word in labels:
        if not word["tag"]:
            continue
        start = word["start"]
        kind, continues = divmod(word["tag"] - 1, 2)
        if continues:
            start, *_ = spans.pop()
        spans.append((start, word["end"], types[kind]))
    return spans


def spans_text(spans: Iterable[Span]) -> str:
    """Return entities as a cell of ``suspects.csv``."""
    return json.dumps(list(spans), ensure_ascii=False)


def with_spans(labels: Sequence[Word], spans: Iterable[Span], types: Sequence[str]) -> list[Word]:
    """Return the words of a row with the tags of other entities.

    Args:
        labels: The words.
        spans: Start, end and type of each entity.
        types: The types that there are.

    Raises:
        UserError: If a span is not some of the words, has an unknown type, or overlaps another.
    """
    places = [(word["start"], word["end"]) for word in labels]
    tags = [OUTSIDE] * len(places)
    for start, end, name in spans:
        if name not in types:
            raise UserError(f"there is no label '{name}' (labels: {list_names(types)})")
        try:
            _add_span(tags, places, start, end, name, f"[{start}, {end}, '{name}']")
        except Invalid as error:
            raise UserError(f"a row {', such as '.join(error.args)}") from error
    return words.label_words(places, map(tag_names(types).index, tags))


def _find(rows: Dataset, flag: str, typed: str | None, usual: Sequence[str]) -> str:
    """Return the column that is typed, else the first of the usual ones."""
    if typed:
        return typed
    for name in usual:
        if name in rows.column_names:
            return name
    hint = describe_columns(rows, usual[0])
    if {"data", "annotations"} <= set(rows.column_names):
        hint += "; from Label Studio, export JSON-MIN"
    raise UserError(f"{flag}: expected a column {' or '.join(usual)}{hint}")


def _cells(rows: Dataset, column: str) -> list[Any]:
    """Return the cells of a column: texts of lists, as a ``.csv`` has them, as lists, and class ids
    as their names.
    """
    names = dict(enumerate(targets.class_names(rows, column)))
    cells = []
    for cell in rows[column][:]:
        values = parse_list(cell)
        if names and values:
            values = list(map(names.get, values))
        cells.append(cell if values is None else values)
    return cells


def _parse(
    rows: Dataset, column: str, labels: str, parse: Callable[[Any, Any], Tagged]
) -> tuple[dict[int, Tagged], dict[str, list[int]]]:
    """Return the words and tags of valid rows by position, and the positions of others by reason,
    with the first example of it.
    """
    rejected = find_rejected(rows, [column, labels])
    items = {}
    invalid: dict[str, list[int]] = defaultdict(list)
    descriptions: dict[str, str] = {}
    for row, cells in enumerate(zip(rows[column][:], _cells(rows, labels), strict=True)):
        try:
            if rejected[row]:
                raise Invalid(NOT_ACCEPTED)
            items[row] = parse(*cells)
        except Invalid as error:
            description = descriptions.setdefault(error.args[0], ", such as ".join(error.args))
            invalid[description].append(row)
    return items, invalid


def _encode(
    rows: Dataset,
    column: str,
    labels: str,
    items: Mapping[int, Tagged],
    types: Sequence[str],
) -> Dataset:
    """Return the rows that have items, with ``text`` and ``label`` instead of two columns."""
    names = tag_names(types)
    texts, encoded = [], []
    for text, places, tags in items.values():
        texts.append(text)
        encoded.append(words.label_words(places, map(names.index, tags)))
    # one by one: without a column there would be no rows
    rows = rows.select(list(items)).remove_columns(column)
    rows = rows.add_column("text", texts, feature=Value("string"))
    return rows.remove_columns(labels).add_column("label", encoded, feature=feature(types))


def split_span(span: Any) -> Span:
    """Return start, end and type of a span: a list of these, or an object.

    Raises:
        Invalid: If it is neither.
    """
    if isinstance(span, Mapping):
        start = span.get("start", span.get("start_offset"))  # of doccano
        end = span.get("end", span.get("end_offset"))
        span = [start, end, span.get("label", span.get("labels"))]
    if isinstance(span, list) and len(span) == 3:
        start, end, label = span
        if isinstance(label, list) and len(label) == 1:  # of Label Studio
            label = label[0]
        if type(start) is int and type(end) is int and isinstance(label, str) and label.strip():
            return start, end, label
    raise Invalid("with a span that is not {start, end, label} or [start, end, label]", repr(span))
