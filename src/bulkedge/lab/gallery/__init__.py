"""A folder of reproduced studies: its records, ``claims.json``, and the pages made from them."""

from bulkedge.lab.gallery.folder import Gallery, read
from bulkedge.lab.gallery.record import Origin, Reproduction, sources

__all__ = ["Gallery", "Origin", "Reproduction", "read", "sources"]
