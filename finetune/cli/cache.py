"""``python -m finetune cache``: list what the toolkit has cached, or remove some of it.

python -m finetune cache
python -m finetune cache --remove --older_than 30
python -m finetune cache --remove 869d693f5ae5fab6 c41bd1d53f0a2c3e
python -m finetune cache --remove --all

Whatever is removed is regenerated when it is needed. All that the libraries have cached, models and
data sets from the Hub, is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from finetune.cli import console
from finetune.cli.parser import Parser
from finetune.data import caches
from finetune.data.caches import Entry
from finetune.errors import UserError, suggestion
from finetune.runtime import distributed, hub


def main(words: Sequence[str]) -> int:
    """``finetune cache [--remove [NAME...] [--older_than DAYS] [--all]]``."""
    parser = Parser("cache", __doc__)
    parser.add_argument("name", nargs="*", metavar="NAME", help="entries to remove, as listed")
    parser.add_argument("--remove", action="store_true", help="remove entries: one of")
    parser.add_argument(
        "--older_than", type=float, metavar="DAYS", help="those that were not used for so long"
    )
    parser.add_argument("--all", action="store_true", help="all of them")
    given = parser.parse_args(words)
    ways = [bool(given.name), given.older_than is not None, given.all]
    if not given.remove and any(ways):
        raise UserError("cache: NAME, --older_than and --all say what to remove: add --remove")
    if given.remove and sum(ways) != 1:
        raise UserError(
            "cache --remove: expected the names of entries, --older_than DAYS or --all, one of "
            f"them; found {sum(ways) or 'none'}"
        )
    if given.older_than is not None and not given.older_than >= 0:
        raise UserError(f"--older_than {given.older_than:g}: expected a number of days, 0 or more")
    if distributed.ranks().rank:  # it is one process's work
        return 0
    there = caches.entries()
    if given.remove:
        _remove(_selected(there, given.name, given.older_than))
    else:
        _show(there)
    return 0


def _selected(there: Sequence[Entry], names: Sequence[str], days: float | None) -> list[Entry]:
    known = {entry.name for entry in there}
    if unknown := [name for name in names if name not in known]:
        raise UserError(
            *(
                f"cache: no entry '{name}'{suggestion(name, known)}; python -m finetune cache "
                "lists them"
                for name in unknown
            )
        )
    if names:
        return [entry for entry in there if entry.name in names]
    before = datetime.now(UTC) - timedelta(days=days or 0)
    return [entry for entry in there if days is None or entry.used < before]


def _remove(chosen: Sequence[Entry]) -> None:
    freed = removed = 0
    for entry in chosen:
        if reason := caches.remove(entry):
            console.say(f"kept {entry.name} ({_what(entry)}): {reason}")
            continue
        console.say(f"removed {entry.name} ({_what(entry)}), {_size(entry.size)}")
        removed, freed = removed + 1, freed + entry.size
    console.say(f"{_entries(removed)} removed, {_size(freed)} freed")


def _show(there: Sequence[Entry]) -> None:
    console.say(f"{hub.caches()['datasets']}")
    if not there:
        console.say("nothing of the toolkit's own is cached")
        return
    console.table(
        ["name", "size", "last used", "what", "from"],
        [
            [entry.name, _size(entry.size), _when(entry), _what(entry), _from(entry)]
            for entry in there
        ],
    )
    total = _size(sum(entry.size for entry in there))
    console.say(f"{_entries(len(there))}, {total}")


def _what(entry: Entry) -> str:
    about = entry.about
    if "split" not in about or "rows" not in about:
        return entry.kind
    return f"{entry.kind} of {about['split']}, {about['rows']:,}"


def _from(entry: Entry) -> str:
    names = (entry.about.get(name) for name in ("source", "tokenizer"))
    return ", ".join(str(name) for name in names if name)


def _when(entry: Entry) -> str:
    return f"{entry.used.astimezone():%Y-%m-%d %H:%M}"


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
