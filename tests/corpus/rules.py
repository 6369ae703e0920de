"""The rules that the CPU engine holds, each with its source and programs of the corpus that ask about it.

``python bench/corpus.py --rules`` makes a table: what the engine says of these programs, and what a GPU did. A
right program shows what a rule allows, a wrong one what comes of breaking it.
"""

from typing import NamedTuple

MBARRIER = "PTX ISA 9.7.13.15"
TENSOR, BULK = "PTX ISA 9.7.9.25.5", "PTX ISA 9.7.9.25.4"
MODEL = "PTX ISA section 8"


class Rule(NamedTuple):
    says: str
    source: str
    programs: tuple


def rule(says, source, *programs):
    return Rule(says, source, programs)


RULES = {
    "mbarrier": [
        rule(
            "A phase completes when no arrival and no byte is missing; the next one begins at once",
            MBARRIER, "two_operands_on_one_barrier", "some_tiles_are_empty", "count_of_threads_one_arrives"
        ),
        rule(
            "Bytes may land before they are expected: the tx-count may be negative while arrivals are missing",
            MBARRIER, "the_copy_before_the_expectation", "the_expectation_after_an_arrival",
            "expects_nothing"
        ),
        rule(
            "A wait passes if the parity is not that of the current phase; a fresh barrier passes parity 1",
            MBARRIER, "what_a_fresh_barrier_answers", "consumer_starts_with_one",
            "reader_starts_with_one", "parity_flips_with_the_tile"
        ),
        rule(
            "A parity names the current phase or the one before, so a waiter must know the one before that to "
            "be over: by its own wait, or by all that completed it",
            MBARRIER, "two_producers_in_turn", "two_consumers_in_turn", "a_wait_long_after_the_phase",
            "leader_answers_for_two_warps", "phases_start_anew_with_each_tile"
        ),
        rule(
            "An arrival counts in the current phase: its thread must know the phase before to be over",
            MBARRIER, "a_token_to_and_fro", "signals_without_waiting"
        ),
        rule(
            "A phase takes the expected number of arrivals; one more spills into the next",
            MBARRIER, "one_lane_arrives_for_its_warp", "whole_warp_arrives_for_one",
            "every_lane_loads_the_tile"
        ),
        rule(
            "arrive_drop lowers the count of the phases to come, and somebody is left",
            MBARRIER, "warps_drop_out_one_by_one", "last_one_drops_out", "arrives_after_dropping_out"
        ),
        rule(
            "An arrival releases and a wait acquires: what was before the one is seen behind the other",
            "PTX ISA 9.7.13.15, 8.8", "in_place_of_syncthreads", "ordinary_stores_through_a_pipeline",
            "releases_before_the_last_read"
        ),
        rule(
            "test_wait never blocks, and try_wait may come back too soon: callers loop",
            "PTX ISA 9.7.13.15.16", "test_wait_in_a_loop_with_naps", "does_something_else_after_many_looks",
            "peek_at_the_next_stage", "one_look_is_no_wait", "gives_up_after_many_looks"
        ),
        rule(
            "Once initialised, a barrier's bytes belong to it until inval",
            "PTX ISA 9.7.13.15.9, 9.7.13.15.10", "another_count_after_inval", "numbers_where_a_barrier_was",
            "everybody_initialises", "memory_reused_without_inval", "used_after_its_end"
        ),
        rule(
            "Others may use a barrier only after a barrier behind its init, the copy engine after a fence",
            "PTX ISA 9.7.13.15.9, 9.7.13.4", "no_barrier_after_init", "fence_before_the_last_init"
        ),
        rule(
            "Counts lie in 1 .. 2^20-1 and tx-counts within +-(2^20-1); a parity is 0 or 1",
            MBARRIER, "expects_a_megabyte", "count_of_nobody", "count_of_uses_as_parity"
        ),
    ],
    "barriers of threads, warps": [
        rule(
            "syncthreads is one barrier for all threads that have not exited",
            "CUDA guide, synchronization functions", "threads_past_the_end_have_returned",
            "one_barrier_for_each_branch", "loop_left_before_its_barrier"
        ),
        rule(
            "bar.sync id, n waits for n threads, in whole warps, exited or not; bar.arrive does not wait",
            "PTX ISA 9.7.13.1", "two_buffers_by_four_named_barriers", "two_warps_take_turns"
        ),
        rule(
            "All lanes of a mask that have not exited come to the same operation, at any place; syncwarp "
            "orders them",
            "PTX ISA 9.7.13.2, 9.7.9.6", "odd_lanes_have_returned",
            "scan_in_half_a_warp_with_the_full_mask", "the_halves_of_a_warp_go_their_own_ways",
            "two_branches_vote_and_exchange", "last_warp_in_step"
        ),
        rule(
            "activemask is any group of lanes that are converged now",
            "PTX ISA 9.7.13.11", "one_atomic_for_the_active_lanes"
        ),
        rule(
            "A shuffle from a lane that takes no part gives an undefined value, which may go unused",
            "PTX ISA 9.7.9.6", "shuffles_from_lanes_outside_the_mask"
        ),
        rule(
            "elect.sync names one lane of its mask",
            "PTX ISA 9.7.13.14", "one_is_elected_in_each_branch"
        ),
    ],
    "copies": [
        rule(
            "The corner of a load's box may lie anywhere; what is outside the tensor arrives as zeros, or "
            "NaNs, and counts on the barrier",
            TENSOR, "boxes_over_the_border", "every_other_row_and_nan_outside", "expects_what_lies_inside"
        ),
        rule(
            "The innermost coordinate times the element's size is a multiple of 16 bytes",
            "asked of an H200 (results/box_corners.json); not in PTX ISA 9.7.9.25.5",
            "pixels_round_a_corner", "corner_between_16_bytes", "corner_before_the_first_column",
            "store_of_a_shifted_tile"
        ),
        rule(
            "A store writes what lies inside the tensor, and begins at no negative coordinate",
            TENSOR, "a_store_that_clips", "the_last_tile_is_short", "store_that_begins_above_the_image"
        ),
        rule(
            "A tile lies on 128 bytes; a swizzle goes by the bits of the shared address",
            "PTX ISA 5.5.7", "swizzled_stages_at_128_bytes", "tile_behind_the_barrier"
        ),
        rule(
            "A plain bulk copy has addresses and a size that are multiples of 16",
            BULK, "sixteen_bytes_are_enough", "source_aligned_for_a_word", "bulk_size_no_multiple_of_16"
        ),
        rule(
            "The destination may be read only after a wait for the copy's barrier or group",
            TENSOR, "one_thread_waits_for_all", "waits_on_the_first_barrier_only", "syncthreads_is_no_wait"
        ),
        rule(
            "A stage is filled again after all its readers have given it back",
            "follows from the race rules", "refill_behind_syncthreads", "refills_after_its_own_wait",
            "one_of_two_readers_releases"
        ),
        rule(
            "Bulk groups: wait_group.read ends the reads of shared memory, wait_group the writes as well; a "
            "group may be empty",
            "PTX ISA 9.7.9.25.6", "two_buffers_of_stores", "groups_with_nothing_in_them",
            "three_groups_are_waited_for_in_parts", "reads_the_result_too_early", "store_in_no_group"
        ),
        rule(
            "A group belongs to the thread that commits it",
            "PTX ISA 9.7.9.25.1.1, 9.7.9.25.6", "double_buffering", "empty_groups_keep_the_count",
            "wait_without_barrier", "others_do_not_know_of_the_wait"
        ),
        rule(
            "All copies are done when the block ends",
            "PTX ISA 9.7.9.25.1", "producer_waits_for_the_last_release", "ends_with_a_store_in_flight",
            "prefetch_that_nobody_reads"
        ),
        rule(
            "Ordinary writes to shared or global memory reach the copy engine past a fence.proxy.async for "
            "that memory",
            "PTX ISA section 8.6, 9.7.13.4", "there_and_back_in_place", "fence_behind_the_store",
            "bulk_load_of_what_was_just_stored", "fence_for_the_wrong_memory"
        ),
        rule(
            "A tensor map in global memory is acquired by a fence in each block",
            "PTX ISA 9.7.13.4", "one_thread_fences_the_map_for_another", "map_without_fence",
            "block_0_fences_for_all"
        ),
        rule(
            "A map's rank is that of the instruction",
            TENSOR, "instruction_of_another_rank"
        ),
    ],
    "memory": [
        rule(
            "Two accesses, of which one writes, are ordered by something both take part in",
            MODEL, "a_message_through_a_third_thread", "reduction_without_barrier", "convolution_in_place"
        ),
        rule(
            "Memory reached through a tensor map is memory",
            MODEL, "tiles_are_changed_in_place", "every_warp_stores_its_own_part",
            "blocks_store_over_each_other", "block_loads_what_its_neighbour_stores"
        ),
        rule(
            "Fences and atomics of scope cta order nothing between blocks",
            "PTX ISA section 8.5", "the_last_block_adds_up", "a_block_writes_to_another",
            "block_fence_between_blocks", "only_the_writer_fences_widely"
        ),
        rule(
            "An atomic does not race with an atomic, and does with an ordinary access",
            "PTX ISA section 8.7", "a_histogram_in_two_levels", "load_beside_atomic_add", "maximum_by_hand"
        ),
        rule(
            "Who reads a value from an atomic comes after its write, and with an acquire after all that was "
            "released with it",
            "PTX ISA section 8.9", "a_release_goes_through_an_atomic", "the_last_block_resets_the_counter",
            "look_back_with_flags_apart", "look_back_without_release", "a_later_store_of_the_releasing_thread",
            "another_thread_stores_after_the_release"
        ),
        rule(
            "ld.global.nc reads what nobody writes while the kernel runs",
            "PTX ISA 9.7.9.9", "the_upper_half_is_read_only", "read_only_load_after_store",
            "store_after_read_only_load"
        ),
        rule(
            "Blocks that are resident together all get on; others begin when one ends",
            "CUDA guide, cooperative groups", "a_barrier_of_the_grid", "a_channel_between_blocks",
            "all_threads_look_together", "more_blocks_than_fit", "looks_together_for_a_third_block"
        ),
        rule(
            "An access stays inside one array",
            "PTX ISA section 6.4", "dynamic_arrays_share_their_bytes", "store_runs_into_the_next_array",
            "vector_load_over_the_end", "copy_over_two_arrays"
        ),
        rule(
            "An access lies on a multiple of its size",
            "PTX ISA 6.4.1", "vector_load_of_a_view", "vector_load_from_odd_words"
        ),
        rule(
            "Shared and local memory hold garbage until they are written",
            "CUDA guide, shared memory", "transpose_with_padding", "shared_memory_is_not_zero",
            "zip_with_a_longer_array", "accumulator_never_set", "zip_comes_to_what_is_not_set"
        ),
        rule(
            "Fields of a record are memory",
            "Numba documentation, CUDA and records", "fields_of_a_record", "record_shared_by_blocks"
        ),
        rule(
            "A block has 48 KB of static shared memory, 227 KB in all",
            "CUDA guide, technical specifications", "a_tile_in_dynamic_shared_memory",
            "too_much_static_shared_memory", "static_and_dynamic_together"
        ),
    ],
}  # fmt: skip
