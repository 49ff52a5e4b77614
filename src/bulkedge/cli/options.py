"""Options of the command line that are made from declarations: parameters of studies and of laws."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING
from functools import cache
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from bulkedge.cli.terminal import explain_errors, unknown
from bulkedge.support.domains import Choice, Domain, Each, Instance, Parameter, Parametric, parameters
from bulkedge.support.errors import DomainError

if TYPE_CHECKING:
    AnyParamType = click.ParamType[Any]
else:
    AnyParamType = click.ParamType  # which takes no argument before click 8.4


class DomainType(AnyParamType):
    """The values of a domain, under the name of a parameter."""

    def __init__(self, parameter: str, domain: Domain) -> None:
        self.parameter, self.domain = parameter, domain
        self.name = "numbers" if isinstance(domain, Each) else "value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read and check a value; click calls this for every option of this type."""
        try:
            return self.domain.parse(self.parameter, str(value))
        except DomainError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click calls it so
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Values that a shell completes: those of a choice."""
        options = self.domain.options if isinstance(self.domain, Choice) else ()
        return [CompletionItem(str(each)) for each in options if str(each).startswith(incomplete)]


def option_for(declared: Parameter) -> click.Option:
    """A declared parameter as an option, with its meaning, domain and values as help."""
    known = "" if declared.default is MISSING else f"; default {declared.default}"
    if declared.large is not MISSING:
        known += f"; with --paper {declared.large} ({'of the paper' if declared.source == 'paper' else 'ours'})"
    return click.Option(
        [f"--{declared.name.replace('_', '-')}", declared.name],
        type=DomainType(declared.name, declared.domain),
        required=declared.default is MISSING,
        help=f"{declared.doc}, in {declared.domain}{known}.",
    )


class CatalogueCommand(click.Command):
    """A command whose first argument names something with declared parameters; these become options."""

    kind: str
    catalogue: Callable[[], dict[str, type]]
    chosen: type | None = None

    def groups(self) -> list[str]:
        """Names that stand for several entries of the catalogue."""
        return []

    def require(self, name: str) -> None:
        """Refuse a name that is not known."""
        if name not in (known := [*self.catalogue(), *self.groups()]):
            raise unknown(self.kind, name, known)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Look for a known name among the arguments before they are parsed."""
        known, words = self.catalogue(), self._words(args)
        if words and words[0] == args[0]:
            # if this is misspelled, say so, and not that the options after it are unknown
            with explain_errors():
                self.require(words[0])
        self.chosen = next((known[each] for each in words if each in known), None)
        return super().make_context(info_name, args, parent, **extra)

    def _words(self, args: list[str]) -> list[str]:
        """The arguments that may be the name: neither options nor values of the options that every name has."""
        own = {
            word for each in self.params if isinstance(each, click.Option) and not each.is_flag for word in each.opts
        }
        return [
            each
            for before, each in zip(["", *args], args, strict=False)
            if not each.startswith("-") and before not in own
        ]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The options of the command and of what was named."""
        declared = parameters(self.chosen) if self.chosen else ()
        return super().get_params(ctx) + [option_for(each) for each in declared]


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Names that a shell completes for the first argument of a :class:`CatalogueCommand` command."""
    command = ctx.command
    if not isinstance(command, CatalogueCommand):
        return []
    known = command.catalogue()
    names = sorted(name for name in {*known, *command.groups()} if name.startswith(incomplete))
    said = {name: (each.__doc__ or "").split("\n")[0] for name, each in known.items()}
    return [CompletionItem(name, help=said.get(name)) for name in names]


def _studies() -> dict[str, type]:
    from bulkedge.lab.studies.base import studies

    return dict(studies())


class StudyCommand(CatalogueCommand):
    """Names a study."""

    kind = "study"
    catalogue = staticmethod(_studies)


class PaperCommand(StudyCommand):
    """Names a study, or a paper for all of its studies."""

    def groups(self) -> list[str]:
        """The papers."""
        return sorted({name.split("/")[0] for name in self.catalogue()})


@cache
def families() -> dict[str, type]:
    """The families of laws whose parameters can be given as text, by the name they have on the command line."""
    from bulkedge import laws

    found = (getattr(laws, name) for name in laws.__all__)
    return {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "-", each.__name__).lower(): each
        for each in found
        if isinstance(each, type)
        and issubclass(each, Parametric)
        and issubclass(each, laws.Law)
        and not any(isinstance(declared.domain, Instance) for declared in parameters(each))
    }


class LawCommand(CatalogueCommand):
    """Names a family of laws."""

    kind = "law"
    catalogue = staticmethod(families)
