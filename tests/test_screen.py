"""What the start block says of the devices; several GPUs are told, not had, on this machine."""

from pathlib import Path

import pytest

from finetune import cli
from finetune.runtime import distributed
from finetune.training.arguments import FinetuneArguments


@pytest.fixture
def words(reviews: Path, tiny_model: str) -> list[str]:
    """A dry run, which prints the start block and trains nothing."""
    return ["yelp", "--dataset", str(reviews), "--model", tiny_model, "--dry_run"]


def facts(printed: str) -> dict[str, str]:
    """The lines of a start block by their first word; what is folded is one line."""
    found: dict[str, str] = {}
    name = ""
    for line in printed.splitlines()[1:]:
        if not line.startswith("  "):
            break
        name = name if line.startswith("   ") else line.split()[0]
        found[name] = f"{found.get(name, '')} {line.strip().removeprefix(name).strip()}".strip()
    return found


def test_several_gpus_and_no_launcher_are_told_how_to_be_faster(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(distributed, "devices_in_training", lambda use_cpu: 4)
    assert cli.main(words) == 0
    found = facts(capsys.readouterr().out)
    assert "DataParallel on 4 GPUs, 1 process" in found["device"]
    assert "faster: torchrun --nproc_per_node=4 -m finetune yelp --dataset" in found["device"]
    assert "on one GPU only: CUDA_VISIBLE_DEVICES=0" in found["device"]
    assert found["batch"] == "8 per device x 1 accumulation x 4 GPUs = 32 rows a step"


def test_one_cpu_process_is_told_nothing_of_gpus(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 0
    found = facts(capsys.readouterr().out)
    assert found["device"].startswith("cpu, one device, 1 process, ")
    assert found["device"].endswith(" each")
    assert found["batch"] == "32 per device x 1 accumulation x 1 process = 32 rows a step"


@pytest.mark.parametrize(
    ("terminal", "rank", "bar"), [(True, 0, True), (False, 0, False), (True, 1, False)]
)
def test_a_progress_bar_where_somebody_watches(
    terminal: bool, rank: int, bar: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setattr(distributed, "ranks", lambda: distributed.Ranks(rank=rank))
    assert FinetuneArguments(output_dir=str(tmp_path)).disable_tqdm is not bar
