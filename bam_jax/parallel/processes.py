"""Training in several processes, on one host or many: how they find one another, stop at one step, and end together.

Of this a single process needs `stopping` alone, by which SIGTERM and Ctrl-C leave a checkpoint.
"""

import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

import jax
import numpy as np
from jax._src import (
    clusters,
    distributed,
)  # what jax.distributed.initialize would find; the coordinator's key-value store
from jax.experimental import multihost_utils

from bam_jax.system import console, errors
from bam_jax.system.errors import UserError

JOIN = 300
"""Seconds that a process waits for the others to start."""
HEARTBEAT = 40
"""Seconds after which a process that says nothing counts as lost."""
LOST = re.compile("gloo|nccl|unavailable|heartbeat|deadline", re.IGNORECASE)
"""In what the runtime says when the other end of a connection is gone."""
AGAIN = "start all processes again: the run goes on from its last checkpoint"
ALONE = (
    "the processes of this job did not find one another; see that each is started, with no error of its own, and that "
    "the coordinator's port is free and open to all"
)

URGENT = 1.0
"""Seconds after which one more signal ends the process: a terminal and a launcher may both send it the same one."""
SIGNALS = {signal.SIGTERM: ("SIGTERM", errors.AGAIN), signal.SIGINT: ("Ctrl-C", errors.INTERRUPTED)}
"""The signals that tell a training to stop: name and exit code of each."""

End = Callable[[int, str], None]
"""Ends the process, and all others of its job, at once; it takes an exit code and a line."""

_END = "bam_jax/end"
_POLL = 0.5  # seconds
_FAREWELL = 5  # seconds for all others to hear why a process ends


@contextlib.contextmanager
def joined(coordinator: str = "", count: int = 0, index: int | None = None) -> Iterator[End]:
    """Make this process one of the job's, if there are several, and have all of them end when one does.

    They find one another by the arguments, or by what SLURM, Open MPI, TPU pods, GKE and Kubernetes tell their processes.
    An error in the block, in any process, is one line in all of them, with its exit code. A process that vanishes is
    noticed after `HEARTBEAT` seconds at the latest, and the others exit with `errors.AGAIN`. What the block gets is a
    function that ends all of them at once.

    Args:
        coordinator: host:port of process 0, where the port is free; "": as the scheduler says, if there is one.
        count: processes of the job; 1 alone: this one, whatever a scheduler says.
        index: which of them this is, from 0.

    Raises:
        UserError: a part of the three is missing, or the others do not come.
    """
    if not _initialised(coordinator, count, index):
        yield _end_alone
        return
    together = _Together()
    with together.watching():
        try:
            yield together.end
        except errors.Stopped:  # all processes raise it
            raise
        except (Exception, KeyboardInterrupt) as error:
            together.end(*_ending(error))


def first() -> bool:
    """Whether this is the process that writes what is written once."""
    return jax.process_index() == 0


def agreed(number: int) -> int:
    """A number of process 0, in all of them; none goes on before all are here.

    Args:
        number: that of this process, which does not matter elsewhere than in process 0.
    """
    return int(multihost_utils.broadcast_one_to_all(np.int32(number))) if jax.process_count() > 1 else number


@contextlib.contextmanager
def stopping(end: End) -> Iterator[Callable[[int], bool]]:
    """A function that says after a step whether to stop there, since SIGTERM or Ctrl-C has come to any of the processes.

    It is asked after every step that is whole, and says yes to the same one in all processes. A signal is answered with a
    line at once. It ends the process at once as long as nothing is trained, that is, before the first question; so does one
    more signal, `URGENT` seconds or more after the first one.

    Args:
        end: of `joined`.

    Raises:
        errors.Interrupted: in place of the block's `errors.Stopped`, where Ctrl-C was the reason.
    """
    stop = _Stop(end)
    with contextlib.ExitStack() as stack:
        if stop.together:
            stack.enter_context(stop.runtime())
        stack.enter_context(stop.listening())
        try:
            yield stop
        except errors.Stopped as error:
            if stop.by == signal.SIGINT:
                raise errors.Interrupted(str(error)) from error
            raise


class _Stop:
    """The wish to stop, the signal that said so, and a thread that answers it.

    Python runs a signal's handler in the main thread, which may be in compiled code for minutes. Its number is written to
    a pipe at once, and a thread reads that.
    """

    def __init__(self, end: End) -> None:
        self._end = end
        self._trained = False
        self._since: float | None = None
        self._tell_runtime: Callable[[int], None] | None = None
        self.together = distributed.global_state.client is not None
        self.by: int | None = None

    def __call__(self, step: int) -> bool:
        self._trained = True
        return multihost_utils.reached_preemption_sync_point(step) if self.together else self.by is not None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)  # what signal.set_wakeup_fd asks for
        thread = threading.Thread(target=self._listen, args=(reader,), daemon=True)
        before = {number: signal.signal(number, self._asked) for number in SIGNALS}
        pipe = signal.set_wakeup_fd(writer)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(pipe)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.write(writer, b"\0")
            thread.join()
            os.close(reader)
            os.close(writer)

    @contextlib.contextmanager
    def runtime(self) -> Iterator[None]:
        """Pass SIGTERM on to jax, whose own handler is not Python's, and by which it agrees on a step with the others."""
        set_handler = ctypes.CDLL(None).signal
        set_handler.argtypes, set_handler.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        theirs = set_handler(signal.SIGTERM, int(signal.SIG_IGN))
        assert theirs, "jax listens to SIGTERM"
        self._tell_runtime = ctypes.CFUNCTYPE(None, ctypes.c_int)(theirs)
        try:
            yield
        finally:
            set_handler(signal.SIGTERM, theirs)

    def _asked(self, number: int, _: FrameType | None) -> None:
        self.by = self.by or number

    def _listen(self, reader: int) -> None:
        while number := os.read(reader, 1)[0]:
            if number in SIGNALS:
                self._answer(number)

    def _answer(self, number: int) -> None:
        name, status = SIGNALS[signal.Signals(number)]
        self.by, now = self.by or number, time.monotonic()
        if not self._trained:
            self._end(
                status, f"stopped by {name} before a step was trained: nothing is lost, start the same command again"
            )
        elif self._since is None:
            self._since = now
            if self._tell_runtime is not None:
                self._tell_runtime(signal.SIGTERM)
            console.say(
                f"{name}: it saves after the steps under way, then ends; once more, and it ends at once without that"
            )
        elif now - self._since >= URGENT:
            self._end(
                status, f"ended by {name} at once; the same command goes on from the last checkpoint that is whole"
            )


