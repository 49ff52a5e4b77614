"""Models that call torch's own attention: nanoGPT, timm, torchtitan and diffusers in style; and what stands around."""

import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import build as small_model  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.models import ablate_heads, capture  # noqa: E402
from bulkedge.nn import prune_heads, remove_gap, restore, scale_scores  # noqa: E402
from bulkedge.support.errors import DomainError, RegimeWarning  # noqa: E402

HEADS, DIM, WIDTH, WORDS, TOKENS = 4, 8, 32, 50, 24
IDS = torch.arange(TOKENS)[None] * 7 % WORDS
QUICK = {"draws": 0, "probe": False}


class Fused(nn.Module):
    """One map for queries, keys and values, as in nanoGPT and timm."""

    def __init__(self, how="module", *, causal=True):
        super().__init__()
        self.qkv, self.proj, self.how, self.causal = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), how, causal

    def split(self, x):
        return (each.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for each in self.qkv(x).split(WIDTH, dim=2))

    def forward(self, x):
        q, k, v = self.split(x)
        if self.how == "flex":
            tokens = x.shape[1]
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, tokens, tokens, device="cpu")
            y = flex_attention(q, k, v, block_mask=mask, scale=0.3)
        elif self.how == "name":
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() if self.causal else None
            y = scaled_dot_product_attention(q, k, v, mask, scale=0.3)
        else:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=0.3)
        return self.proj(y.transpose(1, 2).flatten(2))


