"""``bulkedge scan`` as people call it: what it prints and writes, and what it says of input that it cannot read."""

import json
import re
import shutil
import sys

import numpy as np
import pytest
from commands import bulkedge

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import bulkedge as be  # noqa: E402
from bulkedge.cli.scan import longer_contexts  # noqa: E402
from bulkedge.lab.studies.base import studies  # noqa: E402
from bulkedge.lab.sweeps import open_sweep  # noqa: E402
from bulkedge.models import default_model  # noqa: E402
from bulkedge.models.loading import loader as loading  # noqa: E402
from bulkedge.models.loading.default import ALPHABET, letters  # noqa: E402
from bulkedge.models.scanning import scanner as scanning  # noqa: E402

QUICK = ("--tokens", 24, "--draws", 0, "--no-probe")
BERT = {"num_hidden_layers": 3, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
GPT2 = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32}


def saved(folder, config):
    """A folder as save_pretrained leaves it: random weights, letters as tokens."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config)
    model.save_pretrained(folder)
    letters().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("models") / "tiny-bert", transformers.BertConfig(**BERT, vocab_size=32))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    config = transformers.GPT2Config(**GPT2, vocab_size=len(ALPHABET), bos_token_id=None, eos_token_id=None)
    return saved(tmp_path_factory.mktemp("models") / "tiny-gpt2", config)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Names of hubs are looked up in the cache alone, which has none."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """An empty folder, where the command is called."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(result):
    return " ".join(result.output.split())


# -- what is printed and written ---------------------------------------------------------------------------------------


def test_a_folder_for_people(bert):
    result = bulkedge("scan", bert, *QUICK)
    lines = result.output.splitlines()
    assert lines[0].split()[:4] == ["layer", "head", "kind", "β"]
    assert "agree" not in lines[0]
    assert [line.split()[:2] for line in lines[1:7]] == [[str(k), str(h)] for k in range(3) for h in range(2)]
    assert "tiny-bert: 6 heads in 3 layers, read on 1 text of up to 24 tokens." in result.output
    assert "8×" not in lines[0]  # for which there is no room


def test_importance_has_a_column(gpt2):
    plain, found = bulkedge("scan", gpt2, *QUICK), bulkedge("scan", gpt2, *QUICK, "--importance", "--json")
    assert plain.exit_code == found.exit_code == 0, found.output
    assert "worth" not in plain.output
    rows = json.loads(found.stdout)
    assert len(rows) == 4
    assert all(row["importance"] > row["importance_error"] > 0 for row in rows)


def test_factors_of_longer_contexts_in_words():
    heads = [{"scale_2": 1.5, "scale_8": each, "scale_32": np.nan} for each in (3.0, np.nan, 1.25, 2.0, 1.5)]
    assert list(longer_contexts(heads)) == [
        f"At {times}× the tokens, a head keeps the entropy of its rows if its scores are multiplied by {factors}."
        for times, factors in (
            (2, "1.5 (median over heads; from 1.5 to 1.5)"),
            (8, "1.75 (median over heads; from 1.25 to 3)"),
        )
    ]


def test_a_wide_terminal_has_room_for_factors(bert, monkeypatch):
    monkeypatch.setattr("bulkedge.cli.scan.WIDE", 10)
    assert bulkedge("scan", bert, *QUICK).output.splitlines()[0].split()[-1] == "8×"


