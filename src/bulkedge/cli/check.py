"""``bulkedge check``: says whether a matrix of a file looks random."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from bulkedge.cli.terminal import explain_errors, out
from bulkedge.support.domains import shown
from bulkedge.support.errors import DomainError, StoreError
from bulkedge.support.files import replace_file, to_json

if TYPE_CHECKING:
    from bulkedge.inference.diagnosis import Diagnosis

MOST_BYTES, SMALLEST, LARGEST = 4 * 2**30, 2, 8192  # of a file; rows and columns, of which so many take a minute


@click.command("check")
@click.argument("file", metavar="FILE[:NAME]")
@click.option(
    "--plot",
    "picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the values and the nearest laws into this file: .png, .pdf or .svg.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check_command(file: str, picture: Path | None, *, as_json: bool) -> None:
    """Say whether a matrix looks random: the nearest law, how well it fits, and what stands out.

    FILE is .npy, .npz, .csv or .safetensors. If it holds several matrices, NAME says which one.

    bulkedge check weights.safetensors:layers.0.query
    """
    with explain_errors(kept=False):
        from bulkedge.inference.diagnosis import diagnose

        if picture is not None and not picture.absolute().parent.is_dir():
            raise StoreError(f"{picture} cannot be written: there is no folder {picture.absolute().parent}")
        found = diagnose(read_argument(file))
        if picture is not None:
            draw(found, picture)
    if as_json:
        click.echo(to_json(found.facts()))
        return
    click.echo(found.verdict)
    for table in tables(found):
        out.print("", table)
    if found.fit is not None:
        among = f", among {found.fit.draws} random matrices" if found.fit.draws else ""
        out.print(f"\np-value of the whole fit: {found.fit.value:.2g}{among}", highlight=False)


def read_argument(argument: str) -> Any:
    """The matrix that ``FILE`` or ``FILE:NAME`` names; the longest part that is a file is the file."""
    from bulkedge.lab.matrix_files import Limits, choices, read_matrix

    path, name = Path(argument), ""
    if not path.exists() and ":" in argument:
        first, _, name = argument.partition(":")
        if len(first) == 1 and ":" in name:  # a drive of Windows
            rest, _, name = name.partition(":")
            first = f"{first}:{rest}"
        path = Path(first)
    if not path.is_file():
        raise StoreError(f"{shown(str(path))} is not a file")
    limits = Limits(MOST_BYTES, SMALLEST, LARGEST)
    if path.stat().st_size > limits.bytes:
        raise DomainError(f"{path} is larger than {limits.bytes >> 30} GB: save the matrix by itself")
    data = path.read_bytes()
    names = choices(path.name, data, limits)
    if not name and len(names) > 1:
        some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise DomainError(f"{path} holds {len(names)} matrices; name one, as in {path}:{names[0]}. There are {some}")
    return read_matrix(path.name, data, name or None, limits)


def draw(found: Diagnosis, picture: Path) -> None:
    """The matrix's values on the nearest laws, as a picture."""
    from bulkedge.plots.style import panels, styled

    stream = BytesIO()
    try:
        with styled():
            found.plot(panels(1, 1)[1][0, 0]).figure.savefig(stream, format=picture.suffix[1:] or "png", dpi=200)
    except ValueError as error:
        raise DomainError(f"--plot {picture}: {str(error).partition(' (')[0]}; use .png, .pdf or .svg") from None
    replace_file(picture, stream.getvalue())


def tables(found: Diagnosis) -> list[Table]:
    """Numbers of a diagnosis for a terminal: laws, and outliers if there are any."""
    laws = Table("law", "distance", box=None, pad_edge=False)
    for each in found.candidates:
        laws.add_row(escape(each.name), f"{each.distance:.3f}")
    if not found.outliers:
        return [laws] if found.candidates else []
    beyond = Table(f"outlier ({found.unit} of {found.matrix})", "p-value", "overlaps", box=None, pad_edge=False)
    for outlier in found.outliers:
        sides = dict.fromkeys(f"{side:.2f}" for side in (outlier.left_overlap, outlier.right_overlap) if side == side)  # noqa: PLR0124 - nan
        chance = "" if outlier.p_value != outlier.p_value else f"{outlier.p_value:.2g}"
        beyond.add_row(f"{outlier.value:.4g}", chance, " and ".join(sides))
    return [laws, beyond]
