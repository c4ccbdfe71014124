"""The model called `words`: a small untrained decoder each of whose tokens is a word of the scenario, to be trained
here from nothing.

Decisions that matter here:
- the scenario lists its words (`LanguageScenario.words`); text is split at spaces, and any other word is read as one
  that is unknown;
- a chat costs a token for each message besides its words: the mark of its role, or the end of a reply, which the model
  has to learn. A reply follows at once upon what was heard last, and not upon a mark of its own: so small models learn
  to compare words much faster;
- it is a Llama in the Hugging Face form, as the default model is, so whatever reads, serves or trains that one does so
  with this one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nip_ray.seeding import stable_seed
from nip_ray.serving.default_model import SPECIAL, chat_tokenizer, save_once, untrained_llama
from nip_ray.serving.extras import local_llm
from nip_ray.settings.providers import WordModelSettings

UNKNOWN = "<|unknown|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] + ' <|end|>' }}"
    "{% else %}{{ '<|' + message['role'] + '|> ' + message['content'] + ' ' }}{% endif %}"
    "{% endfor %}"
)


def word_tokenizer(words: Sequence[str], context: int) -> Any:
    """A transformers tokenizer with a token for each of `words`, after the special ones."""
    tokenizers = local_llm("tokenizers")
    numbers = {word: number for number, word in enumerate((*SPECIAL, UNKNOWN, *words))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token=UNKNOWN))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return chat_tokenizer(CHAT_TEMPLATE, context, tokenizer_object=made, unk_token=UNKNOWN)


def save_word_model(folder: Path, words: Sequence[str], settings: WordModelSettings, seed: int = 0) -> Path:
    """Write the model of these words, sizes and `seed` to `folder`, unless there is one; returns the folder."""

    def make() -> tuple[Any, Any]:
        tokenizer = word_tokenizer(words, settings.context)
        model = untrained_llama(
            stable_seed(seed, "word model"),
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden_size,
            intermediate_size=4 * settings.hidden_size,
            num_hidden_layers=settings.num_layers,
            num_attention_heads=settings.num_heads,
            max_position_embeddings=settings.context,
            initializer_range=settings.hidden_size**-0.5,
        )
        return tokenizer, model

    return save_once(folder, make)
