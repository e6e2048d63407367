"""The shape of the source: imports point one way, one module writes weights, files stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ultraedit

SOURCE = Path(ultraedit.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {file: ast.parse(file.read_text(encoding="utf-8")) for file in FILES}

ORDER = (
    "errors",
    "files",
    "settings",
    "edits",
    "editfile",
    "tokens",
    "sites",
    "models",
    "capture",
    "moments",
    "solve",
    "shift",
    "weights",
    "recipes",
    "methods",
    "receipt",
    "evaluation",
    "editor",
    "plan",
    "world",
    "report",
    "cli",
    "__main__",
)
"""A module may import what stands before it; a folder counts as one module."""

METHODS_MAY_IMPORT = {
    "edits",
    "capture",
    "errors",
    "methods",
    "moments",
    "settings",
    "shift",
    "sites",
    "solve",
    "tokens",
    "weights",
}

WRITES = {
    "add_",
    "addcdiv_",
    "addcmul_",
    "addmm_",
    "baddbmm_",
    "clamp_",
    "copy_",
    "div_",
    "fill_",
    "index_copy_",
    "mul_",
    "set_",
    "sub_",
    "zero_",
}
"""Methods that change a tensor in place."""

WRITES_ALLOWED = {
    ("weights.py", "add_"): "the one writer of parameters",
    ("weights.py", "addmm_"): "the one writer of parameters",
    ("weights.py", "copy_"): "the one writer of parameters",
    ("solve.py", "add_"): "the ridge on the diagonal of a matrix made there",
}

MAY_CATCH_EVERYTHING = {
    "cli/app.py": "the end of the program, where an error becomes a sentence",
    "tokens.py": "tokenizers raise no more specific kind for a text they cannot encode",
}

TRAINING = "world/train.py"
"""Trains models of its own from nothing, so its optimiser may write."""

MAX_FILE_LINES = 400
MAX_BODY_LINES = 60


def place(file: Path) -> str:
    """Name a file by its path inside the package."""
    return file.relative_to(SOURCE).as_posix()


def stage(file: Path) -> str:
    """Name the stage of the line a file belongs to: its folder, or itself."""
    return place(file).split("/")[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the full name of every module a file imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_stages(tree: ast.AST) -> set[str]:
    """Return the stages of this package that a file imports."""
    names = {name.split(".")[1] for name in imported(tree) if name.startswith("ultraedit.")}
    return names & set(ORDER)


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    yield from (node for node in ast.walk(tree) if isinstance(node, kinds))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count a function's lines without its signature and docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return 0 if not body else (body[-1].end_lineno or 0) - body[0].lineno + 1


def test_every_module_has_a_place_on_the_line():
    strangers = {stage(file) for file in FILES} - set(ORDER) - {"__init__"}
    assert strangers == set(), "put them into ORDER, where the data passes them"


def test_imports_point_one_way():
    wrong = [
        f"{place(file)} imports {name}"
        for file, tree in TREES.items()
        if stage(file) in ORDER
        for name in own_stages(tree)
        if ORDER.index(name) > ORDER.index(stage(file))
    ]
    assert wrong == []


def test_methods_import_only_what_a_method_may():
    wrong = [
        f"{place(file)} imports {name}"
        for file, tree in TREES.items()
        if stage(file) == "methods"
        for name in own_stages(tree) - METHODS_MAY_IMPORT
    ]
    assert wrong == []


def test_only_one_module_writes_weights():
    found = {
        (place(file), call.func.attr)
        for file, tree in TREES.items()
        if place(file) != TRAINING
        for call in calls(tree)
        if isinstance(call.func, ast.Attribute) and call.func.attr in WRITES
    }
    assert found - set(WRITES_ALLOWED) == set()
    assert set(WRITES_ALLOWED) - found == set(), "these exceptions are no longer needed"


def test_nobody_assigns_to_the_data_of_a_tensor():
    wrong = [
        f"{place(file)}:{node.lineno}"
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "data"
        and isinstance(node.ctx, ast.Store)
    ]
    assert wrong == []


def test_nobody_puts_another_parameter_in_the_place_of_one():
    wrong = [
        f"{place(file)}:{node.lineno}"
        for file, tree in TREES.items()
        if place(file) != TRAINING
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "weight"
        and isinstance(node.ctx, ast.Store)
    ]
    assert wrong == []


def test_only_the_command_line_prints():
    wrong = [
        f"{place(file)}:{call.lineno}"
        for file, tree in TREES.items()
        if stage(file) != "cli"
        for call in calls(tree)
        if isinstance(call.func, ast.Name) and call.func.id == "print"
    ]
    assert wrong == []


def test_no_except_is_bare():
    wrong = [
        f"{place(file)}:{node.lineno}"
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert wrong == []


def test_whatever_comes_is_caught_only_where_there_is_a_reason():
    wrong = [
        f"{place(file)}:{node.lineno}"
        for file, tree in TREES.items()
        if place(file) not in MAY_CATCH_EVERYTHING
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and isinstance(node.type, ast.Name)
        and node.type.id in ("Exception", "BaseException")
        and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    ]
    assert wrong == []


def test_nothing_is_unpickled_and_no_text_is_run_as_code():
    wrong = [
        f"{place(file)}:{call.lineno}"
        for file, tree in TREES.items()
        for call in calls(tree)
        if ast.unparse(call.func) in ("torch.load", "eval", "exec", "compile", "__import__")
    ]
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    wrong += [
        f"{place(file)} imports {name}"
        for file, tree in TREES.items()
        for name in imported(tree)
        if name.split(".")[0] in modules
    ]
    assert wrong == []


@pytest.mark.parametrize("file", FILES, ids=place)
def test_files_and_functions_stay_small(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES
    long = {function.name: body_lines(function) for function in functions(TREES[file])}
    assert {name: lines for name, lines in long.items() if lines > MAX_BODY_LINES} == {}


def test_no_file_is_a_drawer_for_what_has_no_name():
    drawers = {"utils", "util", "helpers", "helper", "common", "misc", "core", "main"}
    assert not {file.stem for file in FILES} & drawers
    assert not {file.parent.name for file in FILES} & drawers


def test_every_file_opens_with_what_it_is():
    silent = [place(file) for file, tree in TREES.items() if not ast.get_docstring(tree)]
    assert silent == []


def test_everything_public_says_what_it_returns_and_what_it_does():
    wrong = [
        f"{place(file)}: {node.name}"
        for file, tree in TREES.items()
        for owner in ast.walk(tree)
        if isinstance(owner, ast.Module | ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        if node.returns is None or not ast.get_docstring(node)
    ]
    assert wrong == []


def run_python(code: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr


def test_importing_the_package_imports_nothing_heavy():
    heavy = ("torch", "transformers", "safetensors", "typer", "rich", "numpy", "pyarrow")
    run_python(
        "import sys, ultraedit, ultraedit.edits, ultraedit.editfile, ultraedit.methods\n"
        f"found = [name for name in {heavy!r} if name in sys.modules]\n"
        "assert not found, found"
    )


def test_the_library_works_without_the_libraries_of_the_command_line():
    names = [
        "ultraedit." + place(file).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for file in FILES
        if stage(file) not in ("cli", "__main__", "__init__") and place(file) != TRAINING
    ]
    run_python(
        "import importlib, sys\n"
        "sys.modules['typer'] = sys.modules['rich'] = None\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)"
    )


def test_every_public_name_can_be_had():
    for name in ultraedit.__all__:
        assert getattr(ultraedit, name) is not None
        assert name in dir(ultraedit)
    with pytest.raises(AttributeError, match="no attribute 'Editr'"):
        _ = ultraedit.Editr
