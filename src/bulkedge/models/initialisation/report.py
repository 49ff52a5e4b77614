"""Preflight: what a configuration does at initialisation, as a table, as warnings with remedies, and as a page."""

from __future__ import annotations

import io
import math
import os
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bulkedge.models.initialisation.blueprint import Blueprint, read_blueprint
from bulkedge.models.initialisation.recursion import ACTIVATIONS, recursion
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Integers, Interval, shown, takes
from bulkedge.support.errors import DomainError, need
from bulkedge.support.files import page_templates, replace_file, to_json
from bulkedge.version import __version__

if TYPE_CHECKING:
    import pandas as pd

LONGER = 8  # how many times as many tokens are asked about
MEASURED_TOKENS, MEASURED_WEIGHTS = 512, 500_000_000  # of a model that is made because its family is not known
COLLAPSED = 0.95  # mean cosine of tokens from which on they are one
STEEP = 100.0  # ratio of scaled gradients between layers that is worth a warning
FLAT = 0.25  # score scale below which rows are called uniform
LARGE_STEP = 1.0  # relative change of the scores in the first step that is worth a warning
COLUMNS = {
    "beta": "standard deviation of a row's scores, after a soft cap",
    "entropy": "mean entropy of a row of attention, nats",
    "largest": "mean largest weight of a row",
    "margin": "sqrt(2 log keys) - beta: below zero a few weights hold a row",
    "gap": "1 - s2/s1 of an attention matrix",
    "rank": "stable rank of an attention matrix",
    "cosine": "mean cosine of two tokens of the stream that enters the layer",
    "token_rank": "stable rank of these tokens, at unit length",
    "power": "mean square of an entry of that stream",
    "gradient": "norm of the gradient with respect to it, for random labels",
    "scaled_gradient": "that times the root of the power",
    "score_change": "change of the scores in the first step of Adam, over the scores",
}
"""Columns of the table, and what they mean; those of the longer context end in ``_long``."""
LONG = ("beta", "entropy", "largest", "margin", "gap", "rank", "cosine", "token_rank", "power")


class Finding(NamedTuple):
    """Something that a configuration will do, the change that mends it, and what follows from that change."""

    name: str
    sentence: str
    remedy: str
    after: str

    def __str__(self) -> str:
        """In one paragraph."""
        return " ".join(each for each in (self.sentence, self.remedy, self.after) if each)


