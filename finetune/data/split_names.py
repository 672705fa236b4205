"""What others call the splits, in names of files and of the splits of a data set.

What is probably a held-out set is never trained on, or left unread, without a word.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from finetune.data.comma_list import join_values
from finetune.errors import UserError

SPLITS = ("train", "validation", "test")
OTHER_NAMES = {
    "training": "train",
    **dict.fromkeys(("val", "valid", "dev", "eval", "development", "evaluation"), "validation"),
    "testing": "test",
}
#: Words in the name of a file; "evaluation" and the like are also what a text is about.
_WORDS = {"train", "val", "valid", "dev", "validation", "test"}
FOLDERS = "put the files into a folder for each split (train, validation, test)"


class NoTrainSplit(UserError):
    """A source has no split to train on.

    Args:
        mistake: The message.
        there: The splits that it has.
    """

    def __init__(self, mistake: str, there: Collection[str]) -> None:
        super().__init__(mistake)
        self.there = there


def meant(name: str) -> str | None:
    """Return the split that a name stands for, whatever its case; None if for none."""
    name = name.strip().lower()
    split = OTHER_NAMES.get(name, name)
    return split if split in SPLITS else None


def said_in(stem: str) -> str | None:
    """Return the split that a word in the name of a file stands for: ``reviews-test``."""
    words = [each for each in re.split(r"[-_.\s]+", stem.lower()) if each in _WORDS]
    return meant(words[-1]) if words else None


def named(text: str | None) -> dict[str, str]:
    """Return what a source calls the splits that ``--dataset_splits`` names, ``none`` of one that
    is not read.

    Raises:
        UserError: if it is not written like that.
    """
    found: dict[str, str] = {}
    for each in filter(None, (text or "").split(",")):
        split, _, name = (part.strip() for part in each.partition("="))
        if split not in SPLITS or not name or split in found or (split, name) == ("train", "none"):
            raise UserError(
                f"--dataset_splits {text}: expected train=NAME, validation=NAME or test=NAME, "
                "separated by commas; test=none leaves the split out"
            )
        found[split] = name
    return found


def option(names: Mapping[str, str]) -> str:
    """Return the option by which a source calls splits so, as it is typed."""
    text = join_values(f"{split}={names[split]}" for split in SPLITS if split in names)
    return f"--dataset_splits {shlex.quote(text)}"


def advice(stems: Sequence[str]) -> str:
    """Return how to read files whose names say which split they are; empty if they do not.

    Args:
        stems: Of their names, without the numbers of parts.
    """
    found: dict[str, set[str]] = {}
    for stem in stems:
        found.setdefault(said_in(stem) or "train", set()).add(stem)
    if not set(found) - {"train"} or "train" not in found:
        return ""
    if any(len(several) > 1 for several in found.values()):
        return FOLDERS
    return option({split: next(iter(several)) for split, several in found.items()})


def refuse_unread(dataset: str, there: Collection[str], called: Mapping[str, str]) -> None:
    """Refuse splits of a source that were probably meant to be those that it lacks.

    Args:
        dataset: Its name.
        there: The splits it has.
        called: What it calls the splits that are read.

    Raises:
        UserError: with the option that reads them.
    """
    lacking: dict[str, str] = {}
    for name in sorted(set(there) - set(called.values())):
        split = meant(name)
        if split is not None and split in called and called[split] not in there:
            lacking.setdefault(split, name)
    if lacking:
        names = {split: name for split, name in called.items() if split != name} | lacking
        several = len(lacking) > 1
        shown = " and ".join(repr(lacking[split]) for split in SPLITS if split in lacking)
        raise UserError(
            f"data set '{dataset}': the split{'s' * several} {shown} would not be read; "
            f"{option(names)} reads {'them' if several else 'it'}"
        )


def for_training(there: Sequence[str]) -> str:
    """Return the split of a source to train on that has no ``train``, or NAME for the user."""
    likely = [name for name in there if meant(name) == "train"]
    unclear = [name for name in there if meant(name) is None and said_in(name) is None]
    others = [name for name in unclear if not re.search(r"hold|held", name.lower())]
    if likely:
        return likely[0]
    return others[0] if len(others) == 1 else "NAME"
