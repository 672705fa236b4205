"""Push a run to the Hub: model, tokenizer, card, metrics and export, in one commit."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2  # the HTTP client of huggingface_hub
from huggingface_hub import CommitOperationAdd, HfApi, get_token, is_offline_mode
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils._validators import validate_repo_id

from finetune.errors import RunError, UserError
from finetune.export import FOLDER
from finetune.export.files import EXPORT, MODEL, TOKENIZER, Export
from finetune.runs.run import Run
from finetune.runtime import hub

_CARD = "README.md"
_FREE_TEXT = (_CARD, "config.json", "tokenizer_config.json", "metrics.json")
_SENT = (  # if the run has it; nothing else is sent
    *(*_FREE_TEXT, "model*.safetensors", "model.safetensors.index.json", TOKENIZER, "*.tiktoken"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("tokenizer.model", "spiece.model", "spm.model", "sentencepiece*.model", "bpe.codes"),
    *("preprocessor_config.json", "processor_config.json"),
    *(f"{FOLDER}/{name}" for name in (MODEL, TOKENIZER, EXPORT)),
)


@dataclass(frozen=True)
class Push:
    """What was sent; with ``dry_run``, what would be.

    Attributes:
        repo: The repository on the Hub.
        endpoint: The URL of the Hub.
        private: Whether the repository is private.
        files: The content of each file.
        url: The URL of the commit; None if there is none, as all files were there already.
    """

    repo: str
    endpoint: str
    private: bool
    files: dict[str, bytes | Path]
    url: str | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The number of bytes of each file."""
        sizes = {n: len(c) for n, c in self.files.items() if isinstance(c, bytes)}
        return sizes | {n: c.stat().st_size for n, c in self.files.items() if isinstance(c, Path)}


def push(run: Run | str | Path, repo: str, *, public: bool = False, dry_run: bool = False) -> Push:
    """Push a run to the Hub: model, tokenizer, card, metrics and export, in one commit.

    Args:
        run: A finished run, or its directory.
        repo: ``NAME`` or ``OWNER/NAME``; a repository is created if there is none.
        public: Whether everybody may see it.
        dry_run: Whether to send nothing.

    Raises:
        UserError: If the run is not finished, has local paths in its card, or the Hub refuses.
        RunError: If the connection fails. The repository has the whole commit or is as before.
    """
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"--repo {repo}: expected NAME or OWNER/NAME. {error}") from error
    api = HfApi()
    plan = Push(repo, api.endpoint, not public, _files(Run.load(run), repo))
    if dry_run:
        return plan
    login = "log in with `hf auth login`, or set HF_TOKEN, with a token that has write permission"
    if is_offline_mode() or not hub.answers(api.endpoint):
        reason = "HF_HUB_OFFLINE is set" if is_offline_mode() else f"{api.endpoint} does not answer"
        raise UserError(f"{repo} cannot be pushed: {reason}; without --yes, push lists the files")
    if get_token() is None:
        raise UserError(f"{api.endpoint} needs a token: {login}")
    try:
        return _send(api, plan)
    except HfHubHTTPError as error:
        problems = {401: "is not valid", 403: f"may not write to {repo}"}
        if problem := problems.get(error.response.status_code):
            raise UserError(f"{api.endpoint}: the token {problem}; {login}") from error
        raise RunError(f"{api.endpoint} refused: {str(error).strip()}") from error
    except (httpx2.HTTPError, RuntimeError) as error:
        reason = f"{error.__cause__ or error}".strip().partition("\n")[0]
        hint = "push again (a commit is made whole or not at all)"
        raise RunError(f"the connection to {api.endpoint} failed: {reason}; {hint}") from error
    except ValueError as error:  # of the metadata
        raise UserError(f"{_CARD}: {error}") from error


def _files(run: Run, repo: str) -> dict[str, bytes | Path]:
    """Return the content of what is sent, after checking that nothing in it is private."""
    run.require_model()
    if run.unfinished or not run.metrics.test or not (run.path / _CARD).exists():
        reason = run.unfinished or f"{run.path} has no {_CARD}"
        raise UserError(f"{reason}; to write it: python -m finetune report {run.path}")
    if (run.path / FOLDER).exists():
        Export.of_run(run.path, "onnxruntime")
    paths = sorted(path for pattern in _SENT for path in run.path.glob(pattern))
    if links := [str(path) for path in paths if path.is_symlink() or path.parent.is_symlink()]:
        raise UserError(f"{links[0]} is a link: replace it by the file")
    options = {**run.manifest.options, **run.manifest.arguments, "home": str(Path.home())}
    local = [value for value in map(str, options.values()) if re.match("/[^/]", value)]
    for path in (path for path in paths if path.name in _FREE_TEXT):
        text = path.read_text(encoding="utf-8")
        if private := [value for value in local if value in text]:
            hint = f"remove it, or write the card again: python -m finetune report {run.path}"
            raise UserError(f"{path} has the local path {private[0]}: {hint}")
    files: dict[str, bytes | Path] = {str(path.relative_to(run.path)): path for path in paths}
    card = (run.path / _CARD).read_text(encoding="utf-8")
    card = re.sub(r'(pipeline\("[\w-]+", model=)"[^"\n]*"', rf'\1"{repo}"', card)
    return files | {_CARD: card.encode()}


def _send(api: HfApi, plan: Push) -> Push:
    """Create the repository, if there is none, and commit the files that differ."""
    user = api.whoami()["name"]
    repo = plan.repo if "/" in plan.repo else f"{user}/{plan.repo}"
    private, head = plan.private, None
    try:
        info = api.repo_info(repo)
        private, head = bool(info.private), info.sha
    except RepositoryNotFoundError:
        api.create_repo(repo, private=private)
    if plan.private and not private:
        raise UserError(f"{repo} exists and is public: name another, or add --public")
    files = plan.files.items()
    # not upload_folder(), which may make several commits (huggingface_hub 2.4 with hf_xet)
    commit = api.create_commit(
        repo,
        [CommitOperationAdd(path_in_repo=name, path_or_fileobj=content) for name, content in files],
        commit_message="Upload model",
    )
    url = None if commit.oid == head else str(commit.commit_url)
    return replace(plan, repo=repo, private=private, url=url)
