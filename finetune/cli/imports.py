"""The libraries that a command needs, imported at once."""

import gc
import importlib


def at_once(*names: str) -> None:
    """Import modules without looking for garbage meanwhile, in nearly a third less time.

    Importing makes hundreds of thousands of objects, and Python would go through them again and
    again. Afterwards it does not either: what is there by now is taken to stay as long as the
    process. So this is for a process of its own, not for a notebook.

    Args:
        *names: Of modules.
    """
    looked = gc.isenabled()
    gc.disable()
    try:
        for name in names:
            importlib.import_module(name)
        gc.freeze()
    finally:
        if looked:
            gc.enable()
