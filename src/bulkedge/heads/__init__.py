"""Heads of real models: what their queries and keys say of their attention before it is formed, and what they do."""

from bulkedge.heads.causal import CausalChannel
from bulkedge.heads.channel import Channel
from bulkedge.heads.kinds import KINDS, Kind, Kinds, idle, kinds_of
from bulkedge.heads.spectrum import ChannelLaw
from bulkedge.heads.temperature import published_rules, temperature

__all__ = [
    "KINDS",
    "CausalChannel",
    "Channel",
    "ChannelLaw",
    "Kind",
    "Kinds",
    "idle",
    "kinds_of",
    "published_rules",
    "temperature",
]
