"""Spectra of attention from products alone, on one GPU: how fast, how accurate, in how much memory.

Every line is measured in this run, on the device that it names:

* one product with 64 columns, and one with the transpose, beside torch's flash attention in bfloat16, forward and
  backward: times, and the relative error against rows in double precision on a sample of rows;
* spectra at increasing numbers of tokens: time, peak memory, stated error, and the distance to the dense spectrum
  (where that fits), to the law of the head, and to a rival that takes scores as independent: Marchenko and Pastur's
  law, or for causal heads the causal law;
* Gram matrix and ``eigvalsh`` of the same matrix where they fit.

Run it with nothing but NumPy, SciPy, xarray, array-api-compat, torch and Triton beside the package. Lines are added to
the numbers that are there, in the place of those of the same kind, and written one by one::

    PYTHONPATH=src python -m benchmarks.operator_gpu --json docs/benchmarks/operator_gpu.json
    PYTHONPATH=src python -m benchmarks.operator_gpu --tokens 1048576 --kinds causal --products --json operator_gpu.json
    PYTHONPATH=src python -m benchmarks.operator_gpu --tokens 512 1024 --products 1024      # a machine without a GPU
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

import bulkedge as be
from bulkedge.support.files import replace_file

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HEAD_DIM, COLUMNS, TOLERANCE = 64, 64, 0.01
TOKENS = (16384, 131072, 1048576) if GPU else (1024,)
PRODUCTS = (131072,) if GPU else (1024,)
MOST_DENSE = 16384
"""Tokens up to which the matrix is decomposed too."""
QUANTILES = 200
"""Of the squared values, to draw the spectrum from."""
SAMPLE = 256
"""Rows whose products are checked in double precision."""
KINDS = {"full": {}, "qk_norm": {"qk_norm": True}, "causal": {"mask": "causal"}}


def inputs(tokens: int, *, qk_norm: bool = False) -> tuple[Any, Any]:
    """Gaussian queries and keys, on the sphere of the same radius with QK-norm, in single precision."""
    rng = torch.Generator(DEVICE).manual_seed(tokens)
    pair = [torch.randn(tokens, HEAD_DIM, generator=rng, device=DEVICE) for _ in range(2)]
    return tuple(each * (HEAD_DIM**0.5 / each.norm(dim=-1, keepdim=True)) if qk_norm else each for each in pair)  # type: ignore[return-value]


def timed(job: Callable[[], Any], least: int = 3) -> tuple[float, Any]:
    """Fastest of a few calls after one unmeasured, in seconds, and the result."""
    result, fastest = job(), float("inf")
    for _ in range(least):
        synchronise()
        start = time.perf_counter()
        result = job()
        synchronise()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest, result


def synchronise() -> None:
    if GPU:
        torch.cuda.synchronize()


def peak(job: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds, GiB and result of one call, after one that compiles."""
    if GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    synchronise()
    start = time.perf_counter()
    result = job()
    synchronise()
    memory = torch.cuda.max_memory_allocated() / 2**30 if GPU else float("nan")
    return time.perf_counter() - start, memory, result


def relative(found: Any, expected: Any) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def product(tokens: int) -> dict[str, Any]:
    """One product with 64 columns, each way, by every backend, beside flash attention."""
    query, key = inputs(tokens)
    block = torch.randn(tokens, COLUMNS, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1))
    lines: dict[str, Any] = {"tokens": tokens, "columns": COLUMNS}
    half = [each.to(torch.bfloat16)[None, None].requires_grad_() for each in (query, key, block)]
    forward, output = timed(lambda: scaled_dot_product_attention(*half))
    backward, _ = timed(lambda: torch.autograd.grad(output, half, output.detach(), retain_graph=True))
    lines |= {"flash forward": forward, "flash backward": backward, "backends": []}
    scores = (query[:SAMPLE].double() @ key.double().T) / HEAD_DIM**0.5
    expected = scores.softmax(-1) @ block.double()
    normaliser = torch.cat([(rows.double() @ key.double().T / 8).logsumexp(-1) for rows in query.split(SAMPLE)])
    sampled = (query.double() @ key[:SAMPLE].double().T / HEAD_DIM**0.5 - normaliser[:, None]).exp()
    transposed = sampled.T @ block.double()
    for name, backend in (("auto", "auto"), ("rows", "rows"), ("bfloat16", "sdpa")):
        arrays = (query, key) if name != "bfloat16" else (query.to(torch.bfloat16), key.to(torch.bfloat16))
        setup, operator = timed(lambda a=arrays, b=backend: be.AttentionOperator(*a, backend=b), 1)  # type: ignore[misc]
        there, image = timed(lambda op=operator: op @ block)  # type: ignore[misc]
        back, adjoint = timed(lambda op=operator: op.T @ block)  # type: ignore[misc]
        lines["backends"].append(
            {
                "backend": f"{name}: {operator.backend}",
                "setup": setup,
                "forward": there,
                "forward over flash": there / forward,
                "forward error": relative(image[:SAMPLE], expected),
                "transpose": back,
                "transpose over flash backward": back / backward,
                "transpose error": relative(adjoint[:SAMPLE], transposed),
            }
        )
    return lines


