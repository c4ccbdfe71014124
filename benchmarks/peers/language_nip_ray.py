"""A tiny language model, or two with `--variant two`, or adapters of SmolLM2 with `--variant lora`, learns to say one
word, by nip_ray's policy gradient with groups: the engine of `nip-ray train tune_configs/pg_kuhn_poker.yaml` on this
task. Tokens of replies count as steps."""

import random
from pathlib import Path

import torch
from _clock import Clock

from nip_ray.learning.token_rows import Turn
from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.settings.providers import LocalProvider

GROUP, REPLY, WORDS = 8, 8, 57

clock = Clock("nip_ray", "torch", "transformers", window=256)
PROMPTS = 2 if clock.variant == "lora" else 32
torch.set_num_threads(1)
torch.manual_seed(clock.seed)
adapters = {"lora_rank": 8} if clock.variant == "lora" else {"method": "full"}
provider = LocalProvider(max_batch_size=PROMPTS * GROUP, **adapters)
models = [PolicyModel(Path(clock.run), provider, trained=True) for _ in range(2 if clock.variant == "two" else 1)]
settings = PolicyGradientSettings(learning_rate=1e-3, micro_batch_tokens=16384)
draw, number = random.Random(clock.seed), clock.seed * 10**8
clock.start()
while True:
    prompts = []
    for _ in range(PROMPTS):
        words = " ".join(f"w{draw.randrange(WORDS)}" for _ in range(32))
        prompts += [models[0].chat.prompt([{"role": "user", "content": words}])] * GROUP
    played = []
    for model in models:
        seeds = range(number, number := number + len(prompts))
        requests = [GenerationRequest(prompt, REPLY, seed=seed) for prompt, seed in zip(prompts, seeds, strict=True)]
        played.append(model.sample(requests))
    shares = [[reply.text.split().count("w1") / REPLY for reply in replies] for replies in played]
    rewards = torch.tensor(shares).mean(0)
    group = rewards.view(PROMPTS, GROUP)
    advantages = ((group - group.mean(1, True)) / (group.std(1, keepdim=True) + 1e-4)).flatten().tolist()
    for model, replies in zip(models, played, strict=True):
        rows = zip(prompts, replies, advantages, strict=True)
        model.step([Turn(prompt, one.tokens, one.logprobs, gain) for prompt, one, gain in rows], settings, REPLY)
    if not clock.goes_on(sum(len(reply.tokens) for replies in played for reply in replies), rewards.tolist()):
        break
clock.show()
