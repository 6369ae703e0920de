"""A CUDA thread of the CPU engine. Its methods without an underscore are the engine's side of the intrinsics in
``numba_deform/device``."""

from ..async_units import warp_mma, wgmma
from .thread_barriers import ThreadBarriers
from .thread_operations import Instructions, engine_does


class Thread(Instructions, ThreadBarriers):
    """One thread with all its instructions; those of the asynchronous units are functions of these."""

    tensor_load, tensor_store = engine_does("tensor_load"), engine_does("tensor_store")
    bulk_load, bulk_store = engine_does("bulk_load"), engine_does("bulk_store")
    cp_async, commit_group = engine_does("cp_async"), engine_does("commit_group")
    wait_group, find_map = engine_does("wait_group"), engine_does("find_map")
    fence_map, replace_map = engine_does("fence_map"), engine_does("replace_map")
    publish_map = engine_does("publish_map")
    load_matrices, store_matrices = warp_mma.load_matrices, warp_mma.store_matrices
    multiply_matrices, multiply_fragments = warp_mma.multiply_matrices, warp_mma.multiply_fragments
    matrix_descriptor, warpgroup_fence = wgmma.matrix_descriptor, wgmma.warpgroup_fence
    commit_products, wait_products = wgmma.commit_products, wgmma.wait_products
    multiply_in_warpgroup, multiply_registers = wgmma.multiply, wgmma.multiply_registers
    fence_registers = wgmma.fence_registers
