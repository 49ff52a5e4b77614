"""The command line, as a user meets it."""

import json
import os
import subprocess
import sys
from dataclasses import MISSING

import pytest
import xarray
from commands import bulkedge

import bulkedge as be
from bulkedge.cli.terminal import PlainProgress, about, duration, families
from bulkedge.lab.studies.base import studies
from bulkedge.laws import AttentionLaw
from bulkedge.support.domains import Choice, Each, Integers, Text, parameters


def test_list():
    assert all(name in bulkedge("list").output for name in studies())
    assert json.loads(bulkedge("list", "--json").output).keys() == studies().keys()


def test_help_of_a_study_has_its_parameters_with_meaning_domain_and_values():
    text = bulkedge("reproduce", "laws/edge", "--help").output
    assert "--draws" in text
    assert "matrices, in {100, ..., 1000000}; default 4000; with --paper 100000 (ours)" in " ".join(text.split())
    assert "--draws" not in bulkedge("reproduce", "--help").output


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["reproduce", "exhibits/first", "--trouble", "bug"]])
def test_a_fault_of_the_package_keeps_its_traceback(exhibits, tmp_path, arguments):
    result = bulkedge(*arguments, "--out", tmp_path, code=1)
    assert "Traceback" in result.stderr
    assert (
        "ValueError: a bug\nwhile running bulkedge reproduce exhibits/first --trouble bug --seed 0\n" in result.stderr
    )
    assert "Usage" not in result.output


def test_a_fault_in_a_law_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(be.Semicircle, "mean", lambda self: [].index(1))
    result = bulkedge("law", "semicircle", code=1)
    assert type(result.exception) is ValueError


@pytest.mark.parametrize(
    ("error", "code"),
    [(be.DomainError, 2), (be.UnitError, 2), (be.UnresolvedError, 1), (be.StoreError, 1), (be.MissingPackageError, 1)],
)
def test_errors_of_the_package_are_explained(monkeypatch, error, code):
    def mean(self):
        raise error("what was given and the remedy")

    monkeypatch.setattr(be.Semicircle, "mean", mean)
    result = bulkedge("law", "semicircle", code=code)
    assert isinstance(result.exception, SystemExit)
    assert "Error: what was given and the remedy" in result.output
    assert ("Usage:" in result.output) == (code == 2)


def test_an_unresolved_study_is_explained(exhibits, tmp_path):
    result = bulkedge("reproduce", "exhibits/first", "--trouble", "unresolved", "--out", tmp_path, code=1)
    command = "bulkedge reproduce exhibits/first --trouble unresolved --seed 0"
    assert f"Error: too hard\nwhile running {command}\n" in result.output


