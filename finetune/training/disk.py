"""The disk: refused before training where it cannot hold the run, told where it fills anyway.

Quotas are not seen beforehand: the free space of the file system is all that is looked at.
"""

from __future__ import annotations

import contextlib
import errno
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.errors import RunError, UserError, counted
from finetune.runtime import files
from finetune.training import checkpoint

if TYPE_CHECKING:
    import torch

    from finetune.training.arguments import FinetuneArguments

#: What torch and safetensors say, without a number, when a write failed or was cut short.
_CUT_SHORT = (
    "PytorchStreamWriter failed writing",
    "unexpected pos",
    "No space left on device",
    "File too large",
)
_OTHERS = 1 << 16  # bytes of a checkpoint besides weights and optimizer: states, manifest
#: Optimizers that keep two numbers for each trained weight; of others nothing is assumed.
_TWO_MOMENTS = ("adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adamw_anyprecision")


def checkpoint_bytes(model: torch.nn.Module, arguments: FinetuneArguments) -> int:
    """Return about how large a checkpoint is, at least."""
    weights = weight_bytes(model)
    if arguments.save_only_model:
        return weights + _OTHERS
    return weights + optimizer_bytes(model, arguments) + _OTHERS


def weight_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of the weights, those that are shared once."""
    return sum(each.numel() * each.element_size() for each in model.parameters())


def optimizer_bytes(model: torch.nn.Module, arguments: FinetuneArguments) -> int:
    """Return the bytes of the optimizer's state, at least."""
    if getattr(arguments.optim, "value", arguments.optim) not in _TWO_MOMENTS:
        return 0
    trained = (each for each in model.parameters() if each.requires_grad)
    return 2 * sum(each.numel() * each.element_size() for each in trained)


def refuse_too_little(
    directory: Path,
    model: torch.nn.Module,
    arguments: FinetuneArguments,
    steps: int,
    epochs: float,
    *,
    resumes: bool = False,
) -> None:
    """Refuse a run whose checkpoints and model cannot fit beside what is there.

    Args:
        directory: Of the run; it need not exist.
        model: Loaded, not sharded yet.
        arguments: Of the training.
        steps: That it has.
        epochs: That these are.
        resumes: Whether the checkpoints in the directory are of this run, and older ones make room.

    Raises:
        UserError: what is needed, what is free, and what to type.
    """
    place = directory.absolute()
    total, _, free = shutil.disk_usage(
        next(path for path in (place, *place.parents) if path.is_dir())
    )
    size = checkpoint_bytes(model, arguments)
    there = len(checkpoint.committed(directory)) if resumes else 0
    at_once, best = checkpoints_at_once(arguments, steps, epochs), arguments.load_best_model_at_end
    needed = weight_bytes(model) + max(0, at_once - there) * size
    if needed <= free or not total:  # /proc has no size at all: it cannot be written, is told later
        return
    others, fewest = [], min(_saves(arguments, steps, epochs), 2 + best)
    if fewest < at_once:
        others.append(f"--save_total_limit 1 ({shown(weight_bytes(model) + fewest * size)})")
    if not arguments.save_only_model and at_once:
        lean = weight_bytes(model) * (1 + at_once)
        others.append(f"--save_only_model true ({shown(lean)}, not resumable)")
    others.append("an --output_dir on a larger disk")
    raise UserError(
        f"--output_dir {directory}: about {shown(needed)} are needed "
        f"({counted(at_once, 'checkpoint')} of {shown(size)} at once and the model), "
        f"{shown(free)} are free; free some, or use "
        f"{' or '.join(others)}"
    )


def checkpoints_at_once(arguments: FinetuneArguments, steps: int, epochs: float) -> int:
    """Return how many checkpoints there are at most at the same time.

    Args:
        arguments: Say when one is saved, and how many stay.
        steps: Optimizer steps of the training.
        epochs: Epochs of the training.
    """
    saves, limit = _saves(arguments, steps, epochs), arguments.save_total_limit
    # a checkpoint is written before an older one is deleted
    return min(
        saves, saves if limit is None else max(limit, 1 + arguments.load_best_model_at_end) + 1
    )


def _saves(arguments: FinetuneArguments, steps: int, epochs: float) -> int:
    """Return how many checkpoints a training makes, at least."""
    strategy = getattr(arguments.save_strategy, "value", arguments.save_strategy)
    if strategy == "steps":
        every = arguments.save_steps
        return math.ceil(steps / (every if every >= 1 else max(1, math.ceil(steps * every))))
    if strategy == "epoch":
        return math.ceil(math.ceil(epochs) / arguments.save_every)
    return int(strategy != "no")


@contextlib.contextmanager
def explained(directory: Path, work: str, needed: int = 0) -> Iterator[None]:
    """Raise one sentence where the disk is full.

    Args:
        directory: That is written to; half a checkpoint in it is removed.
        work: What fails, like ``writing checkpoint-9``.
        needed: Bytes that it takes; an error is blamed on a disk that has fewer.

    Raises:
        RunError: instead of whatever the libraries raise where they cannot write.
    """
    try:
        yield
    except (RunError, UserError):
        raise
    except Exception as error:
        if not _is_full(error, directory, needed):
            raise
        checkpoint.clear(directory)
        takes = f" takes {shown(needed)}," if needed else " failed,"
        known = checkpoint.committed(directory)
        kept = f"; {known[0].name} and those before it are whole" if known else ""
        if _free(directory) > needed and _is_of_one_file(error):
            raise RunError(
                f"{directory}: {work}{takes} more than the size that one file may have (ulimit -f)"
                f"{kept}. Raise that limit, then add --resume"
            ) from error
        raise RunError(
            f"the disk of {directory} is full: {work}{takes} {shown(_free(directory))} are free"
            f"{kept}. Free some space, then add --resume; smaller: --save_total_limit 1, or "
            "--save_only_model true"
        ) from error


def _is_full(error: BaseException, directory: Path, needed: int) -> bool:
    """Go by the number of the error, else by whether the files could have fitted."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno is not None:
            return files.is_full(seen)
        if any(text in str(seen) for text in _CUT_SHORT):
            return True
        seen = seen.__cause__ or seen.__context__
    written = (directory / checkpoint.UNCOMMITTED).rglob("*")
    half = sum(path.stat().st_size for path in written if path.is_file())
    return _free(directory) + half < needed


def _is_of_one_file(error: BaseException | None) -> bool:
    """Return whether the size of a file was limited, not that of the disk."""
    while error is not None:
        if getattr(error, "errno", None) == errno.EFBIG or "File too large" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _free(directory: Path) -> int:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return 0


def shown(count: int) -> str:
    """Return ``1.2 GB``, as disks are measured: in powers of ten."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = min(len(units) - 1, int(math.log10(max(count, 1))) // 3)
    return f"{count / 1000**power:,.{int(power > 0)}f} {units[power]}"
