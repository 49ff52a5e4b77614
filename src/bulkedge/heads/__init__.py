"""Heads of real models: what their queries and keys say of their attention before it is formed."""

from bulkedge.heads.causal import CausalChannel
from bulkedge.heads.channel import Channel
from bulkedge.heads.spectrum import ChannelLaw

__all__ = ["CausalChannel", "Channel", "ChannelLaw"]
