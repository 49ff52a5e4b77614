"""How architectures name the weights of their attention and order the heads in them: one table.

A module is read by the first layout whose tensors are all there. What is not in the table is refused, because a fused
matrix that is split in the wrong order gives numbers that look right.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Part = Literal["query", "key", "value", "output"]
PARTS: tuple[Part, ...] = ("query", "key", "value", "output")


@dataclass(frozen=True)
class Layout:
    """Names of the tensors of an attention, after the stem that they share, and how heads lie in them.

    Attributes
    ----------
    query, key, value : str
        Ends of the tensors' names. The same one three times: they are fused in one tensor.
    outputs : tuple of str
        Ends that the name of the output may have.
    order : {"stacked", "grouped"}
        Of fused rows: all queries, all keys, all values; or key head by key head its queries, its key, its value.
    transposed : bool
        Whether rows are inputs and columns outputs, as in GPT-2's Conv1D; those of torch's Linear are the other way.
    models : tuple of str
        The ``model_type`` of configurations that this is known for; empty where the names leave no doubt.
    stem : str
        Regular expression for what stands before the ends.
    """

    query: str
    key: str
    value: str
    outputs: tuple[str, ...]
    order: Literal["stacked", "grouped"] = "stacked"
    transposed: bool = False
    models: tuple[str, ...] = ()
    stem: str = r"(?:.+\.)?"

    @property
    def fused(self) -> bool:
        """Whether queries, keys and values share a tensor."""
        return self.query == self.key

    def tensors(self, name: str, there: Container[str], types: set[str]) -> dict[str, str] | None:
        """The tensors of an attention, by part."""
        match = re.fullmatch(f"({self.stem}){re.escape(self.query)}", name)
        if not match or (self.models and not types & set(self.models)):
            return None
        outputs = [match[1] + each for each in self.outputs if match[1] + each in there]
        names = (name, match[1] + self.key, match[1] + self.value, *outputs[:1])
        return dict(zip(PARTS, names, strict=True)) if outputs and all(each in there for each in names) else None


def _separate(query: str, key: str, value: str, *outputs: str, stem: str = Layout.stem) -> Layout:
    query, key, value, *rest = (f"{each}.weight" for each in (query, key, value, *outputs))
    return Layout(query, key, value, tuple(rest), stem=stem)


def _fused(
    name: str, *outputs: str, of: tuple[str, ...], order: Literal["stacked", "grouped"], transposed: bool = False
) -> Layout:
    return Layout(name, name, name, outputs, order, transposed, of)


NEOX = ("gpt_neox", "gpt_neox_japanese", "bloom", "falcon", "persimmon")
LAYOUTS = (
    # Llama, Mistral, Qwen, Gemma; OPT, BART, Whisper, CLIP, GPT-J, GPT-Neo; Phi-2
    _separate("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "dense"),
    # BERT, RoBERTa, ELECTRA; ViT, DeiT, AST; DeBERTa; ALBERT
    _separate("self.query", "self.key", "self.value", "output.dense"),
    _separate("attention.query", "attention.key", "attention.value", "output.dense", stem=r"(?:.+\.)?attention\."),
    _separate("self.query_proj", "self.key_proj", "self.value_proj", "output.dense"),
    _separate("query", "key", "value", "dense"),
    # DistilBERT, XLM; T5, mT5, UMT5
    _separate("q_lin", "k_lin", "v_lin", "out_lin"),
    _separate("q", "k", "v", "o", stem=r"(?:.+\.)?\w*Attention\."),
    # fused projections: their names do not say in which order the rows are, so that the architecture has to
    _fused("c_attn.weight", "c_proj.weight", of=("gpt2", "imagegpt"), order="stacked", transposed=True),
    _fused("c_attn.weight", "c_proj.weight", of=("gpt_bigcode",), order="grouped"),
    _fused("query_key_value.weight", "dense.weight", of=NEOX, order="grouped"),
    _fused("qkv_proj.weight", "o_proj.weight", of=("phi3",), order="stacked"),
    _fused("Wqkv.weight", "Wo.weight", "out_proj.weight", of=("mpt", "modernbert"), order="stacked"),
    # torch.nn.MultiheadAttention, which has one order only
    _fused("in_proj_weight", "out_proj.weight", of=(), order="stacked"),
)
"""From the names of tensors to the way they are split, first match first."""


def model_types(config: Mapping[str, Any]) -> set[str]:
    """The ``model_type`` of a configuration and of its parts."""
    parts = (each for each in config.values() if isinstance(each, dict))
    return {str(each.get("model_type")) for each in (config, *parts)}
