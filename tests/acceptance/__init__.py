"""Test what users rely on through the command line, the Python API and the files of a run."""

#: The most commands that the tests may start; `torchrun` counts as one.
MAX_COMMANDS = 25
#: The most trained runs that the tests may share.
MAX_RUNS = 12
