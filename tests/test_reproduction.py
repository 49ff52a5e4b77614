"""``bulkedge reproduce``, as a user meets it: what it writes, what it says, and with which code it ends."""

import json
import re
from pathlib import Path

import pytest
from commands import bulkedge
from exhibits import EXHIBITS, RUNS

from bulkedge.cli.commands import HEADLINES
from bulkedge.lab.studies.claims import Claim
from bulkedge.lab.studies.items import PAPERS
from bulkedge.support.estimates import Estimate


def test_reproduce_writes_a_folder_and_prints_the_claims(tmp_path):
    text = bulkedge("reproduce", "laws/edge", "--draws", 200, "--size", "50", "--out", tmp_path).output
    assert "false alarms at level 0.05" in text
    assert f"the page is {tmp_path / 'index.html'}" in text
    found = {path.name for path in tmp_path.glob("laws/edge/*")} | {path.name for path in tmp_path.glob("*")}
    written = {
        "data.zarr",
        "figure.png",
        "figure.pdf",
        "record.json",
        "claims.json",
        "index.html",
        "papers.html",
        "laws",
    }
    assert found == written | {".lock"}
    assert "bulkedge reproduce laws/edge --size 50 --draws 200 --seed 0" in (tmp_path / "index.html").read_text()


def test_reproduce_as_json(tmp_path):
    result = bulkedge("reproduce", "laws/edge", "--draws", 200, "--out", tmp_path, "--json")
    claims = json.loads(result.stdout)
    assert {claim["study"] for claim in claims} == {"laws/edge"}
    assert claims == json.loads((tmp_path / "claims.json").read_text())
    own = set(Claim("s", "ours", Estimate(1.0, 0.1), 1.0, "none").record())
    assert {"verdict", "rival", "rival_value", "exclusion", "deviation", "freedom", "finite_size"} <= own
    assert [set(claim) for claim in claims] == [own | {"study", "seed", "version"}] * 2


def test_reproduce_exits_with_one_if_a_claim_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("bulkedge.lab.studies.claims.Claim.verdict", "fails")
    result = bulkedge("reproduce", "laws/edge", "--draws", 200, "--out", tmp_path, code=1)
    assert "2 of 2 claims fail" in result.output
    assert (tmp_path / "index.html").read_text().count('<td class="fails"') == 2


def test_a_study_joins_a_full_run(exhibits, tmp_path):
    bulkedge("reproduce", "--out", tmp_path)
    result = bulkedge("reproduce", "exhibits/second", "--size", 9, "--out", tmp_path, "--json")
    assert {claim["study"] for claim in json.loads(result.stdout)} == {"exhibits/second"}
    claims = json.loads((tmp_path / "claims.json").read_text())
    assert [claim["study"] for claim in claims] == [name for name in EXHIBITS for _ in range(5)]
    assert (tmp_path / "index.html").read_text().count('<section class="study"') == 3


