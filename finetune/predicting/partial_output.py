"""What is done of a prediction, beside its output: ``OUTPUT.part/``, a file for each chunk.

A part is there whole or not at all, so whoever goes on, in however many processes, skips those
that are there. The output appears when all are: joined in the directory, then moved in place.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.data.files import Chunk
from finetune.errors import UserError
from finetune.predicting import formats

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class PartialOutput:
    """The parts of one output.

    Attributes:
        output: The file that they will become.
    """

    output: Path

    @property
    def directory(self) -> Path:
        """Beside the output, on the same disk."""
        return self.output.with_name(self.output.name + ".part")

    def begin(self, facts: Mapping[str, Any], resume: bool) -> None:
        """Make the directory, or find it as it was left.

        Args:
            facts: What the predictions depend on, by the words in which a user knows it.
            resume: Whether to go on with what is there.

        Raises:
            UserError: if something is there that is not to be gone on with, or cannot be.
        """
        if not self.output.parent.is_dir():
            raise UserError(f"--output {self.output}: there is no directory {self.output.parent}")
        manifest = self.directory / _MANIFEST
        if not self.directory.exists():
            self.directory.mkdir()
            manifest.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
            return
        if not resume:
            raise UserError(
                f"{self.directory} holds an interrupted prediction: add --resume to go on with "
                "it, or remove that directory"
            )
        before = json.loads(manifest.read_text(encoding="utf-8")) if manifest.exists() else {}
        facts = json.loads(json.dumps(facts))
        if changed := [name for name in facts if facts[name] != before.get(name)]:
            raise UserError(
                *(
                    f"--resume: {name} is no longer what it was ({before.get(name)}, now "
                    f"{facts[name]}); remove {self.directory} to start again"
                    for name in changed
                )
            )

    @contextlib.contextmanager
    def after_a_mistake(self) -> Iterator[None]:
        """Say where the parts are if a mistake is found in the middle, or leave no empty directory.

        Raises:
            UserError: the mistake.
        """
        try:
            yield
        except UserError as error:
            if not any(self._done()):
                shutil.rmtree(self.directory)
                raise
            raise UserError(
                *error.mistakes,
                f"what was done until then is in {self.directory}; if you change INPUT, remove it",
            ) from error

    def has(self, number: int) -> bool:
        """Whether a chunk is done."""
        return self._path(number).exists()

    def write(self, columns: Sequence[str], chunk: Chunk, added: Mapping[str, list[Any]]) -> None:
        """Keep a chunk with what was predicted of it."""
        path = self._path(chunk.number)
        temporary = path.with_name(path.name + ".tmp")
        formats.write_part(temporary, self.output.suffix, columns, chunk, added)
        if self.output.suffix == ".parquet" and (first := next(iter(self._done()), None)):
            formats.schema_of([first, temporary])  # what cannot be joined is told now
        os.replace(temporary, path)

    def finish(self, count: int, columns: Sequence[str]) -> None:
        """Put the output in its place, and remove the directory.

        Args:
            count: Of the chunks, all of them done.
            columns: Of the input and added.
        """
        whole = self.directory / f"whole{self.output.suffix}"
        paths = [self._path(number) for number in range(count)]
        formats.join(paths, whole, self.output.suffix, columns)
        os.replace(whole, self.output)
        shutil.rmtree(self.directory)

    def _done(self) -> Iterator[Path]:
        return self.directory.glob(f"[0-9]*{self.output.suffix}")

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:08d}{self.output.suffix}"
