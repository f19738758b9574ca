"""Training in several processes, on one host or many: they join, stop at the same step, and end together.

A single process uses only `stopping`, with which SIGTERM and Ctrl-C leave a checkpoint.
"""

import argparse
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
from typing import Self

import jax
from jax.experimental import multihost_utils

from bam_jax.parallel import jax_private
from bam_jax.system import console, errors
from bam_jax.system.errors import UserError

JOIN = 300
"""Seconds that a process waits for the others to start."""
HEARTBEAT = 40
"""Seconds without a sign of life after which a process counts as lost.

A host that loses its power closes no connection. With JAX's default of 100 s, accelerators would wait for longer than a restart
takes. With a much smaller value, a pause of a busy host would end a run."""
LOST = re.compile("gloo|nccl|unavailable|heartbeat|deadline", re.IGNORECASE)
"""Matches the runtime's errors when the other end of a connection is gone."""
RESTART = "start all processes again: the run goes on from its last checkpoint"
NOT_TOGETHER = (
    "the processes of this job did not find one another; see that each is started, with no error of its own, and that "
    "the coordinator's port is free and open to all"
)

URGENT = 1.0
"""Seconds after which a second signal ends the process; before that, a terminal and a launcher may both send the same one."""
SIGNALS = {signal.SIGTERM: ("SIGTERM", errors.AGAIN), signal.SIGINT: ("Ctrl-C", errors.INTERRUPTED)}
"""The signals that stop a training, with their names and exit codes."""

End = Callable[[int, str], None]
"""Ends the process, and all others of its job, at once; it takes an exit code and a line."""

_FOLDER = "bam_jax"  # in the coordinator's key-value store
_END = f"{_FOLDER}/end"
_POLL = 0.5  # seconds
_FAREWELL = 5  # seconds for all others to learn why a process ends


@contextlib.contextmanager
def joined(coordinator: str = "", count: int = 0, index: int | None = None) -> Iterator[End]:
    """Join the processes of a job, if there are several, so that all of them end when one does.

    They find one another by the arguments, or by the variables of SLURM, Open MPI, TPU pods, GKE and Kubernetes. An error in the
    block, in any process, ends all of them with one line and its exit code. A process that vanishes is noticed after at most
    `HEARTBEAT` seconds, and the others exit with `errors.AGAIN`. Yields a function that ends all processes at once.
    """
    if not _initialise(coordinator, count, index):
        yield _end_alone
        return
    with _Together() as together:
        yield together.end


def options(parser: argparse.ArgumentParser, what: str, default: int) -> None:
    """Adds --coordinator, --processes and --process to a command, for `joined`."""
    counted = "1: this one alone, in any job; 0: all that a scheduler has started"
    add = parser.add_argument
    add("--coordinator", default="", help="HOST:PORT of process 0, if no scheduler says it (docs/launch.md)")
    add("--processes", type=int, default=default, help=f"how many {what} together ({default}; {counted})")
    add("--process", type=int, help="which of them this is, from 0")


def is_first() -> bool:
    """True in process 0, which writes the files."""
    return jax.process_index() == 0


@contextlib.contextmanager
def leaving_together(name: str, seconds: float) -> Iterator[None]:
    """At the end of the block, also after `errors.Stopped`, wait for all processes to reach it.

    Otherwise, the processes that end first would end the last one after `HEARTBEAT` seconds, when JAX shuts down.
    """
    try:
        yield
    except errors.Stopped:
        _wait_for_all(name, seconds)
        raise
    _wait_for_all(name, seconds)


def _wait_for_all(name: str, seconds: float) -> None:
    if jax.distributed.is_initialized():
        jax_private.coordination_client().wait_at_barrier(f"{_FOLDER}-{name}", round(seconds * 1000))


@contextlib.contextmanager
def stopping(end: End) -> Iterator[Callable[[int], bool]]:
    """Yield a function that is called after every step and returns true if a SIGTERM or Ctrl-C asks to stop there.

    It returns true at the same step in all processes, whichever of them got the signal. A signal is answered with a log line at
    once. Before the first call, when nothing is trained yet, a signal ends the process at once. So does a second signal, `URGENT`
    seconds or more after the first. The block's `errors.Stopped` becomes `errors.Interrupted` if Ctrl-C was the reason.
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
    """Whether to stop, the signal that asked for it, and a thread that answers signals.

    Python runs a signal's handler in the main thread, between two Python instructions: while XLA compiles, that may be minutes
    later. But C writes the signal's number to the descriptor of `signal.set_wakeup_fd` at once, and a thread reads it there.
    """

    def __init__(self, end: End) -> None:
        self._end = end
        self._trained = False
        self._since: float | None = None
        self._forward_sigterm: Callable[[int], None] | None = None
        self.together = jax.distributed.is_initialized()
        self.by: int | None = None

    def __call__(self, step: int) -> bool:
        self._trained = True
        return multihost_utils.reached_preemption_sync_point(step) if self.together else self.by is not None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Answer signals in the block, and restore the handlers after it."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)  # as set_wakeup_fd requires: a full pipe must not block the handler in C
        thread = threading.Thread(target=self._listen, args=(reader,), daemon=True)
        before = {number: signal.signal(number, self._note) for number in SIGNALS}
        pipe = signal.set_wakeup_fd(writer)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(pipe)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.write(writer, b"\0")  # not a signal: it ends the thread
            thread.join()
            os.close(reader)
            os.close(writer)

    @contextlib.contextmanager
    def runtime(self) -> Iterator[None]:
        """Forward SIGTERM to jax's own handler, which asks all processes to stop at the same step."""
        # Python does not know this handler: it is fetched through the C library.
        set_handler = ctypes.CDLL(None).signal
        set_handler.argtypes, set_handler.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        theirs = set_handler(signal.SIGTERM, int(signal.SIG_IGN))
        assert theirs, "jax listens to SIGTERM"
        self._forward_sigterm = ctypes.CFUNCTYPE(None, ctypes.c_int)(theirs)
        try:
            yield
        finally:
            set_handler(signal.SIGTERM, theirs)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.by = self.by or number

    def _listen(self, reader: int) -> None:
        while number := os.read(reader, 1)[0]:
            if number in SIGNALS:
                self._answer(number)

    def _answer(self, number: int) -> None:
        name, status = SIGNALS[signal.Signals(number)]
        self.by, now = self.by or number, time.monotonic()
        if not self._trained:
            line = f"stopped by {name} before a step was trained: nothing is lost, start the same command again"
            self._end(status, line)
        elif self._since is None:
            self._since = now
            if self._forward_sigterm is not None:
                self._forward_sigterm(signal.SIGTERM)
            console.log(
                f"{name}: it saves after the steps under way, then ends; once more, and it ends at once without that"
            )
        elif now - self._since >= URGENT:
            line = f"ended by {name} at once; the same command goes on from the last checkpoint that is whole"
            self._end(status, line)


