"""Write the repositories: the files of the real ones with random content from fixed seeds.

The root has `datasets/OWNER/NAME` and `models/OWNER/NAME`. Columns, features, file names, dataset
cards, configuration fields and names of weights are those on the Hub; there are few rows and
weights. The words of a review and the strokes of a digit depend on its class, so that models can
learn both.
"""

import csv
import io
import json
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from datasets import ClassLabel, Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForPreTraining

YELP = "Yelp/yelp_review_full"
YELP_ROWS = {"train": 400, "test": 100}
YELP_DUPLICATES = 4  # training rows that repeat text and label of an earlier one
YELP_LABELS = ("1 star", "2 star", "3 stars", "4 stars", "5 stars")

SENTIMENT = "davidberg/sentiment-reviews"
SENTIMENT_ROWS = {"positive": 440, "negative": 150, "neutral": 90}

#: A data set with several configurations and unusual split names.
TICKETS = "team/tickets"
TICKETS_ROWS = {"fit": 60, "held_out": 20}

MNIST = "ylecun/mnist"
MNIST_ROWS = {"train": 300, "test": 100}

CASED = "google-bert/bert-base-cased"
UNCASED = "google-bert/bert-base-uncased"
UNCASED_DTYPE = torch.bfloat16  # the dtype of its weights; the cased one has float32

_SUBJECTS = [
    *("food", "service", "waiter", "burger", "pizza", "coffee"),
    *("room", "staff", "place", "dinner", "dessert", "menu"),
]
_FILLERS = [
    *("here", "today", "again", "downtown", "lately"),
    *("honestly", "overall", "tonight", "indeed", "anyway"),
]
_OPINIONS = tuple(
    words.split()
    for words in (
        "awful horrible disgusting terrible rude filthy worst inedible",
        "disappointing bland overpriced slow stale noisy mediocre greasy",
        "okay average decent ordinary acceptable fine passable standard",
        "good tasty friendly pleasant enjoyable nice fresh welcoming",
        "amazing fantastic perfect incredible outstanding delicious wonderful best",
    )
)
_FORMS = (
    "The {0} was really {2} {1}.",
    "I found the {0} very {2} and {3} {1}!",
    "My {0} is {2}, so {3}.",
    "We don't come for the {0}, but it was {2} {1}.",
)
_SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Seven-segment digits: top, upper left, upper right, middle, lower left, lower right, bottom.
_SEGMENTS: tuple[str, ...] = ("1110111", "0010010", "1011101", "1011011", "0111010")
_SEGMENTS += ("1101011", "1101111", "1010010", "1111111", "1111011")
_BARS = (
    (slice(4, 7), slice(8, 20)),
    (slice(5, 14), slice(7, 10)),
    (slice(5, 14), slice(18, 21)),
    (slice(12, 15), slice(8, 20)),
    (slice(14, 23), slice(7, 10)),
    (slice(14, 23), slice(18, 21)),
    (slice(21, 24), slice(8, 20)),
)


def build_repositories(root: Path) -> None:
    """Write all repositories to `root`."""
    _build_yelp(root / "datasets" / YELP)
    _build_sentiment(root / "datasets" / SENTIMENT)
    _build_mnist(root / "datasets" / MNIST)
    _build_tickets(root / "datasets" / TICKETS)
    _build_bert(root / "models" / CASED, lowercase=False, dtype=torch.float32)
    _build_bert(root / "models" / UNCASED, lowercase=True, dtype=UNCASED_DTYPE)


def _write(directory: Path, name: str, content: str) -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def _sentences(rng: random.Random, opinions: Sequence[str], count: int) -> str:
    def sentence() -> str:
        subject, filler = rng.choice(_SUBJECTS), rng.choice(_FILLERS)
        first, second = rng.sample(opinions, 2)
        return rng.choice(_FORMS).format(subject, filler, first, second)

    return " ".join(sentence() for _ in range(count))


def _parquet_dataset(
    directory: Path, config: str, pretty_name: str, features: Features, splits: dict[str, Any]
) -> None:
    """Write the files of `Dataset.push_to_hub`: a parquet file for each split, and a card."""
    for split, columns in splits.items():
        path = directory / config / f"{split}-00000-of-00001.parquet"
        Dataset.from_dict(columns, features=features).to_parquet(path)
    files = [{"split": split, "path": f"{config}/{split}-*"} for split in splits]
    configs = [{"config_name": config, "data_files": files, "default": True}]
    header = yaml.safe_dump({"pretty_name": pretty_name, "configs": configs})
    _write(directory, "README.md", f"---\n{header}---\n\n# Dataset Card for {pretty_name}\n")


