"""The steps are made of global batches: the same rows whatever the launch."""

import random
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import pytest
import torch
from accelerate.data_loader import SeedableRandomSampler
from datasets import Dataset
from torch.utils.data import DataLoader, DistributedSampler

from finetune import UserError
from finetune.training.arguments import resolved
from finetune.training.sampler import GlobalBatchSampler

ROWS, GLOBAL_BATCH = 125, 12
STEPS = ROWS // GLOBAL_BATCH
LENGTHS = np.random.default_rng(3).integers(5, 500, ROWS).tolist()
STRATEGIES = ("random", "sequential", "group_by_length")

Steps = list[list[int]]


def sampler(
    strategy: str = "random", *, rows: int = ROWS, lengths: Sequence[int] = LENGTHS, **launch: int
) -> GlobalBatchSampler:
    return GlobalBatchSampler(
        rows, global_batch_size=GLOBAL_BATCH, strategy=strategy, lengths=lengths, **launch
    )


def gathered(
    make: Callable[..., GlobalBatchSampler], *, epoch: int, world_size: int, accumulation: int
) -> Steps:
    """The rows of each step, gathered from every rank's micro-batches, sorted."""
    steps: Steps = []
    for rank in range(world_size):
        share = make(world_size=world_size, rank=rank, gradient_accumulation_steps=accumulation)
        share.set_epoch(epoch)
        micro_batches = list(share)
        assert len(micro_batches) == len(share)
        assert len(share) % accumulation == 0
        steps = steps or [[] for _ in range(len(share) // accumulation)]
        for number, micro in enumerate(micro_batches):
            assert micro, "a rank without a row would leave the others waiting"
            steps[number // accumulation] += micro
    return [sorted(step) for step in steps]


def steps_of(
    strategy: str, *, epoch: int = 0, world_size: int = 1, accumulation: int = 1, seed: int = 42
) -> Steps:
    """Those of a number of rows."""

    def make(**launch: int) -> GlobalBatchSampler:
        share = sampler(strategy, seed=seed, **launch)
        share.set_epoch(epoch)
        sizes = [len(micro) for micro in share]
        assert sizes == [GLOBAL_BATCH // (world_size * accumulation)] * STEPS * accumulation
        return share

    return gathered(make, epoch=epoch, world_size=world_size, accumulation=accumulation)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_launch_takes_the_same_rows_in_each_step(
    strategy: str, world_size: int, accumulation: int
) -> None:
    for epoch in (0, 1):
        launched = steps_of(strategy, epoch=epoch, world_size=world_size, accumulation=accumulation)
        assert launched == steps_of(strategy, epoch=epoch)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_row_comes_at_most_once_an_epoch(strategy: str) -> None:
    rows = list(chain.from_iterable(steps_of(strategy, world_size=2, accumulation=2)))
    assert len(rows) == len(set(rows)) == STEPS * GLOBAL_BATCH
    assert set(rows) <= set(range(ROWS))


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_other_rows_are_left_out_in_each_epoch(strategy: str) -> None:
    left_out = [
        frozenset(range(ROWS)).difference(*steps_of(strategy, epoch=epoch)) for epoch in range(5)
    ]
    assert {len(each) for each in left_out} == {ROWS % GLOBAL_BATCH}
    assert len(set(left_out)) == 5


def test_sequential_goes_through_the_rows_in_order() -> None:
    assert list(sampler("sequential")) == [
        list(range(start, start + GLOBAL_BATCH))
        for start in range(0, STEPS * GLOBAL_BATCH, GLOBAL_BATCH)
    ]


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_the_order_depends_on_the_seed_and_the_epoch(strategy: str) -> None:
    assert steps_of(strategy) == steps_of(strategy)
    assert steps_of(strategy, epoch=1) != steps_of(strategy)
    assert steps_of(strategy, seed=43) != steps_of(strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "disturb",
    [lambda: random.seed(1), lambda: np.random.seed(1), lambda: torch.manual_seed(1)],
    ids=["random", "numpy", "torch"],
)
def test_the_order_ignores_the_global_random_state(
    strategy: str, disturb: Callable[[], object]
) -> None:
    before, torch_state = steps_of(strategy, epoch=2), torch.get_rng_state()
    numpy_state, python_state = np.random.get_state()[1].tolist(), random.getstate()
    steps_of(strategy)
    # nor does it draw from it: a sampler that did would change the dropout
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.random.get_state()[1].tolist() == numpy_state
    assert random.getstate() == python_state
    disturb()
    assert steps_of(strategy, epoch=2) == before


@pytest.mark.parametrize("epoch", [0, 3])
def test_the_random_order_is_that_of_torch_and_accelerate(epoch: int) -> None:
    theirs = DistributedSampler(range(ROWS), num_replicas=1, rank=0, seed=42)  # type: ignore[arg-type]
    seedable = SeedableRandomSampler(
        range(ROWS), generator=torch.Generator().manual_seed(42), data_seed=42
    )
    ours = sampler()
    for each in (ours, theirs, seedable):
        each.set_epoch(epoch)
    order = list(chain.from_iterable(ours))
    assert order == list(theirs)[: len(order)] == list(seedable)[: len(order)]


def test_going_through_an_epoch_twice_gives_it_twice() -> None:
    same = sampler()
    same.set_epoch(4)
    assert list(same) == list(same)


@pytest.mark.parametrize(
    ("rows", "accumulation", "micro_batches"), [(11, 1, 0), (12, 1, 1), (24, 2, 4), (35, 3, 6)]
)
def test_len_counts_micro_batches(rows: int, accumulation: int, micro_batches: int) -> None:
    made = sampler(rows=rows, lengths=range(rows), gradient_accumulation_steps=accumulation)
    assert len(made) == len(list(made)) == micro_batches


def test_group_by_length_makes_steps_of_like_lengths_in_mixed_order() -> None:
    rows = 2000  # more than are sorted together
    lengths = np.random.default_rng(5).integers(5, 500, rows)

    def batches(strategy: str) -> np.ndarray:
        return lengths[np.array(list(sampler(strategy, rows=rows, lengths=lengths.tolist())))]

    grouped, mixed = batches("group_by_length"), batches("random")
    assert np.ptp(grouped, axis=1).mean() < 0.1 * np.ptp(mixed, axis=1).mean()
    # short and long steps follow each other as they come: no curriculum
    longest_first = np.corrcoef(np.arange(len(grouped)), grouped.mean(axis=1))[0, 1]
    assert abs(longest_first) < 0.25
    assert not np.array_equal(np.sort(grouped[0]), np.sort(mixed[0]))


@pytest.mark.parametrize("epoch", range(3))
def test_the_longest_step_comes_first(epoch: int) -> None:
    found = sampler("group_by_length")
    found.set_epoch(epoch)
    longest = [max(LENGTHS[row] for row in step) for step in found]
    assert longest[0] == max(longest)
    assert longest != sorted(longest, reverse=True)


def test_a_data_loader_takes_the_sampler_as_its_batch_sampler() -> None:
    loader = DataLoader(list(range(ROWS)), batch_sampler=sampler("sequential"))  # type: ignore[arg-type]
    first = next(iter(loader))
    assert len(loader) == STEPS
    assert first.tolist() == list(range(GLOBAL_BATCH))


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_processes_of_a_step_have_nearly_as_many_tokens(
    world_size: int, accumulation: int
) -> None:
    lengths = np.array(LENGTHS)
    shares = [
        sampler(world_size=world_size, rank=rank, gradient_accumulation_steps=accumulation)
        for rank in range(world_size)
    ]
    tokens = np.array([[lengths[micro].sum() for micro in share] for share in shares])
    by_chance = [
        np.ptp([part.sum() for part in np.array_split(lengths[micro], world_size)])
        for micro in sampler(gradient_accumulation_steps=accumulation)
    ]
    assert np.ptp(tokens, axis=0).mean() < 0.5 * np.mean(by_chance)


# ---- a number of tokens --------------------------------------------------------------------------

BUDGET = 3000


def by_tokens(
    *,
    epoch: int = 0,
    world_size: int = 1,
    accumulation: int = 1,
    lengths: Sequence[int] = LENGTHS,
) -> Steps:
    """Those of a number of tokens."""

    def make(**launch: int) -> GlobalBatchSampler:
        return GlobalBatchSampler(
            len(lengths),
            max_tokens=BUDGET,
            strategy="group_by_length",
            lengths=lengths,
            **launch,  # type: ignore[arg-type]
        )

    return gathered(make, epoch=epoch, world_size=world_size, accumulation=accumulation)


def cost(step: Sequence[int], lengths: Sequence[int] = LENGTHS) -> int:
    """Tokens of a step, with its padding to a multiple of 8."""
    return len(step) * -(-max(lengths[row] for row in step) // 8) * 8


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_launch_takes_the_same_rows_in_each_step_of_tokens(
    world_size: int, accumulation: int
) -> None:
    for epoch in (0, 1):
        launched = by_tokens(epoch=epoch, world_size=world_size, accumulation=accumulation)
        assert launched == by_tokens(epoch=epoch)


def test_no_step_has_more_tokens_and_few_have_much_less() -> None:
    costs = [cost(step) for step in by_tokens()]
    assert max(costs) <= BUDGET
    assert np.mean(costs) > 0.85 * BUDGET
    sizes = {len(step) for step in by_tokens()}
    assert max(sizes) > 2 * min(sizes)  # short rows are many a step


def test_every_row_comes_once_an_epoch_in_the_same_number_of_steps() -> None:
    epochs = [by_tokens(epoch=epoch) for epoch in range(5)]
    for steps in epochs:
        assert sorted(chain.from_iterable(steps)) == list(range(ROWS))
    assert len({len(steps) for steps in epochs}) == 1


def test_rows_of_a_length_meet_others_in_each_epoch() -> None:
    lengths = np.random.default_rng(4).integers(5, 60, 1000).tolist()
    first, second = (
        {frozenset(step) for step in by_tokens(epoch=epoch, lengths=lengths)} for epoch in (0, 1)
    )
    assert len(first & second) < 0.1 * len(first)


@pytest.mark.parametrize("epoch", range(3))
def test_the_longest_step_of_tokens_comes_first_and_the_others_are_mixed(epoch: int) -> None:
    longest = [max(LENGTHS[row] for row in step) for step in by_tokens(epoch=epoch)]
    assert longest[0] == max(longest)
    assert longest != sorted(longest, reverse=True)


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ([1000] * 7, [3, 2, 2]),  # the last two are made equal: not 3, 3, 1
        ([1000] * 6, [3, 3]),
        ([3000, 8, 8, 8], [1, 3]),
        ([9000, 3000], [1, 1]),  # a row beyond the budget is a step of its own
        ([1000, 1000], [2]),
    ],
)
def test_the_last_steps_of_a_number_of_tokens_are_made_equal(
    lengths: list[int], sizes: list[int]
) -> None:
    made = GlobalBatchSampler(
        len(lengths), max_tokens=BUDGET, strategy="group_by_length", lengths=lengths
    )
    assert made.sizes == sizes
    assert sorted(map(len, made)) == sorted(sizes)


# ---- balanced classes ----------------------------------------------------------------------------

RARE, USUAL, OFTEN = 4, 31, 90
CLASSES = np.repeat([0, 1, 2], [RARE, USUAL, OFTEN])[np.random.default_rng(6).permutation(ROWS)]


def balanced(
    *,
    epoch: int = 0,
    world_size: int = 1,
    accumulation: int = 1,
    strategy: str = "random",
    classes: Sequence[int] | np.ndarray = CLASSES,
    seed: int = 42,
) -> Steps:
    def make(**launch: int) -> GlobalBatchSampler:
        return GlobalBatchSampler(
            ROWS,
            global_batch_size=GLOBAL_BATCH,
            strategy=strategy,
            lengths=LENGTHS,
            classes=classes,
            seed=seed,
            **launch,  # type: ignore[arg-type]
        )

    return gathered(make, epoch=epoch, world_size=world_size, accumulation=accumulation)


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_launch_draws_the_same_rows_of_balanced_classes(
    strategy: str, world_size: int, accumulation: int
) -> None:
    for epoch in (0, 1):
        launched = balanced(
            epoch=epoch, world_size=world_size, accumulation=accumulation, strategy=strategy
        )
        assert launched == balanced(epoch=epoch, strategy=strategy)
        assert len(launched) == STEPS


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
@pytest.mark.parametrize("epoch", range(3))
def test_every_class_comes_as_often(strategy: str, epoch: int) -> None:
    rows = np.concatenate(balanced(epoch=epoch, strategy=strategy))
    times = np.bincount(rows, minlength=ROWS)
    of_class = np.bincount(CLASSES[rows])
    assert of_class.sum() == STEPS * GLOBAL_BATCH == 120
    assert of_class.tolist() == [40, 40, 40]
    assert set(times[CLASSES == 0]) == {10}
    assert set(times[CLASSES == 2]) <= {0, 1, 2}
    assert (times[CLASSES == 2] == 2).sum() < 10  # where a pass over them ends in this epoch


def test_what_does_not_divide_goes_to_other_classes_in_each_epoch() -> None:
    classes = np.arange(ROWS) % 7
    counts = [
        np.bincount(classes[np.concatenate(balanced(epoch=epoch, classes=classes))])
        for epoch in range(4)
    ]
    assert {tuple(sorted(each)) for each in counts} == {(17,) * 6 + (18,)}
    assert len({int(each.argmax()) for each in counts}) > 1


def test_a_row_comes_again_only_after_every_other_of_its_class() -> None:
    times = np.zeros(ROWS, dtype=int)
    for epoch in range(9):
        times += np.bincount(np.concatenate(balanced(epoch=epoch)), minlength=ROWS)
        for each in range(3):
            own = times[each == CLASSES]
            assert own.max() - own.min() <= 1
    assert times[CLASSES == 2].tolist() == [4] * OFTEN  # 9 epochs of 40


def test_balanced_steps_depend_on_seed_and_epoch_alone() -> None:
    before = balanced(epoch=2)
    torch.manual_seed(1)
    np.random.seed(1)
    assert balanced(epoch=2) == before
    assert balanced(epoch=2, seed=43) != before


def test_more_classes_than_rows_of_an_epoch() -> None:
    rows = np.concatenate(balanced(classes=np.arange(ROWS)))
    assert len(set(rows)) == len(rows) == STEPS * GLOBAL_BATCH


def rows_with(**columns: list[object]) -> Dataset:
    return Dataset.from_dict(columns)


def test_the_classes_are_those_of_the_column_labels() -> None:
    arguments = resolved(
        {"global_batch_size": 4, "class_sampling": "balanced", "use_cpu": True, "seed": 1}
    )
    made = GlobalBatchSampler.of(arguments, rows_with(labels=[7, 7, 7, 7, 7, 7, 2, 7], id=[0] * 8))
    drawn = list(chain.from_iterable(made))
    assert drawn.count(6) == 4
    assert len(drawn) == 8


@pytest.mark.parametrize("labels", [[0.5] * 8, [[1.0, 0.0]] * 8, [[1, 0]] * 8])
def test_rows_without_one_class_each_are_refused(labels: list[object]) -> None:
    arguments = resolved({"global_batch_size": 4, "class_sampling": "balanced", "use_cpu": True})
    with pytest.raises(UserError, match=r"^--class_sampling balanced draws as many rows of each"):
        GlobalBatchSampler.of(arguments, rows_with(labels=labels))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"class_sampling": "equal"}, "--class_sampling equal: expected none or balanced"),
        (
            {"max_tokens_per_batch": 100, "train_sampling_strategy": "group_by_length"},
            "--class_sampling balanced with --max_tokens_per_batch: other rows in each epoch would "
            "make another number of steps; use --global_batch_size instead",
        ),
        (
            {"train_sampling_strategy": "sequential"},
            "--class_sampling balanced: the rows are drawn, so they have no order to be kept by "
            "--train_sampling_strategy sequential; expected random or group_by_length",
        ),
    ],
)
def test_what_cannot_be_balanced_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as error:
        resolved({"class_sampling": "balanced", "use_cpu": True, **given})
    assert list(error.value.mistakes) == [message]
