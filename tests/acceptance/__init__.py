"""What users rely on, tested through the command line, the Python API and the files of a run."""

#: Commands that the tests may start; one `torchrun` counts as one.
MAX_COMMANDS = 25
#: Trained runs that the tests share.
MAX_RUNS = 12
