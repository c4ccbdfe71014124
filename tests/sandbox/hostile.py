"""Hostile programs, as data: what each attempts, which threat that is, and how it may end.

A program gets JSON on its first line of input (`W`): canary (a file outside), secret (a file outside that nobody should read), victim
and parent (processes), port (a server on this machine), outside (a folder). It says `harm(...)` when it got through with something.
"""

from dataclasses import dataclass

PREAMBLE = """
import json, os, sys, signal
W = json.loads(sys.stdin.readline())
def harm(*what):
    print("HARM", *what, flush=True)
def attempt(function, *arguments):
    try:
        return function(*arguments), True
    except BaseException as error:
        print("refused:", type(error).__name__, error, flush=True)
        return None, False
def must_fail(function, *arguments):
    value, worked = attempt(function, *arguments)
    if worked:
        harm(getattr(function, "__name__", function), arguments, repr(value)[:200])
"""


@dataclass(frozen=True)
class Hostile:
    """name, threat (a key of THREATS), program (its source after PREAMBLE); ends: the statuses that may come out; endless: it ends by a
    limit only, so it gets a short one."""

    name: str
    threat: str
    program: str
    ends: tuple[str, ...] = ("ok", "error")
    endless: bool = False

    @property
    def source(self) -> str:
        """The whole program."""
        return PREAMBLE + self.program


ENDED = ("timeout", "killed", "error", "output_limit")
ANY = ("ok", *ENDED)