@pytest.mark.parametrize("option", ["--at", "--quantiles", "--spike"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1,nan", "x", "1,,2", "0.5;0.5"])
def test_numbers_that_are_none_are_refused(option, value):
    result = bulkedge("law", "semicircle", f"{option}={value}", code=2)
    assert f"{option[2:]}[" in result.output


@pytest.mark.parametrize("option", ["--at", "--quantiles"])
def test_an_empty_list_of_numbers_is_refused(option):
    assert f"{option[2:]}[0] = ''" in bulkedge("law", "semicircle", f"{option}=", code=2).output


@pytest.mark.parametrize("level", ["2", "-0.1", "1.0000001", "0.5,2", "-1e-300"])
def test_levels_outside_the_unit_interval_are_refused(level):
    result = bulkedge("law", "semicircle", f"--quantiles={level}", "--json", code=2)
    assert "is outside its domain [0, 1]" in " ".join(result.output.split())


def test_the_ends_of_the_unit_interval_are_levels():
    facts = json.loads(bulkedge("law", "semicircle", "--quantiles", "0,1", "--json").output)
    assert facts["quantiles"] == pytest.approx([-2.0, 2.0])


@pytest.mark.parametrize(
    "arguments",
    [
        ["reproduce", "laws/edge", "--seed", "-1"],
        ["reproduce", "laws/edge", "--seed", str(2**63)],
        ["reproduce", "laws/edge", "--level", "nan"],
        ["reproduce", "laws/edge", "--size", "nan"],
        ["reproduce", "laws/edge", "--size", "1e400"],
        ["sweep", "laws/edge", "--seed", "-1"],
        ["sweep", "laws/edge", "--seeds", "0"],
        ["sweep", "laws/edge", "--workers", "0"],
        ["sweep", "laws/edge", "--grid", "level=nan"],
        ["sweep", "laws/edge", "--grid", "size=nan:1:1"],
        ["sweep", "laws/edge", "--grid", "size=10:inf:1"],
        ["sweep", "laws/edge", "--grid", "size=10:20:0"],
    ],
)
def test_numbers_outside_their_domain_are_usage_errors(arguments, tmp_path):
    assert "Usage:" in bulkedge(*arguments, "--out", tmp_path / "new", code=2).output
    assert not (tmp_path / "new").exists()


def refused(domain):
    """Texts that are outside a domain."""
    if isinstance(domain, Each):
        return ["", *refused(domain.member), f"{good(domain.member)},", "1;2,x"]
    if isinstance(domain, Choice):
        return ["", "no such option"]
    if isinstance(domain, Text):
        return ["two\nlines", "x" * (domain.most + 1)]
    outside = [repr(domain.low - 1), "-inf", "nan", "", "x"]
    if isinstance(domain, Integers):
        return [*outside, "inf", "1.5", repr(domain.high + 1)]
    return outside if domain.infinity else [*outside, "inf", repr(2 * abs(domain.high) + 1)]


def good(domain):
    """A text that is inside."""
    if isinstance(domain, Each):
        return good(domain.member)
    if isinstance(domain, Text):
        return "a name"
    return str(domain.options[0] if isinstance(domain, Choice) else domain.high)


@pytest.mark.parametrize(
    ("command", "name", "kind"),
    [
        *(("law", name, family) for name, family in families().items()),
        *(("reproduce", name, study) for name, study in studies().items()),
    ],
)
def test_every_declared_option_refuses_what_is_outside_its_domain(command, name, kind, tmp_path):
    option = {each.name: f"--{each.name.replace('_', '-')}" for each in parameters(kind)}
    fixed = [f"{option[each.name]}={good(each.domain)}" for each in parameters(kind) if each.default is MISSING]
    if command == "reproduce":
        fixed += ["--out", tmp_path]
    for each in parameters(kind):
        for text in refused(each.domain):
            output = bulkedge(command, name, *fixed, f"{option[each.name]}={text}", code=2).output
            assert f"Invalid value for '{option[each.name]}': {each.name}" in output
            assert "is outside its domain" in " ".join(output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "laws/egde"], "study = 'laws/egde' is unknown; did you mean laws/edge"),
        (["reproduce", "lawz"], "did you mean laws"),
        (["reproduce", "laws/egde", "--size", "30"], "study = 'laws/egde' is unknown; did you mean laws/edge"),
        (["reproduce", "--size", "30", "--out", "laws/edge", "laws"], "No such option"),
        (["reproduce", "--out", "laws/edge", "laws", "--size", "30"], "No such option"),
        (["sweep", "laws/egde", "--grid", "size=20", "--out", "x"], "did you mean laws/edge"),
        (["law", "semicirlce", "--variance", "2"], "law = 'semicirlce' is unknown; did you mean semicircle"),
        (["law", "semicircle", "--varianec", "2"], "--variance"),
        (["reproduce", "laws/edge", "--sizes", "30"], "--size"),
        (["sweep", "laws/edge", "--grid", "sizes=20", "--out", "x"], "can be an axis; did you mean size?"),
        (["swep", "laws/edge"], "command = 'swep' is unknown; did you mean sweep?"),
    ],
)
def test_misspelled_names_are_answered_with_the_nearest(arguments, message):
    assert message in " ".join(bulkedge(*arguments, code=2).output.split())


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
    sentence = "laws/edge: not without no_such_package (pip install no_such_package)"
    result = bulkedge("reproduce", "laws", "--out", tmp_path, "--workers", 1, code=1)
    assert result.stderr.count("ZeroDivisionError: ") == 2  # the others were begun
    assert f"left out {sentence}" in result.output
    for arguments in (["reproduce", "laws/edge"], ["sweep", "laws/edge"]):
        result = bulkedge(*arguments, "--out", tmp_path, code=2)
        assert " ".join(sentence.split()) in " ".join(result.output.replace("│", " ").split())
    assert "laws/edge" in bulkedge("list").output


