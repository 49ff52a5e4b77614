"""Which tests run when: slow ones exist under the names written down, and only a missing extra is a reason to skip."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def loaded(path):
    spec = spec_from_file_location(path.stem + "_at_the_root", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_slow_tests_are_there():
    for line in (ROOT / "tests" / "slow_tests.txt").read_text(encoding="utf-8").splitlines():
        path, _, name = line.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8"), line


@pytest.mark.parametrize(
    ("error", "package"),
    [
        (ModuleNotFoundError("no", name="torch"), "torch"),
        (ModuleNotFoundError("no", name="torch.nn"), "torch"),
        (ModuleNotFoundError("no", name="torhc"), ""),
        (ModuleNotFoundError("no", name="bulkedge.lawss"), ""),
        (ImportError("cannot import name", name="numpy"), ""),
        (ValueError("torch"), ""),
    ],
)
def test_only_a_missing_extra_is_a_reason_to_skip(error, package):
    assert loaded(ROOT / "conftest.py").missing_package(error) == package


def test_the_lock_has_every_dependency_and_no_address():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    locked = loaded(ROOT / "tools" / "newer.py").locked(text)
    assert loaded(ROOT / "conftest.py").OPTIONAL - {"bulkedge", "sklearn"} <= locked.keys()
    assert "+" not in text
    assert "://" not in text
    assert not [line for line in text.splitlines() if line.startswith("-")]
