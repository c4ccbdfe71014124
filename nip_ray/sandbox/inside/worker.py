"""Run programs for one driver, one after another: each in a folder and a session of its own, under limits, until it
ends or is killed.

Descriptor 0 is the connection to the driver. A request is a JSON object (see `nip_ray.sandbox.engines.job_for`), the
text for standard input and the content of each file; an answer is {"started": process}, then how the program ended, its
output and its errors.

Decisions that matter here:
- a program is an interpreter of its own, in an empty virtual environment, so its start, its `__main__` and its end are
  those of `python`;
- nothing of the driver is inherited: neither its environment, nor its descriptors, nor a fork of its memory;
- its standard input is a file, as expected by contest programs that query its size;
- if the connection ends (the driver died, or no longer needs an answer) the program is killed and its folder removed;
- the kernel limits single processes. Their number, total memory, and the folder are polled.
"""

import contextlib
import functools
import json
import os
import resource
import selectors
import signal
import subprocess
import time
from multiprocessing.connection import Connection

import folder

LOOK_S = 0.05
SHARE_OF_TIME = 0.1
MEMORY_MARGIN = 2
"""Shared pages are counted for each process."""
MAX_ENTRIES = 10_000
PAGE = os.sysconf("SC_PAGE_SIZE")


def main():
    """Serve requests until the connection ends."""
    driver = Connection(0)
    wake, bell = os.pipe()
    for handle in (wake, bell):
        os.set_blocking(handle, False)
    signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    with contextlib.suppress(EOFError, OSError):
        while True:
            request = json.loads(driver.recv_bytes())
            stdin = driver.recv_bytes()
            serve(request, stdin, {name: driver.recv_bytes() for name in request["files"]}, driver, wake)


