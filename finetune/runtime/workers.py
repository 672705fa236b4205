"""Pieces of work on all cores, in processes that end with this one, however it ends.

They are forked: what they work on is not copied, and nothing is imported again, so that starting
one takes milliseconds. Where a process cannot be forked, this one does the work.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from finetune.errors import RunError
from finetune.runtime.signals import SIGNALS

Piece = TypeVar("Piece")
#: Does a piece, and yields how many units of it are done since it last did.
Work = Callable[[Piece], Iterator[int]]
_LOOKS_AT_PARENT = 0.2  # seconds


def available() -> int:
    """Return how many processes can work at once: the cores that this process may use."""
    from joblib import cpu_count

    return int(cpu_count())


def share_out(
    work: Work[Piece],
    pieces: Sequence[Piece],
    processes: int,
    advance: Callable[[Piece, int], object],
) -> None:
    """Do all pieces, each in one of the processes; which one does it is left to chance.

    An exception of a worker is raised here, and ends the others. So does a signal, which only this
    process takes.

    Args:
        work: Does a piece; what it returns has to be on the disk.
        pieces: In the order in which they are begun.
        processes: At most so many; with one, or a single piece, this process does the work.
        advance: Is given a piece and how many units of it are done since it was last called.

    Raises:
        RunError: if a worker was killed.
    """
    processes = min(processes, len(pieces))
    if processes < 2 or not _can_fork():
        for piece in pieces:
            for units in work(piece):
                advance(piece, units)
        return
    context: Any = multiprocessing.get_context("fork")
    next_piece, lines, started = context.Value("q", 0), dict[Connection, Any](), list[Any]()
    try:
        for _ in range(processes):
            mine, theirs = context.Pipe(duplex=False)
            arguments = (work, pieces, next_piece, theirs, os.getpid())
            process = context.Process(target=_serve, args=arguments, daemon=True)
            with _held():
                process.start()
                started.append(process)
            theirs.close()  # or its end would not be noticed
            lines[mine] = process
        while lines:
            for line in connection.wait(list(lines)):
                assert isinstance(line, Connection)
                try:
                    told = line.recv()
                except EOFError:
                    _refuse_killed(lines.pop(line))
                    continue
                if isinstance(told, BaseException):
                    raise told
                number, units = told
                advance(pieces[number], units)
    finally:
        for process in started:
            process.kill()
            process.join()


@contextlib.contextmanager
def _held() -> Iterator[None]:
    """Handle signals only afterwards: a worker that was forked is known by then, and ignores them.

    Blocking them in this thread is not enough: another may take them, and this one handles them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    usual = {each: signal.signal(each, lambda number, _: came.append(number)) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in usual.items():
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)


def _can_fork() -> bool:
    """Return whether workers can be forked: macOS has libraries that do not survive it, and a
    worker of ``multiprocessing`` may have none of its own.
    """
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def _refuse_killed(process: Any) -> None:
    process.join()
    if process.exitcode:
        how = f"by {signal.Signals(-process.exitcode).name}" if process.exitcode < 0 else "itself"
        raise RunError(
            f"a worker process that prepares the data was ended {how}, perhaps for lack of memory: "
            "start again, with fewer of them (--preprocessing_num_workers); what was finished is "
            "kept"
        )


def _serve(
    work: Work[Piece], pieces: Sequence[Piece], next_piece: Any, line: Connection, parent: int
) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a terminal sends them to all; the parent decides
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    try:
        while (number := _taken(next_piece)) < len(pieces):
            for units in work(pieces[number]):
                line.send((number, units))
    except BaseException as error:
        line.send(_sendable(error))


def _taken(next_piece: Any) -> int:
    with next_piece.get_lock():
        number: int = next_piece.value
        next_piece.value += 1
    return number


def _sendable(error: BaseException) -> BaseException:
    """Return the exception, or where it cannot be sent one with its traceback as text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def _leave_with(parent: int) -> None:
    """End this process soon after its parent, which may be killed without a word."""
    while os.getppid() == parent:
        time.sleep(_LOOKS_AT_PARENT)
    os._exit(1)
