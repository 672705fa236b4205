"""Texts that were damaged on their way into the file, and their languages."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset

from finetune.data import arrow, digests
from finetune.data.row_findings import EXCLUDE, report_rows
from finetune.errors import Report, Severity

#: Rows of a split that are looked at; of more, this many drawn at random.
_MOST_ROWS = 100_000
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
        "export the file again as UTF-8, or repair the texts (the package ftfy does)",
        "warning",
    ),
    "replacement_characters": (
        "\ufffd",
        "with '\ufffd', which stands for characters that are lost",
        "export the file again in its own encoding",
        "warning",
    ),
    "control_characters": (
        r"[\x00-\x08\x0e-\x1f]",
        "with null bytes or other control characters",
        "check that it is the right column, or remove the characters",
        "warning",
    ),
    "no_words": (
        r"^\PL+$",
        "without a letter, only digits, marks or symbols",
        "check that it is the right column",
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


def find_damaged_texts(rows: Dataset, split: str, columns: Sequence[str], report: Report) -> None:
    """Report what is wrong with the texts of a split; missing texts are skipped.

    Args:
        rows: With ``_row`` and ``text``, and ``texts`` if the model reads several columns.
        split: The name of the split in the source.
        columns: The names of the text columns in the data.
        report: Gets the findings.
    """
    stored = digests.stored_column(rows, "text")
    if stored not in rows.column_names:
        return
    sample = np.arange(len(rows))
    if len(rows) > _MOST_ROWS:
        sample = np.sort(np.random.default_rng(0).choice(len(rows), _MOST_ROWS, replace=False))
    for part, column in enumerate(columns):
        place = f" in '{column}'" if stored == digests.TEXTS else ""
        masks = {name: np.zeros(len(rows), bool) for name in _DAMAGES}
        for positions, values in arrow.pieces(rows, stored, sample):
            texts = pc.list_element(values, part) if stored == digests.TEXTS else values
            if not arrow.is_text(texts.type):
                return
            for name, (pattern, *_) in _DAMAGES.items():
                masks[name][positions] = arrow.matching(pc.fill_null(texts, ""), f"(?s){pattern}")
        for name, (_, description, fix, severity) in _DAMAGES.items():
            advice, positions = f"{fix}; else {EXCLUDE}", np.flatnonzero(masks[name])
            details: Any = dict(examined=len(sample), severity=severity)
            description += place
            report_rows(report, name, description, advice, positions, rows, split, **details)


def find_other_languages(rows: Dataset, column: str, report: Report) -> None:
    """Report training texts that are in other languages than most, by ``py3langid``.

    Args:
        rows: The training rows, with ``_row`` and the column of texts.
        column: Its name.
        report: Gets the finding.
    """
    size = min(len(rows), _LANGUAGE_SAMPLE)
    positions = np.sort(np.random.default_rng(0).choice(len(rows), size, replace=False))
    texts = rows.select_columns([column]).select(positions)[column][:]
    languages = np.array([_detect_language(text) for text in texts], dtype=object)
    counts = Counter(language for language in languages.tolist() if language)
    total = counts.total()
    if not total or total < _PROSE * len(texts):
        return
    (main, main_count), *others = counts.most_common()
    if total - main_count < max(_FEWEST_OTHERS, _REPORTED_LANGUAGES * total):
        return
    is_other = (languages != main) & (languages != "")
    is_common = total - main_count > _SUSPICIOUS_LANGUAGES * total
    listed = ", ".join(f"'{name}' {number:,}" for name, number in others[:5])
    report_rows(
        report,
        "languages",
        f"in another language than '{main}': {listed}",
        f"unless the model knows these languages, {EXCLUDE}",
        positions[is_other],
        rows,
        "train",
        examined=total,
        severity="warning" if is_common else "info",
        reasons=[f"language '{language}'" for language in languages[is_other]],
    )


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
