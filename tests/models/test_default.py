"""The default model: the same every time, and, in the slow test, worth looking at after its training."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from bulkedge.models import TEXTS, default_model, held_out_loss, load_model, probe, sample_text  # noqa: E402
from bulkedge.models.loading import default  # noqa: E402
from bulkedge.support.errors import DomainError, MissingPackageError  # noqa: E402
from bulkedge.support.progress import listen  # noqa: E402


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_one_seed_one_model():
    """Few steps of each phase: the start is shared, the end is the same twice, and told as it goes."""
    start, _ = default_model(seed=3, trained=False)
    told = []
    with listen(lambda event: told.append((event.label, event.done, event.total))):
        model, _ = default_model(seed=3, steps=5)
    again, _ = default_model(seed=3, steps=5)
    other, _ = default_model(seed=4, trained=False)
    assert told == [("steps", done, 5) for done in range(6)]
    assert same(model, again)
    assert same(start, default_model(seed=3, trained=False)[0])
    assert not same(model, start)
    assert not same(other, start)
    assert not start.training
    assert not model.training
    shapes = [tuple(each.shape) for each in start.parameters()]
    assert shapes == [tuple(each.shape) for each in model.parameters()]


def test_random_numbers_and_threads_of_torch_are_left_alone():
    torch.manual_seed(7)
    expected, threads = torch.rand(3), torch.get_num_threads()
    torch.manual_seed(7)
    default_model(seed=1, steps=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_what_is_held_out_is_not_learnt():
    tokenizer = default.letters()
    learnt, held_out = default.text_codes(tokenizer)
    for name, first, last in zip(TEXTS, learnt, held_out, strict=True):
        assert tokenizer(sample_text(name), verbose=False)["input_ids"] == [*first.tolist(), *last.tolist()]
        assert len(last) >= default.CONTEXT
        assert len(last) / (len(first) + len(last)) == pytest.approx(default.HELD_OUT, abs=1e-3)


def test_sequences_repeat_or_are_text():
    learnt, _ = default.text_codes(default.letters())
    generator = torch.Generator().manual_seed(0)
    inputs, labels = default._batch(learnt, default.PHASES[1], generator)
    assert inputs.shape == (16, 64)
    whole = ["".join(map(chr, text.tolist())) for text in learnt]
    for row, (sequence, counted) in enumerate(zip(inputs, labels, strict=True)):
        size = int((counted == -100).sum())
        if row < 8:
            assert torch.equal(sequence[size:], sequence[:-size])
            assert len(set(sequence[:size].tolist())) == min(size, len(default.ALPHABET) - 1)
            assert torch.equal(counted[size:], sequence[size:])
        else:
            assert torch.equal(counted, sequence)
            assert "".join(map(chr, sequence.tolist())) in whole[row % 2]


def test_all_phases_are_reached():
    assert sum(phase.share for phase in default.PHASES) == pytest.approx(1)
    found = {default._phase(default.PHASES, (step + 0.5) / default.STEPS) for step in range(default.STEPS)}
    assert found == set(default.PHASES)


def test_letters():
    tokenizer = default.letters()
    assert len(tokenizer) == len(default.ALPHABET) == len(set(default.ALPHABET))
    text = "oh dear. oh dear, i shall be late'?"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.decode(tokenizer("H.M.S.\nBeagle; 1837 \N{GREEK SMALL LETTER BETA}")["input_ids"]) == (
        "h.m.s._beagle_ ____ _"
    )


def test_it_is_saved_and_comes_back(tmp_path):
    model, tokenizer = default_model(trained=False)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found, letters, _ = load_model(tmp_path)
    assert same(model, found)
    assert held_out_loss(found) == held_out_loss(model)
    assert letters("Alice")["input_ids"] == tokenizer("alice")["input_ids"]


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"steps": 0}, {"trained": "no"}])
def test_domains(wrong):
    with pytest.raises(DomainError, match=next(iter(wrong))):
        default_model(**wrong)


def test_missing_packages(monkeypatch):
    monkeypatch.setattr("bulkedge.support.errors.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"bulkedge\[torch\]"):
        default_model()


@pytest.mark.slow
def test_training_teaches_text_and_induction():
    """Half a minute on an idle core. Bars are half way from a head at random to what the module says was measured."""
    scores, losses = {}, {}
    for trained in (False, True):
        model, _ = default_model(trained=trained)
        losses[trained] = held_out_loss(model)
        scores[trained] = probe(model, tokens=256, prompts=8, vocabulary=range(1, 32), rng=np.random.default_rng(5))
    frequencies = torch.bincount(torch.cat(default.text_codes(default.letters())[0])).double()
    frequencies /= frequencies.sum()
    entropy = -(frequencies * frequencies.clamp(min=1e-300).log()).sum()
    assert losses[True] < entropy < losses[False]  # better than the frequencies of letters
    assert scores[True]["induction"].max() > 0.3
    assert scores[False]["induction"].max() < 0.1
