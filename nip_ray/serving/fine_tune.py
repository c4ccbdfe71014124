"""Fine-tune a model folder into a new one: supervised or by preferences (DPO), low-rank adapters or all weights.

Decisions that matter here:
- the training loops are TRL's (SFTTrainer, DPOTrainer) and the adapters PEFT's; this module adds the data's form
  (tokens are made by `nip_ray.serving.training_data`), the folder, and isolation: no report to any service, nothing in
  $HOME, no network;
- the result is one folder that can be served: with all weights, or (lora, unless merged models are requested) with the
  adapters alone and the name of their base's folder. It is written aside and renamed, so it appears atomically;
- `full` learns in single precision, since AdamW's small steps are lost in bfloat16; on a GPU the forward pass is in
  bfloat16;
- the same base, data, hyper-parameters and seed give the same model on the same kind of machine with as many threads.
  The trainers seed the global generators of their process, so fine-tuning has a process of its own
  (`nip_ray.serving.host`);
- after every step one function is queried whether to stop and another receives the loss, so that the caller may keep
  both on disk.
"""

import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

from nip_ray.errors import TrainingError, UserError
from nip_ray.seeding import stable_seed
from nip_ray.serving.chat_format import ChatFormat, load_format
from nip_ray.serving.compat import preference_trainer
from nip_ray.serving.distributed import train_on_workers
from nip_ray.serving.extras import check_quantized, local_llm
from nip_ray.serving.fine_tuning_job import Cancelled, FineTuneSpec, OnStep, Recipe, ShouldStop, Trained
from nip_ray.serving.model_folder import context_of, learning_dtype, load_model, lora_config, name_base, save_model
from nip_ray.serving.training_data import parse_examples, preference_rows, supervised_rows
from nip_ray.settings.providers import LocalProvider
from nip_ray.storage.files import put_in_place

LEARNING_RATE = {"lora": 1e-4, "full": 1e-3}


def recipe(spec: FineTuneSpec, provider: LocalProvider) -> Recipe:
    """A job's hyper-parameters, with local defaults for missing ones; multipliers are of the default learning rate."""
    rate = spec.learning_rate or LEARNING_RATE[provider.method] * (spec.learning_rate_multiplier or 1.0)
    return Recipe(
        method=spec.method,
        seed=spec.seed,
        num_epochs=spec.num_epochs or 3,
        batch_size=spec.batch_size or 8,
        learning_rate=rate,
        beta=spec.beta or 0.1,
        nll_coefficient=spec.nll_coefficient,
        provider=provider,
    )


def fine_tune(
    base_dir: Path,
    data: bytes,
    out_dir: Path,
    recipe: Recipe,
    checkpoints: Path | None = None,
    on_step: OnStep = lambda step, loss: None,
    should_stop: ShouldStop = lambda: False,
) -> Trained:
    """Learn `data` (JSON lines in the OpenAI form), from the model in `base_dir`; the new model's folder is `out_dir`.

    checkpoints: a folder for the weights after each epoch (None: not kept). on_step: called with each step (from 1) and
    its loss. With more than one worker both functions are copied to the workers. Raises UserError for unusable data or
    an unusable base, Cancelled if `should_stop` returns True, TrainingError on failure.
    """
    parse_examples(data, recipe.method)
    how = recipe.provider
    if recipe.batch_size % (how.num_training_workers * how.gradient_accumulation_steps):
        parts = f"{how.num_training_workers} workers x {how.gradient_accumulation_steps} parts"
        raise UserError(
            f"batch_size: {recipe.batch_size} examples cannot be shared out evenly over {parts}; change one of them"
        )
    check_quantized(how.quantize_base or how.optimizer == "adamw_8bit")
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.tmp-", dir=out_dir.parent))
    try:
        if how.num_training_workers > 1:
            trained = train_on_workers(train, base_dir, data, aside, recipe, checkpoints, on_step, should_stop)
        else:
            trained = train(base_dir, data, aside / "model", recipe, checkpoints, on_step, should_stop)
        if how.method == "lora" and not how.save_merged:
            name_base(aside / "model", out_dir, base_dir, learning_dtype(how, _has_gpu()))
        shutil.rmtree(out_dir, ignore_errors=True)
        put_in_place(aside / "model", out_dir)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return trained


