"""Preflight: what a configuration does at initialisation, as a table, as warnings with remedies, and as a page."""

from __future__ import annotations

import io
import math
import os
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bulkedge.models.initialisation.blueprint import read_blueprint
from bulkedge.models.initialisation.findings import (
    COLUMNS,
    LONGER,
    Finding,
    columns_of,
    findings_of,
    notes_of,
    summary_of,
    with_derived,
)
from bulkedge.models.initialisation.moments import ACTIVATIONS
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Integers, Interval, shown, takes
from bulkedge.support.errors import DomainError, need
from bulkedge.support.files import page_templates, replace_file, to_json
from bulkedge.version import __version__

if TYPE_CHECKING:
    import pandas as pd

MEASURED_TOKENS, MEASURED_WEIGHTS = 512, 500_000_000  # of a model that is made because its family is not known


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
        """What the configuration does, in two sentences.

        Returns
        -------
        str
            Two lines.
        """
        how = "predicted, without weights" if self.predicted else "measured on one random instance"
        first = f"{self.name} ({self.family}), {self.depth} layers, {self.tokens} tokens: {how}."
        return f"{first}\n{summary_of(self.layers)}"

    def records(self) -> list[dict[str, Any]]:
        """The rows of the table.

        Returns
        -------
        list of dict
            One for each layer.
        """
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
        from bulkedge import plots

        return plots.spectra.plot_preflight(self.layers, self.tokens, self.longer)

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
        """Everything but the configuration, for JSON.

        Returns
        -------
        dict
            What :meth:`save` writes.
        """
        return {
            "name": self.name, "family": self.family, "how": "predicted" if self.predicted else "measured",
            "tokens": self.tokens, "longer": self.longer, "bulkedge": __version__,
            "warnings": [each._asdict() for each in self.findings], "notes": list(self.notes), "layers": self.records(),
        }  # fmt: skip


@takes(
    tokens=Integers(2, 10**7), rate=Interval(0, math.inf, "()"), steps=Integers(1, 10**9),
    optimiser=Choice(("adam", "adamw")),
)  # fmt: skip
def preflight(  # noqa: PLR0913, PLR0917 - five things that one may say of a run, all by name
    config_or_model: Any,
    tokens: int = 8192,
    texts: Sequence[Sequence[int]] | None = None,
    rate: float | None = None,
    steps: int | None = None,
    optimiser: str = "adamw",  # noqa: ARG001 - of those that are known, first steps are alike
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
    layers = columns_of(plan, tokens, longer, repeats, first_rate)
    findings = tuple(findings_of(layers, plan, tokens, repeats, first_rate))
    notes += notes_of(layers, plan, tokens, longer)
    return Preflight(name, plan.family, predicted=True, tokens=tokens, longer=longer, layers=layers, findings=findings,
                     notes=tuple(notes))  # fmt: skip


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


def _measured(config: Any, name: str, tokens: int) -> Preflight:
    """The same of one random instance of a model that is not known."""
    import torch
    from transformers import AutoModel

    from bulkedge.models.initialisation.measuring import measure

    with torch.device("meta"):
        auto: Any = AutoModel  # it has no types
        count = sum(each.numel() for each in auto.from_config(config).parameters())
    if count > MEASURED_WEIGHTS:
        raise DomainError(
            f"preflight does not know the family {config.model_type!r}, and with {count / 1e9:.1f} billion weights it"
            " is too large to be made and measured; ask about one of fewer layers and less width"
        )
    limit = getattr(config.get_text_config(), "max_position_embeddings", None) or MEASURED_TOKENS
    read = min(tokens, MEASURED_TOKENS, limit)
    layers = measure(config, read, seed=0)
    keys = np.full(len(layers["beta"]), math.sqrt(2 * math.log(read)))
    layers = with_derived(layers, keys)
    note = (
        f"Preflight does not know the family {config.model_type!r}: these numbers were measured on one random instance,"
        f" with {read} random tokens. Another instance differs, in the cosine by some 0.05."
    )
    findings = tuple(findings_of(layers, None, read, None, None))
    return Preflight(name, config.model_type, predicted=False, tokens=read, longer=0, layers=layers, findings=findings,
                     notes=(note,))  # fmt: skip


def _page(found: Preflight) -> str:
    """One HTML page: sentences, warnings, the figure, the table and what its columns mean."""
    picture = io.BytesIO()
    found.plot().savefig(picture, format="png", dpi=160)
    columns = [name for name in found.layers if not name.endswith("_long")]
    longer = [name for name in found.layers if name.endswith("_long")]
    rows = [[k, *(f"{found.layers[name][k]:.3g}" for name in (*columns, *longer))] for k in range(found.depth)]
    template = page_templates("bulkedge.models").get_template("preflight.html")
    text: str = template.render(
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
