"""Wrong labels found, mended, and trained again: what it brings, where the truth is known.

    python benchmarks/mending.py              # about fifteen minutes on two cores
    python benchmarks/mending.py DIRECTORY    # keeps files and runs there

Of 3,000 training reviews of IMDB one label in ten is flipped. `check --deep` suspects rows; of
these, and of no others, the labels that were flipped are set right, as a person would who reads
them, and it looks again, until it finds none that was flipped or a few rounds are over. The
1,000 test reviews keep their labels and are looked at by nothing but the tests.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from finetune import cli
from finetune.data import embedded

ROWS, TRAINING, FLIPPED, SEED = 4000, 3000, 0.10, 0
MOST_ROUNDS = 6
NAMES = np.array(["negative", "positive"])


def write(directory: Path) -> dict[str, str]:
    """Write both splits, some training labels flipped; return the true label of each text."""
    table = embedded.read("embedded:imdb")["train"].to_pandas().drop_duplicates("text")
    rows = table.sample(ROWS, random_state=SEED).reset_index(drop=True)
    flipped = np.random.default_rng(SEED).random(ROWS) < FLIPPED
    flipped[TRAINING:] = False
    labels = NAMES[np.where(flipped, 1 - rows["label"], rows["label"])]
    written = pd.DataFrame({"text": rows["text"], "label": labels})
    directory.mkdir()
    written[:TRAINING].to_csv(directory / "train.csv", index=False)
    written[TRAINING:].to_csv(directory / "test.csv", index=False)
    print(f"{flipped.sum()} of {TRAINING:,} training labels are flipped")
    return dict(zip(rows["text"], NAMES[rows["label"]], strict=True))


def mend(suspects: Path, truth: dict[str, str]) -> int:
    """Write the true label beside each suspect that has another; return how many have."""
    table = pd.read_csv(suspects, dtype=str, keep_default_na=False)
    right = table["text"].map(truth)
    wrong = right != table["label"]
    print(f"{len(table)} suspects, of which {wrong.sum()} are flipped")
    table.assign(new_label=right.where(wrong, "")).to_csv(suspects, index=False)
    return int(wrong.sum())


def run(*words: str) -> None:
    """Run a command, and print it before.

    Raises:
        SystemExit: if it fails; 3 is what `check` ends with where something is suspicious.
    """
    print("\n$ python -m finetune", *words, flush=True)
    if (status := cli.main(list(words))) not in (None, 0, 3):
        sys.exit(status)


def main(place: Path) -> None:
    """Train, look, mend, train again, compare."""
    truth = write(place / "data")
    before, after = (str(place / name) for name in ("before", "after"))
    source = ["text", "--dataset", str(place / "data"), "--model", "embedded:minilm"]
    source += ["--max_length", "128"]
    training = ["--num_train_epochs", "2", "--learning_rate", "1e-4", "--no_baseline"]
    run(*source, *training, "--output_dir", before)
    mended: list[str] = []
    relabel: list[str] = []
    for number in range(1, MOST_ROUNDS + 1):
        suspects = str(place / f"suspects-{number}.csv")
        run("check", *source, *relabel, "--deep", "--suspects", suspects)
        if not mend(Path(suspects), truth):
            break
        mended.append(suspects)
        relabel = ["--relabel", ",".join(mended)]
    run(*source, *training, *relabel, "--output_dir", after)
    metrics = json.loads((place / "after" / "metrics.json").read_text(encoding="utf-8"))
    print(json.dumps(metrics["statistics"]["corrected"], indent=1))
    run("compare", before, after, "--output", str(place / "comparison.html"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, help="to keep files and runs in")
    kept = parser.parse_args().directory
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
        main(kept)
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))
