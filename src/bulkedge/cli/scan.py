"""``bulkedge scan``: reads the heads of a model and says what they do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from bulkedge.cli.options import DomainType
from bulkedge.cli.terminal import explain_errors, out, show_progress, tell
from bulkedge.support.domains import Each, Integers
from bulkedge.support.errors import AccuracyWarning, DomainError, RegimeWarning, StoreError
from bulkedge.support.records import to_json

if TYPE_CHECKING:
    from bulkedge.models.scanning.results import Scan

SHOWN = {
    "layer": "layer",
    "head": "head",
    "kinds": "kind",
    "agreement": "agree",
    "beta": "β",
    "entropy": "entropy",
    "sink_mass": "sink",
    "offset": "offset",
    "offset_mass": "mass",
    "near_mass": "near",
    "column_energy": "columns",
    "effective_rank": "rank",
    "distance": "distance",
    "null_distance": "null",
    "q": "q",
    "scale_8": "8×",
}
"""Columns of the terminal's table, and what stands above them; how far texts agree is told of several only. The last is
the factor on the scores that keeps the entropy of rows at eight times the tokens, where there is room for it."""
WIDE = 150
"""Letters of a line from which on there is."""
OF_WEIGHTS = {
    "layer": "layer",
    "head": "head",
    "circuit": "circuit",
    "rank": "rank",
    "stable_rank": "stable rank",
    "largest_over_edge": "largest/edge",
    "p_largest": "p",
    "spikes": "spikes",
    "signal_energy": "energy",
    "distance": "distance",
    "null_distance": "null",
}
"""The same, of weights alone."""
LAYERS = Each(Integers(0, 100_000))
TOKENS = 512
NOT_OF_WEIGHTS = ("texts", "tokens", "no_probe", "device", "page", "store", "trust_remote_code")
"""Options that say how a model reads, and mean nothing to its weights."""
FLAGS = {"texts": "--text", "page": "--html", "store": "--save"}


@click.command("scan")
@click.argument("model", default="")
@click.option(
    "--text",
    "texts",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A text to read, in UTF-8; repeatable. Default: the opening of a book.",
)
@click.option(
    "--tokens",
    type=int,
    help="Tokens of each text that are read at most. Default: 512; of the default model, those it was trained on.",
)
@click.option(
    "--layers",
    metavar="0,5,...",
    type=DomainType("layers", LAYERS),
    help="Attention modules, in the order of their calls. Default: all.",
)
@click.option("--draws", default=19, show_default=True, help="Random heads a layer; 0 for no p-values.")
@click.option("--no-probe", is_flag=True, help="Do not look for induction heads on repeated random tokens.")
@click.option("--weights", is_flag=True, help="Read the weights of a folder alone: no text, no model in memory.")
@click.option("--device", help="Where to run: cpu, cuda, mps, or auto for all there are.")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="Seed of the random weights."
)
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page to look at.")
@click.option("--save", "store", type=click.Path(path_type=Path), help="Save everything, for bulkedge.load_scan.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a model of a hub.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def scan_command(model: str, *, weights: bool, as_json: bool, **given: Any) -> None:
    """Read every head of MODEL: what it does, which are idle, and how sure we are.

    MODEL is a folder, a checkpoint with its config.json, a GGUF file, a hub id, or minilm; without one, a small decoder
    is trained on the spot and read before and after.

    bulkedge scan minilm --html heads.html
    """
    if weights:
        _tell_weights(model, given, as_json=as_json)
        return
    page, store = given["page"], given["store"]
    with explain_errors(kept=False):
        _require_room(page, store)
        texts = [_text(path) for path in given["texts"]] or None
    with explain_errors(kept=False), show_progress(), print_warnings():
        before, found = scan_with_options(model, texts, given)
    with explain_errors(kept=False):
        if store is not None:
            found.save(store)
        if page is not None:
            found.to_html(page, before=before)
    if as_json:
        click.echo(to_json(found.records()))
        return
    alone = found.data.sizes["text"] == 1
    left_out = {"agreement"} if alone else set()
    left_out |= {"scale_8"} if out.width < WIDE else set()
    records = found.records()
    out.print(heads_table(records, {name: each for name, each in SHOWN.items() if name not in left_out}))
    for sentence in (*found.summary().splitlines(), *longer_contexts(records), *found.warnings):
        click.echo(sentence)
    if page is not None:
        click.echo(f"the page is {page}")


def longer_contexts(records: list[dict[str, Any]]) -> Iterator[str]:
    """Which factors keep the entropy of rows at longer contexts, over all heads that have some."""
    for times in (2, 8, 32):
        factors = sorted(row[f"scale_{times}"] for row in records if isfinite(row[f"scale_{times}"]))
        if factors:
            yield (
                f"At {times}× the tokens heads keep their entropy with scores times {factors[0]:.3g} to "
                f"{factors[-1]:.3g}, {factors[len(factors) // 2]:.3g} in the median."
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


def _require_room(page: Path | None, store: Path | None) -> None:
    """Refuse names that cannot be written, before the work and not after it."""
    for path in (page, store):
        if path is not None and not path.absolute().parent.is_dir():
            raise StoreError(f"{path} cannot be written: there is no folder {path.absolute().parent}")
    if store is not None and store.exists():
        raise StoreError(f"{store} is there already; choose another name, or remove it")


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DomainError(f"{path} is not a text in UTF-8: {error.reason} at byte {error.start}") from None
    if not text.strip():
        raise DomainError(f"{path} has nothing in it to read")
    return text


def scan_with_options(name: str, texts: list[str] | None, given: Mapping[str, Any]) -> tuple[Scan | None, Scan]:
    """The scan, and for the default model one from before its training."""
    from bulkedge.models import default_model, load_model, scan
    from bulkedge.models.loading.default import CONTEXT
    from bulkedge.models.scanning.scanner import check_sizes

    tokens = given["tokens"] if given["tokens"] is not None else TOKENS if name else CONTEXT
    check_sizes(tokens, given["draws"])
    options: dict[str, Any] = {
        "tokens": tokens,
        "layers": given["layers"],
        "draws": given["draws"],
        "probe": not given["no_probe"],
        "rng": given["seed"],
    }
    before = None
    if not name:
        fresh, tokenizer = default_model(trained=False)
        before = scan(fresh, texts, tokenizer=tokenizer, **options)  # soon done, and finds fault before the training
    model, tokenizer, title = load_model(name, device=given["device"], trust_remote_code=given["trust_remote_code"])
    return before, scan(model, texts, tokenizer=tokenizer, title=title, **options)


@contextmanager
def print_warnings() -> Iterator[None]:
    """Tell each warning of the package once, after the work and without the place in the source that it came from."""
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
