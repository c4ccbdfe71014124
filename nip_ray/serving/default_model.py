"""The model named `default`: a small untrained decoder, built here, for runs without another model or a network.

Decisions that matter here:
- a Llama of about a million parameters (4 layers of width 128, 4 heads that share one key-value head, 8192 tokens of
  context by rotary positions): an ordinary Hugging Face folder, which every library loads without code of ours;
- weights are drawn with a standard deviation of about 1/sqrt(width). The usual 0.02 would bound a logit by 2.6 if the
  embedding is frozen, and low-rank adapters could then never make a token likely; with 0.08 the bound is 10;
- the tokenizer is a byte-level BPE whose 256 first tokens are the bytes: it can write every text, also truncated,
  invalid UTF-8. Its merges were learned once from text of this package (`scripts/learn_vocabulary.py`) and are
  included;
- roles and the names of speakers are marked by special tokens, so that content cannot be mistaken for them.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nip_ray.seeding import seeded, stable_seed
from nip_ray.serving.extras import local_llm
from nip_ray.storage.files import put_in_place

VOCABULARY = Path(__file__).with_name("vocabulary.json")
CONTEXT = 8192
SPECIAL = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|name|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['name'] %}{{ message['name'] + '<|name|>' }}{% endif %}"
    "{{ message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def default_tokenizer() -> Any:
    """The tokenizer of the default model, as a transformers tokenizer with a chat template."""
    return chat_tokenizer(CHAT_TEMPLATE, CONTEXT, tokenizer_file=str(VOCABULARY))


def chat_tokenizer(template: str, context: int, **given: Any) -> Any:
    """A transformers tokenizer with this chat template and the special tokens `SPECIAL`. given: of its constructor."""
    ends = {"pad_token": "<|pad|>", "eos_token": "<|end|>"}
    kind = local_llm("transformers").PreTrainedTokenizerFast
    made = kind(**given, **ends, model_max_length=context, clean_up_tokenization_spaces=False)
    made.add_special_tokens({"additional_special_tokens": list(SPECIAL[2:])})
    made.chat_template = template
    return made


def untrained_llama(seed: int, **sizes: Any) -> Any:
    """A Llama whose output layer is its embedding, with weights drawn from `seed` alone; global generators unchanged.

    sizes: of `transformers.LlamaConfig`.
    """
    transformers = local_llm("transformers")
    config = transformers.LlamaConfig(
        tie_word_embeddings=True,
        pad_token_id=SPECIAL.index("<|pad|>"),
        bos_token_id=None,
        eos_token_id=SPECIAL.index("<|end|>"),
        **sizes,
    )
    with seeded(seed):
        return transformers.LlamaForCausalLM(config)


def save_default_model(folder: Path, seed: int = 0) -> Path:
    """Write the default model of `seed` to `folder`, unless it exists; return it. Equal seeds give equal bytes."""

    def make() -> tuple[Any, Any]:
        tokenizer = default_tokenizer()
        return tokenizer, untrained_llama(
            stable_seed(seed, "default language model"),
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=1,
            max_position_embeddings=CONTEXT,
            initializer_range=0.08,
        )

    return save_once(folder, make)


def save_once(folder: Path, make: Callable[[], tuple[Any, Any]]) -> Path:
    """Write a tokenizer and its model to `folder`, unless there is a model; returns the folder.

    The folder appears atomically, also when several processes write it at once.
    """
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    tokenizer, model = make()
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    put_in_place(aside, folder)
    return folder
