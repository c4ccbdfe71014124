"""Plugins that break a run on purpose, in one kind of process, at one moment.

Decisions that matter here:
- they are what a user's own plugin could be: a scenario that breaks when it is asked what an agent sees. Nothing of
  nip_ray is replaced, and the processes that break are Ray's;
- each leaves the file that the test looks for, so that no test passes because nothing broke.
"""

from pathlib import Path

_TEXT = '''
import fcntl, os, signal, subprocess, time
from pathlib import Path

from nip_ray.scenarios.message_game.scenario import MessageGame, build_message_game
from nip_ray.scenarios.registry import SCENARIOS

STRUCK, PROCESS, MOMENT = Path({struck!r}), {process!r}, {moment!r}


def title():
    """ray::ProtocolEnvRunner..., ray::_WrappedExecutable..., or that of another program."""
    return Path("/proc/self/cmdline").read_bytes().decode(errors="replace")


def strike():
    with STRUCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several may strike at the same time
        before = file.seek(0, 2)
        file.write("x")
    {deed}


class Broken(MessageGame):
    asked = 0

    def observe(self, agent, id_N, said, round_N, seed_N):
        if PROCESS in title() and agent == "verifier" and len(id_N) > 1 and bool((round_N == 0).any()):
            self.asked += 1  # once for every share that is played, or for every update
            if self.asked >= MOMENT:
                strike()
        return super().observe(agent, id_N, said, round_N, seed_N)


def build(protocol, settings):
    made = build_message_game(protocol, settings)
    if MOMENT == 0 and PROCESS in title():
        strike()
    made.__class__ = Broken
    return made


SCENARIOS["message_game"] = build
'''

RUNNER, LEARNER, TRIAL = "ray::ProtocolEnvRunner", "ray::_WrappedExecutable", "ray::ExperimentTrainable"
RAISES = "raise ValueError('the dice are\\n loaded')"
DIES = "os.kill(os.getpid(), signal.SIGKILL)"
HANGS_ONCE = "time.sleep(0 if before else 600)"
HANGS = "time.sleep(600)"
STOPS_ONCE = "before or os.kill(os.getpid(), signal.SIGSTOP)"
STOPS_HALF_A_MINUTE = (
    """before or subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 30; kill -CONT {os.getpid()}"])"""
)


def damage_and_die(checkpoints: str) -> str:
    """Once, when there are two checkpoints in that folder (a pattern, from the plugin's own folder): damage the newer
    one, and die."""
    return f"""
    found = sorted(path for path in STRUCK.parent.glob({checkpoints + "/0*"!r}))
    done = STRUCK.with_name("damaged")
    if len(found) == 2 and not done.exists():
        (found[-1] / "training.pt").write_bytes(b"torn")
        done.write_text(found[-1].name)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def write_plugin(folder: Path, process: str, moment: int, deed: str) -> tuple[Path, Path]:
    """A plugin in `folder` that does `deed` in every process of that kind: when it is built (moment 0), or from its so
    manieth share or update on. Returns it, and the file that has one letter for every time that it struck.
    """
    plugin, struck = folder / "broken_game.py", folder / "struck"
    plugin.write_text(_TEXT.format(struck=str(struck), process=process, moment=moment, deed=deed))
    return plugin, struck
