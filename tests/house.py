"""Measure how large `finetune/` is and how it is written: `python tests/house.py` prints a table.

A token is one of Python's tokenizer; an f-string is one token on every version of Python.
Docstrings, comments, blank lines and line breaks are not counted, so packing lines gains nothing.
`python tests/house.py PATH` measures another package, e.g. this one on another branch.
"""

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Branch = (
    *(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While),
    *(ast.ExceptHandler, ast.Assert, ast.comprehension, ast.match_case),
)
NOT_COUNTED = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
#: The tokens around an f-string, which Python 3.11 does not have.
FSTRING_START = getattr(tokenize, "FSTRING_START", -1)
FSTRING_END = getattr(tokenize, "FSTRING_END", -1)
#: Names that say when or how a value was obtained, or where it is, but not what it is.
_VAGUE = """
    about above across afresh again alike along among anew any anything apart around asked asks
    below beneath beside besides between beyond both broken called came carved certain comes
    differ differs done drawn each either elem enough every everything far few found given gives
    goes gone got had held here hold holds how instead it kept known leads lent less lie lies
    like looks lying made many maybe meant more much named needs nobody nothing now nowhere obj
    of one others own plain put rather said same says seems seen several shown shows so somebody
    something somewhere spoken stand standing stands still stood such sure surest taken takes
    tells them there these thing things those told unlike upon wanted wants went what when where
    whether which who whole whom whose why within without yet
"""
VAGUE_NAMES = set(_VAGUE.split())


@dataclass
class Figures:
    """What is counted in a file, a package, or all of the code.

    Attributes:
        tokens: Tokens of code.
        lines: Lines with a token.
        conditionals: Expressions `a if b else c`.
        comprehensions: Comprehensions and generator expressions.
        multiplied_texts: Texts that are multiplied by a value, as `"text" * bool(names)`.
        unpacked: Lists and sets `[*x]`, `{*x}`, which are `list(x)` and `set(x)`.
        functions: The complexity of each function, and where it is.
        names: How often each name is assigned or defined.
    """

    tokens: int = 0
    lines: int = 0
    conditionals: int = 0
    comprehensions: int = 0
    multiplied_texts: int = 0
    unpacked: int = 0
    functions: list[tuple[int, str]] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Figures") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def per_10_000_tokens(self, count: int) -> float:
        return 10_000 * count / max(1, self.tokens)

    def vague_names(self) -> Counter[str]:
        """Return those of `names` that say nothing, and how often each occurs."""
        vague = Counter[str]()
        for name, count in self.names.items():
            if name.strip("_") in VAGUE_NAMES:
                vague[name] = count
        return vague

    def vague_percent(self) -> float:
        return 100 * self.vague_names().total() / max(1, self.names.total())


def count_tokens(source: str, tree: ast.AST) -> tuple[int, int]:
    """Return the tokens of a source without its docstrings, and the lines that have one."""
    docstrings = set[int]()
    for node in ast.walk(tree):
        has_docstring = isinstance(node, ast.Module | ast.ClassDef | Function)
        if has_docstring and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    tokens, depth, lines = 0, 0, set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = token.type == tokenize.STRING and token.start[0] in docstrings
        if token.type == FSTRING_END:
            depth -= 1
        elif depth == 0 and token.type not in NOT_COUNTED and not is_docstring:
            tokens += 1
        if token.type == FSTRING_START:
            depth += 1
        if token.type not in NOT_COUNTED and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
    return tokens, len(lines)


def complexity(function: Function) -> int:
    """Return McCabe's number of a function without those inside it; each condition counts."""
    number, nodes = 1, list(ast.iter_child_nodes(function))
    while nodes:
        node = nodes.pop()
        if isinstance(node, Branch):
            number += 1
        if isinstance(node, ast.comprehension):
            number += len(node.ifs)
        if isinstance(node, ast.BoolOp):
            number += len(node.values) - 1
        if not isinstance(node, Function | ast.ClassDef):
            nodes += ast.iter_child_nodes(node)
    return number


def is_text(node: ast.expr) -> bool:
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_constant or isinstance(node, ast.JoinedStr)


def is_multiplied_text(node: ast.AST) -> bool:
    """Whether a text is multiplied by another value than a number or a length, as in a rule."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    if is_text(node.left):
        factor = node.right
    elif is_text(node.right):
        factor = node.left
    else:
        return False
    is_length = isinstance(factor, ast.Call) and getattr(factor.func, "id", "") == "len"
    return not is_length and not isinstance(factor, ast.Constant)


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node of a tree assigns or defines."""
    if isinstance(node, Function):
        yield node.name
        arguments = node.args
        for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs:
            if argument.arg not in ("self", "cls"):
                yield argument.arg
    elif isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def measure(path: Path) -> Figures:
    """Return the figures of a file."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    tokens, lines = count_tokens(source, tree)
    figures = Figures(tokens, lines)
    for node in ast.walk(tree):
        figures.names.update(names_in(node))
        if isinstance(node, ast.IfExp):
            figures.conditionals += 1
        elif isinstance(node, Comprehension):
            figures.comprehensions += 1
        elif isinstance(node, Function):
            figures.functions.append((complexity(node), f"{path}:{node.lineno} {node.name}"))
        elif is_multiplied_text(node):
            figures.multiplied_texts += 1
        elif isinstance(node, ast.List | ast.Set):
            figures.unpacked += len(node.elts) == 1 and isinstance(node.elts[0], ast.Starred)
    return figures


def measure_files(root: Path) -> dict[Path, Figures]:
    """Return the figures of each file of a package."""
    return {path: measure(path) for path in sorted(root.rglob("*.py"))}


def by_package(files: dict[Path, Figures], root: Path) -> dict[str, Figures]:
    """Return the sum of the figures of each folder; `(files)` are the modules beside them."""
    packages: dict[str, Figures] = {}
    for path, figures in files.items():
        folder = path.relative_to(root).parts[0] if path.parent != root else "(files)"
        packages.setdefault(folder, Figures()).add(figures)
    return packages


def total(figures: Iterable[Figures]) -> Figures:
    """Return the sum of figures."""
    result = Figures()
    for part in figures:
        result.add(part)
    return result


def main() -> None:
    """Print the figures of each package and of their sum."""
    parser = argparse.ArgumentParser(description="Print the size of the code in tokens")
    here = Path(__file__).resolve().parents[1] / "finetune"
    parser.add_argument("path", type=Path, nargs="?", default=here, metavar="PATH")
    root = parser.parse_args().path
    packages = by_package(measure_files(root), root)
    print("conditionals and comprehensions are those of 10,000 tokens")
    print(f"{'package':<12} {'tokens':>8} {'lines':>7} {'conditionals':>13} {'comprehensions':>15}")
    for name, figures in [*packages.items(), ("sum", total(packages.values()))]:
        conditionals = figures.per_10_000_tokens(figures.conditionals)
        comprehensions = figures.per_10_000_tokens(figures.comprehensions)
        print(
            f"{name:<12} {figures.tokens:>8,} {figures.lines:>7,}"
            f" {conditionals:>13.1f} {comprehensions:>15.1f}"
        )


if __name__ == "__main__":
    main()