def serve(request, stdin, files, driver, wake):
    """Run one program and answer. Raises OSError when the driver is gone, after the program's end."""
    try:
        try:
            lay(request, stdin, files)
            program = start(request)
        except (OSError, subprocess.SubprocessError) as error:
            driver.send_bytes(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
            return
        with program:
            try:
                driver.send_bytes(json.dumps({"started": program.pid}).encode())
                verdict, output, errors = follow(program, request, driver, wake)
            finally:
                end(program, request)
            verdict = drain(program, output, errors, request["output_bytes"]) or verdict
    finally:
        with contextlib.suppress(OSError):  # a process that left the program's group may still write there
            folder.remove(request["folder"])
    driver.send_bytes(json.dumps({"verdict": verdict, "code": program.returncode}).encode())
    driver.send_bytes(output)
    driver.send_bytes(errors)


def lay(request, stdin, files):
    """Make the folder: an empty virtual environment, the program with its files, and its input."""
    top, executable = request["folder"], request["executable"]
    os.mkdir(top, 0o700)
    os.makedirs(f"{top}/env/bin")
    os.symlink(executable, f"{top}/env/bin/python")
    write(
        f"{top}/env/pyvenv.cfg",
        f"home = {os.path.dirname(executable)}\ninclude-system-site-packages = false\n".encode(),
    )
    write(f"{top}/stdin", stdin)
    os.mkdir(f"{top}/box")
    for name, content in files.items():
        write(f"{top}/box/{name}", content)
    if request["shared"]:  # the container's user is another one here
        for path in (top, f"{top}/box"):
            os.chmod(path, 0o755)


def write(path, content):
    """Write a new file that others may read, if they can reach it."""
    with open(path, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o644)


def start(request):
    """The program's process."""
    with open(f"{request['folder']}/stdin", "rb") as source:
        return subprocess.Popen(
            request["command"],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=f"{request['folder']}/box",
            env=request["env"],
            start_new_session=True,
            preexec_fn=functools.partial(limit, request["limits"]),  # safe: this process has one thread
        )


def limit(limits):
    """Set the kernel's limits of this process: {name: (soft, hard)}, within our own."""
    for name, (soft, hard) in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        most = resource.getrlimit(which)[1]
        most = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(which, (min(soft, most), most))


def follow(program, request, driver, wake):
    """Read the program's output until it ends or must be killed: (reason for killing, or None; output; errors)."""
    output, errors = bytearray(), bytearray()
    kept, most = {program.stdout: output, program.stderr: errors}, request["output_bytes"]
    now = time.monotonic()
    deadline, look = now + request["wall_s"], now + LOOK_S
    with selectors.DefaultSelector() as selector:
        for source in (*kept, driver, wake):
            selector.register(source, selectors.EVENT_READ)
        for stream in kept:
            os.set_blocking(stream.fileno(), False)
        while os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            now = time.monotonic()
            if now >= deadline:
                return "timeout", output, errors
            if now >= look:
                if reason := excess(program.pid, request):
                    return reason, output, errors
                look = now + max(LOOK_S, (time.monotonic() - now) / SHARE_OF_TIME)
            for key, _ in selector.select(max(0.0, min(deadline, look) - time.monotonic())):
                if key.fileobj is driver:
                    return "cancelled", output, errors
                if key.fileobj is wake:
                    os.read(wake, 4096)
                elif take(key.fileobj, kept[key.fileobj], most) is False:
                    selector.unregister(key.fileobj)
            if len(output) > most:
                return "output_limit", output, errors
    return None, output, errors


def take(stream, kept, most):
    """Keep the available data, at most one byte too many. False at the end of the stream, None if there is no data."""
    try:
        data = os.read(stream.fileno(), 1 << 16)
    except BlockingIOError:
        return None
    kept += data[: most + 1 - len(kept)]
    return bool(data)


def drain(program, output, errors, most):
    """Read the rest of the streams at the end, and cut both. "output_limit" if the output was too long."""
    for stream, kept in ((program.stdout, output), (program.stderr, errors)):
        while len(kept) <= most and take(stream, kept, most):
            pass
    verdict = "output_limit" if len(output) > most else None
    del output[most:], errors[most:]
    return verdict


def end(program, request):
    """Kill the program and its process group, in one kernel step; then reap it. Its number is kept until then."""
    done = os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    if request["stop"] and not done:  # the client of a container engine does not take the container with it
        no = subprocess.DEVNULL
        subprocess.Popen(request["stop"], stdin=no, stdout=no, stderr=no, env=request["env"], start_new_session=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()


def excess(session, request):
    """The exceeded limit ("processes", "memory", "disk"), or None. Processes that left the program's group are killed
    at once."""
    found = family(session)
    reason = None
    if sum(threads for threads, _ in found.values()) > request["processes"]:
        reason = "processes"
    elif sum(resident for _, resident in found.values()) > MEMORY_MARGIN * request["memory_mb"] << 20:
        reason = "memory"
    elif too_full(f"{request['folder']}/box", request["folder_mb"] << 20):
        reason = "disk"
    if reason:
        for process in found.keys() - {session}:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
    return reason


def family(session):
    """{process: (threads, resident bytes)} of the program's session and its members' descendants. Needs /proc."""
    rows = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # a program may have any name, parentheses included
                rows[int(name)] = file.read().rpartition(b")")[2].split()
    found, border = {session} & rows.keys(), -1
    while border != len(found):
        border = len(found)
        found |= {number for number, row in rows.items() if int(row[3]) == session or int(row[1]) in found}
    return {
        number: (int(rows[number][17]), int(rows[number][21]) * PAGE)
        for number in found
        if rows[number][0] not in b"ZX"
    }


def too_full(top, most):
    """True if a folder holds more bytes than this, or very many files."""
    size = entries = 0
    try:
        for path, folders, files in os.walk(top):
            entries += len(folders) + len(files)
            for name in files[:MAX_ENTRIES]:
                with contextlib.suppress(OSError):
                    size += os.lstat(os.path.join(path, name)).st_blocks * 512
            if size > most or entries > MAX_ENTRIES:
                return True
    except RecursionError:
        return True
    return False


if __name__ == "__main__":
    main()
