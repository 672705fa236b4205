"""Text from elsewhere (names of classes, columns, files) that a terminal must show, not obey."""

from __future__ import annotations

import re

#: What moves the cursor or changes colours, what reverses the text after it, and halves of
#: characters, which cannot be encoded.
_COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str, keep: str = "\n\t") -> str:
    r"""Return ``text`` with control and direction characters escaped, like ``\x1b``.

    Args:
        text: What is to be printed.
        keep: The control characters that stay as they are.
    """

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in keep else ascii(character)[1:-1]

    return _COMMANDS.sub(escape, text)
