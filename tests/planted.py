"""Attention scores of heads that do a known thing, many at once: (heads, tokens, tokens), and what is added to them."""

import numpy as np

BIAS = {
    "full": lambda tokens: np.zeros((tokens, tokens)),
    "causal": lambda tokens: np.where(np.tri(tokens) > 0, 0.0, -np.inf),
}


def random_head(rng, heads, tokens, dims=(32, 64), betas=(0.5, 2.0)):
    """Independent Gaussian queries and keys, each head with a dimension and an inverse temperature of its own."""
    found = np.empty((heads, tokens, tokens))
    for head in found:
        dim, beta = rng.choice(dims), rng.uniform(*betas)
        query, key = rng.standard_normal((2, tokens, dim))
        head[:] = beta * query @ key.T / np.sqrt(dim)
    return found


def uniform(rng, heads, tokens, mask):
    return rng.uniform(0, 0.05, (heads, 1, 1)) * rng.standard_normal((heads, tokens, tokens))


def permutation(rng, heads, tokens, mask):
    """Rows that look at one key each, no key twice; behind a causal mask at one that they see, any number of times."""
    found = np.zeros((heads, tokens, tokens))
    rows = np.arange(tokens)
    for head in found:
        keys = rng.permutation(tokens) if mask == "full" else rng.integers(0, rows + 1)
        head[rows, keys] = rng.uniform(12, 40)
    return found


def three_directions(rng, heads, tokens, mask):
    return random_head(rng, heads, tokens, (3,), (2.0, 4.0))


def mixed(background, mask, target, mass):
    """Scores of the mixture of random heads with target matrices, in rows that have a target.

    Background is of shape (heads, tokens, tokens), rows of the target sum to one or zero, mass is (heads, 1, 1). What
    is behind the mask is left to the background.
    """
    scores = background + BIAS[mask](background.shape[-1])
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(background - top) / np.exp(scores - top).sum(axis=-1, keepdims=True)
    mass = mass * target.sum(axis=-1, keepdims=True)
    return np.log((1 - mass) * weights + mass * target)


def sink(rng, heads, tokens, mask):
    """One key gets the mass in all rows that see it; behind a causal mask it comes in the first quarter."""
    target = np.zeros((heads, tokens, tokens))
    for head in target:
        position = rng.integers(0, tokens if mask == "full" else tokens // 4)
        head[:, position] = np.isfinite(BIAS[mask](tokens))[:, position]
    return mixed(random_head(rng, heads, tokens), mask, target, rng.uniform(0.3, 0.95, (heads, 1, 1)))


def fixed_columns(rng, heads, tokens, mask):
    """A dozen keys or more share nearly all of the attention; behind a causal mask they come in the first quarter."""
    target = np.zeros((heads, tokens, tokens))
    for head in target:
        keys = rng.choice(tokens if mask == "full" else tokens // 4, rng.integers(12, tokens // 4), replace=False)
        head[:, keys] = rng.uniform(0.5, 1.5, len(keys))
    target *= np.isfinite(BIAS[mask](tokens))
    target /= np.maximum(target.sum(axis=-1, keepdims=True), 1e-9)
    return mixed(random_head(rng, heads, tokens), mask, target, rng.uniform(0.8, 0.98, (heads, 1, 1)))


def offset(rng, heads, tokens, mask):
    """Rows look so many keys ahead or back."""
    target = np.zeros((heads, tokens, tokens))
    for head in target:
        steps = rng.choice([*range(11), 20])
        head[:] = np.eye(tokens, k=-steps if mask == "causal" or rng.random() < 0.5 else steps)
    return mixed(random_head(rng, heads, tokens), mask, target, rng.uniform(0.5, 0.95, (heads, 1, 1)))


def local(rng, heads, tokens, mask):
    """Scores that fall with the distance, over those of a random head that is not sharp."""
    distance = np.abs(np.subtract.outer(np.arange(tokens), np.arange(tokens)))
    widths = rng.uniform(3, 20, (heads, 1, 1))
    return random_head(rng, heads, tokens, betas=(0.2, 0.7)) - distance / widths


def same_token(rng, heads, tokens, mask, ids):
    """Rows look at other keys with their own token, those that see some; ids are of shape (tokens,)."""
    same = (ids[:, None] == ids[None, :]) & ~np.eye(tokens, dtype=bool) & np.isfinite(BIAS[mask](tokens))
    target = same / np.maximum(same.sum(axis=1, keepdims=True), 1)
    background = random_head(rng, heads, tokens)
    return mixed(background, mask, target, rng.uniform(0.5, 0.95, (heads, 1, 1)))
