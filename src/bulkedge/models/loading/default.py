"""The default model: a small decoder that learns to read in half a minute, where it is asked for.

Its tokens are letters, a space and a few marks; it learns the openings of two books (:data:`bulkedge.models.TEXTS`) but
for the last part of each. At first every sequence, and at last half of them, are random letters that repeat themselves,
so that induction heads pay off; only the letters that repeat count in their loss. With seeds 0 and 1 the loss on
held-out text falls to 2.35 and 2.40 nats a letter (2.9 is the entropy of single letters), and the best head puts about
0.65 and 0.55 of its attention where induction does (:func:`bulkedge.models.probe`).

>>> tokenizer = letters()
>>> tokenizer("Down, down!")["input_ids"]
[5, 16, 24, 15, 29, 1, 5, 16, 24, 15, 0]
>>> tokenizer.decode([5, 16, 24, 15, 29, 1, 5, 16, 24, 15, 0])
'down, down_'
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from bulkedge.models.loading.packaged import TEXTS, sample_text
from bulkedge.support.domains import MODULE, Choice, Integers, takes
from bulkedge.support.errors import need
from bulkedge.support.progress import track
from bulkedge.support.threads import one_thread


class Phase(NamedTuple):
    """A part of the training: its share of the steps, the tokens of a sequence, and the share of these that repeat."""

    share: float
    tokens: int
    repeating: float


NAME = "the default decoder"  # what the model is called
ALPHABET = "_ abcdefghijklmnopqrstuvwxyz.,'?"  # capitals are read as small letters, all else as the first
LAYERS, HEADS, HEAD_DIM, WIDTH, CONTEXT = 3, 4, 32, 64, 256  # of the model; it learns to look back on CONTEXT tokens
STEPS = 800  # steps of Adam, of which one core does some thirty in a second
PHASES = (
    Phase(0.7, tokens=64, repeating=1.0),
    Phase(0.2, tokens=64, repeating=0.5),
    Phase(0.1, CONTEXT, repeating=0.5),
)
"""Induction is learnt soonest from short sequences and nothing else; text comes after it, so that the few pages there
are do not come so often that they are known by heart, and full length last."""
SEGMENT = 8  # fewest letters that repeat
HELD_OUT = 0.15  # share of each text, from its end, that is not learnt


def default_model(
    seed: int = 0, steps: int = STEPS, *, trained: bool = True, phases: Sequence[Phase] = PHASES
) -> tuple[Any, Any]:
    """A decoder of three layers of four heads, as it begins or after its training.

    The same seed gives the same start, trained or not, and on one machine the same weights: it computes with one
    thread, and neither uses nor moves torch's own random numbers. Progress is reported as "steps"
    (:mod:`bulkedge.support.progress`).

    Parameters
    ----------
    seed : int
        Of the random weights and of the order of reading.
    steps : int
        Steps of Adam, of 1024 tokens each.
    trained : bool
        Whether to train it; ``False`` gives the start.
    phases : sequence of Phase
        Parts of the training, whose shares sum to one.

    Returns
    -------
    model : transformers.LlamaForCausalLM
        In evaluation mode, on the CPU, in single precision.
    tokenizer : transformers.PreTrainedTokenizerFast
        Of single letters; see :func:`letters`.

    Raises
    ------
    MissingPackageError
        If torch or transformers is not installed.

    Examples
    --------
    >>> model, tokenizer = default_model(steps=1)                      # doctest: +SKIP
    """
    seed, steps = Integers(0, 2**63 - 1).check("seed", seed), Integers(1, 100_000).check("steps", steps)
    trained = Choice((False, True)).check("trained", trained)
    tokenizer = letters()
    model = _start(seed)
    if trained:
        with one_thread(("torch",)):
            _train(model, text_codes(tokenizer)[0], steps, seed, tuple(phases))
    model.config.name_or_path = NAME if trained else f"{NAME} before training"
    return model.eval(), tokenizer


def letters() -> Any:
    """A tokenizer of transformers for single letters, made without a file."""
    need("the default model", "torch", "transformers")
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.WordLevel({letter: k for k, letter in enumerate(ALPHABET)}, ALPHABET[0]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast: Any = PreTrainedTokenizerFast
    return fast(
        tokenizer_object=tokenizer, unk_token=ALPHABET[0], model_max_length=CONTEXT, clean_up_tokenization_spaces=False
    )


@takes(model=MODULE)
def held_out_loss(model: Any) -> float:
    """What the model expects of text that it has not learnt.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        What :func:`default_model` returned, or another decoder of its tokens.

    Returns
    -------
    float
        Mean over letters of the negative logarithm of their probability, in nats; the mean of the bundled texts' ends.

    Examples
    --------
    >>> held_out_loss(default_model()[0]) < 2.5                       # doctest: +SKIP
    """
    import torch

    losses = []
    for text in text_codes(letters())[1]:
        windows = text[: len(text) // CONTEXT * CONTEXT].view(-1, CONTEXT)
        with torch.no_grad():
            losses.append(float(model(input_ids=windows, labels=windows).loss))
    return sum(losses) / len(losses)


def text_codes(tokenizer: Any) -> tuple[list[Any], list[Any]]:
    """What is learnt of each text, and what is held out, as tokens."""
    import torch

    learnt, held_out = [], []
    for name in TEXTS:
        codes = torch.tensor(tokenizer(sample_text(name), verbose=False)["input_ids"])
        cut = int(len(codes) * (1 - HELD_OUT))
        learnt.append(codes[:cut])
        held_out.append(codes[cut:])
    return learnt, held_out


def _start(seed: int) -> Any:
    """The model before training; torch's own random numbers go on afterwards as if it had drawn none."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    decoder: Any = LlamaForCausalLM
    config = LlamaConfig(
        vocab_size=len(ALPHABET),
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=4 * CONTEXT,
        initializer_range=WIDTH**-0.5,  # weights keep the variance of what they are applied to
        tie_word_embeddings=True,
        attention_bias=True,  # so that a head can prefer a distance, whatever the tokens
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return decoder(config)


def _train(model: Any, texts: list[Any], steps: int, seed: int, phases: Sequence[Phase]) -> None:
    import torch

    generator = torch.Generator().manual_seed(seed)
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.99))
    model.train()
    for step in track(range(steps), "steps"):
        # the learning rate rises over 20 steps, and falls to zero over the last 0.3 of all
        rate = 0.005 * min(1, (step + 1) / 20, (steps - step) / (0.3 * steps))
        for group in adam.param_groups:
            group["lr"] = rate
        inputs, labels = _batch(texts, _phase(phases, (step + 0.5) / steps), generator)
        adam.zero_grad()
        model(input_ids=inputs, labels=labels).loss.backward()
        adam.step()


