"""Remove temporary folders with any content that a program left. No process is left by then to move things."""

import contextlib
import shutil
import subprocess


def remove(path):
    """Remove a folder and all in it: links, pipes, folders without permissions, any depth. Raises OSError."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(path)
        return
    subprocess.run(["chmod", "-R", "u+rwx", path], capture_output=True)  # both take any depth, and follow no link
    if done := subprocess.run(["rm", "-rf", path], capture_output=True, text=True).stderr:
        raise OSError(done.strip())
