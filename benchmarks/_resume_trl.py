"""TRL's GRPO with a language model of two layers, made here: `save_steps` and
`trainer.train(resume_from_checkpoint=True)`.

By hand: starting again without a checkpoint, by `get_last_checkpoint`.
"""

import os
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true", "TOKENIZERS_PARALLELISM": "false"}

from _resume_row import INTERVAL, Rows, generators, optimizer_digest
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(29))]
TIMES = ("time", "runtime", "per_second", "epoch", "flos", "num_tokens")


def shares(completions: list[str], **_: Any) -> list[float]:
    """The reward: the share of words in the first half of the vocabulary."""
    return [sum(word in WORDS[3:18] for word in text.split()) / 8 for text in completions]


class Writer(TrainerCallback):
    """Row when the checkpoint of a step is written; `restored` before the first step, when generators are restored."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.waits = rows, rows.resume

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The trainer restores generators just before."""
        if self.waits and state.global_step:
            self.rows.write("restored", state.global_step, **now(state, parts))
        self.waits = False

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The row was logged just before."""
        row = {
            key: float(value) for key, value in state.log_history[-1].items() if not any(part in key for part in TIMES)
        }
        self.rows.write("row", state.global_step, row, **now(state, parts))


def now(state: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """The state of the parts that the trainer passes to callbacks."""
    optimizer = getattr(parts["optimizer"], "optimizer", parts["optimizer"])
    rates = [group["lr"] for group in optimizer.param_groups]
    return {
        "counter": [state.global_step, int(state.num_input_tokens_seen)],
        "lr": rates,
        "optimizer": optimizer_digest(optimizer),
        "generators": generators(),
    }


def main() -> None:
    """Train, or resume."""
    rows = Rows()
    set_seed(0)
    raw = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        bos_token="<eos>",
        padding_side="left",
    )
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes, **tokens))
    prompts = Dataset.from_list([{"prompt": f"w{number % 29} w{number * 7 % 29}"} for number in range(16)])
    settings = GRPOConfig(
        output_dir=str(rows.folder / "run"),
        max_steps=rows.iterations,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        learning_rate=1e-3,
        lr_scheduler_type="linear",
        save_strategy="steps",
        save_steps=INTERVAL,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=shares,
        args=settings,
        train_dataset=prompts,
        processing_class=tokenizer,
        callbacks=[Writer(rows)],
    )
    resumable = (
        rows.resume and os.path.isdir(settings.output_dir) and get_last_checkpoint(settings.output_dir) is not None
    )
    trainer.train(resume_from_checkpoint=True if resumable else None)


if __name__ == "__main__":
    main()