def train(
    base_dir: Path,
    data: bytes,
    target: Path,
    recipe: Recipe,
    checkpoints: Path | None,
    on_step: OnStep,
    should_stop: ShouldStop,
) -> Trained:
    """Train, in one process or as one of several workers; the first worker writes the model to `target`."""
    transformers, how = local_llm("transformers"), recipe.provider
    transformers.set_seed(stable_seed(recipe.seed, "fine-tune") % 2**32)
    model = load_model(base_dir, learning_dtype(how, _has_gpu()), **_quantization(recipe))
    chat = load_format(base_dir, context_of(model.config, how.max_length))
    watch = _watcher(on_step, should_stop)
    kept = target.with_name("trainer") if checkpoints is None else checkpoints
    trainer = _trainer(model, chat, data, recipe, kept, watch)
    trainer.remove_callback(transformers.PrinterCallback)  # it prints every step to stdout
    trainer.train()
    if watch.cancelled:
        raise Cancelled
    if watch.loss is not None and not math.isfinite(watch.loss):
        raise TrainingError("fine-tuning broke off: the loss is not a number; lower the learning rate")
    if trainer.is_world_process_zero():
        for form in kept.rglob("README.md"):  # templates for a hub, with this machine's paths
            form.unlink()
        save_model(trainer.accelerator.unwrap_model(trainer.model), chat.tokenizer, target, how.save_merged)
    return Trained(trainer.state.global_step, watch.tokens(trainer) * recipe.num_epochs, watch.loss)


def _trainer(model: Any, chat: ChatFormat, data: bytes, recipe: Recipe, folder: Path, watch: Any) -> Any:
    """TRL's trainer for the recipe, over our tokens."""
    datasets, trl = local_llm("datasets"), local_llm("trl")
    examples = parse_examples(data, recipe.method)
    adapters = None if recipe.provider.method == "full" else lora_config(recipe.provider.lora_rank)
    common = {"model": model, "processing_class": chat.tokenizer, "callbacks": [watch], "peft_config": adapters}
    if recipe.method == "supervised":
        rows = datasets.Dataset.from_list(supervised_rows(examples, chat))
        return trl.SFTTrainer(args=trl.SFTConfig(**_arguments(recipe, folder)), train_dataset=rows, **common)
    rows = datasets.Dataset.from_list(preference_rows(examples, chat))
    both = (
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, recipe.nll_coefficient]}
        if recipe.nll_coefficient
        else {}
    )
    arguments = trl.DPOConfig(**_arguments(recipe, folder), beta=recipe.beta, **both)
    return preference_trainer(trl.DPOTrainer)(args=arguments, train_dataset=rows, **common)


def _arguments(recipe: Recipe, folder: Path) -> dict[str, Any]:
    how, gpu, options = recipe.provider, _has_gpu(), local_llm("transformers").TrainingArguments.__dataclass_fields__
    newer = "activation_checkpointing"  # versions of transformers differ, and those that have it warn of the older name
    return {
        "output_dir": str(folder),
        "num_train_epochs": recipe.num_epochs,
        "per_device_train_batch_size": recipe.batch_size
        // (how.num_training_workers * how.gradient_accumulation_steps),
        "gradient_accumulation_steps": how.gradient_accumulation_steps,
        "optim": "adamw_bnb_8bit" if how.optimizer == "adamw_8bit" else "adamw_torch",
        "learning_rate": recipe.learning_rate,
        "lr_scheduler_type": "linear",
        "max_length": None,
        "seed": stable_seed(recipe.seed, "fine-tune", "order") % 2**32,
        "save_strategy": "epoch",
        "save_only_model": True,
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not gpu,
        "bf16": gpu,
        newer if newer in options else "gradient_checkpointing": gpu
        if how.gradient_checkpointing is None
        else how.gradient_checkpointing,
        "dataloader_pin_memory": gpu,
    }


def _quantization(recipe: Recipe) -> dict[str, Any]:
    """Four bits a weight (NF4, its constants quantized too: Dettmers et al., 2023)."""
    if not recipe.provider.quantize_base:
        return {}
    kind = local_llm("transformers").BitsAndBytesConfig
    how = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"}
    return {"quantization_config": kind(load_in_4bit=True, **how), "device_map": {"": 0}}


def _watcher(on_step: OnStep, should_stop: ShouldStop) -> Any:
    """Callback passing on losses and checking whether to stop; made on first use, since transformers is an extra."""
    transformers = local_llm("transformers")

    class Watch(transformers.TrainerCallback):
        cancelled, loss = False, None

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if should_stop():
                self.cancelled = control.should_training_stop = True

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
        ) -> None:
            if logs and "loss" in logs:
                self.loss = float(logs["loss"])
                if state.is_world_process_zero:
                    on_step(state.global_step, self.loss)

        def tokens(self, trainer: Any) -> int:
            columns = ("input_ids", "prompt_ids", "chosen_ids", "rejected_ids")
            return sum(len(row[column]) for row in trainer.train_dataset for column in columns if column in row)

    return Watch()


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
