"""Push to a Hub on the loopback interface: row H3."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from transformers import AutoModelForSequenceClassification, pipeline

import finetune
from tests.hub import Hub

Cli = Callable[..., Any]
pytestmark = pytest.mark.contract("H3")
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}
SENT = {"config.json", "model.safetensors", "README.md", "metrics.json", *TOKENIZER}
EXPORT = {"export/model.onnx", "export/tokenizer.json", "export/export.json"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty Hub, and a token that may write to it. It has no storage for Xet."""
    monkeypatch.setenv("HF_TOKEN", "hf_write")
    (tmp_path / "hub").mkdir()
    with Hub(tmp_path / "hub") as hub:
        values = {"HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True, "ENDPOINT": hub.url}
        for name, value in values.items():  # read from the environment at their import
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        yield hub


@pytest.fixture
def run(exported: finetune.Run, copy_run: Any) -> finetune.Run:
    """A run with an export, and with more files than are sent."""
    run: finetune.Run = copy_run(exported)
    for name in ("secret.json", "rows.txt", "model.bin", "export/rows.json", "vocab.csv"):
        (run.path / name).write_text("{}")
    return run


def test_it_lists_then_sends_the_files_in_one_commit(
    run: finetune.Run, server: Hub, cli: Cli, tmp_path: Path
) -> None:
    listed = cli("push", run.path, "--repo", "tickets")
    assert listed.status == 0, listed.output
    assert f"to send to the private repository tickets at {server.url}" in listed.stdout
    sizes = dict(re.findall(r"^  (\S+\.\w+) +([\d,]+)$", listed.stdout, re.M))
    assert sizes.keys() == SENT | EXPORT
    assert "nothing was sent; to send the files, type it again with --yes" in listed.stdout
    assert not server.requests

    sent = cli("push", run.path, "--repo", "tickets", "--yes")
    assert sent.status == 0, sent.output
    repository = server.repositories["me/tickets"]
    assert f"{server.url}/me/tickets/commit/{repository.commit}" in sent.stdout
    assert repository.private
    api = "/api/models/me/tickets"
    expected = ["/api/whoami-v2", api, "/api/repos/create", "/api/validate-yaml"]
    upload = [f"{api}/preupload/main", "/me/tickets.git/info/lfs/objects/batch"]
    expected += [*upload, f"{api}/commit/main"]
    assert [path for _, path in server.requests if path[:5] != "/lfs/"] == expected
    assert repository.files.keys() == SENT | EXPORT
    for name in (SENT | EXPORT) - {"README.md"}:
        assert repository.files[name] == (run.path / name).read_bytes()
        assert sizes[name] == f"{len(repository.files[name]):,}"
    card, ours = repository.files["README.md"].decode(), (run.path / "README.md").read_text()
    assert card == ours.replace(f'model="{run.path.name}"', 'model="me/tickets"') != ours

    theirs, texts = str(tmp_path / "theirs"), run.predictions["text"].tolist()[:8]
    (tmp_path / "theirs" / "export").mkdir(parents=True)
    for name, content in repository.files.items():
        (tmp_path / "theirs" / name).write_bytes(content)
    assert AutoModelForSequenceClassification.from_pretrained(theirs).num_labels == 2
    expected = run.predictions["prediction"].tolist()[:8]
    answers = pipeline("text-classification", model=theirs)(texts)
    assert [answer["label"] for answer in answers] == expected
    assert finetune.Predictor(f"{theirs}/export")(texts)["label"].tolist() == expected

    server.requests.clear()
    again = cli("push", run.path, "--repo", "me/tickets", "--yes")
    assert again.status == 0, again.output
    assert "the repository has these files already: no commit" in again.stdout
    assert not {path.split("/")[-2] for _, path in server.requests} & {"commit", "lfs", "repos"}
    (run.path / "config.json").write_text((run.path / "config.json").read_text() + " ")
    assert "made from another model" in cli("push", run.path, "--repo", "tickets").stderr


def test_nothing_that_is_sent_quotes_rows_or_has_local_paths(
    run: finetune.Run, server: Hub, reviews: Path, bert: Path
) -> None:
    """Nor is code from the run imported: its recipe is a file that does not exist."""
    manifest = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps(manifest | {"recipe": "/tmp/none.py"}))
    pushed = finetune.push(run, "other-name")
    assert pushed.files.keys() == server.repositories[pushed.repo].files.keys()
    contents = b"".join(server.repositories[pushed.repo].files.values())
    private = [*run.predictions["text"], *map(str, (reviews.parent, bert, run.path, Path.home()))]
    assert [text for text in private if text.encode() in contents] == []


