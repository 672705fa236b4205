"""Write the Python API as one HTML page, from the docstrings; ``make docs`` runs it."""

from pathlib import Path

import pdoc

import finetune

PAGES = Path("build/api")

for name in finetune.__all__:  # pdoc does not see names that are imported on first use
    setattr(finetune, name, getattr(finetune, name))
pdoc.render.configure(docformat="google", show_source=False)
pdoc.pdoc("finetune", output_directory=PAGES)
print(PAGES / "finetune.html")