@dataclass(frozen=True, eq=False)
class Preflight:
    """What a configuration does at initialisation: of :func:`bulkedge.preflight`.

    Attributes
    ----------
    name : str
        What was asked about.
    family : str
        Family of the model, as transformers calls it.
    predicted : bool
        Whether the numbers are predicted; else they were measured on one random instance.
    tokens, longer : int
        Length of the context, and of the longer one; zero where there is none.
    layers : dict of str to array of shape (layers,)
        The columns of the table.
    findings : tuple of Finding
        What is behind the warnings.
    notes : tuple of str
        What is worth knowing and no warning.

    Examples
    --------
    >>> from transformers import Qwen3Config
    >>> import bulkedge as be
    >>> report = be.preflight(Qwen3Config(num_hidden_layers=2), tokens=1024)
    >>> round(float(report.layers["beta"][0]), 2), report.warnings
    (1.0, ())
    """

    name: str
    family: str
    predicted: bool
    tokens: int
    longer: int
    layers: dict[str, Real]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    plan: Blueprint | None = field(default=None, repr=False)

    @property
    def table(self) -> pd.DataFrame:
        """A row a layer."""
        import pandas as pd

        return pd.DataFrame({"layer": np.arange(self.depth), **self.layers})

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers["beta"])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What will go wrong at initialisation, what mends it, and what follows from the mend."""
        return tuple(str(each) for each in self.findings)

    def summary(self) -> str:
        """What the configuration does, in a few sentences."""
        return "\n".join(_summary(self))

    def records(self) -> list[dict[str, Any]]:
        """The rows of the table."""
        columns = {name: each.tolist() for name, each in self.layers.items()}
        rows = zip(*columns.values(), strict=True)
        return [{"layer": k, **dict(zip(columns, row, strict=True))} for k, row in enumerate(rows)]

    def compare(self, other: Preflight) -> pd.DataFrame:
        """Two configurations side by side.

        Parameters
        ----------
        other : Preflight
            Of the other configuration.

        Returns
        -------
        pandas.DataFrame
            A row a layer, and under the name of each column that of either configuration; missing layers are nan.
        """
        import pandas as pd

        if not isinstance(other, Preflight):
            raise DomainError(f"other is {type(other).__name__}, no Preflight; be.preflight makes one")
        first, second = (self.name, other.name) if self.name != other.name else (self.name, f"{other.name} (other)")
        shared = [name for name in self.layers if name in other.layers]
        parts = {
            (name, title): pd.Series(each.layers[name])
            for name in shared
            for title, each in ((first, self), (second, other))
        }
        return pd.DataFrame(parts).rename_axis("layer")

    def plot(self) -> Any:
        """Draw the numbers against the layers.

        Returns
        -------
        matplotlib.figure.Figure
            Four panels: entropy of rows, score scale, cosine of tokens, scaled gradient.
        """
        from bulkedge.plots.heads import plot_preflight

        return plot_preflight(self.layers, self.tokens, self.longer)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write one page that needs nothing else.

        Parameters
        ----------
        path : str or Path
            Where.

        Returns
        -------
        Path
            The page.
        """
        target = Path(path)
        replace_file(target, _page(self))
        return target

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write everything as JSON.

        Parameters
        ----------
        path : str or Path
            Where.

        Returns
        -------
        Path
            The file.
        """
        target = Path(path)
        replace_file(target, to_json(self.facts(), indent=1) + "\n")
        return target

    def facts(self) -> dict[str, Any]:
        """Everything but the configuration, for JSON."""
        return {
            "name": self.name, "family": self.family, "how": "predicted" if self.predicted else "measured",
            "tokens": self.tokens, "longer": self.longer, "bulkedge": __version__,
            "warnings": [each._asdict() for each in self.findings], "notes": list(self.notes), "layers": self.records(),
        }  # fmt: skip


@takes(
    tokens=Integers(2, 10**7), rate=Interval(0, math.inf, "()"), steps=Integers(1, 10**9),
    optimiser=Choice(("adam", "adamw")),
)  # fmt: skip
def preflight(  # noqa: PLR0913, PLR0917
    config_or_model: Any,
    tokens: int = 8192,
    texts: Sequence[Sequence[int]] | None = None,
    rate: float | None = None,
    steps: int | None = None,
    optimiser: str = "adamw",
) -> Preflight:
    """Predict what a configuration does at initialisation, layer by layer, without making its weights.

    Families that are known are predicted: nothing but the configuration is read, in seconds for any size and context.
    Of others a random instance is made and measured, and the report says so.

    Parameters
    ----------
    config_or_model : PreTrainedConfig, torch.nn.Module, dict, str or Path
        A configuration of transformers, a model that has one, the contents of a ``config.json``, that file, its folder,
        or a hub id, of which the configuration is fetched and nothing else.
    tokens : int
        Length of the context; at most as many as the configuration has learned positions for.
    texts : sequence of sequences of int, optional
        Ids of tokens of some texts. How often they repeat is counted; without texts, tokens are uniform and random.
    rate : float, optional
        Learning rate of the first step, for the column ``score_change``.
    steps : int, optional
        Length of a linear warm-up: the first step is taken at ``rate/steps``.
    optimiser : str
        ``"adamw"`` or ``"adam"``, whose first steps are alike: each weight moves by the rate.

    Returns
    -------
    Preflight
        With ``table``, ``warnings``, ``compare``, ``plot``, ``to_html`` and ``save``.

    Raises
    ------
    DomainError
        If the configuration has no attention heads, or cannot be predicted and is too large to be measured.

    Examples
    --------
    >>> from transformers import LlamaConfig
    >>> report = preflight(LlamaConfig(num_hidden_layers=4), tokens=2048)
    >>> [round(each, 2) for each in report.layers["beta"].tolist()][0]
    1.63
    """
    config, name = _configuration(config_or_model)
    repeats = None if texts is None else _repeats(texts, tokens)
    first_rate = None if rate is None else rate / (steps or 1)
    plan = read_blueprint(config)
    if plan is None or plan.activation not in ACTIVATIONS:
        return _measured(config, name, tokens)
    notes = list(plan.notes)
    limit = plan.context if plan.position_power else None
    if limit is not None and limit < tokens:
        notes.append(f"It has positions for {limit} tokens, so that is the context, not {tokens}.")
        tokens = limit
    elif plan.context is not None and plan.context < tokens:
        notes.append(f"The configuration declares {plan.context} positions; {tokens} tokens are beyond it.")
    longer = 0 if limit is not None else tokens * LONGER
    layers = _columns(plan, tokens, longer, repeats, first_rate)
    found = Preflight(name, plan.family, True, tokens, longer, layers, plan=plan)
    findings = tuple(_findings(found, repeats, first_rate))
    return replace(found, findings=findings, notes=(*notes, *_notes(found)))


# -- what is asked about -----------------------------------------------------------------------------------------------


def _configuration(source: Any) -> tuple[Any, str]:
    """A configuration, and what to call it."""
    need("preflight", "torch", "transformers")
    import transformers

    if isinstance(source, str | os.PathLike):
        from bulkedge.models.loading.loader import load_config

        path = Path(source)
        name = path.resolve().parent.name if path.suffix == ".json" else path.name if path.exists() else str(source)
        return _with_heads(load_config(source)), name
    if isinstance(source, dict):
        if "model_type" not in source:
            raise DomainError("config_or_model is a dict without model_type, which says what the other entries mean")
        kind = str(source["model_type"])
        try:
            config = transformers.AutoConfig.for_model(**source)
        except ValueError as error:
            raise DomainError(f"config_or_model: {str(error).splitlines()[0]}") from None
        return _with_heads(config), kind
    config = getattr(source, "config", source)
    if not isinstance(config, transformers.PretrainedConfig):
        raise DomainError(
            f"config_or_model = {shown(source)} is {type(source).__name__}; give a configuration of transformers, a"
            " model that has one, a config.json, a folder or a hub id"
        )
    return _with_heads(config), type(source).__name__


def _with_heads(config: Any) -> Any:
    """The configuration, if it is one of attention heads."""
    text = config.get_text_config()
    if not any(getattr(text, name, None) for name in ("num_attention_heads", "n_head", "num_heads")):
        raise DomainError(
            f"the configuration ({config.model_type}) has no attention heads: preflight is for transformers"
        )
    return config


def _repeats(texts: Any, tokens: int) -> float:
    """How often two tokens of a context are the same."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise DomainError(f"texts = {shown(texts)}: give a list of texts, each a list of token ids")
    shares = []
    for text in texts:
        ids = np.asarray(text if not isinstance(text, str) else [], dtype=object).ravel()[:tokens]
        if len(ids) < 2 or not all(isinstance(each, int | np.integer) for each in ids):
            raise DomainError("texts must be lists of at least two token ids each; a tokenizer makes them of words")
        count = np.unique(ids.astype(np.int64), return_counts=True)[1]
        shares.append(float((count * (count - 1)).sum() / (len(ids) * (len(ids) - 1))))
    if not shares:
        raise DomainError("texts is empty; leave it out for uniform random tokens")
    return float(np.mean(shares))


