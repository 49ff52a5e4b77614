"""A folder of reproduced studies: its records, ``claims.json``, and the pages made from them."""

from bulkedge.lab.gallery.folder import Origin, Reproduction, read, sources

__all__ = ["Origin", "Reproduction", "read", "sources"]
