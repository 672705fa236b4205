"""Gradients that the processes of one machine exchange in memory."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.warm import Servers

SCRIPT = """
import contextlib, copy, gc, os, pathlib, resource, sys, torch, weakref
from finetune.runtime import distributed
from finetune.models.cpu import exchange
from examples.regression import Regression

def linear():
    made = torch.nn.Sequential(*(torch.nn.Linear(600, size) for size in (600, 600, 600, 7)))
    made[0].bias.requires_grad_(False)
    return made, torch.randn(8, 5 * world, 600)

shared = pathlib.Path(sys.argv[1])
distributed.join_process_group(None, 60, use_cpu=True)
rank, world = distributed.ranks().rank, distributed.ranks().world_size
exchange.DIRECTORY = pathlib.Path("/nowhere")
assert not exchange.use(torch.nn.parallel.DistributedDataParallel(linear()[0]))
apart = shared / str(rank)  # machines with memory of their own
apart.mkdir()
os.chdir(apart)
exchange.DIRECTORY = pathlib.Path("/proc/self/cwd")
assert not exchange.use(torch.nn.parallel.DistributedDataParallel(linear()[0]))
assert not list(apart.iterdir())
os.chdir(shared)
apart.rmdir()
exchange.DIRECTORY = shared
for options in ({}, dict(find_unused_parameters=True, gradient_as_bucket_view=False)):
    torch.manual_seed(0)
    alone, batches = linear()
    wrapped = torch.nn.parallel.DistributedDataParallel(
        copy.deepcopy(alone), bucket_cap_mb=0.05, **{"gradient_as_bucket_view": True, **options}
    )
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 0:  # which makes the file
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    assert not exchange.use(wrapped)  # left to gloo, in every process
    assert not exchange.used_by(wrapped)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    left = list(shared.iterdir())
    distributed.gather(None)  # before the next file is made
    assert not left
    assert exchange.use(wrapped)
    assert exchange.used_by(wrapped)
    assert exchange.use(wrapped)  # a second training asks again
    learned = [each for each in wrapped.parameters() if each.requires_grad]
    for first, second in batches.split(2):  # DDP makes its buckets anew after the first step
        with wrapped.no_sync():
            wrapped(first[rank::world]).square().sum().backward()
        wrapped(second[rank::world]).square().sum().backward()
        for share in range(world):
            for rows in (first, second):
                alone(rows[share::world]).square().sum().backward()
        expected = [each.grad / world for each in alone.parameters() if each.requires_grad]
        torch.testing.assert_close([each.grad for each in learned], expected, rtol=1e-4, atol=1e-4)
        one, *others = distributed.gather([each.grad.tolist() for each in learned])
        assert all(each == one for each in others)
        wrapped.zero_grad()
        alone.zero_grad()
trainer = Regression().trainer(output_dir=sys.argv[2], max_steps=1, global_batch_size=6 * world)
trainer.train()
assert exchange.used_by(trainer.model_wrapped)
assert trainer.model_wrapped.gradient_as_bucket_view
trainers = [weakref.ref(trainer)]
off = dict(max_steps=1, global_batch_size=6 * world, cpu_kernels="off")
trainer = Regression().trainer(output_dir=sys.argv[2], **off)
trainer.train()
assert not exchange.used_by(trainer.model_wrapped)
trainers.append(weakref.ref(trainer))
del trainer, wrapped  # before the group, whose threads they hold
gc.collect()
assert [each() for each in trainers] == [None, None]
distributed.leave()
threads = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
assert not any("gloo" in name for name in threads), threads
"""


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_process_has_the_average(processes: int, tmp_path: Path, warm: Servers) -> None:
    """Of several buckets, in steps after each other, with an accumulated micro-batch; the same to
    the last bit.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    shared = tmp_path / "shared"
    shared.mkdir()
    flags = ("--standalone", f"--nproc_per_node={processes}")
    words = [str(shared), str(tmp_path)]
    ended = subprocess.run(
        warm.torchrun(words, os.environ, *flags, module="script"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert not list(shared.iterdir())  # the memory goes with the last process
