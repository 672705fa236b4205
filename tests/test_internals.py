"""Test that private members of libraries are used in one module only, and what is lost without."""

import ast
import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import transformers
from datasets import Dataset

from finetune.data import arrow, digests
from finetune.models.cpu import attention, layers, unpadded
from finetune.runtime import internals, versions
from tests.conftest import ROOT
from tests.models import small_model

PACKAGES = ("finetune", "recipes", "metrics")
INTERNALS = "finetune/runtime/internals.py"
#: Documented in spite of their names: of named tuples, of `os`, and of modules of `evaluate`.
PUBLIC = {"_replace", "_exit", "_info", "_compute"}
BY_NAME = ("getattr", "setattr", "hasattr", "delattr")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in PUBLIC


def names_of_libraries(kind: type) -> set[str]:
    """Return the attributes that a class has from libraries, also those set in their methods."""
    names = set()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in (*PACKAGES, "injected", "builtins"):
            continue
        names.update(dir(base))
        with contextlib.suppress(TypeError, OSError):  # written in C
            names.update(re.findall(r"\bself\.(\w+)", inspect.getsource(base)))
    return names


def find_in_class(node: ast.ClassDef, kind: type) -> Iterator[str]:
    """Yield the private attributes of `self` that a class uses or overrides, but does not own."""
    names = names_of_libraries(kind)
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and is_of_self(child.value):
            name = child.attr
        elif isinstance(child, ast.FunctionDef):
            name = child.name
        else:
            continue
        if is_private(name) and name in names:
            yield f"{node.name}.{name}"


def texts_in(nodes: Sequence[ast.expr | None]) -> list[str]:
    """Return the constant texts among expressions."""
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return [value for value in values if isinstance(value, str)]


def is_of_self(node: ast.expr) -> bool:
    return ast.unparse(node) in ("self", "cls", "super()")


