"""Triton's kernels of means, run by its interpreter where Triton is installed, against explicit sums in double."""

import pytest
from interpreted import interpret, needs_triton

PROGRAM = """
import random
from itertools import product

from bulkedge.nn import fused

fused.PROGRAMS = 8  # so that heads are cut into segments, of several blocks
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-11}  # it cuts bfloat16 off


def drawn(*shape, seed, dtype, packed=False):
    batch, heads, tokens, dim = shape
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(batch, tokens, 3, heads, dim, generator=rng).to(dtype)[:, :, 1].transpose(1, 2)
    return values if packed else values.contiguous()


def means(tokens, reach, adjoint):
    seen = torch.ones(tokens, tokens, dtype=torch.double).tril()
    seen = seen - seen.tril(-reach) if reach < tokens else seen
    seen = seen / seen.sum(-1, keepdim=True)
    return seen.mT if adjoint else seen


def check(found, expected, dtype, what):
    # one rounding to the type, and sums of a few hundred terms of order one in single precision
    allowed = ROUNDING[dtype] * expected.abs() + 1e-5
    assert found.dtype == dtype and bool(((found.double() - expected).abs() <= allowed).all()), what


REACHES = (fused.CAUSAL, 1, 20, 32, 130)
CASES = [*product((1, 31, 33, 200), (16, 80), (False, True), (1, 2), ROUNDING, REACHES)]
SHORT = [(200, 16, adjoint, 1, torch.float32, reach) for adjoint in (False, True) for reach in REACHES]
for case in SHORT + random.Random(0).sample(CASES, 30):
    tokens, dim, adjoint, group, dtype, reach = case
    few, many = (2, 2, tokens, dim), (2, 2 * group, tokens, dim)
    target = drawn(*(few if adjoint else many), seed=0, dtype=dtype)
    source = drawn(*(many if adjoint else few), seed=1, dtype=dtype, packed=True)
    found = fused.less_mean(target, source, reach=reach, keep=0.8, own=-0.5, scale=0.3, adjoint=adjoint)
    term = -0.5 * source.double() - 0.3 * means(tokens, reach, adjoint) @ source.double()
    term = term.unflatten(1, (2, group)).sum(2) if adjoint else term.repeat_interleave(group, 1)
    check(found, 0.8 * target.double() + term, dtype, case)
    options = {"own": 1.0, "scale": 0.0, "adjoint": adjoint, "heads": target.shape[1], "reach": reach}
    alone = fused.less_mean(None, source, **options)
    own = source.double().unflatten(1, (2, group)).sum(2) if adjoint else source.double().repeat_interleave(group, 1)
    check(alone, own, dtype, case)

for case in random.Random(1).sample([*product((1, 255, 700), (16, 80), (False, True), (False, True), ROUNDING)], 16):
    tokens, dim, weighted, adjoint, dtype = case
    value = drawn(2, 3, tokens, dim, seed=2, dtype=dtype, packed=True)
    weights = torch.rand(2, 3, tokens, generator=torch.Generator().manual_seed(3))
    weights = weights / weights.sum(-1, keepdim=True) if weighted else None
    column = torch.full((2, 3, tokens, 1), 1 / tokens) if weights is None else weights[..., None]
    column, ones = column.double(), torch.ones(2, 3, tokens, 1, dtype=torch.double)
    left, right = (column, ones) if adjoint else (ones, column)
    expected = value.double() - left @ (right.mT @ value.double())
    found = fused.less_mean(None, value, weights, reach=fused.ALL, own=1.0, adjoint=adjoint)
    check(found, expected, dtype, case)
"""


@needs_triton
def test_kernels_in_the_interpreter():
    interpret(PROGRAM)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("kind", ["all", "given", "causal", "window"])
def test_kernels_compile_for_a_gpu(kind, adjoint):
    """Down to machine code of an H200, without one; the interpreter takes programs that Triton does not."""
    from triton import compiler
    from triton.backends.compiler import GPUTarget

    from bulkedge.nn import fused, kernels

    block, warps = fused.RUN if kind in {"causal", "window"} else fused.CENTRE
    types = dict.fromkeys(("target", "source", "result"), "*bf16") | {"weights": "*fp32", "totals": "*fp32"}
    types |= dict.fromkeys(("keep", "own", "scale"), "fp32")
    constants = {"KIND": kind, "GROUP": 2 if block == fused.RUN[0] else 1, "ADJOINT": adjoint, "TARGET": True}
    constants |= {"SEGMENTED": True, "SEGMENTS": fused.SEGMENTS, "BLOCK": block, "WIDTH": fused.WIDTH}
    names = kernels.less_mean.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    source = compiler.ASTSource(
        kernels.less_mean, signature, {(names.index(name),): each for name, each in constants.items()}
    )
    made = compiler.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert made.asm["cubin"]
