"""Load a data set from the Hub, local files, or the packages of the ``embedded`` extra.

Every reader returns all columns of the source and adds ``_row``, the row number in its split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import (
    ClassLabel,
    Dataset,
    DatasetBuilder,
    DatasetDict,
    DownloadManager,
    Features,
    concatenate_datasets,
    load_dataset,
    load_dataset_builder,
    load_from_disk,
)

from finetune.data import ROW, arrow, bounds, conversion, embedded, listing, memory, seals
from finetune.data.label_columns import list_names
from finetune.data.layout import ReadOptions
from finetune.data.listing import NONE, Listing
from finetune.data.split_names import SPLITS, NoTrainSplit, for_training, meant, refuse_unread
from finetune.errors import UserError, suggestion
from finetune.runtime import hub

#: The library names the folder of a cached data set by its commit on the Hub.
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: What pandas calls an index that it writes into Parquet; and a first column without a name, as
#: pandas and R write it into a ``.csv``, in the formats that have such.
_PANDAS, _INDEX = "__index_level_0__", ("", "Unnamed: 0", "__index_level_0__")
#: A whole number that a float64 holds exactly.
_WHOLE = r"^[0-9]{1,15}(\.0)?$"
_SHOWN_FILES = 10


def read(
    dataset: str,
    revision: str | None = None,
    *,
    config: str | None = None,
    names: Mapping[str, str] | None = None,
    options: ReadOptions | None = None,
    note: Callable[[str], None] = lambda sentence: None,
) -> DatasetDict:
    """Load the splits of a source, with all its columns but a first one that counts the rows.

    Args:
        dataset: ``embedded:NAME``, a file, a pattern of files, a directory (see
            :func:`finetune.data.listing.listed`), or the name of a data set on the Hub.
        revision: Commit, tag or branch on the Hub; the newest if None.
        config: Of a data set on the Hub that has several.
        names: What the source calls ``train``, ``validation`` and ``test``, where it is not that;
            ``none`` for one that is not read.
        options: What the user says of files; what is not said is detected.
        note: Called with sentences about how files were read, and about columns left out.

    Raises:
        UserError: if the source does not exist or cannot be read.
    """
    if not dataset:
        raise UserError("--dataset is required: this recipe has no data set of its own")
    for flag, value in (("--dataset_revision", revision), ("--dataset_config", config)):
        if value is not None and not hub.names_repository(dataset):
            raise UserError(f"{flag} {value}: {dataset} is not from the Hub")
    if memory.is_memory(dataset):
        _refuse_options(options, "rows in memory")
        splits: dict[str, Any] = _of_names(memory.read(dataset, note), names, dataset, note)
    elif is_local(dataset):
        listed, called = listing.listed(dataset, names), listing.called_splits(names)
        if listed.unread:
            names_of = ", ".join(listed.unread[:_SHOWN_FILES])
            others = ", ..." * (len(listed.unread) > _SHOWN_FILES)
            are_texts = listed.kind == "texts"
            expected = ".txt in folders" if are_texts else "train, validation and test"
            if left := [f"{split}={NONE}" for split in SPLITS if split not in called]:
                expected = f"{' and '.join(called)}: --dataset_splits {','.join(left)}"
            note(f"not read: {names_of}{others} (expected {expected})")
        for gap in listed.gaps:
            note(gap)
        splits = _local(listed, names, options or ReadOptions(), note)
    elif dataset.startswith(embedded.PREFIX):
        _refuse_options(options, dataset)
        if names:
            raise UserError(f"--dataset_splits: {dataset} has a single split")
        splits = embedded.read(dataset)
    else:
        _refuse_options(options, dataset)
        splits = _read_hub(dataset, revision, config, names, note)
    return numbered(DatasetDict(splits))


def numbered(dataset: DatasetDict) -> DatasetDict:
    """Return ``dataset`` with the column :data:`~finetune.data.ROW`, the row number from 0."""
    return DatasetDict(
        {
            name: split
            if ROW in split.column_names
            else split.add_column(ROW, np.arange(len(split)))
            for name, split in dataset.items()
        }
    )


def _refuse_options(options: ReadOptions | None, source: str) -> None:
    """Refuse what is said of files, of which a source has none."""
    if options is not None and options.named:
        flag, value = next(iter(options.named.items()))
        raise UserError(f"{flag} {value}: {source} is not a local file")


def is_local(dataset: str) -> bool:
    """Return whether a data set is a file or a directory."""
    others = (embedded.PREFIX, memory.PREFIX)
    return not dataset.startswith(others) and not hub.names_repository(dataset)


def is_one_split(dataset: str) -> bool:
    """Return whether a data set is a file, or rows in memory, without splits."""
    if memory.is_memory(dataset):
        return memory.splits(dataset) == ["train"]
    return Path(dataset).expanduser().is_file()


def describe(dataset: str) -> str:
    """Return a short description of the source."""
    if not dataset:
        return "made by the recipe"
    if dataset.startswith(embedded.PREFIX):
        return embedded.describe(dataset)
    if memory.is_memory(dataset):
        return memory.describe(dataset)
    return f"{dataset} ({'Hub' if hub.names_repository(dataset) else 'local'})"


def _local(
    listed: Listing,
    names: Mapping[str, str] | None,
    options: ReadOptions,
    note: Callable[[str], None],
) -> dict[str, Dataset]:
    if listed.kind == "rows":
        return {split: _joined(several, options, note) for split, several in listed.files.items()}
    if options.named and listed.kind == "saved":
        flag, value = next(iter(options.named.items()))
        raise UserError(f"{flag} {value}: {listed.files['train'][0]} is not made of files of text")
    if listed.kind == "texts":
        return {
            split: conversion.texts(several, options, note)
            for split, several in listed.files.items()
        }
    (directory,) = listed.files["train"]
    try:
        found = load_from_disk(str(directory))
    except (FileNotFoundError, ValueError, OSError) as error:
        raise UserError(f"cannot read {directory}, which datasets saved: {error}") from error
    if isinstance(found, Dataset):
        return {"train": _without_index(directory.name, found, note)}
    return _of_names(found, names, str(directory), note)


def _joined(several: Sequence[Path], options: ReadOptions, note: Callable[[str], None]) -> Dataset:
    """Return the rows of files, one after the other.

    Raises:
        UserError: if they have other columns, or values without a common type.
    """
    told: dict[str, list[str]] = {}
    parts: list[Dataset] = []
    for path in several:
        notes: list[str] = []
        rows = conversion.rows(path, options, notes.append)
        parts.append(_without_index(path.name, rows, notes.append))
        _refuse_others(several[0], parts[0], path, parts[-1])
        for sentence in notes:
            told.setdefault(sentence.removeprefix(path.name), []).append(sentence)
    for sentences in told.values():
        others = f" (and {len(sentences) - 1:,} more files)" if len(sentences) > 1 else ""
        note(sentences[0] + others)
    if len(parts) == 1:
        return parts[0]
    features = _common(several, parts)
    order = list(features)
    joined: Dataset = concatenate_datasets(
        [
            rows if rows.features == features else rows.cast(features)
            for rows in (part.select_columns(order) for part in parts)
        ]
    )
    return joined


def _refuse_others(path: Path, rows: Dataset, other: Path, others: Dataset) -> None:
    """Refuse a file whose columns are not those of another one."""
    columns, there = set(rows.column_names), set(others.column_names)
    if columns != there:
        lacks, more = (
            f"{'a column' if len(names) == 1 else 'columns'} {list_names(sorted(names))}"
            if names
            else ""
            for names in (columns - there, there - columns)
        )
        told = [
            f"lacks {lacks} that {path} has" if lacks else "",
            f"has {more} that {path} lacks" if more else "",
        ]
        raise UserError(
            f"{other} {' and '.join(filter(None, told))}; give all files of a split the same "
            "columns"
        )


def _common(several: Sequence[Path], parts: Sequence[Dataset]) -> Features:
    """Return the types of columns in all files: of whole numbers and fractions, for instance, those
    of fractions.

    Raises:
        UserError: if there are none in common.
    """
    common = Features(parts[0].features)
    for name, first in parts[0].features.items():
        known, where = first, several[0]
        for path, rows in zip(several, parts, strict=True):
            if (feature := rows.features[name]) == known:
                continue
            both = [Features({"": each}).arrow_schema for each in (known, feature)]
            try:
                if isinstance(known, ClassLabel) or isinstance(feature, ClassLabel):
                    raise pa.ArrowTypeError("numbers of other classes")
                merged = arrow.stored(pa.unify_schemas(both, promote_options="permissive"))
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise UserError(
                    f"the column '{name}' is {_kind(known)} in {where} and {_kind(feature)} in "
                    f"{path}: write it alike in all files of a split"
                ) from error
            known, where = Features.from_arrow_schema(merged)[""], path
        common[name] = known
    return common


def _kind(feature: Any) -> str:
    if isinstance(feature, ClassLabel):
        return f"a class of {', '.join(feature.names)}"
    return str(getattr(feature, "dtype", None) or feature)


def _without_index(name: str, rows: Dataset, note: Callable[[str], None]) -> Dataset:
    """Return the rows of a file without a first column that only numbers them, or an index."""
    first = next(iter(rows.column_names), None)
    index = _PANDAS if _PANDAS in rows.column_names else first
    if index not in _INDEX or len(rows.column_names) == 1:
        return rows
    if not _counts_rows(arrow.column(rows, index)):
        return rows
    where = "the column" if index == _PANDAS else "the first column"
    called = f"{where} '{index}'" if index else f"{where}, without a name"
    note(f"{name}: left out {called}, which only numbers the rows")
    return rows.remove_columns([index])


def _counts_rows(values: pa.ChunkedArray) -> bool:
    """Return whether values are whole numbers from 0, none missing and none of them twice; also
    such as texts, and as fractions of .0.
    """
    if values.null_count:
        return False
    if arrow.is_text(values.type):
        for chunk in values.chunks:  # the first of a text decides
            if not pc.all(pc.match_substring_regex(chunk, _WHOLE), min_count=0).as_py():
                return False
        values = values.cast(pa.float64())
    elif not arrow.is_number(values.type):
        return False
    found = values.to_numpy()
    with np.errstate(invalid="ignore"):
        are_whole = bool((found >= 0).all() and (np.isfinite(found) & (found % 1 == 0)).all())
    # most are in order, and then none of them is there twice
    return are_whole and bool((found[1:] > found[:-1]).all() or len(np.unique(found)) == len(found))


def _of_names(
    found: Mapping[str, Any],
    names: Mapping[str, str] | None,
    dataset: str,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Return the splits of a source by our names; those that are not read are told.

    Raises:
        UserError: if it has no rows for training, or not those that are named.
    """
    there = ", ".join(found)
    called = listing.called_splits(names)
    for split, name in called.items():
        if split in (names or {}) and name not in found:
            raise UserError(
                f"--dataset_splits {split}={name}: {dataset} has no such split"
                f"{suggestion(name, list(found))} (it has: {there})"
            )
    if called["train"] not in found:
        raise NoTrainSplit(
            f"data set '{dataset}' has no train split (it has: {there}); --dataset_splits "
            f"train={for_training(list(found))} takes another",
            found,
        )
    refuse_unread(dataset, found, called)
    for other in sorted(set(found) - set(called.values())):
        split = meant(other) or "test"
        free = split in called and called[split] not in found
        hint = f"; --dataset_splits {split}={other} takes it for {split}" if free else ""
        note(f"not read: the split '{other}'{hint}")
    return {split: found[name] for split, name in called.items() if name in found}


