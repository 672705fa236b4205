"""Runtime services of every process: ranks, signals, threads, precision, the Hub and files."""

__version__ = "0.1.0"
#: The name for ``pip install``; on PyPI, `finetune` is another project.
DISTRIBUTION = "trainer-recipes"
