"""The program that runs the tests of one solution: each test in a fork of this interpreter, its outcome written as a line of JSON.

Standard input begins with a nonce, which begins every line that counts; the rest is JSON (`solution`, `function` or null, `tests`,
`wall_s`, `output_bytes`). A test is a text for standard input, or a list of arguments.

Decisions that matter here:
- the solution never runs in the process that reports. Its fork has neither the descriptor of the report nor the nonce;
- it does not know what is expected either: outputs leave the sandbox and are compared there;
- a fork that cannot be killed ends the harness; the tests after it run in another.
"""

import builtins
import io
import json
import os
import select
import sys
import time

NONCE = 32
SIGKILL = 9


def main():
    """Run all tests, in order."""
    nonce = bytearray(NONCE)
    os.readv(0, [nonce])
    work = b""
    while data := os.read(0, 1 << 16):
        work += data
    work = json.loads(work)
    report = os.dup(1)
    for test in work["tests"]:
        outcome, killed = run_test(work, test, nonce, report)
        line = bytes(nonce) + json.dumps(outcome).encode() + b"\n"
        while line:
            line = line[os.write(report, line) :]
        if not killed:
            return


def run_test(work, test, nonce, report):
    """`([status, exit code, output], ended)` of one test in a fork."""
    stdin, feed = os.pipe()
    output, told = os.pipe()
    child = os.fork()
    if child == 0:
        nonce[:] = bytes(NONCE)
        for handle in (report, feed, output):
            os.close(handle)
        in_fork(work, test, stdin, told)
    os.close(stdin)
    os.close(told)
    text = b"" if work["function"] else test.encode(errors="replace")
    status, collected = converse(feed, output, text, time.monotonic() + work["wall_s"], work["output_bytes"])
    os.close(output)
    code, ended = reap(child, status)
    return [status, code, collected.decode(errors="replace")], ended


def converse(feed, output, text, deadline, limit):
    """Give a fork its input, take its output until it ends. Returns (None or why it has to end, output)."""
    os.set_blocking(feed, False)
    wait, collected, given = select.poll(), bytearray(), 0
    wait.register(output, select.POLLIN)
    wait.register(feed, select.POLLOUT)
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout", collected
            for handle, _ in wait.poll(left * 1000 + 1):
                if handle == output:
                    data = os.read(output, 1 << 16)
                    if not data:
                        return None, collected
                    collected += data
                    if len(collected) > limit:
                        return "output_limit", collected[:limit]
                elif feed >= 0:
                    given, more = give(feed, text, given)
                    if not more:
                        wait.unregister(feed)
                        os.close(feed)
                        feed = -1
    finally:
        if feed >= 0:
            os.close(feed)


def give(feed, text, given):
    """Write some of the input; (how much was given, whether there is more to give)."""
    try:
        given += os.write(feed, text[given : given + 4096]) if given < len(text) else 0
    except BlockingIOError:
        return given, True
    except BrokenPipeError:
        return given, False
    return given, given < len(text)


def reap(child, status):
    """(Exit code, whether it ended). A fork that closed its output has a moment to end by itself."""
    end = time.monotonic() + (0 if status else 0.5)
    while True:
        found, code = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(code), True
        if time.monotonic() >= end:
            break
        time.sleep(0.0005)
    try:
        os.kill(child, SIGKILL)
    except PermissionError:
        return None, False
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), True


def in_fork(work, test, stdin, told):
    """Be the solution: never returns."""
    code = 1
    try:
        os.dup2(stdin, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 2)
        if work["function"]:
            os.dup2(nowhere, 1)
            answer = call(work["solution"], work["function"], test)
            while answer:
                answer = answer[os.write(told, answer) :]
        else:
            os.dup2(told, 1)
            os.close(told)
            run(work["solution"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(code & 0xFF)


def run(source):
    """The solution as a program, on fresh streams."""
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)), encoding="utf-8", errors="replace")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "wb", closefd=False)), encoding="utf-8", errors="replace")
    sys.argv = ["program.py"]
    exec(compile(source, "<solution>", "exec"), {"__name__": "__main__", "__builtins__": builtins})


def call(source, function, arguments):
    """The outcome of a call, as JSON of a pair: "value" and what it returned, or "error" and the exception's class."""
    sys.stdin = io.StringIO()
    try:
        space = {"__name__": "solution", "__builtins__": builtins}
        exec(compile(source, "<solution>", "exec"), space)
        if function not in space:
            raise NameError(function)
        value = space[function](*arguments)
    except BaseException as error:
        return json.dumps(["error", type(error).__name__]).encode()
    try:
        return json.dumps(["value", value]).encode()
    except (TypeError, ValueError, RecursionError):
        return b'["error", "NotJSON"]'


main()