def test_images_and_public_repositories(
    image_run: finetune.Run, server: Hub, capfd: pytest.CaptureFixture[str]
) -> None:
    """In Python it shows no progress bar, and leaves those of others as they are."""
    is_disabled = huggingface_hub.utils.are_progress_bars_disabled()  # by another test
    huggingface_hub.utils.enable_progress_bars()
    pushed = finetune.push(image_run, "photos", public=True)
    assert capfd.readouterr() == ("", "")
    assert not huggingface_hub.utils.are_progress_bars_disabled()
    if is_disabled:
        huggingface_hub.utils.disable_progress_bars()
    assert server.repositories["me/photos"].private is pushed.private is False
    assert server.repositories["me/photos"].files.keys() == SENT - TOKENIZER | {
        "preprocessor_config.json"
    }


REFUSALS: dict[str, Any] = {  # the repository, variables, the message
    "no token": ("tickets", {"HF_TOKEN": ""}, "needs a token: log in with `hf auth login`"),
    "a wrong token": ("tickets", {"HF_TOKEN": "hf_wrong"}, "the token is not valid; log in with"),
    "a token to read": ("tickets", {"HF_TOKEN": "hf_read"}, "the token may not write to tickets"),
    "another owner": ("other/tickets", {}, "the token may not write to other/tickets"),
    "malformed": ("my tickets", {}, "--repo my tickets: expected NAME or OWNER/NAME"),
    "offline": ("tickets", {"HF_HUB_OFFLINE": "1"}, "cannot be pushed: HF_HUB_OFFLINE is set"),
    "no network": ("tickets", {"ENDPOINT": "http://127.0.0.1:9"}, "127.0.0.1:9 does not answer"),
    "torchrun": ("tickets", {"LOCAL_RANK": "0", "RANK": "0"}, "push runs in one process"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(
    single_label_run: finetune.Run, server: Hub, cli: Cli, monkeypatch: Any, case: str
) -> None:
    repo, variables, message = REFUSALS[case]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
        if hasattr(huggingface_hub.constants, name):
            monkeypatch.setattr(huggingface_hub.constants, name, value)
    result = cli("push", single_label_run.path, "--repo", repo, "--yes")
    assert (result.status, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert message in result.stderr
    assert not any(repository.files for repository in server.repositories.values())


def test_runs_that_are_refused(
    single_label_run: finetune.Run, copy_run: Any, server: Hub, cli: Cli
) -> None:
    run = copy_run(single_label_run)
    weights, card = run.path / "model.safetensors", run.path / "README.md"

    def refuses(message: str) -> None:
        result = cli("push", run.path, "--repo", "tickets", "--yes")
        assert (result.status, len(result.stderr.splitlines())) == (2, 1), result.output
        assert message in result.stderr
        assert not server.requests

    written = card.read_text()
    card.write_text(f"{written}\nTrained on {Path.home()}/tickets.csv")
    refuses(f"README.md has the local path {Path.home()}: remove it")
    card.unlink()
    refuses(f"has no README.md; to write it: python -m finetune report {run.path}")
    card.write_text(written)
    weights.rename(run.path / "elsewhere.bin")
    refuses("has no model: its status is 'finished'")
    weights.symlink_to(run.path / "elsewhere.bin")
    refuses("model.safetensors is a link")
    shutil.move(run.path / "elsewhere.bin", weights)
    (run.path / "metrics.json").unlink()
    refuses("has no metrics.json: its status is")


def test_a_public_repository_is_refused_and_a_broken_push_commits_nothing(
    single_label_run: finetune.Run, server: Hub, cli: Cli
) -> None:
    words = ["push", single_label_run.path, "--repo", "tickets", "--yes"]
    server.breaks_at = "/commit/"
    broken = cli(*words, "--public")
    message = "push again (a commit is made whole or not at all)"
    assert (broken.status, message in broken.stderr) == (1, True), broken.stderr
    server.breaks_at = ""
    private = cli(*words)
    message = "me/tickets exists and is public: name another, or add --public"
    assert (private.status, message in private.stderr) == (2, True), private.stderr
    assert server.repositories["me/tickets"].files == {}
    assert cli(*words, "--public").status == 0
    assert server.repositories["me/tickets"].files.keys() == SENT
