"""The model of words: a token for each word, one for each message, and text that comes back as it was."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_from_dict
from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat
from nip_ray.protocols import build
from nip_ray.scenarios.state_tracking.items import chain_items
from nip_ray.scenarios.state_tracking.language import build_language_state_tracking
from nip_ray.serving.chat_format import load_format
from nip_ray.serving.model_folder import load_model
from nip_ray.serving.word_model import save_word_model
from nip_ray.settings.providers import LocalProvider, WordModelSettings
from nip_ray.settings.state_tracking import LanguageStateTrackingSettings
from nip_ray.text.parts import prepare

SETTINGS = LanguageStateTrackingSettings(num_train=60, num_test=4)
SCENARIO = build_language_state_tracking(build("bisection"), SETTINGS)
SIZES = WordModelSettings(hidden_size=32)


def test_a_word_is_a_token_and_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = save_word_model(tmp_path / "words", SCENARIO.words, SIZES)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, words in (("again", SCENARIO.words), ("repeated", (*SCENARIO.words, *SCENARIO.words[:3]))):
        again = save_word_model(tmp_path / name, words, SIZES)
        assert {path.name: path.read_bytes() for path in again.iterdir()} == files
    assert save_word_model(folder, SCENARIO.words, SIZES, seed=1) == folder
    assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"], "one that is there stays"
    chat_format = load_format(folder, SIZES.context)
    for item in chain_items(SETTINGS, 0)["test"]:
        for agent in SCENARIO.protocol.agents:
            chat, reply = SCENARIO.warm_example(item, agent, 0)
            words = chat[0]["content"].split()
            tokens = chat_format.prompt(chat)
            assert len(tokens) == len(words) + 1, "and a mark for the message"
            assert chat_format.text(tokens) == " ".join(words)
            end = chat_format.reply(chat, reply)
            assert (len(end), chat_format.text(end)) == (2, reply)
            assert end[-1] in chat_format.ends
    stranger: Chat = [{"role": "user", "content": "state zebra <|end|>"}]
    assert len(chat_format.prompt(stranger)) == 5, (
        "a word, an unknown one, and a mark that is broken up in two unknown words"
    )


def test_similar_words_start_near_each_other(tmp_path: Path) -> None:
    """Nearer the more characters they share in their places; all else starts as usual."""
    words, sizes = ["d1:3", "d2:3", "d2:4", "e7", "a"], WordModelSettings(hidden_size=512)
    folders = [
        save_word_model(tmp_path / str(similar), words, replace(sizes, similar_words=similar))
        for similar in (False, True)
    ]
    usual, similar = (dict(load_model(folder).named_parameters()) for folder in folders)
    name = "model.embed_tokens.weight"
    assert [key for key in usual if not torch.equal(usual[key], similar[key])] == [name]
    embedding_WD = similar[name][-5:]
    assert torch.equal(usual[name][:-5], similar[name][:-5])
    cosine_WW = embedding_WD @ embedding_WD.T
    shared_WW = torch.tensor(
        [[sum(a == b for a, b in zip(one, two)) / (len(one) * len(two)) ** 0.5 for one in words] for two in words]
    )
    torch.testing.assert_close(cosine_WW, shared_WW, atol=0.15, rtol=0)


def test_it_learns_true_chains_from_warm_examples(tmp_path: Path) -> None:
    """Sixty steps are enough to prefer states, and then the end, to all other words."""
    folder = save_word_model(tmp_path / "words", SCENARIO.words, SIZES)
    model, chat_format = load_model(folder), load_format(folder, SIZES.context)
    items = chain_items(SETTINGS, 0)["train"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(60):
        loss = torch.zeros(())
        for item in items[step % 4 :: 4]:
            chat, reply = SCENARIO.warm_example(item, "prover1", step)
            prompt, end = chat_format.prompt(chat), chat_format.reply(chat, reply)
            labels = [-100] * len(prompt) + end
            loss = loss + model(input_ids=torch.tensor([prompt + end]), labels=torch.tensor([labels])).loss / len(
                items[step % 4 :: 4]
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 3.0
    assert losses[-1] < 1.1, "a random state, and then the end, would be log 5 / 2; any two words log 64"


def test_refusals() -> None:
    assert [*LocalProvider().faults(set())] == []
    odd = LocalProvider(word_model=WordModelSettings(num_heads=3))
    assert [fault.partition(",")[0] for fault in odd.faults(set())] == ["word_model.num_heads: got 3"]
    config = config_from_dict(
        {
            "algorithm": {"name": "malt"},
            "scenario": {"name": "code_validation", "agents": {"prover": {"model": "words"}}},
        }
    )
    assert isinstance(config, TextExperimentConfig)
    with pytest.raises(UserError, match=r"scenario.agents.prover.model: words, but code_validation has no closed list"):
        prepare(config)
