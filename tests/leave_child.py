"""Processes that leave, fork, collect garbage or are interrupted while runs are open.

    leave_child.py SCENARIO FOLDER FIRST LAST

forks for each number from FIRST to LAST and plays the scenario in each child, which then ends as the scenario wants;
prints the exit code of each. Each child records in FOLDER/<n>.h5 and writes down in FOLDER/<n>.committed how many rows
it has committed.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
import gc
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from faults import failing, schema, value

import archive
import archive.opening
import archive.store

DEADLOCK = 60  # seconds after which a process says where it hangs and ends


class Recorder:
    """A run, new or old, whose rows are known by their number, and a list of what has been committed."""

    def __init__(self, path):
        self.path = path
        self.list = os.open(path.with_suffix(".committed"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.reopen()

    def append(self, count=1):
        for _ in range(count):
            row = self.run.num_rows
            observation = {k: value(f"observation/{k}", 0, row, 0) for k in ("vector", "pixels")}
            if row == 0:
                self.run.reset(observation)
            else:
                done = [value(k, 0, row - 1, 0) for k in ("action", "reward", "log_prob")]
                self.run.step(done[0], observation, done[1], False, False, log_prob=done[2])

    def commit(self):
        rows = self.run.num_rows
        self.run.commit()
        self.note(rows)

    def note(self, rows):
        os.write(self.list, b"%d\n" % rows)

    def close(self):
        rows = self.run.num_rows
        self.run.close()
        self.note(rows)

    def reopen(self):
        self.run = archive.open(self.path, "a", schema(0), commit_every=None)

    def started(self):
        """Record some committed rows and some that are not."""
        self.append(20)
        self.commit()
        self.append(5)
        return self


def watch():
    """Have this process end with a traceback if it hangs; each forked process needs its own watch."""
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(DEADLOCK)


def in_thread(function):
    """Run a function in a daemon thread."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def pause(longest=0.03):
    time.sleep(random.uniform(0, longest))


# --- ends of a process with a run open


def falls_off_the_end(path):
    Recorder(path).started()


def keeps_it_in_a_global(path):
    global kept
    kept = Recorder(path).started()


def calls_sys_exit(path):
    recorder = Recorder(path).started()
    sys.exit(3 if recorder.run.num_rows else 0)


def raises(path):
    recorder = Recorder(path).started()
    raise ValueError(f"on purpose, after {recorder.run.num_rows} rows")


def calls_os_exit(path):
    Recorder(path).started()
    os._exit(4)


def closes_at_exit(path):
    recorder = Recorder(path).started()
    atexit.register(recorder.close)


def closes_after_ours(path):
    atexit.unregister(archive.guard.leave)
    recorder = Recorder(path)
    atexit.register(recorder.close)  # registered first, so it runs last
    atexit.register(archive.guard.leave)
    recorder.started()


def leaves_a_daemon_stepping(path):
    recorder = Recorder(path).started()

    def forever():
        while True:
            recorder.append(random.randint(1, 9))
            recorder.commit()

    in_thread(forever)
    pause()


def leaves_daemons_sampling(path):
    recorder = Recorder(path).started()

    def forever():
        replay = recorder.run.replay(batch_size=16, n_step=2, sampler=archive.Prioritized())
        while True:
            batch = replay.sample()
            replay.update_priorities(batch.index, abs(batch.reward))

    for _ in range(3):
        in_thread(forever)
    pause()


def leaves_readers_open(path):
    recorder = Recorder(path).started()
    readers = [archive.open(path) for _ in range(3)]
    replay = readers[0].replay(batch_size=4)

    def forever():
        while True:
            readers[1].refresh()
            replay.sample()

    in_thread(forever)
    pause()
    assert recorder.run.num_rows == 25


def leaves_several_runs_open(path):
    others = [Recorder(path.with_name(f"{path.stem}_{k}.h5")).started() for k in range(3)]
    recorder = Recorder(path).started()
    others[1].close()
    assert recorder.run.num_rows == 25


