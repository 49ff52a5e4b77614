"""The package imports and runs where Python has no POSIX modules, as on Windows, and text is not UTF-8 by default."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import bulkedge

SOURCES = sorted(Path(bulkedge.__file__).parent.rglob("*.py"))
POSIX_ONLY = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty", "posix"}
PRELUDE = f"""
    import sys
    import warnings

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name in {sorted(POSIX_ONLY - {"posix"})!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    for name in {sorted(POSIX_ONLY - {"posix"})!r}:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Hidden())
    warnings.filterwarnings("error", category=EncodingWarning, module="bulkedge")
"""


def without_posix(code, *arguments):
    """Run code in a Python that lacks the modules; its output."""
    script = textwrap.dedent(PRELUDE) + textwrap.dedent(code)
    result = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", script, *map(str, arguments)],
        env=os.environ | {"PYTHONIOENCODING": "cp1252"},  # what a pipe is on Windows
        capture_output=True,
        check=False,
        encoding="cp1252",
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_modules_are_hidden():
    code = """
        try:
            import fcntl
        except ModuleNotFoundError:
            print("hidden")
    """
    assert without_posix(code).split() == ["hidden"]


@pytest.mark.always
def test_every_module_imports():
    code = """
        import importlib, pkgutil, bulkedge
        from importlib.util import find_spec
        packages = ("torch", "triton", "transformers", "dash", "plotly")
        optional = {package for package in packages if not find_spec(package)}
        count = 0
        for module in pkgutil.walk_packages(bulkedge.__path__, "bulkedge.", onerror=lambda name: None):
            if module.name == "bulkedge.__main__":
                continue
            try:
                importlib.import_module(module.name)
                count += 1
            except ModuleNotFoundError as error:
                missing = isinstance(error, bulkedge.support.errors.MissingPackageError)
                if not missing and (error.name or "").split(".")[0] not in optional:
                    raise
        print(count)
    """
    assert int(without_posix(code)) > 50


COMMANDS = """
    from bulkedge.cli import main
    for command in eval(sys.argv[1]):
        try:
            main(command)
        except SystemExit as end:
            assert not end.code, (command, end.code)
"""


@pytest.mark.always
def test_the_command_line_runs(tmp_path):
    expected = {
        "bulkedge": ["--version"],
        "laws/edge": ["list"],
        "AttentionLaw": ["law", "attention-law", "--beta", "1", "--head-ratio", "0.5", "--at", "1"],
        "1 of 1 cells done": ["sweep", "laws/edge", "--draws", "100", "--size", "20", "--workers", "1", "--out"],
    }
    expected["1 of 1 cells done"].append(str(tmp_path / "sweep"))
    told = without_posix(COMMANDS, repr(list(expected.values())))
    assert [text for text in expected if text not in told] == []


def test_no_module_imports_what_only_posix_has():
    found = [
        f"{path.name} imports {name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
        if name.split(".")[0] in POSIX_ONLY
    ]
    assert found == []