PROGRAMS = (
    # time
    Hostile("loop", "time", "while True: pass", ("timeout",), endless=True),
    Hostile("ignore_signals", "time", """
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65))
while True: signal.sigtimedwait([], 10)
""", ("timeout",), endless=True),
    Hostile("closed_streams", "time", "for handle in range(0, 64):\n    try: os.close(handle)\n    except OSError: pass\nwhile True: pass",
            ("timeout",), endless=True),
    Hostile("regex", "time", "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')", ("timeout",), endless=True),
    Hostile("read_for_ever", "time", "while sys.stdin.read(1): pass\nprint('end of input')", ("ok",)),
    Hostile("stop_itself", "time", "os.kill(os.getpid(), signal.SIGSTOP)", ("timeout",), endless=True),
    # leftovers
    Hostile("daemon", "leftovers", """
import time
if os.fork() == 0:
    attempt(os.setsid)
    if os.fork() == 0:
        attempt(os.setsid)
        for number in (1, 2, 3, 13, 15): signal.signal(number, signal.SIG_IGN)
        while True: time.sleep(1)
    os._exit(0)
os._exit(0)
""", ("ok",)),
    Hostile("daemon_and_loop", "leftovers", """
for _ in range(4):
    if os.fork() == 0:
        attempt(os.setsid); attempt(os.setpgid, 0, 0)
        while True: pass
while True: pass
""", ("timeout",), endless=True),
    Hostile("kill_own_group", "leftovers", "if os.fork() == 0:\n    while True: pass\nos.killpg(0, 9)", ("killed",)),
    Hostile("shells", "leftovers", """
import subprocess
for command in (["/bin/sh", "-c", "sleep 1000 & sleep 1000"], ["/bin/bash", "-c", "while :; do :; done"]):
    attempt(lambda: subprocess.Popen(command, start_new_session=True))
    attempt(lambda: subprocess.Popen(command))
""", ("ok",)),
    # processes
    Hostile("fork_bomb", "processes", "while True:\n    try: os.fork()\n    except OSError: pass", ENDED, endless=True),
    Hostile("fork_count", "processes", """
import time
count = 0
while count < 5000:
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError: break
    count += 1
if count > 3000: harm(count)
time.sleep(1000)
""", ENDED, endless=True),
    Hostile("thread_bomb", "processes", """
import threading, time
count = 0
try:
    while count < 1000:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        count += 1
except RuntimeError: pass
if count > 200: harm(count)
time.sleep(1000)
""", ENDED, endless=True),
    # memory
    Hostile("memory_list", "memory", "kept = []\nwhile True: kept.append([0] * 10**6)", ("error", "killed")),
    Hostile("memory_bytes", "memory", "bytearray(10**12)", ("error",)),
    Hostile("memory_of_many", "memory", """
import time
for _ in range(8):
    if os.fork() == 0: break
kept = bytearray(40 << 20)
for at in range(0, len(kept), 4096): kept[at] = 1
time.sleep(1000)
""", ENDED, endless=True),
    Hostile("memory_files", "memory", """
try:
    for _ in range(40):
        os.pwrite(os.memfd_create("x"), b"x" * (1 << 20), 200 << 20)
    harm("memfd")
except (OSError, AttributeError) as error: print(error)
"""),
    # output
    Hostile("flood_stdout", "output", "while True: os.write(1, b'x' * 65536)", ("output_limit",), endless=True),
    Hostile("flood_both", "output", "while True: os.write(1, b'x' * 512); os.write(2, b'y' * 512)", ("output_limit",), endless=True),
    Hostile("garbage", "output", "os.write(1, bytes(range(256)) * 20)\nos.write(2, b'\\xff\\xfe\\x00\\x1b[2J')", ("ok",)),
    # disk
    Hostile("huge_file", "disk", "file = open('big', 'wb')\nwhile True: file.write(b'x' * 10**6)", ("error", "killed")),
    Hostile("sparse_file", "disk", "must_fail(os.truncate, os.open('big', os.O_CREAT | os.O_RDWR), 1 << 40)", ("ok", "error", "killed")),
    Hostile("many_big_files", "disk", """
for number in range(10**6):
    with open(str(number), "wb") as file: file.write(b"x" * 10**6)
    if number > 1000: harm(number)
""", ENDED, endless=True),
    *(Hostile(f"nameless_files_{kept}", "disk", f"""
import mmap, time
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
kept = []
for number in range(40):
    kept.append(open("file", "w+b", buffering=0))
    os.remove("file")
    kept[-1].write(b"x" * (4 << 20))
    {also}
time.sleep(1)
""", ("error", "killed")) for kept, also in (("open", ""), ("mapped", "kept[-1] = mmap.mmap(kept[-1].fileno(), 1 << 12)"))),
    Hostile("undeletable", "disk", """
for number in range(50):
    os.makedirs(f"a{number}/b/c", exist_ok=True)
    open(f"a{number}/b/c/file", "w").close()
    os.symlink("/", f"a{number}/link")
    attempt(os.mkfifo, f"a{number}/pipe")
    os.mkdir(f"a{number}/locked", 0)
    for path in (f"a{number}/b/c", f"a{number}/b", f"a{number}"): attempt(os.chmod, path, 0)
os.mkdir("without", 0)
os.mkdir("unlisted", 0o300)
open("unlisted/file", "w").close()
""", ("ok", "killed")),
    Hostile("deep_folders", "disk", """
for _ in range(1500):
    os.mkdir("d" * 200); os.chdir("d" * 200)
""", ANY),
    # environment, privileges
    Hostile("environment", "environment", """
known = {"PATH", "HOME", "TMPDIR", "LANG", "LC_CTYPE"}
extra = {name: value for name, value in os.environ.items() if name not in known}
if extra: harm(extra)
""", ("ok",)),
    Hostile("descriptors", "environment", """
for handle in range(3, 1024):
    try: os.fstat(handle)
    except OSError: continue
    harm("descriptor", handle)
    attempt(os.write, handle, b"ended 0 -\\n")
""", ("ok",)),
    Hostile("change_input", "environment", "must_fail(os.pwrite, 0, b'x', 0)\nmust_fail(os.ftruncate, 0, 0)", ("ok",)),
    Hostile("packages", "environment", "for name in ('numpy', 'torch', 'nip_ray', 'site'):\n"
            "    if name in sys.modules: harm(name)\n"
            "for name in ('numpy', 'torch', 'nip_ray'): must_fail(__import__, name)", ("ok",)),
    Hostile("become_root", "privileges", """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for user in (1, 1234, 65534):
    must_fail(os.setresuid, user, user, user)
must_fail(os.setgroups, [1, 2])
must_fail(os.chroot, ".")
for call in (lambda: libc.mount(b"none", b".", b"tmpfs", 0, None), lambda: libc.unshare(0x10000000), lambda: libc.umount2(b"/", 2),
             lambda: libc.sethostname(b"x", 1), lambda: libc.syscall(272, 0x20000)):
    if call() == 0: harm("libc")
"""),
    Hostile("set_user_id_program", "privileges", """
import subprocess
for command in (["su", "-c", "id"], ["sudo", "-n", "id"], ["mount"], ["/usr/bin/passwd", "-d", "root"]):
    done, worked = attempt(lambda: subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True))
    if worked and done.returncode == 0 and command != ["mount"]: harm(command, done.stdout)
""", ("ok",)),
    Hostile("capabilities", "privileges", """
import ctypes, struct
libc = ctypes.CDLL(None)
header, data = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
libc.capget(header, data)
effective, permitted = struct.unpack("II", data.raw[:8])
if effective or permitted: harm(hex(effective), hex(permitted))
if libc.prctl(39, 0, 0, 0, 0) != 1: harm("may gain privileges")
""", ("ok",)),
    Hostile("raise_priority", "privileges", "before = os.getpriority(0, 0)\nattempt(os.nice, -15)\n"
            "if os.getpriority(0, 0) < before: harm('nice')\nmust_fail(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))"),
    Hostile("raise_limits", "privileges", """
import resource
for which in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
    must_fail(resource.setrlimit, which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""),
    Hostile("core_file", "privileges", """
import resource
if max(resource.getrlimit(resource.RLIMIT_CORE)) > 1: harm("cores")
os.chdir(os.environ["TMPDIR"])
os.abort()
""", ("killed",)),
    Hostile("segfault", "privileges", "import ctypes\nctypes.string_at(0)", ("killed",)),
    Hostile("own_interpreter", "write_files", """
for path in (sys.executable, os.__file__, json.__file__):
    must_fail(lambda: open(path, "ab"))
    must_fail(os.remove, path)
    must_fail(os.rename, path, path + ".old")
must_fail(lambda: open(os.path.dirname(os.__file__) + "/evil.py", "w"))
must_fail(os.remove, os.path.dirname(sys.executable))
"""),
    # forgery
    Hostile("forge_report", "forgery", """
for handle in range(1, 64):
    for text in (b"ended 0 -\\n", b"started 1 limits\\n", b"failed x\\n"): attempt(os.write, handle, text)
os._exit(3)
""", ("error",)),
    # files
    Hostile("read_secret", "read_files", """
value, worked = attempt(lambda: open(W["secret"]).read())
if worked: harm(value)
for path in ("/etc/shadow", "/etc/passwd", "/root/.bashrc", "/etc/hostname", "/proc/mounts", "/var/log/lastlog"):
    must_fail(lambda: open(path).read())
for folder in (W["outside"], "/root", "/home", "/etc/ssl", "/var", "/proc", "/sys"):
    found, worked = attempt(os.listdir, folder)
    if worked and found: print(folder, found)
    if worked and folder == W["outside"]: harm("listed")
""", ("ok",)),
    Hostile("link_to_secret", "read_files", """
os.symlink(W["secret"], "link")
must_fail(lambda: open("link").read())
must_fail(os.link, W["secret"], "hard")
must_fail(lambda: os.open(W["outside"] + "/../" + W["outside"].rsplit("/", 1)[1] + "/secret", os.O_RDONLY))
""", ("ok",)),
    Hostile("write_canary", "write_files", """
path = W["canary"]
for mode in ("w", "a", "r+"): must_fail(lambda: open(path, mode).write("spoilt"))
must_fail(os.truncate, path, 0)
must_fail(os.remove, path)
must_fail(os.rename, path, path + "x")
must_fail(lambda: open(W["outside"] + "/new", "w").write("x"))
must_fail(os.mkdir, W["outside"] + "/folder")
must_fail(os.open, path, os.O_RDONLY | os.O_TRUNC)
""", ("ok",)),
    Hostile("write_through_link", "write_files", """
os.symlink(W["canary"], "link")
must_fail(lambda: open("link", "w").write("spoilt"))
os.symlink("/etc/passwd", "passwd")
must_fail(lambda: open("passwd", "a").write("evil::0:0::/:/bin/sh"))
must_fail(os.truncate, "link", 0)
""", ("ok",)),
    Hostile("remove_everything", "write_files", """
import shutil
for folder in (W["outside"], os.path.dirname(W["outside"])): shutil.rmtree(folder, ignore_errors=True)
"""),
    Hostile("modes", "file_modes", """
for function, arguments in ((os.chmod, (0,)), (os.chmod, (0o777,)), (os.utime, ((0, 0),)), (os.chown, (1234, 1234)),
                            (os.setxattr, ("user.x", b"x")), (os.lchown, (1234, 1234))):
    must_fail(function, W["canary"], *arguments)
""", ("ok",)),
    Hostile("recent_calls", "file_modes", """
import ctypes
libc = ctypes.CDLL(None)
acl = bytes.fromhex("02000000" "01000600ffffffff" "04000600ffffffff" "20000600ffffffff")
value = ctypes.create_string_buffer(acl, len(acl))
arguments = (ctypes.c_uint64 * 2)(ctypes.addressof(value), len(acl))
attributes = ctypes.create_string_buffer(24)
attributes[0] = 0x80
path = W["canary"].encode()
for number, more in ((463, (b"system.posix_acl_access", arguments, 16)), (466, (b"user.x",)), (469, (attributes, 24, 0))):
    rest = (0, *more) if number < 469 else more
    if libc.syscall(number, -100, path, *rest) == 0: harm(number)
""", ("ok",)),
    Hostile("stat", "file_names", "must_fail(os.stat, W['secret'])\nmust_fail(os.readlink, '/proc/self')\n"
            "must_fail(os.listxattr, W['secret'])\nif os.access(W['secret'], 0): harm('access')", ("ok",)),
    Hostile("watch", "watching", """
import ctypes, fcntl
libc = ctypes.CDLL(None)
if libc.inotify_add_watch(libc.inotify_init(), W["outside"].encode(), 0xfff) >= 0: harm("inotify")
if libc.fanotify_init(0, 0) >= 0: harm("fanotify")
must_fail(lambda: fcntl.fcntl(os.open(W["outside"], 0), fcntl.F_NOTIFY, 0x8000003f))
""", ("ok",)),
    # other processes
    Hostile("proc", "process_secrets", """
mine = {os.getpid()}
for number in [W["parent"], W["victim"], os.getppid(), *range(1, 3000)]:
    if number in mine: continue
    for name in ("environ", "mem", "maps", "cmdline", "fd", "root", "cwd"):
        path = f"/proc/{number}/{name}"
        try:
            found = os.listdir(path) if name in ("fd", "root", "cwd") else open(path, "rb").read(100)
        except OSError: continue
        if found: harm(path, found)
""", ("ok",)),
    Hostile("other_memory", "process_secrets", """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in (W["parent"], W["victim"], os.getppid()):
    if libc.ptrace(16, number, 0, 0) == 0: harm("ptrace")
    buffer = ctypes.create_string_buffer(64)
    iovec = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 64)
    if libc.process_vm_readv(number, iovec, 1, iovec, 1, 0) > 0: harm("process_vm_readv")
""", ("ok",)),
    Hostile("signal_others", "signals", """
for number in (W["victim"], W["parent"]):
    must_fail(os.kill, number, 9)
    must_fail(os.killpg, number, 9)
    must_fail(lambda: signal.pidfd_send_signal(os.pidfd_open(number), 9))
try: os.kill(os.getppid(), 9)
except OSError: pass
""", ("ok", "killed")),
    Hostile("signal_all", "signals", "try: os.kill(-1, 9)\nexcept OSError as error: print(error)", ("ok", "killed")),
    Hostile("signal_by_owner", "signals", """
import fcntl
ends = os.pipe()
for number in (W["victim"], W["parent"]):
    attempt(fcntl.fcntl, ends[0], 10, signal.SIGKILL)
    attempt(fcntl.fcntl, ends[0], fcntl.F_SETOWN, number)
    attempt(fcntl.fcntl, ends[0], fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(ends[1], b"x"); attempt(os.read, ends[0], 1)
""", ("ok",)),
    Hostile("limit_others", "signals", """
import resource
for number in (W["victim"], W["parent"]):
    must_fail(resource.prlimit, number, resource.RLIMIT_CPU, (1, 1))
    must_fail(os.setpriority, os.PRIO_PROCESS, number, 19)
    must_fail(os.sched_setaffinity, number, {0})
"""),
    # network
    Hostile("connect", "network", """
import socket
for address in (("127.0.0.1", W["port"]), ("10.255.255.1", 80), ("1.1.1.1", 53)):
    def connect():
        with socket.socket(socket.AF_INET) as s:
            s.settimeout(0.5); s.connect(address); return s.recv(10)
    must_fail(connect)
""", ("ok",)),
    Hostile("datagram", "network", """
import socket
def send():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s: return s.sendto(b"x", ("127.0.0.1", W["port"]))
must_fail(send)
for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET): must_fail(socket.socketpair, socket.AF_UNIX, kind)
""", ("ok",)),
    Hostile("listen", "network", """
import socket
def server():
    with socket.socket() as s: s.bind(("0.0.0.0", 0)); s.listen(); return s.getsockname()
must_fail(server)
""", ("ok",)),
    Hostile("raw_socket", "network", "import socket\nmust_fail(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 3)\n"
            "must_fail(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)\nmust_fail(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0)",
            ("ok",)),
    Hostile("local_service", "network", """
import socket
for address in (W["service"], "\\0" + W["service"], "/var/run/docker.sock", "/run/dbus/system_bus_socket"):
    def connect():
        with socket.socket(socket.AF_UNIX) as s: s.connect(address)
    must_fail(connect)
""", ("ok",)),
    # what outlives a process
    Hostile("system_v", "ipc", """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.shmget(W["key"], 4096, 0o1666) >= 0: print("segment")
if libc.msgget(W["key"], 0o1666) >= 0: print("queue")
if libc.semget(W["key"], 1, 0o1666) >= 0: print("semaphore")
""", ("ok",)),
    Hostile("shared_memory", "shared_memory", """
from multiprocessing import shared_memory
must_fail(lambda: shared_memory.SharedMemory(name="nip-hostile", create=True, size=4096))
must_fail(lambda: open("/dev/shm/nip-hostile-file", "w").write("x"))
must_fail(lambda: open("/var/tmp/nip-hostile-file", "w").write("x"))
""", ("ok",)),
)  # fmt: skip
