"""The rooms of the explorer, by their names."""

from bulkedge.explore.room import Room
from bulkedge.explore.rooms.channel import ChannelRoom
from bulkedge.explore.rooms.collapse import Collapse
from bulkedge.explore.rooms.heads import Heads
from bulkedge.explore.rooms.recovery import Recovery
from bulkedge.explore.rooms.width import Width

ROOMS: dict[str, type[Room]] = {room.name: room for room in (Heads, ChannelRoom, Recovery, Width, Collapse)}

__all__ = ["ROOMS", "ChannelRoom", "Collapse", "Heads", "Recovery", "Width"]
