"""The command line, as a user meets it."""

import json

import pytest
from click.testing import CliRunner

from bulkedge.cli import main
from bulkedge.laws import AttentionLaw
from bulkedge.studies.base import studies


def bulkedge(*arguments, code=0):
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == code, result.output
    return result


def test_list():
    assert all(name in bulkedge("list").output for name in studies())
    assert json.loads(bulkedge("list", "--json").output).keys() == studies().keys()


def test_help_of_a_study_has_its_parameters_with_meaning_domain_and_values():
    text = bulkedge("reproduce", "laws/edge", "--help").output
    assert "--draws" in text
    assert "matrices, in {100, ..., 1000000}; default 4000; paper" in text
    assert "--draws" not in bulkedge("reproduce", "--help").output


def test_reproduce_writes_a_folder_and_prints_the_claims(tmp_path):
    text = bulkedge("reproduce", "laws/edge", "--draws", 200, "--size", "50", "--out", tmp_path).output
    assert "false alarms at level 0.05" in text
    assert f"the page is {tmp_path / 'index.html'}" in text
    found = {path.name for path in tmp_path.glob("laws/edge/*")} | {path.name for path in tmp_path.glob("*")}
    assert found == {"data.zarr", "figure.png", "figure.pdf", "claims.json", "index.html", "laws"}
    assert "bulkedge reproduce laws/edge --size 50 --draws 200 --seed 0" in (tmp_path / "index.html").read_text()


def test_reproduce_as_json(tmp_path):
    result = bulkedge("reproduce", "laws/edge", "--draws", 200, "--out", tmp_path, "--json")
    claims = json.loads(result.stdout)
    assert {claim["study"] for claim in claims} == {"laws/edge"}
    assert claims == json.loads((tmp_path / "claims.json").read_text())


def test_reproduce_exits_with_one_if_a_claim_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("bulkedge.studies.claims.Claim.holds", False)
    result = bulkedge("reproduce", "laws/edge", "--draws", 200, "--out", tmp_path, code=1)
    assert "fails" in result.output
    assert '<td class="fails">fails</td>' in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "nothing"], "study = 'nothing' is unknown; there are equivalence/breakdown"),
        (["reproduce", "laws/edge", "--size", "3"], "size = '3' is outside its domain {10, ..., 10000}"),
        (["reproduce", "laws", "--size", "30"], "No such option"),
        (["sweep", "laws/edge", "--grid", "size=1:2", "--out", "x"], "a range is first:last:step"),
        (["sweep", "laws/edge", "--grid", "size", "--out", "x"], "--grid 'size' is not PARAMETER=VALUES"),
        (["sweep", "laws/edge", "--grid", "size=20", "--grid", "size=30", "--out", "x"], "names a parameter twice"),
        (["sweep", "laws/edge", "--grid", "sizes=20", "--out", "x"], "sizes is not a parameter of laws/edge"),
        (["sweep", "laws", "--grid", "size=20", "--out", "x"], "study = 'laws' is unknown"),
        (["sweep", "laws/edge", "--size", "20", "--grid", "size=30", "--out", "x"], "size is fixed and an axis"),
        (["sweep", "laws/edge"], "Missing option '--out'"),
        (["law", "nothing"], "law = 'nothing' is unknown; there are attention-law"),
        (["law", "marchenko-pastur"], "Missing option '--ratio'"),
        (["law", "marchenko-pastur", "--ratio", "0"], "ratio = '0' is outside its domain [1e-06, 1e+06]"),
        (["law", "semicircle", "--at", "1,a"], "at[1] = 'a' is outside its domain"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    result = bulkedge(*arguments, code=2)
    assert message in " ".join(result.output.split())


def test_studies_that_lack_a_package(tmp_path, monkeypatch):
    monkeypatch.setattr(studies()["laws/edge"], "requires", ("no_such_package",))
    for name in ("laws/bulk", "laws/transition"):
        monkeypatch.setattr(studies()[name], "simulate", lambda self, seed: 1 / 0)
    sentence = "laws/edge: not without no_such_package (pip install 'bulkedge[no_such_package]')"
    result = CliRunner().invoke(main, ["reproduce", "laws", "--out", str(tmp_path)])
    assert isinstance(result.exception, ZeroDivisionError)  # the others were begun
    assert f"left out {sentence}" in result.output
    for arguments in (["reproduce", "laws/edge"], ["sweep", "laws/edge"]):
        result = bulkedge(*arguments, "--out", tmp_path, code=2)
        assert " ".join(sentence.split()) in " ".join(result.output.replace("│", " ").split())
    assert "laws/edge" in bulkedge("list").output


def test_sweep_and_resume(tmp_path):
    arguments = ["sweep", "laws/edge", "--grid", "size=20,40", "--seeds", 2, "--draws", 100, "--workers", 1, "--json"]
    first = json.loads(bulkedge(*arguments, "--out", tmp_path).stdout)
    assert first == {"folder": str(tmp_path), "cells": 4, "done": 4, "failed": 0}
    assert json.loads(bulkedge(*arguments, "--out", tmp_path).stdout) == first
    other = bulkedge(*arguments[:-3], "--out", tmp_path, "--seed", 1, "--workers", 1, code=1)
    assert "seed = 0 there, 1 here" in other.output


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    result = bulkedge("sweep", "laws/edge", "--workers", 1, "--out", tmp_path / "file" / "inside", code=1)
    assert "Error:" in result.output


def test_law_as_json():
    text = bulkedge(
        "law", "marchenko-pastur", "--ratio", 2, "--at", "0.1,1", "--quantiles", 0.25, "--spike", 9, "--json"
    ).output
    facts = json.loads(text)
    assert facts["cdf"][0] == 0.5
    assert facts["atoms"] == [[0.0, 0.5]]
    assert facts["quantiles"] == [0.0]
    assert facts["spike_location"][0] > facts["edge"]
    (outlier,) = facts["spike_outliers"][0]
    assert outlier == {
        "location": facts["spike_location"][0],
        "overlap": facts["spike_overlap"][0],
        "gap": [facts["edge"], None],
        "strength": 9.0,
    }


def test_spikes_of_singular_values_as_json():
    arguments = ("law", "attention-law", "--beta", 1, "--head-ratio", 1, "--spike", "3,1", "--json")
    facts = json.loads(bulkedge(*arguments).output)
    law = AttentionLaw(1.0, 1.0)
    assert "spike_location" not in facts
    assert facts["singular_spike_strength"] == [3.0, 1.0]
    assert facts["singular_spike_singular_value"] == law.singular_spike([3.0, 1.0]).singular_value.tolist()
    assert facts["singular_spike_location"][0] == pytest.approx(facts["singular_spike_singular_value"][0] ** 2)
    assert facts["singular_spike_detectable"] == [True, False]
    assert [len(each) for each in facts["singular_spike_outliers"]] == [1, 0]
    help_text = " ".join(bulkedge("law", "--help").output.split())
    assert "for laws of singular values, of a signal x u v' with singular value x" in help_text


def test_json_has_no_infinities():
    facts = json.loads(bulkedge("law", "poisson-law", "--json").output, parse_constant=pytest.fail)
    assert facts["edge"] is None


def test_law_for_people():
    assert "support" in bulkedge("law", "sum-law", "--variances", "1,0.7", "--ratios", "0.5,inf").output
