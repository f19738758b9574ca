"""The process that started this one."""

import multiprocessing
import os
import threading
import time


def end_with_parent(number: int | None = None) -> None:
    """End this process when the one that started it has ended, even by SIGKILL.

    `number` is the parent's process number, or None if `multiprocessing` started this process.
    """

    def wait_and_end() -> None:
        if number is None:
            parent = multiprocessing.parent_process()
            assert parent is not None
            parent.join()
        else:
            while os.getppid() == number:
                time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=wait_and_end, daemon=True).start()