@pytest.mark.always
def test_everything_at_once(gpt2, tmp_path):
    """JSON for programs, a page for people and a store for later, with p-values and the probe, all of one scan."""
    command = ["scan", gpt2, "--draws", 5, "--tokens", 24, "--json"]
    result = bulkedge(*command, "--html", tmp_path / "x.html", "--save", tmp_path / "x.zarr")
    records = json.loads(result.stdout)
    assert [(row["layer"], row["head"]) for row in records] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(0 < row["p"] <= row["q"] <= 1 and 0 <= row["induction"] <= 1 for row in records)
    page = (tmp_path / "x.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "tiny-gpt2" in page
    loaded = be.load_scan(tmp_path / "x.zarr")
    assert json.dumps([row["beta"] for row in loaded.records()]) == json.dumps([row["beta"] for row in records])


def test_several_texts_agree(bert, tmp_path):
    texts = []
    for number, text in enumerate(["a first text, in letters alone", "quite another one, of other letters"]):
        path = tmp_path / f"{number}.txt"
        path.write_text("\ufeff" + text, encoding="utf-8")  # editors put a mark before it
        texts += ["--text", path]
    result = bulkedge("scan", bert, *QUICK, *texts)
    assert result.output.splitlines()[0].split()[:4] == ["layer", "head", "kind", "agree"]
    assert "read on 2 texts" in result.output
    assert "of the texts agree on the kind" in result.output


def test_layers_are_chosen(bert):
    rows = json.loads(bulkedge("scan", bert, *QUICK, "--layers", "2,0", "--json").stdout)
    assert [row["layer"] for row in rows] == [0, 0, 2, 2]


def test_the_default_model_before_and_after(monkeypatch, tmp_path):
    """Trained by one step here; as many tokens as it was trained on, unless more are asked for."""
    monkeypatch.setattr(loading, "default_model", lambda: default_model(steps=1))
    result = bulkedge("scan", "--draws", 0, "--no-probe", "--html", tmp_path / "scan.html")
    assert "the default decoder: 12 heads in 3 layers, read on 1 text of up to 256 tokens." in result.output
    assert f"the page is {tmp_path / 'scan.html'}" in result.output
    page = (tmp_path / "scan.html").read_text()
    assert "the default decoder" in page
    assert '"before"' in page


def test_the_default_model_is_called_so(monkeypatch):
    fresh, tokenizer = default_model(trained=False)
    found = be.scan(fresh, tokenizer=tokenizer, tokens=24, draws=0, probe=False)
    assert found.summary().startswith("the default decoder before training: ")
    monkeypatch.setattr(loading, "default_model", lambda: default_model(steps=1))
    found = be.scan(tokens=24, draws=0, probe=False)
    assert found.summary().startswith("the default decoder: ")
    found = be.scan(fresh, tokenizer=tokenizer, tokens=24, draws=0, probe=False, title="mine")
    assert found.data.attrs["model"] == "mine"


def test_weights_alone(bert):
    result = bulkedge("scan", bert, "--weights")
    assert result.output.splitlines()[0].split()[:3] == ["layer", "head", "circuit"]
    assert "bert: 6 heads of 3 attention modules, by their weights alone." in result.output
    found = json.loads(bulkedge("scan", bert, "--weights", "--layers", "1", "--json").stdout)
    assert [(row["layer"], row["head"], row["circuit"]) for row in found["records"]] == [
        (1, 0, "QK"), (1, 1, "QK"), (1, 0, "OV"), (1, 1, "OV"),
    ]  # fmt: skip
    expected = be.models.scan_weights(bert, layers=[1]).records()
    assert [row["largest"] for row in found["records"]] == [row["largest"] for row in expected]


def test_positions_that_the_model_lacks_are_told_once(gpt2):
    result = bulkedge("scan", gpt2, "--draws", 0, "--no-probe")
    assert result.stderr.count("warning: 1 of 1 sequences are cut to the model's 32 positions") == 1
    assert "up to 32 tokens" in result.stdout


# -- what cannot be read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--layers", "a,b"], 2, "layers[0] = 'a' is outside its domain"),
        (["--layers", ""], 2, "layers[0] = '' is outside its domain"),
        (["--layers", "-1"], 2, "layers[0] = '-1' is outside its domain"),
        (["--layers", "0,7"], 2, "layers = [0, 7]: the model has 3, numbered from 0"),
        (["--tokens", "3"], 2, "tokens = 3 is outside its domain {16, ..., 32768}"),
        (["--tokens", "many"], 2, "'many' is not a valid integer"),
        (["--draws", "2"], 2, "5 or more, or 0 for none"),
        (["--draws", "-1"], 2, "draws = -1 is outside its domain"),
        (["--seed", "-1"], 2, "Invalid value for '--seed'"),
        (["--device", "abacus"], 2, "device = 'abacus' is none that torch knows"),
        (["--text", "nowhere.txt"], 2, "'nowhere.txt' does not exist"),
        (["--html", "nowhere/page.html"], 1, "there is no folder"),
        (["--save", "nowhere/scan.zarr"], 1, "there is no folder"),
        (["--html", "."], 2, "is a directory"),
        (["--save", "."], 1, "is there already"),
        (["--weights", "--html", "page.html", "--text", __file__], 2, "leave out --text and --html"),
        (["--weights", "--layers", "9"], 2, "layers = 9 is outside its domain"),
    ],
)
def test_options_that_mean_nothing(bert, inside, options, code, message):
    quick = QUICK if "--tokens" not in options and "--weights" not in options else ()
    result = bulkedge("scan", bert, *quick, *options, code=code)
    assert message in words(result)
    assert "Traceback" not in result.output
    assert list(inside.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"caf\xe9 au lait", "is not a text in UTF-8: invalid continuation byte at byte 3"),
        (b"", "has nothing in it to read"),
        (b" \n\t\n", "has nothing in it to read"),
    ],
)
def test_texts_that_are_none_are_refused_before_anything_is_loaded(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("too late"))
    monkeypatch.setattr(scanning, "scan", lambda *_, **__: pytest.fail("too late"))
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    result = bulkedge("scan", "--text", path, code=2)
    assert f"{path.name} {message}" in words(result)


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("minlm", 2, "did you mean minilm?"),
        ("no such model", 2, "is neither a file or folder here, nor a name of ['minilm'], nor a hub id"),
        ("nobody/nothing", 1, "nobody/nothing could not be read (HF_HUB_OFFLINE is set"),
    ],
)
def test_models_that_are_none(name, code, message):
    result = bulkedge("scan", name, *QUICK, code=code)
    assert message in words(result)


