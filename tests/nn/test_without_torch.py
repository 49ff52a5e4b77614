"""The package without torch, in a process that cannot find it."""

import subprocess
import sys

import pytest

NOT_FOUND = """
import sys
import bulkedge as be

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Hidden())
"""
"""As where it is not installed; other packages look for it among the loaded modules."""
HIDE = "import sys, bulkedge as be; sys.modules['torch'] = None; "


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.always
def test_the_package_does_not_import_torch():
    done = python(
        "import sys, bulkedge, bulkedge.lab.studies.base as base; base.studies(); print('torch' in sys.modules)"
    )
    assert done.stdout == "False\n", done.stderr


def test_nn_says_what_to_install():
    done = python(HIDE + "be.nn")
    assert "MissingPackageError: bulkedge.nn needs torch: pip install 'bulkedge[torch]'" in done.stderr


def test_other_names_are_unknown():
    assert "module 'bulkedge' has no attribute 'mm'" in python(HIDE + "be.mm").stderr


@pytest.mark.always
def test_everything_else_is_there():
    """A star import, and every name that it brings; what needs torch says so when it is asked for."""
    done = python(NOT_FOUND + "exec('from bulkedge import *'); print(all(hasattr(be, name) for name in be.__all__))")
    assert done.stdout == "True\n", done.stderr
    for name in ("scan", "watch"):
        said = python(NOT_FOUND + f"be.{name}").stderr.splitlines()[-1]
        assert "MissingPackageError" in said
        assert "pip install 'bulkedge[torch]'" in said