def _phase(phases: Sequence[Phase], time: float) -> Phase:
    """The phase at a time between zero and one."""
    ends = accumulate(each.share for each in phases)
    return next((phase for phase, end in zip(phases, ends, strict=True) if time < end), phases[-1])


def _batch(texts: list[Any], phase: Phase, generator: Any) -> tuple[Any, Any]:
    """Sequences of letters that repeat, windows of the texts in turn after them, and what counts in the loss."""
    import torch

    tokens, rows, letters = phase.tokens, 1024 // phase.tokens, len(ALPHABET) - 1
    inputs = torch.empty((rows, tokens), dtype=torch.long)
    labels = torch.empty_like(inputs)
    for row in range(rows):
        if row < phase.repeating * rows:
            size = int(torch.randint(SEGMENT, tokens // 2 + 1, (), generator=generator))
            # none twice before all were there: what follows a letter is then seldom ambiguous
            rounds = [torch.randperm(letters, generator=generator) + 1 for _ in range(-(-size // letters))]
            inputs[row] = labels[row] = torch.cat(rounds)[:size].repeat(-(-tokens // size))[:tokens]
            labels[row, :size] = -100  # transformers leaves these out
        else:
            text = texts[row % len(texts)]
            start = int(torch.randint(len(text) - tokens + 1, (), generator=generator))
            inputs[row] = labels[row] = text[start : start + tokens]
    return inputs, labels
