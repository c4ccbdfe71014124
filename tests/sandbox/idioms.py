"""Idioms of contest programs, as data: each reads 21 and writes 42, and ends as `python` would have it end."""

IDIOMS = {
    "plain": "print(2 * int(input()))",
    "thread without join": (
        "import sys, threading\nsys.setrecursionlimit(1 << 20)\nthreading.stack_size(1 << 27)\n"
        "def main(): print(2 * int(input()))\nthreading.Thread(target=main).start()"
    ),
    "deep recursion in a thread": (
        "import sys, threading\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size(1 << 28)\ndef f(n): return 0 if n"
        " == 0 else 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(50_000) - 49_958 if int(input()) == 21"
        " else 0))\nt.start()\nt.join()"
    ),
    "fifty threads": (
        "import threading\nn, found, lock = int(input()), [], threading.Lock()\n"
        "def work():\n    with lock: found.append(1)\n"
        "threads = [threading.Thread(target=work) for _ in range(50)]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()\nprint(2 * n if len(found) == 50 else 0)"
    ),
    "daemon thread is cut off": (
        "import threading, time\nprint(2 * int(input()))\n"
        "threading.Thread(target=lambda: (time.sleep(5), print('late')), daemon=True).start()"
    ),
    "buffer written at exit": (
        "import atexit, io, sys\nbuffer = io.StringIO()\nsys.stdout = buffer\n"
        "@atexit.register\ndef write(): sys.__stdout__.write(buffer.getvalue())\nprint(2 * int(input()))"
    ),
    "print at exit": "import atexit\nn = int(input())\natexit.register(lambda: print(2 * n))",
    "finalizer": (
        "class Out:\n    def __init__(self): self.text = []\n    def __del__(self): print(''.join(self.text))\n"
        "out = Out()\nout.text.append(str(2 * int(input())))"
    ),
    "fast input and output": (
        "import os, sys\nfrom io import BytesIO, IOBase\nclass FastIO(IOBase):\n    newlines = 0\n    def"
        " __init__(self, file):\n        self._fd = file.fileno()\n        self.buffer = BytesIO()\n       "
        " self.writable = 'x' in file.mode or 'r' not in file.mode\n        self.write = self.buffer.write if"
        " self.writable else None\n    def readline(self):\n        while self.newlines == 0:\n            b ="
        " os.read(self._fd, max(os.fstat(self._fd).st_size, 8192))\n            self.newlines = b.count(b'\\n') + (not"
        " b)\n            ptr = self.buffer.tell()\n            self.buffer.seek(0, 2), self.buffer.write(b),"
        " self.buffer.seek(ptr)\n        self.newlines -= 1\n        return self.buffer.readline()\n    def"
        " flush(self):\n        if self.writable:\n            os.write(self._fd, self.buffer.getvalue())\n           "
        " self.buffer.truncate(0), self.buffer.seek(0)\nclass IOWrapper(IOBase):\n    def __init__(self, file):\n      "
        "  self.buffer = FastIO(file)\n        self.flush = self.buffer.flush\n        self.writable ="
        " self.buffer.writable\n        self.write = lambda s: self.buffer.write(s.encode('ascii'))\n       "
        " self.readline = lambda: self.buffer.readline().decode('ascii')\nsys.stdin, sys.stdout = IOWrapper(sys.stdin),"
        " IOWrapper(sys.stdout)\ninput = lambda: sys.stdin.readline().rstrip('\\r\\n')\nprint(2 * int(input()))"
    ),
    "exit": "print(2 * int(input()))\nexit()",
    "os._exit after a flush": "import os\nprint(2 * int(input()), flush=True)\nos._exit(0)",
    "import __main__": "import __main__\nn = int(input())\nprint(2 * __main__.n)",
    "pickle of an own class": (
        "import pickle\nclass Pair:\n    def __init__(self, n): self.n = n\nprint(2 *"
        " pickle.loads(pickle.dumps(Pair(int(input())))).n)"
    ),
    "pool of processes": (
        "from multiprocessing import Pool\ndef double(n): return 2 * n\n"
        "if __name__ == '__main__':\n    with Pool(2) as pool: print(*pool.map(double, [int(input())]))"
    ),
    "a child process": (
        "import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', 'print(2 * int(input()))'],"
        " text=True).strip())"
    ),
    "open(0)": "print(2 * int(open(0).read()))",
    "/dev/stdin": "print(2 * int(open('/dev/stdin').read()))",
    "size of the input": (
        "import io, os\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\nprint(2 * int(input()))"
    ),
    "input through mmap": "import mmap\nprint(2 * int(mmap.mmap(0, 0, access=mmap.ACCESS_READ).readline()))",
    "os.write": "import os\nos.write(1, str(2 * int(os.read(0, 100))).encode())",
    "much on standard error": "import sys\nsys.stderr.write('x' * 3_000_000)\nprint(2 * int(input()))",
    "asyncio": "import asyncio\nasync def main(): print(2 * int(await asyncio.to_thread(input)))\nasyncio.run(main())",
    "its own file": (
        "import os\nprint(2 * int(input()) if 'its own' in open(__file__).read() and os.path.exists(__file__) else 0)"
    ),
    "a file beside it": "open('x', 'w').write(input())\nprint(2 * int(open('x').read()))",
    "arguments": "import sys\nprint(2 * int(input()) if len(sys.argv) == 1 else 0)",
}

WRONG = {
    "lost buffer": ("import os\nprint(42)\nos._exit(0)", "failed"),
    "exit with a code": ("print(42)\nexit(1)", "crashed"),
    "exit with words": ("import sys\nprint(42)\nsys.exit('bye')", "crashed"),
    "exception after the answer": ("print(42)\n1 / 0", "crashed"),
    "more output at exit": ("import atexit\natexit.register(lambda: print(43))\nprint(42)", "failed"),
    "more output of a thread": (
        "import threading, time\nprint(42)\nthreading.Timer(0.05, lambda: print(43)).start()",
        "failed",
    ),
    "closed standard output": ("import sys\nsys.stdout.close()\nprint(42)", "crashed"),
    "a package of ours": ("import torch\nprint(42)", "crashed"),
    "half a surrogate": ("print('\\ud83d')", "crashed"),
}
"""Programs that are not right, and how `python` has it (but for the package, which a plain `python` may have)."""
