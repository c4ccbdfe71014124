"""Programs in containers, by the command line of docker or podman.

Decisions that matter here:
- the command is a pure function of its arguments, so that what is asked of the engine can be read and tested without one;
- the working folder with the program and its files is mounted read-only; what the program writes goes to /tmp, which is memory;
- an engine's client that is killed does not take the container with it: at the end the container is killed by its name. That takes
  the engine's own time, which we do not wait for.
"""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time

from nip_ray.errors import UserError
from nip_ray.sandbox.folder import temporary_folder
from nip_ray.sandbox.launch import Outcome, SandboxFailure
from nip_ray.sandbox.plans import MAIN, check_names
from nip_ray.sandbox.pump import GRACE_S, Pump
from nip_ray.settings.sandbox import SandboxSettings

ENGINES = ("docker", "podman")
BOX = "/box"
ENGINE_FAILED = 125
"""The exit code by which both engines say that they could not start a container."""


def container_command(engine: str, name: str, folder: str, settings: SandboxSettings) -> list[str]:
    """The command that runs `program.py` of a folder in a container of this name."""
    memory, cpu, file_bytes = f"{settings.memory_mb}m", settings.cpu_s, settings.file_mb << 20
    return [
        engine, "run", "--rm", "--interactive", "--pull", "never", "--name", name,
        "--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65534:65534",
        "--memory", memory, "--memory-swap", memory, "--pids-limit", str(settings.processes), "--ipc", "private",
        "--ulimit", f"cpu={cpu}:{cpu + 1}", "--ulimit", f"fsize={file_bytes}", "--ulimit", "nofile=64", "--ulimit", "core=0",
        "--tmpfs", f"/tmp:rw,noexec,nosuid,nodev,size={4 * settings.file_mb + 1}m", "--volume", f"{folder}:{BOX}:ro", "--workdir", BOX,
        "--env", "HOME=/tmp", "--env", "LANG=C.UTF-8", settings.container_image, "python", "-I", "-S", "-B", f"{BOX}/{MAIN}",
    ]  # fmt: skip


def container_engine() -> str:
    """The first engine on the PATH. Raises UserError when there is none."""
    for name in ENGINES:
        if path := shutil.which(name):
            return path
    raise UserError("isolation: container needs docker or podman on the PATH, and there is none; take namespaces or auto")


def execute_in_container(
    program: str, stdin: str, settings: SandboxSettings, files: dict[str, bytes], cancelled: int | None = None
) -> Outcome:
    """Run a program in a container. Raises UserError without an engine, SandboxFailure when the engine cannot start the container."""
    engine, name = container_engine(), f"nip-sandbox-{secrets.token_hex(8)}"
    check_names(files)
    with temporary_folder() as folder, tempfile.TemporaryFile() as source:
        _write(folder, {MAIN: program.encode(errors="surrogatepass"), **files})
        source.write(stdin.encode(errors="replace"))
        source.seek(0)
        start, (end, client_end) = time.monotonic(), os.pipe()
        command = container_command(engine, name, folder, settings)
        try:
            client = subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(client_end,))
        except BaseException:
            os.close(end)
            raise
        finally:
            os.close(client_end)
        try:
            return _pumped(client, end, [engine, "kill", name], start, settings, cancelled)
        finally:
            os.close(end)


def _pumped(
    client: "subprocess.Popen[bytes]", end: int, kill: list[str], start: float, settings: SandboxSettings, cancelled: int | None
) -> Outcome:
    """Read until the client ends, or has to be ended."""
    killers: list[subprocess.Popen[bytes]] = []

    def stop() -> None:
        killers.append(subprocess.Popen(kill, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    assert client.stdout is not None
    assert client.stderr is not None
    with client.stdout, client.stderr:
        streams = (client.stdout.fileno(), client.stderr.fileno())
        pump = Pump(streams, end, start, settings.wall_s, settings.output_kb * 1000, stop)
        try:
            ended = pump.run(cancelled)
            code = _exit_code(client, GRACE_S if ended else 0.0)
            pump.drain()
        finally:
            if client.poll() is None:
                client.kill()
                client.wait()
            for killer in killers:
                _reap_later(killer)
    return _outcome(pump, code, time.monotonic() - start)


def _reap_later(killer: "subprocess.Popen[bytes]") -> None:
    """Without waiting for the engine: `subprocess` reaps those that ended meanwhile whenever it starts another process."""
    killer.poll()


def _exit_code(client: "subprocess.Popen[bytes]", patience_s: float) -> int:
    try:
        return client.wait(patience_s)
    except subprocess.TimeoutExpired:
        client.kill()
        return client.wait()


def _outcome(pump: Pump, code: int, wall_s: float) -> Outcome:
    if code == ENGINE_FAILED and pump.verdict is None:
        raise SandboxFailure(f"the container did not start: {pump.stderr.decode(errors='replace').strip()[-500:]}")
    code = 128 - code if code > 128 else code  # engines give signals as shells do
    outcome = Outcome("ok", code, pump.stdout, pump.stderr, wall_s, ("container",))
    if pump.verdict is not None:
        outcome.status = pump.verdict
    elif code == -signal.SIGXCPU:
        outcome.status = "timeout"
    elif code:
        outcome.status = "killed" if code < 0 else "error"
    return outcome


def _write(folder: str, files: dict[str, bytes]) -> None:
    os.chmod(folder, 0o755)  # the container's user is a stranger here
    for name, content in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
