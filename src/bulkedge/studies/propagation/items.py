"""What the paper *propagation* contains, in its order."""

from bulkedge.studies.items import Item

ITEMS: tuple[Item, ...] = ()
