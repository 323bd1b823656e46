"""Read files that may do harm, each in a forked process: what came of it, and what it cost."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

import numpy as np
from everything import everything

import archive

LIBRARIES = tuple({str(Path(os.__file__).parent), *(p for p in sys.path if p), sys.prefix, sys.base_prefix})
AT_MOST = 30  # seconds; a file that leads somewhere it cannot be read from waits forever


def examine(path, out):
    """Read a file and append to it; write down what happened, also which files were opened."""
    seen = set()

    def watch(event, arguments):
        if event in (
            "open",
            "os.listdir",
            "os.scandir",
            "subprocess.Popen",
            "os.exec",
            "socket.connect",
            "pickle.find_class",
        ):
            name = str(arguments[0])
            if not name.startswith(LIBRARIES):
                seen.add(f"{event} {name}")

    sys.addaudithook(watch)
    found = everything(path) | verified(path) | appended(path)
    out.write(json.dumps({"found": found, "seen": sorted(seen)}))
    out.flush()


def verified(path):
    """Verify a file; whatever it finds is right, as long as it finds it."""
    try:
        archive.verify(path)
    except archive.ArchiveError:
        pass
    except Exception as error:
        return {"verify": f"raised {type(error).__name__}: {error}"}
    return {"verify": ""}


def appended(path):
    """Open a file for writing, append a step, checkpoint, close; return how it went."""
    try:
        with archive.open(path, "a", commit_every=None, memory="64 MiB") as run:
            lead = () if run.schema.num_envs is None else (run.num_envs,)
            seen = {"place": np.zeros((*lead, 3), "f4"), "pixels": np.zeros((*lead, 6, 6), "u1")}
            flag = np.zeros(lead, "?") if lead else False
            run.reset(seen)
            for _ in range(3):
                run.step(np.zeros(lead, "i8"), seen, np.zeros(lead, "f4"), flag, flag, word=np.full(lead, b"x"))
            run.checkpoint(step=1)
            run.checkpoint(step=2)
            if run.last_checkpoint["step"] != 2:
                return {"append": "raised nothing, but the checkpoint is gone"}
        return {"append": ""}
    except archive.ArchiveError as error:
        return {"append": f"refused: {error}"}
    except Exception as error:
        return {"append": f"raised {type(error).__name__}: {error}"}


def main():
    """Do as each line of JSON says: [path, where to write]."""
    for line in sys.stdin:
        path, where = json.loads(line)
        pid = os.fork()
        if not pid:
            signal.alarm(AT_MOST)
            with open(where, "w", encoding="utf-8") as out:
                examine(path, out)
            os._exit(0)
        _, status, used = os.wait4(pid, 0)
        cost = {"status": status, "seconds": used.ru_utime + used.ru_stime, "megabytes": used.ru_maxrss >> 10}
        print(json.dumps(cost), flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
