"""Metric modules of one's own, named by path: found, imported, and never because a run names them.

A module is imported from its file. ``evaluate.load`` would run the copy that it keeps in a cache,
which others may write to. What lies beside it is imported relatively: ``from .costs import COSTS``.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from finetune.data.comma_list import join_values, split_values
from finetune.errors import UserError
from finetune.runtime import namesakes
from finetune.statistics.resampling import MODULE, Scoring

if TYPE_CHECKING:
    from evaluate import EvaluationModule


@dataclass(frozen=True)
class _Imported:
    """A file as it was imported.

    Attributes:
        sha256: Of the source.
        metric: The class that is defined there.
        instances: Of the class, by configuration.
    """

    sha256: str
    metric: type[EvaluationModule]
    instances: dict[str | None, EvaluationModule] = field(default_factory=dict)


_imported: dict[Path, _Imported] = {}


def is_path(module: object) -> bool:
    """Return whether a word names a file or directory, and no metric of the toolkit."""
    return isinstance(module, os.PathLike) or (
        isinstance(module, str)
        and ("/" in module or os.sep in module or module.endswith(".py") or module.startswith("~"))
    )


def absolute(names: str) -> str:
    """Return the value of ``--metrics`` with each path as one that is found from anywhere."""
    return join_values(
        str(_absolute(word)) if is_path(word) else word for word in split_values(names)
    )


def file_of(word: str) -> Path:
    """Return the file of a module: ``word``, or the one with its name in the directory ``word``.

    Raises:
        UserError: if there is none.
    """
    path = _absolute(word)
    if path.is_dir():
        if not (inside := path / f"{path.name}.py").is_file():
            raise UserError(
                f"{shown(path)} has no {inside.name}: expected a directory with a module of its "
                "name, or the path of a .py file"
            )
        return inside.resolve()
    if not path.exists():
        raise UserError(f"no file or directory {shown(path)}")
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"{shown(path)} is not a .py file")
    return path.resolve()


def shown(path: Path) -> str:
    """Return a path as people type it: relative below the current directory."""
    return f"./{path.relative_to(here)}" if path.is_relative_to(here := Path.cwd()) else str(path)


def named_in(scoring: Scoring) -> list[Path]:
    """Return the files that metrics name as their module."""
    return [Path(each[MODULE]) for each in scoring.values() if is_path(each.get(MODULE))]


def in_option(names: str | None) -> list[Path]:
    """Return the files that the value of ``--metrics`` names, whether they are there or not."""
    paths = [_absolute(word) for word in split_values(names or "") if is_path(word)]
    return [path if path.suffix == ".py" else path / f"{path.name}.py" for path in paths]


def hashes(scoring: Scoring) -> dict[str, str]:
    """Return the sha256 of these files, by name of the metric."""
    return {
        name: _sha256(_read(Path(each[MODULE])))
        for name, each in scoring.items()
        if is_path(each.get(MODULE))
    }


def without_places(names: str) -> str:
    """Return the value of ``--metrics`` with the mere names of files, which may lie elsewhere."""
    return join_values(Path(word).name if is_path(word) else word for word in split_values(names))


# ---- whether a file may be run -------------------------------------------------------------------


def refuse_unknown(paths: list[Path], manifest: Path) -> None:
    """Refuse files that a manifest names: it is data and must not make code run.

    Args:
        paths: Those that are named.
        manifest: The file, for messages.

    Raises:
        UserError: for each file that this process has not imported before.
    """
    mistakes = []
    for path in (each for each in paths if each.resolve() not in _imported):
        if not path.exists():
            mistakes.append(f"{manifest} names a metric file that is not there: {path}")
        else:
            mistakes.append(
                f"{manifest} names a metric file, {path}, which would be run as code: if you trust "
                "that file, add --trust_recipe (in Python trust_recipe=True, or import it first)"
            )
    if mistakes:
        raise UserError(*mistakes)


def trust(paths: list[Path], recorded: Mapping[str, str], tell: Callable[[str], object]) -> None:
    """Import the metric files that a manifest names; the user has said so.

    One that is not there is left out: not everything that is done with a run needs its metrics.

    Args:
        paths: Those that are named.
        recorded: The sha256 that files had in the training, by name of the metric.
        tell: Is given a sentence with the file and its hash, before it is imported.

    Raises:
        UserError: if a file cannot be imported.
    """
    for path in dict.fromkeys(each.resolve() for each in paths):
        if path in _imported or not path.is_file():
            continue
        source = _read(path)
        changed = recorded and _sha256(source) not in recorded.values()
        more = ", which has changed since the training" if changed else ""
        tell(f"importing the metric {path} (sha256 {_sha256(source)}){more}")
        _import(path, source)


# ---- loading -------------------------------------------------------------------------------------


def refresh(path: Path) -> None:
    """Import a file that the user names, again if it has changed since, as in a notebook.

    Raises:
        UserError: if it cannot be imported, or defines no metric.
    """
    source = _read(path)
    known = _imported.get(path)
    if known is None or known.sha256 != _sha256(source):
        _import(path, source)


def load(path: Path, config: str | None) -> EvaluationModule:
    """Return the metric of a file, which is imported once.

    Args:
        path: As :func:`file_of` returned it.
        config: The configuration, which says what shape the inputs have: ``multilabel``.

    Raises:
        UserError: if it cannot be imported, or defines no metric.
    """
    if path not in _imported:
        _import(path, _read(path))
    known = _imported[path]
    if config not in known.instances:
        try:
            metric = known.metric(config_name=config, keep_in_memory=True)
            metric.download_and_prepare()
        except (Exception, SystemExit) as error:
            raise UserError(told(error, path)) from error
        known.instances[config] = metric
    return known.instances[config]


def told(error: BaseException, path: Path) -> str:
    """Return what went wrong in a module, by file and line."""
    line, first = None, str(error).strip().partition("\n")[0]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line, first = error.lineno, error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((each.lineno for each in reversed(frames) if each.filename == str(path)), None)
    at = f", line {line}" if line else ""
    return f"{shown(path)}{at}: {type(error).__name__}{first and ': '}{first}"


def _import(path: Path, source: bytes) -> None:
    """Import a file as the module of a package, the directory, for its relative imports."""
    from evaluate import EvaluationModule

    package = f"finetune_metric_{_sha256(str(path).encode())[:8]}"
    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        del sys.modules[name]
    sys.modules[package] = parent = ModuleType(package)
    parent.__path__ = [str(path.parent)]
    own = f"{package}.{path.stem}"
    try:
        module = namesakes.load_file(own, path, source)
    except (Exception, SystemExit) as error:
        del sys.modules[package]
        raise UserError(told(error, path)) from error
    metrics = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, EvaluationModule) and each.__module__ == own
    ]
    if len(metrics) != 1:
        found = ", ".join(each.__name__ for each in metrics) or "none"
        raise UserError(
            f"{shown(path)}: expected one class derived from evaluate.Metric defined there, found "
            f"{found}"
        )
    _imported[path] = _Imported(_sha256(source), metrics[0])


def _absolute(word: str) -> Path:
    return Path(os.path.abspath(Path(word).expanduser()))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"metric file {path} cannot be read: {error.strerror}") from error


def _sha256(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()
