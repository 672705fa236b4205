"""Commands and workers that are forked from a process which has imported everything.

The imports of one start take six seconds, which is more than most commands of the tests: here they
are done once for all commands with one environment, and of these seconds two thirds, for libraries
that read no variable of the Hub, once for all environments. Each command is still a process of its
own, with its own arguments, environment, directory and files; under torchrun a rank is, too. What a
start itself does, its imports and their order, is tested where `LAUNCHERS` is used.

    python tests/warm.py serve SOCKET MODULES    # imports, then forks whoever asks
    python tests/warm.py SOCKET MODULE WORDS    # as `python -m MODULE WORDS`: asks, and waits
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

#: How the variables begin that the libraries read as they are imported.
READ = ("CUDA", "DATASETS", "HF_", "HOME", "HUGGING", "MKL", "MPL", "OMP", "OPENBLAS", "TOKENIZERS")
READ += ("TRANSFORMERS", "XDG_")
#: Of these, the ones that libraries read which have to do with the Hub.
OF_THE_HUB = ("DATASETS", "HF_", "HUGGING", "TOKENIZERS", "TRANSFORMERS")
#: What the command line sets before it imports torch.
LOGS = {"TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "99"}
#: These read none of the latter.
WITHOUT_HUB = (
    "matplotlib.pyplot",
    "sklearn.linear_model",
    "sklearn.feature_extraction.text",
    "sklearn.metrics",
    "torch._dynamo",
    "torch.distributed.run",
    "torch.nn.parallel",
)
IMPORTS = (
    *WITHOUT_HUB,
    "accelerate.commands.launch",
    "accelerate.utils",
    "evaluate",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
    "transformers.models.vit.modeling_vit",
    "transformers.integrations",
    "tests.preload",
)


# ---- the one that is asked -----------------------------------------------------------------------


def serve(place: str, modules: str) -> None:
    """Import, and fork whoever asks until standard input is closed; returns in the fork."""
    import gc
    import importlib

    for name in modules.split(","):
        importlib.import_module(name)
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen()
    print("ready", flush=True)
    while listener in select.select([listener, 0], [], [])[0]:
        asking, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return answer(asking)
        asking.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(0)


def answer(asking: socket.socket) -> None:
    """Fork once more, and tell the end of it; returns in that fork."""
    (size,) = struct.unpack("I", asking.recv(4, socket.MSG_WAITALL))
    _, files, *_ = socket.recv_fds(asking, 1, 3)
    asked = json.loads(asking.recv(size, socket.MSG_WAITALL))
    command = os.fork()
    if command:
        for file in (0, 1, 2, *files):  # a pipe ends when the command ends
            os.close(file)
        asking.sendall(struct.pack("i", command))
        ended = os.pidfd_open(command)
        if asking in select.select([asking, ended], [], [])[0]:  # who asked was killed
            os.kill(command, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        with contextlib.suppress(OSError):
            asking.sendall(struct.pack("i", status))
        os._exit(0)
    asking.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = ["-m", *asked["words"]]
    sys.orig_argv = [sys.executable, "-m", asked["module"], *asked["words"]]
    sys.path[0] = os.getcwd()
    # by which the ranks of one torchrun know each other; what they start has a parent of its own
    this, real = os.getpid(), os.getppid
    os.getppid = lambda: int(asked["parent"]) if os.getpid() == this else real()


# ---- the one that asks ---------------------------------------------------------------------------


def ask(place: str, module: str, words: Sequence[str]) -> int:
    """Have a module run in a fork with this process's files; return its exit status."""
    asked = {"module": module, "words": words, "cwd": os.getcwd(), "env": dict(os.environ)}
    asked["parent"] = os.getppid()
    content = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        server.sendall(struct.pack("I", len(content)))
        socket.send_fds(server, [b"."], [0, 1, 2])
        server.sendall(content)
        (command,) = struct.unpack("i", server.recv(4, socket.MSG_WAITALL))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda got, _: os.kill(command, got))
        (status,) = struct.unpack("i", server.recv(4, socket.MSG_WAITALL))
    if status < 0:
        with contextlib.suppress(OSError):  # of one that cannot be handled, as SIGKILL
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return int(status)


# ---- for tests -----------------------------------------------------------------------------------


class Servers:
    """One for each environment, which decides what the libraries read as they are imported."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: dict[tuple[tuple[str, ...], frozenset[tuple[str, str]]], Path] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._one_at_a_time = threading.Lock()

    def words(self, module: str, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """The command that runs this module warm."""
        place = self._place(environment)
        return [sys.executable, "-S", "-E", __file__, str(place), module, *words]

    def torchrun(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *flags: str,
        module: str = "finetune",
    ) -> list[str]:
        """The command that runs a module under torchrun, which is warm, as its ranks are."""
        rank = self.words(module, words, environment)
        flags = (*(flags or ("--standalone", "--nproc_per_node=2")), "--no-python")
        return self.words("torch.distributed.run", [*flags, *rank], environment)

    def accelerate(self, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """The command that runs `finetune` under `accelerate launch`; both are warm."""
        rank = self.words("finetune", words, environment)
        return self.words("accelerate.commands.launch", ["--no_python", *rank], environment)

    def _place(self, environment: Mapping[str, str]) -> Path:
        read = {
            name: value
            for name, value in environment.items()
            if name.startswith(READ) and name != "HF_TOKEN"  # which is read when it is sent
        }
        of_any_hub = {
            name: value for name, value in read.items() if not name.startswith(OF_THE_HUB)
        }
        with self._one_at_a_time:
            first = self._server([sys.executable, __file__], WITHOUT_HUB, of_any_hub, environment)
            forked = [sys.executable, "-S", "-E", __file__, str(first), "tests.warm"]
            return self._server(forked, IMPORTS, read, environment)

    def _server(
        self,
        start: Sequence[str],
        modules: Sequence[str],
        read: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> Path:
        """The socket of the server of these modules and variables, started if there is none."""
        key = (tuple(modules), frozenset(read.items()))
        if key not in self._places:
            place = self._directory / str(len(self._places))
            server = subprocess.Popen(
                [*start, "serve", str(place), ",".join(modules)],
                env={**LOGS, **environment, "PYTHONPATH": str(Path(__file__).parent.parent)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._started.append(server)
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            self._places[key] = place
        return self._places[key]

    def close(self) -> None:
        for server in reversed(self._started):  # the first forked the others
            server.communicate()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3])
        import runpy

        for launcher in ("torch.distributed.run", "accelerate.commands.launch"):
            sys.modules.pop(launcher, None)  # of which runpy would warn
        runpy.run_module(sys.orig_argv[2], run_name="__main__", alter_sys=True)
    else:
        raise SystemExit(ask(sys.argv[1], sys.argv[2], sys.argv[3:]))
