"""Check texts: damaged characters, other languages, and their tokens: lengths, and the share that
the tokenizer does not know.
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset

from finetune.data import arrow, digests
from finetune.data.encoding import Encoder
from finetune.data.targets import EXCLUDE, report_rows, source_rows
from finetune.data.tokenize import read_by_model
from finetune.errors import Findings, Severity

#: The most rows of a split that are checked; of more rows, a random sample.
_MAX_ROWS = 100_000
#: Regular expressions of UTF-8 that was read as Windows-1252: a continuation byte, a character of
#: two to four bytes, and a Western letter, sign or emoji. One Western character is enough. Others
#: must occur twice, because their first byte may be a letter before a quotation mark.
_NEXT = f"[\x80-\xbf{bytes(range(0x80, 0xA0)).decode('cp1252', 'ignore')}]"
_ANY = f"(?:[\xc2-\xdf]{_NEXT}|[\xe0-\xef]{_NEXT}{{2}}|[\xf0-\xf4]{_NEXT}{{3}})"
_WESTERN = f"[\xc2\xc3]{_NEXT}|\xe2{_NEXT}{{2}}|\xf0{_NEXT}{{3}}"
#: Damages by the name of the finding: a regular expression of RE2, the description of the rows, and
#: the fix.
_DAMAGES: dict[str, tuple[str, str, str]] = {
    "mojibake": (
        f"{_WESTERN}|{_ANY}.*{_ANY}",
        "with UTF-8 that was read in another encoding, like 'Ã©' for 'é'",
        "export the file again as UTF-8, or repair the texts (the package ftfy does)",
    ),
    "replacement_characters": (
        "\ufffd",
        "with '\ufffd', which replaces lost characters",
        "export the file again in its own encoding",
    ),
    "control_characters": (
        r"[\x00-\x08\x0e-\x1f]",
        "with null bytes or other control characters",
        "check that it is the right column, or remove the characters",
    ),
    "no_words": (
        r"^\PL+$",
        "without a letter, only digits, marks or symbols",
        "check that it is the right column",
    ),
}
#: For language detection: the most texts, the fewest letters of a text, and the smallest difference
#: in log-probability between the two most likely languages.
_LANGUAGE_SAMPLE, _MIN_LETTERS, _MIN_MARGIN = 2000, 20, 7.0
#: If a smaller share of texts has a clear language, they are codes or names, not prose.
_PROSE = 0.5
#: The fewest texts in other languages that are reported.
_MIN_OTHER_TEXTS = 5
#: The most texts that are tokenized to estimate the lengths of all.
_TOKEN_SAMPLE = 1000
#: The mean share of unknown tokens from which there is a warning, and the share of texts whose
#: tokens equal those of another text above which it is an error.
_MIN_SUSPICIOUS_UNKNOWN, _MAX_EQUAL_SHARE = 0.05, 0.5
#: The share of truncated texts above which there is a warning.
_SUSPICIOUS_TRUNCATED = 0.25


def draw_rows(count: int, most: int) -> np.ndarray:
    """Return the sorted positions of at most ``most`` random rows."""
    return np.sort(np.random.default_rng(0).choice(count, min(count, most), replace=False))


def find_damaged_texts(rows: Dataset, split: str, columns: Sequence[str], report: Findings) -> None:
    """Report damaged texts in a split; missing texts are skipped.

    Args:
        rows: Rows of the source.
        split: The name of the split.
        columns: The user's names of its text columns.
        report: Gets a finding for each kind of damage.
    """
    stored = digests.stored_column(rows, "text")
    if stored not in rows.column_names or "string" not in str(rows.features[stored]):
        return
    sample = draw_rows(len(rows), _MAX_ROWS)
    size = len(sample)
    for part, column in enumerate(columns):
        suffix = ""
        if stored == digests.TEXTS:
            suffix = f" in '{column}'"
        masks = {name: np.zeros(size, bool) for name in _DAMAGES}
        for places, values in arrow.pieces(rows.select(sample), stored):
            texts = pc.list_element(values, part) if stored == digests.TEXTS else values
            texts = pc.fill_null(texts, "")
            for name, (pattern, *_) in _DAMAGES.items():
                masks[name][places] = pc.match_substring_regex(texts, f"(?s){pattern}")
        for name, (_, description, fix) in _DAMAGES.items():
            severity: Severity | None = "warning"
            if name == "no_words":  # a few are normal
                severity = None
            report_rows(
                report,
                name,
                description + suffix,
                f"{fix}; else {EXCLUDE}",
                sample[masks[name]],
                rows,
                split,
                examined=size,
                severity=severity,
            )


def find_other_languages(rows: Dataset, column: str, report: Findings) -> None:
    """Report training texts in another language than most of them, detected by ``py3langid``.

    Args:
        rows: The training rows.
        column: The column of texts.
        report: Gets a finding if there are such texts.
    """
    from py3langid import rank

    positions = draw_rows(len(rows), _LANGUAGE_SAMPLE)
    size = len(positions)
    languages = np.full(size, "", dtype=object)  # ISO 639-1 codes, "" if unclear
    for place, text in enumerate(rows.select_columns([column]).select(positions)[column][:]):
        letters = re.sub(r"[\W\d_]+", " ", text).strip()
        if len(letters) >= _MIN_LETTERS:
            # skip codes of three letters: dialects and pidgins, which jargon is mistaken for
            ranked = (pair for pair in rank(letters) if len(pair[0]) == 2)
            (best, score), (_, second) = itertools.islice(ranked, 2)
            if score - second >= _MIN_MARGIN:
                languages[place] = best
    counts = Counter(filter(None, languages.tolist()))
    total = counts.total()
    if total < _PROSE * size:
        return
    (main, main_count), *other_counts = counts.most_common()
    if total - main_count < _MIN_OTHER_TEXTS:
        return
    is_other = (languages != main) & (languages != "")
    listed = ", ".join(f"'{name}' {number:,}" for name, number in other_counts[:5])
    report_rows(
        report,
        "languages",
        f"in another language than '{main}': {listed}",
        f"unless the model knows these languages, {EXCLUDE}",
        positions[is_other],
        rows,
        "train",
        examined=total,
        suspects=[[f"language '{language}'" for language in languages[is_other]]],
    )


@dataclass(frozen=True)
class TokenSample:
    """Statistics of the tokens of a sample of texts.

    Attributes:
        rows: The source row numbers of the texts, shape ``(texts,)``.
        total: The number of texts of the split.
        lengths: The number of tokens of each text before truncation, with special tokens, shape
            ``(texts,)``.
        unknown: The share of unknown tokens of each text, shape ``(texts,)``.
        texts: The number of different texts.
        sequences: The number of different token sequences.
    """

    rows: np.ndarray
    total: int
    lengths: np.ndarray
    unknown: np.ndarray
    texts: int
    sequences: int

    def share_truncated(self, max_length: int) -> float:
        """Return the share of texts with more than ``max_length`` tokens."""
        return float((self.lengths > max_length).mean())

    def describe_lengths(self, max_length: int) -> str:
        """Return a clause about the lengths of the training texts, and how many are truncated."""
        median, high, longest = map(int, np.quantile(self.lengths, [0.5, 0.95, 1]))
        sampled = ""
        if len(self.rows) < self.total:
            sampled = f" ({len(self.rows):,} sampled)"
        return (
            f"training texts{sampled} have {median:,} tokens (median), 95% up to {high:,}, the "
            f"longest {longest:,}; {self.share_truncated(max_length):.1%} are truncated at "
            f"--max_length {max_length}"
        )

    def report_lengths(self, max_length: int, report: Findings) -> None:
        """Report :meth:`describe_lengths`: a warning if many texts are truncated."""
        share = self.share_truncated(max_length)
        add = report.warning if share > _SUSPICIOUS_TRUNCATED else report.info
        add(
            self.describe_lengths(max_length),
            "lengths",
            fix="--long_texts windows reads all of them" if share > 0.01 else "",
            count=round(share * self.total),
            examined=self.total,
        )

    def report_unknown(self, model: str, report: Findings) -> None:
        """Report a large share of unknown tokens in the training texts."""
        share = float(self.unknown.mean())
        if share < _MIN_SUSPICIOUS_UNKNOWN:
            return
        is_lost = 1 - self.sequences / self.texts > _MAX_EQUAL_SHARE
        suspicious = self.unknown >= _MIN_SUSPICIOUS_UNKNOWN
        add = report.error if is_lost else report.warning
        add(
            f"{share:.0%} of the tokens of a training text are unknown to the tokenizer of "
            f"{model}; {self.texts:,} different texts become {self.sequences:,} token lists",
            "unknown_tokens",
            fix="choose a model for this language and script, for instance a multilingual one: "
            "--model FacebookAI/xlm-roberta-base",
            split="train",
            rows=self.rows[suspicious].tolist(),
            count=round(float(suspicious.mean()) * self.total),
            examined=self.total,
        )


def sample_tokens(dataset: Dataset, encoder: Encoder) -> TokenSample:
    """Tokenize a random sample of the raw rows of a split, and return its statistics."""
    total = len(dataset)
    rows = draw_rows(total, _TOKEN_SAMPLE)
    read = read_by_model(dataset.select(rows))
    texts = {text if isinstance(text, str) else tuple(text) for text in read}
    unknown = encoder.tokenizer.unk_token_id
    lengths, shares, sequences = [], [], set()
    for ids in encoder.whole_rows(read):  # not all at once: a text may have megabytes
        lengths.append(len(ids) + encoder.special_tokens)
        shares.append(ids.count(unknown) / max(1, len(ids)))
        sequences.add(hash(tuple(ids)))
    return TokenSample(
        source_rows(dataset)[rows],
        total,
        np.array(lengths, dtype=np.int64),
        np.array(shares),
        len(texts),
        len(sequences),
    )
