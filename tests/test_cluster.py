"""The files in docs/cluster/ start the command that they say, with flags that there are.

The batch script runs for real, with stand-ins for the three programs that it calls. That SLURM
takes it was tried by hand: docs/cluster/README.md.
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from finetune.cli import dispatch
from finetune.config.parser import RecipeParser
from finetune.errors import Report
from finetune.recipe import catalog
from tests.conftest import ROOT

CLUSTER = ROOT / "docs" / "cluster"
SCRIPT = CLUSTER / "train.sbatch"
COMMANDS = re.findall(
    r"train\.sbatch (\w+[^\n#]*)",
    "".join((CLUSTER / name).read_text("utf-8") for name in ("train.sbatch", "README.md")),
)
PROGRAMS = {
    "scontrol": 'test "$*" = "show hostnames node[8-9]" && printf "node8\\nnode9\\n"',
    # As on the second node: what is left after the options of srun itself is started there.
    "srun": 'while [[ $1 == -* ]]; do echo $1 >> options; shift; done; SLURMD_NODENAME=node9 "$@"',
    "torchrun": 'printf "%s\\0" "$SRUN_CPUS_PER_TASK" "$@" > started; exit "${STATUS:-0}"',
}
JOB = {
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NODELIST": "node[8-9]",
    "SLURM_NNODES": "2",
    "SLURM_CPUS_PER_TASK": "8",
}
WORDS = ["sentiment", "--output_dir", "a directory", "--embedded"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, line in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def submit(place: Path, **variables: str) -> int:
    environment = {"PATH": f"{place}:{os.defpath}", **JOB, **variables}
    command = ["bash", str(SCRIPT), *WORDS]
    return subprocess.run(command, cwd=place, env=environment, check=False).returncode


def torchrun(words: list[str]) -> argparse.Namespace:
    return get_args_parser().parse_args(words)


def manifest() -> tuple[dict[str, Any], dict[str, Any]]:
    claim, job = yaml.safe_load_all((CLUSTER / "pytorchjob.yaml").read_text("utf-8"))
    return claim, job


def pods() -> dict[str, dict[str, Any]]:
    replicas = manifest()[1]["spec"]["pytorchReplicaSpecs"]
    return {name: replica["template"]["spec"] for name, replica in replicas.items()}


@pytest.mark.parametrize(("gpus", "processes"), [({}, "1"), ({"SLURM_GPUS_ON_NODE": "4"}, "4")])
def test_batch_script_starts_torchrun_on_each_node(
    place: Path, gpus: dict[str, str], processes: str
) -> None:
    assert submit(place, **gpus) == 0
    cores, *words = (place / "started").read_text().split("\0")[:-1]
    given = torchrun(words)
    assert cores == "8"
    assert (given.nnodes, given.nproc_per_node) == ("2", processes)
    assert (given.rdzv_backend, given.rdzv_endpoint) == ("c10d", "node8:23456")
    assert (given.rdzv_id, given.local_addr) == ("123456", "node9")
    assert (given.module, given.training_script) == (True, "finetune")
    assert given.training_script_args == WORDS
    assert "--kill-on-bad-exit=1" in (place / "options").read_text().split()


def test_batch_script_fails_with_the_job(place: Path) -> None:
    assert submit(place, STATUS="3") == 3
    (place / "scontrol").write_text("#!/bin/bash\nexit 1\n")
    assert submit(place) != 0


def test_batch_script_asks_for_one_task_a_node() -> None:
    text = SCRIPT.read_text("utf-8")
    asked = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, re.MULTILINE)
    assert len(asked) == text.count("\n#SBATCH")
    wanted = {"ntasks-per-node": "1", "nodes": "2", "requeue": "", "signal": "B:USR1@120"}
    assert wanted.items() <= dict(asked).items()


def test_batch_script_passes_a_signal_on_and_queues_the_job_again(place: Path) -> None:
    """With stand-ins that note what they are told; the job ends when its training does."""
    (place / "scontrol").write_text(
        '#!/bin/bash\ntest "$1" = requeue && echo "$@" > requeued || printf "node8\\nnode9\\n"\n'
    )
    (place / "torchrun").write_text(
        "#!/bin/bash\nprintf '%s\\0' \"$@\" > started; sleep 60 &\n"
        "trap 'kill %1; exit 1' USR1; echo $$ > pid; wait\n"
    )
    (place / "scancel").write_text('#!/bin/bash\necho "$@" > cancelled; kill -USR1 "$(<pid)"\n')
    (place / "scancel").chmod(0o755)
    environment = {"PATH": f"{place}:{os.defpath}", **JOB}
    with subprocess.Popen(["bash", str(SCRIPT), *WORDS], cwd=place, env=environment) as job:
        while not (place / "pid").exists() or not (place / "pid").read_text():
            assert job.poll() is None
        job.send_signal(signal.SIGUSR1)
        assert job.wait(timeout=30) == 1
    assert (place / "cancelled").read_text() == "--signal=USR1 123456\n"
    assert (place / "requeued").read_text() == "requeue 123456\n"
    words = (place / "started").read_text().split("\0")[:-1]
    assert "SIGUSR1" in torchrun(words).signals_to_handle.split(",")


def typed(recipe: str, flags: list[str]) -> dict[str, Any]:
    """Return the options that the flags of a recipe are."""
    report = Report()
    options = RecipeParser(catalog.find(recipe)).read(flags, report)
    report.raise_errors()
    return options


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_in_words(command: str) -> None:
    name, *flags = shlex.split(command.partition("`")[0])
    if name in dispatch.VERBS:
        assert not flags
    else:
        assert typed(name, flags) or not flags


def test_there_are_commands_in_words() -> None:
    assert len(COMMANDS) >= 7


def test_manifest_starts_the_same_command() -> None:
    assert list(pods()) == ["Master", "Worker"]
    for pod in pods().values():
        (container,) = pod["containers"]
        program, *words = container["command"] + container["args"]
        given = torchrun(words)
        assert (program, container["name"]) == ("torchrun", "pytorch")
        assert (given.module, given.training_script) == (True, "finetune")
        name, *flags = given.training_script_args
        written = typed(name, flags)["output_dir"]
        kept = {each["name"]: each["value"] for each in container["env"]}["HF_HOME"]
        assert {Path(written).parts[1], Path(kept).parts[1]} == {"shared"}


def test_manifest_takes_what_the_operator_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    job = manifest()[1]["spec"]
    replicas = [each["replicas"] for each in job["pytorchReplicaSpecs"].values()]
    monkeypatch.setenv("PET_NNODES", str(sum(replicas)))
    monkeypatch.setenv("PET_NPROC_PER_NODE", job["nprocPerNode"])
    monkeypatch.setenv("PET_MASTER_ADDR", "sentiment-master-0")
    for pod in pods().values():
        (container,) = pod["containers"]
        given = torchrun(container["command"][1:] + container["args"])
        assert (given.nnodes, given.master_addr) == ("2", "sentiment-master-0")
        gpus = container["resources"]["limits"]["nvidia.com/gpu"]
        assert given.nproc_per_node == job["nprocPerNode"] == str(gpus)


def test_manifest_mounts_what_it_claims() -> None:
    claim = manifest()[0]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods().values():
        volumes = {each.pop("name"): each for each in map(dict, pod["volumes"])}
        mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        assert mounts.keys() == volumes.keys()
        assert mounts["shared"] == "/shared"
        claimed = volumes["shared"]["persistentVolumeClaim"]["claimName"]
        assert claimed == claim["metadata"]["name"]
