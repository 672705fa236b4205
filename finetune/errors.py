"""What a user did wrong, said so that they know what to type next.

A :class:`UserError` is a mistake of the person at the keyboard; a broken invariant is an
``assert``. The command line prints it without a traceback, from rank 0 only, and exits with status
2.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from types import TracebackType

#: What stands before the host in a URL, and variables that hold a token.
_USER = re.compile(r"(?<=://)[^\s/]*@")
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
#: What torch puts before the message of an error in a worker of a data loader.
_IN_WORKER = re.compile(r"Caught UserError in DataLoader worker .*^\S+\.UserError: ", re.S | re.M)


def masked(text: str) -> str:
    """Return ``text`` without users and passwords in URLs, and with ``***`` for the Hub's token."""
    for token in filter(None, map(os.environ.get, _TOKENS)):
        text = text.replace(token, "***")
    return _USER.sub("", text) if "://" in text else text


class UserError(Exception):
    """One or several mistakes, each a line: what was expected, what was found, what to do next.

    Args:
        *mistakes: One message for each mistake, so that all of them are reported at once.
    """

    def __init__(self, *mistakes: str) -> None:
        self.mistakes = tuple(masked(_IN_WORKER.sub("", each).strip()) for each in mistakes)
        super().__init__("\n".join(self.mistakes))


class RunError(Exception):
    """What ended a run through no mistake in what was typed: told without a traceback.

    The command line prints it once and exits with status 1.

    Attributes:
        status: Of the run, in its ``run.json``.
    """

    status = "failed"


class Diverged(RunError):
    """A loss, a gradient or a weight is not finite."""

    status = "diverged"


class Mistakes:
    """Collects mistakes, so that all are told at once::

        mistakes = Mistakes()
        with mistakes:
            refuse_this()
        with mistakes:
            refuse_that()
        mistakes.refuse()

    Args:
        found: Those that are known already.
    """

    def __init__(self, found: Sequence[str] = ()) -> None:
        self.found = list(found)
        #: Whether an option is unknown; it may be the one that says where data or model are.
        self.has_unknown_option = False

    def add(self, *mistakes: str) -> None:
        """Add mistakes, but for those that are there already."""
        self.found += [each for each in dict.fromkeys(mistakes) if each not in self.found]

    def __enter__(self) -> None:
        """Begin a block whose ``UserError`` is collected."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if isinstance(error, UserError):
            self.add(*error.mistakes)
        return isinstance(error, UserError)

    def hand_to(self, others: Mistakes | None) -> None:
        """Add them to ``others``, or raise them if that is None."""
        if others is None:
            self.refuse()
        else:
            others.add(*self.found)
            others.has_unknown_option |= self.has_unknown_option

    def refuse(self) -> None:
        """Raise a ``UserError`` if there is any."""
        if self.found:
            raise UserError(*self.found)


#: What other tools call an option, and what it is called here.
_ALSO_CALLED = {
    **dict.fromkeys(("lr", "rate"), "learning_rate"),
    **dict.fromkeys(("bs", "batch", "batch_size"), "global_batch_size"),
    **dict.fromkeys(("epoch", "epochs", "n_epochs"), "num_train_epochs"),
    **dict.fromkeys(("accum", "grad_accum"), "gradient_accumulation_steps"),
    **dict.fromkeys(("resume", "checkpoint"), "resume_from_checkpoint"),
    **dict.fromkeys(("out", "output"), "output_dir"),
    "wd": "weight_decay",
    "patience": "early_stopping_patience",
    "text": "text_column",
    "label": "label_column",
}


def suggestion(name: str, known: Iterable[object], cutoff: float = 0.5) -> str:
    """``"; did you mean 'yelp'?"`` for the nearest of ``known``, or an empty string."""
    nearest = difflib.get_close_matches(name, list(map(str, known)), n=1, cutoff=cutoff)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""


def option_suggestion(name: str, known: Iterable[str]) -> str:
    """Return the same for an option, ``lr`` or ``--lr``, which may have another name elsewhere."""
    bare = name.lstrip("-")
    dashes, bare_known = name[: len(name) - len(bare)], [each.lstrip("-") for each in known]
    usual = _ALSO_CALLED.get(bare.replace("-", "_"))
    if usual in bare_known:
        return f"; did you mean '{dashes}{usual}'?"
    found = suggestion(bare, bare_known, cutoff=0.65)
    return found.replace("'", f"'{dashes}", 1)


def typed_as(kind: type) -> str:
    """Return what a value of a type is called where one is expected: ``a whole number``."""
    known = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return known.get(kind, kind.__name__)


def counted(number: int, noun: str) -> str:
    """Return ``1 step``, ``2 steps``, ``1,200 steps``."""
    plural = noun + ("es" if noun.endswith(("s", "x", "ch")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"
