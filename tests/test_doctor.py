"""`doctor`: which interface the backends take, what it proposes, and the meeting of ranks."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from finetune import cli
from finetune.cli import meeting
from finetune.doctor import collectives, machine, network
from finetune.errors import UserError
from finetune.runtime import bounded
from tests.conftest import ROOT, Command

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
INTERFACES = {
    "lo": ("127.0.0.1", "::1"),
    "docker0": ("172.17.0.1",),
    "eth0": ("10.0.0.5", "fe80::5%eth0"),
    "eth1": ("192.168.7.5",),
    "eth10": ("192.168.8.5",),
}
DEBIAN = ["127.0.1.1"]  # what its /etc/hosts makes of the host name


# ---- the route -----------------------------------------------------------------------------------


class Socket:
    """A datagram socket of a machine with two cables, and a default route over the first."""

    def __init__(self, family: int, kind: int) -> None:
        self.own = ""

    def __enter__(self) -> "Socket":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self, address: tuple[str, int]) -> None:
        if ":" in address[0]:
            raise OSError("no route")
        own = ("127.0.0.1", "192.168.7.5")
        self.own = next((each for each in own if each[:4] == address[0][:4]), "10.0.0.5")

    def getsockname(self) -> tuple[str, int]:
        return self.own, 40_000


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, "10.0.0.5"),
        ({"MASTER_ADDR": "192.168.7.9"}, "192.168.7.5"),
        ({"MASTER_ADDR": "2001:db8::9"}, "10.0.0.5"),  # no route
        ({"MASTER_ADDR": "127.0.0.1"}, "10.0.0.5"),  # leads nowhere else
    ],
)
def test_the_own_address_is_that_of_the_route(
    environment: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network.socket, "socket", Socket)

    assert network.own_address(environment) == address


def test_without_a_route_nothing_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(network.socket, "socket", Socket)
    monkeypatch.setattr(Socket, "connect", connect)
    for variable in (GLOO, NCCL):
        monkeypatch.delenv(variable, raising=False)
    here = network.Network.here()

    assert (here.address, here.interface, here.advice) == (None, None, [])


@pytest.mark.parametrize(
    ("resolved", "nccl", "reasons"),
    [
        (["10.0.0.5"], False, []),
        (DEBIAN, False, ["which is 127.0.1.1; other machines are reached over eth0"]),
        ([], False, ["which is unknown; other machines are reached over eth0"]),
        (["10.0.0.5"], True, ["NCCL may choose docker0, eth1, eth10; other"]),
    ],
)
def test_what_is_said_of_a_machine_with_several_interfaces(
    resolved: list[str], nccl: bool, reasons: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "own_address", lambda: "10.0.0.5")
    monkeypatch.setattr(network, "interfaces_here", lambda: INTERFACES)
    monkeypatch.setattr(network, "resolve", lambda name: resolved)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: nccl)
    for variable in (GLOO, NCCL, "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    here = network.Network.here()

    assert here.interface == "eth0"
    assert len(here.advice) == len(reasons)
    for each, reason in zip(here.advice, reasons, strict=True):
        assert reason in each.reason
    assert here.urgent == []  # the job stays on this machine


# ---- what is proposed ----------------------------------------------------------------------------


def advice(
    variable: str, value: str = "", best: str | None = "eth0", unset: str = ""
) -> network.Advice | None:
    return network.advise(variable, value, INTERFACES, best, unset)


@pytest.mark.parametrize(
    ("found", "line", "reason"),
    [
        (advice(GLOO, unset="gloo listens"), f"{GLOO}=eth0", "gloo listens; other machines are"),
        (advice(NCCL, unset="NCCL may"), f"{NCCL}=eth0", "reached over eth0"),
        (advice(GLOO, "lo"), f"{GLOO}=eth0", "other machines cannot reach"),
        (advice(NCCL, "lo"), f"{NCCL}=eth0", "other machines cannot reach"),
        (advice(GLOO, "eth"), f"{GLOO}=eth0", "eth names no interface"),  # a whole name, no prefix
        (advice(GLOO, "eth0,ens3"), f"{GLOO}=eth0", "ens3 names no interface"),
        (advice(NCCL, "wlan,ens"), f"{NCCL}=eth0", "ens names no interface"),
        (advice(NCCL, "=eth"), f"{NCCL}=eth0", "eth names no interface"),
        # eth1 alone would be a prefix of eth10
        (advice(NCCL, best="eth1", unset="it may"), f"{NCCL}='=eth1'", "it may"),
        (advice(GLOO, best="eth1", unset="it may"), f"{GLOO}=eth1", "it may"),
    ],
)
def test_what_to_export(found: network.Advice | None, line: str, reason: str) -> None:
    assert found is not None
    assert found.lines == (f"export {line}",)
    assert reason in found.reason


@pytest.mark.parametrize(
    "found",
    [
        advice(GLOO),
        advice(GLOO, "eth1", unset="it may"),  # the user's choice stands
        advice(GLOO, "eth0,eth1"),
        advice(GLOO, best=None, unset="it may"),
        advice(GLOO, "lo", best=None),
        advice(NCCL, "eth"),
        advice(NCCL, "ens,eth"),  # one of them is enough
        advice(NCCL, "=eth1:9000"),
        advice(NCCL, "^docker,lo"),
    ],
)
def test_nothing_to_export(found: network.Advice | None) -> None:
    assert found is None


def test_a_name_that_is_not_there_is_wrong_on_one_machine_too() -> None:
    found, alone = advice(GLOO, "ens3"), advice(GLOO, "ens3", best=None)

    assert found is not None
    assert alone is not None
    assert found.everywhere
    assert "ens3 names no interface" in found.reason
    assert "(available: lo, docker0, eth0, eth1, eth10)" in found.reason
    assert alone.lines == (f"unset {GLOO}",)


@pytest.mark.parametrize(
    ("address", "resolved", "leads", "lines"),
    [
        ("localhost", ["127.0.0.1"], True, ("export MASTER_ADDR=10.0.0.5",)),
        ("127.0.0.1", ["127.0.0.1"], False, ()),
        ("node0", DEBIAN, False, ()),
        ("node0", DEBIAN, True, None),  # rank 0 may know itself so
        ("node0", ["10.0.0.7"], False, None),
        ("node0", [], False, None),
    ],
)
def test_the_address_of_rank_0(
    address: str, resolved: list[str], leads: bool, lines: tuple[str, ...] | None
) -> None:
    found = network.advise_master(address, resolved, "10.0.0.5", leads)

    assert (found.lines if found else None) == lines


# ---- facts of this machine ---------------------------------------------------------------------


def test_this_machine_has_a_loopback_interface() -> None:
    assert "127.0.0.1" in network.resolve("localhost")
    assert [name for name, each in network.interfaces_here().items() if "127.0.0.1" in each] == [
        "lo"
    ]


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    never = threading.Event()

    assert bounded.within(0.05, lambda: never.wait(60)) is None  # False, were it waited for
    assert bounded.within(5, lambda: "here") == "here"
    never.set()


def test_peer_access() -> None:
    missing = {(0, 4), (4, 0)}

    assert machine.peers(2, lambda one, other: True) == "0-1 yes"
    assert machine.peers(3, lambda one, other: one + other != 3) == "0-1 yes, 0-2 yes, 1-2 no"
    assert machine.peers(2, lambda one, other: one < other) == "0-1 no"  # one way only
    assert machine.peers(8, lambda one, other: True) == "yes, between all 8"
    assert machine.peers(8, lambda one, other: False) == "no, between all 8"
    assert machine.peers(8, lambda *pair: pair not in missing) == "yes, except 0-4"
    assert "host memory" in machine.peer_advice("1")
    assert "need not be" in machine.peer_advice(None)


def test_sizes_count_files_and_follow_no_link(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    with (tmp_path / "blobs" / "weights").open("wb") as file:
        file.truncate(3 * 2**29)
    (tmp_path / "snapshot").symlink_to(tmp_path / "blobs" / "weights")

    assert machine.size(tmp_path) == "1.5 GiB"
    assert machine.size(tmp_path / "none") == "does not exist yet"
    assert machine.free(tmp_path / "none" / "none").endswith(" GiB")


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"HF_TOKEN": "hf_x", "NCCL_DEBUG": "INFO", "WANDB_API_KEY": "x"}
    endpoint = {"HF_ENDPOINT": "https://me:secret@hub.example/x", "HF_HUB_OFFLINE": "1"}

    assert machine.variables(environment) == ["NCCL_DEBUG=INFO"]
    assert not [name for name in machine.VARIABLES if re.search("TOKEN|KEY|SECRET|PASS", name)]
    assert machine.reach(endpoint)["endpoint"] == "https://hub.example/x"


def test_bandwidths_are_those_of_nccl_tests() -> None:
    speed = collectives.Speed(octets=4 * 10**9, seconds=2.0, world_size=4)

    assert speed.algorithm == 2.0
    assert speed.bus == 3.0


def test_versions_that_differ_are_named() -> None:
    same = {"python": "3.12.1", "torch": "2.13.0"}

    assert meeting.differences([same, same]) == "the same on all ranks"
    assert meeting.differences([same, same, same | {"torch": "2.12.0"}, same]) == [
        "warning: torch differs: 2.13.0 on ranks 0-1, 3, 2.12.0 on rank 2"
    ]


# ---- the command -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["everything"], "doctor: unexpected words: everything"),
        (["--timeout", "soon"], "doctor: argument --timeout: invalid int value: 'soon'"),
        (["--timeout", "0"], "--timeout 0: expected 1 second or more"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))

    assert cli.main(["doctor", *words]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_on_one_machine(tmp_path: Path) -> None:
    """From elsewhere, to a pipe, in a narrow terminal, and without the libraries of training."""
    environment = os.environ | {"COLUMNS": "40", "HF_TOKEN": "hf_secret", GLOO: "nosuch0"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "finetune", "doctor"],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    imported = set(re.findall(r"\| +(\w+)$", done.stderr, flags=re.MULTILINE))
    titles = re.findall(r"^\w.*", done.stdout, flags=re.MULTILINE)
    words = " ".join(done.stdout.split())

    assert done.returncode == 0, done.stderr[-2000:]
    assert titles == [
        *("this machine", "devices", "backends", "network", "threads", "versions", "Hub"),
        *("caches", "recommended"),
    ]
    assert "torch" in imported
    assert imported & {"transformers", "datasets", "accelerate", "huggingface_hub"} == set()
    assert "hf_secret" not in done.stdout
    assert "not checked: HF_HUB_OFFLINE is set" in words
    assert f"{GLOO}=nosuch0 names no interface" in words
    assert "on every other machine of the job" in words
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("    export")] or [
        line for line in done.stdout.splitlines() if line.startswith("    unset")
    ]
    assert re.fullmatch(rf"    (export {GLOO}=(?!lo)\S+|unset {GLOO})", line)


@pytest.mark.processes
def test_two_ranks_meet(command: Command) -> None:
    done = command("doctor", launcher="torchrun")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("this machine\n") == 1
    assert done.stdout.count("2 ranks met\n") == 1
    assert "ranks 0-1 on" in done.stdout
    assert "the same on all ranks" in done.stdout
    assert "broadcast: 2 of 2 ranks" in done.stdout
    rows = re.findall(r"^ +(\d+) MB +([\d.]+) +([\d.]+) +([\d.]+)$", done.stdout, re.MULTILINE)
    assert [int(megabytes) for megabytes, *_ in rows][:2] == [1, 25]
    for megabytes, milliseconds, algorithm, bus in rows:
        assert float(algorithm) == pytest.approx(
            int(megabytes) / float(milliseconds), rel=0.1, abs=0.01
        )
        assert bus == algorithm  # 2 (n - 1) / n is 1 for two


@pytest.mark.processes
def test_ranks_that_do_not_come_are_an_error(command: Command) -> None:
    """Rank 0 of 2, and nobody else."""
    job = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    meeting_point = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = command("doctor", "--timeout", "1", env=os.environ | job | meeting_point, timeout=30)

    assert done.returncode == 2
    assert "error: not all ranks came to MASTER_ADDR:MASTER_PORT" in done.stderr
    assert "127.0.0.1:0 does not accept connections" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_is_quick_and_says_how_it_is_launched(capsys: pytest.CaptureFixture[str]) -> None:
    from finetune.cli import doctor

    with pytest.raises(SystemExit) as ended:
        doctor.main(["--help"])
    with pytest.raises(UserError, match="unknown option --hlep; did you mean '--help'"):
        doctor.main(["--hlep"])

    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "torchrun --nproc_per_node=2 -m finetune doctor" in text
    assert "--timeout SECONDS" in text
