"""A tiny language model, or adapters of SmolLM2 with `--variant lora`, learns to say one word, by TRL's GRPOTrainer.
Tokens of replies count as steps."""

import random
import tempfile
from typing import Any

import torch
from _clock import Clock
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

GROUP, REPLY, WORDS = 8, 8, 57


def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The share of the word in a reply."""
    found = [one[0]["content"].split().count("w1") / REPLY for one in completions]
    last.update(returns=found, tokens=sum(map(len, completion_ids)))
    return found


class Timed(TrainerCallback):
    """After each step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step."""
        control.should_training_stop = not clock.goes_on(last["tokens"], last["returns"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first."""
        clock.start()


last: dict[str, Any] = {}
clock = Clock("trl", "torch", "transformers", window=256)
lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear") if clock.variant == "lora" else None
PROMPTS = 2 if lora else 32
torch.set_num_threads(1)
draw = random.Random(clock.seed)
rows = [" ".join(f"w{draw.randrange(WORDS)}" for _ in range(32)) for _ in range(4096)]
trainer = GRPOTrainer(
    AutoModelForCausalLM.from_pretrained(clock.run),
    reward_funcs=reward,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP,
        max_completion_length=REPLY, learning_rate=1e-3, lr_scheduler_type="constant", max_steps=10**6, beta=0.0,
        temperature=1.0, use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", seed=clock.seed,
        disable_tqdm=True, gradient_checkpointing=False, bf16=False, dataloader_num_workers=0,
    ),
    train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": words}]} for words in rows]),
    processing_class=AutoTokenizer.from_pretrained(clock.run),
    callbacks=[Timed()],
    peft_config=lora,
)  # fmt: skip
trainer.train()
clock.show()
