"""Texts that were damaged on their way into the file, their languages and their lengths."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset

from finetune.data import arrow, digests
from finetune.data.row_findings import EXCLUDE, MOST_SUSPECTS, describe_rows, row_numbers
from finetune.errors import Finding, Severity, Suspect

#: Rows of a split that are looked at; of more, this many drawn at random.
MOST_ROWS = 100_000
#: Characters above which a text is far longer than others, if it is also so many times the median.
_LONG, _TIMES_MEDIAN = 100_000, 100
#: Texts were cut off if at least so many of at least so many characters have the greatest length,
#: and so many times as many as have one of the twenty lengths below it on average.
_FEWEST_CUT, _SHORTEST_CUT, _TIMES_BELOW, _BELOW = 10, 50, 3, 20
#: UTF-8 read as Windows-1252, as regular expressions: a byte that continues a character, and the
#: characters of two to four bytes. Western letters, signs and emoji begin with one of four bytes;
#: others are themselves letters that may stand before a quotation mark, so one is not enough.
_NEXT = f"[\x80-\xbf{bytes(range(0x80, 0xA0)).decode('cp1252', 'ignore')}]"
_ANY = f"(?:[\xc2-\xdf]{_NEXT}|[\xe0-\xef]{_NEXT}{{2}}|[\xf0-\xf4]{_NEXT}{{3}})"
_WESTERN = f"[\xc2\xc3]{_NEXT}|\xe2{_NEXT}{{2}}|\xf0{_NEXT}{{3}}"
#: By the name of a finding: the regular expression of RE2 that finds a damage, what it is, what to
#: do, and the severity; None for a warning from 1% of the rows on.
_DAMAGES: dict[str, tuple[str, str, str, Severity | None]] = {
    "mojibake": (
        f"{_WESTERN}|{_ANY}.*{_ANY}",
        "with UTF-8 that was read in another encoding, like 'Ã©' for 'é'",
        "export the file again as UTF-8, or repair the texts (the package ftfy does); else",
        "warning",
    ),
    "replacement_characters": (
        "\ufffd",
        "with '\ufffd', which stands for characters that are lost",
        "export the file again in its own encoding; else",
        "warning",
    ),
    "null_bytes": (
        r"\x00",
        "with null bytes, which no text has unless its file was damaged",
        "export it again, or remove these bytes; else",
        "warning",
    ),
    "control_characters": (
        r"[\x01-\x08\x0e-\x1f]",
        "with control characters",
        "is it the right column? If so, remove the characters; else",
        None,
    ),
    "no_words": (
        r"^\PL+$",
        "without a letter, only digits, marks or symbols",
        "is it the right column? If so,",
        None,
    ),
}
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


def find_damaged_texts(rows: Dataset, split: str, columns: Sequence[str]) -> list[Finding]:
    """Return what is wrong with the texts of a split; missing texts are skipped.

    Args:
        rows: With ``_row`` and ``text``, and ``texts`` if the model reads several columns.
        split: The name of the split in the source.
        columns: The names of the text columns in the data.
    """
    stored = digests.stored_column(rows, "text")
    if stored not in rows.column_names:
        return []
    sample = np.arange(len(rows))
    if len(rows) > MOST_ROWS:
        sample = np.sort(np.random.default_rng(0).choice(len(rows), MOST_ROWS, replace=False))
    findings = []
    for part, column in enumerate(columns):
        place = f" in '{column}'" if stored == digests.TEXTS else ""
        characters, has_spaces = np.zeros(len(rows), np.int64), False
        masks = {name: np.zeros(len(rows), bool) for name in _DAMAGES}
        for positions, values in arrow.pieces(rows, stored, sample):
            texts = pc.list_element(values, part) if stored == digests.TEXTS else values
            texts = pc.fill_null(texts, "")
            if not arrow.is_text(texts.type):
                return []
            has_spaces = has_spaces or bool(arrow.matching(texts, r"\s").any())
            characters[positions] = pc.utf8_length(texts).to_numpy(zero_copy_only=False)
            for name, (pattern, *_) in _DAMAGES.items():
                masks[name][positions] = arrow.matching(texts, f"(?s){pattern}")
        for name, (_, description, fix, severity) in _DAMAGES.items():
            findings += describe_rows(
                name,
                description + place,
                f"{fix} {EXCLUDE}",
                np.flatnonzero(masks[name]),
                rows,
                split,
                examined=len(sample),
                severity=severity,
            )
        for name, is_odd, description, fix in _odd_lengths(characters[sample], place, has_spaces):
            findings += describe_rows(
                name,
                description,
                f"{fix}; else {EXCLUDE}",
                sample[is_odd],
                rows,
                split,
                examined=len(sample),
                severity="warning",
            )
    return findings


def _odd_lengths(
    characters: np.ndarray, place: str, has_spaces: bool
) -> list[tuple[str, np.ndarray, str, str]]:
    """Return which texts are far longer than the others, and which were cut off at one length.

    Args:
        characters: The length of each text, shape ``(texts,)``.
        place: The column, for the descriptions.
        has_spaces: Whether any text has one: sequences of one length are no prose.

    Returns:
        The names of the findings, which texts, a description and a fix.
    """
    median = int(np.median(characters[characters > 0])) if characters.any() else 0
    longest = int(characters.max(initial=0))
    is_cut = characters == longest
    shorter = int(((characters < longest) & (characters >= longest - _BELOW)).sum())
    fewest = max(_FEWEST_CUT, _TIMES_BELOW * shorter / _BELOW, 0.001 * len(characters), shorter + 1)
    is_cut &= has_spaces and longest >= _SHORTEST_CUT and is_cut.sum() >= fewest
    return [
        (
            "far_longer",
            characters > max(_LONG, _TIMES_MEDIAN * median),
            f"far longer than the others{place}, up to {longest:,} characters, where half have "
            f"{median:,} or fewer",
            "did rows run together, for instance by a quotation mark that is never closed? If so, "
            "correct them",
        ),
        (
            "cut_off",
            is_cut,
            f"of exactly {longest:,} characters{place}, the greatest length, and few just below: "
            "they were probably cut off when the data was exported",
            "export the whole texts",
        ),
    ]


def find_other_languages(rows: Dataset, column: str) -> list[Finding]:
    """Return whether training texts are in other languages than most, by ``py3langid``.

    Args:
        rows: The training rows, with ``_row`` and the column of texts.
        column: Its name.
    """
    size = min(len(rows), _LANGUAGE_SAMPLE)
    positions = np.sort(np.random.default_rng(0).choice(len(rows), size, replace=False))
    texts = rows.select_columns([column]).select(positions)[column][:]
    languages = np.array([_detect_language(text) for text in texts], dtype=object)
    counts = Counter(language for language in languages.tolist() if language)
    total = counts.total()
    if not total or total < _PROSE * len(texts):
        return []
    (main, main_count), *rest = counts.most_common()
    count = total - main_count
    if count < max(_FEWEST_OTHERS, _REPORTED_LANGUAGES * total):
        return []
    is_other = (languages != main) & (languages != "")
    numbers = row_numbers(rows, positions[is_other][:MOST_SUSPECTS])
    listed = ", ".join(f"'{name}' {number:,}" for name, number in rest[:5])
    return [
        Finding(
            name="languages",
            severity="warning" if count > _SUSPICIOUS_LANGUAGES * total else "info",
            message=f"{count:,} of {total:,} training texts looked at are in another language than "
            f"'{main}': {listed}{', ...' * (len(rest) > 5)}",
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


def _detect_language(text: str) -> str:
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
    qualifier = "about " if len(lengths) < rows else ""
    median, high, longest = (int(value) for value in np.quantile(lengths, [0.5, 0.95, 1]))
    truncated = f"{qualifier}{share:.1%} are" if share else "none is"
    fix = ""
    if share > _ADVISED_TRUNCATED:
        fix = "--long_texts windows reads all of them"
        advised = math.ceil(float(np.quantile(lengths, 1 - _ADVISED_TRUNCATED)) / 8) * 8
        if positions is None or advised <= positions:
            fix = f"--max_length {advised} truncates 1%"
    return [
        Finding(
            name="lengths",
            severity="warning" if share > _SUSPICIOUS_TRUNCATED else "info",
            message=f"training texts have {median:,} tokens (median), 95% up to {high:,}, the "
            f"longest {'of the sample ' if qualifier else ''}{longest:,}; {truncated} truncated at "
            f"--max_length {max_length}",
            fix=fix,
            count=round(share * rows),
            examined=rows,
        )
    ]
