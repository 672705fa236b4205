"""Nothing private of a library is used that is not in the table of `tests.library_members`."""

import ast
import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from tests.conftest import ROOT
from tests.library_members import MEMBERS

LISTED = {
    (user, name)
    for member in MEMBERS
    for user in member.users.split()
    for name in (member.name, member.owner.rpartition(":")[2])  # a class is imported for its member
}
LIBRARIES = ("transformers", "accelerate", "torch", "datasets", "evaluate")
#: Documented modules below the top of a library; names from any other are in the table.
PUBLIC = {
    "accelerate",
    "datasets",
    "datasets.exceptions",
    "evaluate",
    "torch",
    "torch.distributed",
    "torch.futures",
    "torch.nn",
    "torch.nn.attention",
    "torch.nn.functional",
    "torch.nn.parallel",
    "torch.profiler",
    "torch.utils.data",
    "torch.utils.flop_counter",
    "transformers",
}
#: Documented, though they begin with an underscore.
DOCUMENTED = {"_exit", "_replace"}  # of os, and of named tuples
#: What everybody overrides.
ORDINARY = {"forward", "backward"}
FILES = [
    path.relative_to(ROOT).as_posix()
    for top in ("finetune", "metrics", "recipes", "examples")
    for path in sorted((ROOT / top).rglob("*.py"))
]
Names = set[str]


def parse(file: str) -> ast.Module:
    return without_types(ast.parse((ROOT / file).read_text(encoding="utf-8")))


def without_types(tree: ast.Module) -> ast.Module:
    """What is there when the program runs."""
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return tree


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def own_names(tree: ast.Module) -> Names:
    """What the file defines: functions, classes, variables and attributes of ``self``."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def foreign(tree: ast.Module) -> Iterator[str]:
    """Private names of objects that the file does not define, and names of internal modules."""
    ours = own_names(tree) | DOCUMENTED
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                yield from filter(is_private, [name])
            case ast.Attribute(attr=name) if name not in ours:
                yield from filter(is_private, [name])
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" | "setattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ) if name not in ours:
                yield from filter(is_private, [name])
            case ast.ImportFrom(module=str(module), names=names) if module not in PUBLIC:
                if module.partition(".")[0] in LIBRARIES:
                    yield from (each.name for each in names)


@pytest.mark.parametrize("file", FILES)
def test_private_names_of_others_are_listed(file: str) -> None:
    missing = {name for name in foreign(parse(file)) if (file, name) not in LISTED}
    assert not missing, f"add them to tests/library_members.py, for {file}"


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("model._hidden", {"_hidden"}),
        ("self.model._hidden = 1", {"_hidden"}),
        ("class A:\n  def _ours(self): return super()._ours()", {"_ours"}),
        ("class A:\n  def _ours(self): self._x = 1; return self._ours() + self._x", set()),
        ("self._theirs()", {"_theirs"}),
        ("getattr(model, '_hidden', None)", {"_hidden"}),
        ("from torch._C import Thing", {"Thing"}),
        ("from transformers.integrations.new import thing", {"thing"}),
        ("from torch.nn import Linear\nmodel.__class__", set()),
        ("if TYPE_CHECKING:\n  from torch._C import Thing", set()),
    ],
)
def test_the_scan_finds_what_is_foreign(code: str, names: Names) -> None:
    assert set(foreign(without_types(ast.parse(code)))) == names


# ---- classes derived from those of a library -----------------------------------------------------


@functools.cache
def imported(file: str) -> ModuleType:
    name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    if not name.startswith("examples"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(f"scanned_{Path(file).stem}", ROOT / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def bases(cls: type) -> list[type]:
    return [each for each in cls.__mro__[1:] if each.__module__.partition(".")[0] in LIBRARIES]


def shared(cls: type) -> Iterator[str]:
    """Methods that override one of a library, and private names that a base uses as well."""
    for name, value in vars(cls).items():
        is_method = isinstance(getattr(value, "__func__", value), FunctionType | property)
        hidden = name.startswith("__") and name != "__post_init__"
        overrides = any(hasattr(base, name) for base in bases(cls))
        if is_method and overrides and not hidden and name not in ORDINARY:
            yield name
    theirs = "\n".join(map(source, bases(cls)))
    for name in set(re.findall(r"\bself\.(_[a-z]\w*)", source(cls))):
        if re.search(rf"\bself\.{name}\b", theirs) or any(hasattr(b, name) for b in bases(cls)):
            yield name


@functools.cache
def source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # written in C
        return ""


DERIVED = [
    (file, cls)
    for file in FILES
    if file != "finetune/__main__.py"
    for cls in vars(imported(file)).values()
    if isinstance(cls, type) and cls.__module__ == imported(file).__name__ and bases(cls)
]


def test_classes_are_discovered() -> None:
    names = {cls.__name__ for _, cls in DERIVED}
    assert names >= {"Trainer", "FinetuneArguments", "DataParallel", "Meter", "Accuracy", "ConvNet"}


@pytest.mark.parametrize(("file", "cls"), DERIVED, ids=lambda each: getattr(each, "__name__", None))
def test_what_is_overridden_is_listed(file: str, cls: type) -> None:
    missing = {name for name in shared(cls) if (file, name) not in LISTED}
    assert not missing, f"add them to tests/library_members.py, for {file}, or rename them"


def test_an_override_that_is_not_listed_is_found() -> None:
    from finetune.training.trainer import Trainer

    class Planted(Trainer):
        def _load_best_model(self) -> None:
            self._memory_tracker = None

        def of_our_own(self) -> None:
            self._of_our_own = 1

    assert set(shared(Planted)) == {"_load_best_model", "_memory_tracker"}
