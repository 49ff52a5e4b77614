"""``bulkedge scan``: reads the heads of a model and says what they do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from bulkedge.cli.terminal import DomainType, explain_errors, out, show_progress, tell
from bulkedge.support.domains import Each, Integers, Interval
from bulkedge.support.errors import AccuracyWarning, DomainError, RegimeWarning, StoreError
from bulkedge.support.files import to_json

if TYPE_CHECKING:
    from bulkedge.models.scanning.removal import Removal
    from bulkedge.models.scanning.results import Scan

# Columns of the terminal's table, and what stands above them; how far texts agree is shown for several only. The last
# is the factor on the scores that keeps the entropy of rows at eight times the tokens, where there is room for it.
SHOWN = {
    "layer": "layer", "head": "head", "kinds": "kind", "agreement": "agree", "beta": "β", "entropy": "entropy",
    "sink_mass": "sink", "offset": "offset", "offset_mass": "mass", "near_mass": "near", "column_energy": "columns",
    "effective_rank": "rank", "distance": "distance", "null_distance": "null", "q": "q",
    "importance": "worth", "scale_8": "8×",
}  # fmt: skip
WIDE = 150  # letters of a line from which on there is
# the same, of weights alone
OF_WEIGHTS = {
    "layer": "layer", "head": "head", "circuit": "circuit", "rank": "rank", "stable_rank": "stable rank",
    "largest_over_edge": "largest/edge", "p_largest": "p", "spikes": "spikes", "signal_energy": "energy",
    "distance": "distance", "null_distance": "null",
}  # fmt: skip
LAYERS = Each(Integers(0, 100_000))
TOKENS = 512
# options that say how a model reads, and mean nothing to its weights
NOT_OF_WEIGHTS = (
    "texts", "tokens", "no_probe", "importance", "remove", "smaller", "device", "page", "store", "trust_remote_code"
)  # fmt: skip
FLAGS = {"texts": "--text", "page": "--html", "store": "--save", "smaller": "--out"}


@click.command("scan")
@click.argument("model", default="")
@click.option(
    "--text",
    "texts",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A text to read, in UTF-8. May be repeated. Default: the opening of a book.",
)
@click.option(
    "--tokens",
    type=int,
    help="Read at most this many tokens of each text. Default: 512; for the default model, its training length.",
)
@click.option(
    "--layers",
    metavar="0,5,...",
    type=DomainType("layers", LAYERS),
    help="Layers to read, numbered from 0. Default: all.",
)
@click.option(
    "--draws",
    default=19,
    show_default=True,
    help="Random heads in each layer that heads are compared with; 5 or more, or 0 for no p-values.",
)
@click.option("--no-probe", is_flag=True, help="Do not look for induction heads on repeated random tokens.")
@click.option(
    "--importance", is_flag=True, help="Estimate what predictions lose without each head. Takes 128 backward passes."
)
@click.option(
    "--remove",
    type=float,
    metavar="SHARE",
    help="Choose this share of the heads, the cheapest, and measure what they cost. Implies --importance.",
)
@click.option(
    "--out",
    "smaller",
    type=click.Path(path_type=Path),
    help="Save the model without the heads of --remove in this new folder.",
)
@click.option("--weights", is_flag=True, help="Read only the weights of a folder. No text is read, and no model runs.")
@click.option("--device", help="Where to run: cpu, cuda or mps; auto spreads the model over all devices.")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="Seed of the random heads."
)
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page for the browser.")
@click.option(
    "--save", "store", type=click.Path(path_type=Path), help="Save the scan in this new folder, for bulkedge.load_scan."
)
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a model of a hub.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def scan_command(model: str, *, weights: bool, as_json: bool, **given: Any) -> None:
    """Report what every head of MODEL does, what it is worth, and how sure that is.

    MODEL is a folder, a checkpoint with its config.json, a GGUF file, a hub id, or minilm. Without MODEL, a small
    decoder is trained on the spot and read before and after.

    bulkedge scan minilm --html heads.html

    bulkedge scan minilm --remove 0.1 --out smaller/
    """
    if weights:
        _tell_weights(model, given, as_json=as_json)
        return
    page, store, share = given["page"], given["store"], given["remove"]
    given["importance"] = given["importance"] or share is not None
    with explain_errors(kept=False):
        if given["smaller"] is not None and share is None:
            raise DomainError("--out is where the model without heads goes: say how many with --remove SHARE")
        share = None if share is None else Interval(0, 1, "()").check("--remove", share)
        require_room(page, store, given["smaller"])
        texts = [_text(path) for path in given["texts"]] or None
    with explain_errors(kept=False), show_progress(), print_warnings():
        before, found, tokenizer = scan_with_options(model, texts, given)
        removal, cost = (None, "") if share is None else _removal(found, share)
    with explain_errors(kept=False):
        if store is not None:
            found.save(store)
        if page is not None:
            found.to_html(page, before=before, removals=[] if removal is None else [removal])
        removed = [cost] if removal is not None else []
        if removal is not None and given["smaller"] is not None:
            removed += _save_smaller(found, removal, given["smaller"], tokenizer)
    if as_json:
        click.echo(to_json(found.records()))
        return
    alone = found.data.sizes["text"] == 1
    left_out = {"agreement"} if alone else set()
    left_out |= {"scale_8"} if out.width < WIDE else set()
    left_out |= set() if given["importance"] else {"importance"}
    records = found.records()
    out.print(heads_table(records, {name: each for name, each in SHOWN.items() if name not in left_out}))
    for sentence in (*found.summary().splitlines(), *longer_contexts(records), *found.warnings, *removed):
        click.echo(sentence)
    if page is not None:
        click.echo(f"the page is {page}")


def _removal(found: Scan, share: float) -> tuple[Removal, str]:
    """The heads that cost least, and what that is, predicted and measured."""
    removal = found.removable(share=share)
    if not len(removal):
        raise DomainError(f"--remove {share:g} of {len(found.records())} heads is less than one head")
    from bulkedge.models.scanning.glossary import head_names

    moved, copies = found.moved(removal), "importance_copies" in found.data
    unit = "nats a token, on the texts plus on copied tokens" if copies else "in the unit of importance"
    return removal, (
        f"The heads that cost least: {head_names(removal)}. Cost without them: {removal.cost.value:.3g} ± "
        f"{removal.cost.error:.2g} predicted, {moved.value:.3g} ± {moved.error:.2g} measured ({unit})."
    )


def _save_smaller(found: Scan, removal: Removal, folder: Path, tokenizer: Any) -> Iterator[str]:
    """Save the model without some heads, and say so."""
    from bulkedge.nn import prune_heads

    yield str(prune_heads(found.model, removal))
    found.model.save_pretrained(folder)
    if hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(folder)
    yield f"the smaller model is in {folder}"


def longer_contexts(records: list[dict[str, Any]]) -> Iterator[str]:
    """Which factors keep the entropy of rows at longer contexts, over all heads that have some."""
    for times in (2, 8, 32):
        factors = [row[f"scale_{times}"] for row in records if isfinite(row[f"scale_{times}"])]
        if factors:
            yield (
                f"At {times}× the tokens, a head keeps the entropy of its rows if its scores are multiplied by "
                f"{median(factors):.3g} (median over heads; from {min(factors):.3g} to {max(factors):.3g})."
            )


def _tell_weights(model: str, given: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what the weights alone say."""
    with explain_errors(kept=False), show_progress():
        if unused := [FLAGS.get(name, f"--{name.replace('_', '-')}") for name in NOT_OF_WEIGHTS if given[name]]:
            raise DomainError(f"--weights reads no text and runs no model: leave out {' and '.join(unused)}")
        if not model:
            raise DomainError("--weights needs MODEL: a folder with config.json and safetensors, one of its files, ...")
        from bulkedge.models import MODELS, scan_weights
        from bulkedge.models.loading.packaged import packaged_folder

        found = scan_weights(packaged_folder(model) if model in MODELS else model, layers=given["layers"])
    if as_json:
        click.echo(found.to_json())
        return
    out.print(heads_table(found.records(), OF_WEIGHTS))
    click.echo(found.summary())