def leaves_a_broken_run(path):
    recorder = Recorder(path)
    recorder.append(20)
    recorder.close()
    archive.store.JournaledFile = failing(random.randint(120, 160), errno.ENOSPC, 0.5)
    recorder.reopen()
    with contextlib.suppress(OSError):
        while True:
            recorder.append(3)
            recorder.commit()


def gets_sigterm(path):
    recorder = Recorder(path).started()

    def kill():
        pause()
        os.kill(os.getpid(), signal.SIGTERM)

    in_thread(kill)
    while True:
        recorder.append(random.randint(1, 9))
        recorder.commit()


def drops_it(path):
    Recorder(path).started()
    gc.collect()
    archive.create(path.with_name(f"{path.stem}_other.h5"), schema(0)).close()


def leaves_it_in_a_cycle(path):
    recorder = Recorder(path).started()
    cycle = [recorder, recorder.run, recorder.run["action"], recorder.run.replay()]
    cycle.append(cycle)
    recorder.run.cycle = cycle
    del recorder, cycle


# --- garbage, threads


def collects_all_the_time(path):
    gc.set_threshold(1)
    recorder = Recorder(path).started()
    for k in range(8):
        other = archive.open(path)
        cycle = [other, other["observation/vector"], other.replay()]
        cycle.append(cycle)
        recorder.append(3)
        recorder.commit()
        if k % 3 == 2:
            recorder.close()
            recorder.reopen()
    recorder.close()


def samples_in_threads(path):
    recorder = Recorder(path).started()
    stop, failures = threading.Event(), []

    def watched(function):
        def loop():
            try:
                while not stop.is_set():
                    function()
            except BaseException as error:
                failures.append(error)

        return in_thread(loop)

    replay = recorder.run.replay(batch_size=8, sampler=archive.Prioritized())

    def sample():
        batch = replay.sample()
        for index, action in zip(batch.index.tolist(), batch.action.tolist(), strict=True):
            assert action == value("action", 0, index, 0)
        replay.update_priorities(batch.index, abs(batch.reward))

    def look():
        rows = recorder.run.num_rows - 1
        assert recorder.run["action"][rows - 1] == value("action", 0, rows - 1, 0)
        with archive.open(path) as other:
            assert other.num_rows >= 20

    threads = [watched(f) for f in (sample, sample, look, gc.collect)]
    for _ in range(10):
        recorder.append(4)
        recorder.commit()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    recorder.close()


# --- Ctrl-C


CTRL_C = {signal.SIGINT}


def interrupts(action):
    """Do something while Ctrl-C may arrive, and tell whether it did; the rest of the test runs undisturbed."""
    try:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, CTRL_C)
            action()
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, CTRL_C)
    except KeyboardInterrupt:
        return True
    return False


def interrupted(path, again):
    """Do `again(recorder)` while Ctrl-C arrives at random moments; afterwards go on or reopen."""
    recorder = Recorder(path).started()
    stop, came = threading.Event(), 0

    def press():
        while not stop.is_set():
            time.sleep(random.uniform(0, 0.01))
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.005)

    signal.pthread_sigmask(signal.SIG_BLOCK, CTRL_C)  # for the new thread as well
    presser = in_thread(press)
    while came < 10:
        came += interrupts(lambda: again(recorder))
        if not usable(recorder.run):
            recorder.run.close()
            recorder.reopen()
    stop.set()
    presser.join()
    interrupts(lambda: time.sleep(0.01))
    recorder.append(10)
    recorder.close()


def usable(run):
    """Tell whether a run takes commits."""
    try:
        run.commit()
    except archive.StateError:
        return False
    return True


def interrupted_steps(path):
    interrupted(path, lambda recorder: recorder.append())


def interrupted_commits(path):
    def again(recorder):
        recorder.append()
        recorder.commit()

    interrupted(path, again)


def interrupted_closes(path):
    def again(recorder):
        recorder.append()
        recorder.close()
        recorder.reopen()

    interrupted(path, again)


