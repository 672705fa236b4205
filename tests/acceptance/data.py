"""Write small data and models for the acceptance tests; every call writes the same.

The words of a text depend on its label, so a tiny model learns them. One word in three is drawn
from all labels, so no model is always right.
"""

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORDS = {
    "bad": ["awful", "dull", "bland", "rude", "stale"],
    "good": ["great", "lovely", "fine", "fresh", "warm"],
    "mixed": ["average", "ordinary", "decent", "passable", "usual"],
}
PLACES = ["kitchen", "garden", "terrace", "cellar", "counter"]
SUBJECTS = ["food", "service", "waiter", "coffee", "menu", "dessert", "staff", "room"]


def sentence(label: str, number: int, draw: random.Random) -> str:
    """Return a text of 6 to 30 words for a label of `WORDS`, different for each number."""
    clauses = []
    for _ in range(draw.randint(1, 5)):
        words = WORDS[label] if draw.random() > 1 / 3 else WORDS[draw.choice(list(WORDS))]
        clauses.append(f"the {draw.choice(SUBJECTS)} was {draw.choice(words)}")
    return f"{draw.choice(PLACES)} {number}: {' and '.join(clauses)}"


def labelled_sentences(
    rows: int = 240, labels: Sequence[str] = ("bad", "good"), seed: int = 0
) -> list[tuple[str, str]]:
    """Return `(text, label)` pairs with the labels in turn; all texts are different."""
    draw = random.Random(seed)
    names = [labels[number % len(labels)] for number in range(rows)]
    return [(sentence(name, number, draw), name) for number, name in enumerate(names)]


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """Write a CSV in UTF-8 with the line endings of Python's `csv`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def write_spare(path: Path) -> Path:
    """Write a TSV of texts without labels: 40 new ones, two of them again with other blanks."""
    texts = [text for text, _ in labelled_sentences(40, seed=5)]
    lines = ["text\tnote", *(f"{text}\tx" for text in texts), *(f"  {t}\ty" for t in texts[:2])]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_photos(folder: Path, rows: int = 120) -> Path:
    """Write a folder of the classes `down` and `up`: images of 8 x 8 pixels, bright on one half."""
    import numpy as np
    from PIL import Image

    for number in range(rows):
        pixels = np.random.default_rng(number).integers(0, 120, (8, 8, 3))
        pixels[:4] += 130 * (number % 2)
        pixels[4:] += 130 * (1 - number % 2)
        path = folder / ("down", "up")[number % 2] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


def write_reviews(path: Path, rows: int = 240, **options: Any) -> Path:
    """Write a CSV with the columns `text` and `label`, see `labelled_sentences`."""
    return write_csv(path, ["text", "label"], labelled_sentences(rows, **options))


def write_tags(path: Path, rows: int = 240) -> Path:
    """Write JSON lines with `text` and `labels`, a list of none to three keys of `WORDS`."""
    draw = random.Random(1)
    lines = []
    for number in range(rows):
        names = [name for name in WORDS if draw.random() < 0.4]
        clauses = [sentence(name, number, draw).partition(": ")[2] for name in names]
        text = f"{draw.choice(PLACES)} {number}: {' and '.join(clauses) or 'nothing to say'}"
        lines.append(json.dumps({"text": text, "labels": names}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_scores(path: Path, rows: int = 240) -> Path:
    """Write a CSV with `text` and two numbers that depend on the text, `stars` and `price`."""
    draw = random.Random(2)
    table = []
    for number in range(rows):
        label = list(WORDS)[number % 3]
        stars = {"bad": 1.5, "mixed": 3.0, "good": 4.5}[label] + draw.gauss(0, 0.3)
        price = 100 * stars + draw.gauss(0, 20)
        table.append([sentence(label, number, draw), round(stars, 2), round(price, 1)])
    return write_csv(path, ["text", "stars", "price"], table)


def entity_sentences(rows: int = 240, seed: int = 3) -> list[tuple[list[str], list[str]]]:
    """Return words and IOB2 tags of sentences: a place with its number, and a dish of one word or
    two. One sentence in five has none, one in ten is long.
    """
    draw = random.Random(seed)
    sentences = []
    for number in range(rows):
        words, tags = ["the", "service", "was"], ["O", "O", "O"]
        for _ in range(draw.randint(0, 4) + 10 * (number % 10 == 9)):
            words += [draw.choice(PLACES), str(number), "(", draw.choice(WORDS["good"])]
            tags += ["B-place", "I-place", "O", "B-dish"]
            if draw.random() < 0.5:
                words.append(draw.choice(SUBJECTS))
                tags.append("I-dish")
            words.append(")")
            tags.append("O")
        words += [draw.choice(WORDS["bad"]), str(number)]
        tags += ["O", "O"]
        sentences.append((words, tags))
    return sentences


def write_conll(path: Path, rows: int = 240) -> Path:
    """Write the sentences of :func:`entity_sentences` with a word and its tag a line."""
    blocks = []
    for words, tags in entity_sentences(rows):
        lines = [f"{word} {tag}" for word, tag in zip(words, tags, strict=True)]
        blocks.append("\n".join(lines))
    path.write_text("\n\n".join(blocks), encoding="utf-8")
    return path


def make_tokenizer() -> Any:
    """Return a BERT tokenizer with the words above and the characters of Latin-1.

    It is not trained: training orders words of equal frequency differently in each process.
    """
    from transformers import BertTokenizer

    characters = [chr(code) for code in [*range(33, 127), *range(0xC0, 0x180)]]
    sentences = " ".join(text for text, _ in labelled_sentences(600, list(WORDS)))
    words = sorted({word for word in sentences.split() if word.isalpha()})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    tokens += [*(f"##{character}" for character in characters), *words]
    return BertTokenizer(
        vocab={token: number for number, token in enumerate(dict.fromkeys(tokens))}
    )


def write_bert(directory: Path, *, dropout: float = 0.0, positions: int = 128) -> Path:
    """Write a BERT with 2 layers and hidden size 32, without a head, and its tokenizer.

    Args:
        directory: The directory to write.
        dropout: The probability of hidden and of attention dropout.
        positions: The maximum length of a text in tokens.
    """
    import torch
    from transformers import BertConfig, BertModel

    tokenizer = make_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(directory)
    tokenizer.model_max_length = positions
    tokenizer.save_pretrained(directory)
    return directory


def write_pretrained_bert(directory: Path) -> Path:
    """Write the BERT of :func:`write_bert` with norms like those of a trained model."""
    return train_norms(write_bert(directory))


def train_norms(directory: Path) -> Path:
    """Change the norms of a random base: it looks pretrained then, and a new head is fitted."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(directory)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for norm in norms:
            for weight in (norm.weight, norm.bias):
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    model.save_pretrained(directory)
    return directory


def write_vit(directory: Path) -> Path:
    """Write a ViT with one layer for images of 8 x 8 pixels, and its image processor."""
    import torch
    from transformers import AutoModelForImageClassification, ViTConfig, ViTImageProcessorPil

    config = ViTConfig(
        image_size=8,
        patch_size=4,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForImageClassification.from_config(config).save_pretrained(directory)
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(directory)
    return directory