def _build_yelp(directory: Path) -> None:
    rng = random.Random(0)
    seen: set[str] = set()

    def review(label: int) -> str:
        """Return a new review; a few are longer than BERT's 512 positions."""
        while True:
            text = _sentences(
                rng, _OPINIONS[label], 90 if rng.random() < 0.006 else rng.randint(2, 5)
            )
            text = text.replace("! ", "!\\n\\n")  # the real texts have escaped line breaks
            if text not in seen:
                seen.add(text)
                return text

    splits = {}
    for split, count in YELP_ROWS.items():
        repeated = YELP_DUPLICATES if split == "train" else 0
        labels = [i % len(YELP_LABELS) for i in range(count - repeated)]
        rows = [(label, review(label)) for label in labels]
        rng.shuffle(rows)
        rows += rows[:repeated]
        splits[split] = {"label": [label for label, _ in rows], "text": [text for _, text in rows]}
    features = Features(label=ClassLabel(names=list(YELP_LABELS)), text=Value("string"))
    _parquet_dataset(directory, "yelp_review_full", "YelpReviewFull", features, splits)


def _build_sentiment(directory: Path) -> None:
    rng = random.Random(1)
    opinions = {
        "positive": _OPINIONS[3] + _OPINIONS[4],
        "negative": _OPINIONS[0] + _OPINIONS[1],
        "neutral": _OPINIONS[2],
    }
    polarities = {"positive": (0.05, 1.0), "negative": (-1.0, -0.05), "neutral": (0.0, 0.0)}
    divisions = [division for division, count in SENTIMENT_ROWS.items() for _ in range(count)]
    rng.shuffle(divisions)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["Unnamed: 0", "review", "polarity", "division"])
    for i, division in enumerate(divisions):
        polarity = round(rng.uniform(*polarities[division]), 4)
        writer.writerow([i, _sentences(rng, opinions[division], 2), polarity, division])
    _write(directory, "sentiment_reviews.csv", text.getvalue())
    _write(directory, "README.md", "---\nlanguage:\n- en\n---\n")


def _build_tickets(directory: Path) -> None:
    configs = []
    for config in ("de", "en"):
        for split, count in TICKETS_ROWS.items():
            rows = [f"{split} ticket {n} in {config},{'ab'[n % 2]}" for n in range(count)]
            _write(directory, f"{config}/{split}.csv", "\n".join(["text,label", *rows]) + "\n")
        files = [{"split": split, "path": f"{config}/{split}.csv"} for split in TICKETS_ROWS]
        configs.append({"config_name": config, "data_files": files})
    _write(directory, "README.md", f"---\n{yaml.safe_dump({'configs': configs})}---\n")


def _digit(rng: np.random.Generator, label: int) -> bytes:
    """Return a PNG of 28 x 28 gray pixels: a seven-segment digit, shifted a little, with noise."""
    pixels = np.zeros((28, 28))
    for bar, lit in zip(_BARS, _SEGMENTS[label], strict=True):
        if lit == "1":
            pixels[bar] = rng.uniform(180, 255)
    pixels = np.roll(pixels, rng.integers(-2, 3, size=2), axis=(0, 1)) + rng.normal(0, 12, (28, 28))
    stream = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def _build_mnist(directory: Path) -> None:
    rng = np.random.default_rng(2)
    splits = {}
    for split, count in MNIST_ROWS.items():
        labels = rng.permutation(np.arange(count) % 10)
        images = [{"bytes": _digit(rng, label), "path": None} for label in labels]
        splits[split] = {"image": images, "label": labels}
    names = [str(digit) for digit in range(10)]
    features = Features(image=ImageFeature(), label=ClassLabel(names=names))
    _parquet_dataset(directory, "mnist", "MNIST", features, splits)


def _vocabulary(lowercase: bool) -> list[str]:
    """Return words and characters, with special tokens at the positions of the real ones."""
    frame = re.findall(r"[A-Za-z]+", " ".join(_FORMS))
    words = [*frame, *_SUBJECTS, *_FILLERS, *(word for row in _OPINIONS for word in row)]
    characters = [chr(code) for code in range(33, 127)]
    tokens = [*characters, *words, *(f"##{c}" for c in characters if c.isalnum())]
    if lowercase:
        tokens = [token.lower() for token in tokens]
    unused = [f"[unused{i}]" for i in range(1, 100)]
    return ["[PAD]", *unused, *_SPECIAL, *dict.fromkeys(tokens)]


def _tokenizer(vocabulary: Iterable[str], lowercase: bool) -> Tokenizer:
    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.add_special_tokens(["[PAD]", *_SPECIAL])
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def _build_bert(directory: Path, lowercase: bool, dtype: torch.dtype) -> None:
    vocabulary = _vocabulary(lowercase)
    tokenizer_config = {"do_lower_case": lowercase, "model_max_length": 512}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": len(vocabulary)}
    config = BertConfig(num_hidden_layers=2, num_attention_heads=2, dtype=dtype, **sizes)
    config.architectures = ["BertForMaskedLM"]
    config.save_pretrained(directory)
    _write(directory, "vocab.txt", "".join(f"{token}\n" for token in vocabulary))
    _write(directory, "tokenizer.json", _tokenizer(vocabulary, lowercase).to_str())
    _write(directory, "tokenizer_config.json", json.dumps(tokenizer_config))
    _write(directory, "README.md", "---\nlanguage: en\nlicense: apache-2.0\n---\n")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(lowercase))
        model = BertForPreTraining(config)
    model.to(dtype=dtype)
    # The real checkpoints are of the pre-training model and have the old names of LayerNorm.
    weights = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if not name.startswith("cls.predictions.decoder.") and not name.endswith("position_ids")
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
