"""Read a file as the recipe `text` does, and print the number of its rows.

    python -m tests.acceptance.reader FILE SECONDS

It is read after the seconds, so that one reader starts while another one writes its copy.
"""

import sys
import time

from recipes.text import Text


def main() -> None:
    path, seconds = sys.argv[1:]
    time.sleep(float(seconds))
    recipe = Text(dataset=path, model="none", text_column="text", label_column="label")
    print(len(recipe.load()["train"]))


if __name__ == "__main__":
    main()