def test_the_same_command_goes_on_after_ctrl_c(exhibits, tmp_path, monkeypatch):
    with monkeypatch.context() as interrupted:
        interrupted.setattr(
            EXHIBITS["exhibits/second"], "run", lambda self, rng: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        result = bulkedge("reproduce", "--out", tmp_path, code=130)
    assert "stopped; what was finished is kept: the same command goes on from there" in result.output
    before = RUNS.copy()
    result = bulkedge("reproduce", "--out", tmp_path)
    assert [RUNS[name] - before[name] for name in EXHIBITS] == [0, 1, 1]
    assert "study 1 of 3 done: exhibits/first, 5 of 5 claims hold, kept, 0.0 s" in result.stderr
    second = r"study 2 of 3 done, about 1 s left: exhibits/second, 5 of 5 claims hold, \d+\.\d s\n"
    assert re.search(second, result.stderr)
    end = r"\n15 claims: 15 hold, 0 fail, 0 undecided at this size; 3 studies, 1 kept, \d+\.\d s\n$"
    assert re.search(end, result.stderr)
    before = RUNS.copy()
    result = bulkedge("reproduce", "--out", tmp_path)
    assert "3 kept" in result.stderr
    assert "left" not in result.stderr
    assert before == RUNS
    assert "0 kept" in bulkedge("reproduce", "--out", tmp_path, "--again").stderr
    assert [RUNS[name] - before[name] for name in EXHIBITS] == [1, 1, 1]


@pytest.mark.parametrize("failing", range(6))
def test_the_number_before_fail_is_the_number_that_fails(exhibits, tmp_path, failing):
    for _ in range(2):  # run, and kept
        result = bulkedge("reproduce", "exhibits/first", "--failing", failing, "--out", tmp_path, code=int(failing > 0))
        sentence = f"{failing} of 5 claims fail{'s' * (failing == 1)}" if failing else "5 of 5 claims hold"
        assert f"exhibits/first, {sentence}, " in result.stderr
        holds, fails = (f"{5 - failing} hold{'s' * (failing == 4)}", f"{failing} fail{'s' * (failing == 1)}")
        assert f"\n5 claims: {holds}, {fails}, 0 undecided at this size; 1 study, " in result.stderr
        assert len(re.findall(r"fails *\n", result.stdout)) == failing
        assert len(re.findall(r"holds *\n", result.stdout)) == 5 - failing


def test_undecided_claims_are_told_and_are_no_failure(exhibits, tmp_path):
    arguments = ("reproduce", "exhibits/first", "--undecided", 2, "--out", tmp_path)
    for _ in range(2):  # run, and kept
        result = bulkedge(*arguments)
        assert "exhibits/first, 3 of 5 claims hold, 2 undecided at this size, " in result.stderr
        assert "\n5 claims: 3 hold, 0 fail, 2 undecided at this size; 1 study, " in result.stderr
        assert len(re.findall(r"undecided *\n", result.stdout)) == 2
        assert len(re.findall(r"near: .*not excluded \(2\.0 σ\)", result.stdout)) == 2
        assert len(re.findall(r"far <away>: .*excluded by 90 σ", result.stdout)) == 3
    assert (tmp_path / "index.html").read_text().count("not decided at this size") == 2
    assert [claim["verdict"] for claim in json.loads((tmp_path / "claims.json").read_text())].count("undecided") == 2
    bulkedge(*arguments, "--failing", 1, code=1)


def test_the_exit_code_is_about_the_studies_asked_for(exhibits, tmp_path):
    bulkedge("reproduce", "exhibits/first", "--failing", 2, "--out", tmp_path, code=1)
    bulkedge("reproduce", "exhibits/second", "--out", tmp_path)
    assert "10 claims: 8 hold, 2 fail, 0 undecided at this size" in (tmp_path / "index.html").read_text()


def test_one_claim_of_one_study_is_enough_to_fail(exhibits, tmp_path, monkeypatch):
    wrong = Claim("wrong", "ours", Estimate(1.0, 0.1), 0.0, "none is needed")
    monkeypatch.setattr(EXHIBITS["exhibits/second"], "claims", lambda self, data: [wrong])
    for _ in range(2):  # run, and kept
        result = bulkedge("reproduce", "--out", tmp_path, code=1)
        assert "exhibits/second, 1 of 1 claim fails, " in result.stderr
        assert "\n11 claims: 10 hold, 1 fails, 0 undecided at this size; 3 studies" in result.stderr


def test_other_parameters_and_seeds_replace_and_say_so(exhibits, tmp_path):
    bulkedge("reproduce", "exhibits/first", "--out", tmp_path)
    result = bulkedge("reproduce", "--paper", "--out", tmp_path)
    assert result.stderr.count("replaces") == 1
    assert ", replaces one of other parameters\n" in result.stderr
    result = bulkedge("reproduce", "exhibits/first", "--seed", 3, "--out", tmp_path)
    assert "replaces one of other parameters and seed" in result.stderr
    assert json.loads((tmp_path / "claims.json").read_text())[0]["seed"] == 3


def test_who_chose_each_value_is_told(exhibits, tmp_path):
    """The paper's values, ours, quick defaults and given ones: in the record, on the page and with --paper."""
    arguments = ("reproduce", "exhibits/first", "--out", tmp_path, "--undecided", 1)
    assert "(paper)" not in bulkedge(*arguments).stdout
    assert "size 5 (quick), failing 0 (ours), undecided 1 (given)" in (tmp_path / "index.html").read_text()
    text = " ".join(bulkedge(*arguments, "--paper").stdout.split())
    assert "size 7 (paper), failing 0 (ours), undecided 1 (given)" in text
    assert "rates 1.0, 2.0 (ours), kind plain (ours)" in text
    chosen = json.loads((tmp_path / "exhibits" / "first" / "record.json").read_text())["chosen"]
    assert chosen == {"size": "paper", "undecided": "given"} | dict.fromkeys(
        ("failing", "rates", "kind", "trouble"), "ours"
    )
    assert "size 7 (paper), failing 0 (ours), undecided 1 (given)" in (tmp_path / "index.html").read_text()
    text = " ".join(bulkedge("reproduce", "exhibits/first", "--help").output.split())
    assert "how many, in {1, ..., 1000}; default 5; with --paper 7 (of the paper)." in text
    assert "claims that fail, in {0, ..., 5}; default 0; with --paper 0 (ours)." in text


def test_a_damaged_result_is_told(exhibits, tmp_path):
    bulkedge("reproduce", "--out", tmp_path)
    (tmp_path / "exhibits" / "third" / "record.json").write_text("{")
    result = bulkedge("reproduce", "exhibits/first", "--out", tmp_path)
    assert "exhibits/third in" in result.stderr
    assert "is damaged (record.json is not readable" in result.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_of_studies_come_at_the_end(exhibits, tmp_path, monkeypatch, workers):
    arguments = ("reproduce", "--out", tmp_path, "--workers", workers)
    monkeypatch.setattr(EXHIBITS["exhibits/first"], "preset", lambda _: EXHIBITS["exhibits/first"](trouble="bug"))
    monkeypatch.setattr(
        EXHIBITS["exhibits/second"], "preset", lambda _: EXHIBITS["exhibits/second"](trouble="unresolved")
    )
    result = bulkedge(*arguments, code=1)
    assert re.search(r"study \d of 3 done.*: exhibits/second raised UnresolvedError, more at the end\n", result.stderr)
    assert re.search(r"study \d of 3 done.*: exhibits/third, 5 of 5 claims hold", result.stderr)
    summary, errors = result.stderr.split("\n5 claims: 5 hold, 0 fail, 0 undecided at this size; 1 study, 0 kept, ")
    assert "Traceback" not in summary
    assert "ValueError: a bug\nwhile running bulkedge reproduce exhibits/first --trouble bug --seed 0\n" in errors
    assert "Error: too hard\nwhile running bulkedge reproduce exhibits/second --trouble unresolved" in errors


def test_several_studies_at_once_are_counted(exhibits, tmp_path):
    result = bulkedge("reproduce", "--out", tmp_path, "--workers", 3)
    for number in (1, 2, 3):
        assert re.search(
            rf"^study {number} of 3 done[^:]*: exhibits/\w+, 5 of 5 claims hold", result.stderr, re.MULTILINE
        )
    assert list(dict.fromkeys(claim["study"] for claim in json.loads((tmp_path / "claims.json").read_text()))) == [
        *EXHIBITS
    ]


def test_several_studies_print_the_claims_that_do_not_hold(exhibits, tmp_path, monkeypatch):
    everything = bulkedge("reproduce", "--out", tmp_path, "--claims").stdout
    assert everything.count("holds") == 15
    assert bulkedge("reproduce", "--out", tmp_path).stdout == f"the page is {tmp_path / 'index.html'}\n"
    monkeypatch.setattr(Claim, "verdict", property(lambda self: "undecided" if "0 of" in self.statement else "holds"))
    some = bulkedge("reproduce", "--out", tmp_path).stdout
    assert (some.count("undecided"), some.count("holds")) == (3, 0)


def test_the_demo_shows_a_number_of_each_paper():
    golden = json.loads((Path(__file__).parent / "studies" / "claims.json").read_text())
    assert {name.split("/")[0] for name in HEADLINES} == set(PAPERS)
    for name, statement in HEADLINES.items():
        (claim,) = (each for each in golden[name] if each["statement"] == statement)
        assert claim["relation"] == "="
        assert claim["predicted"] != 0