class Inner(nn.Module):
    """torchtitan calls the function in a module without weights; its heads share keys."""

    def forward(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Titan(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (
            nn.Linear(WIDTH, n, bias=False) for n in (WIDTH, WIDTH // 2, WIDTH // 2, WIDTH)
        )
        self.inner = Inner()

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (-1, DIM)).transpose(1, 2) for each in (self.wq, self.wk, self.wv))
        return self.wo(self.inner(q, k, v).transpose(1, 2).flatten(2))


class Processed(nn.Module):
    """diffusers has a function of its own do the work of a module, and a list for the projection."""

    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0)])

    def forward(self, x):
        return self.process(self, x)

    @staticmethod
    def process(attn, x):
        q, k, v = (each(x).unflatten(-1, (-1, DIM)).transpose(1, 2) for each in (attn.to_q, attn.to_k, attn.to_v))
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.0)
        return attn.to_out[1](attn.to_out[0](y.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), attention

    def forward(self, x):
        return x + self.attn(self.norm(x))


# as flex attention is often called: compiled by itself, as a name of a module or of a class
alone = torch.compile(flex_attention, backend="eager")


class Alone(Fused):
    kernel = staticmethod(torch.compile(flex_attention, backend="eager"))

    def forward(self, x):
        q, k, v = self.split(x)
        y = (alone if self.how == "module" else self.kernel)(q, k, v, scale=0.3)
        return self.proj(y.transpose(1, 2).flatten(2))


class GPT(nn.Module):
    """nanoGPT's way to be called: ``idx`` and ``targets``; logits of the last position alone without these."""

    def __init__(self, make=Fused, layers=2):
        super().__init__()
        self.config = types.SimpleNamespace(vocab_size=WORDS, block_size=64)
        self.wte, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.h = nn.ModuleList([Block(make()) for _ in range(layers)])

    def forward(self, idx, targets=None):
        x = self.wte(idx)
        for block in self.h:
            x = block(x)
        if targets is None:
            return self.head(x[:, [-1]]), None
        logits = self.head(x)
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt(make=Fused, **options):
    torch.manual_seed(0)
    model = GPT(lambda: make(**options)).eval()
    for weight in model.parameters():
        weight.data *= 3 if weight.ndim == 2 else 1
    return model


def logits(model, inputs):
    return model(inputs["input_ids"], targets=inputs["input_ids"])[0]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("make", [Fused, lambda: Fused("name"), lambda: Fused("flex"), Titan, Processed])
def test_what_is_read_is_what_the_model_computes(make):
    """The attention that was read, times values made by hand, behind the projection, is what the module returned."""
    torch.manual_seed(1)
    model = GPT(make).eval()
    outputs = []
    for block in model.h:
        block.attn.register_forward_hook(lambda module, given, output: outputs.append((given[0], output)))
    with torch.no_grad():
        layers = capture(model, idx=IDS)
        assert [each.name for each in layers] == ["h.0.attn", "h.1.attn"]
        for block, layer, (given, output) in zip(model.h, layers, outputs, strict=True):
            attn = block.attn
            if isinstance(attn, Fused):
                values = list(attn.split(given))[2]
            else:
                values = (
                    (attn.wv if isinstance(attn, Titan) else attn.to_v)(given).unflatten(-1, (-1, DIM)).transpose(1, 2)
                )
            values = values.repeat_interleave(HEADS // values.shape[1], 1).double()
            mixed = (layer.attention() @ values).transpose(1, 2).flatten(2).float()
            last = attn.proj if isinstance(attn, Fused) else attn.wo if isinstance(attn, Titan) else attn.to_out[0]
            torch.testing.assert_close(last(mixed), output, rtol=1e-5, atol=1e-5)
    assert functional.scaled_dot_product_attention is scaled_dot_product_attention  # and is as it was


def test_a_model_of_its_own_is_scanned_by_its_token_ids():
    """Ids go by whatever name the model has for them; importance, probe, removal and ablation come along."""
    model = gpt()
    found = be.scan(model, IDS, draws=5, importance=True, forward=logits)
    assert len(found.table) == 2 * HEADS
    for name in ("induction", "importance", "importance_copies", "output", "p_spectrum"):
        assert np.isfinite(found.data[name]).all()
    assert found.data.attrs["architecture"] == "GPT"
    (layer, head), *_ = removal = found.removable(2, steps=2)
    assert found.model is model
    result = found.ablate(lambda each: logits(each, {"input_ids": IDS}).detach().square().mean(-1)[0], removal, draws=2)
    assert np.isfinite([result.cost, result.error, result.copies.cost]).all()
    with ablate_heads(model, {f"h.{layer}.attn": [head]}), torch.no_grad():
        gone = logits(model, {"input_ids": IDS})
    weight = model.h[layer].attn.proj.weight
    with torch.no_grad():
        weight[:, head * DIM : (head + 1) * DIM] = 0
        torch.testing.assert_close(gone, logits(model, {"input_ids": IDS}), rtol=1e-5, atol=1e-5)
    plain = be.scan(model, IDS, draws=0)  # without forward=, as the model reads idx
    assert plain.data["beta"].notnull().all()
    missing = be.scan(model, IDS, **QUICK, importance=True)  # logits of the last position say nothing of copies
    assert any("forward=" in each for each in missing.warnings)
    assert missing.data["beta"].notnull().all()


def test_images_of_a_model_that_calls_them_x():
    class Vision(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(3, WIDTH, 4, 4)
            self.blocks = nn.ModuleList([Block(Fused(causal=False))])

        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2)
            return self.blocks[0](x)

    class Named(Vision):
        def forward(self, pixels=None, **options):  # as models of transformers do, and one answer for an image
            assert not options
            return types.SimpleNamespace(logits=super().forward(pixels).mean(1))

    one = be.scan(Named(), torch.randn(1, 3, 16, 16), **QUICK, importance=True)
    assert one.data["importance"].notnull().all()
    cost = one.moved([(0, 1)])
    assert cost.value > 0
    assert np.isnan(cost.error)  # a single answer does not tell it
    assert len(one.removable(2, steps=2)) == 2
    found = be.scan(Vision(), torch.randn(2, 3, 16, 16), **QUICK, importance=True)
    assert found.data.sizes["text"] == 2
    assert found.data["importance"].notnull().all()
    assert not found.data.attrs["causal"]


def test_a_watch_reads_them_in_training():
    model = gpt().train()
    with be.watch(model, every=1) as watched:
        model(IDS, IDS)[1].backward()
    assert watched.data.sizes["head"] == HEADS
    assert watched.data["beta"].notnull().all()


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler looks at what it passes on
@pytest.mark.parametrize("how", ["module", "class"])
def test_flex_attention_that_is_compiled_by_itself_is_read(how):
    model, expected = gpt(Alone, how=how).train(), gpt(causal=False).train()
    found = []
    for each in (model, expected):
        with be.watch(each, every=1) as watched, torch.no_grad():  # on a processor it has no gradients
            each(IDS)
        found.append(watched.data)
    for name, values in found[1].items():
        np.testing.assert_allclose(found[0][name], values, rtol=1e-5, atol=1e-5, err_msg=name)
    assert Alone.kernel is vars(Alone)["kernel"].__func__


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_what_is_not_read_is_refused():
    class Flat(Fused):
        def forward(self, x):
            return self.proj(functional.scaled_dot_product_attention(*(each[0] for each in self.split(x)))[None, 0])

    class Scored(Fused):
        def forward(self, x):
            return self.proj(
                flex_attention(*self.split(x), score_mod=lambda s, b, h, i, j: s + 1).transpose(1, 2).flatten(2)
            )

    class Twice(Fused):
        def forward(self, x):
            return super().forward(super().forward(x))

    for make, words in ((Flat, "on 3 axes"), (Scored, "score_mod"), (Twice, "several times")):
        with pytest.raises(DomainError, match=words):
            capture(GPT(make), idx=IDS)


# -- what stands around a model ----------------------------------------------------------------------------------------


class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, batch):
        return self.inner(**batch)


class Parallel(nn.DataParallel):
    """Runs without a GPU, as distributed training has it."""

    def __init__(self, module):
        nn.Module.__init__(self)
        self.module, self.device_ids = module, []


def compiled(model):
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("around", [Wrapper, Parallel, compiled])
def test_wrappers_are_seen_through(around):
    model, inputs = small_model("llama")
    plain = be.scan(model, inputs, **QUICK)
    outer = around(model)
    found = be.scan(outer, inputs, **QUICK)
    assert found.table.equals(plain.table)
    with remove_gap(outer):
        assert be.nn.patches(model) == be.nn.patches(outer) != ()
    scale_scores(outer, {"layers.0.self_attn": 1.5})
    restore(outer)
    assert be.nn.patches(model) == ()

    def loss(each):
        return (each(inputs) if isinstance(each, Wrapper) else each(**inputs)).last_hidden_state.square().mean((1, 2))

    costs = [found.ablate(loss, [(0, 1)], draws=2, model=each).cost for each in (model, outer)]
    assert costs[0] == costs[1] != 0
    assert prune_heads(outer, [(0, 1)]).heads == {"layers.0.self_attn": (1,)}
    if around is not compiled:
        with be.watch(outer.train(), every=1) as watched:
            outer(inputs) if around is Wrapper else outer(**inputs)
        assert watched.data["module"].to_numpy().tolist() == [f"layers.{k}.self_attn" for k in range(3)]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # which peft asks
def test_adapters_are_seen_through():
    peft = pytest.importorskip("peft", reason="adapters need peft, of the extra test-torch")
    model, inputs = small_model("llama")
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj", "o_proj"], init_lora_weights=False)
    )
    adapted.eval()
    with torch.no_grad():
        expected = adapted(**inputs).last_hidden_state
    found = be.scan(adapted, inputs, **QUICK, importance=True)
    assert found.table["module"].unique().tolist() == [f"layers.{k}.self_attn" for k in range(3)]
    assert found.data["importance"].notnull().all()
    with remove_gap(adapted), torch.no_grad():
        assert (adapted(**inputs).last_hidden_state - expected).abs().max() > 1e-2
    scale_scores(adapted, 1.1)
    restore(adapted)
    with torch.no_grad():
        assert torch.equal(adapted(**inputs).last_hidden_state, expected)
    with be.watch(adapted.train(), every=1) as watched:
        adapted(**inputs)
    assert watched.data.sizes["layer"] == 3
    with pytest.raises(DomainError, match="merge adapters"):
        prune_heads(adapted, [(0, 1)])
    assert prune_heads(adapted.merge_and_unload(), [(0, 1)]).count == 12


def test_a_model_of_its_own_says_how_many_tokens_it_knows_and_reads():
    model = gpt()
    model.config = types.SimpleNamespace(vocab_size=WORDS, block_size=16)
    with pytest.warns(RegimeWarning, match="cut to the model's 16 positions"):
        assert be.scan(model, IDS, draws=0).data.attrs["tokens"] == 16
    del model.config
    remedy = r"set model.config = types.SimpleNamespace\(vocab_size=..., block_size=...\)"
    with pytest.warns(RegimeWarning, match=remedy):
        found = be.scan(model, IDS, draws=0, importance=True)
    found.data["largest"][:] = 1.0  # heads are frozen, a warning that has nothing to do with it
    with pytest.raises(DomainError, match=rf"{remedy}\.$"):
        found.removable(1)
