"""A run in a simulated world, by a seed: processes that live and die until the run is over.

Decisions that matter here:
- what runs is the code of `nip-ray train` and `nip-ray resume` (`variants`); simulated are time, tasks, disk, network
  and provider;
- the seed draws a plan: for each life what happens at which operation of the disk, or at which await; which faults the
  provider has; how clocks jump. Where a life may be struck is known from an undisturbed run (`Reference`), and kinds of
  places are drawn evenly: what is rare is struck as often as what happens all the time;
- what only disturbed runs come to (the way back after a crash, a job that is cancelled) is no place of the undisturbed
  one: in some worlds each such place is struck by the same chance, however often it is come to;
- after the lives of the plan come calm ones, in which nothing goes wrong any more: there the run has to end, and as the
  undisturbed did;
- a process may also end by itself, with an error of ours and only where something was done to it that it cannot mend.
  Then the operator does what the error asks for, and resumes.
"""

import asyncio
import fcntl
import gc
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import openai

from nip_ray.errors import TrainingError, UserError
from nip_ray.text.costs.budget import Limiter
from nip_ray.text.costs.prices import BudgetExhausted
from tests.simulation import clock, disk, networks, service, variants
from tests.simulation.clock import Clock, Gone, Violation, VirtualLoop
from tests.simulation.disk import ACTIONS, Disk
from tests.simulation.service import FAULTS, Agenda, Provider
from tests.simulation.variants import ORDERS, VARIANTS, memory
from tests.simulation.witness import PICO, Witness
from tests.text import cooperation
from tests.text.provider_service import API_KEY, Options

FIRST_PID = 1 << 22
"""More than any process of this machine has."""
SURELY = 1
"""In this cycle through the places a world is calm but for the one it aims at."""
CALM_LIVES = 6


@dataclass(frozen=True)
class Strike:
    """Something happens to a process at the `number`-th time (from 1) that it comes to a place. place: (operation, kind
    of file), or ("await", line of code), or ("sent", kind of request). power: the machine goes with it.
    """

    place: tuple[str, str]
    action: str
    number: int
    power: bool = False


@dataclass(frozen=True)
class Life:
    """What happens to one process. jumps: (step, seconds) by which the wall clock jumps. pause_s: until the next
    process. beside: another process, which was cut off and lives, has the run's lock. damage: how many files are
    damaged before it (of networks). late: the chance of each place that no undisturbed run comes to. fills: a disk
    without space has none until the process ends.
    """

    strikes: tuple[Strike, ...] = ()
    lies: bool = False
    jumps: tuple[tuple[int, float], ...] = ()
    pause_s: float = 10.0
    beside: bool = False
    damage: int = 0
    late: float = 0.0
    fills: bool = False


@dataclass(frozen=True)
class Plan:
    """What a seed stands for. forgets_keys: the provider bills every arrival of a chat. one_pid: all processes have the
    same id, as in containers.
    """

    seed: int
    variant: str
    lives: tuple[Life, ...] = ()
    chances: dict[str, float] = field(default_factory=dict)
    budget: float | None = None
    forgets_keys: bool = False
    one_pid: bool = False


@dataclass
class Reference:
    """An undisturbed run. jobs: how many it makes. places: how often a process comes to each place. usd: what it costs.
    chats: what it asks. enough: a budget in picodollars that suffices for all of it.
    """

    outcome: dict[str, Any]
    jobs: int
    places: Counter[tuple[str, str]]
    usd: float
    chats: dict[str, str]
    enough: int

    def points(self) -> list[tuple[tuple[str, str], str]]:
        """All that can happen: (place, action)."""
        return [(place, action) for place in sorted(self.places) for action in actions(place)]


