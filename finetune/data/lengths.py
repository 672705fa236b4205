"""What the tokenizer makes of texts: how long they are, what it does not know, where they end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from textwrap import shorten

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from finetune.data import ROW
from finetune.data.encoding import Encoder, Read
from finetune.errors import Finding, Report, UserError, counted

#: Texts that are tokenized to know the lengths of all.
SAMPLE = 2000
#: The mean share of unknown tokens of a text from which on it is suspicious, and the share of texts
#: without a sequence of tokens of their own from which on most are lost to the model.
_MUCH_UNKNOWN, _MOST_EQUAL = 0.05, 0.5


@dataclass(frozen=True)
class TokenSample:
    """What a tokenizer makes of a sample of texts.

    Attributes:
        rows: The numbers of the texts in their split, shape ``(texts,)``.
        total: How many texts the split has.
        max_length: Tokens that are kept of a text.
        lengths: Tokens of each text before truncation, special tokens included, likewise; those of
            more than 200,000 characters are estimated from the beginning.
        unknown: The share of unknown tokens of each text, likewise.
        texts: How many different texts there are.
        sequences: How many different sequences of tokens they become.
        token: The unknown token; empty if the tokenizer has none.
    """

    rows: np.ndarray
    total: int
    max_length: int
    lengths: np.ndarray
    unknown: np.ndarray
    texts: int
    sequences: int
    token: str

    @property
    def cut_share(self) -> float:
        """The share of texts that are longer than ``max_length``."""
        return float((self.lengths > self.max_length).mean()) if len(self.lengths) else 0.0


def sample_tokens(
    read: Callable[[np.ndarray], Sequence[Read]], total: int, encoder: Encoder, size: int = SAMPLE
) -> TokenSample:
    """Tokenize a sample of texts, drawn at random.

    Args:
        read: Returns what the model reads of the rows of these numbers.
        total: How many rows there are.
        encoder: From texts to tokens.
        size: How many to draw at most.
    """
    rows = np.arange(total)
    if total > size:
        rows = np.sort(np.random.default_rng(0).choice(total, size, replace=False))
    texts = list(read(rows))
    ids = [tuple(row) for row in encoder(texts)["input_ids"]]
    tokenizer = encoder.tokenizer
    token = tokenizer.unk_token
    if token in (tokenizer.eos_token, tokenizer.sep_token, tokenizer.bos_token):
        token = None  # as of GPT-2, which knows every byte
    number = None if token is None else tokenizer.convert_tokens_to_ids(token)
    special = set(tokenizer.all_special_ids) - {number}
    unknown = np.zeros(len(texts))
    for place, row in enumerate(ids):
        content = [token_id for token_id in row if token_id not in special]
        unknown[place] = content.count(number) / max(1, len(content))
    lengths = np.array([len(row) for row in ids], dtype=np.int64)
    full = np.flatnonzero(lengths >= encoder.max_length)
    lengths[full] = encoder.whole_lengths([texts[place] for place in full])
    different = {text if isinstance(text, str) else tuple(text) for text in texts}
    return TokenSample(
        rows=rows,
        total=total,
        max_length=encoder.max_length,
        lengths=lengths,
        unknown=unknown,
        texts=len(different),
        sequences=len(set(ids)),
        token=token or "",
    )


def unknown_findings(sample: TokenSample, model: str, rows: np.ndarray) -> list[Finding]:
    """Return a finding if the tokenizer does not know the texts.

    Args:
        sample: Of the texts of the training.
        model: Whose tokenizer it is, as typed.
        rows: The number in the source of each row of the sample, shape ``(texts,)``.
    """
    share = float(sample.unknown.mean()) if len(sample.unknown) else 0.0
    if share < _MUCH_UNKNOWN:
        return []
    about = "about " if len(sample.rows) < sample.total else ""
    message = (
        f"{about}{share:.0%} of the tokens of a training text are unknown to the tokenizer of "
        f"{model} ('{sample.token}')"
    )
    is_lost = 1 - sample.sequences / sample.texts > _MOST_EQUAL
    if is_lost:
        message += (
            f"; {counted(sample.texts, 'different text')} become "
            f"{counted(sample.sequences, 'sequence')} of tokens, so the model cannot tell them "
            "apart"
        )
    suspicious = sample.unknown >= _MUCH_UNKNOWN
    return [
        Finding(
            name="unknown_tokens",
            severity="error" if is_lost else "warning",
            message=message,
            fix="a model whose tokenizer knows this language and script, for instance a "
            "multilingual one: --model FacebookAI/xlm-roberta-base",
            split="train",
            rows=tuple(int(row) for row in rows[suspicious]),
            count=round(float(suspicious.mean()) * sample.total),
            examined=sample.total,
        )
    ]


def cut(sample: TokenSample) -> str:
    """Return what share of the texts is cut; "about" if that is estimated from a sample."""
    limit = f"--max_length {sample.max_length}"
    if not sample.cut_share:
        few = "of the sampled" if len(sample.rows) < sample.total else "of the"
        return f"none {few} training texts is longer than {limit}"
    exact = f" ({round(sample.cut_share * sample.total):,} of {sample.total:,})"
    about = "about " if len(sample.rows) < sample.total else ""
    return (
        f"{about}{_percent(sample.cut_share)} of the training texts{'' if about else exact} cut at "
        f"{limit}"
    )


def in_windows(documents: np.ndarray, max_length: int, shared: int, pooling: str) -> str:
    """Return how many windows the documents have.

    Args:
        documents: The document of each window, shape ``(windows,)``.
        max_length: Tokens of a window.
        shared: Tokens that neighbouring windows share.
        pooling: ``mean`` or ``max``.
    """
    windows = np.unique(documents, return_counts=True)[1]
    return (
        f"{len(documents):,} training windows of up to {max_length} tokens, {shared} shared with "
        f"the next: {windows.mean():.1f} a document on average, at most {windows.max():,}; logits "
        f"pooled by {pooling}"
    )


def refuse_ends_inside(
    prepared: DatasetDict,
    raw: DatasetDict,
    source: Collection[str],
    end: tuple[int, str],
    report: Report,
) -> None:
    """Refuse rows that have the token that ends a text more often than others.

    The heads of encoder-decoders read a text at that token, and fail where rows of a batch have it
    more or less often. Tokenizers of SentencePiece find it in a text that spells it out.

    Args:
        prepared: Splits as a recipe has prepared them.
        raw: The splits before that.
        source: The splits of the source; others are split off from ``train``.
        end: The number of the token, and how it is spelt.
        report: Knows where the rows are.

    Raises:
        UserError: With such rows of a split.
    """
    number, token = end
    for split, rows in prepared.items():
        if "input_ids" not in rows.column_names:
            continue
        counts = _occurrences(number, rows)
        fewest = counts.min(initial=np.iinfo(counts.dtype).max)
        wrong = np.flatnonzero(counts > fewest)
        if len(wrong):
            report.fail(
                f"a text of the {split} data spells out '{token}', the token that ends a text for "
                f"this model ({counted(len(wrong), 'such row')})",
                fix="take it out of the texts",
                split=split if split in source else "train",
                rows=_source_rows(raw.get(split), rows, wrong),
            )
        if not fewest:
            raise UserError(
                f"the rows of {split} do not end in '{token}', where this model reads a text: "
                "expected a tokenizer that adds it"
            )


def refuse_end_in_texts(
    tokens: Sequence[Sequence[int]], texts: Sequence[Read], end: tuple[int, str], encoder: Encoder
) -> None:
    """Refuse texts as :func:`refuse_ends_inside` does, where they have no number.

    Args:
        tokens: Of each text, or of windows of them.
        texts: As many.
        end: The number of the token and how it is spelt.
        encoder: What made the tokens.

    Raises:
        UserError: With the beginning of the first such text.
    """
    number, token = end
    plain: Read = "a" if isinstance(texts[0], str) else ["a"] * len(texts[0])
    most = encoder([plain])["input_ids"][0].count(number)
    for row, text in zip(tokens, texts, strict=True):
        if row.count(number) > most:
            beginning = shorten(text if isinstance(text, str) else " ".join(text), 60)
            raise UserError(
                f"the text '{beginning}' spells out '{token}', the token that ends a text for this "
                "model: take it out of the texts"
            )


def _occurrences(token: int, rows: Dataset) -> np.ndarray:
    """Return how often a token is in each prepared row, shape ``(rows,)``."""
    counts = [np.empty(0, dtype=np.int64)]
    for table in rows.select_columns("input_ids").with_format("arrow").iter(batch_size=10_000):
        for ids in table.column("input_ids").chunks:
            numbers = np.repeat(np.arange(len(ids)), pc.list_value_length(ids))
            is_token = np.asarray(ids.flatten()) == token
            counts.append(np.bincount(numbers[is_token], minlength=len(ids)))
    return np.concatenate(counts)


def _source_rows(raw: Dataset | None, prepared: Dataset, numbers: np.ndarray) -> list[int]:
    """Return the numbers in the source of prepared rows; none if a recipe has dropped some."""
    if raw is None or ROW not in raw.column_names or len(raw) != len(prepared):
        return []
    return [int(row) for row in raw.select_columns(ROW)[numbers][ROW]]


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"
