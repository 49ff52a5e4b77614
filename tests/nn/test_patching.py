"""Patches lie on the model: they copy, pickle, save, load and nest with it, and come off in any order, bit for bit."""

import copy
import gc
import io
import itertools
import pickle
import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from small_models import MODELS, SMALL, build, hidden  # noqa: E402

from bulkedge import nn  # noqa: E402
from bulkedge.nn.patching import interface  # noqa: E402


@pytest.fixture(autouse=True)
def sharpened(monkeypatch):
    """Another kind of patch, with a parameter: queries times a factor."""
    monkeypatch.setitem(
        interface._transforms, "sharpened", lambda call, told: call._replace(query=call.query * told["factor"])
    )


def sharpen(model, factor=2.0):
    return nn.apply_patch(model, "sharpened", {"factor": factor})


def differs(one, other):
    """By far more than rounding."""
    return (one - other).abs().max() > 0.01


@pytest.mark.parametrize("ran", [False, True], ids=["before a pass", "after a pass"])
@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_is_collected(name, ran):
    model, inputs = build(name)
    nn.remove_gap(model)
    if ran:
        hidden(model, inputs)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("ran", [False, True], ids=["before a pass", "after a pass"])
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
@pytest.mark.parametrize("name", MODELS)
def test_copies_are_patched_and_restored_apart(name, way, ran):
    model, inputs = build(name)
    before = hidden(model, inputs)
    nn.remove_gap(model)
    if ran:
        hidden(model, inputs)
    if way == "deepcopy":
        other = copy.deepcopy(model)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(model))  # noqa: S301 - written above
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    patched = hidden(model, inputs)
    assert differs(patched, before)
    assert torch.equal(hidden(other, inputs), patched)
    nn.restore_gap(model)
    assert torch.equal(hidden(model, inputs), before)
    assert torch.equal(hidden(other, inputs), patched)
    nn.restore_gap(other)
    assert torch.equal(hidden(other, inputs), before)
    assert not other._forward_hooks
    assert not other._forward_pre_hooks
    assert nn.patches(other) == ()


@pytest.mark.parametrize("name", MODELS)
def test_nested_patches_come_off_in_all_orders(name):
    model, inputs = build(name)
    state = copy.deepcopy(vars(model.config))
    outputs = {(): hidden(model, inputs)}
    makers = {"gap": nn.remove_gap, "sharp": sharpen, "again": nn.remove_gap, "sharper": sharpen}

    def on(active):
        """What the patches that are on should give: the gap is gone once, factors multiply."""
        return min(1, active.count("gap") + active.count("again")), active.count("sharp") + active.count("sharper")

    expected = {(0, 0): outputs[()]}
    for gap, sharp in itertools.product((0, 1), (0, 1, 2)):
        other = copy.deepcopy(model)
        for maker in gap * [nn.remove_gap] + sharp * [sharpen]:
            maker(other)
        expected[gap, sharp] = hidden(other, inputs)
    for one, two in itertools.combinations(expected.values(), 2):
        assert differs(one, two)
    for order in itertools.permutations(makers):
        handles, active = {each: maker(model) for each, maker in makers.items()}, list(makers)
        assert torch.equal(hidden(model, inputs), expected[on(active)])
        for each in order:
            nn.restore(handles[each])
            active.remove(each)
            assert torch.equal(hidden(model, inputs), expected[on(active)])
        assert vars(model.config) == state


def test_what_a_configuration_asked_for_is_asked_for_again():
    model, _ = build("bert")
    model.config.attn_implementation = "eager"
    state = copy.deepcopy(vars(model.config))
    with nn.remove_gap(model):
        assert model.config.attn_implementation == "bulkedge.nn"
    assert vars(model.config) == state


def test_contexts_may_interleave_and_fail():
    model, inputs = build("gpt2")
    before = hidden(model, inputs)
    first, second, third = nn.remove_gap(model), sharpen(model), nn.remove_gap(model)
    patched = hidden(model, inputs)

    def interrupted():
        first.__enter__()
        with third, second:
            first.__exit__(None, None, None)
            assert torch.equal(hidden(model, inputs), patched)
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert torch.equal(hidden(model, inputs), before)
    with nn.remove_gap(model) as outer, nn.remove_gap(model) as inner:
        assert outer.active
        nn.restore(outer)
        assert inner.active
        assert not outer.active
    assert torch.equal(hidden(model, inputs), before)


