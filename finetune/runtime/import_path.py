"""Keep modules in the current directory from shadowing others; imported before everything else.

``python -m`` puts the current directory first on the import path. A ``csv.py`` there would be
imported instead of the standard library's, a folder ``wandb`` instead of the package. So this file
imports nothing but what the interpreter has loaded itself, and ``finetune/__init__.py`` imports it
first. What Python imports to find ``finetune`` at all (``python -P`` leaves the directory out from
the start) is out of its reach.
"""

import os
import sys

HOUSE = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
#: Entries taken from the path, which :mod:`finetune.runtime.namesakes` looks through all the same.
forgotten = []  # type: list[str]


def forget_current_directory() -> None:
    """Import nothing from the current directory, and from a checkout only what is nowhere else."""
    here = os.path.realpath(os.curdir)
    found = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) == here]
    sys.path[:] = [entry for entry in sys.path if entry not in found]
    if found and here == HOUSE:
        sys.path.append(here)
    elif found:
        forgotten[:] = [here]


# while the interpreter looks for the module that -m names: is it this one?
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "finetune":
    forget_current_directory()
