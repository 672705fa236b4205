"""Strangers named `recipes` or `metrics`: reported in a sentence, and never imported."""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LAUNCHERS, ROOT
from tests.test_packaging import PACKAGED

STRANGER = "raise SystemExit('the stranger was imported')\n"
MNIST = ["mnist", "--embedded", "--train_samples=64", "--eval_samples=20", "--max_steps=1"]
MNIST += ["--global_batch_size=16", "--no_baseline", "--output_dir=run"]


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A directory with a package `recipes` and one `metrics` that end whoever imports them."""
    for package in ("recipes", "metrics"):
        (tmp_path / "stranger" / package).mkdir(parents=True)
        for name in ("__init__", "_convnet", "mnist"):
            (tmp_path / "stranger" / package / f"{name}.py").write_text(STRANGER)
    return tmp_path / "stranger"


def run(
    words: list[str], cwd: Path, *path: Path, launcher: str = "python"
) -> "subprocess.CompletedProcess[str]":
    start = LAUNCHERS[launcher] if words[0] != "-c" else [sys.executable]
    return subprocess.run(
        [*start, *words],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("where", "launcher"),
    [
        ("cwd", "python"),
        pytest.param("PYTHONPATH", "python", marks=pytest.mark.slow),  # as under torchrun
        ("PYTHONPATH", "torchrun"),
    ],
)
def test_a_stranger_first_on_the_path_is_reported_once_and_not_imported(
    where: str, launcher: str, stranger: Path, tmp_path: Path
) -> None:
    cwd, path = (stranger, [ROOT]) if where == "cwd" else (tmp_path, [stranger, ROOT])

    done = run(MNIST, cwd, *path, launcher=launcher)

    assert done.returncode == 0, done.stderr
    assert "the stranger was imported" not in done.stdout + done.stderr
    for package in ("recipes", "metrics"):
        sentence = f"warning: {stranger / package} is another package named '{package}'"
        assert done.stderr.count(sentence) == 1
    assert (cwd / "run" / "model.safetensors").exists()


def test_doctor_reports_a_stranger(stranger: Path) -> None:
    done = run(["doctor"], stranger, ROOT)

    assert done.returncode == 0, done.stderr
    block = " ".join(done.stdout.partition("name conflicts")[2].split())
    assert f"{stranger}/recipes is another package named 'recipes'" in block
    assert f"{stranger}/metrics is another package named 'metrics'" in block


def test_a_folder_without_code_is_no_stranger(tmp_path: Path) -> None:
    """Such as one that holds recipes of the user."""
    (tmp_path / "recipes").mkdir()
    script = "from finetune.runtime import namesakes; print(namesakes.found())"

    assert run(["-c", script], tmp_path, ROOT).stdout == "()\n"


def test_a_notebook_gets_our_recipe_and_a_warning(stranger: Path) -> None:
    script = (
        "import pickle\n"
        "from finetune.recipe import catalog\n"
        "Mnist = catalog.find('mnist')\n"
        "assert pickle.loads(pickle.dumps(Mnist)) is Mnist\n"
        "print(type(Mnist().build_model('ab')).__module__, catalog.origin(Mnist))\n"
        "import recipes.mnist\n"
        "assert recipes.mnist.Mnist is Mnist\n"
        "from finetune.recipe.scoring import load\n"
        "load('accuracy')\n"
    )

    done = run(["-c", script], stranger, ROOT)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "recipes._convnet mnist\n"
    assert done.stderr.count(f"UserWarning: {stranger / 'recipes'} is another package") == 1


def test_a_stranger_that_is_imported_already_is_an_error_that_names_it(stranger: Path) -> None:
    (stranger / "recipes" / "__init__.py").write_text("")
    (stranger / "mine.py").write_text(
        "from finetune import TextClassification\n\n\n"
        "class Mine(TextClassification):\n    'Mine.'\n"
    )
    script = (
        "import recipes\n"
        "from finetune import UserError\nfrom finetune.recipe import catalog\n"
        "print(catalog.find('mine.py').__name__)\n"
        "for name in ('mnist', 'recipes.mnist'):\n"
        "    try:\n"
        "        catalog.find(name)\n"
        "    except UserError as error:\n"
        "        print(error)\n"
    )

    done = run(["-c", script], stranger, ROOT)

    assert done.returncode == 0, done.stderr
    mine, *errors = done.stdout.splitlines()
    assert mine == "Mine"
    assert len(errors) == 2
    for error in errors:
        assert error.startswith(
            "another package named 'recipes' is already imported, from "
            f"{stranger}/recipes/__init__.py; the toolkit's is {ROOT}/recipes"
        )
        assert "(PYTHONPATH, the current directory)" in error


def test_a_class_of_a_stranger_is_found_again_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "__init__.py").touch()
    (tmp_path / "recipes" / "yelp.py").write_text(
        "from finetune import TextClassification\n\n\nclass Own(TextClassification):\n    'Own.'\n"
    )
    script = (
        "from recipes.yelp import Own; from finetune.recipe import catalog\n"
        "print(catalog.origin(Own))"
    )

    done = run(["-c", script], tmp_path, tmp_path, ROOT)

    assert done.stdout == f"{tmp_path}/recipes/yelp.py\n", done.stderr


# ---- installed into one directory ------------------------------------------------------------


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install .` puts into site-packages."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    for name in PACKAGED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, source / name)
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *flags, "--target", str(target), "."]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True)
    return target


@pytest.fixture
def site(ours: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ours, tmp_path / "site"))


def install_stranger(site: Path, files: dict[str, str]) -> None:
    """As pip does, which writes over the files of others without a word."""
    info = site / "recipes-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recipes\nVersion: 0.1\n")
    lines = []
    for name, text in files.items():
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()
        lines.append(f"{name},sha256={digest.rstrip('=')},{len(text)}\n")
    (info / "RECORD").write_text("".join(lines))


@pytest.mark.processes
def test_an_installation_of_its_own_has_nothing_to_report(site: Path, tmp_path: Path) -> None:
    script = (
        "from finetune.recipe import catalog\n"
        "from finetune.runtime import namesakes\n"
        "print(namesakes.HOUSE, namesakes.found(), namesakes.overwritten(), catalog.names())\n"
    )

    done = run(["-c", script], tmp_path, site)

    assert done.stdout == f"{site} () [] ['image', 'mnist', 'sentiment', 'text', 'yelp']\n", (
        done.stderr
    )


@pytest.mark.processes
def test_files_of_a_stranger_among_ours_are_not_listed_and_are_reported(
    site: Path, tmp_path: Path
) -> None:
    install_stranger(site, {"recipes/soup.py": STRANGER, "metrics/litre/litre.py": STRANGER})

    listed = run(["list"], tmp_path, site)
    asked = run(["soup"], tmp_path, site)
    told = run(["mnist", "--no_such_flag"], tmp_path, site)

    assert [line.split()[0] for line in listed.stdout.splitlines()] == [
        *("image", "mnist", "sentiment", "text", "yelp")
    ]
    assert "unknown recipe or subcommand 'soup'" in asked.stderr
    for package, name in (("recipes", "soup.py"), ("metrics", "litre.py")):
        assert (
            f"warning: {site / package} also holds files that trainer-recipes did not install "
            f"({name} of recipes 0.1)" in told.stderr
        )


@pytest.mark.processes
@pytest.mark.parametrize("name", ["recipes/__init__.py", "recipes/_convnet.py"])
def test_a_file_of_ours_that_a_stranger_wrote_over_is_refused(
    name: str, site: Path, tmp_path: Path
) -> None:
    install_stranger(site, {name: STRANGER})

    done = run(["mnist", "--embedded", "--dry_run"], tmp_path, site)
    doctor = run(["doctor"], tmp_path, site)

    assert done.returncode == 2
    assert done.stderr.startswith(
        f"error: {site / name} is not the file that trainer-recipes 0.1.0 installed: recipes 0.1 "
        "overwrote it. Install trainer-recipes into its own environment"
    )
    assert "the stranger was imported" not in done.stderr
    assert doctor.returncode == 0
    assert f"{site / name} is not the file" in " ".join(doctor.stdout.split())


@pytest.mark.processes
def test_a_file_of_ours_that_was_removed_is_named(site: Path, tmp_path: Path) -> None:
    (site / "metrics" / "f1" / "f1.py").unlink()

    done = run(["mnist", "--embedded", "--dry_run"], tmp_path, site)

    assert done.returncode == 2
    assert f"error: {site}/metrics/f1/f1.py is missing" in done.stderr
