"""The rooms of the explorer, by their names."""

from bulkedge.explore.room import Room
from bulkedge.explore.rooms.heads import Heads

ROOMS: dict[str, type[Room]] = {room.name: room for room in (Heads,)}

__all__ = ["ROOMS", "Heads"]
