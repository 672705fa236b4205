"""Names that are written in several ways, and look or mean the same."""

from __future__ import annotations

import re
import unicodedata

#: Follows a character that is shown as an emoji.
EMOJI = "\ufe0f"
#: How spreadsheets keep a word from being a number; and what JSON and other programs write for it.
_KEPT_AS_TEXT, _BOOLEANS = re.compile(r"""="(.*)"|'(.*)"""), {"true": "1", "false": "0"}


def visible(name: str) -> str:
    """Return a name without case, spaces, invisible characters and Unicode's ways to write it."""
    composed = unicodedata.normalize("NFKC", name)
    seen = (each for each in composed if each.isprintable() or each.isspace())
    return " ".join("".join(seen).replace(EMOJI, "").split()).casefold()


def meant(name: str) -> str:
    """Return what can be seen of a name without marks of spreadsheets; its number of a truth
    value.
    """
    word = visible(name)
    if kept := _KEPT_AS_TEXT.fullmatch(word):
        word = kept[1] if kept[2] is None else kept[2]
    return _BOOLEANS.get(word, word)
