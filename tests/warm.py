"""Fork commands from a server process that has already imported everything.

The imports of one start take six seconds, longer than most commands of the tests. Here they run
once for all commands with the same environment; two thirds of them, libraries that read no variable
of the Hub, run once for all environments. Each command is a separate process with its own
arguments, environment, directory and files, and so is each rank under torchrun. Tests that use
`LAUNCHERS` cover the start itself: the imports and their order.

    python tests/warm.py serve SOCKET MODULES    # import, then fork a process for each request
    python tests/warm.py SOCKET MODULE WORDS    # `python -m MODULE WORDS`: send a request and wait
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

#: Prefixes of the variables that the libraries read when they are imported.
READ = ("CUDA", "DATASETS", "HF_", "HOME", "HUGGING", "MKL", "MPL", "OMP", "OPENBLAS", "TOKENIZERS")
READ += ("TRANSFORMERS", "XDG_")
#: Those of the prefixes that only libraries around the Hub read.
OF_THE_HUB = ("DATASETS", "HF_", "HUGGING", "TOKENIZERS", "TRANSFORMERS")
#: Variables that the command line sets before it imports torch.
LOGS = {"TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "99"}
#: Modules that read no variable of the Hub.
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


# ---- server --------------------------------------------------------------------------------------


def serve(address: str, modules: str) -> None:
    """Import, then fork for each request until standard input closes; returns in the fork."""
    import gc
    import importlib

    for name in modules.split(","):
        importlib.import_module(name)
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    print("ready", flush=True)
    while listener in select.select([listener, 0], [], [])[0]:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return answer(client)
        client.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(0)


def answer(client: socket.socket) -> None:
    """Fork again and send the exit status of that fork, in which this function returns."""
    (size,) = struct.unpack("I", client.recv(4, socket.MSG_WAITALL))
    _, files, *_ = socket.recv_fds(client, 1, 3)
    request = json.loads(client.recv(size, socket.MSG_WAITALL))
    command = os.fork()
    if command:
        for file in (0, 1, 2, *files):  # a pipe ends when the command ends
            os.close(file)
        client.sendall(struct.pack("i", command))
        end = os.pidfd_open(command)
        if client in select.select([client, end], [], [])[0]:  # the client was killed
            os.kill(command, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        with contextlib.suppress(OSError):
            client.sendall(struct.pack("i", status))
        os._exit(0)
    client.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["-m", *request["words"]]
    sys.orig_argv = [sys.executable, "-m", request["module"], *request["words"]]
    sys.path[0] = os.getcwd()
    # ranks of one torchrun have the same parent id; processes that they start have their own
    process_id, getppid = os.getpid(), os.getppid
    os.getppid = lambda: int(request["parent"]) if os.getpid() == process_id else getppid()


# ---- client --------------------------------------------------------------------------------------


def ask(address: str, module: str, words: Sequence[str]) -> int:
    """Run a module in a fork of the server with this process's files; return its exit status."""
    request = {"module": module, "words": words, "cwd": os.getcwd(), "env": dict(os.environ)}
    request["parent"] = os.getppid()
    content = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        server.sendall(struct.pack("I", len(content)))
        socket.send_fds(server, [b"."], [0, 1, 2])
        server.sendall(content)
        (command,) = struct.unpack("i", server.recv(4, socket.MSG_WAITALL))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda received, _: os.kill(command, received))
        (status,) = struct.unpack("i", server.recv(4, socket.MSG_WAITALL))
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return int(status)


# ---- for tests -----------------------------------------------------------------------------------


class Servers:
    """A server for each set of variables that the libraries read when they are imported."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._addresses: dict[tuple[tuple[str, ...], frozenset[tuple[str, str]]], Path] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def words(self, module: str, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Return the command that runs a module in a fork of a server."""
        address = self._address(environment)
        return [sys.executable, "-S", "-E", __file__, str(address), module, *words]

    def torchrun(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *flags: str,
        module: str = "finetune",
    ) -> list[str]:
        """Return the command that runs a module under torchrun; torchrun and ranks are forks."""
        rank = self.words(module, words, environment)
        flags = (*(flags or ("--standalone", "--nproc_per_node=2")), "--no-python")
        return self.words("torch.distributed.run", [*flags, *rank], environment)

    def accelerate(self, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Return the command that runs `finetune` under `accelerate launch`; both are forks."""
        rank = self.words("finetune", words, environment)
        return self.words("accelerate.commands.launch", ["--no_python", *rank], environment)

    def _address(self, environment: Mapping[str, str]) -> Path:
        variables = {
            name: value
            for name, value in environment.items()
            if name.startswith(READ) and name != "HF_TOKEN"  # read for each request to the Hub
        }
        without_hub = {
            name: value for name, value in variables.items() if not name.startswith(OF_THE_HUB)
        }
        with self._lock:
            first = self._server([sys.executable, __file__], WITHOUT_HUB, without_hub, environment)
            fork = [sys.executable, "-S", "-E", __file__, str(first), "tests.warm"]
            return self._server(fork, IMPORTS, variables, environment)

    def _server(
        self,
        start: Sequence[str],
        modules: Sequence[str],
        variables: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> Path:
        """Return the socket of the server for these modules and variables; start it if needed."""
        key = (tuple(modules), frozenset(variables.items()))
        if key not in self._addresses:
            address = self._directory / str(len(self._addresses))
            server = subprocess.Popen(
                [*start, "serve", str(address), ",".join(modules)],
                env={**LOGS, **environment, "PYTHONPATH": str(Path(__file__).parent.parent)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._processes.append(server)
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            self._addresses[key] = address
        return self._addresses[key]

    def close(self) -> None:
        for server in reversed(self._processes):  # the first one forked the others
            server.communicate()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3])
        import runpy

        for launcher in ("torch.distributed.run", "accelerate.commands.launch"):
            sys.modules.pop(launcher, None)  # otherwise runpy warns
        runpy.run_module(sys.orig_argv[2], run_name="__main__", alter_sys=True)
    else:
        raise SystemExit(ask(sys.argv[1], sys.argv[2], sys.argv[3:]))
