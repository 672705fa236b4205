"""`doctor`: which interface the backends take, what it proposes, and the meeting of ranks."""

import itertools
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from finetune import cli
from finetune.cli import meeting
from finetune.doctor import collectives, interfaces, machine, network
from finetune.doctor.interfaces import Interface
from finetune.errors import UserError
from finetune.runtime import bounded
from tests.conftest import ROOT, Command

LO = Interface("lo", ("127.0.0.1", "::1"))
ETH0 = Interface("eth0", ("10.0.0.5", "fe80::5%eth0"), megabits=10_000)
ETH1 = Interface("eth1", ("192.168.7.5",))
ETH10 = Interface("eth10", ("192.168.8.5",))
IB0 = Interface("ib0", ("10.9.0.5",))
DOCKER = Interface("docker0", ("172.17.0.1",))
VETH = Interface("veth1a2b", ("fe80::9%veth1a2b",))
BRIDGE = Interface("br-0f1e", ("172.18.0.1",))
LINK_LOCAL = Interface("usb0", ("169.254.3.1",))
DOWN = Interface("eth2", ("10.1.0.5",), up=False)
EVERY = [LO, DOCKER, VETH, BRIDGE, LINK_LOCAL, DOWN, IB0, ETH0, ETH1, ETH10]
DEBIAN = ["127.0.1.1"]  # what its /etc/hosts makes of the host name


# ---- what the backends take --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host_addresses", "variable", "taken"),
    [
        (["10.0.0.5"], "", ["eth0"]),
        (["192.168.7.5", "10.0.0.5"], "", ["eth1"]),
        (["203.0.113.9", "10.0.0.5"], "", ["eth0"]),  # the first that can be bound to
        (["fe80::5%eth0"], "", ["eth0"]),
        (DEBIAN, "", ["lo"]),
        (["127.0.1.1", "10.0.0.5"], "", ["lo"]),
        (["203.0.113.9"], "", ["lo"]),
        ([], "", ["lo"]),
        (DEBIAN, "eth1", ["eth1"]),
        (DEBIAN, "eth0,eth1", ["eth0", "eth1"]),
        (DEBIAN, "eth", ["eth"]),  # a whole name, no prefix
    ],
)
def test_gloo(host_addresses: list[str], variable: str, taken: list[str]) -> None:
    assert interfaces.gloo_takes(EVERY, host_addresses, variable) == taken


@pytest.mark.parametrize(
    ("table", "variable", "taken"),
    [
        (EVERY, "", ["ib0"]),
        ([LO, DOCKER, VETH, ETH0, ETH1], "", ["veth1a2b", "eth0", "eth1"]),
        ([LO, DOCKER, DOWN, ETH0], "", ["eth0"]),
        ([LO, DOCKER], "", ["docker0"]),
        ([LO], "", ["lo"]),
        ([], "", []),
        (EVERY, "eth", ["eth0", "eth1", "eth10"]),
        (EVERY, "eth1", ["eth1", "eth10"]),
        (EVERY, "=eth1", ["eth1"]),
        (EVERY, "=eth1,eth0", ["eth0", "eth1"]),
        (EVERY, "eth0,ib", ["ib0", "eth0"]),
        (EVERY, "^lo,docker,veth,br-,usb,ib", ["eth0", "eth1", "eth10"]),
        (EVERY, "^=eth1,lo", ["docker0", "veth1a2b", "br-0f1e", "usb0", "ib0", "eth0", "eth10"]),
        (EVERY, "eth0:9000", ["eth0"]),
        (EVERY, "eth2", []),  # it is down
        (EVERY, "wlan", []),
    ],
)
def test_nccl(table: list[Interface], variable: str, taken: list[str]) -> None:
    assert interfaces.nccl_takes(table, variable) == taken


