"""A stand-in for the Hugging Face Hub, for tests and demonstrations on a machine without it.

`build_repositories` writes small repositories in the shapes of the real ones (three data sets and
two models, generated from fixed seeds, nothing downloaded) and `serve` answers for them on the
loopback interface in the Hub's own HTTP protocol.  `datasets` and `transformers` run unchanged
against it, downloads and caches included:

    build_repositories(root)
    with serve(root) as hub:
        subprocess.run(command, env=hub.environment(home))
        assert hub.downloads("Yelp/yelp_review_full")["README.md"] == 1

The libraries read the endpoint when they are imported, so a client has to be a process of its own.
"""

from .repositories import build_repositories
from .server import Hub, serve

__all__ = ["Hub", "build_repositories", "serve"]
