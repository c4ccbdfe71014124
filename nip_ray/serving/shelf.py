"""Model folders by name, and the engines of the most recently used models.

Decisions that matter here:
- a name is `default`, a model in `FOLDER/models`, one that was named at the start, or (if allowed: not for clients of a
  server) the path of another folder, or of a GGUF file, which is converted in `FOLDER/models` once; nothing is ever
  downloaded;
- engines are loaded on first use and kept up to MAX_ENGINES; the least recently used goes first, and never a busy one.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from nip_ray.errors import UserError
from nip_ray.serving.default_model import save_default_model
from nip_ray.serving.engine import Engine
from nip_ray.storage.model_files import gguf_in

DEFAULT = "default"
MAX_ENGINES = 4
UNLIMITED = 1024
"""Maximum tokens of a reply without a given limit."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ModelFolders:
    """From names to folders. folder: the parent of `models/`. default_seed: of the weights of the default model. named:
    (name, folder) of models elsewhere; if there is one, `default` is not offered. any_path: a path is a name too."""

    folder: Path
    default_seed: int = 0
    named: tuple[tuple[str, Path], ...] = ()
    any_path: bool = True

    def locate(self, name: str) -> Path:
        """The folder of the model `name`; the default model is written on first use. Raises UserError when unknown."""
        named = dict(self.named)
        if name in named:
            return named[name]
        if name == DEFAULT and not named:
            return save_default_model(self.folder / "models" / DEFAULT, self.default_seed)
        if _NAME.fullmatch(name) and (self.folder / "models" / name / "config.json").is_file():
            return self.folder / "models" / name
        if self.any_path and (Path(name) / "config.json").is_file():
            return Path(name)
        if self.any_path and (file := gguf_in(Path(name))) is not None:
            return self.convert(file)
        path = "the path of a model folder or of a GGUF file, or " if self.any_path else ""
        raise UserError(f"there is no local model {name!r}: give {path}one of {', '.join(self.names())}")

    def convert(self, file: Path) -> Path:
        """The folder of the model in a GGUF file, converted on first use. Raises UserError as `convert_gguf` does."""
        from nip_ray.serving.gguf import convert_gguf

        return convert_gguf(file, self.conversion(file))

    def conversion(self, file: Path) -> Path:
        """The folder that a GGUF file is converted to."""
        from nip_ray.serving.gguf import converted_name

        return self.folder / "models" / converted_name(file)

    def names(self) -> list[str]:
        """The available models by name, in order."""
        made = {path.parent.name for path in (self.folder / "models").glob("*/config.json")} - {DEFAULT}
        first = [name for name, _ in self.named] or [DEFAULT]
        return first + sorted(name for name in made - set(first) if _NAME.fullmatch(name))


class Shelf:
    """Engines by the folder of their model, for one event loop."""

    def __init__(self, max_batch_size: int) -> None:
        """max_batch_size: replies that an engine generates at once."""
        self._max_batch_size = max_batch_size
        self._engines: dict[Path, Engine] = {}
        self._users: dict[Path, int] = {}
        self._loading = asyncio.Lock()

    async def generate(
        self,
        folder: Path,
        messages: Sequence[Mapping[str, Any]],
        request: Any,
        too_long: Literal["cut", "refuse"],
        on_text: Callable[[str], None] | None = None,
    ) -> Any:
        """The reply of the model in `folder`; `request` has all but its prompt, and a max_tokens of 0 means no limit.

        too_long: the treatment of a prompt beyond the context. Cancelling the task stops the generation. Raises
        UserError for a request that cannot be met, TrainingError when generation fails.
        """
        engine = await self._engine(folder)
        try:
            if too_long == "refuse":
                engine.chat.refuse_hopeless(messages)
            prompt, context = engine.chat.prompt(messages), engine.chat.context
            limit = request.max_tokens or max(1, min(UNLIMITED, context - len(prompt)))
            if too_long == "cut":
                limit = min(limit, max(context - len(prompt), context // 2))
                prompt = engine.chat.cut_aloud(prompt, context - limit)
            opened = engine.chat.opened
            if opened and on_text:
                on_text(opened)
            wanted = replace(request, prompt=prompt, max_tokens=limit)
            if request.schema is None:
                future = engine.submit(wanted, on_text)
            else:  # preparing a schema takes seconds with a large vocabulary
                future = await asyncio.to_thread(engine.submit, wanted, on_text)
            made = await asyncio.wrap_future(future)
            return replace(made, text=opened + made.text) if opened else made
        finally:
            self._users[folder] -= 1

    def close(self) -> None:
        """Stop all engines."""
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()

    async def _engine(self, folder: Path) -> Engine:
        """The engine of a folder, which now counts as busy with one more call."""
        async with self._loading:
            engine = self._engines.pop(folder, None)
            if engine is not None and engine.closed:  # it broke off
                engine.close()
                engine = None
            if engine is None:
                idle = [one for one in self._engines if not self._users.get(one)]  # least recently used first
                for one in idle[: max(0, len(self._engines) - MAX_ENGINES + 1)]:
                    self._engines.pop(one).close()
                engine = await asyncio.to_thread(Engine, folder, self._max_batch_size)
            self._engines[folder] = engine  # at the end: most recently used
            self._users[folder] = self._users.get(folder, 0) + 1
        return engine
