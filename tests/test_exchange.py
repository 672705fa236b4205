"""Test gradients that are averaged in shared memory."""

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
    model = torch.nn.Sequential(*(torch.nn.Linear(600, size) for size in (600, 600, 600, 7)))
    model[0].bias.requires_grad_(False)
    return model, torch.randn(8, 5 * world, 600)

shared = pathlib.Path(sys.argv[1])
distributed.join_process_group(None, 60, use_cpu=True)
rank, world = distributed.ranks().rank, distributed.ranks().world_size
exchange.DIRECTORY = pathlib.Path("/nowhere")
assert not exchange.use(torch.nn.parallel.DistributedDataParallel(linear()[0]))
separate = shared / str(rank)  # as on several machines, whose memory is separate
separate.mkdir()
os.chdir(separate)
exchange.DIRECTORY = pathlib.Path("/proc/self/cwd")
assert not exchange.use(torch.nn.parallel.DistributedDataParallel(linear()[0]))
assert not list(separate.iterdir())
os.chdir(shared)
separate.rmdir()
exchange.DIRECTORY = shared
for options in ({}, dict(find_unused_parameters=True, gradient_as_bucket_view=False)):
    torch.manual_seed(0)
    reference, batches = linear()
    wrapped = torch.nn.parallel.DistributedDataParallel(
        copy.deepcopy(reference), bucket_cap_mb=0.05, **{"gradient_as_bucket_view": True, **options}
    )
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 0:  # the rank that creates the file
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    assert not exchange.use(wrapped)  # every process uses gloo
    assert not exchange.used_by(wrapped)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    files = list(shared.iterdir())
    distributed.gather(None)  # before the next file is created
    assert not files
    assert exchange.use(wrapped)
    assert exchange.used_by(wrapped)
    assert exchange.use(wrapped)  # as in a second training
    trained = [weight for weight in wrapped.parameters() if weight.requires_grad]
    for first, second in batches.split(2):  # DDP rebuilds its buckets after the first step
        with wrapped.no_sync():
            wrapped(first[rank::world]).square().sum().backward()
        wrapped(second[rank::world]).square().sum().backward()
        for share in range(world):
            for rows in (first, second):
                reference(rows[share::world]).square().sum().backward()
        weights = [weight for weight in reference.parameters() if weight.requires_grad]
        expected = [weight.grad / world for weight in weights]
        gradients = [weight.grad for weight in trained]
        torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-4)
        first_rank, *ranks = distributed.gather([gradient.tolist() for gradient in gradients])
        assert all(rank_gradients == first_rank for rank_gradients in ranks)
        wrapped.zero_grad()
        reference.zero_grad()
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
del trainer, wrapped  # before the process group, because they hold its threads
gc.collect()
assert [reference() for reference in trainers] == [None, None]
distributed.leave_process_group()
threads = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
assert not any("gloo" in name for name in threads), threads
"""


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_process_has_the_average(processes: int, tmp_path: Path, warm: Servers) -> None:
    """The average is bit-identical in all processes, over buckets, steps and accumulation."""
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
    assert not list(shared.iterdir())  # the file is deleted with the last process