def revision(rows: Dataset) -> str | None:
    """Return the Hub commit that rows were loaded from; None if they are not from the Hub."""
    folders = {Path(each["filename"]).parent.name for each in rows.cache_files}
    return next((name for name in folders if _COMMIT.fullmatch(name)), None)


def _refuse_deep(builder: DatasetBuilder, name: str) -> None:
    """Refuse JSON that would end the process in the library's parser; the files are cached."""
    if type(builder).__module__.endswith(".json.json"):
        found = DownloadManager(base_path=builder.base_path).download(builder.config.data_files)
        for paths in found.values():
            for path in paths:
                bounds.refuse_deep_file(Path(path), f"data set '{name}'")


def _read_hub(
    name: str,
    wanted: str | None,
    config: str | None,
    names: Mapping[str, str] | None,
    note: Callable[[str], None],
) -> dict[str, Any]:
    from datasets.exceptions import DatasetNotFoundError

    try:
        _refuse_deep(load_dataset_builder(name, config, revision=wanted), name)
        loaded = seals.loaded(
            lambda mode: load_dataset(name, config, revision=wanted, download_mode=mode), note
        )
    except ValueError as error:  # a configuration has to be chosen, says the library
        hint = "; --dataset_config NAME chooses" if "config" in str(error).lower() else ""
        raise UserError(f"data set '{name}' cannot be loaded: {error}{hint}") from error
    except (DatasetNotFoundError, FileNotFoundError, ConnectionError) as error:
        raise UserError(
            f"data set '{name}' is not on the Hub, nor is it a local file: {error}"
        ) from error
    splits = _of_names(loaded, names, name, note)
    # offline, the library takes what it finds in the cache, of whatever revision
    found = revision(splits["train"])
    if wanted and _COMMIT.fullmatch(wanted) and found not in (None, wanted):
        raise UserError(
            f"--dataset_revision {wanted}: the cache holds '{name}' at {found}, and the Hub was "
            "not contacted"
        )
    return splits
