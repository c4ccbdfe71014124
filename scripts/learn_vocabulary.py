#!/usr/bin/env python3
"""Rewrite the vocabulary of the default model from the files named: text, or a .jsonl file with questions and
solutions.

python scripts/learn_vocabulary.py FILE ...
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from nip_ray.serving.default_model import SPECIAL, VOCABULARY
from nip_ray.serving.extras import local_llm

SIZE = 2048


def learn_vocabulary(texts: Iterable[str], size: int = SIZE) -> str:
    """The `tokenizer.json` of a byte-level BPE with `size` tokens, learned from `texts`."""
    tokenizers = local_llm("tokenizers")
    parts = tokenizers.pre_tokenizers
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = parts.Sequence([parts.Digits(individual_digits=True), parts.ByteLevel(add_prefix_space=False)])
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(parts.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made.to_str(pretty=False)


def texts_of(path: Path) -> list[str]:
    """The texts in a file: questions and solutions of a .jsonl file, else all of it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        return [text]
    rows = [json.loads(line) for line in text.split("\n") if line]
    return [row[column] for row in rows for column in ("question", "solution")]


def main(paths: list[str]) -> None:
    """Write the package's file."""
    texts = (text for path in paths for text in texts_of(Path(path)))
    VOCABULARY.write_text(learn_vocabulary(texts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