def _columns(plan: Blueprint, tokens: int, longer: int, repeats: float | None, rate: float | None) -> dict[str, Real]:
    """The columns of the table."""
    found = _derived(recursion(plan, tokens, repeats=repeats, rate=rate), _margins(plan, tokens))
    if longer:
        beyond = recursion(plan, longer, repeats=repeats, gradients=False) | {"margin": np.zeros(plan.depth)}
        beyond["margin"] = _margins(plan, longer) - beyond["beta"]
        found |= {f"{name}_long": beyond[name] for name in LONG}
    return found


def _margins(plan: Blueprint, tokens: int) -> Real:
    """Score scale at which rows freeze, for every layer."""
    keys = np.array([min(tokens, layer.window or tokens) for layer in plan.layers], dtype=float)
    return np.sqrt(2 * np.log(keys))


def _derived(found: dict[str, Real], freezing: Real) -> dict[str, Real]:
    """Columns in their order, with those that follow from others."""
    found = found | {
        "margin": freezing - found["beta"], "scaled_gradient": found["gradient"] * np.sqrt(found["power"])
    }  # fmt: skip
    return {name: found[name] for name in COLUMNS if name in found and not np.isnan(found[name]).all()}


def _measured(config: Any, name: str, tokens: int) -> Preflight:
    """The same of one random instance of a model that is not known."""
    import torch
    from transformers import AutoModel

    from bulkedge.models.initialisation.measuring import measure

    with torch.device("meta"):
        count = sum(each.numel() for each in AutoModel.from_config(config).parameters())
    if count > MEASURED_WEIGHTS:
        raise DomainError(
            f"preflight does not know the family {config.model_type!r}, and with {count / 1e9:.1f} billion weights it is"
            " too large to be made and measured; ask about one of fewer layers and less width"
        )
    limit = getattr(config.get_text_config(), "max_position_embeddings", None) or MEASURED_TOKENS
    read = min(tokens, MEASURED_TOKENS, limit)
    layers = measure(config, read, seed=0)
    keys = np.full(len(layers["beta"]), math.sqrt(2 * math.log(read)))
    notes = (
        f"Preflight does not know the family {config.model_type!r}: these numbers were measured on one random instance,"
        f" with {read} random tokens. Another instance differs, in the cosine by some 0.05.",
    )
    found = Preflight(name, config.model_type, False, read, 0, _derived(layers, keys), notes=notes)
    return replace(found, findings=tuple(_findings(found, None, None)))