def _end_alone(status: int, line: str) -> None:
    console.log(line)
    sys.stdout.flush()
    os._exit(status)  # an orderly exit would wait for compilations


def _initialise(coordinator: str, count: int, index: int | None) -> bool:
    """Join the other processes; False if there are none."""
    if (coordinator, count, index) == ("", 1, None):
        return False
    stated = coordinator != "", count != 0, index is not None
    if any(stated) and not all(stated):
        raise UserError(
            "--coordinator=HOST:PORT, --processes=N and --process=I belong together; give all three, or none"
        )
    if index is not None and not 0 <= index < count:
        raise UserError(f"--process={index} must be from 0 to {count - 1}, one less than --processes={count}")
    if any(stated) and not re.fullmatch(r".+:\d+", coordinator):
        raise UserError(f"--coordinator={coordinator} must be HOST:PORT, of process 0")
    count = count or jax_private.scheduled_processes()
    if count == 1:
        return False
    # When another process is lost, jax's runtime aborts this one with a long report, from a thread of its own and by SIGABRT,
    # which Python's handlers would never see.
    ctypes.CDLL(None).signal(signal.SIGABRT, _ON_ABORT)
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
        raise UserError(f"{NOT_TOGETHER} ({_shorten(error)})") from error
    return True


class _Together:
    """Ends all processes of the job when one of them ends; a context manager.

    A thread watches the others: the main thread may be waiting for one of them in compiled code, for ever.
    """

    def __init__(self) -> None:
        self._client = jax_private.coordination_client()
        self._leaving = threading.Lock()  # held by the thread that ends this process, so that only one line is logged
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        # `Stopped` is raised by all processes at the same step, so that each ends by itself.
        if isinstance(raised[1], (Exception, KeyboardInterrupt)) and not isinstance(raised[1], errors.Stopped):
            self.end(*_describe(raised[1]))
        self._over.set()
        self._thread.join()

    def end(self, status: int, line: str) -> None:
        """End this process and all others; does not return."""
        with self._leaving:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # another was faster, or process 0 is gone
                self._client.key_value_set(_END, f"{status} {line}")
            self._leave(status, line)

    def _watch(self) -> None:
        while not self._over.wait(_POLL):
            try:
                ends = self._client.key_value_dir_get(_FOLDER)  # a folder: getting a missing key would wait for it
            except jax.errors.JaxRuntimeError as error:
                line = f"error: process 0 cannot be reached any more; {RESTART} ({_shorten(error)})"
                with self._leaving:
                    self._leave(errors.AGAIN, line)
            if ends:
                status, _, line = ends[0][1].partition(" ")
                with self._leaving:
                    self._leave(int(status), line)

    def _leave(self, status: int, line: str) -> None:
        console.log(line)
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # a process that is gone never arrives
            self._client.wait_at_barrier(_END, _FAREWELL * 1000)
        if is_first():
            time.sleep(_POLL)  # the others' farewell goes through this process
        os._exit(status)  # an orderly exit would wait for processes that are gone


def _describe(error: BaseException) -> tuple[int, str]:
    """The exit code and the line for an error that ends a process."""
    here = f"process {jax.process_index()}"
    status, line = errors.ending(error) or (1, "")
    if line:
        return status, f"{'error: ' if status == 2 else ''}{line} ({here})"
    if isinstance(error, jax.errors.JaxRuntimeError) and LOST.search(str(error)):
        return errors.AGAIN, f"error: {here} has lost the connection to another one; {RESTART} ({_shorten(error)})"
    traceback.print_exception(error)
    return status, f"error: {here} ended with {type(error).__name__}: {_shorten(error)}"


def _shorten(error: BaseException) -> str:
    """The message of an error, as one short line."""
    return " ".join(str(error).split())[:160]


def _say_why_aborted(_: int) -> None:
    status, line = 2, NOT_TOGETHER
    if jax_private.have_all_joined():
        says = "was ended by the runtime, which says why above: most often another process is gone"
        status, line = errors.AGAIN, f"process {jax_private.process_number()} {says}; {RESTART}"
    os.write(2, f"error: {line}\n".encode())  # no Python stream: the thread that aborts may hold its lock
    os._exit(status)


_ON_ABORT = ctypes.CFUNCTYPE(None, ctypes.c_int)(_say_why_aborted)  # kept: C holds no reference to it
