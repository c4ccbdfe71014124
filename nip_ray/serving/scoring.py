"""Log-likelihoods of replies under a model, to measure learning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nip_ray.serving.chat_format import load_format
from nip_ray.serving.model_folder import context_of, load_model


class Scorer:
    """Log-likelihoods of replies under the model in a folder (on the CPU)."""

    def __init__(self, model_dir: Path) -> None:
        self.model = load_model(model_dir, torch.float32)
        self.chat = load_format(model_dir, context_of(self.model.config))

    @torch.inference_mode()
    def logprob(self, messages: Sequence[Mapping[str, Any]], completion: str) -> float:
        """Natural log of the probability that the model replies exactly `completion` after `messages`, and ends."""
        prompt, said = self.chat.example(messages, completion)
        logits_TV = self.model(torch.tensor([prompt + said]), logits_to_keep=len(said) + 1).logits[0, :-1]
        return float(logits_TV.float().log_softmax(-1).gather(1, torch.tensor(said)[:, None]).double().sum())
