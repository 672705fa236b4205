"""Serve the generated repositories by hand: `python -m tests.hub [--port N]`."""

import argparse
import contextlib
import tempfile
import threading
from pathlib import Path

from . import build_repositories, serve


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hub", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port to listen on (any free one)")
    port = parser.parse_args().port
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory() as directory:
        build_repositories(Path(directory))
        with serve(Path(directory), port) as hub:
            print("In another shell (until Ctrl-C here):")
            print(f"  export HF_ENDPOINT={hub.url}")
            print("  export HF_HOME=$(mktemp -d) HF_HUB_DISABLE_XET=1 HF_UPDATE_DOWNLOAD_COUNTS=0")
            print(f"Repositories: {', '.join(hub.repositories)}", flush=True)
            threading.Event().wait()


if __name__ == "__main__":
    main()
