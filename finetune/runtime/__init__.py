"""What every process needs, whatever it does: ranks, threads, precision, the Hub, files."""

__version__ = "0.1.0"
#: The name to install by; on the package index `finetune` is another project.
DISTRIBUTION = "trainer-recipes"