def actions(place: tuple[str, str]) -> list[str]:
    """What can happen at a place."""
    found = {"await": ("before",), "sent": ("before", "after")}.get(place[0]) or ACTIONS[place[0]]
    return [action for action in found if action != "short" or place[1].endswith("jsonl")]


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    dice = random.Random(f"plan {seed}")
    variant = list(VARIANTS)[seed % len(VARIANTS)]
    known = reference(variant)
    points = [point for point in known.points() if point[0][0] not in ("sent", "read")]
    requests, reads = ([point for point in known.points() if point[0][0] == kind] for kind in ("sent", "read"))
    cycle, turn = divmod(seed // len(VARIANTS), len(points))
    aimed = points[turn]  # so that each has its turn
    files, awaits = ([point for point in points if (point[0][0] == "await") == other] for other in (False, True))
    lies = dice.random() < 0.1

    def life(number: int) -> Life:
        strikes = []
        chosen = [
            dice.choice(files if dice.random() < 0.7 or not awaits else awaits)
            for _ in range(dice.choice((0, 1, 1, 1, 2, 3)))
        ]
        for place, action in [aimed] if number == 0 else chosen:
            times = 1 if dice.random() < 0.4 else dice.randint(1, known.places[place])
            strikes.append(Strike(place, action, times, dice.random() < 0.5))
        jumps = [
            (dice.randint(1, 600), dice.choice((-1, 1)) * dice.choice((30.0, 3600.0, 1e6)))
            for _ in range(dice.choice((0, 0, 0, 1, 2)))
        ]
        damaged = dice.choice((0, 0, 1, 2, 3)) if variant == "networks" and number > 0 else 0
        pause_s = dice.choice((0.0, 1.0, 30.0, 4000.0, 1e5))
        return Life(
            tuple(strikes),
            lies and dice.random() < 0.7,
            tuple(jumps),
            pause_s,
            number > 0 and dice.random() < 0.05,
            damaged,
        )

    chances = (
        {}
        if lies or dice.random() < 0.25
        else {name: dice.choice((0.02, 0.1, 0.4)) for name in FAULTS if dice.random() < 0.35}
    )
    for rare in ("key expired", "job fails", "job is cancelled"):
        if rare in chances:
            chances[rare] = min(chances[rare], 0.1)
    budget = known.usd * dice.uniform(1.0, 4.0) if dice.random() < 0.2 and known.usd else None
    lives = tuple(life(number) for number in range(dice.choice((1, 1, 2, 3, 4))))
    if requests and dice.random() < 0.1:
        place, action = requests[seed // len(VARIANTS) % len(requests)]
        struck = Strike(place, action, dice.randint(1, known.places[place]), dice.random() < 0.5)
        lives = (replace(lives[0], strikes=(struck,)), *lives[1:])
    if forgets_keys := dice.random() < 0.3:
        chances.pop("twice", None)  # nobody can know of that bill
    more = random.Random(f"more {seed}")
    if more.random() < 0.1:
        place, action = reads[seed // len(VARIANTS) % len(reads)]
        lives = (
            replace(lives[0], strikes=(*lives[0].strikes, Strike(place, action, more.randint(1, known.places[place])))),
            *lives[1:],
        )
        if seed // len(VARIANTS) // len(reads) % 2:
            aimed, cycle = (place, action), SURELY
    late, fills = more.choice((0.0, 0.1, 0.5)), more.random() < 0.5
    lives = tuple(replace(life, late=late, fills=fills) for life in lives)
    if cycle == SURELY:  # nothing comes before it
        place, action = aimed
        lives = (replace(lives[0], strikes=(Strike(place, action, 1, dice.random() < 0.5),), late=0.0), *lives[1:])
        chances, budget = {}, None
    return Plan(seed, variant, lives, chances, budget, forgets_keys, one_pid=more.random() < 0.3)


class World:
    """One simulated world below `folder`. told: takes a line for everything that happens."""

    def __init__(self, plan: Plan, folder: Path, told: Any = None) -> None:
        self.plan, self.folder, self.told = plan, folder, told
        self.dice = random.Random(f"world {plan.seed}")
        self.clock = Clock()
        self.agenda = Agenda(self.clock)
        (folder / "disk").mkdir(parents=True)
        self.run = folder / "disk" / "run"
        self.disk = Disk(folder / "disk", self.dice, self._fault)
        options = Options(
            roles=cooperation.roles(), situation="tests.text.cooperation:situation", prices=cooperation.PRICES,
            job_s=90.0, fault_seed=plan.seed,
            faults={old: plan.chances[new] for new, old in _FATES.items() if new in plan.chances},
        )  # fmt: skip
        (folder / "provider").mkdir()
        self.provider = Provider(folder / "provider", options, self.clock, self.agenda, self.dice, dict(plan.chances))
        self.provider.sent, self.provider.arrived, self.provider.dead = self._sent, self._arrived, lambda: self.dead
        self.provider.die = self.disk.die
        self.provider.delivered, self.provider.forgets_keys = self._delivered, plan.forgets_keys
        self.witness: Any = self._witness()
        self.disk.heard = self._heard
        self.violation: str | None = None
        self.places: Counter[tuple[str, str]] = Counter()
        self.struck: Counter[tuple[tuple[str, str], str]] = Counter()
        self.happened: Counter[str] = Counter()
        self.budget, self.damaged, self.hurt = plan.budget, False, False
        self._life, self._number, self._steps = Life(), 0, 0
        self._awaited, self._power, self._excused, self._beside, self._full = False, False, False, False, False
        self._strikes: list[Strike] = []
        self._struck, self._spent = False, None

    def _witness(self) -> Any:
        if self.plan.variant == "networks":
            return networks.Witness(self.run, self.disk, self.violate)
        iterations, algorithm = VARIANTS[self.plan.variant]["iterations"], VARIANTS[self.plan.variant]["algorithm"]
        order = ORDERS.get(self.plan.variant, ORDERS["plain"])
        last = order if algorithm.get("fine_tune_after_last") else ["sample", "log", "test"]
        return Witness(self.run, self.disk, self.violate, (order, last), iterations, self.billed)

    # ----------------------------------------------------------------------------------------------------------- what
    # happens

    @property
    def dead(self) -> bool:
        """Whether the process is, or need not go on since something was seen that must not be."""
        return self.disk.dead or self.violation is not None

    def violate(self, what: str) -> None:
        """Note the first thing that must never be seen."""
        if self.violation is None:
            self.violation = what
            self._say(f"VIOLATION {what}")

    def _say(self, what: str) -> None:
        if self.told is not None:
            self.told(f"{self.clock.now - 1000:12.3f}  life {self._number}  {what}")

    def _heard(self, path: str, what: str) -> None:
        Disk.current = None  # the witness reads what is there
        self.witness.written(path, what)
        Disk.current = self.disk

    def _fault(self, operation: str, kind: str) -> str | None:
        return self._come_to((operation, kind))

    def _come_to(self, place: tuple[str, str]) -> str | None:
        self.places[place] += 1
        self._here[place] += 1
        if self.told is not None:
            self._say(" ".join(place))
        if self._full and place[0] in ("create", "write", "mkdir"):
            return "no space"
        late = self._life.late if self._here[place] == 1 else 0.0
        if late and place not in reference(self.plan.variant).places and self.dice.random() < late:
            action, power = self.dice.choice(actions(place)), self.dice.random() < 0.5
            self._strikes.append(Strike(place, action, self.dice.choice((1, 1, 2, 5)), power))
        for strike in self._strikes:
            if strike.place == place and strike.number == self._here[place]:
                self.struck[place, strike.action] += 1
                self._say(f"STRUCK {strike.action}{', and the power goes' if strike.power else ''}")
                self._power, self._struck = strike.power, True
                self._excused |= strike.action in ("no space", "input/output error", "short")
                self._full |= strike.action == "no space" and self._life.fills
                if place[0] == "read":
                    self.witness.unreadable(place[1])
                return strike.action
        return None

    def _step(self, task: asyncio.Task[Any]) -> None:
        self._steps += 1
        for at, seconds in self._life.jumps:
            if at == self._steps:
                self.clock.skew += seconds
                self.happened["clock jumps"] += 1
                self._say(f"the clock jumps by {seconds:g} s")
        if self._awaited and self._come_to(("await", _line_of(task))) is not None:
            self.disk.dead = True

    def _arrived(self, route: str, request: Any) -> None:
        if route == "create_job":
            key = str((json.loads(request.body).get("metadata") or {}).get("nip_key", ""))
            self._say(f"arrives: a creation of {key[:8]}")
            if key:
                self.witness.creation(key, self.provider.doubled[key])
        self.witness.bill(self.billed(), self.budget)

    def _sent(self, route: str, request: Any) -> str | None:
        self._say(f"sent: {route} {request.headers.get('Idempotency-Key', '')[:8]}")
        if route == "chat":
            undisturbed = None if self.plan.seed < 0 else reference(self.plan.variant).chats
            self.witness.chat(request.headers.get("Idempotency-Key", ""), request.body, undisturbed)
        return self._come_to(("sent", route))

    def _delivered(self, route: str, request: Any) -> None:
        if route == "chat":
            self.witness.delivered(request.headers.get("Idempotency-Key", ""), self.clock.now)

    def billed(self) -> int:
        """Picodollars that the provider has charged."""
        return self.provider.billed

    # ----------------------------------------------------------------------------------------------------------- lives

    def play(self) -> None:
        """The lives of the plan, and calm ones until the run is over. Raises Violation."""
        if any(self._live(life) for life in self.plan.lives) or self._calm():
            self._compare()

    def _calm(self) -> bool:
        """Whether the run came to its end; else the disk that lied has cost what is needed for that, and one line said
        so."""
        self.provider.chances.clear()
        self.provider.faults.chances.clear()
        for _ in range(CALM_LIVES):
            if self.damaged:
                return False
            if self._live(Life(pause_s=0.0), calm=True):
                return True
        raise Violation(f"not over after {CALM_LIVES} lives in which nothing went wrong")

    def _live(self, life: Life, calm: bool = False) -> bool:
        """One process; whether the run is over."""
        self._life, self._here, self._steps = life, Counter(), 0
        self._number += 1
        self._power = self._excused = self._full = self._struck = False
        self._strikes = list(life.strikes)
        if life.damage and self.run.is_dir():
            for told in networks.damage(self.run, self.dice, life.damage):
                self._say(f"DAMAGED {told}")
                self.happened[f"damage: {told.partition(':')[0]}"] += 1
                self.hurt = True
        self.witness.begins()
        self._spent = self.witness.spent() if self.budget is not None and self.witness.honest else None
        self._awaited = (
            bool(life.late) or any(strike.place[0] == "await" for strike in life.strikes) or self.plan.seed < 0
        )
        self.disk.dead, self.disk.lies = False, life.lies
        self.witness.honest &= not life.lies
        self.happened["fsync lies"] += life.lies
        before = Counter(self.provider.seen)
        with self._process(), self._other(life):
            over = self._work(calm, before)
        self.witness.ended(self.clock.now, could_write=not self._excused)
        if self.violation is not None:
            raise Violation(self.violation)
        if self.disk.dead:
            self.happened["power failure" if self._power else "kill"] += 1
            if self._power:
                self._say("the power is gone")
                self.disk.dead = False
                self.disk.power_failure()
                self.witness.power_failed()
                self.witness.complete = False
        self.clock.now += life.pause_s
        self.agenda.run()
        if self.violation is not None:
            raise Violation(self.violation)
        return over

    def _work(self, calm: bool, before: Counter[str]) -> bool:
        try:
            variants.run(self.plan.variant, self.budget, self.run)
        except Gone:
            return False
        except (UserError, TrainingError) as error:
            if not self.dead:
                self._stopped(error, calm, before)
            return False
        except Exception as error:
            if not self.dead:
                if self.told is not None:
                    raise
                self.violate(f"{type(error).__name__}: {error}")
            return False
        if self.dead:
            return False
        if self._beside:
            self.violate("it worked on a run that another process had locked")
        self._say("the run is over")
        return True

    def _stopped(self, error: Exception, calm: bool, before: Counter[str]) -> None:
        """A process ended by itself. The operator does what its error asks for."""
        self._say(f"stopped: {type(error).__name__}: {error}")
        self.happened[type(error).__name__] += 1
        if self._beside and "is being written by" in str(error):
            return
        if isinstance(error, BudgetExhausted):
            assert self.budget is not None
            spent = None if self._struck or self.provider.seen != before or self.provider.doubled else self._spent
            if spent is not None and self.budget * PICO >= spent + reference(self.plan.variant).enough:
                self.violate(
                    f"a budget of {self.budget} is said to be used up, when at most {spent / PICO} was spent: {error}"
                )
            self.budget *= 2
            if self.budget > 50 * reference(self.plan.variant).usd:
                self.violate(f"a budget of {self.budget / 2} is said to be used up")
        elif isinstance(error, TrainingError):
            if calm and "fine-tuning job" not in str(error):
                self.violate(f"in a calm life: {error}")
        elif self.provider.seen["key expired"] > before["key expired"]:
            pass  # a new key
        elif not self.witness.honest or (self.hurt and str(self.run) in str(error)):
            self.happened["told of damage"] += 1
            self.damaged = True
            self.witness.stopped(str(error))
        elif not self._excused or ("damaged" in str(error) and "cannot be read" not in str(error)):
            self.violate(f"{type(error).__name__} without a reason: {error}")

    def _compare(self) -> None:
        self.agenda_to_the_end()
        found, expected = self.witness.outcome(), reference(self.plan.variant).outcome
        jobs = list(self.provider.state.jobs.values())
        if running := [job.id for job in jobs if job.now() not in ("succeeded", "failed", "cancelled")]:
            raise Violation(f"still running when all is over: {running}")
        made = sum(job.status == "succeeded" for job in jobs)
        if self.witness.honest and not 0 <= made - reference(self.plan.variant).jobs <= sum(
            self.provider.doubled.values()
        ):
            raise Violation(f"{made} models were made instead of {reference(self.plan.variant).jobs}")
        names = sorted({*found, *expected})
        if self.hurt or not self.witness.honest:  # files that nobody reads again are lost without a word; figures never
            names = ["rows", "evaluation", "weights"]
            told = [re.search(r"rows of iterations ([\d, ]+)", text) for text in getattr(self.witness, "warned", ())]
            marked = [int(number) for match in told if match for number in match[1].split(", ")]
            marked += [row["iteration"] for row in found["rows"] if row.get("missing")]
            found["rows"] = [row for row in found["rows"] if row["iteration"] not in marked]
            expected = {**expected, "rows": [row for row in expected["rows"] if row["iteration"] not in marked]}
        if any(place[0] == "unlink" and action == "input/output error" for place, action in self.struck):
            names = [name for name in names if name != "left over"]
        for name in names:
            if found.get(name) != expected.get(name):
                raise Violation(
                    f"{name} is not as in the undisturbed run: {str(found.get(name))[:400]} instead of"
                    f" {str(expected.get(name))[:400]}"
                )
        if self.violation is not None:
            raise Violation(self.violation)

    def agenda_to_the_end(self) -> None:
        """Let everything happen that is still on its way."""
        while (due := self.agenda.next()) is not None:
            self.clock.now = max(self.clock.now, due)
            self.agenda.run()

    @contextmanager
    def _other(self, life: Life) -> Iterator[None]:
        path = self.run / ".lock"
        self._beside = life.beside and path.is_file()
        if not self._beside:
            yield
            return
        self._say("another process has the lock")
        with disk._open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _process(self) -> Iterator[None]:
        loops: list[VirtualLoop] = []

        def loop() -> VirtualLoop:
            loops.append(
                VirtualLoop(
                    self.clock,
                    self.dice,
                    self._step,
                    lambda: self.dead,
                    self.agenda.next,
                    self.agenda.run,
                    self.violate,
                )
            )
            return loops[-1]

        policy = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(clock.Policy(loop))
        _world[:] = [self]
        Disk.current = self.disk
        try:
            yield
        finally:
            was = self.disk.dead
            self.disk.dead = True  # whoever comes to an end now does not change anything any more
            for each in loops:
                each.bury()
            disk.abandon()
            gc.collect(0)
            self.disk.dead = was
            Disk.current = None
            asyncio.set_event_loop_policy(policy)


_FATES = {"job fails": "job_failed", "job is cancelled": "job_cancelled", "job takes long": "job_slow"}
_world: list[World] = []


def _line_of(task: asyncio.Task[Any]) -> str:
    """Where in our code a task is waiting."""
    at, found = task.get_coro(), ""
    while at is not None:
        frame = getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None) or getattr(at, "ag_frame", None)
        if frame is not None and "/nip_ray/" in frame.f_code.co_filename:
            found = f"{frame.f_code.co_filename.rpartition('/nip_ray/')[2]} {frame.f_code.co_qualname}"
        at = getattr(at, "cr_await", None) or getattr(at, "gi_yieldfrom", None) or getattr(at, "ag_await", None)
    return found


@cache
def reference(variant: str) -> Reference:
    """The undisturbed run of a variant."""
    with tempfile.TemporaryDirectory(prefix="nip-simulated-", dir=memory()) as folder:
        world = World(Plan(-1, variant), Path(folder))
        if not world._live(Life()):
            raise RuntimeError(f"the undisturbed run of {variant} does not come to an end")
        jobs, chats, aside = len(world.provider.state.jobs), world.witness.chats, world.witness.aside()
        return Reference(
            world.witness.outcome(), jobs, world.places, world.billed() / PICO, chats, world.billed() + aside
        )


def install(*, quiet: bool = True) -> None:
    """Make this process one that lives in simulated worlds, for good."""
    clock.silence()
    warnings.simplefilter("ignore")
    tempfile.tempdir = memory()
    os.environ.update(OPENAI_API_KEY=API_KEY, OPENAI_BASE_URL="http://provider.test/v1")
    wait = Clock()
    own = lambda: _world[0].clock if _world else wait  # noqa: E731
    time.time, time.monotonic, time.perf_counter = (lambda: own().wall()), (lambda: own().now), (lambda: own().now)
    time.sleep = lambda seconds: own().sleep(float(seconds))
    Limiter.__init__.__defaults__ = (None, None, time.monotonic, asyncio.sleep)  # which had taken the machine's clock
    os.getpid = lambda: FIRST_PID + (_world[0]._number if _world and not _world[0].plan.one_pid else 0)
    uuid.uuid4 = lambda: uuid.UUID(int=_world[0].dice.getrandbits(128), version=4)
    openai.DefaultAioHttpClient = lambda **options: service.http_client(_world[0].provider, **options)
    variants.install()
    disk.install()
    gc.freeze()
    if quiet:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def simulate(seed: int, told: Any = None) -> World:
    """Play the world of a seed. Raises Violation."""
    plan = draw(seed)
    folder = Path(tempfile.mkdtemp(prefix="nip-simulated-", dir=memory()))
    try:
        world = World(plan, folder, told)
        if told is not None:
            told(str(plan))
        world.play()
        return world
    finally:
        shutil.rmtree(folder, ignore_errors=True)
