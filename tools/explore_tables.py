"""Write the tables of the explorer: laws that it draws from while a slider moves, and heads of a trained encoder.

``python tools/explore_tables.py`` takes half an hour of one core for the laws and goes on where it was interrupted; it
is run again when a law of heads has changed. ``python tools/explore_tables.py texts`` reads the sentences of the course
with all-MiniLM-L6-v2, which needs the extras ``torch`` and ``weights``, in ten seconds.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np

from bulkedge.lab.explore.rooms.heads import (
    BETAS,
    HEAD_DIMS,
    LEVELS,
    SPREADS,
    TOKENS,
    HeadsRoom,
    Shape,
    head_law,
    lagrange,
    levels,
)
from bulkedge.support.errors import BulkedgeError

TABLE = Path(__file__).parent.parent / "src" / "bulkedge" / "lab" / "explore" / "tables" / "heads.npz"
SMALLEST = {False: 1e-12, True: 1e-6}
"""Values below are shown as this, of full and of causal heads: the latter have values down to exp(-80). Figures begin
at 1e-6; a polynomial in beta through quantiles that stop there, as those of cool full heads would, errs above too."""


def quantiles(shape, beta, spread):  # noqa: ANN001, ANN201 - of the table above
    """Logarithms of the quantiles; NaN where the law says that it cannot be resolved."""
    try:
        law = head_law(HeadsRoom(beta=beta, popularity=spread, **shape._asdict()))
        found = law.ppf(levels(shape.head_dim, shape.tokens))
    except BulkedgeError as error:
        print(shape, beta, spread, error)
        return np.full(LEVELS, np.nan, dtype=np.float32)
    return np.log(np.maximum(found, SMALLEST[shape.causal])).astype(np.float32)


def filled(rows):  # noqa: ANN001, ANN201 - of the table above
    """Rows that could not be resolved, from the polynomial through the others, if these are most of them."""
    known = np.isfinite(rows).all(axis=-1)
    if known.all() or known.sum() < len(BETAS) - 2:
        return rows
    nodes = np.array(BETAS)
    guessed = [lagrange(nodes[known], beta) @ rows[known] for beta in nodes[~known]]
    found = rows.copy()
    found[~known] = guessed
    return found


SENTENCE = "The animal did not cross the street because it was too tired"
LAYER, HEAD = 3, 1
"""The head whose "it" looks at "animal"."""


def texts() -> None:
    """Attention of one head on a sentence, and on the opening of a book; without the marks of start and end."""
    import torch

    from bulkedge.models.loading.packaged import packaged_model, sample_text

    model, tokenizer = packaged_model("minilm")
    model.set_attn_implementation("eager")
    found = {}
    for name, text, most in (("sentence", SENTENCE, 64), ("book", sample_text("alice")[:900], 130)):
        given = {key: value[:, :most] for key, value in tokenizer(text, return_tensors="pt").items()}
        with torch.no_grad():
            weights = model(**given, output_attentions=True).attentions[LAYER][0, HEAD].double().numpy()
        kept = weights[1:-1, 1:-1]
        words = tokenizer.convert_ids_to_tokens(given["input_ids"][0])[1:-1]
        found |= {name: (kept / kept.sum(axis=1, keepdims=True)).astype(np.float32), f"{name}_words": np.array(words)}
    np.savez_compressed(TABLE.with_name("texts.npz"), **found)


def main() -> None:
    """Fill in what is missing, shape by shape."""
    TABLE.parent.mkdir(exist_ok=True)
    draft = Path(sys.argv[1]) if len(sys.argv) > 1 else TABLE.with_suffix(".draft.npz")
    done = dict(np.load(draft)) if draft.exists() else {}
    for shape in (Shape(*each) for each in product(HEAD_DIMS, TOKENS, (False, True), (False, True))):
        spreads = SPREADS[:1] if shape.causal else SPREADS  # no law is known for causal heads with popular keys
        name = "-".join(str(int(each)) for each in shape)
        if name not in done:
            done[name] = np.array([[quantiles(shape, beta, spread) for beta in BETAS] for spread in spreads])
            np.savez_compressed(draft, **done)
            print(name, flush=True)
    done = {name: np.array([filled(rows) for rows in table]) for name, table in done.items()}
    np.savez_compressed(TABLE, **done)
    print(TABLE, TABLE.stat().st_size)


if __name__ == "__main__":
    texts() if sys.argv[1:] == ["texts"] else main()
