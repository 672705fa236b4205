"""Finds recipes: by name, dotted module, file path or entry point. There is no hand-kept list.

The recipes that come with the toolkit lie in ``recipes/`` beside this package and are found there,
whatever else of that name is on the import path (:mod:`finetune.runtime.namesakes`). What a recipe
is about is read from its docstring without importing it, so that listing costs nothing.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from finetune.errors import UserError, suggestion
from finetune.runtime import distributed, namesakes

if TYPE_CHECKING:
    from finetune.recipe import Recipe

HOUSE = namesakes.HOUSE
RECIPES = HOUSE / "recipes"
ENTRY_POINTS = "finetune.recipes"


def names() -> list[str]:
    """The toolkit's own recipes, by file, then those that installed packages register."""
    files = sorted(path.stem for path in RECIPES.glob("[!_]*.py") if namesakes.is_ours(path))
    return files + sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - set(files))


def summary(name: str) -> str:
    """The first line of a recipe's docstring, read without importing the recipe."""
    path = RECIPES / f"{name}.py"
    if not _is_shipped(name):
        (point, *_) = entry_points(group=ENTRY_POINTS, name=name)
        return f"from {point.value}"
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def find(name: str) -> type[Recipe]:
    """The recipe class that ``name`` stands for.

    Args:
        name: ``yelp``, ``path/to/mine.py``, ``package.module`` or a registered entry point.

    Raises:
        UserError: if there is none, if the file does not define exactly one recipe, or if another
            package named ``recipes`` is in the place of the toolkit's.
    """
    if _is_shipped(name):
        _claim()
        return _only_recipe(importlib.import_module(f"recipes.{name}"), name)
    if name.endswith(".py"):
        path = Path(name).expanduser().resolve()
        if not path.exists():
            raise UserError(f"recipe file not found: {name}")
        _let_import(path.parent)
        unique = hashlib.sha256(str(path).encode()).hexdigest()[:8]
        return _only_recipe(_module_of_file(path, f"recipe_{path.stem}_{unique}"), name)
    for point in entry_points(group=ENTRY_POINTS, name=name):
        loaded = point.load()
        return _only_recipe(loaded, name) if isinstance(loaded, ModuleType) else loaded
    if "." in name:
        if name.startswith("recipes."):
            _claim()
        _let_import(Path.cwd(), named=name.partition(".")[0])
        try:
            return _only_recipe(importlib.import_module(name), name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            hint = "; a file of your own is given by its path" * name.startswith("recipes.")
            raise UserError(f"no module '{error.name}' (recipe '{name}'){hint}") from None
    known = names()
    raise UserError(
        f"unknown recipe '{name}'{suggestion(name, known)} (there are: {', '.join(known)}; "
        "a recipe of your own is a path that ends in .py)"
    )


def origin(recipe: type[Recipe]) -> str:
    """The words that make :func:`find` find this class again, for the manifest of a run."""
    module = recipe.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module
    path = Path(file).resolve()
    return path.stem if path.parent == RECIPES and _is_shipped(path.stem) else str(path)


def _is_shipped(name: str) -> bool:
    path = RECIPES / f"{name}.py"
    return not name.startswith("_") and path.exists() and namesakes.is_ours(path)


def _claim() -> None:
    told = namesakes.claim()
    for sentence in told if distributed.ranks().rank == 0 else ():
        warnings.warn(sentence, stacklevel=4)


def _only_recipe(module: ModuleType, name: str) -> type[Recipe]:
    from finetune.recipe import Recipe

    defined = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Recipe)
        and value.__module__ == module.__name__
    ]
    if len(defined) != 1:
        found = ", ".join(cls.__name__ for cls in defined) or "none"
        raise UserError(
            f"'{name}': expected one class derived from Recipe defined there, found {found}"
        )
    return defined[0]


def _module_of_file(path: Path, module_name: str) -> ModuleType:
    loaded = sys.modules.get(module_name)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "").resolve() == path:
        return loaded
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickling look the module up by its name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


class _Beside(MetaPathFinder):
    """Finds modules and packages in one directory, after everything else was asked.

    Unlike an entry of ``sys.path`` it leaves out folders without ``__init__.py``: one that is named
    like an optional dependency (``wandb``, ``mlx``) would pass for it.

    Args:
        directory: Where to look.
        named: The one folder that may do without, because the user named it.
    """

    def __init__(self, directory: str, named: str) -> None:
        self.directory, self.named = directory, named

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, [self.directory]) if path is None else None
        return spec if spec is not None and (spec.loader or fullname == self.named) else None


def _let_import(directory: Path, named: str = "") -> None:
    """Let a recipe import what lies beside it, also later, in one of its steps."""
    finders = [each for each in sys.meta_path if isinstance(each, _Beside)]
    if (str(directory), named) not in [(each.directory, each.named) for each in finders]:
        sys.meta_path.append(_Beside(str(directory), named))
