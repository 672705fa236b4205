"""The gradients of embeddings, exchanged by rows, are those of a plain all-reduce, bit by bit."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from finetune.launcher import in_fresh_processes
from finetune.training import exchange

pytestmark = pytest.mark.processes
WORDS, WIDTH = 3000, 8
Gradients = dict[str, torch.Tensor]


class Bag(nn.Module):
    """Word embeddings, a bias, and an output that may share their weights."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.few = nn.Embedding(4, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS if tied else 3)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor, sign: float = 0.0) -> torch.Tensor:
        """With a sign, what is not zero in the gradient of a row has it."""
        if sign:
            everything = sum(each.sum() for each in self.parameters())
            return sign * self.words(ids)[..., :4].sum() + 0 * everything
        return self.head((self.words(ids) + self.few(ids % 4)).mean(dim=1)).logsumexp(dim=1).sum()


def ids_of(rank: int, step: int, words: int = WORDS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randint(words, (6, 5), generator=generator)


def gradients(by_rows: bool, *, tied: bool = False, accumulated: bool = False) -> list[Gradients]:
    """Of the second and the third step: in the first, the wrapper still orders its buckets."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Bag(tied), bucket_cap_mb=0.05)
    if by_rows:
        exchange.register(model)
    found = []
    for step in range(3):
        model.zero_grad()
        if accumulated:
            with model.no_sync():
                model(ids_of(dist.get_rank(), 100 + step)).backward()
        model(ids_of(dist.get_rank(), step)).backward()
        found.append({name: each.grad.clone() for name, each in model.module.named_parameters()})
    return found[1:]


def not_a_number(by_rows: bool) -> list[Gradients]:
    """Rank 1 has NaN in the gradient of one row, which must reach rank 0."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Bag(tied=False))
    if by_rows:
        exchange.register(model)
    output = model(torch.full((1, 1), 7 + dist.get_rank()))
    (output * (float("nan") if dist.get_rank() == 1 else 1.0)).backward()
    return [{name: each.grad.clone() for name, each in model.module.named_parameters()}]


def of_one_sign(by_rows: bool) -> list[Gradients]:
    """Rank 0 has rows of zeros and positive numbers, and rank 1 of zeros and negative ones."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Bag(tied=False))
    if by_rows:
        exchange.register(model)
    rank = dist.get_rank()
    model(torch.tensor([[rank, 5, 9 + rank]]), sign=1.0 if rank == 0 else -2.0).backward()
    return [{name: each.grad.clone() for name, each in model.module.named_parameters()}]


CASES: dict[str, Callable[[bool], list[Gradients]]] = {
    "a few rows": gradients,
    "accumulated": lambda by_rows: gradients(by_rows, accumulated=True),
    "tied to the output, so that every row is touched": lambda by_rows: gradients(
        by_rows, tied=True
    ),
    "not a number": not_a_number,
    "of one sign": of_one_sign,
}


def in_a_rank() -> dict[str, tuple[list[Gradients], list[Gradients], int]]:
    dist.init_process_group("gloo")
    sent = []
    plain_sum = exchange._sum

    def counted(values: torch.Tensor) -> torch.futures.Future[list[torch.Tensor]]:
        sent.append(values.numel())
        return plain_sum(values)

    exchange._sum = counted
    found = {}
    for name, case in CASES.items():
        sent.clear()
        found[name] = (case(False), case(True), sum(sent))
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[list[Gradients], list[Gradients], int]]:
    return in_fresh_processes(2, in_a_rank)[0]


@pytest.mark.parametrize("case", CASES)
def test_the_sums_are_those_of_a_plain_all_reduce(
    case: str, found: dict[str, tuple[list[Gradients], list[Gradients], int]]
) -> None:
    plain, by_rows, _ = found[case]
    for expected, given in zip(plain, by_rows, strict=True):
        assert expected.keys() == given.keys()
        for name, value in expected.items():
            torch.testing.assert_close(given[name], value, rtol=0, atol=0, equal_nan=True)
    assert any(value.abs().nansum() > 0 for value in plain[0].values())


def test_only_the_rows_that_were_touched_are_sent(
    found: dict[str, tuple[list[Gradients], list[Gradients], int]],
) -> None:
    assert found["a few rows"][2] < 3 * WORDS * WIDTH / 5
    assert found["tied to the output, so that every row is touched"][2] > 3 * WORDS * WIDTH
