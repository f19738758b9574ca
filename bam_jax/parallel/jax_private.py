"""Names of JAX's private modules that `processes` needs and that have no public equivalent. The only other file that imports
such names is `attention/cudnn.py`.

global_state.client                     the coordinator's key-value store and barriers, by which one process tells all
                                        others how it ends; `jax.distributed` offers neither
global_state.preemption_sync_manager    set last in `jax.distributed.initialize`: the public `is_initialized` is true
                                        before the other processes have joined
global_state.process_id                 this process's number; `jax.process_index` may start backends, which a handler
                                        of SIGABRT must not
ClusterEnv                              the schedulers that JAX knows; `jax.distributed.initialize` would ask them, but
                                        fails where there is none, and waits for a coordinator in a job of one process
"""

from typing import Any

from jax._src.clusters import ClusterEnv
from jax._src.distributed import global_state


def coordination_client() -> Any:
    """The client of the coordinator's key-value store; there is one after `jax.distributed.initialize`."""
    assert global_state.client is not None, "jax.distributed is initialised"
    return global_state.client


def have_all_joined() -> bool:
    """True once `jax.distributed.initialize` has finished, which means that every process has joined."""
    return global_state.preemption_sync_manager is not None


def process_number() -> int:
    """This process's number in the job, from 0, without asking a backend."""
    return global_state.process_id


def scheduled_processes() -> int:
    """The number of processes that the scheduler of this job has started; 1 without a scheduler."""
    for environment in ClusterEnv._cluster_types:
        if not environment.opt_in_only_method and environment.is_env_present():
            return environment.get_process_count()
    return 1