# -- warnings ----------------------------------------------------------------------------------------------------------


def _findings(found: Preflight, repeats: float | None, rate: float | None) -> Iterator[Finding]:
    """Warnings, the worst first, each with what follows from its remedy."""

    def again(**changes: Any) -> dict[str, Real]:
        assert found.plan is not None
        return _columns(replace(found.plan, **changes), found.tokens, 0, repeats, rate)

    numbers, plan = found.layers, found.plan
    if (numbers["margin"] < 0).any():
        yield _frozen(numbers, plan, found.tokens, again)
    cosine = numbers["cosine"]
    if (cosine > COLLAPSED).any():
        yield _collapsed(cosine, plan, again)
    scaled = numbers["scaled_gradient"]
    steep = scaled[0] / scaled[-1]
    if max(steep, 1 / steep) > STEEP:
        yield _steep(scaled, float(numbers["beta"].max()), plan, again)
    if "score_change" in numbers and numbers["score_change"].max() > LARGE_STEP and rate is not None:
        layer = int(numbers["score_change"].argmax())
        change = float(numbers["score_change"][layer])
        yield Finding(
            "large step",
            f"The first step changes the scores of layer {layer} by {change:.2g} times their size.",
            f"Warm up from a rate of {rate * 0.3 / change:.1g}.",
            "They then change by 0.3 of it.",
        )


def _frozen(numbers: dict[str, Real], plan: Blueprint | None, tokens: int, again: Any) -> Finding:
    """Rows on a single key."""
    layer = int(numbers["margin"].argmin())
    beta, limit = float(numbers["beta"][layer]), float(numbers["beta"][layer] + numbers["margin"][layer])

    def rows(each: dict[str, Real]) -> str:
        return f"rows have {each['entropy'][layer] / math.log(2):.2f} bits and a largest weight of {each['largest'][layer]:.2f}"

    sentence = (
        f"Frozen at start: scores of layer {layer} have a standard deviation of {beta:.3g}, beyond "
        f"sqrt(2 log keys) = {limit:.3g}; {rows(numbers)}."
    )
    if plan is None:
        return Finding("frozen", sentence, f"Multiply the score scale by {1 / beta:.2g}.", "")
    remedy, changes = _softer(plan, beta)
    changed = again(**changes)
    return Finding("frozen", sentence, remedy, f"Then {rows(changed)}.")


def _softer(plan: Blueprint, beta: float) -> tuple[str, dict[str, float]]:
    """What brings scores of this deviation to one, in words and as changes of the plan."""
    due = plan.head_dim**-0.5
    if plan.score_scale > 1.5 * due and plan.score_deviation * due / plan.score_scale < 2:
        words = f"Scale scores by 1/sqrt(head_dim) = {due:.3g} instead of {plan.score_scale:.3g}."
        return words, {"score_scale": due}
    if plan.qk_norm != "none":
        return f"Multiply the score scale by {1 / beta:.2g}.", {"score_scale": plan.score_scale / beta}
    query, key = plan.query * beta**-0.5, plan.key * beta**-0.5
    words = f"Draw queries and keys with standard deviations of {query:.2g} and {key:.2g}."
    return words, {"query": query, "key": key}


def _collapsed(cosine: Real, plan: Blueprint | None, again: Any) -> Finding:
    """Tokens that become one."""
    layer = int((cosine > COLLAPSED).argmax())
    sentence = f"Rank collapse by layer {layer}: the mean cosine of two tokens is {cosine[layer]:.2f}, and {cosine[-1]:.2f} in the last layer."
    if plan is None:
        return Finding("collapse", sentence, "Remove the gap of attention (be.nn.remove_gap).", "")
    changed = again(gap_free=True)["cosine"]
    after = f"Then the cosine is {changed[layer]:.2f} there, and {changed[-1]:.2f} in the last layer."
    return Finding("collapse", sentence, "Remove the gap of attention (be.nn.remove_gap).", after)


