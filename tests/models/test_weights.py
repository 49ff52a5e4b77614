"""Tables are found inside installed packages without importing them."""

from importlib.machinery import ModuleSpec

import numpy as np
import pytest

from bulkedge.models.loading import packaged as weights


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package of the name of GloVe's, with a table in one of its two folders."""
    first, second = tmp_path / "first", tmp_path / "second"
    file = second / weights.TABLES["glove"].file
    file.parent.mkdir(parents=True)
    first.mkdir()
    table = np.random.default_rng(0).standard_normal((7, 5))
    np.save(file, table.astype(np.float32))
    spec = ModuleSpec(weights.TABLES["glove"].package, None, is_package=True)
    spec.submodule_search_locations = [str(first), str(second)]
    monkeypatch.setattr(weights, "find_spec", lambda name: spec if name == spec.name else None)
    return file, table


def test_a_table_is_found_where_its_package_is(installed):
    file, table = installed
    assert weights.table_path("glove") == file
    np.testing.assert_allclose(weights.embedding_table("glove"), table, atol=1e-6)


def test_a_package_without_the_file_has_no_table(installed):
    file, _ = installed
    file.unlink()
    assert weights.table_path("glove") is None
    assert weights.table_path("minilm") is None
