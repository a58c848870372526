"""What code a stage is: every project module it reaches by import, each as a normalised syntax tree.

Reads source files and runs none. The normal form holds no docstring, comment, formatting or ``@task``/``@flow`` option, and is
the same under Python 3.11 to 3.13. Standard library only, so that another interpreter can check that.
"""

import ast
import hashlib
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

PACKAGES = ("flows", "tasks", "kimi_adapters", "artifacts", "running")
OUTSIDE = ("flows", "artifacts", "running", "errors", "tasks.settings")  # move bytes, order calls, hold data
DECLARATION = "DYNAMIC_IMPORTS"  # a module's tuple of the modules it imports by a computed name
_OPTION_DECORATORS = {"task", "flow"}
_STAGE_OPTIONS = {"retries", "device", "gathers", "resumes"}  # of a Stage(...): how it is run, not what it computes
_IMPORTERS = {"import_module", "__import__", "spec_from_file_location", "run_path", "run_module", "resolve_name"}
_SKIPPED_FIELDS = {"ctx", "type_comment", "kind", "type_ignores"}


class CodeError(Exception):
    """The code of a stage cannot be known."""


def module_file(root: Path, name: str) -> Path | None:
    """The source file of a project module under ``root``; None for anything else."""
    if name.split(".")[0] not in (*PACKAGES, "errors"):
        return None
    base = root.joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _strip_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return body[1:] if is_doc else body


def _callee(node: ast.expr) -> str:
    target = node.func if isinstance(node, ast.Call) else node
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""


def _merged_pieces(values: list[ast.expr]) -> list[ast.expr]:
    """The pieces of an f-string with neighbouring text joined: interpreters cut it differently."""
    pieces: list[ast.expr] = []
    for value in values:
        text = value.value if isinstance(value, ast.Constant) else None
        last = pieces[-1] if pieces else None
        if isinstance(text, str) and isinstance(last, ast.Constant) and isinstance(last.value, str):
            pieces[-1] = ast.Constant(last.value + text)
        elif text != "":
            pieces.append(value)
    return pieces


def _normal(node: object) -> str:
    if isinstance(node, list):
        return "[" + ",".join(_normal(item) for item in node) + "]"
    if not isinstance(node, ast.AST):
        return f"{type(node).__name__}:{node!r}"
    fields = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            value = _strip_docstring(value)
        elif name == "decorator_list":
            value = [d for d in value if _callee(d) not in _OPTION_DECORATORS]
        elif name == "keywords" and isinstance(node, ast.Call) and _callee(node) == "Stage":
            value = [k for k in value if k.arg not in _STAGE_OPTIONS]
        elif name == "values" and isinstance(node, ast.JoinedStr):
            value = _merged_pieces(value)
        if name in _SKIPPED_FIELDS or value is None or value == []:
            continue
        fields.append(f"{name}={_normal(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def normal_form(source: str) -> str:
    """``source`` as text that changes only when what it does may change."""
    return _normal(ast.parse(source))


def _declared(tree: ast.Module) -> list[str] | None:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == DECLARATION for t in statement.targets
        ):
            return [str(name) for name in ast.literal_eval(statement.value)]
    return None


def _from_imports(node: ast.ImportFrom, module: str, is_package: bool) -> tuple[str, list[str]]:
    base = module.split(".")
    if node.level:
        base = base[: len(base) - node.level + is_package]
        start = ".".join([*base, node.module] if node.module else base)
    else:
        start = node.module or ""
    return start, [f"{start}.{alias.name}" for alias in node.names]


def _importers(tree: ast.Module) -> set[str]:
    """Names of functions that import what they are told to, under the names that the module gives them."""
    given = {a.asname for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names if a.name in _IMPORTERS}
    return _IMPORTERS | {name for name in given if name}


def _constant_name(node: ast.Call) -> str | None:
    """The module that an import by function names outright; None for a name computed, relative or of a file."""
    argument = node.args[0] if node.args and _callee(node) in {"import_module", "__import__"} else None
    value = argument.value if isinstance(argument, ast.Constant) else None
    return value if isinstance(value, str) and all(piece.isidentifier() for piece in value.split(".")) else None


def imports_of(tree: ast.Module, module: str, is_package: bool = False) -> Iterator[tuple[str, bool]]:
    """Names a module may import, anywhere in it, and whether each must be a module (else it may be something inside one).

    A computed name raises ``CodeError`` unless the module declares what it may be.
    """
    declared = _declared(tree)
    yield from ((name, True) for name in declared or [])
    importers = _importers(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, True) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start, names = _from_imports(node, module, is_package)
            yield start, True
            yield from ((name, False) for name in names)
        elif isinstance(node, ast.Call) and _callee(node) in importers:
            constant = _constant_name(node)
            if constant:
                yield constant, True
            elif declared is None:
                raise CodeError(
                    f"{module}, line {node.lineno}, imports a module by a computed name: list what it may import "
                    f"in a module constant {DECLARATION}"
                )


def is_outside(module: str) -> bool:
    """Whether a module moves bytes, orders calls or holds data, and so is in no stage's digest."""
    return any(module == name or module.startswith(name + ".") for name in OUTSIDE)


Read = tuple[str, list[tuple[str, bool]]]


def _parse(source: bytes) -> ast.Module:
    """``ast.parse``, again where CPython 3.11 raises "AST constructor recursion depth mismatch".

    It counts that depth in one place for all threads, and Prefect's threads compile code beside ours.
    """
    for _ in range(20):
        try:
            return ast.parse(source)
        except SystemError:
            time.sleep(0.01)
    return ast.parse(source)


def _read(path: Path, name: str) -> Read:
    """Digest and imports of one module."""
    return _understood(path.read_bytes(), name, path.name == "__init__.py")


@lru_cache(maxsize=1024)
def _understood(source: bytes, name: str, is_package: bool) -> Read:
    """A function of its arguments alone, so that the walks of one process parse equal sources once."""
    try:
        tree = _parse(source)
    except SyntaxError as error:
        raise CodeError(f"{name}, line {error.lineno}, does not parse: {error.msg}") from None
    digest = hashlib.sha256(_normal(tree).encode()).hexdigest()
    return digest, list(imports_of(tree, name, is_package))


def closure(root: Path, module: str, cache: dict[Path, Read] | None = None) -> dict[str, str]:
    """Digest (SHA-256 of the normal form) of each project module that ``module`` reaches, itself included.

    ``cache`` keeps what was read, for the closures of several stages over one snapshot. ``CodeError`` where a module
    does not parse, imports by a computed name, or imports a project module that is not there.
    """
    cache = {} if cache is None else cache
    digests: dict[str, str] = {}
    waiting = [(module, True, "the flow")]
    while waiting:
        name, is_module, importer = waiting.pop()
        path = module_file(root, name)
        if path is None and is_module and name.split(".")[0] in PACKAGES:
            raise CodeError(f"{importer} imports {name}, which is not under {root}")
        if path is None or name in digests or is_outside(name):
            continue
        if path not in cache:
            cache[path] = _read(path, name)
        digests[name], imported = cache[path]
        for found, must_be in imported:
            pieces = found.split(".")
            parents = [".".join(pieces[:n]) for n in range(1, len(pieces))]
            waiting += [*((parent, must_be, name) for parent in parents), (found, must_be, name)]
    return digests