# ---- what is proposed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "routes", "name"),
    [
        (EVERY, ["192.168.7.5", "10.0.0.5"], "eth1"),
        (EVERY, ["127.0.0.1", "10.0.0.5"], "eth0"),  # rank 0 is on this machine
        (EVERY, ["172.17.0.1"], "ib0"),
        ([LO, DOCKER, DOWN, LINK_LOCAL, ETH1], ["10.1.0.5"], "eth1"),
        ([LO, DOCKER, VETH, BRIDGE, LINK_LOCAL, DOWN], ["172.18.0.1"], None),
        ([], [], None),
    ],
)
def test_the_interface_that_leads_out(
    table: list[Interface], routes: list[str], name: str | None
) -> None:
    best = interfaces.candidate(table, routes)

    assert (best.name if best else None) == name


def advice(
    variable: str,
    table: list[Interface],
    value: str = "",
    host: tuple[str, ...] = ("127.0.1.1",),
    route: str = "10.0.0.5",
) -> interfaces.Advice | None:
    if variable.startswith("GLOO"):
        taken = interfaces.gloo_takes(table, host, value)
    else:
        taken = interfaces.nccl_takes(table, value)
    best = interfaces.candidate(table, [route])
    return interfaces.advise(variable, value, taken, table, best)


GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


@pytest.mark.parametrize(
    ("found", "line", "reason"),
    [
        (advice(GLOO, [LO, ETH0]), f"{GLOO}=eth0", "gloo listens on lo"),
        (advice(GLOO, [LO, ETH0], value="lo"), f"{GLOO}=eth0", "gloo listens on lo"),
        (advice(GLOO, [LO, ETH0, ETH1], host=("192.168.7.5",)), f"{GLOO}=eth0", "takes eth1, but"),
        (advice(GLOO, [LO, DOCKER, ETH0], host=("172.17.0.1",)), f"{GLOO}=eth0", "on docker0"),
        (advice(NCCL, [LO, BRIDGE, ETH0]), f"{NCCL}=eth0", "uses br-0f1e"),
        (advice(NCCL, [LO, ETH0, VETH]), f"{NCCL}=eth0", "uses veth1a2b"),
        (advice(NCCL, [LO, ETH1, ETH0]), f"{NCCL}=eth0", "NCCL takes eth1, but"),
        (advice(NCCL, [LO, ETH0], value="docker"), f"{NCCL}=eth0", "docker names no interface"),
        (
            advice(NCCL, [LO, ETH0, ETH10, ETH1], route="192.168.7.5"),
            f"{NCCL}='=eth1'",  # eth1 alone would be a prefix of eth10
            "NCCL takes eth0, but",
        ),
    ],
)
def test_what_to_export(found: interfaces.Advice | None, line: str, reason: str) -> None:
    assert found is not None
    assert found.lines == (f"export {line}",)
    assert reason in found.reason


@pytest.mark.parametrize(
    "found",
    [
        advice(GLOO, [LO, ETH0], host=("10.0.0.5",)),
        advice(GLOO, [LO, ETH0, ETH1], value="eth1"),  # the user's choice stands
        advice(GLOO, [LO, VETH]),  # nothing can be proposed
        advice(NCCL, [LO, ETH0, ETH1]),
        advice(NCCL, [LO, IB0, ETH0]),  # InfiniBand is meant to come first
        advice(NCCL, [LO, BRIDGE, ETH0], value="eth"),
    ],
)
def test_nothing_to_export(found: interfaces.Advice | None) -> None:
    assert found is None


def test_a_name_that_is_not_there_is_wrong_on_one_machine_too() -> None:
    found = advice(GLOO, [LO, ETH0], value="ens3")
    alone = advice(GLOO, [LO], value="ens3")

    assert found is not None
    assert alone is not None
    assert found.everywhere
    assert "ens3 names no interface" in found.reason
    assert "(there are: lo, eth0)" in found.reason
    assert alone.lines == (f"unset {GLOO}",)


