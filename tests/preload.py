"""Import everything that `finetune` imports late, in the process that commands are forked from."""

import contextlib
import io
import runpy
import sys

import finetune

for name in finetune.__all__:
    getattr(finetune, name)
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    sys.argv = ["finetune", "doctor", "--help"]
    runpy.run_module("finetune", run_name="__main__")
