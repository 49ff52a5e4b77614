"""The rooms of the explorer, by their names."""

from bulkedge.lab.explore.room import Room
from bulkedge.lab.explore.rooms.channel import ChannelRoom
from bulkedge.lab.explore.rooms.collapse import Collapse
from bulkedge.lab.explore.rooms.heads import Heads
from bulkedge.lab.explore.rooms.recovery import Recovery
from bulkedge.lab.explore.rooms.width import Width

ROOMS: dict[str, type[Room]] = {room.name: room for room in (Heads, ChannelRoom, Recovery, Width, Collapse)}

__all__ = ["ROOMS", "ChannelRoom", "Collapse", "Heads", "Recovery", "Width"]
