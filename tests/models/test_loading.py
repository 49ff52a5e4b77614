"""Models from files: whole or refused, in words, and without network."""

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from bulkedge.models import load_model, scan_weights  # noqa: E402
from bulkedge.models.loading import loader as loading  # noqa: E402
from bulkedge.support.errors import BulkedgeError, DomainError, MissingPackageError, StoreError  # noqa: E402

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 8}
INPUTS = {"input_ids": torch.arange(6)[None]}


def gpt2(cls="GPT2LMHeadModel", layers=2):
    config = transformers.GPT2Config(n_layer=layers, n_head=2, n_embd=8, vocab_size=20, n_positions=16)
    return getattr(transformers, cls)(config)


def llama(cls="LlamaForCausalLM"):
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=1, vocab_size=20, max_position_embeddings=16)
    return getattr(transformers, cls)(config)


def bert(cls="BertForMaskedLM"):
    return getattr(transformers, cls)(transformers.BertConfig(**SMALL, vocab_size=20, max_position_embeddings=16))


def saved(model, folder):
    torch.manual_seed(0)
    model.save_pretrained(folder)
    return model.eval()


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Every connection is a failure of the test."""

    def connect(*_):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)


@pytest.mark.parametrize(
    ("build", "cls", "expected"),
    [
        (gpt2, "GPT2LMHeadModel", "GPT2LMHeadModel"),
        (gpt2, "GPT2Model", "GPT2LMHeadModel"),  # its head is the embedding, so there is a loss
        (llama, "LlamaForCausalLM", "LlamaForCausalLM"),
        (llama, "LlamaModel", "LlamaModel"),  # a head would be random
        (bert, "BertModel", "BertModel"),
        (bert, "BertForMaskedLM", "BertForMaskedLM"),
    ],
)
def test_a_folder_gives_the_model_that_was_saved(tmp_path, build, cls, expected):
    model = saved(build(cls), tmp_path / "some model")
    found, tokenizer, title = load_model(tmp_path / "some model")
    assert (type(found).__name__, tokenizer, title, found.training) == (expected, None, "some model", False)
    with torch.no_grad():
        output = found.base_model(**INPUTS)[0]
        assert torch.equal(output, model.base_model(**INPUTS)[0])
    if "LM" in expected:
        assert found(**INPUTS, labels=INPUTS["input_ids"]).loss.isfinite()


def test_a_tokenizer_comes_with_its_folder(tmp_path):
    from bulkedge.models.loading.default import letters

    saved(gpt2(), tmp_path)
    letters().save_pretrained(tmp_path)
    _, tokenizer, _ = load_model(str(tmp_path))
    assert tokenizer("Oh dear!")["input_ids"] == letters()("oh dear_")["input_ids"]


def test_nobody_is_asked_for_what_a_folder_lacks(tmp_path, monkeypatch):
    from bulkedge.models.loading.default import letters

    asked = []
    for each in (transformers.AutoTokenizer, transformers.GPT2LMHeadModel):
        read = each.from_pretrained
        monkeypatch.setattr(
            each, "from_pretrained", lambda *given, read=read, **o: asked.append(o) or read(*given, **o)
        )
    saved(gpt2(), tmp_path)
    letters().save_pretrained(tmp_path)
    load_model(tmp_path)
    assert [each.get("local_files_only") for each in asked] == [True] * len(asked) != []


@pytest.mark.parametrize("suffix", [".safetensors", ".bin", ".pt"])
@pytest.mark.parametrize("wrapper", [None, "state_dict"])
def test_a_file_of_weights_with_its_configuration(tmp_path, suffix, wrapper):
    if wrapper and suffix == ".safetensors":
        pytest.skip("safetensors does not nest")
    model = saved(llama(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    path = tmp_path / f"step-10{suffix}"
    if suffix == ".safetensors":
        save_file(weights, path)
    else:
        torch.save({wrapper: weights, "step": 10} if wrapper else weights, path)
    found, _, title = load_model(path)
    assert title == "step-10"
    with torch.no_grad():
        assert torch.equal(found(**INPUTS).logits, model(**INPUTS).logits)


def test_precision_is_as_saved_or_as_asked(tmp_path):
    saved(gpt2().to(torch.bfloat16), tmp_path)
    assert load_model(tmp_path)[0].dtype == torch.bfloat16
    assert load_model(tmp_path, dtype="float64", device="cpu")[0].dtype == torch.float64
    assert load_model(tmp_path, dtype=torch.float32)[0].dtype == torch.float32
    with pytest.raises(DomainError, match="int8"):
        load_model(tmp_path, dtype="int8")
    with pytest.raises(DomainError, match="fridge"):
        load_model(tmp_path, device="fridge")


def test_a_device_that_is_not_there_is_named(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("it is there")
    saved(gpt2(), tmp_path)
    with pytest.raises(DomainError, match="cuda"):
        load_model(tmp_path, device="cuda")


@pytest.mark.parametrize("name", ["no/such/folder", "gpt2", "/no/such", "a/model.gguf", "../up", "~nobody/x/y", "a//b"])
def test_what_is_nothing_says_so(name):
    with pytest.raises(DomainError, match="neither a file or folder"):
        load_model(name)


def test_a_folder_without_configuration(tmp_path):
    saved(gpt2(), tmp_path)
    (tmp_path / "config.json").unlink()
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(StoreError, match=r"no config\.json"):
            load_model(path)


def test_a_folder_without_weights(tmp_path):
    gpt2().config.save_pretrained(tmp_path)
    with pytest.raises(StoreError, match=r"has none of model\.safetensors"):
        load_model(tmp_path)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(DomainError, match=r"ends in none of \.safetensors"):
        load_model(tmp_path / "notes.txt")


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("transformer.h.1.attn.c_attn.weight"), r"lack 1 weights.*c_attn"),
        (lambda weights: weights.clear(), "lack"),
        (lambda weights: weights.update({"transformer.h.1.ln_1.weight": torch.ones(9)}), "shape"),
        (lambda weights: weights.update({"transformer.h.2.ln_1.weight": torch.ones(8)}), "more layers"),
        (lambda weights: weights.update({"h.2.ln_1.weight": torch.ones(8)}), "more layers"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, change, message, as_file):
    saved(gpt2(), tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(StoreError, match=message):
        load_model(path if as_file else tmp_path)


def test_weights_that_no_model_uses_do_no_harm(tmp_path):
    model = saved(gpt2(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"classifier.weight": torch.ones(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path)[0](**INPUTS).logits, model(**INPUTS).logits)


@pytest.mark.parametrize("cut", [0, 5, 200])
@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_damaged_files(tmp_path, suffix, cut):
    saved(gpt2(), tmp_path)
    path = tmp_path / "model.safetensors"
    if suffix == ".bin":
        torch.save(load_file(path), tmp_path / "pytorch_model.bin")
        path.unlink()
        path = tmp_path / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:cut])
    for each in (path, tmp_path):
        with pytest.raises(StoreError, match=tmp_path.name):
            load_model(each)


@pytest.mark.parametrize("kind", [".safetensors", ".bin"])
@pytest.mark.parametrize("name", ["../other/part", "{}/other/part", "part/../../other/part", "..\\other\\part"])
def test_an_index_that_leads_out_of_the_folder_is_refused(tmp_path, name, kind):
    """By the rule of scan_weights; transformers itself would read these files."""
    saved(gpt2(), tmp_path / "other").config.save_pretrained(tmp_path / "model")
    (tmp_path / "other" / "model.safetensors").rename(tmp_path / "other" / "part.safetensors")
    places = dict.fromkeys(load_file(tmp_path / "other" / "part.safetensors"), name.format(tmp_path) + kind)
    index = tmp_path / "model" / loading.INDEX_OF[kind]
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    for read in (load_model, scan_weights):
        with pytest.raises(StoreError, match="outside its folder: refused"):
            read(tmp_path / "model")


def test_an_index_of_the_hub_that_leads_out_of_its_folder_is_refused(tmp_path, monkeypatch):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../../other.safetensors"}}))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: str(index))
    with pytest.raises(StoreError, match="outside its folder: refused"):
        load_model("somebody/something")


def test_what_the_hub_is_asked_for_stays_in_the_cache_where_that_was_said(monkeypatch):
    """Weights come with the same keywords as the configuration, but for the one that models do not take."""
    config, asked = types.SimpleNamespace(sub_configs=()), []
    monkeypatch.setattr(loading, "_build", lambda *given, **where: asked.append((*given, where)))
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *_, **__: config)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: "tokenizer")
    given = {"trust_remote_code": False, "local_files_only": True, "gguf_file": "m.gguf"}
    assert loading._from_repository("a/b", given, {}) == (None, "tokenizer")
    assert asked == [(config, given, {}, "a/b", {"local_files_only": True, "gguf_file": "m.gguf"})]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "m.gguf", "tokenizer.json", "config.json"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, name):
    saved(gpt2(), tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    for path in (tmp_path, tmp_path / name):
        for read in (load_model, scan_weights):
            with pytest.raises(StoreError, match="is a pipe, socket or device"):
                read(path)


class Harm:
    """Unpickled without care, this makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["torch", "pickle"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_a_pickle_with_code_is_not_run(tmp_path, name, how):
    model = gpt2()
    model.config.save_pretrained(tmp_path)
    harm = {"weight": Harm(tmp_path / "harm"), **model.state_dict()}
    if how == "torch":
        torch.save(harm, tmp_path / name)
    else:
        (tmp_path / name).write_bytes(pickle.dumps(harm, protocol=2))
    for path in (tmp_path / name, *([tmp_path] if name == "pytorch_model.bin" else [])):
        with pytest.raises(StoreError, match="could run any code"):
            load_model(path)
    assert not (tmp_path / "harm").exists()
    pickle.loads(pickle.dumps(harm["weight"]))  # noqa: S301  # it would have: the test tests something
    assert (tmp_path / "harm").exists()


def changed(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_code_of_a_model_does_not_run_unless_asked(tmp_path):
    saved(gpt2(), tmp_path)
    (tmp_path / "own.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'harm')!r})\n")
    for entries in (
        {"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}, "model_type": "own"},
        {"_attn_implementation": "someone/kernel", "attn_implementation": "someone/kernel", "model_type": "gpt2"},
    ):
        changed(tmp_path, **entries)
        with pytest.raises(DomainError, match="trust_remote_code=True"):
            load_model(tmp_path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("name", ["pipeline", "AutoTokenizer", "__name__", "NoModel", 3])
def test_a_configuration_chooses_among_models_alone(tmp_path, name):
    saved(gpt2(), tmp_path)
    changed(tmp_path, architectures=[name])
    with pytest.raises(BulkedgeError, match=r"no model of transformers|can build"):
        load_model(tmp_path)


def test_a_hub_id_without_network_says_so(tmp_path):
    """In a process of its own: the hub's package reads the variable when it is imported."""
    program = (
        "import socket\n"
        "def connect(*_): raise SystemExit('a connection was opened')\n"
        "socket.socket.connect = socket.getaddrinfo = connect\n"
        "from bulkedge.models import load_model\n"
        "from bulkedge.support.errors import StoreError\n"
        "try:\n    load_model('no-such-organisation/no-such-model')\n"
        "except StoreError as error:\n    print(error)\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert "HF_HUB_OFFLINE is set" in done.stdout, done.stderr


def test_nothing_heavy_is_imported_before_it_is_used():
    loaded = "{'torch', 'transformers'} & {*sys.modules}"
    program = f"import sys, bulkedge.models.loading.loader, bulkedge.models.loading.default\nassert not {loaded}"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_names_and_nothing(monkeypatch):
    model = gpt2()
    monkeypatch.setattr(loading, "packaged_model", lambda name: (model, name))
    monkeypatch.setattr(loading, "default_model", lambda: (model, "letters"))
    assert load_model("minilm") == (model, "minilm", "minilm")
    for nothing in (None, ""):
        assert load_model(nothing)[1:] == ("letters", "the default decoder")


def without(monkeypatch, *packages):
    monkeypatch.setattr("bulkedge.support.errors.find_spec", lambda name: None if name in packages else object())


def test_missing_packages_are_named(monkeypatch, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    without(monkeypatch, "accelerate")
    with pytest.raises(MissingPackageError, match="GGUF file needs accelerate: pip install gguf accelerate"):
        load_model(path)
    with pytest.raises(MissingPackageError, match="pip install accelerate"):
        load_model("minilm", device="auto")
    without(monkeypatch, "torch", "transformers")
    with pytest.raises(MissingPackageError, match=r"torch and transformers: pip install 'bulkedge\[torch\]'"):
        load_model("minilm")


def test_a_reader_that_needs_a_package_says_which(monkeypatch, tmp_path):
    def needy(*_):
        raise ImportError("Please install torch and gguf>=0.10.0")

    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(loading, "_from_repository", needy)
    without(monkeypatch, "gguf")
    with pytest.raises(MissingPackageError, match="needs gguf: pip install gguf accelerate"):
        load_model(path)
    without(monkeypatch)
    with pytest.raises(MissingPackageError, match=r"gguf>=0\.10\.0"):
        load_model(path)


def test_a_gguf_file(tmp_path):
    gguf = pytest.importorskip("gguf", reason="GGUF files need the packages gguf and accelerate")
    pytest.importorskip("accelerate", reason="GGUF files need the packages gguf and accelerate")
    model = saved(llama(), tmp_path)
    write_gguf(gguf, model, tmp_path / "tiny.gguf")
    shutil.copy(tmp_path / "tiny.gguf", tmp_path / "cut.gguf")
    found, _, title = load_model(tmp_path / "tiny.gguf", dtype="float32")
    assert (type(found).__name__, title) == ("LlamaForCausalLM", "tiny")
    with torch.no_grad():
        assert (found(**INPUTS).logits - model(**INPUTS).logits).abs().max() < 1e-5
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "cut.gguf").read_bytes()[:400])
    with pytest.raises(StoreError, match="cut"):
        load_model(tmp_path / "cut.gguf")


NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def write_gguf(gguf, model, path):
    """A Llama in the layout of llama.cpp, in which rotary pairs of queries and keys are neighbours."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        kind, theirs = name.split(".")[-2], name
        for old, new in NAMES.items():
            theirs = theirs.replace(old, new)
        paired = weight.unflatten(0, (heads[kind], 2, -1)).transpose(1, 2).flatten(0, 2) if kind in heads else weight
        writer.add_tensor(theirs, paired.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
