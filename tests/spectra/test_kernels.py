"""Triton's kernels for products with attention, run by its interpreter where Triton is installed."""

from interpreted import interpret, needs_triton

PROGRAM = """
from bulkedge.visibility import Mask, softmax
from bulkedge.spectra.operators import torch_products

torch_products.OWN, torch_products.OTHER = 32, 16
generator = torch.Generator().manual_seed(0)
for mask in (Mask.cross(40, 45), Mask.causal(45), Mask.window(45, 20)):
    query, key = (torch.randn(2, count, 10, generator=generator) for count in mask.shape)
    weights = torch.tensor(softmax((query.double() @ key.double().mT).numpy(), mask.visible()))
    right, left = (torch.randn(count, 67, generator=generator) for count in mask.shape[::-1])
    for parts, tolerance in ((1, 1e-2), (2, 3e-5), (3, 1e-6)):
        products = torch_products.Tiles(query, key, mask, parts)
        for found, expected in (
            (products.forward(right), weights @ right.double()),
            (products.backward(left), weights.mT @ left.double()),
        ):
            assert (found.double() - expected).norm() < tolerance * expected.norm(), (mask, parts)
query, key = (60 * torch.randn(40, 8, generator=generator) for _ in range(2))
scores = query.double() @ key.double().T
assert scores.abs().max() > 1e4
large = torch_products.Tiles(query, key, Mask.causal(40)).forward(torch.eye(40)).double()
assert (large - torch.tensor(softmax(scores.numpy(), Mask.causal(40).visible()))).abs().max() < 1e-2
"""


@needs_triton
def test_kernels_in_the_interpreter():
    interpret(PROGRAM)
