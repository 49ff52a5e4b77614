"""Make the long description for PyPI: README.md, with no link that works in the repository alone."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Code comes first, so that nothing in it is taken for a link. The text of a link may have brackets: a picture has.
CODE_OR_LINK = re.compile(
    r"""
    (?P<fence>`++|~~~).+?(?<!`)(?P=fence)(?!`)
    | (?P<picture>!?) \[ (?P<text>(?:[^\[\]] | \[[^\[\]]*\])*) \] \( (?P<target>[^\s()]+) (?P<title>\s[^()]*)? \)
    """,
    re.DOTALL | re.VERBOSE,
)


def long_description(readme: str, address: str, version: str) -> str:
    """Lead relative links to a version in the repository; without an address, leave their words alone.

    Parameters
    ----------
    readme : str
        Markdown with links and pictures in line: no reference definitions, no HTML.
    address : str
        That of the repository; empty if it has none.
    version : str
        The tag ``v{version}`` is linked if it is a release, and else the newest commit.

    Returns
    -------
    str
        Markdown without relative links.
    """
    tag = "HEAD" if "dev" in version else f"v{version}"

    def linked(match: re.Match[str]) -> str:
        if match["fence"]:
            return match[0]
        text, target = CODE_OR_LINK.sub(linked, match["text"]), match["target"]
        if address:
            target = urljoin(f"{address}/{'raw' if match['picture'] else 'blob'}/{tag}/README.md", target)
        if urlsplit(target).scheme:
            return f"{match['picture']}[{text}]({target}{match['title'] or ''})"
        return f"*Picture: {text}*" if match["picture"] else text

    return CODE_OR_LINK.sub(linked, readme)


class LongDescription(MetadataHookInterface):
    """The hook that hatchling calls when it builds, except from an sdist, which has its long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme.

        Parameters
        ----------
        metadata : dict
            The table ``[project]``, with the version.
        """
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = long_description(readme, metadata["urls"].get("Repository", ""), metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
