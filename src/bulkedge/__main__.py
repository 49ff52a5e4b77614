"""``python -m bulkedge`` is the command line."""

from bulkedge.cli import main

main(prog_name="bulkedge")