@pytest.mark.parametrize("ran", [False, True], ids=["first pass", "second pass"])
def test_an_error_in_a_pass_leaves_nothing_behind(ran, monkeypatch):
    model, inputs = build("llama")
    before = hidden(model, inputs)

    def interrupted():
        with nn.remove_gap(model):
            if ran:
                hidden(model, inputs)
            monkeypatch.setattr(model.norm, "forward", broken)
            hidden(model, inputs)

    def broken(*_):
        raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    monkeypatch.undo()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert torch.equal(hidden(model, inputs), before)


FRESH = """
import sys, torch, transformers
folder, *names = sys.argv[1:]
try:
    transformers.AutoModel.from_pretrained(f"{folder}/bert/saved")
except ValueError as error:
    print(error)
assert "bulkedge" not in sys.modules
model, inputs = torch.load(f"{folder}/model.pt", weights_only=False)
assert "bulkedge.nn" in sys.modules
torch.save(model(**inputs).last_hidden_state.detach(), f"{folder}/outputs.pt")
for name in names:
    model = transformers.AutoModel.from_pretrained(f"{folder}/{name}/saved").eval()
    inputs = torch.load(f"{folder}/{name}/inputs.pt")
    with torch.no_grad():
        outputs = [model(**inputs).last_hidden_state]
        sys.modules["bulkedge.nn"].restore_gap(model)
        outputs.append(model(**inputs).last_hidden_state)
    torch.save(outputs, f"{folder}/{name}/outputs.pt")
"""
"""What a process that has not heard of bulkedge makes of a saved model, of a pickled one, and then of saved ones."""


