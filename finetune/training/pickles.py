"""Refuse code in the files of a checkpoint before any of them is loaded.

Optimizer, scheduler and random states are pickles. torch loads them as ``weights_only``, so that a
class or function in them is never called; here it is found without loading, and named.
"""

from __future__ import annotations

from pathlib import Path

from torch.serialization import get_unsafe_globals_in_checkpoint
from transformers.trainer_pt_utils import safe_globals

from finetune.errors import UserError

_SUFFIXES = (".pt", ".pth", ".bin")
_NEVER_LOADED = "training_args.bin"


def refuse_code(checkpoint: str | Path) -> None:
    """Refuse a checkpoint whose pickles hold more than tensors and numbers.

    Raises:
        UserError: one line for each file.
    """
    mistakes = []
    for path in sorted(Path(checkpoint).iterdir()):
        if path.suffix not in _SUFFIXES or path.name == _NEVER_LOADED:
            continue
        try:
            with safe_globals():  # type: ignore[no-untyped-call]  # NumPy, for random states
                found = get_unsafe_globals_in_checkpoint(path)
        except Exception as error:  # whatever is in it
            first = str(error).partition("\n")[0].partition(". ")[0]
            mistakes.append(f"{path} cannot be read as a file of torch.save: {first}")
            continue
        if found:
            mistakes.append(
                f"{path} holds more than tensors: {', '.join(sorted(found))}; nothing in it was "
                "run. Resume from a checkpoint that you wrote"
            )
    if mistakes:
        raise UserError(*mistakes)
