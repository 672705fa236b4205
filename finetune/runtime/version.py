"""The version and the name of the distribution: written here, and read from here by all others."""

__version__ = "0.1.0"
#: The name to install by; on the package index `finetune` is another project.
DISTRIBUTION = "trainer-recipes"