def test_interfaces_of_the_machine_itself_are_never_proposed() -> None:
    """Over every subset of the table, in either order, with and without the variables."""
    lines = set()
    for size in range(len(EVERY) + 1):
        for chosen in itertools.combinations(EVERY, size):
            for table in (list(chosen), list(reversed(chosen))):
                for variable, value in itertools.product((GLOO, NCCL), ("", "lo", "veth", "ens3")):
                    for route in ("127.0.0.1", "172.17.0.1", "10.0.0.5"):
                        if found := advice(variable, table, value, route=route):
                            lines |= set(found.lines)

    names = {re.sub(r".*=|'", "", line) for line in lines if line.startswith("export")}
    assert names == {"ib0", "eth0", "eth1", "eth10"}


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
    found = interfaces.advise_master(address, resolved, ETH0, leads)

    assert (found.lines if found else None) == lines


# ---- facts of this machine ---------------------------------------------------------------------


def test_this_machine_has_a_loopback_interface() -> None:
    table = network.interfaces_here()

    assert "127.0.0.1" in network.resolve("localhost")
    assert interfaces.carrier(table, "127.0.0.1") is not None


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    never = threading.Event()
    started = time.perf_counter()

    assert bounded.within(0.05, never.wait) is None
    assert time.perf_counter() - started < 1
    assert bounded.within(5, lambda: "here") == "here"
    never.set()


def test_peer_access() -> None:
    missing = {(0, 4), (4, 0)}

    assert machine.peers(2, lambda one, other: True) == "0-1 yes"
    assert machine.peers(3, lambda one, other: one + other != 3) == "0-1 yes, 0-2 yes, 1-2 no"
    assert machine.peers(2, lambda one, other: one < other) == "0-1 no"  # one way only
    assert machine.peers(8, lambda one, other: True) == "yes, between all 8"
    assert machine.peers(8, lambda one, other: False) == "no, between all 8"
    assert machine.peers(8, lambda *pair: pair not in missing) == "yes, but not 0-4"
    assert "host memory" in machine.peer_advice("1")
    assert "need not be" in machine.peer_advice(None)


def test_sizes_count_files_and_follow_no_link(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    with (tmp_path / "blobs" / "weights").open("wb") as file:
        file.truncate(3 * 2**29)
    (tmp_path / "snapshot").symlink_to(tmp_path / "blobs" / "weights")

    assert machine.size(tmp_path) == "1.5 GiB"
    assert machine.size(tmp_path / "none") == "not there yet"
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
        (["everything"], "doctor: unrecognized arguments: everything"),
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
        *("caches", "to set"),
    ]
    assert "torch" in imported
    assert imported & {"transformers", "datasets", "accelerate", "huggingface_hub"} == set()
    assert "hf_secret" not in done.stdout
    assert "not asked: HF_HUB_OFFLINE is set" in words
    assert f"{GLOO}=nosuch0 names no interface" in words
    assert "on every other machine of the job" in words
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("    export")] or [
        line for line in done.stdout.splitlines() if line.startswith("    unset")
    ]
    assert re.fullmatch(rf"    (export {GLOO}=(?!lo|docker|veth)\S+|unset {GLOO})", line)


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
    started = time.perf_counter()
    done = command("doctor", "--timeout", "1", env=os.environ | job | meeting_point, timeout=30)

    assert done.returncode == 2
    assert "error: not all ranks came to MASTER_ADDR:MASTER_PORT" in done.stderr
    assert "127.0.0.1:0 does not accept connections" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.perf_counter() - started < 20


def test_help_is_quick_and_says_how_it_is_launched(capsys: pytest.CaptureFixture[str]) -> None:
    from finetune.cli import doctor

    with pytest.raises(SystemExit) as ended:
        doctor.main(["--help"])
    with pytest.raises(UserError, match="unrecognized"):
        doctor.main(["--hlep"])

    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "torchrun --nproc_per_node=2 -m finetune doctor" in text
    assert "--timeout SECONDS" in text
