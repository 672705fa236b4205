"""The gradients of embeddings exchanged row by row, which is exact and half the traffic.

Half of the weights of a small encoder are word embeddings, and a step of short texts touches a few
hundred of their thirty thousand rows; the gradient of the others is zero on every process, and
``DistributedDataParallel`` adds up the zeros. Over gloo, whose sums cost the very cores that
compute, the processes here agree on the rows that any of them touched, and add up those.

The sums are those of a plain all-reduce: number by number between two processes, and up to the
order of the summands between more.

No ``from __future__ import annotations`` here: the wrapper looks at the annotations of its hook.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

#: Smaller ones are not worth the agreement.
_FEWEST_ROWS = 1_000
#: Of more rows than this share, all of them go.
_MOST_TOUCHED = 0.5


def register(model: nn.Module) -> None:
    """Let the processes of a wrapped model exchange gradients this way, if they meet over gloo.

    Args:
        model: In ``DistributedDataParallel``, before the first step; any other is left as it is.
    """
    if not isinstance(model, DistributedDataParallel) or model.device_type != "cpu":
        return
    embeddings = {
        each.weight.data_ptr()
        for each in model.module.modules()
        if isinstance(each, nn.Embedding) and each.num_embeddings >= _FEWEST_ROWS
    }
    if embeddings:
        model.register_comm_hook(embeddings, exchange)


def exchange(
    embeddings: set[int],
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> Future[torch.Tensor]:
    """A communication hook of ``DistributedDataParallel``: the mean of a bucket over the processes.

    Args:
        embeddings: The ``data_ptr`` of the weights to be exchanged by rows.
        bucket: Gradients, in the order in which every process calls this.
    """
    buffer: torch.Tensor = bucket.buffer()
    size = dist.get_world_size()
    named = zip(bucket.parameters(), bucket.gradients(), strict=True)
    gradients = [(grad, weight.data_ptr() in embeddings) for weight, grad in named]
    if not any(by_row for _, by_row in gradients):
        return _sum(buffer.div_(size)).then(_first)
    # Waited for: it is small, and what follows hangs on it. Embeddings come last in the backward
    # pass, so that nothing is left to be computed meanwhile.
    rows = [_touched(grad) if by_row else None for grad, by_row in gradients]
    pieces = [
        grad if chosen is None else grad[chosen]
        for (grad, _), chosen in zip(gradients, rows, strict=True)
    ]
    message = torch.cat([piece.flatten() for piece in pieces]).div_(size)

    def put_back(done: Future[list[torch.Tensor]]) -> torch.Tensor:
        summed = torch.split(_first(done), [piece.numel() for piece in pieces])
        for (grad, _), chosen, piece, values in zip(gradients, rows, pieces, summed, strict=True):
            values = values.view_as(piece)
            if chosen is None:
                grad.copy_(values)
            else:
                grad[chosen] = values
        return buffer

    return _sum(message).then(put_back)


def _touched(gradient: torch.Tensor) -> torch.Tensor | None:
    """The rows that are not zero on some process, the same on every one; None if they are many."""
    # two passes of reading; `any` and `count_nonzero` take five times as long, and a norm would
    # take the smallest numbers for zero
    touched = (gradient.amax(dim=1) != 0) | (gradient.amin(dim=1) != 0)
    anywhere = touched.to(torch.uint8)
    dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
    rows = anywhere.nonzero().squeeze(1)
    return rows if len(rows) < _MOST_TOUCHED * len(gradient) else None


def _sum(values: torch.Tensor) -> Future[list[torch.Tensor]]:
    work = dist.all_reduce(values, async_op=True)
    assert work is not None
    summed: Future[list[torch.Tensor]] = work.get_future()
    return summed


def _first(done: Future[list[torch.Tensor]]) -> torch.Tensor:
    buffer: torch.Tensor = done.value()[0]
    return buffer
