"""Finds recipes: by name, dotted module, file path or entry point. There is no hand-kept list.

The recipes that come with the toolkit lie in ``recipes/`` beside this package and are found there,
whatever else of that name is on the import path (:mod:`finetune.runtime.namesakes`).
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

ENTRY_POINTS = "finetune.recipes"


def names() -> list[str]:
    """Return the toolkit's own recipes, by file, then those that installed packages register."""
    shipped = list(_shipped())
    return shipped + sorted({*entry_points(group=ENTRY_POINTS).names} - set(shipped))


def summary(name: str) -> str:
    """Return the first line of a recipe's docstring, read without importing the recipe."""
    if path := _shipped().get(name):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        return docstring.partition("\n")[0]
    (point, *_) = entry_points(group=ENTRY_POINTS, name=name)
    return f"from {point.value}"


def find(name: str) -> type[Recipe]:
    """Return the recipe class that ``name`` stands for.

    Args:
        name: ``yelp``, ``path/to/mine.py``, ``package.module`` or a registered entry point.

    Raises:
        UserError: if there is none, if the file does not define exactly one recipe, or if another
            package named ``recipes`` is in the place of the toolkit's.
    """
    if name in _shipped():
        _claim()
        return _only_recipe(importlib.import_module(f"recipes.{name}"), name)
    if name.endswith(".py"):
        path = Path(name).expanduser().resolve()
        if not path.exists():
            raise UserError(f"recipe file not found: {name}")
        return _only_recipe(sys.modules.get(_module_name(path)) or _import_file(path, name), name)
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
        f"unknown recipe '{name}'{suggestion(name, known)} (available: {', '.join(known)}; "
        "a recipe of your own is a path that ends in .py)"
    )


def of_run(name: str, manifest: Path) -> type[Recipe]:
    """Return the recipe that a manifest names, which is data and must not make code run.

    That is an installed recipe, or one whose file this process has imported before.

    Args:
        name: As :func:`origin` returned it.
        manifest: The file, for messages.

    Raises:
        UserError: if the recipe would have to be imported from elsewhere.
    """
    if name in names():
        return find(name)
    if module := _imported(name):
        return _only_recipe(module, name)
    if _is_file(name):
        raise UserError(
            f"{manifest} names a recipe file, {name}, which would be run as code: if you trust "
            "that file, add --trust_recipe (in Python trust_recipe=True, or import it first)"
        )
    raise UserError(
        f"{manifest} names the recipe '{name}', which is not installed{suggestion(name, names())} "
        f"(available: {', '.join(names())})"
    )


def trust(name: str, tell: Callable[[str], object]) -> None:
    """Import the recipe file that a manifest names, if it names one; the user has said so.

    Args:
        name: As :func:`origin` returned it.
        tell: Is given a sentence with the file and its hash, before it is imported.

    Raises:
        UserError: if there is no such file.
    """
    if _is_file(name) and not _imported(name):
        _import_file(Path(name), name, tell)


def origin(recipe: type[Recipe]) -> str:
    """Return the words that make :func:`find` find this class again, for the manifest of a run."""
    for point in entry_points(group=ENTRY_POINTS):
        defined = point.module == recipe.__module__ and point.attr in ("", recipe.__qualname__)
        if defined and point.name not in _shipped():
            return point.name
    file = getattr(sys.modules.get(recipe.__module__), "__file__", None)
    if file is None:
        return recipe.__module__
    path = Path(file).resolve()
    return path.stem if path in _shipped().values() else str(path)


def file_hash(recipe: type[Recipe]) -> str | None:
    """Return the sha256 of a recipe file of the user's; None of one that is installed."""
    name = origin(recipe)
    return hashlib.sha256(Path(name).read_bytes()).hexdigest() if _is_file(name) else None


def shown(recipe: type[Recipe]) -> str:
    """Return the same for people: of a file below the current directory the relative path."""
    name = origin(recipe)
    below = name.endswith(".py") and Path(name).is_relative_to(Path.cwd())
    return str(Path(name).relative_to(Path.cwd())) if below else name


def _module_name(path: Path) -> str:
    return f"recipe_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _is_file(name: str) -> bool:
    return name.endswith(".py") and Path(name).is_absolute()


def _imported(name: str) -> ModuleType | None:
    """Return the module that this process has imported from a file, if it has."""
    if not _is_file(name):
        return None
    path, loaded = Path(name), list(sys.modules.values())
    alike = [m for m in loaded if str(getattr(m, "__file__", None)).endswith(path.name)]
    return next((m for m in alike if Path(str(m.__file__)).resolve() == path), None)


def _import_file(
    path: Path, name: str, tell: Callable[[str], object] = lambda sentence: None
) -> ModuleType:
    """Import a recipe file; what is hashed is what is run, and not a compiled copy beside it."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UserError(f"recipe file {path} cannot be read: {error.strerror}") from error
    tell(f"importing the recipe {path} (sha256 {hashlib.sha256(source).hexdigest()})")
    _let_import(path.parent)
    return _loaded(path, name, source)


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in namesakes.files("recipes")}


def _loaded(path: Path, name: str, source: bytes) -> ModuleType:
    """Return the module of a recipe file; what stops it is told by file and line."""
    try:
        return namesakes.load_file(_module_name(path), path, source)
    except UserError as error:
        raise UserError(*(f"{name}: {mistake}" for mistake in error.mistakes)) from error
    except SyntaxError as error:
        place = name if error.filename == str(path) else error.filename
        raise UserError(f"{place}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = [frame.lineno for frame in frames if frame.filename == str(path)][-1]
        raise UserError(f"{name}, line {line}: {type(error).__name__}: {error}") from error


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


@dataclass(frozen=True)
class _Beside(MetaPathFinder):
    """Finds modules and packages in one directory, after everything else was asked.

    Unlike an entry of ``sys.path`` it leaves out folders without ``__init__.py``: one that is named
    like an optional dependency (``wandb``, ``mlx``) would pass for it. The one folder ``named`` may
    do without, because the user named it.
    """

    directory: str
    named: str

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, [self.directory]) if path is None else None
        return spec if spec is not None and (spec.loader or fullname == self.named) else None


def _let_import(directory: Path, named: str = "") -> None:
    """Let a recipe import what lies beside it, also later, in one of its steps."""
    if (finder := _Beside(str(directory), named)) not in sys.meta_path:
        sys.meta_path.append(finder)