def saved(name, folder):
    model, inputs = build(name)
    before = hidden(model, inputs)
    nn.remove_gap(model)
    after = hidden(model, inputs)
    model.save_pretrained(folder / "saved")
    torch.save(inputs, folder / "inputs.pt")
    return model, inputs, before, after


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The folder that a fresh process has read and written, what it printed, and hidden states of the models."""
    folder, written = tmp_path_factory.mktemp("fresh"), {}
    for name in MODELS:
        (folder / name).mkdir()
        model, inputs, *written[name] = saved(name, folder / name)
        if name == "bert":
            torch.save([model, inputs], folder / "model.pt")
    done = subprocess.run([sys.executable, "-c", FRESH, folder, *MODELS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout, written


def test_saved_models_are_patched_when_loaded_in_a_fresh_process(fresh):
    folder, _, written = fresh
    for name, (before, after) in written.items():
        patched, restored = torch.load(folder / name / "outputs.pt")
        assert torch.equal(patched, after), name
        assert torch.equal(restored, before), name


def test_a_saved_model_is_refused_where_bulkedge_is_not_imported(fresh):
    assert 'attn_implementation="bulkedge.nn"` is not supported' in fresh[1]


def test_a_pickled_model_brings_its_import(fresh):
    folder, _, written = fresh
    assert torch.equal(torch.load(folder / "outputs.pt"), written["bert"][1])


@pytest.mark.parametrize("other", ["eager", "sdpa"])
def test_whatever_implementation_is_asked_for_the_patch_stays(other, tmp_path):
    model, inputs, before, after = saved("gpt2", tmp_path)
    loaded = type(model).from_pretrained(tmp_path / "saved", attn_implementation=other).eval()
    assert torch.equal(hidden(loaded, inputs), after)
    model.set_attn_implementation(other)
    assert torch.equal(hidden(model, inputs), after)
    nn.restore_gap(model)
    assert model.config._attn_implementation == other
    torch.testing.assert_close(hidden(model, inputs), before, atol=1e-5, rtol=0)


def test_saved_twice_is_still_patched(tmp_path):
    model, inputs, before, after = saved("vit", tmp_path)
    sharpen(model)
    both = hidden(model, inputs)
    kinds = ["gap_free", "sharpened"]
    for generation in ("first", "second", "third"):
        model.save_pretrained(tmp_path / generation)
        model = type(model).from_pretrained(tmp_path / generation).eval()
        assert [each.kind for each in nn.patches(model)] == kinds
        # without this line a process that does not know the patches would build a plain model
        assert '"attn_implementation": "bulkedge.nn"' in (tmp_path / generation / "config.json").read_text()
    assert torch.equal(hidden(model, inputs), both)
    nn.restore(model, "sharpened")
    assert torch.equal(hidden(model, inputs), after)
    nn.restore(model)
    assert torch.equal(hidden(model, inputs), before)
    model.save_pretrained(tmp_path / "plain")
    assert "bulkedge" not in (tmp_path / "plain" / "config.json").read_text()


def clip():
    torch.manual_seed(0)
    text = SMALL | {"vocab_size": 50, "max_position_embeddings": 32}
    config = transformers.CLIPConfig(text_config=text, vision_config=SMALL | {"image_size": 16, "patch_size": 4})
    model = transformers.CLIPModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8 if weight.dim() == 2 else 1)
    return model, {"input_ids": torch.randint(0, 50, (2, 9)), "pixel_values": torch.randn(2, 3, 16, 16)}


def embedded(model, inputs):
    with torch.no_grad():
        output = model(**inputs)
    return torch.stack([output["text_embeds"], output["image_embeds"]])


@pytest.mark.parametrize("inner_first", [True, False])
def test_a_model_inside_a_model_has_patches_of_its_own(inner_first, tmp_path):
    model, inputs = clip()
    before = embedded(model, inputs)
    inner = nn.remove_gap(model.text_model)
    text = embedded(model, inputs)
    assert differs(text[0], before[0])
    assert torch.equal(text[1], before[1])
    model.save_pretrained(tmp_path / "text")
    assert torch.equal(embedded(type(model).from_pretrained(tmp_path / "text").eval(), inputs), text)
    outer = nn.remove_gap(model)
    assert model._forward_hooks  # its first pass is watched, though a model inside was patched before
    both = embedded(model, inputs)
    assert torch.equal(both[0], text[0])
    assert differs(both[1], before[1])
    model.save_pretrained(tmp_path / "both")
    loaded = type(model).from_pretrained(tmp_path / "both").eval()
    assert torch.equal(embedded(loaded, inputs), both)
    first, second, between = (inner, outer, both) if inner_first else (outer, inner, text)
    nn.restore(first)
    assert torch.equal(embedded(model, inputs), between)
    nn.restore(second)
    assert torch.equal(embedded(model, inputs), before)
    assert not nn.patches(model)
    nn.restore_gap(loaded)
    assert torch.equal(embedded(loaded, inputs), before)


def test_generation_from_a_loaded_model(tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=3, n_head=4, n_embd=32, vocab_size=50, n_positions=64, bos_token_id=0, eos_token_id=49
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    nn.remove_gap(model)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(0, 49, (2, 8))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 49, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(loaded.generate(ids, **options), model.generate(ids, **options))


def test_mistakes():
    model, inputs = build("bert")
    handle = nn.remove_gap(model)
    nn.restore(handle)
    with pytest.raises(ValueError, match="BertModel does not have that patch: it was taken off before"):
        nn.restore(handle)
    with pytest.raises(ValueError, match=r"BertModel does not have that patch: it has \[\]"):
        nn.restore(model)
    for parameters in ({"factor": torch.ones(2)}, {"factor": (1.0, 2.0)}, {3: 1.0}):
        with pytest.raises(ValueError, match="would be saved as JSON, and come back as"):
            nn.apply_patch(model, "sharpened", parameters)
    with pytest.raises(ValueError, match="kind = 'blunted' is no patch of this version of bulkedge"):
        nn.apply_patch(model, "blunted")
    with pytest.raises(ValueError, match=r"'nothing' is not what bulkedge\.nn writes into configurations"):
        type(model.config)(bulkedge_patches="nothing")
    with pytest.raises(ValueError, match="kind = 'later' is no patch of this version"):
        type(model.config)(bulkedge_patches=["sdpa", None, [["later", {}, "1"]]])
    with pytest.raises(AttributeError, match="BertConfig has no bulkedge_patches: it is not patched"):
        _ = model.config.bulkedge_patches
    interface.register()
    model.set_attn_implementation("bulkedge.nn")
    with pytest.raises(ValueError, match=r"asks for the attention 'bulkedge\.nn' without a patch that says which"):
        hidden(model, inputs)


def test_configurations_that_choose_by_themselves_are_refused(monkeypatch):
    model, _ = build("bert")
    monkeypatch.setattr(type(model.config), "_attn_implementation", "sdpa", raising=False)
    with pytest.raises(ValueError, match="BertModel computes its attention by itself"):
        nn.remove_gap(model)
