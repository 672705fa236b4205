"""Find recipes by name, path or entry point, and import the files of recipes and metrics.

The recipes of the toolkit are the files in ``recipes/`` beside this package; another package
``recipes`` in ``sys.path`` is ignored. A file that the user names is imported once. A file that is
named in a run is only imported if the user trusts it, because a run is data.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from finetune.errors import UserError, suggestion
from finetune.runtime.importing import HOUSE, import_source, only_class, path_below_cwd, read_source

if TYPE_CHECKING:
    from finetune.recipe import Recipe

ENTRY_POINTS = "finetune.recipes"
_SHA256 = "__sha256__"  # the attribute of an imported module with the hash of its source


# ---- recipes -------------------------------------------------------------------------------------


def summaries() -> dict[str, str]:
    """Return a one-line description of each recipe by name, without importing it: the recipes of
    the toolkit, then those of installed packages.
    """
    shipped = {}
    for name, path in _shipped().items():
        shipped[name] = path.read_text(encoding="utf-8").lstrip('"').partition("\n")[0]
    points = sorted(entry_points(group=ENTRY_POINTS))
    return {**shipped, **{point.name: f"from {point.value}" for point in points}, **shipped}


def find(name: str | type[Recipe]) -> type[Recipe]:
    """Return the recipe class for a name: ``yelp``, ``path/to/mine.py`` or an entry point. A class
    is returned unchanged.

    Raises:
        UserError: If there is no such recipe, or if a file does not define exactly one.
    """
    from finetune.recipe import Recipe

    if not isinstance(name, str):
        if isinstance(name, type) and issubclass(name, Recipe):
            return name
        raise UserError(f"expected the name, path or class of a recipe, found {name!r}")
    loaded: Any
    if name in _shipped():
        _import_package()
        loaded = importlib.import_module(f"recipes.{name}")
    elif name.endswith(".py"):
        loaded = import_file(Path(name).expanduser().resolve(), "recipe")
    elif points := entry_points(group=ENTRY_POINTS, name=name):
        loaded = next(iter(points)).load()
    else:
        names = summaries()
        raise UserError(
            f"unknown recipe '{name}'{suggestion(name, names)} (available: {', '.join(names)}, "
            "or the path of a .py file)"
        )
    return only_class(loaded, Recipe, f"'{name}'") if isinstance(loaded, ModuleType) else loaded


def of_run(name: str, manifest: Path) -> type[Recipe]:
    """Return the recipe class that the manifest of a run names, without running untrusted code.

    Raises:
        UserError: If the recipe is neither installed nor imported by this process.
    """
    if name.endswith(".py"):
        refuse_untrusted([Path(name)], "recipe", manifest)
    elif name not in (names := summaries()):
        raise UserError(
            f"{manifest}: the recipe '{name}' is not installed (available: {', '.join(names)})"
        )
    return find(name)


def origin(recipe: type[Recipe]) -> str:
    """Return the name or path from which :func:`find` returns this class."""
    file = getattr(sys.modules.get(recipe.__module__), "__file__", None)
    path = None  # of a class that is defined in a notebook
    if file is not None:
        path = Path(file).resolve()
    if path is not None and path in _shipped().values():
        return path.stem
    for point in entry_points(group=ENTRY_POINTS):  # reads a file of each installed package
        is_class = (point.attr or recipe.__qualname__) == recipe.__qualname__
        if is_class and point.module == recipe.__module__ and point.name not in _shipped():
            return point.name
    return recipe.__module__ if path is None else str(path)


def display_name(recipe: type[Recipe]) -> str:
    """Return the name of a recipe for messages; a path is relative to the current directory."""
    name = origin(recipe)
    if name.endswith(".py") and Path(name).is_absolute():
        return path_below_cwd(Path(name)).removeprefix("./")
    return name


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted((HOUSE / "recipes").glob("[!_]*.py"))}


def _import_package() -> None:
    """Import the package ``recipes`` of the toolkit, not another one in ``sys.path``."""
    init = HOUSE / "recipes" / "__init__.py"
    if "recipes" not in sys.modules:
        import_source("recipes", init, init.read_bytes())
    file = getattr(sys.modules["recipes"], "__file__", None)
    if file is None or Path(file).resolve() != init:
        raise UserError(f"another package named 'recipes' was imported, {file}: rename it")


# ---- files of recipes and metrics ----------------------------------------------------------------


def is_path(name: object) -> bool:
    """Return whether a name is the path of a file or directory."""
    return isinstance(name, str) and ("/" in name or os.sep in name or name.endswith(".py"))


def imported(path: Path) -> ModuleType | None:
    """Return the module that this process imported from a file, under any name."""
    for module in list(sys.modules.values()):
        file = str(getattr(module, "__file__", None))
        if file.endswith(path.name) and Path(file).resolve() == path:
            return module
    return None


def import_file(path: Path, kind: str) -> ModuleType:
    """Import the file of a ``recipe`` or ``metric``. It can import files beside it with
    ``from .costs import COSTS``, a recipe also with ``import costs``. A file that was imported from
    the same source is not imported again.

    Raises:
        UserError: If it cannot be imported.
    """
    source, sha256 = read_source(path, kind)
    if (module := imported(path)) and getattr(module, _SHA256, sha256) == sha256:
        return module
    if kind == "recipe":
        _import_package()  # the recipe may derive from one of the toolkit's
        if (finder := _BesideFile(str(path.parent))) not in sys.meta_path:
            sys.meta_path.append(finder)
    package = f"finetune_{kind}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]  # from an earlier version of the file
    sys.modules[package] = parent = ModuleType(package)
    parent.__path__ = [str(path.parent)]
    module = import_source(f"{package}.{path.stem}", path, source)
    setattr(module, _SHA256, sha256)
    return module


def refuse_untrusted(paths: Iterable[Path], kind: str, manifest: Path) -> None:
    """Refuse to run the files that a manifest names, unless this process has imported them.

    Args:
        paths: The files.
        kind: What they are, for the message: ``recipe`` or ``metric``.
        manifest: The path of the manifest, for the message.

    Raises:
        UserError: For each file that this process has not imported.
    """
    mistakes = []
    for path in paths:
        if imported(path.resolve()):
            continue
        if path.exists():
            mistakes.append(
                f"{manifest} names a {kind} file, {path}, which would be run as code: if you "
                "trust that file, add --trust_recipe (in Python trust_recipe=True, or import it "
                "first)"
            )
        else:
            mistakes.append(f"{manifest} names a {kind} file that does not exist: {path}")
    if mistakes:
        raise UserError(*mistakes)


@dataclass(frozen=True)
class _BesideFile(MetaPathFinder):
    """Lets a file import the modules beside it, also later, inside the steps of a recipe.

    An entry in ``sys.path`` would let a folder shadow an optional package of the same name.
    """

    directory: str

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, [self.directory]) if path is None else None
        if spec is not None and spec.loader is not None:
            return spec
        return None
