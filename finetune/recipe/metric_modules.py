"""Metric modules by their path: those in ``metrics/`` and a user's own.

A module is imported from its file: ``evaluate.load`` would run the copy in its cache, which others
may write to. It can import what is beside it relatively: ``from .costs import COSTS``.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from finetune.data.comma_list import join_values, split_values
from finetune.errors import UserError
from finetune.runtime.importing import (
    HOUSE,
    describe_error,
    import_source,
    only_class,
    path_below_cwd,
    read_source,
)
from finetune.statistics.metrics import MODULE, Scoring

if TYPE_CHECKING:
    from evaluate import EvaluationModule

#: The modules that were imported: the sha256 of the source, and the class.
_imported: dict[Path, tuple[str, type[EvaluationModule]]] = {}


def shipped() -> dict[str, Path]:
    """Return the modules in ``metrics/`` by name."""
    paths = sorted((HOUSE / "metrics").glob("*/*.py"))
    return {path.stem: path for path in paths if path.stem == path.parent.name}


def is_path(module: object) -> bool:
    """Return whether a word names a file or directory rather than a metric of the toolkit."""
    return isinstance(module, os.PathLike) or (
        isinstance(module, str) and ("/" in module or os.sep in module or module.endswith(".py"))
    )


def resolve(word: str) -> Path:
    """Return the file of a module: ``word``, or the file with its name in the directory ``word``.

    Raises:
        UserError: If there is no such file.
    """
    path = _absolute(word)
    file = path / f"{path.name}.py" if path.is_dir() else path
    if file.suffix != ".py" or not file.is_file():
        raise UserError(
            f"{path_below_cwd(path)}: expected a .py file, or a directory with a .py file of its "
            f"name, found no {path_below_cwd(file)}"
        )
    return file.resolve()


def paths_in(scoring: Scoring) -> list[Path]:
    """Return the files of a scoring's own modules."""
    return [Path(options[MODULE]) for options in scoring.values() if is_path(options.get(MODULE))]


def paths_in_option(names: str | None) -> list[Path]:
    """Return the files that a value of ``--metrics`` names, whether they exist or not."""
    paths = [_absolute(word) for word in split_values(names or "") if is_path(word)]
    return [path if path.suffix == ".py" else path / f"{path.name}.py" for path in paths]


def hashes(scoring: Scoring) -> dict[str, str]:
    """Return the sha256 of the files of a scoring's own modules, by name of the metric."""
    return {
        name: read_source(Path(options[MODULE]), "metric")[1]
        for name, options in scoring.items()
        if is_path(options.get(MODULE))
    }


def with_absolute_paths(names: str) -> str:
    """Return a value of ``--metrics`` that means the same in any directory."""
    return join_values(
        str(_absolute(word)) if is_path(word) else word for word in split_values(names)
    )


def with_file_names(names: str) -> str:
    """Return a value of ``--metrics`` without the directories, which differ between machines."""
    return join_values(Path(word).name if is_path(word) else word for word in split_values(names))


def refuse_unknown(paths: list[Path], manifest: Path) -> None:
    """Refuse files that a manifest names: it is data, and must not make code run.

    Args:
        paths: The files.
        manifest: The file that names them, for messages.

    Raises:
        UserError: For each file that this process has not imported before.
    """
    mistakes = [
        f"{manifest} names a metric file, {path}, which would be run as code: if you trust that "
        "file, add --trust_recipe (in Python trust_recipe=True, or import it first)"
        if path.exists()
        else f"{manifest} names a metric file that does not exist: {path}"
        for path in paths
        if path.resolve() not in _imported
    ]
    if mistakes:
        raise UserError(*mistakes)


def trust(paths: list[Path], recorded: Mapping[str, str], tell: Callable[[str], object]) -> None:
    """Import the files that a manifest names; the user trusts them.

    A file that does not exist is left out: not every verb needs the metrics.

    Args:
        paths: The files.
        recorded: The sha256 of the files in the training, by name of the metric.
        tell: Called with the path and the sha256 before a file is imported.

    Raises:
        UserError: If a file cannot be imported.
    """
    for path in dict.fromkeys(path.resolve() for path in paths):
        if path in _imported or not path.is_file():
            continue
        source, sha256 = read_source(path, "metric")
        has_changed = recorded and sha256 not in recorded.values()
        change = ", which has changed since the training" if has_changed else ""
        tell(f"importing the metric {path} (sha256 {sha256}){change}")
        _import(path, source, sha256)


def load(path: Path, config: str | None = None, *, refresh: bool = False) -> EvaluationModule:
    """Return the metric of a module.

    Args:
        path: As :func:`resolve` or :func:`shipped` returns it.
        config: The configuration: ``multilabel`` for rows of any number of labels.
        refresh: Whether to import it again if the file has changed, as in a notebook.

    Raises:
        UserError: If it cannot be imported, or defines no metric.
    """
    if path not in _imported or refresh:
        source, sha256 = read_source(path, "metric")
        if path not in _imported or _imported[path][0] != sha256:
            _import(path, source, sha256)
    try:
        return _instantiate(path, _imported[path][0], config)
    except (Exception, SystemExit) as error:
        raise UserError(describe_error(error, path, path_below_cwd(path))) from error


@functools.cache
def _instantiate(path: Path, sha256: str, config: str | None) -> EvaluationModule:
    metric = _imported[path][1](config_name=config, keep_in_memory=True)
    metric.download_and_prepare()
    return metric


def _import(path: Path, source: bytes, sha256: str) -> None:
    from evaluate import EvaluationModule

    package = f"finetune_metric_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    sys.modules[package] = parent = ModuleType(package)
    parent.__path__ = [str(path.parent)]
    module = import_source(f"{package}.{path.stem}", path, source, path_below_cwd(path))
    _imported[path] = sha256, only_class(module, EvaluationModule, path_below_cwd(path))


def _absolute(word: str) -> Path:
    return Path(os.path.abspath(Path(word).expanduser()))
