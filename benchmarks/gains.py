"""What weights, thresholds, an ordinal loss and windows bring over plain training.

    python benchmarks/gains.py                    # every case; hours on two cores
    python benchmarks/gains.py weights --seeds 3

Each way trains the embedded model on the same rows of a composed set (benchmarks/compose.py), once
for each seed; the scores are those of the test rows, mean and standard deviation over the seeds.
Nothing is chosen by them. Maximum and mean of windows are two readings of the same weights.
"""

import argparse
import json
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

import compose

Options = dict[str, Any]
#: Of every training.
USUAL: Options = dict(
    embedded=True,
    global_batch_size=16,
    baseline=False,
    save_total_limit=1,
    disable_tqdm=True,
    report_to="none",
)
#: By name: the set, the options of every way, those of each way, and the scores shown.
CASES: dict[str, tuple[str, Options, dict[str, Options], tuple[str, ...]]] = {
    "weights": (
        "rare",
        dict(
            num_train_epochs=3,
            train_samples=2000,
            metrics="f1_macro,recall_macro,accuracy,average_precision",
        ),
        {
            "plain": {},
            "--class_weights balanced": dict(class_weights="balanced"),
            "--class_sampling balanced": dict(class_sampling="balanced"),
            "--loss_function focal": dict(loss_function="focal"),
        },
        ("f1_macro", "recall_macro", "accuracy", "average_precision"),
    ),
    "thresholds": (
        "labels",
        dict(num_train_epochs=2, train_samples=1500),
        {f"--thresholds {each}": dict(thresholds=each) for each in ("none", "one", "label")},
        ("f1_micro", "f1_macro", "subset_accuracy"),
    ),
    "order": (
        "joined",
        dict(label_column="positives", task="ordinal", num_train_epochs=3, train_samples=600),
        {
            f"--loss_function {each}": dict(loss_function=each)
            for each in ("cross_entropy", "soft", "emd")
        },
        ("quadratic_kappa", "mean_absolute_error", "accuracy"),
    ),
    "windows": (
        "documents",
        # a window is a row of the training: fewer epochs, and still more steps
        dict(train_samples=240, eval_samples=200, max_length=128),
        {
            "--truncation head": dict(truncation="head", num_train_epochs=6),
            "--truncation tail": dict(truncation="tail", num_train_epochs=6),
            "--truncation head_tail": dict(truncation="head_tail", num_train_epochs=6),
            "windows, mean": dict(long_texts="windows", pooling="mean", num_train_epochs=2),
        },
        ("accuracy", "f1"),
    ),
}


def measured(name: str, seeds: range) -> dict[str, dict[str, list[float]]]:
    """Return the test scores of each way of a case, one for each seed."""
    import finetune
    from finetune.recipe import catalog
    from finetune.training.manifest import MANIFEST

    kind, shared, ways, _ = CASES[name]
    scores: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as home:
        data = compose.KINDS[kind](Path(home))
        for seed in seeds:
            for way, own in ways.items():
                run = finetune.train(
                    catalog.find("text"),
                    **{**USUAL, **shared, **own},
                    dataset=str(data),
                    seed=seed,
                    output_dir=str(Path(home) / "run"),
                )
                found = {way: run.metrics.test}
                if "pooling" in own:
                    manifest = json.loads((run.path / MANIFEST).read_text(encoding="utf-8"))
                    manifest["options"]["pooling"] = "max"
                    (run.path / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
                    found["windows, max"] = finetune.evaluate(run).metrics
                for read, values in found.items():
                    print(f"{name}, seed {seed}, {read}: {values}", flush=True)
                    for metric, value in values.items():
                        if isinstance(value, float):
                            scores.setdefault(read, {}).setdefault(metric, []).append(value)
    return scores


def show(name: str, scores: dict[str, dict[str, list[float]]]) -> None:
    """Print mean and standard deviation of each way."""
    shown = CASES[name][3]
    print(f"\n{name}: {'':24}" + "".join(f"{metric:>24}" for metric in shown))
    for way, found in scores.items():
        cells = [
            f"{statistics.mean(found[metric]):.4f} ± {statistics.stdev(found[metric]):.4f}"
            for metric in shown
        ]
        print(f"{way:>{len(name) + 26}}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


def main() -> None:
    """Print a table for each case, and write every score as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("case", nargs="?", choices=[*CASES, "all"], default="all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found = {}
    for name in CASES:
        if given.case in (name, "all"):
            found[name] = measured(name, range(1, given.seeds + 1))
            show(name, found[name])
    if given.json:
        given.json.write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