def test_sweep_and_resume(tmp_path):
    arguments = ["sweep", "laws/edge", "--grid", "size=20,40", "--seeds", 2, "--draws", 100, "--workers", 1, "--json"]
    first = json.loads(bulkedge(*arguments, "--out", tmp_path).stdout)
    assert first == {"folder": str(tmp_path), "cells": 4, "done": 4, "failed": 0, "damaged": 0}
    assert json.loads(bulkedge(*arguments, "--out", tmp_path).stdout) == first
    other = bulkedge(*arguments[:-3], "--out", tmp_path, "--seed", 1, "--workers", 1, code=1)
    assert "seed = 0 there, 1 here" in other.output


def test_a_finished_sweep_says_how_to_open_it(tmp_path):
    folder = tmp_path / "it's"
    said = bulkedge("sweep", "laws/edge", "--grid", "size=20", "--draws", 100, "--workers", 1, "--out", folder).stdout
    checked, plain = said.partition("open it with ")[2].strip().split(", or ")
    opened = [eval(each, {"bulkedge": be, "xarray": xarray}) for each in (checked, plain)]  # noqa: S307 - our own words
    assert opened[0].alarms.equals(opened[1].alarms)


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
    assert "or a signal x u v' with singular value x for laws of singular values" in help_text


def test_a_law_is_shown_in_tables_of_six_digits():
    shown = bulkedge("law", "attention-law", "--beta", 1, "--head-ratio", 0.5, "--spike", "1,4", "--at", "1,2").output
    law = be.AttentionLaw(1.0, 0.5)
    spike = law.singular_spike([1.0, 4.0])
    for number in (law.edge, *law.pdf([1.0, 2.0]), spike.location[1], spike.left_overlap[1], spike.threshold):
        assert f"{number:.6g}" in shown
    assert ["4", f"{spike.location[1]:.6g}"] in [line.split()[:2] for line in shown.splitlines()]
    assert {"yes", "no"} <= set(shown.split())
    assert not set("{[") & set(shown)
    assert "0.5 at 0" in bulkedge("law", "marchenko-pastur", "--ratio", 2).output


def test_json_has_no_infinities():
    facts = json.loads(bulkedge("law", "poisson-law", "--json").output, parse_constant=pytest.fail)
    assert facts["edge"] is None


def test_law_for_people():
    assert "support" in bulkedge("law", "sum-law", "--variances", "1,0.7", "--ratios", "0.5,inf").output


def test_law_without_a_name_lists_the_laws():
    text = bulkedge("law").output
    assert all(name in text for name in families())
    shown = json.loads(bulkedge("law", "--json").output)
    assert shown.keys() == families().keys()
    assert all(shown.values())


# -- the terminal ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "least", "most"), [("60", 40, 60), ("100", 80, 100), (None, 110, 140), ("x", 110, 140)]
)
def test_tables_are_as_wide_as_columns_says(columns, least, most):
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path)} | ({"COLUMNS": columns} if columns else {})
    command = [sys.executable, "-m", "bulkedge", "law"]
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert least <= max(len(line.rstrip()) for line in text.splitlines()) <= most


@pytest.mark.parametrize(
    ("seconds", "exact", "rough"),
    [
        (0.04, "0.0 s", "about 1 s"),
        (1.26, "1.3 s", "about 1 s"),
        (44, "44.0 s", "about 44 s"),
        (59.97, "1 min 0 s", "about 1 min"),
        (89, "1 min 29 s", "about 1 min"),
        (200, "3 min 20 s", "about 3 min"),
        (3599.7, "1 h 0 min", "about 1 h"),
        (9000, "2 h 30 min", "about 2 h"),
    ],
)
def test_times(seconds, exact, rough):
    assert (duration(seconds), about(seconds)) == (exact, rough)


def test_plain_progress_says_what_it_is_part_of(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("bulkedge.cli.terminal.time.monotonic", lambda: now[0])
    progress = PlainProgress()
    progress.head("study 7 of 43, laws/edge, about 1 min left")
    for done in range(3):
        progress(be.support.progress.Progress("draws", done, 4))
        now[0] += 3
    assert capsys.readouterr().err == "study 7 of 43, laws/edge, about 1 min left: draws: 2 of 4, 0.333/s, 6 s left\n"


def test_plain_progress_gets_rarer(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("bulkedge.cli.terminal.time.monotonic", lambda: now[0])
    progress = PlainProgress()
    for done in range(200):
        progress(be.support.progress.Progress("draws", done, 200))
        now[0] += 1.0
    lines = capsys.readouterr().err.splitlines()
    assert [int(line.split()[1]) for line in lines] == [6, 17, 38, 79, 140]  # 5, 10, 20, 40 and 60 seconds apart
