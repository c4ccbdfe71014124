"""A model that samples and learns: the same log-probabilities, exact minibatches, exact resume, folders that others
read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from nip_ray.errors import TrainingError, UserError
from nip_ray.learning.token_rows import Turn, joins, merge, parts_of
from nip_ray.serving import policy_model
from nip_ray.serving.batch import ContinuousBatch
from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.model_folder import base_of, load_model, load_served, save_model, with_adapters
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.serving.scoring import Scorer
from nip_ray.serving.word_model import word_tokenizer
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.settings.providers import LocalProvider
from tests.docs.blocks import blocks_of

SETTINGS = PolicyGradientSettings(learning_rate=1e-3, entropy_coefficient=0.01, clip_low=0.2, clip_high=0.3)
Make = Callable[..., PolicyModel]


@pytest.fixture
def make(default_dir: Path) -> Make:
    def made(method: str = "full", trained: bool = True, folder: Path = default_dir, **options: Any) -> PolicyModel:
        return PolicyModel(folder, LocalProvider(method=method, max_batch_size=5, **options), trained=trained, seed=3)  # type: ignore[arg-type]

    return made


def play(model: PolicyModel, seed: int = 0, count: int = 9) -> list[Turn]:
    """Dialogues of two turns each, three about each item, whose second prompt continues the first turn."""
    draw, turns = Random(seed), []
    shared = [draw.randrange(6, 2000) for _ in range(12)]
    items = [shared + [draw.randrange(6, 2000) for _ in range(draw.randint(1, 30))] for _ in range(count // 3)]
    prompts = [items[number // 3] for number in range(count)]
    for round_ in range(2):
        requests = [
            GenerationRequest(prompt, 1 + i % 4, 0.7 + i % 2, seed=seed * 100 + i) for i, prompt in enumerate(prompts)
        ]
        made = model.sample(requests)
        turns += [
            Turn(one.prompt, reply.tokens, reply.logprobs, draw.uniform(-1, 1), one.temperature)
            for one, reply in zip(requests, made)
        ]
        prompts = [[*one.prompt, *reply.tokens, 3, 50 + round_] for one, reply in zip(requests, made)]
    return turns


def gradients(model: PolicyModel) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in model._learned.values() if weight.grad is not None])


def test_rows_are_merged() -> None:
    assert merge([(1, 2), (1, 2, 3), (1, 3), (1, 2, 3), (1,)]) == {
        (1,): (1, 2, 3),
        (1, 2): (1, 2, 3),
        (1, 2, 3): (1, 2, 3),
        (1, 3): (1, 3),
    }
    turns = [Turn([1, 2], [3, 4]), Turn([1, 2, 3, 4, 5], [6]), Turn([9], [8, 7, 6]), Turn([1, 2], [3, 9])]
    one, two = parts_of(turns, 5)
    assert (one.ids_RL.tolist(), two.ids_RL.tolist()) == ([[9, 8, 7]], [[1, 2, 3, 4, 5]])
    assert (two.turns, two.token_U[two.distinct_E].tolist()) == ([0, 1, 3], [3, 4, 6, 3, 9])
    assert two.by_turn(torch.arange(1.0, 6)).tolist() == [[1, 2], [3, 0], [4, 5]]
    assert two.seen_RLL is None
    (alike,) = parts_of([Turn([1], [2, 3]), Turn([1], [2, 3]), Turn([1], [2, 3], temperature=0.5)], 100)
    assert (alike.token_U.tolist(), alike.distinct_E.tolist()) == ([2, 3, 2, 3], [0, 1, 0, 1, 2, 3])
    (tree,) = parts_of([Turn([1, 2], [3, 4]), Turn([1, 2], [5, 4]), Turn([1, 2, 5, 6], [7]), Turn([9, 8, 7], [6])], 100)
    assert (tree.ids_RL.tolist(), tree.place_RL.tolist()) == (
        [[9, 8, 7, 0, 0], [1, 2, 3, 5, 6]],
        [[0, 1, 2, 0, 0], [0, 1, 2, 2, 3]],
    )  # type: ignore[union-attr]
    assert tree.seen_RLL[1].int().tolist()[2:] == [[1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 1, 1]]  # type: ignore[index]


def test_long_rows_branch_where_the_model_is_wide() -> None:
    """Attention to other branches is computed for nothing; what it costs beside all else falls with the width."""
    assert [joins(tree, 22, 43, 576) for tree in (100, 300, 400)] == [True, True, False]
    assert [joins(tree, 22, 43, 48) for tree in (40, 80)] == [True, False]
    turns = [Turn([*range(60)], [*range(token, token + 60), 1]) for token in range(3)]
    assert [part.ids_RL.shape for part in parts_of(turns, 10**6, 16)] == [(3, 120)]
    assert [part.ids_RL.shape for part in parts_of(turns, 10**6, 576)] == [(1, 240)]
    assert [part.ids_RL.numel() for part in parts_of(turns, 200, 576)] == [120, 180]


def test_a_pass_that_cannot_fit_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("lora")
    turns, before = play(model), model.weights()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=10**6))
    with pytest.raises(UserError, match=r"micro_batch_tokens: \d+ tokens in one pass need about .* lower it"):
        model.step(turns, SETTINGS, 4)
    assert all(torch.equal(weight, before[name]) for name, weight in model.weights().items())


@pytest.mark.parametrize("method", ["full", "lora"])
def test_sampler_and_learner_agree(make: Make, method: str) -> None:
    """Before and after a step, with batches of unlike lengths, beginnings that are reused, and equal prompts."""
    model = make(method)
    for seed in range(2):
        turns = play(model, seed)
        found = model.logprobs(turns, 100)
        assert (
            max(abs(a - b) for turn, one in zip(turns, found) for a, b in zip(turn.logprobs, one, strict=True)) < 1e-5
        )
        assert model.step(turns, replace(SETTINGS, learning_rate=0.01), 4)["logprob_difference"] < 1e-5
        assert max(abs(a - b) for one, new in zip(found, model.logprobs(turns)) for a, b in zip(one, new)) > 1e-2


@pytest.mark.parametrize("aggregation", ["token", "turn", "turn_mean"])
def test_parts_add_up_to_the_minibatch(make: Make, aggregation: str) -> None:
    """Against the plain policy gradient of one turn at a time, which at ratio 1 is sum of weight x advantage x
    gradient."""
    whole, parts = make(), make()
    for model in (whole, parts):  # rounding in single precision exceeds the bound below
        model._model.double()
    turns, settings = (
        play(whole),
        replace(SETTINGS, aggregation=aggregation, entropy_coefficient=0.0, max_grad_norm=None),
    )
    num_tokens = sum(len(turn.reply) for turn in turns)
    loss = torch.zeros(())
    for turn in turns:
        logits = (
            whole._model(torch.tensor([[*turn.prompt, *turn.reply]])).logits[0, len(turn.prompt) - 1 : -1]
            / turn.temperature
        )
        logprobs = logits.log_softmax(-1).gather(1, torch.tensor(turn.reply)[:, None])
        share = {"token": 1 / num_tokens, "turn": 1 / (len(turns) * 4), "turn_mean": 1 / (len(turns) * len(turn.reply))}
        loss = loss - turn.advantage * share[aggregation] * logprobs.sum()
    loss.backward()
    expected = gradients(whole)
    for model, size in ((whole, 10**6), (parts, 70)):
        model.step(turns, replace(settings, micro_batch_tokens=size), 4)
        assert torch.allclose(gradients(model), expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_past_gradients_count_by_the_momentum(make: Make, momentum: float) -> None:
    """Kingma and Ba 2015, algorithm 1, after a supervised step, whose decay is always 0.9."""
    model, turns = make(), play(make())
    settings = replace(SETTINGS, learning_rate=1e-3, warmup_learning_rate=1e-4, momentum=momentum)
    model.supervised_step(turns, settings)
    first = gradients(model).clone()
    before = torch.cat([weight.detach().flatten().clone() for weight in model._learned.values()])
    model.step(turns, settings, 4)
    second = gradients(model)
    mean = (momentum * 0.1 * first + (1 - momentum) * second) / (1 - momentum**2)
    square = (0.999 * 0.001 * first**2 + 0.001 * second**2) / (1 - 0.999**2)
    after = torch.cat([weight.detach().flatten() for weight in model._learned.values()])
    assert torch.allclose(after, before - 1e-3 * mean / (square.sqrt() + 1e-8), atol=1e-6)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_resume_is_exact(make: Make, tmp_path: Path, method: str) -> None:
    whole, first = make(method), make(method)
    for seed in range(3):
        assert play(whole, seed) == play(first, seed)
        assert whole.step(play(whole, seed), SETTINGS, 4) == first.step(play(first, seed), SETTINGS, 4)
    torch.save(first.state(), tmp_path / "state.pt")
    resumed = make(method)
    resumed.set_state(torch.load(tmp_path / "state.pt", weights_only=True))
    for seed in range(3, 5):
        assert whole.step(play(whole, seed), SETTINGS, 4) == resumed.step(play(resumed, seed), SETTINGS, 4)
    assert all(torch.equal(weight, resumed.weights()[name]) for name, weight in whole.weights().items())
    assert resumed.steps == 5
    with pytest.raises(UserError, match="not of the model"):
        make("full" if method == "lora" else "lora").set_state(first.state())


@pytest.mark.parametrize("method", ["full", "lora"])
def test_folders_are_read_by_others(make: Make, default_dir: Path, tmp_path: Path, method: str) -> None:
    """And learning moves replies the right way: supervised towards what is said, by advantages towards what is paid."""
    chat = [{"role": "user", "content": "Who?"}]
    model = make(method, num_threads=1)
    said = Turn(model.chat.prompt_before(chat), model.chat.reply(chat, "I do."))
    before = sum(model.logprobs([said])[0])
    for _ in range(4):
        model.supervised_step([said], replace(SETTINGS, learning_rate=0.01))
    taught = model.logprobs([said])[0]
    model.step([replace(said, logprobs=taught, advantage=-1.0)], replace(SETTINGS, learning_rate=0.01), 8)
    after = model.logprobs([said])[0]
    assert before < sum(after) < sum(taught)
    model.save(tmp_path / "saved")
    assert Scorer(tmp_path / "saved").logprob(chat, "I do.") == pytest.approx(sum(after), abs=1e-4)
    frozen = make(method, trained=False, folder=tmp_path / "saved")
    assert frozen.logprobs([said])[0] == pytest.approx(after, abs=1e-5)
    frozen.save(tmp_path / "copy")
    assert Scorer(tmp_path / "copy").logprob(chat, "I do.") == pytest.approx(sum(after), abs=1e-4)
    assert frozen._optimizer is None
    assert not any(weight.requires_grad for weight in frozen._model.parameters())


def test_a_base_is_held_once(make: Make) -> None:
    models = [make("lora"), make("lora"), make("lora", trained=False)]
    tables = {model._model.get_input_embeddings().weight.data_ptr() for model in models}
    assert len(tables) == 1
    assert make("full")._model.get_input_embeddings().weight.data_ptr() not in tables
    turns = play(models[0])
    models[0].keep_start(models[2].folder)
    metrics = models[0].step(turns, replace(SETTINGS, kl_coefficient=0.1), 4)
    assert abs(metrics["kl"]) < 1e-9, "adapters begin at nothing"
    assert models[0].step(turns, replace(SETTINGS, kl_coefficient=0.1), 4)["kl"] > 1e-6
    assert models[1].logprobs(turns) == models[2].logprobs(turns), "and what one learns does not reach the others"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), RuntimeError("can't allocate memory")])
def test_where_memory_runs_out_the_key_to_lower_is_named(
    make: Make, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    model = make()
    turns, before = play(model), model.weights()

    def full(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(model._model, "forward", full)
    with pytest.raises(UserError, match=r"algorithm\.micro_batch_tokens: 16384 tokens in one pass need more memory"):
        model.step(turns, SETTINGS, 4)
    with pytest.raises(UserError, match=r"max_batch_size: 5 replies at once need more memory"):
        model.sample([GenerationRequest([7, 8, 9], 2, 1.0, seed=1)])
    with pytest.raises(UserError, match=r"algorithm\.micro_batch_tokens: 64 tokens in one pass need more memory"):
        model.logprobs(turns, 64)
    monkeypatch.undo()
    monkeypatch.setattr(model._optimizer, "step", full)
    with pytest.raises(
        UserError,
        match=r"the optimizer's moments need more memory than there is; use providers\.<provider>\.method: lora",
    ):
        model.step(turns, SETTINGS, 4)
    monkeypatch.setattr(policy_model, "_load", full)
    with pytest.raises(UserError, match=r"its weights need more memory"):
        make()
    assert all(torch.equal(weight, before[name]) for name, weight in model.weights().items())


def test_what_cannot_be_learned(make: Make) -> None:
    model = make()
    turns, before = play(model), model.weights()
    with pytest.raises(TrainingError, match="loss nan"):
        model.step([replace(turns[0], advantage=float("nan")), *turns[1:]], SETTINGS, 4)
    assert all(torch.equal(weight, before[name]) for name, weight in model.weights().items())
    with pytest.raises(TrainingError, match="frozen"):
        make("lora", trained=False).step(turns, SETTINGS, 4)


def test_memory_is_as_documented(tmp_path: Path) -> None:
    """Parameters, and what a forward pass keeps, of a small model with Qwen's layers, counted against the formulas of
    the page."""
    import transformers

    page = Path(__file__).resolve().parents[2] / "docs" / "policy-gradient.md"
    (block,) = [block.text for block in blocks_of(page) if "def gigabytes" in block.text]
    told: dict[str, Callable[..., list[float]]] = {"round": lambda number, _: number, "print": lambda *_: None}  # type: ignore[dict-item]
    exec(block, told)
    layers, d, kv_heads, heads, width, ff, rank = 3, 64, 2, 4, 24, 160, 4
    tokenizer = word_tokenizer([f"w{number}" for number in range(60)], 512)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=d, intermediate_size=ff, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=width, max_position_embeddings=512,
        tie_word_embeddings=True,
    )  # fmt: skip
    save_model(transformers.Qwen3ForCausalLM(config), tokenizer, tmp_path / "qwen")
    model = PolicyModel(tmp_path / "qwen", LocalProvider(method="lora", lora_rank=rank, dtype="bfloat16"), trained=True)
    reply = model.sample([GenerationRequest(list(range(6, 66)), 20, seed=1)])[0]
    turn = Turn(list(range(6, 66)), reply.tokens, reply.logprobs, 1.0)
    tokens = len(turn.prompt) + len(turn.reply) - 1
    weights = {weight.untyped_storage().data_ptr() for weight in model._model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        if value.untyped_storage().data_ptr() not in weights and len(tokenizer) not in value.shape:
            kept[value.untyped_storage().data_ptr()] = value
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        model.step([turn], SETTINGS, 20)
    sizes = dict(r=rank, tokens=tokens, replies=len(turn.reply) / tokens, batch=1, groups=1)
    base, adapters, activations, *_ = told["gigabytes"](
        layers, d, heads * width, kv_heads * width, ff, len(tokenizer), **sizes
    )
    assert adapters * 1e9 == 16 * sum(weight.numel() for weight in model._learned.values())
    assert base * 1e9 == pytest.approx(
        2 * sum(weight.numel() for weight in model._model.parameters()) - adapters * 1e9 / 8, rel=0.02
    )
    assert sum(value.untyped_storage().nbytes() for value in kept.values()) == pytest.approx(
        activations * 1e9, rel=0.03
    )


def test_adapters_stay_apart_from_a_rounded_base(
    make: Make, default_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Saved, served and continued they are the same policy: merged into bfloat16 they would be another one."""
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    policy_model._warn_of_bfloat16.cache_clear()
    model = make("lora", dtype="bfloat16")
    turns = [replace(turn, temperature=1.0) for turn in play(model)]
    for _ in range(3):
        model.step(turns, replace(SETTINGS, learning_rate=1e-3), 4)
    model.save(tmp_path / "saved")
    learned = model.logprobs(turns)
    assert "set providers.<provider>.dtype: float32" in capsys.readouterr().err
    start, frozen = make("lora", folder=tmp_path / "saved"), make("lora", False, tmp_path / "saved")
    assert start.logprobs(turns) == learned
    assert frozen.logprobs(turns) == learned
    start.save(tmp_path / "again")
    assert base_of(tmp_path / "again") == base_of(tmp_path / "saved") != tmp_path / "saved"
    for folder in (tmp_path / "saved", tmp_path / "again"):
        served = ContinuousBatch(load_served(folder), model.chat, 5)
        requests = [GenerationRequest(turn.prompt, 4, 1.0, seed=1) for turn in turns]
        assert served.generate(requests) == frozen.sample(requests)
    ids_RL = torch.tensor([turns[0].prompt])
    right, wrong = (
        with_adapters(load_model(default_dir, dtype).float(), tmp_path / "saved") for dtype in ("bfloat16", "float32")
    )
    merged = make("full", folder=tmp_path / "saved", dtype="float32")
    assert all(weight.requires_grad for weight in merged._model.parameters())
    with torch.no_grad():
        errors = [float((one(ids_RL).logits - merged._model(ids_RL).logits).abs().max()) for one in (right, wrong)]
    assert errors[0] < 1e-4 < errors[1] / 10, "merged into the base as it was, not into its file"
    with pytest.raises(UserError, match=r"lora_rank: got 2, but .*saved has rank 16"):
        make("lora", folder=tmp_path / "saved", lora_rank=2)
    for name, text, said in (
        ("adapter/adapter_model.safetensors", "cut", r"saved: its adapters cannot be loaded"),
        ("adapter/adapter_config.json", "{}", r"adapter_config.json: expected a JSON object with r; put"),
        ("base.json", "{}", r"base.json: expected a JSON object with base; put"),
        ("base.json", "cut", r"base.json: expected a JSON object with base; put"),
    ):
        (tmp_path / "saved" / name).write_text(text)
        with pytest.raises(UserError, match=said):
            make("lora", folder=tmp_path / "saved")
