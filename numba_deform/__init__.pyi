# The public names and where they come from. __init__.py reads this file, and so does an editor.

from .attention.call import ms_deform_attn as ms_deform_attn
from .attention.checks import OperatorError as OperatorError
from .attention.prepared import Prepared as Prepared
from .attention.prepared import prepare as prepare
from .attention.reference import reference as reference
from .attention.reference import relative_error as relative_error
from .compiler import Kernel as Kernel
from .compiler import float16 as float16
from .compiler import float32 as float32
from .compiler import float64 as float64
from .compiler import function as function
from .compiler import i32 as i32
from .compiler import int32 as int32
from .compiler import int64 as int64
from .compiler import kernel as kernel
from .compiler import static_range as static_range
from .compiler import u32 as u32
from .compiler import u64 as u64
from .compiler import uint8 as uint8
from .compiler import uint16 as uint16
from .compiler import uint32 as uint32
from .compiler import uint64 as uint64
from .device.atomics import atom_add_gpu_global_bf16x2 as atom_add_gpu_global_bf16x2
from .device.atomics import atom_add_gpu_global_f16x2 as atom_add_gpu_global_f16x2
from .device.atomics import atom_add_gpu_global_f32 as atom_add_gpu_global_f32
from .device.atomics import atom_add_gpu_global_v2_bf16x2 as atom_add_gpu_global_v2_bf16x2
from .device.atomics import atom_add_gpu_global_v2_f16x2 as atom_add_gpu_global_v2_f16x2
from .device.atomics import atom_add_gpu_global_v2_f32 as atom_add_gpu_global_v2_f32
from .device.atomics import atom_add_gpu_global_v4_bf16x2 as atom_add_gpu_global_v4_bf16x2
from .device.atomics import atom_add_gpu_global_v4_f16x2 as atom_add_gpu_global_v4_f16x2
from .device.atomics import atom_add_gpu_global_v4_f32 as atom_add_gpu_global_v4_f32
from .device.atomics import red_add_cta_shared_f32 as red_add_cta_shared_f32
from .device.atomics import red_add_cta_shared_u32 as red_add_cta_shared_u32
from .device.atomics import red_add_gpu_global_bf16x2 as red_add_gpu_global_bf16x2
from .device.atomics import red_add_gpu_global_f16x2 as red_add_gpu_global_f16x2
from .device.atomics import red_add_gpu_global_f32 as red_add_gpu_global_f32
from .device.atomics import red_add_gpu_global_u64 as red_add_gpu_global_u64
from .device.atomics import red_add_gpu_global_v2_bf16x2 as red_add_gpu_global_v2_bf16x2
from .device.atomics import red_add_gpu_global_v2_f16x2 as red_add_gpu_global_v2_f16x2
from .device.atomics import red_add_gpu_global_v2_f32 as red_add_gpu_global_v2_f32
from .device.atomics import red_add_gpu_global_v4_bf16x2 as red_add_gpu_global_v4_bf16x2
from .device.atomics import red_add_gpu_global_v4_f16x2 as red_add_gpu_global_v4_f16x2
from .device.atomics import red_add_gpu_global_v4_f32 as red_add_gpu_global_v4_f32
from .device.atomics import red_max_cta_shared_s32 as red_max_cta_shared_s32
from .device.atomics import red_max_cta_shared_u32 as red_max_cta_shared_u32
from .device.atomics import red_min_cta_shared_s32 as red_min_cta_shared_s32
from .device.atomics import red_min_cta_shared_u32 as red_min_cta_shared_u32
from .device.cache import cp_async_bulk_load_hint as cp_async_bulk_load_hint
from .device.cache import cp_async_bulk_prefetch as cp_async_bulk_prefetch
from .device.cache import cp_async_bulk_prefetch_tensor_1d as cp_async_bulk_prefetch_tensor_1d
from .device.cache import cp_async_bulk_prefetch_tensor_2d as cp_async_bulk_prefetch_tensor_2d
from .device.cache import cp_async_bulk_prefetch_tensor_3d as cp_async_bulk_prefetch_tensor_3d
from .device.cache import cp_async_bulk_prefetch_tensor_4d as cp_async_bulk_prefetch_tensor_4d
from .device.cache import cp_async_bulk_prefetch_tensor_5d as cp_async_bulk_prefetch_tensor_5d
from .device.cache import cp_async_bulk_store_hint as cp_async_bulk_store_hint
from .device.cache import cp_async_bulk_tensor_1d_hint as cp_async_bulk_tensor_1d_hint
from .device.cache import cp_async_bulk_tensor_1d_store_hint as cp_async_bulk_tensor_1d_store_hint
from .device.cache import cp_async_bulk_tensor_2d_hint as cp_async_bulk_tensor_2d_hint
from .device.cache import cp_async_bulk_tensor_2d_store_hint as cp_async_bulk_tensor_2d_store_hint
from .device.cache import cp_async_bulk_tensor_3d_hint as cp_async_bulk_tensor_3d_hint
from .device.cache import cp_async_bulk_tensor_3d_store_hint as cp_async_bulk_tensor_3d_store_hint
from .device.cache import cp_async_bulk_tensor_4d_hint as cp_async_bulk_tensor_4d_hint
from .device.cache import cp_async_bulk_tensor_4d_store_hint as cp_async_bulk_tensor_4d_store_hint
from .device.cache import cp_async_bulk_tensor_5d_hint as cp_async_bulk_tensor_5d_hint
from .device.cache import cp_async_bulk_tensor_5d_store_hint as cp_async_bulk_tensor_5d_store_hint
from .device.cache import createpolicy_fractional_evict_first as createpolicy_fractional_evict_first
from .device.cache import createpolicy_fractional_evict_last as createpolicy_fractional_evict_last
from .device.cache import createpolicy_fractional_evict_normal as createpolicy_fractional_evict_normal
from .device.cache import createpolicy_fractional_evict_unchanged as createpolicy_fractional_evict_unchanged
from .device.cluster import cluster_arrive as cluster_arrive
from .device.cluster import cluster_arrive_relaxed as cluster_arrive_relaxed
from .device.cluster import cluster_ctaid_x as cluster_ctaid_x
from .device.cluster import cluster_ctaid_y as cluster_ctaid_y
from .device.cluster import cluster_ctaid_z as cluster_ctaid_z
from .device.cluster import cluster_ctarank as cluster_ctarank
from .device.cluster import cluster_nctarank as cluster_nctarank
from .device.cluster import cluster_sync as cluster_sync
from .device.cluster import cluster_wait as cluster_wait
from .device.cluster import cp_async_bulk_load_multicast as cp_async_bulk_load_multicast
from .device.cluster import cp_async_bulk_shared_cluster as cp_async_bulk_shared_cluster
from .device.cluster import cp_async_bulk_tensor_1d_multicast as cp_async_bulk_tensor_1d_multicast
from .device.cluster import cp_async_bulk_tensor_2d_multicast as cp_async_bulk_tensor_2d_multicast
from .device.cluster import cp_async_bulk_tensor_3d_multicast as cp_async_bulk_tensor_3d_multicast
from .device.cluster import cp_async_bulk_tensor_4d_multicast as cp_async_bulk_tensor_4d_multicast
from .device.cluster import cp_async_bulk_tensor_5d_multicast as cp_async_bulk_tensor_5d_multicast
from .device.cluster import ld_shared_cluster_b32 as ld_shared_cluster_b32
from .device.cluster import ld_shared_cluster_v2 as ld_shared_cluster_v2
from .device.cluster import ld_shared_cluster_v4 as ld_shared_cluster_v4
from .device.cluster import mapa_shared_cluster as mapa_shared_cluster
from .device.cluster import mbarrier_arrive_cluster as mbarrier_arrive_cluster
from .device.cluster import mbarrier_arrive_count_cluster as mbarrier_arrive_count_cluster
from .device.cluster import mbarrier_arrive_drop_cluster as mbarrier_arrive_drop_cluster
from .device.cluster import mbarrier_arrive_expect_tx_cluster as mbarrier_arrive_expect_tx_cluster
from .device.cluster import mbarrier_try_wait_parity_cluster as mbarrier_try_wait_parity_cluster
from .device.cluster import mbarrier_wait_cluster as mbarrier_wait_cluster
from .device.cluster import st_shared_cluster_b32 as st_shared_cluster_b32
from .device.cluster import st_shared_cluster_v2 as st_shared_cluster_v2
from .device.cluster import st_shared_cluster_v4 as st_shared_cluster_v4
from .device.cluster_async import (
    cp_reduce_async_bulk_shared_cluster_add_s32 as cp_reduce_async_bulk_shared_cluster_add_s32,
)
from .device.cluster_async import (
    cp_reduce_async_bulk_shared_cluster_add_u32 as cp_reduce_async_bulk_shared_cluster_add_u32,
)
from .device.cluster_async import (
    cp_reduce_async_bulk_shared_cluster_add_u64 as cp_reduce_async_bulk_shared_cluster_add_u64,
)
from .device.cluster_async import (
    cp_reduce_async_bulk_shared_cluster_and_b32 as cp_reduce_async_bulk_shared_cluster_and_b32,
)
from .device.cluster_async import (
    cp_reduce_async_bulk_shared_cluster_dec_u32 as cp_reduce_async_bulk_shared_cluster_dec_u32,
)
from .device.cluster_async import (
    cp_reduce_async_bulk_shared_cluster_inc_u32 as cp_reduce_async_bulk_shared_cluster_inc_u32,
)
from .device.cluster_async import (
    cp_reduce_async_bulk_shared_cluster_max_s32 as cp_reduce_async_bulk_shared_cluster_max_s32,
)
from .device.cluster_async import (
    cp_reduce_async_bulk_shared_cluster_max_u32 as cp_reduce_async_bulk_shared_cluster_max_u32,
)
from .device.cluster_async import (
    cp_reduce_async_bulk_shared_cluster_min_s32 as cp_reduce_async_bulk_shared_cluster_min_s32,
)
from .device.cluster_async import (
    cp_reduce_async_bulk_shared_cluster_min_u32 as cp_reduce_async_bulk_shared_cluster_min_u32,
)
from .device.cluster_async import (
    cp_reduce_async_bulk_shared_cluster_or_b32 as cp_reduce_async_bulk_shared_cluster_or_b32,
)
from .device.cluster_async import (
    cp_reduce_async_bulk_shared_cluster_xor_b32 as cp_reduce_async_bulk_shared_cluster_xor_b32,
)
from .device.cluster_async import red_async_add_s32 as red_async_add_s32
from .device.cluster_async import red_async_add_u32 as red_async_add_u32
from .device.cluster_async import red_async_add_u64 as red_async_add_u64
from .device.cluster_async import red_async_and_b32 as red_async_and_b32
from .device.cluster_async import red_async_dec_u32 as red_async_dec_u32
from .device.cluster_async import red_async_inc_u32 as red_async_inc_u32
from .device.cluster_async import red_async_max_s32 as red_async_max_s32
from .device.cluster_async import red_async_max_u32 as red_async_max_u32
from .device.cluster_async import red_async_min_s32 as red_async_min_s32
from .device.cluster_async import red_async_min_u32 as red_async_min_u32
from .device.cluster_async import red_async_or_b32 as red_async_or_b32
from .device.cluster_async import red_async_xor_b32 as red_async_xor_b32
from .device.cluster_async import st_async_b32 as st_async_b32
from .device.cluster_async import st_async_b64 as st_async_b64
from .device.cluster_async import st_async_v2 as st_async_v2
from .device.cluster_async import st_async_v4 as st_async_v4
from .device.cluster_flags import (
    atom_add_acq_rel_cluster_shared_cluster_u32 as atom_add_acq_rel_cluster_shared_cluster_u32,
)
from .device.cluster_flags import atom_add_cluster_shared_cluster_u32 as atom_add_cluster_shared_cluster_u32
from .device.cluster_flags import (
    atom_cas_acq_rel_cluster_shared_cluster_b32 as atom_cas_acq_rel_cluster_shared_cluster_b32,
)
from .device.cluster_flags import ld_acquire_cluster_shared_cluster_b32 as ld_acquire_cluster_shared_cluster_b32
from .device.cluster_flags import ld_relaxed_cluster_shared_cluster_b32 as ld_relaxed_cluster_shared_cluster_b32
from .device.cluster_flags import red_add_cluster_shared_cluster_u32 as red_add_cluster_shared_cluster_u32
from .device.cluster_flags import (
    red_add_release_cluster_shared_cluster_u32 as red_add_release_cluster_shared_cluster_u32,
)
from .device.cluster_flags import st_relaxed_cluster_shared_cluster_b32 as st_relaxed_cluster_shared_cluster_b32
from .device.cluster_flags import st_release_cluster_shared_cluster_b32 as st_release_cluster_shared_cluster_b32
from .device.cp_async import cp_async_ca_4 as cp_async_ca_4
from .device.cp_async import cp_async_ca_8 as cp_async_ca_8
from .device.cp_async import cp_async_ca_16 as cp_async_ca_16
from .device.cp_async import cp_async_mbarrier_arrive as cp_async_mbarrier_arrive
from .device.cp_async import cp_async_mbarrier_arrive_noinc as cp_async_mbarrier_arrive_noinc
from .device.cp_async import cp_async_wait_all as cp_async_wait_all
from .device.float32 import add_rm_f32 as add_rm_f32
from .device.float32 import ex2_approx_f32 as ex2_approx_f32
from .device.float32 import ex2_approx_ftz_f32 as ex2_approx_ftz_f32
from .device.float32 import lg2_approx_f32 as lg2_approx_f32
from .device.float32 import max_f32 as max_f32
from .device.float32 import min_f32 as min_f32
from .device.float32 import rcp_approx_f32 as rcp_approx_f32
from .device.float32 import rcp_approx_ftz_f32 as rcp_approx_ftz_f32
from .device.float32 import tanh_approx_f32 as tanh_approx_f32
from .device.griddepcontrol import griddepcontrol_launch_dependents as griddepcontrol_launch_dependents
from .device.griddepcontrol import griddepcontrol_wait as griddepcontrol_wait
from .device.half2 import add_rn_bf16x2 as add_rn_bf16x2
from .device.half2 import add_rn_f16x2 as add_rn_f16x2
from .device.half2 import cvt_f32_bf16_hi as cvt_f32_bf16_hi
from .device.half2 import cvt_f32_bf16_lo as cvt_f32_bf16_lo
from .device.half2 import cvt_f32_f16_hi as cvt_f32_f16_hi
from .device.half2 import cvt_f32_f16_lo as cvt_f32_f16_lo
from .device.half2 import cvt_rn_bf16x2_f32 as cvt_rn_bf16x2_f32
from .device.half2 import cvt_rn_f16x2_f32 as cvt_rn_f16x2_f32
from .device.half2 import dup_hi_b16x2 as dup_hi_b16x2
from .device.half2 import dup_lo_b16x2 as dup_lo_b16x2
from .device.half2 import fma_rn_bf16x2 as fma_rn_bf16x2
from .device.half2 import fma_rn_f16x2 as fma_rn_f16x2
from .device.half2 import mov_b32_f32 as mov_b32_f32
from .device.half2 import mov_f32_b32 as mov_f32_b32
from .device.half2 import mul_rn_bf16x2 as mul_rn_bf16x2
from .device.half2 import mul_rn_f16x2 as mul_rn_f16x2
from .device.im2col import cp_async_bulk_tensor_3d_im2col as cp_async_bulk_tensor_3d_im2col
from .device.im2col import cp_async_bulk_tensor_4d_im2col as cp_async_bulk_tensor_4d_im2col
from .device.im2col import cp_async_bulk_tensor_5d_im2col as cp_async_bulk_tensor_5d_im2col
from .device.integer import div_u32 as div_u32
from .device.integer import rem_u32 as rem_u32
from .device.layout import Array as Array
from .device.layout import Shared as Shared
from .device.matrix import ldmatrix_x1 as ldmatrix_x1
from .device.matrix import ldmatrix_x1_trans as ldmatrix_x1_trans
from .device.matrix import ldmatrix_x2 as ldmatrix_x2
from .device.matrix import ldmatrix_x2_trans as ldmatrix_x2_trans
from .device.matrix import ldmatrix_x4 as ldmatrix_x4
from .device.matrix import ldmatrix_x4_trans as ldmatrix_x4_trans
from .device.matrix import mma_m16n8k8_tf32 as mma_m16n8k8_tf32
from .device.matrix import mma_m16n8k16_bf16 as mma_m16n8k16_bf16
from .device.matrix import mma_m16n8k16_f16 as mma_m16n8k16_f16
from .device.matrix import mma_m16n8k32_e4m3 as mma_m16n8k32_e4m3
from .device.matrix import mma_m16n8k32_e4m3_e5m2 as mma_m16n8k32_e4m3_e5m2
from .device.matrix import mma_m16n8k32_e5m2 as mma_m16n8k32_e5m2
from .device.matrix import mma_m16n8k32_e5m2_e4m3 as mma_m16n8k32_e5m2_e4m3
from .device.matrix import mma_m16n8k32_s8 as mma_m16n8k32_s8
from .device.matrix import mma_m16n8k32_s8_u8 as mma_m16n8k32_s8_u8
from .device.matrix import mma_m16n8k32_u8 as mma_m16n8k32_u8
from .device.matrix import mma_m16n8k32_u8_s8 as mma_m16n8k32_u8_s8
from .device.matrix import stmatrix_x1 as stmatrix_x1
from .device.matrix import stmatrix_x1_trans as stmatrix_x1_trans
from .device.matrix import stmatrix_x2 as stmatrix_x2
from .device.matrix import stmatrix_x2_trans as stmatrix_x2_trans
from .device.matrix import stmatrix_x4 as stmatrix_x4
from .device.matrix import stmatrix_x4_trans as stmatrix_x4_trans
from .device.mbarrier import mbarrier_arrive as mbarrier_arrive
from .device.mbarrier import mbarrier_arrive_count as mbarrier_arrive_count
from .device.mbarrier import mbarrier_arrive_drop as mbarrier_arrive_drop
from .device.mbarrier import mbarrier_arrive_expect_tx as mbarrier_arrive_expect_tx
from .device.mbarrier import mbarrier_expect_tx as mbarrier_expect_tx
from .device.mbarrier import mbarrier_init as mbarrier_init
from .device.mbarrier import mbarrier_inval as mbarrier_inval
from .device.mbarrier import mbarrier_test_wait_parity as mbarrier_test_wait_parity
from .device.mbarrier import mbarrier_try_wait_parity as mbarrier_try_wait_parity
from .device.memory import align_up as align_up
from .device.memory import atom_add_acq_rel_gpu_global_u32 as atom_add_acq_rel_gpu_global_u32
from .device.memory import atom_add_cta_global_u32 as atom_add_cta_global_u32
from .device.memory import atom_add_gpu_global_u32 as atom_add_gpu_global_u32
from .device.memory import atom_cas_acq_rel_gpu_global_b32 as atom_cas_acq_rel_gpu_global_b32
from .device.memory import atom_cas_acquire_gpu_global_b32 as atom_cas_acquire_gpu_global_b32
from .device.memory import atom_cas_gpu_global_b32 as atom_cas_gpu_global_b32
from .device.memory import atom_cas_release_gpu_global_b32 as atom_cas_release_gpu_global_b32
from .device.memory import atom_exch_acq_rel_gpu_global_b32 as atom_exch_acq_rel_gpu_global_b32
from .device.memory import atom_exch_acquire_gpu_global_b32 as atom_exch_acquire_gpu_global_b32
from .device.memory import atom_exch_gpu_global_b32 as atom_exch_gpu_global_b32
from .device.memory import atom_exch_release_cta_shared_b32 as atom_exch_release_cta_shared_b32
from .device.memory import atom_exch_release_gpu_global_b32 as atom_exch_release_gpu_global_b32
from .device.memory import cp_async_cg_16 as cp_async_cg_16
from .device.memory import cp_async_commit_group as cp_async_commit_group
from .device.memory import cp_async_wait_group as cp_async_wait_group
from .device.memory import dynamic_start as dynamic_start
from .device.memory import global_address as global_address
from .device.memory import global_at as global_at
from .device.memory import ld_acquire_cta_global_b32 as ld_acquire_cta_global_b32
from .device.memory import ld_acquire_cta_shared_b32 as ld_acquire_cta_shared_b32
from .device.memory import ld_acquire_gpu_global_b32 as ld_acquire_gpu_global_b32
from .device.memory import ld_global_b32 as ld_global_b32
from .device.memory import ld_global_nc_b32 as ld_global_nc_b32
from .device.memory import ld_global_nc_L1_evict_last_v4 as ld_global_nc_L1_evict_last_v4
from .device.memory import ld_global_nc_L1_no_allocate_v4 as ld_global_nc_L1_no_allocate_v4
from .device.memory import ld_global_nc_u16 as ld_global_nc_u16
from .device.memory import ld_global_nc_v2 as ld_global_nc_v2
from .device.memory import ld_global_nc_v4 as ld_global_nc_v4
from .device.memory import ld_global_v4 as ld_global_v4
from .device.memory import ld_relaxed_gpu_global_b32 as ld_relaxed_gpu_global_b32
from .device.memory import ld_shared_b32 as ld_shared_b32
from .device.memory import ld_shared_v2 as ld_shared_v2
from .device.memory import ld_shared_v4 as ld_shared_v4
from .device.memory import red_add_gpu_global_u32 as red_add_gpu_global_u32
from .device.memory import red_add_release_gpu_global_u32 as red_add_release_gpu_global_u32
from .device.memory import shared_address as shared_address
from .device.memory import shared_array as shared_array
from .device.memory import shared_at as shared_at
from .device.memory import st_global_b16 as st_global_b16
from .device.memory import st_global_b32 as st_global_b32
from .device.memory import st_global_L1_no_allocate_v4 as st_global_L1_no_allocate_v4
from .device.memory import st_global_v2 as st_global_v2
from .device.memory import st_global_v4 as st_global_v4
from .device.memory import st_relaxed_gpu_global_b32 as st_relaxed_gpu_global_b32
from .device.memory import st_release_cta_global_b32 as st_release_cta_global_b32
from .device.memory import st_release_cta_shared_b32 as st_release_cta_shared_b32
from .device.memory import st_release_gpu_global_b32 as st_release_gpu_global_b32
from .device.memory import st_shared_b32 as st_shared_b32
from .device.memory import st_shared_v2 as st_shared_v2
from .device.memory import st_shared_v4 as st_shared_v4
from .device.pipeline import mbarrier_wait as mbarrier_wait
from .device.reduce import cp_reduce_async_bulk_add_bf16 as cp_reduce_async_bulk_add_bf16
from .device.reduce import cp_reduce_async_bulk_add_f16 as cp_reduce_async_bulk_add_f16
from .device.reduce import cp_reduce_async_bulk_add_f32 as cp_reduce_async_bulk_add_f32
from .device.reduce import cp_reduce_async_bulk_add_f64 as cp_reduce_async_bulk_add_f64
from .device.reduce import cp_reduce_async_bulk_add_s32 as cp_reduce_async_bulk_add_s32
from .device.reduce import cp_reduce_async_bulk_add_u32 as cp_reduce_async_bulk_add_u32
from .device.reduce import cp_reduce_async_bulk_add_u64 as cp_reduce_async_bulk_add_u64
from .device.reduce import cp_reduce_async_bulk_and_b32 as cp_reduce_async_bulk_and_b32
from .device.reduce import cp_reduce_async_bulk_and_b64 as cp_reduce_async_bulk_and_b64
from .device.reduce import cp_reduce_async_bulk_dec_u32 as cp_reduce_async_bulk_dec_u32
from .device.reduce import cp_reduce_async_bulk_inc_u32 as cp_reduce_async_bulk_inc_u32
from .device.reduce import cp_reduce_async_bulk_max_bf16 as cp_reduce_async_bulk_max_bf16
from .device.reduce import cp_reduce_async_bulk_max_f16 as cp_reduce_async_bulk_max_f16
from .device.reduce import cp_reduce_async_bulk_max_s32 as cp_reduce_async_bulk_max_s32
from .device.reduce import cp_reduce_async_bulk_max_s64 as cp_reduce_async_bulk_max_s64
from .device.reduce import cp_reduce_async_bulk_max_u32 as cp_reduce_async_bulk_max_u32
from .device.reduce import cp_reduce_async_bulk_max_u64 as cp_reduce_async_bulk_max_u64
from .device.reduce import cp_reduce_async_bulk_min_bf16 as cp_reduce_async_bulk_min_bf16
from .device.reduce import cp_reduce_async_bulk_min_f16 as cp_reduce_async_bulk_min_f16
from .device.reduce import cp_reduce_async_bulk_min_s32 as cp_reduce_async_bulk_min_s32
from .device.reduce import cp_reduce_async_bulk_min_s64 as cp_reduce_async_bulk_min_s64
from .device.reduce import cp_reduce_async_bulk_min_u32 as cp_reduce_async_bulk_min_u32
from .device.reduce import cp_reduce_async_bulk_min_u64 as cp_reduce_async_bulk_min_u64
from .device.reduce import cp_reduce_async_bulk_or_b32 as cp_reduce_async_bulk_or_b32
from .device.reduce import cp_reduce_async_bulk_or_b64 as cp_reduce_async_bulk_or_b64
from .device.reduce import cp_reduce_async_bulk_tensor_1d_add as cp_reduce_async_bulk_tensor_1d_add
from .device.reduce import cp_reduce_async_bulk_tensor_1d_and as cp_reduce_async_bulk_tensor_1d_and
from .device.reduce import cp_reduce_async_bulk_tensor_1d_max as cp_reduce_async_bulk_tensor_1d_max
from .device.reduce import cp_reduce_async_bulk_tensor_1d_min as cp_reduce_async_bulk_tensor_1d_min
from .device.reduce import cp_reduce_async_bulk_tensor_1d_or as cp_reduce_async_bulk_tensor_1d_or
from .device.reduce import cp_reduce_async_bulk_tensor_1d_xor as cp_reduce_async_bulk_tensor_1d_xor
from .device.reduce import cp_reduce_async_bulk_tensor_2d_add as cp_reduce_async_bulk_tensor_2d_add
from .device.reduce import cp_reduce_async_bulk_tensor_2d_and as cp_reduce_async_bulk_tensor_2d_and
from .device.reduce import cp_reduce_async_bulk_tensor_2d_max as cp_reduce_async_bulk_tensor_2d_max
from .device.reduce import cp_reduce_async_bulk_tensor_2d_min as cp_reduce_async_bulk_tensor_2d_min
from .device.reduce import cp_reduce_async_bulk_tensor_2d_or as cp_reduce_async_bulk_tensor_2d_or
from .device.reduce import cp_reduce_async_bulk_tensor_2d_xor as cp_reduce_async_bulk_tensor_2d_xor
from .device.reduce import cp_reduce_async_bulk_tensor_3d_add as cp_reduce_async_bulk_tensor_3d_add
from .device.reduce import cp_reduce_async_bulk_tensor_3d_and as cp_reduce_async_bulk_tensor_3d_and
from .device.reduce import cp_reduce_async_bulk_tensor_3d_max as cp_reduce_async_bulk_tensor_3d_max
from .device.reduce import cp_reduce_async_bulk_tensor_3d_min as cp_reduce_async_bulk_tensor_3d_min
from .device.reduce import cp_reduce_async_bulk_tensor_3d_or as cp_reduce_async_bulk_tensor_3d_or
from .device.reduce import cp_reduce_async_bulk_tensor_3d_xor as cp_reduce_async_bulk_tensor_3d_xor
from .device.reduce import cp_reduce_async_bulk_tensor_4d_add as cp_reduce_async_bulk_tensor_4d_add
from .device.reduce import cp_reduce_async_bulk_tensor_4d_and as cp_reduce_async_bulk_tensor_4d_and
from .device.reduce import cp_reduce_async_bulk_tensor_4d_max as cp_reduce_async_bulk_tensor_4d_max
from .device.reduce import cp_reduce_async_bulk_tensor_4d_min as cp_reduce_async_bulk_tensor_4d_min
from .device.reduce import cp_reduce_async_bulk_tensor_4d_or as cp_reduce_async_bulk_tensor_4d_or
from .device.reduce import cp_reduce_async_bulk_tensor_4d_xor as cp_reduce_async_bulk_tensor_4d_xor
from .device.reduce import cp_reduce_async_bulk_tensor_5d_add as cp_reduce_async_bulk_tensor_5d_add
from .device.reduce import cp_reduce_async_bulk_tensor_5d_and as cp_reduce_async_bulk_tensor_5d_and
from .device.reduce import cp_reduce_async_bulk_tensor_5d_max as cp_reduce_async_bulk_tensor_5d_max
from .device.reduce import cp_reduce_async_bulk_tensor_5d_min as cp_reduce_async_bulk_tensor_5d_min
from .device.reduce import cp_reduce_async_bulk_tensor_5d_or as cp_reduce_async_bulk_tensor_5d_or
from .device.reduce import cp_reduce_async_bulk_tensor_5d_xor as cp_reduce_async_bulk_tensor_5d_xor
from .device.reduce import cp_reduce_async_bulk_xor_b32 as cp_reduce_async_bulk_xor_b32
from .device.reduce import cp_reduce_async_bulk_xor_b64 as cp_reduce_async_bulk_xor_b64
from .device.registers import setmaxnreg_dec as setmaxnreg_dec
from .device.registers import setmaxnreg_inc as setmaxnreg_inc
from .device.rings import Barrier as Barrier
from .device.rings import NamedBarrier as NamedBarrier
from .device.rings import Ring as Ring
from .device.rings import WarpRing as WarpRing
from .device.sync import bar_arrive as bar_arrive
from .device.sync import bar_sync as bar_sync
from .device.sync import clock64 as clock64
from .device.sync import elect_sync as elect_sync
from .device.sync import fence_acq_rel_cluster as fence_acq_rel_cluster
from .device.sync import fence_acq_rel_cta as fence_acq_rel_cta
from .device.sync import fence_acq_rel_gpu as fence_acq_rel_gpu
from .device.sync import fence_mbarrier_init as fence_mbarrier_init
from .device.sync import fence_proxy_async as fence_proxy_async
from .device.sync import fence_proxy_async_cluster as fence_proxy_async_cluster
from .device.sync import fence_proxy_async_full as fence_proxy_async_full
from .device.sync import fence_proxy_async_global as fence_proxy_async_global
from .device.sync import globaltimer as globaltimer
from .device.sync import lane as lane
from .device.sync import shfl_sync_bfly_f32 as shfl_sync_bfly_f32
from .device.sync import shfl_sync_idx_b32 as shfl_sync_idx_b32
from .device.sync import shfl_sync_idx_f32 as shfl_sync_idx_f32
from .device.sync import thread_exit as thread_exit
from .device.sync import warp as warp
from .device.tensormap import tensormap_cp_fenceproxy as tensormap_cp_fenceproxy
from .device.tensormap import tensormap_replace_box_dim as tensormap_replace_box_dim
from .device.tensormap import tensormap_replace_element_stride as tensormap_replace_element_stride
from .device.tensormap import tensormap_replace_elemtype as tensormap_replace_elemtype
from .device.tensormap import tensormap_replace_fill_mode as tensormap_replace_fill_mode
from .device.tensormap import tensormap_replace_global_address as tensormap_replace_global_address
from .device.tensormap import tensormap_replace_global_dim as tensormap_replace_global_dim
from .device.tensormap import tensormap_replace_global_stride as tensormap_replace_global_stride
from .device.tensormap import tensormap_replace_interleave_layout as tensormap_replace_interleave_layout
from .device.tensormap import tensormap_replace_rank as tensormap_replace_rank
from .device.tensormap import tensormap_replace_swizzle_mode as tensormap_replace_swizzle_mode
from .device.tma import cp_async_bulk_commit_group as cp_async_bulk_commit_group
from .device.tma import cp_async_bulk_load as cp_async_bulk_load
from .device.tma import cp_async_bulk_store as cp_async_bulk_store
from .device.tma import cp_async_bulk_tensor_1d as cp_async_bulk_tensor_1d
from .device.tma import cp_async_bulk_tensor_1d_store as cp_async_bulk_tensor_1d_store
from .device.tma import cp_async_bulk_tensor_2d as cp_async_bulk_tensor_2d
from .device.tma import cp_async_bulk_tensor_2d_store as cp_async_bulk_tensor_2d_store
from .device.tma import cp_async_bulk_tensor_3d as cp_async_bulk_tensor_3d
from .device.tma import cp_async_bulk_tensor_3d_store as cp_async_bulk_tensor_3d_store
from .device.tma import cp_async_bulk_tensor_4d as cp_async_bulk_tensor_4d
from .device.tma import cp_async_bulk_tensor_4d_store as cp_async_bulk_tensor_4d_store
from .device.tma import cp_async_bulk_tensor_5d as cp_async_bulk_tensor_5d
from .device.tma import cp_async_bulk_tensor_5d_store as cp_async_bulk_tensor_5d_store
from .device.tma import cp_async_bulk_wait_group as cp_async_bulk_wait_group
from .device.tma import cp_async_bulk_wait_group_read as cp_async_bulk_wait_group_read
from .device.tma import fence_proxy_tensormap_acquire_gpu as fence_proxy_tensormap_acquire_gpu
from .device.tma import fence_proxy_tensormap_acquire_sys as fence_proxy_tensormap_acquire_sys
from .device.tma import prefetch_tensormap as prefetch_tensormap
from .device.tokens import mbarrier_arrive_count_state as mbarrier_arrive_count_state
from .device.tokens import mbarrier_arrive_expect_tx_state as mbarrier_arrive_expect_tx_state
from .device.tokens import mbarrier_arrive_noComplete as mbarrier_arrive_noComplete
from .device.tokens import mbarrier_arrive_state as mbarrier_arrive_state
from .device.tokens import mbarrier_pending_count as mbarrier_pending_count
from .device.tokens import mbarrier_test_wait as mbarrier_test_wait
from .device.tokens import mbarrier_try_wait as mbarrier_try_wait
from .device.tokens import mbarrier_try_wait_hint as mbarrier_try_wait_hint
from .device.tokens import mbarrier_try_wait_parity_hint as mbarrier_try_wait_parity_hint
from .device.wgmma import wgmma_commit_group as wgmma_commit_group
from .device.wgmma import wgmma_descriptor as wgmma_descriptor
from .device.wgmma import wgmma_fence as wgmma_fence
from .device.wgmma import wgmma_m64n64k16_bf16 as wgmma_m64n64k16_bf16
from .device.wgmma import wgmma_m64n64k16_bf16_ra as wgmma_m64n64k16_bf16_ra
from .device.wgmma import wgmma_m64n64k16_f16 as wgmma_m64n64k16_f16
from .device.wgmma import wgmma_m64n64k16_f16_ra as wgmma_m64n64k16_f16_ra
from .device.wgmma import wgmma_m64n128k16_bf16 as wgmma_m64n128k16_bf16
from .device.wgmma import wgmma_m64n128k16_bf16_ra as wgmma_m64n128k16_bf16_ra
from .device.wgmma import wgmma_m64n128k16_f16 as wgmma_m64n128k16_f16
from .device.wgmma import wgmma_m64n128k16_f16_ra as wgmma_m64n128k16_f16_ra
from .device.wgmma import wgmma_m64n256k16_bf16 as wgmma_m64n256k16_bf16
from .device.wgmma import wgmma_m64n256k16_f16 as wgmma_m64n256k16_f16
from .device.wgmma import wgmma_wait_group as wgmma_wait_group
from .device.wgmma import wgmma_wait_group_n64 as wgmma_wait_group_n64
from .device.wgmma import wgmma_wait_group_n128 as wgmma_wait_group_n128
from .device.wgmma import wgmma_wait_group_n256 as wgmma_wait_group_n256
from .engines.cpu import SimFault as SimFault
from .engines.cpu import explore as explore
from .engines.cpu import simulate as simulate
from .engines.cpu.frontends.ptx.compilers.cuda_kernels import from_cuda as from_cuda
from .engines.cpu.frontends.ptx.compilers.mlir_kernels import from_mlir as from_mlir
from .engines.cpu.frontends.ptx.compilers.triton_kernels import from_triton as from_triton
from .engines.cpu.frontends.ptx.kernels import from_ptx as from_ptx
from .engines.launches import Launch as Launch
from .engines.tensormap import Im2colMap as Im2colMap
from .engines.tensormap import TensorMap as TensorMap
from .engines.tensormap import TensorMapArray as TensorMapArray
from .kernels.parts.sampling import corner_weights as corner_weights
from .kernels.pipelines import pipeline as pipeline
from .kernels.problem import ConfigError as ConfigError
from .kernels.problem import Constants as Constants
from .kernels.registry import VARIANTS as VARIANTS
from .kernels.user_variants import Rows as Rows
from .kernels.user_variants import variant as variant
from .kernels.warp_product import WarpgroupProduct as WarpgroupProduct
from .kernels.warp_product import WarpProduct as WarpProduct
from .measure.pipelines import profile as profile
from .measure.pipelines import timeline as timeline
from .measure.tune_pipeline import tune as tune
from .programs.notebook import load_ipython_extension as load_ipython_extension
from .programs.notebook import unload_ipython_extension as unload_ipython_extension
from .programs.session import check as check
from .workloads.presets import PRESETS as PRESETS
from .workloads.presets import preset as preset
from .workloads.workload import Workload as Workload

__version__: str
