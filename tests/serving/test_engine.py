"""The engine against plain transformers, one reply at a time; and that neighbours, arrivals and departures change
nothing."""

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from nip_ray.errors import TrainingError, UserError
from nip_ray.learning.token_rows import Turn
from nip_ray.serving import chat_api
from nip_ray.serving.batch import ContinuousBatch
from nip_ray.serving.chat_format import load_format
from nip_ray.serving.engine import Engine
from nip_ray.serving.generation import GenerationRequest, TooLong
from nip_ray.serving.model_folder import load_model
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.serving.protocol import ApiError
from nip_ray.serving.sampling import draw, stream, uniforms
from nip_ray.serving.shelf import Shelf
from nip_ray.serving.slots import FEWEST, Slots
from nip_ray.settings.providers import LocalProvider


def request(number: int, max_tokens: int = 12, **changes: object) -> GenerationRequest:
    """A prompt of random tokens; some share a beginning."""
    source = Random(number)
    shared = [source.randrange(6, 2000) for _ in range(40)] if number % 3 else list(range(100, 140))
    prompt = shared + [source.randrange(6, 2000) for _ in range(source.randint(1, 60))]
    made = GenerationRequest(prompt, max_tokens, seed=number)
    return replace(made, **changes)  # type: ignore[arg-type]


@torch.inference_mode()
def by_transformers(model: torch.nn.Module, wanted: GenerationRequest) -> list[int]:
    """The tokens of the same reply, by computing the whole text again for every token."""
    return with_logprobs(model, wanted)[0]


@torch.inference_mode()
def with_logprobs(model: torch.nn.Module, wanted: GenerationRequest) -> tuple[list[int], list[float]]:
    tokens, logprobs = list(wanted.prompt), []
    for number in uniforms([stream(wanted.seed)] * wanted.max_tokens, range(wanted.max_tokens)):
        logits = model(torch.tensor([tokens])).logits[:, -1]
        options = torch.tensor([[wanted.temperature], [wanted.top_p], [float(number)]], dtype=torch.float64)
        drawn, logprob = draw(logits, *options)
        tokens.append(int(drawn))
        logprobs.append(float(logprob))
        if tokens[-1] == 1:
            break
    return tokens[len(wanted.prompt) :], logprobs