def find_private(source: str, namespace: Callable[[], dict[str, Any]]) -> Iterator[str]:
    """Yield the private names of other packages in a source; `namespace` returns its globals."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and not is_of_self(node.value):
            names = [node.attr]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [getattr(node, "module", "") or "", *(alias.name for alias in node.names)]
            is_own = modules[0].partition(".")[0] in PACKAGES
            names = [] if is_own else ".".join(modules).split(".")
        elif isinstance(node, ast.keyword):
            names = [node.arg or ""]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
            names = texts_in(node.args[1:2])
        elif isinstance(node, ast.Dict):  # it may be a state that a library loads
            names = [name for name in texts_in(node.keys) if f"def {name}(" not in source]
        elif isinstance(node, ast.ClassDef) and re.search(r"\bself\._|def _", ast.unparse(node)):
            yield from find_in_class(node, namespace()[node.name])
            continue
        else:
            continue
        yield from filter(is_private, names)


def test_private_members_of_libraries_are_in_one_module() -> None:
    members = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            module = name.removesuffix(".py").replace("/", ".")
            source = path.read_text(encoding="utf-8")
            members[name] = set(find_private(source, functools.partial(globals_of, module)))
    private = {name for name, names in members.items() if names}
    assert INTERNALS in private
    assert {name: members[name] for name in private - {INTERNALS}} == {}


def globals_of(module: str) -> dict[str, Any]:
    return vars(importlib.import_module(module))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("rows._indices", "_indices"),
        ("import datasets._x", "_x"),
        ("from torch import _C", "_C"),
        ("from huggingface_hub.utils._validators import validate_repo_id", "_validators"),
        ("DataLoaderShard(_non_blocking=True)", "_non_blocking"),
        ("getattr(model, '_no_split_modules', None)", "_no_split_modules"),
        ("model._weight_conversions = []", "_weight_conversions"),
        (
            "import argparse\nclass Parser(argparse.ArgumentParser):\n"
            "    def error(self, _): return self._option_string_actions",
            "Parser._option_string_actions",
        ),
        (
            "import torch\nclass Layer(torch.nn.Linear):\n"
            "    def _save_to_state_dict(self, *args): return None",
            "Layer._save_to_state_dict",
        ),
        ("scheduler.load_state_dict({**state, '_last_lr': rates})", "_last_lr"),
        ("class Own:\n    def read(self): return self._rows", None),
        ("from recipes._convnet import ConvNet", None),
        ("row._replace(text='')", None),
    ],
)
def test_a_private_member_is_found(source: str, name: str | None) -> None:
    def namespace() -> dict[str, Any]:
        values: dict[str, Any] = {"__name__": "injected"}
        exec(source, values)
        return values

    assert list(find_private(source, namespace)) == ([] if name is None else [name])


# ---- a missing member ----------------------------------------------------------------------------


def attention_is_kept() -> None:
    model = small_model("bert")
    attention.use(model)
    assert not attention.used_by(model)
    assert not unpadded.use(model)


def padding_is_kept() -> None:
    model = small_model("bert")
    assert not unpadded.use(model)
    linear_layers_are_kept()


def linear_layers_are_kept() -> None:
    model = small_model("bert").eval()
    layers.pack(model)
    assert not any(isinstance(module, layers.PackedLinear) for module in model.modules())


def selected_rows_are_read() -> None:
    rows = Dataset.from_dict({"text": list("abcdef"), "label": list(range(6))})
    rows = rows.select(np.array([4, 1, 5]))
    assert arrow.column(rows, "text").to_pylist() == ["e", "b", "f"]
    (numbers, values), *_ = arrow.pieces(rows, "label")
    assert dict(zip(numbers.tolist(), values.to_pylist(), strict=True)) == {0: 4, 1: 1, 2: 5}
    assert len(set(digests.hash_rows(rows, "text"))) == 3


def test_selected_texts_have_offsets_of_64_bits() -> None:
    """Or more than 2 GB of text, in several chunks, could not be selected from."""
    table = {"text": list("abc"), "texts": [["a", "b"], ["c", "d"], ["e", "f"]]}
    rows = Dataset.from_dict(table).select(np.array([2, 0]))
    texts, parts = (arrow.column(rows, name) for name in table)
    assert (texts.type, texts.to_pylist()) == (pa.large_string(), ["c", "a"])
    assert parts.type.value_type == pa.large_string()
    assert parts.to_pylist() == [["e", "f"], ["a", "b"]]


def rows_are_mapped_without_progress() -> None:
    counts: list[int] = []
    with internals.map_progress(counts.append):
        rows = Dataset.from_dict({"label": [1, 2]}).map(lambda row: {"label": row["label"] + 1})
    assert rows["label"][:] == [2, 3]
    assert counts == []


def no_checkpoint_is_saved() -> None:
    assert not internals.save_checkpoint(cast(Any, SimpleNamespace(_save_checkpoint=None)))


def no_random_states_are_loaded() -> None:
    trainer = cast(Any, SimpleNamespace(_load_rng_state=None))
    assert not internals.load_random_states(trainer, "checkpoint-1")


#: Private member -> what is checked without it.
WITHOUT = {
    "_save_checkpoint": no_checkpoint_is_saved,
    "_load_rng_state": no_random_states_are_loaded,
    "_linear_pointwise": linear_layers_are_kept,
    "_reorder_linear_weight": linear_layers_are_kept,
    "_is_mkldnn_bf16_supported": linear_layers_are_kept,
    "_softmax_backward_data": attention_is_kept,
    "_forward_hooks": padding_is_kept,
    "_forward_pre_hooks": padding_is_kept,
    "_attn_implementation": attention_is_kept,
    "_indices": selected_rows_are_read,
    "hf_tqdm": rows_are_mapped_without_progress,
}


@pytest.mark.parametrize("name", internals.MEMBERS)
def test_a_missing_member_costs_its_feature_and_one_warning(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = lambda owner, member: member != name and hasattr(owner, member)  # noqa: E731
    monkeypatch.setattr(internals, "hasattr", has, raising=False)
    internals._warn.cache_clear()
    with pytest.warns(UserWarning, match=name) as warnings:
        WITHOUT[name]()
    messages = [str(w.message) for w in warnings if name in str(w.message)]
    assert len(messages) == 1
    assert internals.MEMBERS[name][1] in messages[0]


def test_every_member_is_in_the_installed_versions(recwarn: pytest.WarningsRecorder) -> None:
    internals._warn.cache_clear()
    model = small_model("bert").eval()
    assert unpadded.use(model)
    layers.pack(model)
    counts: list[int] = []
    with internals.map_progress(counts.append):
        Dataset.from_dict({"label": [1, 2]}).map(lambda row: row, keep_in_memory=True)
    assert counts == [2]
    assert not [w for w in recwarn if "is missing" in str(w.message)]


def test_a_version_that_was_not_tested_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [*versions.describe_untested()]
    tested = {"transformers": ("4.0", "5.0"), "torch": ("2.0", "99.0")}
    monkeypatch.setattr(versions, "TESTED", tested)
    (sentence,) = versions.describe_untested()
    assert sentence.startswith(f"transformers {transformers.__version__} is not tested")
    assert "4.0 to 5.0" in sentence
