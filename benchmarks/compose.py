"""Compose a set for a kind of task from the embedded data, so that its truth is known.

python benchmarks/compose.py pairs DIRECTORY       # or: all DIRECTORY
python -m finetune text --embedded --dataset DIRECTORY/pairs --text_columns first,second

Where no package has a set of such labels, they are made: each sentence of Rotten Tomatoes is used
once, but in pairs, each review of IMDB and each digit too, in an order drawn from a seed. So
results say whether a task is learned, not how well a model would do on labels that people gave.
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finetune.data import embedded

SEED = 0
JOINED = 4  # sentences of a text
SHORT = 20  # words: four of them fit into 128 tokens
PAIRED = 16  # pairs that a sentence of training is in
RARE = 0.05  # the share of the rare class
LONG = 400  # words: fewer than that are no long document
PROPERTIES: dict[str, Callable[[str], bool]] = {
    "negation": lambda text: bool(re.search(r"\b(not|no|never|nothing|n't)\b", text)),
    "long": lambda text: len(text.split()) > 25,
    "dash": lambda text: " -- " in text or " - " in text,
    "comparison": lambda text: bool(re.search(r"\b(more|less|most|least|than)\b", text)),
    "film": lambda text: bool(re.search(r"\b(film|movie|picture|cinema)\b", text)),
    "character": lambda text: bool(re.search(r"\b(actor|actress|character|role|cast)s?\b", text)),
}


def labels(directory: Path) -> Path:
    """Several labels a row: properties of the text that can be checked, and its sentiment."""
    path, lines = directory / "labels.jsonl", []
    for text, positive in zip(*_sentences(), strict=True):
        names = [name for name, has in PROPERTIES.items() if has(text)]
        names += ["positive"] * int(positive)
        lines.append(json.dumps({"text": text, "label": names}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def joined(directory: Path) -> Path:
    """Numbers and an order: how many of four short sentences, joined, are positive, as a count and
    as a share; the number of words is another target, of another unit.
    """
    texts, positive = _sentences()
    short = np.array([len(text.split()) <= SHORT for text in texts])
    texts, positive = texts[short], positive[short]
    groups = np.arange(len(texts) // JOINED * JOINED).reshape(-1, JOINED)
    table = pd.DataFrame({"text": [" ".join(texts[group]) for group in groups]})
    table["positives"] = positive[groups].sum(axis=1)
    table["share"] = positive[groups].mean(axis=1)
    table["words"] = table["text"].str.split().str.len()
    return _written(table, directory / "joined.csv")


def pairs(directory: Path) -> Path:
    """Pairs of short sentences of the same sentiment or of two; neither column alone says which.

    No sentence is in two splits; those of training are in many pairs, as few pairs are learned by
    heart. Beside the splits, ``sentences.csv`` has the sentences of training with their sentiment.
    """
    path = directory / "pairs"
    path.mkdir(parents=True, exist_ok=True)
    texts, positive = _sentences()
    short = np.array([len(text.split()) <= SHORT for text in texts])
    texts, positive = texts[short], positive[short]
    names, generator = np.array(["negative", "positive"]), np.random.default_rng(SEED)
    ends = (0, *(int(share * len(texts)) for share in (0.8, 0.9, 1)))
    for split, start, end in zip(("train", "validation", "test"), ends, ends[1:], strict=False):
        half, columns = (end - start) // 2, []
        for _ in range(PAIRED if split == "train" else 2):
            order = start + generator.permutation(end - start)
            columns.append([order[:half], order[half : 2 * half]])
        first, second = np.concatenate(columns, axis=1)
        label = np.where(positive[first] == positive[second], "same", "other")
        table = pd.DataFrame({"first": texts[first], "second": texts[second], "label": label})
        _written(table, path / f"{split}.csv")
    single = pd.DataFrame({"text": texts[: ends[1]], "label": names[positive[: ends[1]]]})
    _written(single, directory / "sentences.csv")
    return path


def rare(directory: Path) -> Path:
    """Two classes, the positive one thinned to 5% of the rows."""
    texts, positive = _sentences()
    many, few = np.flatnonzero(positive == 0), np.flatnonzero(positive == 1)
    kept = np.sort([*many, *few[: round(len(many) * RARE / (1 - RARE))]])
    names = np.where(positive[kept] == 1, "rare", "common")
    return _written(pd.DataFrame({"text": texts[kept], "label": names}), directory / "rare.csv")


def documents(directory: Path) -> Path:
    """Reviews of more than 400 words."""
    table = embedded.read("embedded:imdb")["train"].to_pandas()
    long = table[table["text"].str.split().str.len() > LONG]
    return _written(long.sample(frac=1, random_state=SEED), directory / "documents.csv")


def digits(directory: Path) -> Path:
    """Images in a folder for each class."""
    path = directory / "digits"
    for number, row in enumerate(embedded.read("embedded:digits")["train"]):
        folder = path / str(row["label"])
        folder.mkdir(parents=True, exist_ok=True)
        row["image"].save(folder / f"{number}.png")
    return path


KINDS = {each.__name__: each for each in (labels, joined, pairs, rare, documents, digits)}


def _sentences() -> tuple[Any, Any]:
    """Return the sentences in a drawn order, and whether each is positive, 0 or 1."""
    rows = embedded.read("embedded:rotten-tomatoes")["train"]
    order = np.random.default_rng(SEED).permutation(len(rows))
    return np.array(rows["text"][:], dtype=object)[order], np.array(rows["label"][:])[order]


def _written(table: pd.DataFrame, path: Path) -> Path:
    table.to_csv(path, index=False)
    return path


def main() -> None:
    """Write the sets that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=[*KINDS, "all"])
    parser.add_argument("directory", type=Path)
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    for name, compose in KINDS.items():
        if given.kind in (name, "all"):
            print(compose(given.directory))


if __name__ == "__main__":
    main()
