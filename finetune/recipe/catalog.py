"""Find recipes by name, by the path of a file, or by entry point; nobody keeps a list.

The recipes of the toolkit are the files of ``recipes/`` beside this package. They are imported from
there, whatever else is named ``recipes`` on the import path.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from finetune.errors import UserError, suggestion
from finetune.recipe import code_files
from finetune.runtime.importing import (
    HOUSE,
    import_source,
    only_class,
    path_below_cwd,
    read_source,
)

if TYPE_CHECKING:
    from finetune.recipe import Recipe

ENTRY_POINTS = "finetune.recipes"


def names() -> list[str]:
    """Return the recipes of the toolkit, then those that installed packages register."""
    shipped = list(_shipped())
    return shipped + sorted({*entry_points(group=ENTRY_POINTS).names} - set(shipped))


def summary(name: str) -> str:
    """Return the first line of a recipe's docstring, read without importing the recipe."""
    if path := _shipped().get(name):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        return docstring.partition("\n")[0]
    (point, *_) = entry_points(group=ENTRY_POINTS, name=name)
    return f"from {point.value}"


def find(name: str, *, reload: bool = True) -> type[Recipe]:
    """Return the recipe class of a name: ``yelp``, ``path/to/mine.py`` or an entry point.

    Args:
        name: The name.
        reload: Whether a file that was edited since it was imported is imported again.

    Raises:
        UserError: If there is none, or if the file does not define exactly one recipe.
    """
    if name in _shipped():
        _import_package()
        return _only_recipe(importlib.import_module(f"recipes.{name}"), name)
    if name.endswith(".py"):
        path = Path(name).expanduser().resolve()
        _import_package()  # a recipe may derive from one of them
        module = None if reload else code_files.imported(path)
        return _only_recipe(module or code_files.import_file(path, "recipe"), name)
    for point in entry_points(group=ENTRY_POINTS, name=name):
        loaded = point.load()
        return _only_recipe(loaded, name) if isinstance(loaded, ModuleType) else loaded
    raise UserError(f"unknown recipe '{name}'{_available(name)}; a custom one is a path to a .py")


def of_run(name: str, manifest: Path) -> type[Recipe]:
    """Return the recipe that a manifest names: it is data, and must not make code run.

    Raises:
        UserError: If the recipe is neither installed nor imported by this process.
    """
    if name not in names():
        if not _is_file(name):
            raise UserError(
                f"{manifest} names the recipe '{name}', not installed{_available(name)}"
            )
        code_files.refuse_untrusted([Path(name)], "recipe", manifest)
    return find(name, reload=False)


def trust(name: str, tell: Callable[[str], object]) -> None:
    """Import the recipe file that a manifest names, if it names one; the user trusts it."""
    if _is_file(name):
        _import_package()
        code_files.trust([Path(name)], "recipe", (), tell)


def origin(recipe: type[Recipe]) -> str:
    """Return the name by which :func:`find` finds this class, for the manifest of a run."""
    for point in entry_points(group=ENTRY_POINTS):
        attributes = (None, "", recipe.__qualname__)
        is_registered = point.module == recipe.__module__ and point.attr in attributes
        if is_registered and point.name not in _shipped():
            return point.name
    file = getattr(sys.modules.get(recipe.__module__), "__file__", None)
    if file is None:  # defined in a notebook
        return recipe.__module__
    path = Path(file).resolve()
    return path.stem if path in _shipped().values() else str(path)


def file_hash(recipe: type[Recipe]) -> str | None:
    """Return the sha256 of a recipe file of the user's; None for an installed recipe."""
    name = origin(recipe)
    return read_source(Path(name), "recipe")[1] if _is_file(name) else None


def display_name(recipe: type[Recipe]) -> str:
    """Return the name for people: the relative path of a file below the current directory."""
    name = origin(recipe)
    return path_below_cwd(Path(name)).removeprefix("./") if _is_file(name) else name


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted((HOUSE / "recipes").glob("[!_]*.py"))}


def _available(name: str) -> str:
    return f"{suggestion(name, names())} (available: {', '.join(names())})"


def _import_package() -> None:
    """Import the toolkit's ``recipes``, whatever else is named so on the import path."""
    init = HOUSE / "recipes" / "__init__.py"
    if "recipes" not in sys.modules:
        import_source("recipes", init, init.read_bytes(), str(init))
    file = getattr(sys.modules["recipes"], "__file__", None)
    if file is None or Path(file).resolve() != init:
        raise UserError(f"another package named 'recipes' was imported, {file}: rename it")


def _is_file(name: str) -> bool:
    return name.endswith(".py") and Path(name).is_absolute()


def _only_recipe(module: ModuleType, name: str) -> type[Recipe]:
    from finetune.recipe import Recipe

    return only_class(module, Recipe, f"'{name}'")
