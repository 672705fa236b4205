"""A local Hugging Face Hub for tests and demonstrations on a machine without the real one.

`build_repositories` writes small repositories with the files of the real ones (three data sets and
two models, generated from fixed seeds without downloads), and `serve` serves them on the loopback
interface with the HTTP protocol of the Hub. `datasets` and `transformers` use it without changes,
including downloads and caches:

    build_repositories(root)
    with serve(root) as hub:
        subprocess.run(command, env=hub.environment(home))
        assert hub.downloads("Yelp/yelp_review_full")["README.md"] == 1

The libraries read the endpoint when they are imported, so a client must be a new process.
"""

from .repositories import build_repositories
from .server import Hub, serve

__all__ = ["Hub", "build_repositories", "serve"]
