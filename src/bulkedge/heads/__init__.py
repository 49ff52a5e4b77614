"""Heads of real models: what their queries and keys say of their attention before it is formed, and what they do."""

from bulkedge.heads.channel.causal_channel import CausalChannel
from bulkedge.heads.channel.gaussian_channel import Channel
from bulkedge.heads.law.channel_law import ChannelLaw, MatrixAndLaw, matrix_and_law
from bulkedge.heads.measures.kinds import KINDS, Kind, Kinds, kinds_of
from bulkedge.heads.score_scales import published_rules, score_scales

__all__ = [
    "KINDS",
    "CausalChannel",
    "Channel",
    "ChannelLaw",
    "Kind",
    "Kinds",
    "MatrixAndLaw",
    "kinds_of",
    "matrix_and_law",
    "published_rules",
    "score_scales",
]
