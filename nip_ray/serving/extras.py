"""The libraries of the extra `local-llm`, imported late, offline and quiet.

Decisions that matter here:
- a model is a local folder: nothing is ever looked up on a hub, so the libraries are set to offline before they are
  imported;
- they write nothing to $HOME, report to no service and print no progress bars.
"""

import importlib
import importlib.util
import logging
import os
import warnings
from types import ModuleType

from nip_ray.errors import UserError

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_DISABLED": "true",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


def local_llm(name: str) -> ModuleType:
    """The module `name` of transformers, trl, peft, tokenizers, accelerate or datasets.

    Raises UserError when the extra is not installed.
    """
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise _missing(str(error)) from None
    # peft uses deprecated names of transformers for every model with adapters
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    for chatty in ("transformers", "trl", "peft", "accelerate", "datasets"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    if name == "transformers":
        module.utils.logging.disable_progress_bar()
    return module


def check_installed() -> None:
    """Raise UserError if the extra is not installed, without importing it (actors that fail to start report less)."""
    for name in ("transformers", "trl", "peft", "accelerate", "datasets", "safetensors"):
        if importlib.util.find_spec(name) is None:
            raise _missing(f"there is no {name}")


def check_quantized(needed: bool) -> None:
    """Raise UserError if 8-bit optimisers and 4-bit weights are `needed` and unavailable: without bitsandbytes, or
    without CUDA."""
    if not needed:
        return
    what = "optimizer: adamw_8bit and quantize_base need"
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(f"{what} the library bitsandbytes: pip install 'nip_ray[local-llm,quantized]'")
    import torch

    if not torch.cuda.is_available():
        raise UserError(f"{what} CUDA, and there is none here; leave them out, or give the provider a GPU (num_gpus)")


def _missing(reason: str) -> UserError:
    return UserError(
        f"a local language model needs the libraries of an extra ({reason}): pip install 'nip_ray[local-llm]'"
    )
