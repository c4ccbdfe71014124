"""What goes wrong at the test provider, and when: a function of the seed and of what was asked, not of the order of
arrival.

Every fault has a probability, and no request meets more than `limit` faults, so that a client that continues gets
there.

    late            done and billed, but the answer comes `late_s` late
    drop_before     the connection is cut before anything is done
    drop_after      done and billed, then the connection is cut
    duplicate       what is posted is done twice, as by a proxy that delivers twice
    storm           429, with retry-after-ms and retry-after in turns
    server_error    500, 502 or 503, nothing is done
    unsure          500, but it is done
    registered_late a creation is cut off at once, and the job appears `registered_after_s` later
    refusal         a chat is refused as the content policy wants it; the same call always
    job_failed, job_cancelled, job_slow    how a job ends, or that it takes `slow_factor` times as long; the same one
"""

from collections import Counter
from dataclasses import dataclass, field

from nip_ray.seeding import stable_seed

OF_REQUESTS = ("late", "drop_before", "drop_after", "duplicate", "storm", "server_error", "unsure", "registered_late")
OF_THINGS = ("refusal", "job_failed", "job_cancelled", "job_slow")
ONLY_POSTS = ("duplicate", "unsure")


@dataclass
class Faults:
    """Probabilities by name, and how bad each is."""

    seed: int = 0
    chances: dict[str, float] = field(default_factory=dict)
    limit: int = 3
    late_s: float = 2.0
    registered_after_s: float = 0.2
    retry_after_s: float = 0.05
    slow_factor: float = 10.0
    met: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)

    def of_request(self, method: str, what: str, creates_job: bool) -> str | None:
        """The fault that this arrival of a request meets. what: tells the request from all others; a repeat has the
        same."""
        number = self.asked[what]
        self.asked[what] += 1
        if self.met[what] >= self.limit:
            return None
        for name in OF_REQUESTS:
            if (name in ONLY_POSTS and method != "POST") or (name == "registered_late" and not creates_job):
                continue
            if self._hits(name, what, number):
                self.met[what] += 1
                return name
        return None

    def of_thing(self, name: str, what: str) -> bool:
        """Whether a call or a job meets a fault that stays with it."""
        return self._hits(name, what, 0)

    def _hits(self, name: str, what: str, number: int) -> bool:
        return stable_seed(self.seed, "fault", name, what, number) / 2**63 < self.chances.get(name, 0.0)


def check_names(chances: dict[str, float]) -> None:
    """Raises ValueError for a fault that does not exist."""
    unknown = set(chances) - {*OF_REQUESTS, *OF_THINGS}
    if unknown:
        raise ValueError(
            f"no such faults: {', '.join(sorted(unknown))}; there are {', '.join((*OF_REQUESTS, *OF_THINGS))}"
        )
