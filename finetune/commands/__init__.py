"""One file for each verb of the command line; each reads like the path of a run."""
