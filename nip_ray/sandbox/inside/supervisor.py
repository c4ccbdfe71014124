"""Starts one program under all limits, waits for it, ends whatever it leaves behind, and says how it went.

`main` gets the request, which came on standard input; standard output and error are those of the program. Two descriptors are named
by arguments: on `report` a few words are written, and the end of `life` means that the program has to end.

Decisions that matter here:
- an interpreter of its own, restarted for each program: forking a process that has threads, locks and secrets is no start;
- the program's interpreter is executed last, after everything that shuts it in; it inherits nothing but its three streams;
- the end does not depend on the program: its process namespace is killed, or else its process group, which it cannot leave, and then
  every descendant there is. Orphans come to us (a subreaper), so nobody is lost;
- when our parent dies, or is killed, `life` ends by itself.
"""

import _signal  # without the enumerations of `signal`, which take long to make # pyright: ignore[reportMissingImports]
import fcntl
import os
import resource
import select
import sys
import time

import kernel
import landlock
import mounts
import seccomp
import watch

NOBODY = 2_000_000_000
"""Users from here on, one for each program by the supervisor's process number, where root starts programs."""
INNER_USER = 1000
OPEN_FILES = 64
SIGKILL, SIG_DFL = 9, 0
PATIENCE_S = 1.5
"""For ending what the program left; less than our parent's patience with us."""


def main(request):
    """One program, from the request to the report."""
    report, life = int(sys.argv[1]), int(sys.argv[2])
    for handle in (report, life):
        os.set_inheritable(handle, False)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    _signal.signal(_signal.SIGINT, SIG_DFL)  # the interpreter's own handler is a door for a program that may signal us
    request["stdin_handle"] = sealed(request["stdin"])
    try:
        if request["plan"]["namespaces"]:
            in_namespaces(request, report, life)
        else:
            as_process(request, report, life)
    except Exception as error:
        say(report, f"failed {type(error).__name__}: {error}")
    os._exit(0)  # at once: tidying an interpreter up takes a third of the time of starting one


def say(report, text):
    """Write one line of the report."""
    os.write(report, text.replace("\n", " ").encode()[:2000] + b"\n")


def sealed(content):
    """A descriptor to read `content` from, which nobody can change."""
    handle = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    while content:
        content = content[os.write(handle, content) :]
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def as_process(request, report, life):
    """Run it as a child in a process group of its own."""
    user = NOBODY + os.getpid() if request["plan"]["own_user"] else None
    mounts.write_files(request["folder"], request["files"], user)
    if user is not None:
        os.chown(request["folder"], user, user)
    proc = os.open("/proc", os.O_RDONLY | os.O_CLOEXEC) if os.path.isdir("/proc/self") else None
    request["process_limit"] = None if os.getuid() == 0 and user is None else request["processes"] + (0 if user else own_tasks(proc))
    child = start(request, report, user)
    mind(child, report, life, watch.Watch(proc, request, request["folder"]))


def own_tasks(proc):
    """Threads of all processes of this user: the kernel's limit counts these, too."""
    if proc is None:
        return 0
    tasks, user = 0, os.getuid()
    for name in os.listdir(proc):
        try:
            if name.isdigit() and os.stat(name, dir_fd=proc).st_uid == user:
                tasks += os.stat(name + "/task", dir_fd=proc).st_nlink - 2
        except OSError:
            continue  # ended meanwhile
    return tasks


def in_namespaces(request, report, life):
    """Run it below a first process of new namespaces; all of them end with that process."""
    user, group = os.getuid(), os.getgid()
    flags = kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWNS
    if not request["plan"]["own_user"]:
        flags |= kernel.CLONE_NEWUSER
    kernel.unshare(flags)
    if not request["plan"]["own_user"]:
        map_user(user, group)
    request["user"] = NOBODY + os.getpid() if request["plan"]["own_user"] else INNER_USER
    first = os.fork()
    if first == 0:
        try:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, SIGKILL)
            os.close(life)
            as_first_process(request, report)
        except BaseException as error:
            say(report, f"failed {type(error).__name__}: {error}")
        finally:
            os._exit(0)
    handle = os.pidfd_open(first)
    wait = select.poll()
    wait.register(life, select.POLLIN)
    wait.register(handle, select.POLLIN)
    wait.poll()
    os.kill(first, SIGKILL)
    os.waitpid(first, 0)  # the kernel lets it end after everything else in there


