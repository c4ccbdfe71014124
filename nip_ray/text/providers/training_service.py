"""Services with low-level training (forward and backward, optimiser step, sample, save): fine-tuning jobs and chats.

Written against the client of the `tinker` package, 0.30 and later. Decisions that matter here:
- the library is used only in `ServiceLink`, so that tests can replace it. Errors are reported without the library's own
  text, which might hold a key;
- such a service knows steps, not jobs, so jobs are implemented here: a loop in this process, and a journal
  (`jobs.jsonl` in the backend's folder) of requests, saved steps and results. So `find` reads the journal, and no
  creation is ever in doubt;
- after a kill the loop continues from the last saved weights, optimiser included. Steps after those are repeated, and
  billed again: at most `checkpoint_every` - 1 of them. Saving is repeated under the same name, which overwrites;
- a job is billed for every journalled pass over tokens, repeated ones included, each at the price of training: for DPO
  the reference's, and two for each step (the service's own loss function does a forward pass first);
- a fine-tuned model is identified by the address of its sampling weights; the matching training weights are looked up
  in the journal.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import TrainingError, UserError, require
from nip_ray.learning.token_rows import Turn
from nip_ray.secrets import secret
from nip_ray.seeding import generator, stable_seed
from nip_ray.serving.chat_format import ChatFormat
from nip_ray.serving.fine_tuning_job import FINAL, FineTuneJob, FineTuneSpec, Method
from nip_ray.serving.training_data import parse_examples
from nip_ray.settings.providers import TrainingServiceProvider
from nip_ray.storage.files import write_atomically
from nip_ray.text.jobs import Journal
from nip_ray.text.providers.interface import FIRST_WAIT_S, ChatReply, ChatRequest, Provider, backoff_s
from nip_ray.text.providers.openai_service import is_about_words

ADDRESS = "tinker://"
"""Prefix of the address of saved weights."""
TRAIN, SAMPLE = "/weights/", "/sampler_weights/"
"""Parts of such an address, of weights to learn from and to sample from; the rest is the same for both."""
EPOCHS, BATCH_SIZE, LEARNING_RATE, BETA = 3, 8, 1e-4, 0.1
"""Defaults for what a spec leaves open."""
_NOT_ALLOWED = ("AuthenticationError", "PermissionDeniedError", "BillingError")


class ServiceLink:
    """The library and a client of the service. library: has `ServiceClient`, `RestClient` and `types` (None: `tinker`).

    Raises UserError for a missing library or key.
    """

    def __init__(self, provider: TrainingServiceProvider, library: Any = None) -> None:
        self.provider = provider
        self._library = library if library is not None else require("tinker", "training-service")
        self._secret = secret(provider.api_key_variable, "the training service")
        self._service: Any = None

    @property
    def types(self) -> Any:
        """The library's types of requests."""
        return self._library.types

    def service(self) -> Any:
        """The client, created on first use."""
        if self._service is None:
            self._service = self._library.ServiceClient(base_url=self.provider.base_url, api_key=self._secret)
        return self._service

    def rest(self) -> Any:
        """A client for queries, which starts no session."""
        return self._library.RestClient(base_url=self.provider.base_url, api_key=self._secret)

    def base_model(self, model: str) -> Any:
        """The service's entry of a base model. Raises UserError if it has none of that name."""
        found = self.made(self.rest().get_server_capabilities)
        known = {entry.model_name: entry for entry in found.supported_models if entry.model_name}
        if model not in known:
            raise UserError(
                f"the training service has no model {model!r}; it has {', '.join(sorted(known)[:8]) or 'none'}"
            )
        return known[model]

    def learner_of(self, model: str, seed: int, state: str | None = None) -> Callable[[], Any]:
        """The request for a learning client: from a `state` with its optimiser, saved weights, or new adapters."""
        service = self.service()
        if state is not None:
            return partial(service.create_training_client_from_state_with_optimizer, state)
        if model.startswith(ADDRESS):
            return partial(service.create_training_client_from_state, model.replace(SAMPLE, TRAIN))
        return partial(service.create_lora_training_client, base_model=model, rank=self.provider.lora_rank, seed=seed)

    def which(self, model: str) -> dict[str, str]:
        """A model as the service's calls name it: a base model, or the address of saved weights."""
        return {"model_path": model} if model.startswith(ADDRESS) else {"base_model": model}

    def datum(self, turn: Turn, **of_reply: Sequence[float]) -> Any:
        """Predict each token from those before it. of_reply: loss inputs at the reply's tokens; 0 at the prompt's."""
        types, tokens, before = self.types, [*turn.prompt, *turn.reply], len(turn.prompt) - 1
        shape = [len(tokens) - 1]
        inputs = {
            name: types.TensorData(data=[0.0] * before + [*row], dtype="float32", shape=shape)
            for name, row in of_reply.items()
        }
        inputs["target_tokens"] = types.TensorData(data=tokens[1:], dtype="int64", shape=shape)
        return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)

    async def call(self, future: Awaitable[Any]) -> Any:
        """The result of a request. The library retries by itself."""
        try:
            return await future
        except Exception as error:
            raise self.told(error) from None

    def result(self, future: Any) -> Any:
        """The same for callers without an event loop."""
        return self.made(lambda: future)

    def made(self, create: Any, *given: Any, **named: Any) -> Any:
        """The result of a request sent here, by a function that may itself fail."""
        try:
            return create(*given, **named).result()
        except Exception as error:
            raise self.told(error) from None

    def told(self, error: BaseException) -> Exception:
        """Our exception for a failure of the library."""
        if isinstance(error, UserError | TrainingError):
            return error
        if type(error).__name__ in _NOT_ALLOWED:
            return UserError(
                f"the training service refuses the key in ${self.provider.api_key_variable} ({type(error).__name__})"
            )
        if type(error).__name__ == "NotFoundError":
            return UserError(
                "the training service has no such model or saved weights (NotFoundError); they may have been deleted"
                " there"
            )
        return TrainingError(
            f"the training service failed ({type(error).__name__}); when it works again, resume the run"
        )

    def close(self) -> None:
        """End the session; saved weights stay at the service."""
        service, self._service = self._service, None
        if service is not None:
            service.close("success").result()