@pytest.mark.parametrize(
    "changes", [{}, {"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.5}], ids=["plain", "greedy", "nucleus"]
)
def test_replies_are_those_of_transformers(engine: Engine, default_dir: Path, changes: dict[str, float]) -> None:
    """Ten requests and two with the prompt of the last through four slots: they wait, join, leave, and reuse one
    another's beginnings."""
    model = load_model(default_dir)
    wanted = [request(number, max_tokens=5 + number % 7, **changes) for number in range(10)]
    wanted += [replace(wanted[-1], seed=seed) for seed in (30, 31)]
    made = engine.generate(wanted)
    expected = [with_logprobs(model, one) for one in wanted]
    assert [reply.tokens for reply in made] == [tokens for tokens, _ in expected]
    assert all(
        reply.logprobs == pytest.approx(logprobs, abs=1e-5) for reply, (_, logprobs) in zip(made, expected, strict=True)
    )
    assert [reply.prompt_tokens for reply in made] == [len(one.prompt) for one in wanted]
    assert all(reply.finish_reason == ("stop" if reply.tokens[-1] == 1 else "length") for reply in made)


def test_neighbours_do_not_matter(engine: Engine) -> None:
    alone = engine.generate([request(7)])[0]
    among = engine.generate([request(3), request(7), request(8), request(9), request(11)])[1]
    assert alone == among
    assert engine.generate([request(7, seed=70)])[0].tokens != alone.tokens


def test_long_prompts_are_computed_in_pieces(default_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(default_dir)
    monkeypatch.setattr("nip_ray.serving.batch.PREFILL", 16)
    wanted = [request(number) for number in range(5)]
    with Engine(default_dir, max_batch_size=3) as small:
        assert [reply.tokens for reply in small.generate(wanted)] == [by_transformers(model, one) for one in wanted]


def test_a_beginning_is_computed_once(default_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(default_dir, max_batch_size=2) as small:
        computed: list[int] = []
        forward = small.batch._forward
        monkeypatch.setattr(
            small.batch, "_forward", lambda ids, *rest: computed.append(ids.shape[1]) or forward(ids, *rest)
        )
        prompt = list(range(50, 250))
        first = small.generate([GenerationRequest(prompt, 1)])[0]
        second = small.generate([GenerationRequest(prompt, 1)])[0]
        small.generate([GenerationRequest([*prompt[:150], 7, 8], 1)])
    assert first == second
    assert computed == [200, 1, 2]


def test_a_beginning_that_waiting_prompts_share_is_computed_once(
    default_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(default_dir)
    batch = ContinuousBatch(model, load_format(default_dir, 8192), 4)
    shapes, views = list[tuple[int, ...]](), list[bool]()
    forward = batch._forward
    monkeypatch.setattr(batch, "_forward", lambda ids, *rest: shapes.append(tuple(ids.shape)) or forward(ids, *rest))
    model.get_output_embeddings().register_forward_pre_hook(lambda _, given: views.append(given[0].is_contiguous()))
    wanted = [GenerationRequest([*range(50, 200), *range(last)], 2, seed=last) for last in (3, 9, 9, 5)]  # two alike
    made = batch.generate(wanted)
    assert views == [True] * 3, "a view would be multiplied row by row"
    assert shapes == [(1, 153), (3, 6), (3, 1)], "the shortest is a beginning of the others, two are equal"
    assert [reply.tokens for reply in made] == [with_logprobs(model, one)[0] for one in wanted]


def test_a_listener_that_fails_ends_its_own_reply_only(engine: Engine) -> None:
    expected = engine.generate([request(7)])[0]

    def listen(piece: str) -> None:
        raise ZeroDivisionError(piece)

    broken = engine.submit(request(5, max_tokens=60), listen)
    beside = engine.submit(request(7))
    with pytest.raises(ZeroDivisionError):
        broken.result(60)
    assert beside.result(60) == expected
    assert engine.generate([request(7)])[0] == expected


def test_what_does_not_fit_is_refused(engine: Engine) -> None:
    with pytest.raises(TooLong, match="8192"):
        engine.submit(GenerationRequest([1] * 8000, 200))
    with pytest.raises(UserError, match="at least one token"):
        engine.submit(GenerationRequest([], 5))


def test_closing_and_breaking_tell_those_who_wait(default_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Engine(default_dir)
    closed.close()
    closed.close()
    with pytest.raises(TrainingError, match="closed"):
        closed.submit(request(1))
    broken = Engine(default_dir)
    monkeypatch.setattr(broken.batch, "_forward", lambda *_: 1 / 0)
    with pytest.raises(TrainingError, match="ZeroDivisionError"):
        broken.submit(request(1)).result(60)
    broken.close()


def test_a_model_is_loaded_again_after_generation_broke_off(default_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(max_batch_size=4)
    asks = [{"role": "user", "content": "Is it right?"}]
    body = chat_api.ChatBody.model_validate({"model": "default", "messages": asks, "max_tokens": 4})

    async def status(broken: bool, streams: bool) -> int:
        with monkeypatch.context() as patch:
            if broken:
                patch.setattr(ContinuousBatch, "_forward", lambda *_: 1 / 0)
            try:
                if streams:
                    events = [event async for event in await chat_api.stream(shelf, default_dir, body)]
                    assert events[-1].startswith("data: [DONE]")
                else:
                    await chat_api.complete(shelf, default_dir, body)
            except ApiError as error:
                return error.status if "ZeroDivisionError" in str(error) else 0
        return 200

    async def statuses() -> list[int]:
        return [await status(broken, streams) for broken in (False, True, False) for streams in (False, True)]

    with closing(shelf):
        assert asyncio.run(statuses()) == [200, 200, 500, 500, 200, 200]


@pytest.mark.parametrize("family", ["GPT2", "Qwen3", "GPTNeoX", "Mistral", "Gemma3"])
def test_other_families_agree_with_transformers(default_dir: Path, tmp_path: Path, family: str) -> None:
    """Learned positions, normed keys, parallel blocks, layers that see the last eight tokens only: the slots, and rows
    that branch in learning, know nothing of them."""
    import shutil

    import transformers

    common = {
        "vocab_size": 2048,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    if family == "GPT2":
        common = {"vocab_size": 2048, "n_embd": 32, "n_layer": 2, "n_head": 4}
    if family in ("Qwen3", "Mistral", "Gemma3"):
        common |= {"num_key_value_heads": 2, "head_dim": 8}
    if family in ("Mistral", "Gemma3"):
        common |= {"sliding_window": 8, "pad_token_id": 0}
    if family == "Gemma3":
        common |= {"layer_types": ["sliding_attention", "full_attention"]}
    settings = getattr(transformers, f"{family}TextConfig" if family == "Gemma3" else f"{family}Config")
    config = settings(**common, initializer_range=0.2, eos_token_id=1, bos_token_id=1)
    kind = getattr(transformers, f"{family}LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")
    kind(config).save_pretrained(tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(default_dir / name, tmp_path / "model")
    model = load_model(tmp_path / "model")
    wanted = [request(number) for number in range(6)]
    with Engine(tmp_path / "model", max_batch_size=4) as made:
        assert [reply.tokens for reply in made.generate(wanted)] == [by_transformers(model, one) for one in wanted]
    learner = PolicyModel(tmp_path / "model", LocalProvider(method="full"), trained=False)
    replies = learner.sample(asked := [replace(one, seed=seed) for one in wanted for seed in (1, 2)])
    found = learner.logprobs([Turn(one.prompt, reply.tokens) for one, reply in zip(asked, replies)])
    assert all(one == pytest.approx(reply.logprobs, abs=1e-5) for one, reply in zip(found, replies, strict=True))


def test_slots_have_memory_for_what_they_hold(default_dir: Path) -> None:
    """Equal prompts share a slot while their tokens do; more slots get memory when they are needed, and keep theirs."""
    model = load_model(default_dir)
    batch = ContinuousBatch(model, load_format(default_dir, 256), 64)
    batch.generate([request(1, temperature=0.0, seed=seed) for seed in range(40)])
    (slots,) = (value for value in vars(batch).values() if isinstance(value, Slots))
    assert slots.room == slots.layers[0][0].shape[0] == FEWEST
    wanted = [request(number, max_tokens=3) for number in range(20)]
    made = batch.generate(wanted)
    assert 20 <= slots.room == slots.layers[0][0].shape[0] <= 40
    assert [reply.tokens for reply in made] == [by_transformers(model, one) for one in wanted]


def test_slots_move_what_is_wanted_and_lose_no_more_than_they_must() -> None:
    """Against copies by hand, for random wishes: every wanted slot has its tokens' keys, and whoever is not asked
    stays."""
    source = Random(5)
    for _ in range(200):
        slots = Slots(6, 64)
        slots.columns = 4
        slots.place(0, torch.arange(4).expand(6, 4), 4)
        slots.write(torch.arange(24.0).view(6, 1, 4, 1), torch.zeros(6, 1, 4, 1), 0)
        held = [[10 * slot + at for at in range(source.randrange(1, 5))] for slot in range(6)]
        for slot in range(6):
            slots.hold(slot, list(held[slot]))
        first = source.randrange(3)
        wanted = [
            (slot, source.randrange(len(held[slot]) + 1))
            for slot in source.choices(range(6), k=source.randrange(1, 7 - first))
        ]
        slots.bring(first, wanted)
        expected = held[:first] + [held[slot][:length] for slot, length in wanted]
        assert slots.tokens[: len(expected)] == expected
        keys = slots.layers[0][0][:, 0, :, 0]
        for slot, tokens in enumerate(slots.tokens):
            assert keys[slot, : len(tokens)].tolist() == [4.0 * (token // 10) + token % 10 for token in tokens]
        free = [slot for slot in range(first, 6) if slot not in {slot for slot, length in wanted if length}]
        kept = sum(tokens in (held[slot] for slot in free) for tokens in slots.tokens[len(expected) :])
        assert kept == 6 - len(expected) - sum(tokens == [] for tokens in slots.tokens[len(expected) :])
