"""Texts that were damaged on their way into the file, their languages and their lengths."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from finetune.data import arrow
from finetune.data.digests import TEXTS
from finetune.data.row_findings import EXCLUDE, MOST_SUSPECTS, describe_rows, row_numbers
from finetune.errors import Finding, Suspect

#: Rows of a split that are looked at; of more, this many drawn at random.
MOST_ROWS = 100_000
#: Characters above which a text is far longer than others, if it is also so many times the median.
LONG, _TIMES_MEDIAN = 100_000, 100
#: Texts were cut off if at least so many of at least so many characters have the greatest length,
#: and so many times as many as have one of the twenty lengths below it on average.
_FEWEST_CUT, _SHORTEST_CUT, _TIMES_BELOW, _BELOW = 10, 50, 3, 20
#: UTF-8 read as Windows-1252: the first byte of a character, and the one to three that follow.
_MISREAD = re.compile(r"[\xc2-\xf4][^\x00-\x7f]{1,3}")
#: First bytes of Western letters, signs and emoji. Others are themselves letters of Western
#: languages, which may stand before a quotation mark, so one of them is not enough.
_COMMON_FIRST_BYTES = "\xc2\xc3\xe2\xf0"
_NO_LETTERS = re.compile(r"[\W\d_]+")
#: Texts of which the language is detected; letters below which it is not; and by how much the most
#: likely language must exceed the next one, as a logarithm.
_LANGUAGE_SAMPLE, _FEWEST_LETTERS, _LEAST_MARGIN = 2000, 20, 7.0
#: The share of texts with a certain language below which they are no prose, but codes or names.
_PROSE = 0.5
#: Shares of texts in other languages from which they are reported, and are suspicious.
_REPORTED_LANGUAGES, _SUSPICIOUS_LANGUAGES, _FEWEST_OTHERS = 0.002, 0.05, 5
#: The share of truncated texts that is suspicious, and the one that the advice would leave.
_SUSPICIOUS_TRUNCATED, _ADVISED_TRUNCATED = 0.25, 0.01


class _Damage(NamedTuple):
    """A regular expression of RE2 that finds a damage, and whether a single such row is one."""

    pattern: str
    description: str
    fix: str
    is_always: bool = False


_DAMAGES = {
    "mojibake": _Damage(
        r"[\x{c2}-\x{f4}][^\x00-\x7f]",
        "with UTF-8 that was read in another encoding, like 'Ã©' for 'é'",
        "export the file again as UTF-8, or repair the texts (the package ftfy does); else",
        is_always=True,
    ),
    "replacement_characters": _Damage(
        "\ufffd",
        "with '\ufffd', which stands for characters that are lost",
        "export the file again in its own encoding; else",
        is_always=True,
    ),
    "null_bytes": _Damage(
        r"\x00",
        "with null bytes, which no text has unless its file was damaged",
        "export it again, or remove these bytes; else",
        is_always=True,
    ),
    "control_characters": _Damage(
        r"[\x01-\x08\x0e-\x1f]",
        "with control characters",
        "is it the right column? If so, remove the characters; else",
    ),
    "no_words": _Damage(
        r"^\PL+$",
        "without a letter, only digits, marks or symbols",
        "is it the right column? If so,",
    ),
}


def find_damaged_texts(rows: Dataset, split: str, columns: Sequence[str]) -> list[Finding]:
    """Return what is wrong with the texts of a split; missing texts are skipped.

    Args:
        rows: With ``_row`` and ``text``, and ``texts`` if the model reads several columns.
        split: The name of the split in the source.
        columns: The names of the text columns in the data.
    """
    has_parts = TEXTS in rows.column_names
    stored = TEXTS if has_parts else "text"
    if stored not in rows.column_names:
        return []
    sample = None
    if len(rows) > MOST_ROWS:
        sample = np.sort(np.random.default_rng(0).choice(len(rows), MOST_ROWS, replace=False))
    findings = []
    for part, column in enumerate(columns):
        masks: dict[str, list[np.ndarray]] = {name: [] for name in _DAMAGES}
        lengths, order, has_spaces = [np.empty(0, np.int64)], [np.empty(0, np.int64)], False
        for positions, values in arrow.pieces(rows, stored, sample):
            texts = pc.fill_null(pc.list_element(values, part) if has_parts else values, "")
            if not arrow.is_text(texts.type):
                return []
            order.append(positions)
            has_spaces = has_spaces or bool(arrow.matching(texts, r"\s").any())
            lengths.append(pc.utf8_length(texts).to_numpy(zero_copy_only=False))
            for name, damage in _DAMAGES.items():
                masks[name].append(_find(texts, damage.pattern, is_mojibake=name == "mojibake"))
        where = f" in '{column}'" if has_parts else ""
        positions, characters = np.concatenate(order), np.concatenate(lengths)
        damaged = {
            name: np.sort(positions[np.concatenate([*parts, np.empty(0, bool)])])
            for name, parts in masks.items()
        }
        findings += _describe_damage(damaged, rows, split, where, len(positions))
        findings += _describe_lengths(positions, characters, rows, split, where, has_spaces)
    return findings


def _find(texts: pa.Array, pattern: str, *, is_mojibake: bool) -> np.ndarray:
    """Return which texts a pattern matches, shape ``(texts,)``, of booleans."""
    mask = arrow.matching(texts, f"(?s){pattern}")
    if is_mojibake:  # the pattern is necessary, not sufficient
        for position in np.flatnonzero(mask).tolist():
            mask[position] = is_misread(texts[position].as_py())
    return mask


def _describe_damage(
    damaged: dict[str, np.ndarray], rows: Dataset, split: str, where: str, examined: int
) -> list[Finding]:
    findings = []
    for name, positions in damaged.items():
        damage = _DAMAGES[name]
        findings += describe_rows(
            name,
            damage.description + where,
            f"{damage.fix} {EXCLUDE}",
            positions,
            rows,
            split,
            examined=examined,
            severity="warning" if damage.is_always else None,
        )
    return findings


def _describe_lengths(
    positions: np.ndarray,
    characters: np.ndarray,
    rows: Dataset,
    split: str,
    where: str,
    has_spaces: bool,
) -> list[Finding]:
    """Return texts far longer than the others, and those that were cut off at one length."""
    is_long, median = find_far_longer(characters)
    longest = int(characters.max(initial=0))
    findings = describe_rows(
        "far_longer",
        f"far longer than the others{where}, up to {longest:,} characters, where half have "
        f"{median:,} or fewer",
        "did rows run together, for instance by a quotation mark that is never closed? If so, "
        f"correct them; else {EXCLUDE}",
        np.sort(positions[is_long]),
        rows,
        split,
        examined=len(characters),
        severity="warning",
    )
    is_cut = (characters == longest) & has_spaces  # sequences of one length are no prose
    below = int(((characters < longest) & (characters >= longest - _BELOW)).sum())
    fewest = max(_FEWEST_CUT, _TIMES_BELOW * below / _BELOW, 0.001 * len(characters))
    if longest >= _SHORTEST_CUT and is_cut.sum() >= fewest and is_cut.sum() > below:
        findings += describe_rows(
            "cut_off",
            f"of exactly {longest:,} characters{where}, the greatest length, and few just below: "
            "they were probably cut off when the data was exported",
            f"export the whole texts; else {EXCLUDE}",
            np.sort(positions[is_cut]),
            rows,
            split,
            examined=len(characters),
            severity="warning",
        )
    return findings


def find_far_longer(characters: np.ndarray) -> tuple[np.ndarray, int]:
    """Return which texts are far longer than the others, and the median length without empty texts.

    Args:
        characters: The length of each text, shape ``(texts,)``.
    """
    median = int(np.median(characters[characters > 0])) if characters.any() else 0
    return characters > max(LONG, _TIMES_MEDIAN * median), median


def is_misread(text: str) -> bool:
    """Return whether a text holds UTF-8 that was decoded as Windows-1252: ``Ã©`` for ``é``."""
    firsts = [match[0][0] for match in _MISREAD.finditer(text) if _is_utf8(match[0])]
    return len(firsts) > 1 or any(first in _COMMON_FIRST_BYTES for first in firsts)


def _is_utf8(characters: str) -> bool:
    """Return whether the first of the characters, as Windows-1252, are one character of UTF-8."""
    first = ord(characters[0])
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    try:  # Latin-1 for the five bytes that Windows-1252 does not define
        encoded = b"".join(
            character.encode("latin-1" if "\x80" <= character <= "\x9f" else "cp1252")
            for character in characters[:size]
        )
        return len(encoded) == size and len(encoded.decode()) == 1
    except UnicodeError:
        return False


def find_other_languages(rows: Dataset, column: str) -> list[Finding]:
    """Return whether training texts are in other languages than most, by ``py3langid``.

    Args:
        rows: The training rows, with ``_row`` and the column of texts.
        column: Its name.
    """
    positions = np.arange(len(rows))
    if len(rows) > _LANGUAGE_SAMPLE:
        draw = np.random.default_rng(0)
        positions = np.sort(draw.choice(len(rows), _LANGUAGE_SAMPLE, replace=False))
    texts = rows.select_columns([column]).select(positions)[column][:]
    languages = np.array([detect_language(text) for text in texts], dtype=object)
    counts = Counter(language for language in languages.tolist() if language)
    total = counts.total()
    if not total or total < _PROSE * len(texts):
        return []
    (main, main_count), *others = counts.most_common()
    count = total - main_count
    if count < max(_FEWEST_OTHERS, _REPORTED_LANGUAGES * total):
        return []
    is_other = (languages != main) & (languages != "")
    numbers = row_numbers(rows, positions[is_other][:MOST_SUSPECTS])
    shown = ", ".join(f"'{name}' {number:,}" for name, number in others[:5])
    return [
        Finding(
            name="languages",
            severity="warning" if count > _SUSPICIOUS_LANGUAGES * total else "info",
            message=f"{count:,} of {total:,} training texts looked at are in another language than "
            f"'{main}': {shown}{', ...' * (len(others) > 5)}",
            fix=f"unless the model knows these languages, {EXCLUDE}",
            split="train",
            rows=numbers,
            count=count,
            examined=total,
            suspects=[
                Suspect(row=number, reason=f"language '{language}'")
                for number, language in zip(numbers, languages[is_other], strict=False)
            ],
        )
    ]


def detect_language(text: str) -> str:
    """Return the language of a text as an ISO 639-1 code; empty if it is not certain."""
    from py3langid import rank

    letters = _NO_LETTERS.sub(" ", text).strip()
    if len(letters) < _FEWEST_LETTERS:
        return ""
    # codes of three letters are dialects and pidgins, which jargon is mistaken for
    ranked = (pair for pair in rank(letters) if len(pair[0]) == 2)
    (best, score), (_, second) = itertools.islice(ranked, 2)
    return str(best) if score - second >= _LEAST_MARGIN else ""


def describe_token_lengths(
    lengths: np.ndarray, rows: int, max_length: int, positions: int | None
) -> list[Finding]:
    """Return how long the training texts are in tokens, and how many are truncated.

    Args:
        lengths: Tokens of each sampled text before truncation, special tokens included.
        rows: How many training texts there are.
        max_length: Tokens that are kept.
        positions: Tokens that the model can read; None without a limit.
    """
    share = float((lengths > max_length).mean())
    about = "about " if len(lengths) < rows else ""
    median, high, longest = (int(value) for value in np.quantile(lengths, [0.5, 0.95, 1]))
    truncated = f"{about}{share:.1%} are" if share else "none is"
    fix = ""
    if share > _ADVISED_TRUNCATED:
        advised = math.ceil(float(np.quantile(lengths, 1 - _ADVISED_TRUNCATED)) / 8) * 8
        fits = positions is None or advised <= positions
        fix = (
            f"--max_length {advised} truncates 1%"
            if fits
            else "--long_texts windows reads all of them"
        )
    return [
        Finding(
            name="lengths",
            severity="warning" if share > _SUSPICIOUS_TRUNCATED else "info",
            message=f"training texts have {median:,} tokens (median), 95% up to {high:,}, the "
            f"longest {'of the sample ' if about else ''}{longest:,}; {truncated} truncated at "
            f"--max_length {max_length}",
            fix=fix,
            count=round(share * rows),
            examined=rows,
        )
    ]
