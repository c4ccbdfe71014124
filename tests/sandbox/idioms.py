"""Idioms of contest programs, as data: each reads 21 and writes 42, and ends as `python` would have it end."""

IDIOMS = {
    "plain": "print(2 * int(input()))",
    "main guard": "def main():\n    print(2 * int(input()))\nif __name__ == '__main__':\n    main()",
    "thread without join": (
        "import sys, threading\nsys.setrecursionlimit(1 << 20)\nthreading.stack_size(1 << 27)\n"
        "def main(): print(2 * int(input()))\nthreading.Thread(target=main).start()"
    ),
    "thread that ends late": (
        "import threading, time\nn = int(input())\ndef main():\n    time.sleep(0.1)\n    print(2 * n)\n"
        "threading.Thread(target=main).start()"
    ),
    "deep recursion in a thread": (
        "import sys, threading\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size(1 << 28)\n"
        "def f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print(f(50_000) - 49_958 if int(input()) == 21 else 0))\nt.start()\nt.join()"
    ),
    "fifty threads": (
        "import threading\nn, found, lock = int(input()), [], threading.Lock()\n"
        "def work():\n    with lock: found.append(1)\n"
        "threads = [threading.Thread(target=work) for _ in range(50)]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()\nprint(2 * n if len(found) == 50 else 0)"
    ),
    "pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor() as pool: print(*pool.map(lambda n: 2 * n, [int(input())]))"
    ),
    "timer": "import threading\nn = int(input())\nthreading.Timer(0.05, lambda: print(2 * n)).start()",
    "daemon thread is cut off": (
        "import threading, time\nprint(2 * int(input()))\n"
        "threading.Thread(target=lambda: (time.sleep(5), print('late')), daemon=True).start()"
    ),
    "exception in a thread": "import threading\nprint(2 * int(input()))\nthreading.Thread(target=lambda: 1 / 0).start()",
    "buffer written at exit": (
        "import atexit, io, sys\nbuffer = io.StringIO()\nsys.stdout = buffer\n"
        "@atexit.register\ndef write(): sys.__stdout__.write(buffer.getvalue())\nprint(2 * int(input()))"
    ),
    "print at exit": "import atexit\nn = int(input())\natexit.register(lambda: print(2 * n))",
    "exception at exit": "import atexit\natexit.register(lambda: 1 / 0)\nprint(2 * int(input()))",
    "the first standard output": "import sys\nsys.__stdout__.write(str(2 * int(input())))",
    "the first streams": "import sys\nsys.__stdout__.write(str(2 * int(sys.__stdin__.readline())))",
    "finalizer": (
        "class Out:\n    def __init__(self): self.text = []\n    def __del__(self): print(''.join(self.text))\n"
        "out = Out()\nout.text.append(str(2 * int(input())))"
    ),
    "fast input and output": (
        "import os, sys\nfrom io import BytesIO, IOBase\n"
        "class FastIO(IOBase):\n"
        "    newlines = 0\n"
        "    def __init__(self, file):\n"
        "        self._fd = file.fileno()\n        self.buffer = BytesIO()\n"
        "        self.writable = 'x' in file.mode or 'r' not in file.mode\n"
        "        self.write = self.buffer.write if self.writable else None\n"
        "    def readline(self):\n"
        "        while self.newlines == 0:\n"
        "            b = os.read(self._fd, max(os.fstat(self._fd).st_size, 8192))\n"
        "            self.newlines = b.count(b'\\n') + (not b)\n"
        "            ptr = self.buffer.tell()\n            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)\n"
        "        self.newlines -= 1\n        return self.buffer.readline()\n"
        "    def flush(self):\n"
        "        if self.writable:\n"
        "            os.write(self._fd, self.buffer.getvalue())\n            self.buffer.truncate(0), self.buffer.seek(0)\n"
        "class IOWrapper(IOBase):\n"
        "    def __init__(self, file):\n"
        "        self.buffer = FastIO(file)\n        self.flush = self.buffer.flush\n        self.writable = self.buffer.writable\n"
        "        self.write = lambda s: self.buffer.write(s.encode('ascii'))\n"
        "        self.readline = lambda: self.buffer.readline().decode('ascii')\n"
        "sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)\n"
        "input = lambda: sys.stdin.readline().rstrip('\\r\\n')\nprint(2 * int(input()))"
    ),
    "exit": "print(2 * int(input()))\nexit()",
    "quit": "print(2 * int(input()))\nquit()",
    "exit in a function": "def main():\n    print(2 * int(input()))\n    exit(0)\nmain()\nprint('never')",
    "sys.exit": "import sys\nprint(2 * int(input()))\nsys.exit()",
    "SystemExit": "print(2 * int(input()))\nraise SystemExit",
    "os._exit after a flush": "import os\nprint(2 * int(input()), flush=True)\nos._exit(0)",
    "import __main__": "import __main__\nn = int(input())\nprint(2 * __main__.n)",
    "main in sys.modules": "import sys\nn = int(input())\nprint(2 * getattr(sys.modules[__name__], 'n'))",
    "timeit": "from timeit import timeit\nn = int(input())\ntimeit('2 * n', 'from __main__ import n', number=3)\nprint(2 * n)",
    "pickle of an own class": (
        "import pickle\nclass Pair:\n    def __init__(self, n): self.n = n\nprint(2 * pickle.loads(pickle.dumps(Pair(int(input())))).n)"
    ),
    "copy of an own class": (
        "from copy import deepcopy\nclass Node:\n    def __init__(self, n): self.n = n\nprint(2 * deepcopy(Node(int(input()))).n)"
    ),
    "hints of a dataclass": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import get_type_hints\n"
        "class Other: pass\n@dataclass\nclass Pair:\n    n: int\n    other: Other\n"
        "print(2 * int(input()) if get_type_hints(Pair)['other'] is Other else 0)"
    ),
    "pool of processes": (
        "from multiprocessing import Pool\ndef double(n): return 2 * n\n"
        "if __name__ == '__main__':\n    with Pool(2) as pool: print(*pool.map(double, [int(input())]))"
    ),
    "a fork": "import os\nn = int(input())\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\nprint(2 * n)",
    "a child process": (
        "import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', 'print(2 * int(input()))'], text=True).strip())"
    ),
    "open(0)": "print(2 * int(open(0).read()))",
    "/dev/stdin": "print(2 * int(open('/dev/stdin').read()))",
    "size of the input": "import io, os\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\nprint(2 * int(input()))",
    "input through mmap": "import mmap\nprint(2 * int(mmap.mmap(0, 0, access=mmap.ACCESS_READ).readline()))",
    "buffers": "import sys\nsys.stdout.buffer.write(b'%d' % (2 * int(sys.stdin.buffer.readline())))",
    "os.write": "import os\nos.write(1, str(2 * int(os.read(0, 100))).encode())",
    "renamed print and input": (
        "import sys\ninput = sys.stdin.readline\nprint = lambda x: sys.stdout.write(str(x) + '\\n')\nprint(2 * int(input()))"
    ),
    "end of the input": "import sys\ntry:\n    while True: print(2 * int(input()))\nexcept EOFError: pass",
    "lines of the input": "import sys\nfor line in sys.stdin: print(2 * int(line))",
    "fileinput": "import fileinput\nfor line in fileinput.input(): print(2 * int(line))",
    "redirected": (
        "import contextlib, io\nbuffer = io.StringIO()\n"
        "with contextlib.redirect_stdout(buffer): print(2 * int(input()))\nprint(buffer.getvalue())"
    ),
    "much on standard error": "import sys\nsys.stderr.write('x' * 3_000_000)\nprint(2 * int(input()))",
    "asyncio": "import asyncio\nasync def main(): print(2 * int(await asyncio.to_thread(input)))\nasyncio.run(main())",
    "its own file": "import os\nprint(2 * int(input()) if 'its own' in open(__file__).read() and os.path.exists(__file__) else 0)",
    "its own source": "import inspect\ndef f(n): return 2 * n\nassert 'return 2' in inspect.getsource(f)\nprint(f(int(input())))",
    "a file beside it": "open('x', 'w').write(input())\nprint(2 * int(open('x').read()))",
    "arguments": "import sys\nprint(2 * int(input()) if len(sys.argv) == 1 else 0)",
    "doctest": (
        "import doctest\ndef f(n):\n    '>>> f(1)\\n2'\n    return 2 * n\nassert doctest.testmod().attempted == 1\nprint(f(int(input())))"
    ),
    "unittest": (
        "import unittest\nclass Test(unittest.TestCase):\n    def test(self): self.assertEqual(1, 1)\n"
        "print(2 * int(input()))\nunittest.main(exit=False)"
    ),
    "help and its like": "print(2 * int(input()) if all(map(callable, (help, exit, quit, copyright, license, credits))) else 0)",
    "signal": "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: print(2 * int(input())))\nos.kill(os.getpid(), signal.SIGUSR1)",
    "trace": "import sys\nsys.settrace(lambda *_: None)\nprint(2 * int(input()))",
}

WRONG = {
    "lost buffer": ("import os\nprint(42)\nos._exit(0)", "failed"),
    "exit with a code": ("print(42)\nexit(1)", "crashed"),
    "exit with words": ("import sys\nprint(42)\nsys.exit('bye')", "crashed"),
    "exception after the answer": ("print(42)\n1 / 0", "crashed"),
    "more output at exit": ("import atexit\natexit.register(lambda: print(43))\nprint(42)", "failed"),
    "more output of a thread": ("import threading, time\nprint(42)\nthreading.Timer(0.05, lambda: print(43)).start()", "failed"),
    "closed standard output": ("import sys\nsys.stdout.close()\nprint(42)", "crashed"),
    "a package of ours": ("import torch\nprint(42)", "crashed"),
    "half a surrogate": ("print('\\ud83d')", "crashed"),
}
"""Programs that are not right, and how `python` has it (but for the package, which a plain `python` may have)."""
