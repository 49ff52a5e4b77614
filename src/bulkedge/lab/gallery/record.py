"""What is known of a study that was run: where its numbers are from, and what it says of its claims."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from bulkedge.lab.studies.claims import Claim
from bulkedge.version import __version__


@cache
def sources() -> str:
    """A digest of the package's Python files: between releases, the version alone does not tell which code ran."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Origin:
    """All that the numbers of a study depend on: two results of the same origin are the same.

    Parameters are as JSON has them, lists for tuples.
    """

    study: str
    parameters: dict[str, Any]
    seed: int
    version: str
    sources: str

    def differences(self, other: Origin) -> list[str]:
        """In what two origins differ, in words.

        Parameters
        ----------
        other : Origin
            The origin of another result of the same study, as a rule.

        Returns
        -------
        list of str
            Among ``study``, ``parameters``, ``seed``, ``version`` and ``sources``; sources are not named beside the
            version, with which they always differ.
        """
        found = [key for key, value in asdict(self).items() if value != getattr(other, key)]
        # other versions have other sources
        return [key for key in found if key != "sources" or "version" not in found]


@dataclass(frozen=True)
class Reproduction:
    """A study that was run, as its record tells it; its figure and its dataset are in its folder.

    Attributes
    ----------
    origin : Origin
        Study, parameters, seed and code.
    summary : str
        What the study shows.
    command : str
        The command that runs it again.
    seconds : float
        How long it took.
    width, height : int
        Size of the figure on the page, in pixels.
    claims : tuple of Claim
        What it says of the paper's statements.
    chosen : dict of str to str
        Who chose the value of each parameter, as :meth:`bulkedge.lab.studies.base.Study.chosen` says.
    digest : str
        SHA-256 of its files, which tells whether they are still those that were written.
    """

    origin: Origin
    summary: str
    command: str
    seconds: float
    width: int
    height: int
    claims: tuple[Claim, ...]
    chosen: dict[str, str]
    digest: str = ""

    @property
    def name(self) -> str:
        """The study's name."""
        return self.origin.study

    @property
    def paper(self) -> str:
        """The folder that the study is in, which is the paper it is about."""
        return self.name.split("/")[0]

    @property
    def outdated(self) -> str:
        """What other code made it, or nothing if it was this."""
        if self.origin.version != __version__:
            return f"version {self.origin.version}"
        return f"other sources of version {__version__}" if self.origin.sources != sources() else ""

    def record(self) -> dict[str, Any]:
        """All of it, for ``record.json``."""
        claims = [claim.record() for claim in self.claims]
        own = {
            key: getattr(self, key) for key in ("summary", "command", "seconds", "width", "height", "chosen", "digest")
        }
        return asdict(self.origin) | own | {"claims": claims}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Read what :meth:`record` wrote; KeyError, TypeError and ValueError tell of one that was not.

        Parameters
        ----------
        record : dict
            What ``json.loads`` made of a ``record.json``.

        Returns
        -------
        Reproduction
            The result; fields of claims that this version does not know are left aside.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is not a record.
        """
        claims = tuple(Claim.from_record(each) for each in record["claims"])
        study, version, code, summary, command, digest = (
            str(record[key]) for key in ("study", "version", "sources", "summary", "command", "digest")
        )
        origin = Origin(study, dict(record["parameters"]), int(record["seed"]), version, code)
        seconds, width, height = float(record["seconds"]), int(record["width"]), int(record["height"])
        chosen = {name: str(record["chosen"][name]) for name in origin.parameters}
        return cls(origin, summary, command, seconds, width, height, claims, chosen, digest)

    def shown_claims(self) -> list[dict[str, Any]]:
        """The claims as ``claims.json`` has them, each with what made it."""
        made_by = {"study": self.name, "seed": self.origin.seed, "version": self.origin.version}
        return [claim.record() | made_by for claim in self.claims]