def _steep(scaled: Real, beta: float, plan: Blueprint | None, again: Any) -> Finding:
    """Gradients that explode or vanish."""
    ratio = float(scaled[0] / scaled[-1])
    words = "explode" if ratio > 1 else "vanish"
    sentence = (
        f"Gradients {words}: times the root of the stream's power, that of the first layer is {ratio:.3g} times that of"
        " the last."
    )
    if plan is None:
        return Finding("gradients", sentence, "Draw the last map of every branch smaller.", "")
    options: dict[str, dict[str, Any]] = {f"Draw the last map of every branch 1/sqrt(2 layers) = {(2 * plan.depth) ** -0.5:.2g} times as large.": {
        "output": plan.output / math.sqrt(2 * plan.depth), "down": plan.down / math.sqrt(2 * plan.depth)
    }}  # fmt: skip
    if beta > 2:
        words, softer = _softer(plan, beta)
        options[words] = softer
    if plan.placement == "post":
        options["Put the norms before the branches instead of after the sums."] = {
            "placement": "pre", "final_norm": True
        }
    results = {}
    for remedy, changes in options.items():
        after = again(**changes)["scaled_gradient"]
        results[remedy] = float(after[0] / after[-1])
    best = min(results, key=lambda each: abs(math.log(results[each])))
    return Finding("gradients", sentence, best, f"Then it is {results[best]:.3g} times that.")


def _notes(found: Preflight) -> Iterator[str]:
    """What is worth knowing and no warning."""
    beta = found.layers["beta"]
    if beta.max() < FLAT:
        yield (
            f"Uniform at start: scores have a standard deviation of at most {beta.max():.2g}, so that rows attend to all"
            " keys about alike. That is how many models start, and by itself no reason to fear for training."
        )
    if found.longer and found.plan is not None:
        keys = [min(found.tokens, each.window or found.tokens) for each in found.plan.layers]
        beyond = [min(found.longer, each.window or found.longer) for each in found.plan.layers]
        factor = math.sqrt(math.log(max(beyond)) / math.log(max(keys)))
        falls = found.layers["largest_long"].mean() < found.layers["largest"].mean()
        if factor > 1.001 and falls:
            yield (
                f"At {found.longer} tokens the largest weight of a row falls from {found.layers['largest'].mean():.2g} to"
                f" {found.layers['largest_long'].mean():.2g}; scores times {factor:.3g} keep their distance to freezing."
            )


def _summary(found: Preflight) -> Iterator[str]:
    """What to print above the table."""
    how = "predicted, without weights" if found.predicted else "measured on one random instance"
    beta, cosine, scaled = (found.layers[name] for name in ("beta", "cosine", "scaled_gradient"))
    yield f"{found.name} ({found.family}), {found.depth} layers, {found.tokens} tokens: {how}."
    yield (
        f"Scores have a standard deviation of {beta.min():.2g} to {beta.max():.2g}; the cosine of two tokens goes from"
        f" {cosine[0]:.2g} to {cosine[-1]:.2g}; gradients, scaled by the stream, differ {scaled.max() / scaled.min():.2g}-fold."
    )


def _page(found: Preflight) -> str:
    """One HTML page: sentences, warnings, the figure, the table and what its columns mean."""
    picture = io.BytesIO()
    found.plot().savefig(picture, format="png", dpi=160)
    columns = [name for name in found.layers if not name.endswith("_long")]
    longer = [name for name in found.layers if name.endswith("_long")]
    rows = [[k, *(f"{found.layers[name][k]:.3g}" for name in (*columns, *longer))] for k in range(found.depth)]
    text: str = page_templates("bulkedge.models").get_template("preflight.html").render(
        title=f"{found.name} before training",
        summary=found.summary().splitlines(),
        findings=found.findings,
        notes=found.notes,
        picture=b64encode(picture.getvalue()).decode(),
        meanings={name: COLUMNS[name] for name in columns},
        headings=["layer", *columns, *(f"{name.removesuffix('_long')} at {found.longer}" for name in longer)],
        rows=rows,
        version=__version__,
    )
    return text.encode("utf-8", "replace").decode("utf-8")
