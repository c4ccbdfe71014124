"""A tiny language model learns to say one word, by nip_ray's policy gradient with groups: the engine of `nip-ray train
tune_configs/pg_kuhn_poker.yaml` on this task. Tokens of replies count as steps."""

import random
from pathlib import Path

import torch
from _clock import Clock

from nip_ray.learning.token_rows import Turn
from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.settings.providers import LocalProvider

PROMPTS, GROUP, REPLY, WORDS = 32, 8, 8, 57

clock = Clock("nip_ray", "torch", "transformers", window=PROMPTS * GROUP)
torch.set_num_threads(1)
torch.manual_seed(clock.seed)
provider = LocalProvider(method="full", max_batch_size=PROMPTS * GROUP)
model = PolicyModel(Path(clock.run), provider, trained=True)
settings = PolicyGradientSettings(learning_rate=1e-3, micro_batch_tokens=16384)
draw, number = random.Random(clock.seed), 0
clock.start()
while True:
    requests = []
    for _ in range(PROMPTS):
        words = " ".join(f"w{draw.randrange(WORDS)}" for _ in range(32))
        prompt = model.chat.prompt([{"role": "user", "content": words}])
        for _ in range(GROUP):
            number += 1
            requests.append(GenerationRequest(prompt, REPLY, seed=clock.seed * 10**8 + number))
    replies = model.sample(requests)
    rewards = [reply.text.split().count("w1") / REPLY for reply in replies]
    turns = []
    for place, (request, reply) in enumerate(zip(requests, replies, strict=True)):
        group = torch.tensor(rewards[place // GROUP * GROUP :][:GROUP])
        advantage = float((rewards[place] - group.mean()) / (group.std() + 1e-4))
        turns.append(Turn(request.prompt, reply.tokens, reply.logprobs, advantage))
    model.step(turns, settings, REPLY)
    if not clock.goes_on(sum(len(reply.tokens) for reply in replies), rewards):
        break
clock.show()
