"""Virtual time: what an operation costs, in cycles of one H200 SM.

Threads advance their own clock by these and wait by maximum: a wait ends when the last arrival and
the last byte are in. It predicts the order and overlap of a pipeline's parts, not absolute times.
"""


class COST:
    shared_access: float = 1.0  # a warp's 16-byte load is 4 issues; a lane's share of them
    global_access: float = 2.0
    atomic: float = 4.0
    barrier: float = 4.0
    mma: float = 4.0  # m16n8k16: 2048 multiply-adds, of which a tensor core does 512 a cycle (data sheet)
    wgmma: float = 4.0  # m64n8k16: 8192 multiply-adds by the four tensor cores of an SM
    tma_issue: float = 9.5  # bench/NOTES.md: 9-12 cycles between tensor loads of one SM
    tma_latency: float = 600.0  # first byte from L2
    tma_bytes_per_cycle: float = 36.0  # large boxes, all SMs together at 6.8-8.4 TB/s
    cp_async_latency: float = 500.0
    cluster_latency: float = 180.0  # SM to SM: Luo et al., Dissecting the Nvidia Hopper GPU, 2024
