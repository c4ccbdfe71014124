"""Call one function of many candidate programs, one after another in one interpreter, each call under a limit of
processor time.

Standard input is one JSON document (`solutions`, `function`, `calls`, `per_call_s`, `start`, `value_limit`,
`memory_mb`, `file_mb`); every call's result is a line of JSON on what was standard output.

Decisions that matter here:
- candidates are mutants of our own programs: they may loop, recurse, allocate or crash, but are not malicious. They
  share the interpreter and its imported modules, not their own globals;
- time is processor time (ITIMER_PROF), so that a busy machine does not change results. The signal is raised again every
  50 ms, for a candidate that swallows the first; if no signal can interrupt it (one long operation in C, a sleep), the
  reader of the results kills it;
- the driver may be gone by then, so the kernel ends the interpreter at a limit of processor time for each candidate;
- a result is written at once, so that the reader knows which call the interpreter died in.
"""

import gc
import io
import json
import os
import resource
import signal
import site
import sys
import time

RECURSION = 1000
REPEAT_S = 0.05
ORPHAN_S = 60
"""Additional seconds of processor time of a candidate, after which the kernel kills it if its driver is gone."""


class CallTimeout(BaseException):
    """Raised in a candidate that timed out; no `except Exception` catches it."""


class Clock:
    """The limit of processor time of one call."""

    def __init__(self, seconds):
        """seconds: of each call."""
        self.seconds, self.armed = seconds, False
        signal.signal(signal.SIGPROF, self._ring)

    def _ring(self, number, frame):
        if self.armed:
            raise CallTimeout

    def limited(self, function, *arguments):
        """`(kind, value)` of a call: its return value, its exception, or a time-out."""
        try:
            try:
                self.armed = True
                signal.setitimer(signal.ITIMER_PROF, self.seconds, REPEAT_S)
                return "value", function(*arguments)
            finally:
                self.armed = False
                signal.setitimer(signal.ITIMER_PROF, 0)
        except CallTimeout:
            self.armed = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            return "timeout", None
        except BaseException as error:
            return "error", type(error).__name__


class Silence(io.TextIOBase):
    """Discards the candidates' output."""

    def writable(self):
        """Always true."""
        return True

    def write(self, text):
        """Discard `text`."""
        return len(text)


def load(source, name):
    """The function `name` of a candidate's source, which is in a module like any other: `pickle` looks it up there."""
    module = sys.modules["solution"] = type(sys)("solution")
    space = vars(module)
    exec(compile(source, "<solution>", "exec"), space)
    return space[name] if name in space else missing(name)


def missing(name):
    """A candidate without the function fails like a call of an unknown name."""
    raise NameError(name)


def encoded(kind, value, limit):
    """A result as JSON; a value that JSON cannot represent, or that is too long, is an error instead."""
    try:
        text = json.dumps([kind, value])
    except (TypeError, ValueError, RecursionError, MemoryError):
        return '["error", "NotJSON"]'
    return text if len(text) <= limit else '["error", "ValueTooLarge"]'


def run_candidate(source, name, calls, clock, write, limit):
    """Write the results of all calls of one candidate; after a time-out all remaining calls count as time-outs."""
    kind, function = clock.limited(load, source, name)
    for call in calls:
        if kind == "value":
            result = clock.limited(function, *json.loads(call))
            text = clock.limited(encoded, *result, limit)  # writing a long value takes time, too
            write(text[1] if text[0] == "value" else json.dumps(text))
            if text[0] == "timeout" or result[0] == "timeout":
                kind, function = "timeout", None
        else:
            write(json.dumps([kind, function]))


def set_limit(which, most):
    """Set a limit of the kernel, within our own."""
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main():
    """Read the work and do it from the pair `start` of candidate and call on."""
    work = json.loads(sys.stdin.buffer.read())
    set_limit(resource.RLIMIT_AS, work["memory_mb"] << 20)
    set_limit(resource.RLIMIT_FSIZE, work["file_mb"] << 20)
    set_limit(resource.RLIMIT_CORE, 1)  # one byte: then no file is written, and no core helper started
    most_s = int((len(work["calls"]) + 1) * work["per_call_s"]) + ORPHAN_S
    results = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), Silence(), Silence()
    clock = Clock(work["per_call_s"])

    def write(text):
        os.write(results, text.encode() + b"\n")

    site.setquit()  # `exit` and `quit`; a bare interpreter has none
    gc.collect()
    gc.freeze()
    first, skip = work["start"]
    os.write(results, b"\n")  # ready: from now on patience is counted by calls
    for source in work["solutions"][first:]:
        sys.setrecursionlimit(RECURSION)
        set_limit(resource.RLIMIT_CPU, int(time.process_time()) + most_s)
        run_candidate(source, work["function"], work["calls"][skip:], clock, write, work["value_limit"])
        skip = 0
        gc.collect()


main()
