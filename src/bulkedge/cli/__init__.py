"""The command line: ``commands.py`` has the commands, ``options.py`` those of studies and laws, ``terminal.py`` prints."""

from bulkedge.cli.commands import main

__all__ = ["main"]
