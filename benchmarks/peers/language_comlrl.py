"""Two tiny language models learn to say one word, paid together, by CoMLRL's MAGRPOTrainer. Tokens of replies count as
steps; it plays prompt by prompt and learns from 32."""

import random
from typing import Any

import torch
from _clock import Clock
from comlrl.trainers.reinforce.magrpo import MAGRPOConfig, MAGRPOTrainer
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS, GROUP, REPLY, WORDS = 32, 8, 8, 57


class Ended(Exception):
    """By the clock."""


def reward(*completions: list[str], **_: Any) -> list[float]:
    """The mean share of the word in both replies; called for each pair of replies."""
    found = [sum(text.split().count("w1") for text in both) / REPLY / len(both) for both in zip(*completions)]
    tokens = sum(min(REPLY, len(text.split()) + 1) for texts in completions for text in texts)
    last["returns"] += found
    last["tokens"] += tokens
    if len(last["returns"]) >= PROMPTS * GROUP:
        if not clock.goes_on(last["tokens"], last["returns"]):
            raise Ended
        last.update(returns=[], tokens=0)
    return found


last: dict[str, Any] = {"returns": [], "tokens": 0}
clock = Clock("comlrl", "torch", "transformers", window=PROMPTS * GROUP)
torch.set_num_threads(1)
torch.manual_seed(clock.seed)
draw = random.Random(clock.seed)
tokenizer = AutoTokenizer.from_pretrained(clock.run)
prompts = []
for _ in range(16384):
    words = " ".join(f"w{draw.randrange(WORDS)}" for _ in range(32))
    chat = [{"role": "user", "content": words}]
    prompts.append(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
trainer = MAGRPOTrainer(
    agents=[AutoModelForCausalLM.from_pretrained(clock.run) for _ in range(2)],
    num_agents=2,
    tokenizer=tokenizer,
    reward_func=reward,
    formatters=[lambda item: item["prompt"]] * 2,
    train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
    args=MAGRPOConfig(
        num_train_epochs=100, agent_learning_rate=1e-3, num_agents=2, num_generations=GROUP, max_new_tokens=REPLY,
        temperature=1.0, top_p=1.0, top_k=0, num_turns=1, eval_interval=0, rollout_buffer_size=PROMPTS,
        train_batch_size=PROMPTS, logging_steps=10**6, early_termination_threshold=None,
    ),
)  # fmt: skip
clock.start()
try:
    trainer.train()
except Ended:
    clock.show()
