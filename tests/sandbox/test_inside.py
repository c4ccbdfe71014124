"""The parts that shut a program in, each by itself."""

import os
import runpy
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import nip_ray.sandbox

INSIDE = Path(nip_ray.sandbox.__file__).parent / "inside"


@pytest.fixture(scope="module")
def modules() -> dict[str, dict[str, object]]:
    """The namespaces of modules that are not imported as part of the package."""
    sys.path.insert(0, str(INSIDE))
    try:
        return {name: runpy.run_path(str(INSIDE / f"{name}.py")) for name in ("seccomp", "watch")}
    finally:
        sys.path.remove(str(INSIDE))
        for name in ("kernel", "watch", "seccomp"):
            sys.modules.pop(name, None)


def _verdict(packed: bytes, machine: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What a filter says to a call: the instructions that it uses, interpreted."""
    words = {0: number, 4: machine} | {16 + 8 * at: value & 0xFFFFFFFF for at, value in enumerate(arguments)}
    code, at, accumulator = list(struct.iter_unpack("=HBBI", packed)), 0, 0
    while True:
        kind, yes, no, value = code[at]
        at += 1
        if kind == 0x20:
            accumulator = words.get(value, 0)
        elif kind == 0x06:
            return value
        else:
            test = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[kind]
            at += yes if test else no


ALLOW, REFUSE, UNKNOWN, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x80000000


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_every_call_of_the_filter(modules: dict, machine: str, shared: bool, kept: bool) -> None:
    module = modules["seccomp"]
    packed = module["program"](machine, shared, None if kept else 77)
    audit, column = module["AUDIT"][machine], list(module["AUDIT"]).index(machine)
    listed = module["ALLOWED"] | module["ALLOWED_IN_NAMESPACES"]
    number = {name: both[column] for name, both in listed.items() if both[column] >= 0}
    assert len(set(number.values())) == len(number)

    def says(name: str, *arguments: int) -> int:
        return _verdict(packed, audit, number[name], arguments)

    with_arguments = {"clone", "fcntl", "ioctl", "prctl", "prlimit64", "socketpair", "kill", "tgkill", "tkill"}
    for name in number.keys() - with_arguments:
        refused = REFUSE if number[name] < 424 else UNKNOWN
        assert says(name) == (refused if shared and name in module["ALLOWED_IN_NAMESPACES"] else ALLOW), name
    for other in set(range(700)) - set(number.values()):
        assert _verdict(packed, audit, other) == (REFUSE if other < 424 else UNKNOWN), other
    assert says("clone", 0x01200011) == ALLOW
    assert says("clone", 0x10000011) == REFUSE
    assert says("fcntl", 5, 2) == ALLOW
    assert says("fcntl", 5, 8) == says("fcntl", 5, 1026) == REFUSE
    assert says("ioctl", 0, 0x5401) == ALLOW
    assert says("ioctl", 0, 0x5412) == REFUSE
    assert says("prlimit64", 0) == ALLOW
    assert says("prlimit64", 1) == REFUSE
    assert says("prctl", 22) == REFUSE
    assert says("socketpair", 1, 0x80001) == ALLOW
    assert says("socketpair", 1, 2) == says("socketpair", 30, 1) == REFUSE
    assert [says("kill", who) for who in (0, 77, -77)] == [ALLOW] * 3
    others = ALLOW if kept else REFUSE
    assert [says("kill", 1), says("kill", -1), says("tgkill", 78), says("tkill", 78)] == [others] * 4
    assert _verdict(packed, 0x40000003, 0) == KILL  # 32-bit calls have other numbers
    assert _verdict(packed, audit, 0x40000000 + 41) == UNKNOWN  # and so have those of x32
    assert len(packed) // 8 < 4096


def test_numbers_of_calls_agree_with_the_headers(modules: dict) -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no headers of the kernel here")
    words = [line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_")]
    known = {word[1].removeprefix("__NR_"): int(word[2]) for word in words}
    for name, (number, _) in (modules["seccomp"]["ALLOWED"] | modules["seccomp"]["ALLOWED_IN_NAMESPACES"]).items():
        assert known.get(name, number) == number, name


def test_descendants_are_found_whatever_they_are_called(modules: dict) -> None:
    code = "import ctypes, os, sys\nctypes.CDLL(None).prctl(15, b') R 1 (')\nos.fork()\nos.write(1, b'1\\n')\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert [child.stdout.readline() for _ in range(2)] == [b"1\n"] * 2
        proc = os.open("/proc", os.O_RDONLY)
        try:
            family = modules["watch"]["descendants"](proc, os.getpid())
            below = modules["watch"]["descendants"](proc, child.pid)
        finally:
            os.close(proc)
            child.stdin.close()
    assert child.pid in family
    assert len(below) == 1
    assert set(below) <= set(family)
    assert all(threads == 1 and resident > 1 << 20 for threads, resident in below.values())