def require_room(page: Path | None, *folders: Path | None) -> None:
    """Refuse names that cannot be written, before the work and not after it."""
    for path in (page, *folders):
        if path is not None and not path.absolute().parent.is_dir():
            raise StoreError(f"{path} cannot be written: there is no folder {path.absolute().parent}")
    for path in folders:
        if path is not None and path.exists():
            raise StoreError(f"{path} is there already; choose another name, or remove it")


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DomainError(f"{path} is not a text in UTF-8: {error.reason} at byte {error.start}") from None
    if not text.strip():
        raise DomainError(f"{path} has nothing in it to read")
    return text


def scan_with_options(name: str, texts: list[str] | None, given: Mapping[str, Any]) -> tuple[Scan | None, Scan, Any]:
    """The scan, for the default model one from before its training, and the tokenizer."""
    from bulkedge.models import default_model, load_model, scan
    from bulkedge.models.loading.default import CONTEXT
    from bulkedge.models.scanning.scanner import check_sizes

    tokens = given["tokens"] if given["tokens"] is not None else TOKENS if name else CONTEXT
    check_sizes(tokens, given["draws"])
    options: dict[str, Any] = {name: given[name] for name in ("layers", "draws")}
    options |= {"tokens": tokens, "probe": not given["no_probe"], "rng": given["seed"]}
    options["importance"] = given["importance"]
    before = None
    if not name:
        fresh, tokenizer = default_model(trained=False)
        before = scan(fresh, texts, tokenizer=tokenizer, **options)  # soon done, and finds fault before the training
    model, tokenizer, title = load_model(name, device=given["device"], trust_remote_code=given["trust_remote_code"])
    return before, scan(model, texts, tokenizer=tokenizer, title=title, **options), tokenizer


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print each warning of the package once, after the work and without the place in the source that it came from."""
    with warnings.catch_warnings(record=True) as heard:
        for category in (RegimeWarning, AccuracyWarning):
            warnings.simplefilter("always", category)
        yield
    for sentence in dict.fromkeys(str(each.message) for each in heard):
        tell(f"warning: {sentence}")


def heads_table(records: list[dict[str, Any]], shown: Mapping[str, str]) -> Table:
    """Heads as a table for a terminal."""
    table = Table(*shown.values(), box=None, pad_edge=False)
    for row in records:
        table.add_row(*(_cell(row[name]) for name in shown))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.3g}"  # noqa: PLR0124 - nan
    return escape(str(value))
