"""Import Python files by path, and turn errors and missing packages into a ``UserError``."""

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from finetune.errors import UserError, first_line
from finetune.runtime import DISTRIBUTION

T = TypeVar("T")
#: The directory that holds ``finetune``, ``recipes`` and ``metrics``.
HOUSE = Path(__file__).resolve().parents[2]


def require_packages(flag: str, *packages: str, extra: str = "check") -> None:
    """Require the packages that a flag needs; they are in an extra of this distribution.

    Raises:
        UserError: If one is missing, with the command that installs it.
    """
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        command = f"pip install '{DISTRIBUTION}[{extra}]'"
        raise UserError(f"{flag} needs {' and '.join(missing)}: {command}")


def read_source(path: Path, kind: str) -> tuple[bytes, str]:
    """Return the source of a file and its sha256.

    Raises:
        UserError: If it cannot be read; the message names its ``kind``, e.g. ``recipe``.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UserError(f"{kind} file {path} cannot be read: {error.strerror}") from error
    return source, hashlib.sha256(source).hexdigest()


def import_source(name: str, path: Path, source: bytes) -> ModuleType:
    """Import the source of a file: the source that was hashed, not a compiled copy beside the file.

    Args:
        name: The name of the module.
        path: The file.
        source: What the file holds.

    Raises:
        UserError: If it cannot be imported.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up the module by name
    try:
        exec(compile(source, path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        place = path_below_cwd(path)
        if isinstance(error, UserError):
            raise UserError(*(f"{place}: {mistake}" for mistake in error.mistakes)) from error
        raise UserError(describe_error(error, path, place)) from error
    return module


def describe_error(error: BaseException, path: Path, name_in_messages: str) -> str:
    """Return an error in a file as text, with the line: ``mine.py, line 3: KeyError: 'a'``."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    line = f", line {lines[-1]}" if lines else ""
    description = f"{name_in_messages}{line}: {type(error).__name__}"
    if message := first_line(error):
        description += f": {message}"
    return description


def only_class(module: ModuleType, base: type[T], name_in_messages: str) -> type[T]:
    """Return the only class derived from ``base`` that a module defines.

    Args:
        module: The module.
        base: The base class.
        name_in_messages: What messages call the module.

    Raises:
        UserError: If the module defines none or several.
    """
    classes: list[type[T]] = []
    for value in vars(module).values():
        is_own = isinstance(value, type) and value.__module__ == module.__name__
        if is_own and issubclass(value, base):
            classes.append(value)
    if len(classes) != 1:
        names = ", ".join(cls.__name__ for cls in classes) or "none"
        raise UserError(
            f"{name_in_messages}: expected the file to define one class derived from "
            f"{base.__name__}, found {names}"
        )
    return classes[0]


def path_below_cwd(path: Path) -> str:
    """Return a path for messages: relative if it is below the current directory."""
    if path.is_relative_to(cwd := Path.cwd()):
        return f"./{path.relative_to(cwd)}"
    return str(path)
