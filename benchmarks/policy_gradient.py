"""One iteration of policy gradient with a tiny model in memory: tokens per second against a plain loop of equal
mathematics.

    python benchmarks/policy_gradient.py [--dialogues 640] [--groups 8 1] [--threads 1]

A transformer of 86,000 parameters and a word tokenizer; dialogues of two turns, prompts of about 50 and 60 tokens,
replies of at most 3. `group` dialogues are about the same item. Plain: transformers' `generate` on the padded batch,
then one padded forward and backward pass in torch for each turn's tokens, the same loss and optimizer. Both sides learn
from the same number of tokens in the same process, in turns, five of each, medians. `share`: of our iteration's time,
in the model's forward and backward.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from _common import machine, show

from nip_ray.learning.token_rows import Turn
from nip_ray.serving.default_model import CHAT_TEMPLATE, SPECIAL
from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.settings.providers import LocalProvider

WORDS, REPLY = 57, 3
SETTINGS = PolicyGradientSettings(learning_rate=1e-4, micro_batch_tokens=16384)
Chat = list[dict[str, str]]


def write_model(folder: Path) -> Path:
    """The model's folder."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [*SPECIAL, "<|unk|>", *(f"w{number}" for number in range(WORDS))]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<|unk|>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=SPECIAL[0], eos_token=SPECIAL[1], unk_token="<|unk|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL[2:])})
    tokenizer.chat_template = CHAT_TEMPLATE
    config = transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=256, initializer_range=0.1, tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def chats(count: int, group: int, seed: int) -> list[Chat]:
    """The first turn's chats."""

    def words(draw: Random, size: int) -> str:
        return " ".join(f"w{draw.randrange(WORDS)}" for _ in range(size))

    made = []
    for number in range(count):
        item = Random(f"{seed}-{number // group}")
        made.append(
            [
                {"role": "system", "content": words(Random(0), 12)},
                {"role": "user", "content": words(item, item.randint(24, 40))},
            ]
        )
    return made


def ours(model: PolicyModel, count: int, group: int, seed: int) -> int:
    """One iteration; returns the number of sampled tokens."""
    talks, turns, draw = chats(count, group, seed), [], Random(seed)
    for round_ in range(2):
        requests = [
            GenerationRequest(model.chat.prompt_before(talk, REPLY), REPLY, seed=(seed * count + i) * 2 + round_)
            for i, talk in enumerate(talks)
        ]
        for talk, request, reply in zip(talks, requests, model.sample(requests), strict=True):
            turns.append(Turn(request.prompt, reply.tokens, reply.logprobs, draw.gauss(0, 1)))
            talk += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "w1 w2 w3 w4 w5"}]
    model.step(turns, SETTINGS, REPLY)
    return sum(len(turn.reply) for turn in turns)


def plain(model: Any, chat: Any, optimizer: torch.optim.Optimizer, count: int, group: int, seed: int) -> int:
    """The same with transformers and torch alone."""
    talks, drawn, draw = chats(count, group, seed), [], Random(seed)
    for _ in range(2):
        prompts = [chat.prompt(talk) for talk in talks]
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=(ids != 0).long(), do_sample=True, top_k=0, max_new_tokens=REPLY, pad_token_id=0,
                output_scores=True, return_dict_in_generate=True,
            )  # fmt: skip
        new = out.sequences[:, longest:]
        scores = torch.stack(out.scores, 1).log_softmax(-1).gather(-1, new[..., None])[..., 0]
        for talk, prompt, reply, logprobs in zip(talks, prompts, new.tolist(), scores.tolist(), strict=True):
            size = reply.index(1) + 1 if 1 in reply else len(reply)
            drawn.append((prompt, reply[:size], logprobs[:size], draw.gauss(0, 1)))
            talk += [
                {"role": "assistant", "content": chat.text(reply[:size])},
                {"role": "user", "content": "w1 w2 w3 w4 w5"},
            ]
    num_tokens = sum(len(reply) for _, reply, _, _ in drawn)
    optimizer.zero_grad()
    longest = max(len(prompt) + len(reply) for prompt, reply, _, _ in drawn)
    for at in range(0, len(drawn), size := max(1, SETTINGS.micro_batch_tokens // longest)):
        part = drawn[at : at + size]
        ids, seen = (torch.zeros(len(part), longest, dtype=torch.long) for _ in range(2))
        mask, old = (torch.zeros(len(part), longest) for _ in range(2))
        for row, (prompt, reply, logprobs, _) in enumerate(part):
            end = len(prompt) + len(reply)
            ids[row, :end], seen[row, :end] = torch.tensor(prompt + reply), 1
            mask[row, len(prompt) : end], old[row, len(prompt) : end] = 1, torch.tensor(logprobs)
        logits = model(input_ids=ids, attention_mask=seen, use_cache=False).logits[:, :-1]
        found = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        ratio, advantage = (found - old[:, 1:]).exp(), torch.tensor([[one[3]] for one in part])
        loss = -(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) * mask[:, 1:]).sum() / num_tokens
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return num_tokens


def share(model: PolicyModel, count: int, group: int) -> float:
    """The share of an iteration's time in forward and backward."""
    spent, forward, backward = 0.0, model._model.forward, torch.Tensor.backward

    def watched(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal spent
            start = time.perf_counter()
            made = function(*arguments, **options)
            spent += time.perf_counter() - start
            return made

        return call

    model._model.forward, torch.Tensor.backward = watched(forward), watched(backward)
    start = time.perf_counter()
    try:
        for seed in range(100, 105):
            ours(model, count, group, seed)
        return spent / (time.perf_counter() - start)
    finally:
        model._model.forward, torch.Tensor.backward = forward, backward


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dialogues", type=int, default=640)
    parser.add_argument("--groups", type=int, nargs="+", default=[8, 1])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder, provider = (
            write_model(Path(name) / "model"),
            LocalProvider(method="full", max_batch_size=options.dialogues),
        )
        model, other = PolicyModel(folder, provider, trained=True), PolicyModel(folder, provider, trained=True)
        optimizer = torch.optim.AdamW(other._learned.values(), lr=1e-4)
        for group in options.groups:
            rates: dict[str, list[float]] = {"ours": [], "plain": []}
            for seed in range(6):
                for side, found in rates.items():
                    start = time.perf_counter()
                    made = (
                        ours(model, options.dialogues, group, seed)
                        if side == "ours"
                        else plain(other._model, other.chat, optimizer, options.dialogues, group, seed)
                    )
                    found.append(made / (time.perf_counter() - start))
            ours_, plain_ = (statistics.median(found[1:]) for found in rates.values())
            figures = {
                "group": group,
                "tokens_per_s": round(ours_),
                "plain": round(plain_),
                "ratio": round(ours_ / plain_, 2),
            }
            show(
                "policy gradient, an iteration",
                {**figures, "forward_and_backward": round(share(model, options.dialogues, group), 2)},
            )


if __name__ == "__main__":
    main()
