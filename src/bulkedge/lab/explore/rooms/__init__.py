"""The rooms of the explorer, by their names."""

from bulkedge.lab.explore.room import Room
from bulkedge.lab.explore.rooms.channel import ChannelRoom
from bulkedge.lab.explore.rooms.collapse import CollapseRoom
from bulkedge.lab.explore.rooms.heads import HeadsRoom
from bulkedge.lab.explore.rooms.recovery import RecoveryRoom
from bulkedge.lab.explore.rooms.width import WidthRoom

ROOMS: dict[str, type[Room]] = {
    room.name: room for room in (HeadsRoom, ChannelRoom, RecoveryRoom, WidthRoom, CollapseRoom)
}

__all__ = ["ROOMS", "ChannelRoom", "CollapseRoom", "HeadsRoom", "RecoveryRoom", "WidthRoom"]
