"""Shorten very long texts before they are tokenized, where that leaves the kept tokens unchanged.

So a text of megabytes is not tokenized whole, see :func:`shortened`.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

#: Characters per token, more than in most texts.
_ROOMY = 8
#: Characters that are tokenized at once where tokens are only counted.
_PIECE = 2**16
_WHITE_SPACE = " \t\n\r"


def shortened(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    truncation_side: str | None = None,
) -> list[str]:
    """Cut long texts without changing their first ``max_length`` tokens.

    Where texts are truncated on the left, the same for their last tokens.

    A text is cut at white space. The cut is accepted if another word lies between it and the kept
    tokens: then all their words are complete, and the text that is left out cannot change them.
    Otherwise four times as much text is tried, up to the whole text (a single word may be that
    long, or the tokenizer may delete characters). Texts are left whole for tokenizers that know no
    words or are written in Python.

    Args:
        texts: Texts of any length.
        tokenizer: The tokenizer of the model.
        max_length: Tokens to keep, special tokens included.
        truncation_side: ``right`` or ``left``; that of the tokenizer if None.
    """
    result = list(texts)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return result
    from_left = (truncation_side or tokenizer.truncation_side) == "left"
    size, long = _ROOMY * max_length, list(range(len(result)))
    while long := [number for number in long if len(texts[number]) > 2 * size]:
        parts = [(_tail if from_left else _head)(texts[number], size) for number in long]
        encoded = tokenizer(parts, add_special_tokens=False, verbose=False)
        for place, number in enumerate(long):
            words = encoded.word_ids(place)[:: -1 if from_left else 1]
            if len(words) > max_length and None is not words[max_length - 1] != words[-1]:
                result[number] = parts[place]
        long = [number for number in long if len(result[number]) == len(texts[number])]
        size *= 4
    return result


def without_middle(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> list[str]:
    """Cut long texts without changing their first and their last ``max_length`` tokens."""
    heads, tails = (shortened(texts, tokenizer, max_length, side) for side in ("right", "left"))
    return [
        f"{head} {tail}" if head != text != tail else text
        for text, head, tail in zip(texts, heads, tails, strict=True)
    ]


def _head(text: str, size: int) -> str:
    """Return at most ``size`` characters of a longer text, up to the last white space in them."""
    end = max(text.rfind(character, 0, size) for character in _WHITE_SPACE)
    return text[: max(0, end)].rstrip(_WHITE_SPACE)


def _tail(text: str, size: int) -> str:
    """At most ``size`` characters of the end of a longer text, from the first white space on."""
    starts = (text.find(character, len(text) - size) for character in _WHITE_SPACE)
    first = min((start for start in starts if start >= 0), default=len(text))
    return text[first:].lstrip(_WHITE_SPACE)


def counts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens of texts, without special tokens and truncation.

    Those of more than 65,536 characters are counted in pieces that end before white space, which is
    exact if the words of the tokenizer do so too, else off by a few tokens per piece.
    """
    result = [0] * len(texts)
    found = [(number, piece) for number, text in enumerate(texts) for piece in pieces(text)]
    if found:
        words = [piece for _, piece in found]
        ids_only = {"return_attention_mask": False, "return_token_type_ids": False}
        encoded = tokenizer(words, add_special_tokens=False, verbose=False, **ids_only)["input_ids"]
        for (number, _), tokens in zip(found, encoded, strict=True):
            result[number] += len(tokens)
    return result


def pieces(text: str) -> list[str]:
    """Return a text in pieces of 65,536 characters or less that end before white space."""
    result = []
    while len(text) > _PIECE:
        end = len(_head(text, _PIECE)) or _PIECE
        result.append(text[:end])
        text = text[end:]
    return [*result, text]
