"""Every option of torch's own module, drawn at random: outputs, weights and gradients beside it."""

import random

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from bulkedge.nn import GapFreeAttention  # noqa: E402

SEEDS = [pytest.param(seed, marks=pytest.mark.slow if seed >= 40 else ()) for seed in range(1000)]
"""The first few always, all of them among the slow checks."""
ROUNDINGS = 50
"""Of the largest number: sums have some tens of terms, and those for the bias of keys cancel."""


class Case:
    """One draw of all options: two modules with the same weights, and the arguments of a call."""

    def __init__(self, seed, **coefficients):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.seed, self.dtype = seed, draw.choice([torch.float64, torch.float64, torch.float32])
        self.heads, kind = draw.choice([1, 3, 4]), draw.choice(["self", "self", "memory", "apart", "other"])
        self.options = {
            "dropout": draw.choice([0.0, 0.0, 0.3]),
            "bias": draw.random() < 0.7,
            "add_bias_kv": draw.random() < 0.25,
            "add_zero_attn": draw.random() < 0.25,
            "batch_first": draw.random() < 0.5,
            "dtype": self.dtype,
        }
        if kind == "other":
            self.options |= {"kdim": draw.choice([None, 5]), "vdim": draw.choice([None, 7])}
        self.plain = nn.MultiheadAttention(12, self.heads, **self.options)
        for weight in self.plain.parameters():  # so large that attention is not uniform, and biases matter
            nn.init.normal_(weight, std=0.5)
        self.module = GapFreeAttention(12, self.heads, **self.options, **coefficients)
        self.module.load_state_dict(self.plain.state_dict(), strict=True)
        training = draw.random() < 0.7
        self.plain.train(training)
        self.module.train(training)
        self.tokens, self.keys = 6, 6 if kind == "self" else draw.choice([4, 6, 9])
        self.batch = draw.choice([None, 1, 3])
        self.inputs, self.call = self._inputs(kind), self._call(draw)

    def _inputs(self, kind):
        def tensor(tokens, width):
            shape = (tokens, width) if self.batch is None else (tokens, self.batch, width)
            drawn = torch.randn(shape, dtype=self.dtype)
            return (drawn.transpose(0, 1) if self.batch and self.options["batch_first"] else drawn).requires_grad_()

        first = tensor(self.tokens, 12)
        if kind == "self":
            return [first, first, first]
        if kind == "memory":
            return [first, *2 * [tensor(self.keys, 12)]]
        return [first, tensor(self.keys, self.plain.kdim), tensor(self.keys, self.plain.vdim)]

    def _call(self, draw):
        rows, batch = (self.tokens, self.keys), self.batch or 1
        every = {"flat": rows, "by head": (batch * self.heads, *rows)}
        call = {"need_weights": draw.random() < 0.6, "average_attn_weights": draw.random() < 0.5}
        mask, boolean = draw.choice([None, "flat", "by head", "causal", "hinted"]), draw.random() < 0.5
        if mask in every:
            call["attn_mask"] = self._hidden(every[mask], boolean=boolean)
        elif mask is not None:
            call["attn_mask"] = self._written(torch.ones(rows, dtype=torch.bool).triu(1), boolean=boolean)
            call["is_causal"] = mask == "hinted"
        if draw.random() < 0.4:
            shape = (self.keys,) if self.batch is None else (batch, self.keys)
            call["key_padding_mask"] = self._hidden(shape, boolean=boolean)
        return call

    def _hidden(self, shape, *, boolean):
        """Some keys hidden at random, never the first, so that every row sees one; numbers are a bias too."""
        hidden = torch.rand(shape) < 0.4
        hidden[..., 0] = False
        bias = 0 if boolean else torch.randn(shape, dtype=self.dtype)
        return self._written(hidden, boolean=boolean) + bias if not boolean else hidden

    def _written(self, hidden, *, boolean):
        return hidden if boolean else torch.zeros(hidden.shape, dtype=self.dtype).masked_fill(hidden, -torch.inf)

    @property
    def ambiguous(self):
        """Torch's module itself says two things: with the hint alone no row sees the keys that were added."""
        return self.call.get("is_causal") and (self.options["add_bias_kv"] or self.options["add_zero_attn"])

    def run(self, module, **other):
        torch.manual_seed(self.seed + 1)  # of dropout
        return module(*self.inputs, **(self.call | other))

    def gradients(self, module, *outputs):
        """With respect to inputs and weights, of the outputs times fixed numbers at random."""
        torch.manual_seed(self.seed + 2)
        loss = sum((each * torch.randn(each.shape, dtype=self.dtype)).sum() for each in outputs if each is not None)
        unique = list({id(each): each for each in self.inputs}.values())
        return torch.autograd.grad(loss, [*unique, *module.parameters()], allow_unused=True)

    def same(self, found, expected):
        largest = max(float(each.detach().abs().max()) for each in expected if each is not None)
        atol = ROUNDINGS * torch.finfo(self.dtype).eps * largest
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert one.shape == other.shape
                torch.testing.assert_close(one, other, atol=atol, rtol=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_gamma_it_is_the_plain_module(seed):
    case = Case(seed, gamma=0.0)
    more = {"need_weights": True} if case.ambiguous else {}
    expected = case.run(case.plain, **more)
    found = case.run(case.module, **more)
    case.same(found, expected)
    case.same(case.gradients(case.module, *found), case.gradients(case.plain, *expected))


def explicit(case, attention):
    """Output and matrix without the gap, from the attention that torch's module returned."""
    plain = case.plain
    value = case.inputs[2]
    value = value if case.batch is None or case.options["batch_first"] else value.transpose(0, 1)
    value = value if value.dim() == 3 else value.unsqueeze(0)
    weight = plain.v_proj_weight if plain.in_proj_weight is None else plain.in_proj_weight[24:]
    value = value @ weight.T + (0 if plain.in_proj_bias is None else plain.in_proj_bias[24:])
    if plain.bias_v is not None:
        value = torch.cat([value, plain.bias_v.expand(len(value), 1, 12)], 1)
    if plain.add_zero_attn:
        value = torch.cat([value, torch.zeros(len(value), 1, 12, dtype=case.dtype)], 1)
    attention = attention if attention.dim() == 4 else attention.unsqueeze(0)
    seen = (attention > 0).to(case.dtype)
    matrix = attention - seen / seen.sum(-1, keepdim=True)
    heads = matrix @ value.unflatten(-1, (case.heads, -1)).transpose(1, 2)
    output = heads.transpose(1, 2).flatten(-2) @ plain.out_proj.weight.T
    output = output + (0 if plain.out_proj.bias is None else plain.out_proj.bias)
    if case.batch is None:
        return output[0], matrix[0]
    return output if case.options["batch_first"] else output.transpose(0, 1), matrix


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_without_the_gap_it_is_the_explicit_matrix(seed, fused):
    case = Case(seed)
    for module in (case.plain, case.module):
        module.dropout = 0.0
    _, attention = case.run(case.plain, need_weights=True, average_attn_weights=False)
    expected = explicit(case, attention)
    found = case.run(case.module, need_weights=not fused, average_attn_weights=False)
    expected = (expected[0], None) if fused else expected
    case.same(found, expected)
    case.same(case.gradients(case.module, *found), case.gradients(case.plain, *expected))


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_shaped_matrices_make_the_output(seed):
    """With added keys, masks and coefficients by head, the fused output is that of the matrix that is returned."""
    case = Case(seed, alpha=0.7, beta=1.2, gamma=0.4, learnable=True)
    if case.keys != case.tokens:
        with pytest.raises(ValueError, match="alpha weighs the value of each query's own token"):
            case.run(case.module)
        return
    case.module.dropout = 0.0
    found, fused = case.run(case.module, need_weights=True), case.run(case.module, need_weights=False)
    case.same(fused[:1], found[:1])
    case.same(case.gradients(case.module, fused[0]), case.gradients(case.module, found[0]))
