"""The command line: commands, the options that declarations make, and what is printed on the terminal."""

from bulkedge.cli.commands import main

__all__ = ["main"]
