"""The libraries that a command needs, imported at once."""

import gc
import importlib


def at_once(*names: str) -> None:
    """Import modules with garbage collection paused, in nearly a third less time.

    Importing makes hundreds of thousands of objects, and Python would go through them again and
    again. They are taken to stay as long as the process, so this is not for a notebook.
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