def _end_alone(status: int, line: str) -> None:
    """End this process at once; an orderly exit would wait for what is being compiled."""
    console.say(line)
    sys.stdout.flush()
    os._exit(status)


def _initialised(coordinator: str, count: int, index: int | None) -> bool:
    stated = coordinator != "", count != 0, index is not None
    if (coordinator, count, index) == ("", 1, None):
        return False
    if any(stated) and not all(stated):
        raise UserError(
            "--coordinator=HOST:PORT, --processes=N and --process=I belong together; give all three, or none"
        )
    if index is not None and not 0 <= index < count:
        raise UserError(f"--process={index} must be from 0 to {count - 1}, one less than --processes={count}")
    if any(stated) and not re.fullmatch(r".+:\d+", coordinator):
        raise UserError(f"--coordinator={coordinator} must be HOST:PORT, of process 0")
    if count == 0:
        known = [each for each in clusters.ClusterEnv._cluster_types if not each.opt_in_only_method]
        found = next((each for each in known if each.is_env_present()), None)
        count = found.get_process_count() if found else 1
    if count == 1:
        return False
    _on_abort()
    try:
        jax.distributed.initialize(
            coordinator or None,
            count,
            index,
            cluster_detection_method="deactivate" if coordinator else None,
            initialization_timeout=JOIN,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=HEARTBEAT,
        )
    except (jax.errors.JaxRuntimeError, RuntimeError) as error:
        raise UserError(f"{ALONE} ({_short(error)})") from error
    return True


class _Together:
    """What one process ends with, the others end with too."""

    def __init__(self) -> None:
        client = distributed.global_state.client
        assert client is not None
        self._client = client
        self._ending = threading.Lock()
        self._over = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look whether another process ends, in a thread: this one may be waiting for it in compiled code."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def end(self, status: int, line: str) -> None:
        """End this process and all others with a line and an exit code; does not return.

        Args:
            status: the exit code.
            line: what to say.
        """
        with self._ending:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # another was faster, or process 0 is gone
                self._client.key_value_set(_END, f"{status} {line}")
            self._leave(status, line)

    def _watch(self) -> None:
        while not self._over.wait(_POLL):
            try:
                said = self._client.key_value_dir_get("bam_jax")
            except jax.errors.JaxRuntimeError as error:
                with self._ending:
                    self._leave(errors.AGAIN, f"error: process 0 cannot be reached any more; {AGAIN} ({_short(error)})")
            if said:
                status, _, line = said[0][1].partition(" ")
                with self._ending:
                    self._leave(int(status), line)

    def _leave(self, status: int, line: str) -> None:
        console.say(line)
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the one that is gone does not come
            self._client.wait_at_barrier(_END, _FAREWELL * 1000)
        if first():
            time.sleep(_POLL)  # the others' farewell goes through this process
        os._exit(status)  # an orderly exit would wait for processes that are gone


def _ending(error: BaseException) -> tuple[int, str]:
    """The exit code and the line for an error that ends a process."""
    here = f"process {jax.process_index()}"
    status, line = errors.ending(error) or (1, "")
    if line:
        return status, f"{'error: ' if status == 2 else ''}{line} ({here})"
    if isinstance(error, jax.errors.JaxRuntimeError) and LOST.search(str(error)):
        return errors.AGAIN, f"error: {here} has lost the connection to another one; {AGAIN} ({_short(error)})"
    traceback.print_exception(error)
    return status, f"error: {here} ended with {type(error).__name__}: {_short(error)}"


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]


def _aborted(_: int) -> None:
    if distributed.global_state.preemption_sync_manager is None:  # what initialisation sets last
        status, line = 2, ALONE
    else:
        status = errors.AGAIN
        line = (
            f"process {distributed.global_state.process_id} was ended by the runtime, which says why above: most often "
            f"another process is gone; {AGAIN}"
        )
    os.write(2, f"error: {line}\n".encode())
    os._exit(status)


_ABORTED = ctypes.CFUNCTYPE(None, ctypes.c_int)(_aborted)


def _on_abort() -> None:
    """Have the last line be for the user when jax's runtime ends this process, as it does when another one is lost.

    It does so with a long report from a thread of its own and SIGABRT, which Python's own handlers would never see.
    """
    ctypes.CDLL(None).signal(signal.SIGABRT, _ABORTED)