def test_folders_without_a_model(bert, tmp_path):
    assert "has no config.json" in words(bulkedge("scan", tmp_path, *QUICK, code=1))
    broken = shutil.copytree(bert, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights")
    assert "safetensors" in words(bulkedge("scan", broken, *QUICK, code=1))
    assert "Traceback" not in bulkedge("scan", broken, "--weights", code=1).output
    mute = shutil.copytree(bert, tmp_path / "mute", ignore=shutil.ignore_patterns("tokenizer*", "special*"))
    assert "came without a tokenizer" in words(bulkedge("scan", mute, *QUICK, code=2))
    assert "--weights needs MODEL" in words(bulkedge("scan", "--weights", code=2))


def test_ctrl_c_says_that_nothing_was_written(bert, monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "load_model", interrupted)
    result = bulkedge("scan", bert, *QUICK, "--html", tmp_path / "page.html", code=130)
    assert "stopped; nothing was written" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_torch_it_says_how_to_install_it(bert, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    for model in ([bert], ["minilm"], []):
        result = bulkedge("scan", *model, *QUICK, code=1)
        assert package in result.output
        assert "pip install 'bulkedge[torch]'" in words(result)
    assert "by their weights alone" in bulkedge("scan", bert, "--weights").output  # which need neither


# -- many models -------------------------------------------------------------------------------------------------------


def test_a_sweep_over_models_of_any_shape(bert, gpt2, tmp_path):
    """Into one store, which the same command resumes; heads that a model lacks are nan."""
    command = ["sweep", "heads/scan", "--grid", f"model={bert},{gpt2}", "--tokens", 24, "--draws", 5]
    command += ["--workers", 1, "--out", tmp_path / "runs", "--json"]
    assert json.loads(bulkedge(*command).stdout)["done"] == 2
    assert json.loads(bulkedge(*command).stdout)["done"] == 2
    data = open_sweep(tmp_path / "runs").sel(state="as it is", repetition=0)
    heads = data.beta.notnull().sum("item").to_series().to_dict()
    assert heads == {str(bert): 6, str(gpt2): 4}
    direct = be.scan(str(bert), tokens=24, draws=0, probe=False)
    found = data.beta.sel(model=str(bert)).to_numpy()
    assert np.allclose(found[:6], direct.data.beta.to_numpy()[0], rtol=1e-6)
    # claims and figure of one of them, which has nothing before training
    study = studies()["heads/scan"](model=str(gpt2), tokens=24, draws=5)
    alone = open_sweep(tmp_path / "runs").sel(model=str(gpt2), repetition=0).isel(item=slice(4))
    claims = study.claims(alone)
    assert len(claims) == 2
    assert all(claim.verdict != "holds" for claim in claims)  # its weights are random, and draws depend on its path
    assert len(study.plot(alone.assign_attrs(parameters=json.dumps(study.parameters()))).axes) == 2


def test_heads_are_removed_and_the_smaller_model_is_saved(gpt2, inside):
    """The saved model says what the whole one says with these heads switched off."""
    text = inside / "text.txt"
    text.write_text("it was the white rabbit, trotting slowly back again, and looking anxiously about as it went.")
    quick = ("--text", text, *QUICK)
    done = bulkedge("scan", gpt2, *quick, "--remove", 0.25, "--out", "smaller")
    assert "Removed 1 of 4 heads: " in done.output
    assert done.stdout.splitlines()[-1] == "the smaller model is in smaller"
    whole = transformers.AutoModel.from_pretrained(gpt2).eval()
    smaller = transformers.AutoModel.from_pretrained(inside / "smaller").eval()
    layer, head = map(int, re.search(r"The heads that cost least: layer (\d), head (\d)\.", done.stdout).groups())
    ids = torch.arange(20)[None]
    with torch.no_grad(), be.models.ablate_heads(whole, {f"h.{layer}.attn": [head]}):
        expected = whole(ids).last_hidden_state
    with torch.no_grad():
        torch.testing.assert_close(smaller(ids).last_hidden_state, expected, rtol=1e-5, atol=1e-5)
    assert transformers.AutoTokenizer.from_pretrained(inside / "smaller")("rabbit")["input_ids"]
    for wrong, words in (
        (("--out", "other"), "--remove SHARE"),
        (("--remove", 0.1), "less than one head"),
        (("--remove", 1.5), "--remove"),
        (("--remove", 0.5, "--out", "smaller"), "is there already"),
    ):
        refused = bulkedge("scan", gpt2, *quick, *wrong, code=2 if "already" not in words else 1)
        assert words in refused.output
