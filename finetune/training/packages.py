"""Packages that an optimizer, a tracker or a kernel needs, and the line that installs each."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)

from finetune.errors import suggestion

#: What is in the name of an optimizer, the module that it needs, and how that is installed.
_OPTIMIZERS = (
    ("galore", "galore_torch", "galore-torch"),
    ("apollo", "apollo_torch", "apollo-torch"),
    ("lomo", "lomo_optim", "lomo-optim"),
    ("grokadamw", "grokadamw", "grokadamw"),
    ("schedule_free", "schedulefree", "schedulefree"),
    ("stable_adamw", "optimi", "torch-optimi"),
    ("adamw_torch_4bit", "torchao", "torchao"),
    ("adamw_torch_8bit", "torchao", "torchao"),
    *(
        (name, "bitsandbytes", "bitsandbytes")
        for name in ("_8bit", "_bnb", "paged_", "lion_", "ademamix")
    ),
)
#: What a tracker is installed by, where that is not its name.
_TRACKERS = {
    "azure_ml": "azureml-core mlflow",
    "comet_ml": "comet-ml",
    "flyte": "flytekit",
}


def missing(values: Any) -> list[str]:
    """Return a line for each package that these training arguments need and that is missing."""
    optimizer = str(getattr(values.optim, "value", values.optim))
    wanted = [
        (f"--optim {optimizer}", module, distribution)
        for part, module, distribution in _OPTIMIZERS
        if part in optimizer
    ][:1]
    if values.use_liger_kernel:
        wanted.append(("--use_liger_kernel", "liger_kernel", "liger-kernel"))
    if values.deepspeed:
        wanted.append(("--deepspeed", "deepspeed", "deepspeed"))
    return _trackers(values.report_to) + [
        f"{flag}: {module} is not installed; pip install {distribution}"
        for flag, module, distribution in wanted
        if find_spec(module) is None
    ]


def _trackers(report_to: str | list[str] | None) -> list[str]:
    installed = get_available_reporting_integrations()  # type: ignore[no-untyped-call]
    names = [report_to] if isinstance(report_to, str) else report_to or []
    mistakes = []
    for name in sorted(set(names) - {"none", "all", *installed}):
        if name in INTEGRATION_TO_CALLBACK:
            distribution = _TRACKERS.get(name, name)
            mistakes.append(f"--report_to {name}: not installed; pip install {distribution}")
        else:
            known = ["none", "all", *INTEGRATION_TO_CALLBACK]
            mistakes.append(
                f"--report_to {name}: no such tracker{suggestion(name, known)} "
                f"(available: {', '.join(known)})"
            )
    return mistakes
