"""A set of several labels a row whose truth is known, made of the embedded sentences.

python benchmarks/compose_labels.py labels.jsonl
python -m finetune text --dataset labels.jsonl --embedded

The labels are properties of the text that can be checked, and its sentiment: half the rows have no
label but that.
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

from finetune.data import embedded

PROPERTIES: dict[str, Callable[[str], bool]] = {
    "negation": lambda text: bool(re.search(r"\b(not|no|never|nothing|n't)\b", text)),
    "long": lambda text: len(text.split()) > 25,
    "dash": lambda text: " -- " in text or " - " in text,
    "comparison": lambda text: bool(re.search(r"\b(more|less|most|least|than)\b", text)),
    "film": lambda text: bool(re.search(r"\b(film|movie|picture|cinema)\b", text)),
    "character": lambda text: bool(re.search(r"\b(actor|actress|character|role|cast)s?\b", text)),
}


def rows() -> list[dict[str, object]]:
    """Return ``text`` and ``label``, a list of names, of each sentence."""
    found = []
    for row in embedded.read("embedded:rotten-tomatoes")["train"]:
        labels = [name for name, has in PROPERTIES.items() if has(row["text"])]
        found.append({"text": row["text"], "label": labels + ["positive"] * int(row["label"])})
    return found


def main() -> None:
    """Write them as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    path = parser.parse_args().output
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
