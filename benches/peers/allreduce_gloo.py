"""All-reduce (sum, f32, in place) with torch.distributed and gloo, for comparison with ours.

Run: OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 allreduce_gloo.py SIZE...
Prints "bytes microseconds" a line: the median over iterations of the slowest rank's time.
"""
import sys
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
for size in map(int, sys.argv[1:]):
    data = torch.full((size // 4,), float(rank + 1))
    dist.all_reduce(data)
    expected = world_size * (world_size + 1) / 2
    assert float(data[0]) == expected and float(data[-1]) == expected
    data.zero_()
    iterations = 1000 if size <= 65536 else 100 if size <= 1 << 21 else 20
    times = torch.zeros(iterations, dtype=torch.float64)
    for _ in range(3):
        dist.all_reduce(data)
    dist.barrier()
    for index in range(iterations):
        start = time.perf_counter()
        dist.all_reduce(data)
        times[index] = time.perf_counter() - start
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(size, float(times.median()) * 1e6, flush=True)
dist.destroy_process_group()
