"""Text from elsewhere (names of classes, columns, files) that a terminal must show, not obey."""

from __future__ import annotations

import re

#: What moves the cursor or changes colours, what reverses the text after it, and halves of
#: characters, which cannot be encoded.
_COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str, keep: str = "\n\t") -> str:
    r"""Return ``text`` with control and direction characters escaped, like ``\x1b``."""
    return _COMMANDS.sub(lambda m: m[0] if m[0] in keep else ascii(m[0])[1:-1], text)
