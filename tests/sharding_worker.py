"""One of the ranks that test_sharding.py starts: python sharding_worker.py RANK RANKS STORE.

Runs every ``check_*`` in turn and prints the name of each that passed. A failure ends the process:
the other rank would otherwise wait in a collective.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from datetime import timedelta

import sharding_dtensor
import sharding_modules
import torch
import torch.distributed as dist
from sharding_mesh import all_ranks


def main():
    torch.set_num_threads(1)
    # The other rank's end is noticed at once; this is for what hangs all the same.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{sys.argv[3]}",
        rank=int(sys.argv[1]),
        world_size=int(sys.argv[2]),
        timeout=timedelta(seconds=30),
    )
    all_ranks()
    warnings.simplefilter("error")
    found = [*vars(sharding_dtensor).items(), *vars(sharding_modules).items()]
    for name, check in [item for item in found if item[0].startswith("check_")]:
        print("started", name, flush=True)
        try:
            check()
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        dist.barrier()
        print("passed", name, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
