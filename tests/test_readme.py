"""The documentation speaks of things that exist."""

import ast
import re
from pathlib import Path

import pytest

import ultraedit
from ultraedit.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
VERBS = {command.callback.__name__ for command in app.registered_commands}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_verb_exists(page):
    verbs = re.findall(r"\bultraedit ([a-z]+) [A-Z-]", page.read_text(encoding="utf-8"))
    assert set(verbs) - {"import"} <= VERBS


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"\bmake ([a-z-]+)\b", page.read_text())) <= targets | {"a", "it"}


def test_the_readmes_python_names_what_the_package_has():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    imported = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.ImportFrom)]
    for name in (alias.name for node in imported for alias in node.names):
        assert hasattr(ultraedit, name)
    for method in re.findall(r"editor\.(\w+)\(", code):
        assert hasattr(ultraedit.Editor, method)