def map_user(user, group):
    """Be INNER_USER in the new user namespace, who is this user and group outside."""
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # else these files belong to root
    for name, line in (("setgroups", "deny"), ("uid_map", f"{INNER_USER} {user} 1"), ("gid_map", f"{INNER_USER} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def as_first_process(request, report):
    """Build the root, start the program, wait for it. Whatever it leaves behind ends with us."""
    own_user = request["plan"]["own_user"]
    proc = mounts.build(request["readable"], request["files"], request["file_mb"], request["user"])
    request["process_limit"] = request["processes"] + (0 if own_user else 2)  # the supervisors count as well, in their user namespace
    request["folder"] = mounts.BOX
    child = start(request, report, request["user"] if own_user else None)
    mind(child, report, None, watch.Watch(proc, request, None))


def start(request, report, user):
    """Fork, shut the child in, execute the interpreter. Returns the child's number, once that has worked; else raises OSError."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ready)
            shut_in(request, told, user)
        except BaseException as error:
            os.write(told, f"!{type(error).__name__}: {error}".encode())
        finally:
            os._exit(126)
    os.close(told)
    words = b""
    while data := os.read(ready, 4096):
        words += data
    os.close(ready)
    if b"!" in words:
        os.waitpid(child, 0)
        raise OSError(words.partition(b"!")[2].decode(errors="replace"))
    say(report, f"started {child} {words.decode()}")
    return child


def shut_in(request, told, user):
    """All limits, in this order: what needs rights comes first, what takes them away last. Ends in the program's interpreter."""
    os.setsid()
    os.dup2(request["stdin_handle"], 0)
    os.chdir(request["folder"])
    for number in range(1, _signal.NSIG):
        if number not in (9, 19, 32, 33):
            _signal.signal(number, SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, [])
    set_limits(request)
    kernel.drop_bounding_set()
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, SIGKILL)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    os.write(told, ",".join([*guard(request), *(["own_user"] if user is not None else [])]).encode())
    os.closerange(3, told)
    os.closerange(told + 1, min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1 << 16))
    command = [request["executable"], "-I", "-S", "-B", request["main"]]
    home = request["folder"]
    os.execve(command[0], command, {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"})


def set_limits(request):
    """What one process may use. Of core files exactly one byte: no file is written then, and no helper for cores started."""
    cpu = request["cpu_s"]
    limits = [
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_AS, request["memory_mb"] << 20, request["memory_mb"] << 20),
        (resource.RLIMIT_FSIZE, request["file_mb"] << 20, request["file_mb"] << 20),
        (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (resource.RLIMIT_CORE, 1, 1),
    ]
    if request["process_limit"] is not None:
        limits.append((resource.RLIMIT_NPROC, request["process_limit"], request["process_limit"]))
    for which, soft, hard in limits:
        most = resource.getrlimit(which)[1]
        most = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(which, (min(soft, most), most))


def guard(request):
    """Landlock and the filter of system calls, as far as this kernel has them; their names."""
    plan, active = request["plan"], []
    version = landlock.version() if plan["landlock"] else 0
    if version and not plan["namespaces"]:
        landlock.restrict(version, request["readable"], [request["folder"]])
        active.append("landlock")
    if plan["seccomp"] and seccomp.available():
        signals_kept = plan["namespaces"] or (bool(active) and landlock.scopes_signals(version))
        packed = seccomp.program(os.uname().machine, not plan["namespaces"], None if signals_kept else os.getpid())
        try:
            seccomp.install(packed)
            active.append("seccomp")
        except OSError as error:
            if error.errno not in (22, 38):  # EINVAL, ENOSYS: a kernel without filters
                raise
    return active


def mind(child, report, life, look_after):
    """Wait until the program ends, has too much of something, or has to end; kill the rest; report its wait status."""
    handle, reason = os.pidfd_open(child), ""
    wait = select.poll()
    wait.register(handle, select.POLLIN)
    if life is not None:
        wait.register(life, select.POLLIN)
    while True:
        ready = [number for number, _ in wait.poll(look_after.interval * 1000)]
        if ready:
            break
        reason = look_after.look()
        if reason:
            break
    kill_group(child)  # before it is reaped: after that its number may be a stranger's
    status = os.waitpid(child, 0)[1]
    if life is not None:
        kill_family(look_after.proc)
    say(report, f"ended {status} {reason or '-'}")


def kill_group(child):
    """SIGKILL the process group of the program, which is one step for the kernel: nobody in it can fork meanwhile."""
    try:
        os.killpg(child, SIGKILL)
    except ProcessLookupError:
        return


def kill_family(proc):
    """Kill and reap every descendant; for those that left their group this takes looking for them."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for process in watch.descendants(proc, os.getpid()) if proc is not None else ():
            try:
                os.kill(process, SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.001)