class At:
    """Press Ctrl-C when the `number`-th line of the package runs in this block; `came` says whether it was reached."""

    def __init__(self, number):
        self.left, self.came = number, False

    def __enter__(self):
        sys.settrace(self.trace)
        return self

    def __exit__(self, *error):
        sys.settrace(None)

    def trace(self, frame, event, argument):
        if Path(frame.f_code.co_filename).parent.name != "archive":
            return None
        if event == "line" and not self.came:
            self.left -= 1
            if self.left == 0:
                self.came = True
                signal.raise_signal(signal.SIGINT)
        return self.trace


def interrupted_at_lines(recorder, action, first, stride):
    """Press Ctrl-C at lines first, first + stride ... of an action until it runs without; return how often."""
    for number in range(first, 100_000, stride):
        rows = recorder.run.num_rows
        with At(number) as at, contextlib.suppress(KeyboardInterrupt):
            action(recorder)
        if not usable(recorder.run):
            recorder.run.close()
            recorder.reopen()
        assert rows <= recorder.run.num_rows <= rows + 1, (number, rows, recorder.run.num_rows)
        if not at.came:
            return (number - first) // stride
    raise AssertionError("never ran to its end")


def interrupted_everywhere(path):
    """Ctrl-C at lines all over step, commit, checkpoint and close."""
    recorder = Recorder(path).started()
    first = 1 + int(path.stem)  # every try presses at other lines
    times = [
        interrupted_at_lines(recorder, lambda r: r.append(), first, 20),
        interrupted_at_lines(recorder, lambda r: r.run.commit(), first, 20),
        interrupted_at_lines(recorder, lambda r: r.append() or r.run.commit(), first * 5, 100),
        interrupted_at_lines(recorder, lambda r: r.run.checkpoint(x=1), first * 5, 100),
        interrupted_at_lines(recorder, lambda r: r.run.close(), first * 10, 200),
    ]
    assert min(times) >= 1
    with At(1 << 60) as at:
        recorder.run.close()
    last = (1 << 60) - at.left - 3 * int(path.stem)  # all tries together press at each of the last sixty lines
    recorder.reopen()
    for number in range(last, last - 3, -1):
        with At(number), contextlib.suppress(KeyboardInterrupt):
            recorder.run.close()
        recorder.reopen()
    recorder.append(3)
    recorder.close()


def interrupted_while_opening(path):
    """Ctrl-C at lines all over open and create: nothing stays locked, nothing half made stays behind."""
    recorder = Recorder(path).started()
    recorder.close()
    first = 1 + 50 * int(path.stem)
    new = path.with_name(f"{path.stem}_new.h5")
    for action in (lambda: archive.open(path, "a", commit_every=None), lambda: archive.create(new, schema(0))):
        with At(1 << 60) as whole:
            run = action()
        run.close()
        new.unlink(missing_ok=True)
        last = (1 << 60) - whole.left - 3 * int(path.stem)  # all tries together press at each of the last sixty lines
        for number in (*range(first, last, 1009), last - 2, last - 1, last, 100_000):
            run = None
            with At(number) as at, contextlib.suppress(KeyboardInterrupt):
                run = action()
            if run is None:
                names = [f"{one.name}{end}" for one in (path, new) for end in (".lock", ".partial")]
                left = [name for name in names if path.with_name(name).exists()]
                assert not left, (number, left)
                assert not archive.guard.writers
            else:
                run.close()
            new.unlink(missing_ok=True)
            if not at.came:
                break
    recorder.reopen()
    recorder.append(3)
    recorder.close()


# --- forks


def fork(child):
    """Run `child` in a forked process, which ends as a Python process does; return its id."""
    pid = os.fork()
    if pid == 0:
        try:
            watch()
            child()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        raise SystemExit(0)
    return pid


