"""Recipes and metrics in Python files: imported by their path.

A file that the user names is imported once. A file that a run names is data, and is imported only
if the user trusts it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from finetune.errors import UserError
from finetune.runtime.importing import import_source, path_below_cwd, read_source

_SHA256 = "__sha256__"  # of the source, an attribute of a module that is imported here


def is_path(name: object) -> bool:
    """Return whether a name is that of a file or directory rather than of something installed."""
    is_text = isinstance(name, str) and ("/" in name or os.sep in name or name.endswith(".py"))
    return is_text or isinstance(name, os.PathLike)


def absolute(name: str) -> Path:
    """Return the file that a name stands for: of a directory, the file with its name."""
    path = Path(os.path.abspath(Path(name).expanduser()))
    return path.resolve() if path.suffix == ".py" else (path / f"{path.name}.py").resolve()


def imported(path: Path) -> ModuleType | None:
    """Return the module that this process imported from a file, under whatever name."""
    for module in list(sys.modules.values()):
        file = str(getattr(module, "__file__", None))
        if file.endswith(path.name) and Path(file).resolve() == path:
            return module
    return None


def import_file(path: Path, kind: str, tell: Callable[[str], object] | None = None) -> ModuleType:
    """Import a file, which can import what is beside it: ``from .costs import COSTS``, and in a
    recipe ``import costs``. One that was imported from the same source is not imported again.

    Args:
        path: The file, absolute.
        kind: What it is, for messages: ``recipe``.
        tell: Called with path and sha256 before.

    Raises:
        UserError: If it cannot be imported.
    """
    source, sha256 = read_source(path, kind)
    if (module := imported(path)) and getattr(module, _SHA256, sha256) == sha256:
        return module
    if tell is not None:
        tell(f"importing the {kind} {path} (sha256 {sha256})")
    finder = _BesideFile(str(path.parent))
    if kind == "recipe" and finder not in sys.meta_path:
        sys.meta_path.append(finder)
    package = f"finetune_{kind}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]  # of an earlier version of the file
    sys.modules[package] = parent = ModuleType(package)
    parent.__path__ = [str(path.parent)]
    module = import_source(f"{package}.{path.stem}", path, source, path_below_cwd(path))
    setattr(module, _SHA256, sha256)
    return module


def refuse_untrusted(paths: Sequence[Path], kind: str, manifest: Path) -> None:
    """Refuse files that a manifest names: it is data, and must not make code run.

    Raises:
        UserError: For each file that this process has not imported before.
    """
    if mistakes := [
        f"{manifest} names a {kind} file, {path}, which would be run as code: if you trust that "
        "file, add --trust_recipe (in Python trust_recipe=True, or import it first)"
        if path.exists()
        else f"{manifest} names a {kind} file that does not exist: {path}"
        for path in paths
        if not imported(path.resolve())
    ]:
        raise UserError(*mistakes)


def trust(
    paths: Sequence[Path], kind: str, sha256s: Collection[str], tell: Callable[[str], object]
) -> None:
    """Import the files that a manifest names, those that exist; the user trusts them.

    Args:
        paths: The files.
        kind: What they are, for messages.
        sha256s: Of the files in the training; empty if they are not recorded.
        tell: Called with path and sha256 before a file is imported.
    """
    for path in dict.fromkeys(path.resolve() for path in paths):
        if path.is_file() and not imported(path):
            if sha256s and read_source(path, kind)[1] not in sha256s:
                tell(f"the {kind} {path} has changed since the training")
            import_file(path, kind, tell)


@dataclass(frozen=True)
class _BesideFile(MetaPathFinder):
    """Lets a file import the modules beside it, also later, in one of the steps of a recipe.

    An entry of ``sys.path`` would also offer folders without ``__init__.py``: one that is named
    like an optional package (``wandb``, ``mlx``) would be taken for it.
    """

    directory: str

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, [self.directory]) if path is None else None
        return spec if spec is not None and spec.loader is not None else None
