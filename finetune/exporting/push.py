"""Push a run to the Hub: model, tokenizer, card, metrics and export, in one commit."""

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    get_token,
    is_offline_mode,
)
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

# in its __all__, which mypy cannot read; httpx is httpx2 from huggingface_hub 2.0 on
from huggingface_hub.utils import filter_repo_objects, httpx, validate_repo_id  # type: ignore[attr-defined]

from finetune.errors import RunError, UserError, first_line
from finetune.predicting.files import EXPORT, FOLDER, MODEL, TOKENIZER, Export
from finetune.recipe.run import Run
from finetune.runtime import hub

_CARD = "README.md"
_READ = (_CARD, "config.json", "tokenizer_config.json", "metrics.json")  # for local paths
_SENT = (  # if the run has it; nothing else is sent
    *_READ,
    "model*.safetensors",
    "model.safetensors.index.json",
    TOKENIZER,
    "vocab.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "merges.txt",
    "*.tiktoken",
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "sentencepiece*.model",
    "bpe.codes",
    "preprocessor_config.json",
    "processor_config.json",
    f"{FOLDER}/{MODEL}",
    f"{FOLDER}/{TOKENIZER}",
    f"{FOLDER}/{EXPORT}",
)
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN, with a token that has write permission"


@dataclass(frozen=True)
class Push:
    """What was sent, or would be: the path of each file, by its name in the repository.

    ``url`` is that of the commit; None if there is none, as the repository has these files.
    """

    repo: str
    endpoint: str
    private: bool
    files: dict[str, Path]
    url: str | None = None


def push(
    run: Run | str | Path,
    repo: str,
    *,
    public: bool = False,
    dry_run: bool = False,
    progress_bar: bool = False,
) -> Push:
    """Push a finished run to the Hub.

    Args:
        run: A run, or its directory.
        repo: ``NAME`` or ``OWNER/NAME``.
        public: Whether the repository may be public.
        dry_run: Whether to send nothing.
        progress_bar: Whether to show the progress bars of the library.

    Raises:
        UserError: If the run is not finished or has local paths in its card, or the Hub refuses.
        RunError: If the connection fails. The repository has the whole commit or is as before.
    """
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"--repo {repo}: expected NAME or OWNER/NAME. {error}") from error
    api = HfApi()
    run = Run.load(run)
    plan = Push(repo, api.endpoint, not public, _files(run))
    if dry_run:
        return plan
    if is_offline_mode() or not hub.answers(api.endpoint):
        reason = "HF_HUB_OFFLINE is set" if is_offline_mode() else f"{api.endpoint} does not answer"
        raise UserError(f"{repo} cannot be pushed: {reason}; without --yes, push lists the files")
    if get_token() is None:
        raise UserError(f"{api.endpoint} needs a token: {_LOGIN}")
    try:
        with contextlib.nullcontext() if progress_bar else hub.without_progress_bars():
            return _send(api, plan)
    except (httpx.HTTPError, RuntimeError) as error:
        status = 0
        if isinstance(error, HfHubHTTPError):
            status = error.response.status_code
        if mistake := {401: "is not valid", 403: f"may not write to {repo}"}.get(status):
            raise UserError(f"{api.endpoint}: the token {mistake}; {_LOGIN}") from error
        reason = first_line(error.__cause__ or error)
        raise RunError(
            f"the push to {api.endpoint} failed: {reason}; push again (a commit is made whole or "
            "not at all)"
        ) from error
    except ValueError as error:  # of the metadata
        raise UserError(f"{_CARD}: {error}") from error


def _files(run: Run) -> dict[str, Path]:
    """Return what is sent, after checking that nothing in it is private."""
    run.require_model()
    has_scores = run.manifest.not_scored or run.metrics.test
    if run.unfinished or not has_scores or not (run.path / _CARD).is_file():
        reason = run.unfinished or f"{run.path} has no {_CARD}"
        raise UserError(f"{reason}; to write it: python -m finetune report {run.path}")
    if (run.path / FOLDER).exists():
        Export.of_run(run.path, "onnxruntime")  # refuses that of another model
    root = run.path.resolve()
    paths: set[Path] = set()
    for pattern in _SENT:
        paths.update(root.glob(pattern))
    files = {}
    for path in sorted(paths):
        if path.resolve() != path:
            raise UserError(f"{path} is a link: replace it by the file")
        files[str(path.relative_to(root))] = path
    _refuse_local_paths(run, files.values())
    return files


def _refuse_local_paths(run: Run, paths: Iterable[Path]) -> None:
    options = {**run.manifest.options, **run.manifest.arguments, "home": Path.home()}
    values = ",".join(map(str, options.values())).split(",")  # an option may have several paths
    local_paths = [value for value in values if re.match("/[^/]", value)]
    for path in paths:
        if path.name not in _READ:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for local_path in local_paths:
            if local_path in text:
                raise UserError(f"{path} has the local path {local_path}: remove it")


def _send(api: HfApi, plan: Push) -> Push:
    """Create the repository, if there is none, and commit the files that differ."""
    user = api.whoami()["name"]
    repo = plan.repo if "/" in plan.repo else f"{user}/{plan.repo}"
    private, head, stale = plan.private, None, list[str]()
    try:
        info = api.model_info(repo)
        repo, private, head = info.id, bool(info.private), info.sha
        names = {file.rfilename for file in info.siblings or []} - plan.files.keys()
        stale.extend(filter_repo_objects(names, allow_patterns=list(_SENT)))
    except RepositoryNotFoundError:
        api.create_repo(repo, private=private)
    if plan.private and not private:
        raise UserError(f"{repo} exists and is public: name another, or add --public")
    card = plan.files[_CARD].read_text(encoding="utf-8", errors="replace")
    card = re.sub(r'(pipeline\("[\w-]+", model=)"[^"\n]*"', rf'\1"{repo}"', card)
    operations: list[CommitOperationAdd | CommitOperationDelete] = []
    for name, path in plan.files.items():
        content = card.encode() if name == _CARD else path
        operations.append(CommitOperationAdd(name, content))
    operations += list(map(CommitOperationDelete, stale))  # of another model before
    # not upload_folder(), which may make several commits (huggingface_hub 2.4 with hf_xet)
    commit = api.create_commit(repo, operations, commit_message="Upload model")
    url = None if commit.oid == head else str(commit.commit_url)
    return replace(plan, repo=repo, private=private, url=url)