def dense(operator: Any) -> tuple[dict[str, Any], Any]:
    """The matrix itself, decomposed: seconds, and its spectrum by the Gram matrix in double precision."""
    matrix = operator.dense()
    single, _ = timed(lambda: torch.linalg.eigvalsh(matrix.T @ matrix), 1)
    double, squares = timed(lambda: torch.linalg.eigvalsh(matrix.double().T @ matrix.double()), 1)
    lines: dict[str, Any] = {"Gram seconds, single": single, "Gram seconds, double": double}
    return lines, be.Spectrum.of(squares.clamp_min(0).sqrt().cpu().numpy(), be.Unit.SINGULAR)


def laws(kind: str, tokens: int) -> dict[str, Any]:
    """The law of the head, and the rival: what it would be if scores were independent, and not of rank 64."""
    if kind == "causal":
        law = be.CausalHeadLaw(beta=1.0, head_dim=HEAD_DIM, tokens=tokens)
        # the variance of exp(score) over its squared mean, at beta = 1
        return {"law": law, "independent scores": be.CausalLaw(math.expm1(1.0))}
    law = be.FiniteHeadLaw(beta=1.0, head_dim=HEAD_DIM, tokens=tokens, qk_norm=kind == "qk_norm")
    return {"law": law, "Marchenko-Pastur": be.MarchenkoPastur(1.0, law.mean())}


def spectrum(kind: str, tokens: int, placed: float = 0.0) -> dict[str, Any]:
    """The spectrum of one head, of whose values at least a share ``placed`` is placed, and its distances."""
    options = KINDS[kind]
    query, key = inputs(tokens, qk_norm="qk_norm" in options)

    def job() -> Any:
        operator = tokens**0.5 * be.AttentionOperator(query, key, mask=options.get("mask", "full")).centred()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = be.spectrum(operator, tolerance=TOLERANCE, placed=placed)
        return operator, found, [str(each.message) for each in said]

    if tokens <= MOST_DENSE:  # compile
        job()
    taken, memory, (operator, found, said) = peak(job)
    line: dict[str, Any] = {"kind": kind, "tokens": tokens, "seconds": taken, "GiB": memory, "warnings": said}
    line |= {
        "wanted": placed,
        "stated error": found.error,
        "told apart from": found.rounding**2,
        "backend": _backend(operator),
    }
    squares = found.squared().distribution()
    line["not placed"] = float(squares.cdf(found.rounding**2))
    line["quantiles"] = [float(squares.ppf((k + 0.5) / QUANTILES)) for k in range(QUANTILES)]
    for name, law in laws(kind, tokens).items():
        try:
            line[f"distance to {name}"] = be.compare(found.squared(), law).ks
        except be.BulkedgeError as error:
            line[f"distance to {name}"] = str(error)
    if tokens <= MOST_DENSE and kind == "full":
        more, exact = dense(operator)
        line |= more | {"distance to the matrix": be.compare(found, exact).ks}
    return line


def _backend(operator: Any) -> str:
    while not hasattr(operator, "backend"):
        operator = operator.operator
    return str(operator.backend)


def report(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All lines and where they come from, again after each that is added: a long run may be ended."""
    device = torch.cuda.get_device_name() if GPU else platform.processor() or platform.machine()
    today = {"date": datetime.now(UTC).date().isoformat()}
    lines = json.loads(chosen.json.read_text()) if chosen.json and chosen.json.exists() else {}
    lines |= {"device": device, "torch": torch.__version__} | today
    found: dict[str, dict[str, Any]] = {
        room: {what(each): each for each in lines.get(room, ())} for room in ("products", "spectra")
    }
    jobs: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        *(("products", partial(product, each)) for each in chosen.products),
        *(("spectra", partial(spectrum, kind, each, chosen.placed)) for each in chosen.tokens for kind in chosen.kinds),
    ]
    for room, job in jobs:
        line = job() | today
        found[room][what(line)] = line
        print(json.dumps(line, indent=1), flush=True)
        yield lines | {room: list(known.values()) for room, known in found.items()}


def what(line: dict[str, Any]) -> str:
    """That a line is a measurement of; another takes its place."""
    return f"{line.get('kind')} {line['tokens']} {line.get('wanted', 0.0)}"


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="Spectra of attention from products alone")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--tokens", type=int, nargs="*", default=list(TOKENS), help="tokens of the spectra")
    parser.add_argument("--products", type=int, nargs="*", default=list(PRODUCTS), help="tokens of the products")
    parser.add_argument("--kinds", nargs="*", choices=tuple(KINDS), default=list(KINDS), help="kinds of heads")
    parser.add_argument("--placed", type=float, default=0.0, help="share of the values to tell apart")
    chosen = parser.parse_args(arguments)
    for found in report(chosen):
        if chosen.json:
            replace_file(chosen.json, json.dumps(found, indent=1) + "\n")
    return found


if __name__ == "__main__":
    main()
