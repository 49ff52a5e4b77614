"""A folder of reproduced studies: its records, ``claims.json``, and the pages made from them."""

from bulkedge.gallery.folder import Gallery, read
from bulkedge.gallery.record import Origin, Reproduction, sources

__all__ = ["Gallery", "Origin", "Reproduction", "read", "sources"]
