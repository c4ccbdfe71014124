"""`nip-ray judge` and `nip-ray serve-model`."""

from pathlib import Path
from typing import Annotated

import typer

from nip_ray.cli.common import AsJson, RunDir, app, check_run_dir, errors, number, print_json, print_table
from nip_ray.cluster.interrupts import interruptible
from nip_ray.errors import UserError
from nip_ray.storage.model_files import model_fault


@app.command()
def judge(
    run_dir: RunDir,
    judges: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Judges (default: all that fit)", show_default=False)
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A provider of the run's config (default: the verifier's)", show_default=False
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The judge's model (default: the verifier's)", show_default=False)
    ] = None,
    iteration: Annotated[
        int | None, typer.Option(metavar="N", help="Iteration (default: the last)", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print how many calls it takes and what they can cost, and stop.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Have a language model judge the agents' messages of a run."""
    with errors():
        check_run_dir(run_dir)
        from nip_ray.text.judging.judge_run import judge_run

        names = None if judges is None else [name.strip() for name in judges.split(",")]
        figures = judge_run(run_dir, names, provider=provider, model=model, iteration=iteration, dry_run=dry_run)
        if as_json:
            print_json(figures)
        else:
            print_table(["", ""], [[key, number(value)] for key, value in figures.items()])


@app.command("serve-model")
def serve_model(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port (0: a free one).", show_default=False)],
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A model: folder or GGUF file (default: a small built-in one)", show_default=False
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Folder for files, jobs and fine-tuned models.")] = Path(
        "served"
    ),
    num_gpus: Annotated[float, typer.Option(min=0, help="GPUs for answering, and as many for fine-tuning.")] = 0,
    engine: Annotated[str, typer.Option(hidden=True)] = "auto",  # accepted for scripts of earlier versions
    max_batch_size: Annotated[int, typer.Option(min=1, help="Replies generated at once.")] = 32,
    api_key_variable: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Environment variable with the key that callers must show", show_default=False
        ),
    ] = None,
) -> None:
    """Serve a local language model through an OpenAI-compatible API: chat, files, fine-tuning jobs."""
    with errors(), interruptible():
        if model is not None and (fault := model_fault(model)) is not None:
            raise UserError(f"--model {model}: {fault}")
        if engine not in ("auto", "torch"):
            raise UserError(
                f"--engine {engine}: was removed; start `vllm serve MODEL` and name its address as base_url of a"
                " provider openai"
            )
        from nip_ray.serving.app import serve_model as serve

        serve(
            model,
            port,
            host,
            num_gpus=num_gpus,
            max_batch_size=max_batch_size,
            folder=folder,
            api_key_variable=api_key_variable,
        )