async def made(create: Any, *given: Any, **named: Any) -> Any:
    """A client of the library. Creating it may block, so it runs in a thread; its result is awaited."""
    return await (await asyncio.to_thread(create, *given, **named))


class TrainingServiceJobs:
    """A `FineTuneBackend` that keeps its jobs in `folder`. library: has `ServiceClient`, `RestClient` and `types`
    (None: `tinker`).

    Raises UserError for a missing library or key, or when another process uses the folder.
    """

    methods = frozenset({"supervised", "dpo"})
    doubt_s = 0.0

    def __init__(
        self,
        provider: TrainingServiceProvider,
        folder: Path,
        library: Any = None,
        checkpoint_every: int = 20,
        poll_interval_s: float = 2.0,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self.poll_interval_s = poll_interval_s
        self._link = ServiceLink(provider, library)
        self._folder, self._every, self._first_wait_s = folder, checkpoint_every, first_wait_s
        (folder / "files").mkdir(parents=True, exist_ok=True)
        self._journal = Journal(folder / "jobs.jsonl")
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}

    async def check(self, model: str, method: Method) -> None:
        """See `FineTuneBackend`."""
        if method not in self.methods:
            raise UserError(f"this provider fine-tunes by {' and '.join(sorted(self.methods))} (got {method!r})")
        if not model.startswith(ADDRESS):
            await asyncio.to_thread(self._link.base_model, model)
        elif SAMPLE in model and self._journal.last("ended", model=model) is None:
            raise UserError(
                f"{model} holds weights to sample from, made by another run; to fine-tune them name its weights to"
                " train from"
            )

    async def upload(self, name: str, data: bytes) -> str:
        """See `FineTuneBackend`. The file stays local: it is sent as tokens, step by step."""
        file_id = f"{hashlib.sha256(data).hexdigest()[:32]}.jsonl"
        write_atomically(self._folder / "files" / file_id, data)
        return file_id

    async def find(self, key: str) -> list[FineTuneJob]:
        """See `FineTuneBackend`."""
        return [self._job(entry["id"]) for entry in self._journal.entries("created", key=key)]

    async def submit(self, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        job_id = f"local-{spec.key[:24]}-{sum(1 for _ in self._journal.entries('created')):04d}"
        self._journal.append("created", id=job_id, key=spec.key, spec=asdict(spec), file=file_id)
        self._begin(job_id)
        return self._job(job_id)

    async def poll(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend`. Starts, or restarts, a loop that is not running."""
        job, loop = self._job(job_id), self._loops.get(job_id)
        if job.status in FINAL:
            return job
        if loop is None:
            self._begin(job_id)
        elif loop.done():
            await self._after(job_id, loop)
        return self._job(job_id)

    async def cancel(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        if self._job(job_id).status not in FINAL:
            self._journal.append("ended", id=job_id, status="cancelled", trained_tokens=self._passed(job_id))
            await self._stop(self._loops.pop(job_id, None))
        return self._job(job_id)

    async def close(self) -> None:
        """Stop the loops, whose jobs continue when polled in another process, and close the journal."""
        for loop in self._loops.values():
            await self._stop(loop)
        self._loops.clear()
        self._journal.close()
        await asyncio.to_thread(self._link.close)

    def _job(self, job_id: str) -> FineTuneJob:
        created = self._journal.last("created", id=job_id)
        if created is None:
            raise TrainingError(f"{self._folder} has no job {job_id}; it belongs to another run")
        ended = self._journal.last("ended", id=job_id)
        if ended is None:
            return FineTuneJob(job_id, created["key"], "running" if job_id in self._loops else "pending")
        return FineTuneJob(
            job_id, created["key"], ended["status"], ended.get("model"), ended.get("trained_tokens"), ended.get("error")
        )

    def _begin(self, job_id: str) -> None:
        loop = self._loops[job_id] = asyncio.get_running_loop().create_task(self._train(job_id))
        # the next poll reads it, if there is one
        loop.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _after(self, job_id: str, loop: asyncio.Task[None]) -> None:
        """Restart a loop that ended too early, or give up."""
        error = None if loop.cancelled() else loop.exception()
        if error is None:
            return  # ended as planned
        if isinstance(told := self._link.told(error), UserError):
            raise told from None
        failures = self._failures[job_id] = self._failures.get(job_id, 0) + 1
        if failures > self._link.provider.max_retries:
            raise told from None
        await asyncio.sleep(backoff_s(0, job_id, failures - 1, self._first_wait_s))
        self._begin(job_id)

    @staticmethod
    async def _stop(loop: "asyncio.Task[None] | None") -> None:
        if loop is not None:
            loop.cancel()
            await asyncio.wait([loop])

    async def _train(self, job_id: str) -> None:
        """The job itself, from the last saved weights."""
        created = self._journal.last("created", id=job_id)
        assert created is not None
        spec = FineTuneSpec(**created["spec"])
        saved = self._journal.last("saved", id=job_id)
        ended = self._journal.last("ended", model=spec.model)
        model, seed = (
            spec.model if ended is None else ended["state"],
            stable_seed(spec.seed, "adapters", spec.key) % 2**31,
        )
        client = await made(self._link.learner_of(model, seed, None if saved is None else saved["path"]))
        try:
            examples = _examples(
                (self._folder / "files" / created["file"]).read_bytes(), spec.method, client.get_tokenizer()
            )
        except UserError as error:
            self._journal.append(
                "ended", id=job_id, status="failed", error=f"the training data cannot be used: {error}"
            )
            return
        reference = await self._reference(job_id, spec, client, examples)
        plan = steps(len(examples), spec)
        for number in range(saved["step"] if saved else 0, len(plan)):
            rows = plan[number]
            self._pass(job_id, [examples[row] for row in rows], 2 if spec.method == "dpo" else 1)
            await self._step(spec, client, [examples[row] for row in rows], [reference[row] for row in rows])
            if (number + 1) % self._every == 0 and number + 1 < len(plan):
                await self._save(job_id, client, number + 1)
        state = await self._save(job_id, client, len(plan))
        model = (await client.save_weights_for_sampler(f"{job_id}-model")).path
        self._journal.append(
            "ended", id=job_id, status="succeeded", model=model, state=state, trained_tokens=self._passed(job_id)
        )

    async def _reference(
        self, job_id: str, spec: FineTuneSpec, client: Any, examples: list[list[Turn]]
    ) -> list[list[float]]:
        """For DPO, the log-probability of every reply under the start model; stored, since later weights differ."""
        if spec.method != "dpo":
            return [[] for _ in examples]
        known = self._journal.last("reference", id=job_id)
        if known is None:
            self._pass(job_id, examples, 1)
            data = [
                self._link.datum(example, weights=[0.0] * len(example.reply)) for pair in examples for example in pair
            ]
            outputs = (await client.forward(data, "cross_entropy")).loss_fn_outputs
            sums = [
                float(out["logprobs"].to_torch()[-len(one.reply) :].sum())
                for one, out in zip((one for pair in examples for one in pair), outputs)
            ]
            known = self._journal.append("reference", id=job_id, sums=[sums[n : n + 2] for n in range(0, len(sums), 2)])
        return known["sums"]

    async def _step(
        self, spec: FineTuneSpec, client: Any, batch: list[list[Turn]], reference: list[list[float]]
    ) -> None:
        """One optimiser step. It is requested before the gradients are done, as the service recommends."""
        flat, beta = [example for row in batch for example in row], BETA if spec.beta is None else spec.beta
        lengths = [len(example.reply) for example in flat]
        weight = 1 / sum(lengths) if spec.method == "supervised" else 1.0
        data = [self._link.datum(example, weights=[weight] * len(example.reply)) for example in flat]

        def loss(_: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
            sums = torch.stack([row[-length:].sum() for row, length in zip(logprobs, lengths)])
            value = dpo_loss(sums.view(-1, 2), torch.tensor(reference, dtype=sums.dtype), beta)
            return value - spec.nll_coefficient * sums[::2].sum() / sum(lengths[::2]), {}

        supervised = spec.method == "supervised"
        gradients = (
            client.forward_backward(data, "cross_entropy") if supervised else client.forward_backward_custom(data, loss)
        )
        rate = (LEARNING_RATE if spec.learning_rate is None else spec.learning_rate) * (
            spec.learning_rate_multiplier or 1.0
        )
        update = client.optim_step(self._link.types.AdamParams(learning_rate=rate))
        await gradients
        await update

    async def _save(self, job_id: str, client: Any, step: int) -> str:
        path = (await client.save_state(f"{job_id}-{step:06d}", overwrite=True)).path
        self._journal.append("saved", id=job_id, step=step, path=path)
        return path

    def _pass(self, job_id: str, examples: list[list[Turn]], times: int) -> None:
        """Journal that these tokens are about to pass through the model."""
        self._journal.append(
            "pass", id=job_id, tokens=times * sum(len(one.prompt) + len(one.reply) for row in examples for one in row)
        )

    def _passed(self, job_id: str) -> int:
        return sum(entry["tokens"] for entry in self._journal.entries("pass", id=job_id))


class TrainingServiceChat:
    """A `ChatClient` that samples from such a service. Models are base models, or addresses of sampling weights."""

    def __init__(self, provider: TrainingServiceProvider, library: Any = None) -> None:
        self._link = ServiceLink(provider, library)
        self._samplers: dict[str, asyncio.Task[Any]] = {}

    async def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient`. The same call has the same seed, so a repeated one has the same reply."""
        if request.schema is not None:
            raise UserError(
                "scenario.decision_format: the training service cannot hold replies to a schema, set it to text"
            )
        sampler = await self._sampler(request.model)
        tokenizer, types = sampler.get_tokenizer(), self._link.types
        prompt = _format(tokenizer).prompt(request.messages)
        seed = stable_seed(request.seed or 0, "sample", request.key) % 2**31
        chosen = {"temperature": request.temperature, "top_p": request.top_p}
        options = {name: value for name, value in chosen.items() if value is not None}
        params = types.SamplingParams(max_tokens=request.max_tokens, seed=seed, **options)
        try:
            sequence = (await sampler.sample(types.ModelInput.from_ints(prompt), 1, params)).sequences[0]
        except Exception as error:
            if is_about_words(str(error)):
                return ChatReply(
                    None, "refused", 0, 0, refusal=f"the training service refused the prompt ({type(error).__name__})"
                )
            raise self._link.told(error) from None
        text = tokenizer.decode(list(sequence.tokens), skip_special_tokens=True)
        return ChatReply(
            text, "length" if sequence.stop_reason == "length" else "stop", len(prompt), len(sequence.tokens)
        )

    async def close(self) -> None:
        """See `ChatClient`."""
        await asyncio.to_thread(self._link.close)

    async def _sampler(self, model: str) -> Any:
        """The client of a model, created once for all concurrent requests; a failed one is recreated."""
        task = self._samplers.get(model)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.ensure_future(
                self._link.call(made(self._link.service().create_sampling_client, **self._link.which(model)))
            )
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # the waiter may be cancelled
            self._samplers[model] = task
        await asyncio.wait([task])
        return task.result()


def steps(num_examples: int, spec: FineTuneSpec) -> list[list[int]]:
    """The rows of each optimiser step: every example once per epoch, in an order given by the seed and the epoch."""
    size, plan = spec.batch_size or BATCH_SIZE, []
    for epoch in range(spec.num_epochs or EPOCHS):
        order = torch.randperm(num_examples, generator=generator(spec.seed, "order of examples", epoch)).tolist()
        plan += [order[start : start + size] for start in range(0, num_examples, size)]
    return plan


def dpo_loss(logprobs: Tensor, reference: Tensor, beta: float) -> Tensor:
    """Rafailov et al., 2023, equation 7, averaged over pairs. logprobs, reference (N, 2): of better and worse reply."""
    margin = (logprobs - reference)[:, 0] - (logprobs - reference)[:, 1]
    return -torch.nn.functional.logsigmoid(beta * margin).mean()


def _examples(data: bytes, method: Method, tokenizer: Any) -> list[list[Turn]]:
    """One (supervised) or two (dpo: better, worse) examples per line. Raises UserError for any other line."""

    def turn(chat: list[dict[str, Any]], said: str) -> Turn:
        reply = [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]
        return Turn(_format(tokenizer).prompt(chat), reply)

    found = parse_examples(data, method)
    if method == "dpo":
        return [[turn(one.messages, said) for said in (one.preferred, one.rejected)] for one in found]
    if any(one.messages[-1]["role"] != "assistant" for one in found):
        raise UserError("an example must end with the assistant's message")
    return [[turn(one.messages[:-1], one.messages[-1]["content"])] for one in found]


@lru_cache(maxsize=8)
def _format(tokenizer: Any) -> ChatFormat:
    return ChatFormat(tokenizer, 0)  # the service checks the context


PROVIDER = Provider(
    chat=lambda given: TrainingServiceChat(given.settings),
    fine_tuning=lambda given: TrainingServiceJobs(given.settings, given.run_dir / f"training-{given.name}"),
)
