"""What the tokenizer makes of a sample of texts: how long they are, and what it does not know."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from finetune.data.encoding import Encoder, Read
from finetune.errors import Report, counted

#: Texts that are tokenized to estimate the lengths of all.
_SAMPLE = 2000
#: The mean share of unknown tokens of a text from which on it is suspicious, and the share of texts
#: without a sequence of tokens of their own from which on most are lost to the model.
_MUCH_UNKNOWN, _MOST_EQUAL = 0.05, 0.5
#: The share of truncated texts that is suspicious, and the one that the advice would leave.
_SUSPICIOUS_TRUNCATED, _ADVISED_TRUNCATED = 0.25, 0.01


@dataclass(frozen=True)
class TokenSample:
    """What a tokenizer makes of a sample of texts.

    Attributes:
        rows: The numbers of the texts in their split, shape ``(texts,)``.
        total: How many texts the split has.
        lengths: Tokens of each text before truncation, special tokens included, likewise; those of
            more than 200,000 characters are estimated from the beginning.
        unknown: The share of unknown tokens of each text, likewise.
        texts: How many different texts there are.
        sequences: How many different sequences of tokens they become.
    """

    rows: np.ndarray
    total: int
    lengths: np.ndarray
    unknown: np.ndarray
    texts: int
    sequences: int

    @property
    def _about(self) -> str:
        return "about " if len(self.rows) < self.total else ""

    def report_lengths(self, max_length: int, positions: int | None, report: Report) -> None:
        """Report how long the training texts are in tokens, and how many are truncated.

        Args:
            max_length: Tokens that are kept.
            positions: Tokens that the model can read; None without a limit.
            report: Gets the finding.
        """
        share = float((self.lengths > max_length).mean())
        median, high, longest = map(int, np.quantile(self.lengths, [0.5, 0.95, 1]))
        message = (
            f"training texts have {median:,} tokens (median), 95% up to {high:,}, the longest "
            f"{self._about}{longest:,}; {self._about}{share:.1%} are truncated at --max_length "
            f"{max_length}"
        )
        details: Any = dict(count=round(share * self.total), examined=self.total)
        if share > _ADVISED_TRUNCATED:
            details["fix"] = "--long_texts windows reads all of them"
            advised = math.ceil(float(np.quantile(self.lengths, 1 - _ADVISED_TRUNCATED)) / 8) * 8
            if positions is None or advised <= positions:
                details["fix"] = f"--max_length {advised} truncates 1%"
        is_suspicious = share > _SUSPICIOUS_TRUNCATED
        (report.warning if is_suspicious else report.info)(message, "lengths", **details)

    def report_unknown(self, model: str, rows: np.ndarray, report: Report) -> None:
        """Report if the tokenizer of a model does not know the texts of the training.

        ``rows`` are the numbers in the source of the rows of the sample, shape ``(texts,)``.
        """
        share = float(self.unknown.mean()) if len(self.unknown) else 0.0
        if share < _MUCH_UNKNOWN:
            return
        is_lost = 1 - self.sequences / self.texts > _MOST_EQUAL
        suspicious = self.unknown >= _MUCH_UNKNOWN
        (report.error if is_lost else report.warning)(
            f"{self._about}{share:.0%} of the tokens of a training text are unknown to the "
            f"tokenizer of {model}; {counted(self.texts, 'different text')} become "
            f"{counted(self.sequences, 'sequence')} of tokens",
            "unknown_tokens",
            fix="a model whose tokenizer knows this language and script, for instance a "
            "multilingual one: --model FacebookAI/xlm-roberta-base",
            split="train",
            rows=rows[suspicious].tolist(),
            count=round(float(suspicious.mean()) * self.total),
            examined=self.total,
        )


def sample_tokens(
    read: Callable[[np.ndarray], Sequence[Read]], total: int, encoder: Encoder
) -> TokenSample:
    """Tokenize a random sample of ``total`` texts, which ``read`` returns by their numbers."""
    rows = np.sort(np.random.default_rng(0).choice(total, min(_SAMPLE, total), replace=False))
    texts = [text if isinstance(text, str) else tuple(text) for text in read(rows)]
    ids = [tuple(row) for row in encoder(texts)["input_ids"]]
    lengths = np.array([len(row) for row in ids], dtype=np.int64)
    full = np.flatnonzero(lengths >= encoder.max_length)
    lengths[full] = encoder.whole_lengths([texts[row] for row in full])
    tokenizer = encoder.tokenizer
    number = tokenizer.unk_token_id
    if number in (tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id):
        number = None  # as of GPT-2, which knows every byte
    special = {*tokenizer.all_special_ids} - {number}
    contents = [[token for token in row if token not in special] for row in ids]
    shares = [content.count(number) / max(1, len(content)) for content in contents]
    return TokenSample(rows, total, lengths, np.array(shares), len({*texts}), len({*ids}))
