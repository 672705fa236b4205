"""Text from elsewhere (names of classes, columns, files) that a terminal must show, not obey."""

from __future__ import annotations

import unicodedata

#: Characters that reverse what is read after them.
_DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def visible(text: str, keep: str = "\n\t") -> str:
    r"""Return ``text`` with control and direction characters escaped, like ``\x1b``.

    Args:
        text: What is to be printed.
        keep: The control characters that stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        # Cc moves the cursor and changes colours, Cs cannot be encoded
        character.encode("unicode_escape").decode("ascii")
        if character in _DIRECTIONS
        or (character not in keep and unicodedata.category(character) in ("Cc", "Cs"))
        else character
        for character in text
    )
