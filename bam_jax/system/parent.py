"""The process that started this one."""

import multiprocessing
import os
import threading
import time


def end_with_parent(number: int | None = None) -> None:
    """End this process when the one that started it has ended, even by SIGKILL.

    `number` is the parent's process number, or None if `multiprocessing` started this process.
    """
    threading.Thread(target=_wait_and_end, args=(number,), daemon=True).start()


def _wait_and_end(number: int | None) -> None:
    parent = multiprocessing.parent_process()
    if number is None:
        assert parent is not None
        parent.join()
    else:
        while os.getppid() == number:
            time.sleep(0.2)
    os._exit(1)