def expect_success(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def forks_children_that_exit(path):
    recorder = Recorder(path).started()
    for _ in range(5):
        expect_success(fork(lambda: None))
        recorder.append(3)
        recorder.commit()
    recorder.close()


def forks_children_that_end_at_once(path):
    recorder = Recorder(path).started()
    for _ in range(5):
        expect_success(fork(lambda: os._exit(0)))
        recorder.append(3)
        recorder.commit()
    recorder.close()


def forks_children_that_use_the_run(path):
    recorder = Recorder(path).started()
    reader = archive.open(path)

    def child():
        for verb in (recorder.append, recorder.run.commit, lambda: recorder.run.checkpoint(x=1)):
            try:
                verb()
            except archive.StateError:
                continue
            raise AssertionError("a forked child must not write")
        recorder.run.close()
        for name in ("action", "observation/vector"):
            assert reader[name][3].tobytes() == value(name, 0, 3, 0).tobytes()
        with archive.open(path) as again:
            assert again.num_rows >= 20
        try:
            archive.open(path, "a")
        except archive.LockedError:
            return
        raise AssertionError("the parent is writing")

    for _ in range(5):
        expect_success(fork(child))
        recorder.append(3)
        recorder.commit()
    reader.close()
    recorder.close()


def forks_beside_threads(path):
    recorder = Recorder(path).started()
    stop = threading.Event()

    def record():
        while not stop.is_set():
            recorder.append(2)
            recorder.commit()

    def sample():
        replay = recorder.run.replay(batch_size=4)
        while not stop.is_set():
            replay.sample()

    def collect():
        while not stop.is_set():
            gc.collect()

    threads = [in_thread(f) for f in (record, sample, collect)]
    for k in range(5):
        expect_success(fork(lambda: os._exit(0) if k % 2 else gc.collect()))  # noqa: B023 - called at once
    stop.set()
    for thread in threads:
        thread.join()
    recorder.close()


def double(x):
    return 2 * x


def uses_a_pool(path):
    recorder = Recorder(path).started()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for k in range(5):
            assert pool.map(double, range(4)) == [0, 2, 4, 6]
            recorder.append(k)
            recorder.commit()
    recorder.close()


def serve(pipe):
    """Answer like an environment in a worker process."""
    while True:
        row = pipe.recv()
        pipe.send([value(k, 0, row, 0) for k in ("observation/vector", "observation/pixels")])


def leaves_workers_behind(path):
    """Like a vector environment in worker processes, never closed."""
    recorder = Recorder(path).started()
    context, ends = multiprocessing.get_context("fork"), []
    for _ in range(2):
        here, there = context.Pipe()
        context.Process(target=serve, args=(there,), daemon=True).start()
        ends.append(here)
    for k in range(10):
        for end in ends:
            end.send(recorder.run.num_rows)
        assert all(len(end.recv()) == 2 for end in ends)
        recorder.append()
        if k % 3 == 0:
            recorder.commit()


def survivor():
    """Live on without the pipes of the test until it closes standard input."""
    signal.alarm(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.read(0, 1)
    os._exit(0)


def leaves_a_child_and_is_killed(path):
    Recorder(path).started()
    fork(survivor)
    os.kill(os.getpid(), signal.SIGKILL)


def leaves_a_child_and_exits(path):
    Recorder(path).started()
    fork(survivor)


def forks_while_opening_and_is_killed(path):
    """A thread forks while another one is opening a run: the child must not keep that run's lock."""
    recorder = Recorder(path).started()
    recorder.close()
    recover, threads = archive.opening.recover, []

    def fork_and_recover(*arguments):
        threads.append(in_thread(lambda: fork(survivor)))
        pause()  # the fork waits until the run is open, or comes before it: never in between
        return recover(*arguments)

    archive.opening.recover = fork_and_recover
    recorder.reopen()
    threads[0].join()
    os.kill(os.getpid(), signal.SIGKILL)


# --- the process around them


def attempt(scenario, path):
    """Play one scenario; a hang ends in a traceback."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
    watch()
    random.seed(str(path))
    globals()[scenario](path)


def main(scenario, folder, first, last):
    for number in range(int(first), int(last) + 1):
        pid = os.fork()
        if pid == 0:
            return attempt(scenario, Path(folder) / f"{number}.h5")
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
