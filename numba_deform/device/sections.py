"""The sections of the PTX ISA that this project cites, so that they can be looked up.

Texts cite them by number: "PTX ISA 9.7.9.8", "PTX 9.7.13.4, 9.7.13.15", "PTX ISA section 8.5" (lest it
read as a version). Numbers change from edition to edition, so here is the one that all of them are of, with the
titles, which hardly change. Reports, ``help`` of an intrinsic and bench/INTRINSICS.md show both.
"""

import re

EDITION = "PTX ISA 9.2"  # the documentation of CUDA 13.2

TITLES = dict(line.split(" ", 1) for line in """\
5.1.7 Shared State Space
5.5 Tensors
5.5.4 im2col mode
5.5.4.1 Bounding Box
5.5.7 Swizzling Modes
6.4 Using Addresses, Arrays, and Vectors
6.4.1 Addresses as Operands
8 Memory Consistency Model
8.5 Scope
8.6 Proxies
8.7 Morally strong operations
8.8 Release and Acquire Patterns
8.9 Ordering of memory operations
8.9.1.1 Asynchronous Operations
8.9.2 Observation Order
8.9.3 Fence-SC Order
8.9.4 Memory synchronization
8.9.5 Causality Order
9.2 PTX Instructions
9.7.1 Integer Arithmetic Instructions
9.7.1.8 Integer Arithmetic Instructions: div
9.7.1.9 Integer Arithmetic Instructions: rem
9.7.1.14 Integer Arithmetic Instructions: popc
9.7.3 Floating-Point Instructions
9.7.3.3 Floating Point Instructions: add
9.7.3.11 Floating Point Instructions: min
9.7.3.12 Floating Point Instructions: max
9.7.3.13 Floating Point Instructions: rcp
9.7.3.20 Floating Point Instructions: lg2
9.7.3.21 Floating Point Instructions: ex2
9.7.3.22 Floating Point Instructions: tanh
9.7.4 Half Precision Floating-Point Instructions
9.7.4.1 Half Precision Floating Point Instructions: add
9.7.4.3 Half Precision Floating Point Instructions: mul
9.7.4.4 Half Precision Floating Point Instructions: fma
9.7.8.1 Logic and Shift Instructions: and
9.7.8.8 Logic and Shift Instructions: shl
9.7.9 Data Movement and Conversion Instructions
9.7.9.3 Data Movement and Conversion Instructions: mov
9.7.9.6 Data Movement and Conversion Instructions: shfl.sync
9.7.9.7 Data Movement and Conversion Instructions: prmt
9.7.9.8 Data Movement and Conversion Instructions: ld
9.7.9.9 Data Movement and Conversion Instructions: ld.global.nc
9.7.9.11 Data Movement and Conversion Instructions: st
9.7.9.12 Data Movement and Conversion Instructions: st.async
9.7.9.15 Data Movement and Conversion Instructions: prefetch, prefetchu
9.7.9.18 Data Movement and Conversion Instructions: createpolicy
9.7.9.20 Data Movement and Conversion Instructions: cvta
9.7.9.21 Data Movement and Conversion Instructions: cvt
9.7.9.23 Data Movement and Conversion Instructions: mapa
9.7.9.24 Data Movement and Conversion Instructions: getctarank
9.7.9.25 Data Movement and Conversion Instructions: Asynchronous copy
9.7.9.25.1 Completion Mechanisms for Asynchronous Copy Operations
9.7.9.25.1.1 Async-group mechanism
9.7.9.25.1.2 Mbarrier-based mechanism
9.7.9.25.2 Async Proxy
9.7.9.25.3 Data Movement and Conversion Instructions: Non-bulk copy
9.7.9.25.3.1 Data Movement and Conversion Instructions: cp.async
9.7.9.25.3.2 Data Movement and Conversion Instructions: cp.async.commit_group
9.7.9.25.3.3 Data Movement and Conversion Instructions: cp.async.wait_group / cp.async.wait_all
9.7.9.25.4 Data Movement and Conversion Instructions: Bulk copy
9.7.9.25.4.1 Data Movement and Conversion Instructions: cp.async.bulk
9.7.9.25.4.2 Data Movement and Conversion Instructions: cp.reduce.async.bulk
9.7.9.25.4.3 Data Movement and Conversion Instructions: cp.async.bulk.prefetch
9.7.9.25.5 Data Movement and Conversion Instructions: Tensor copy
9.7.9.25.5.2 Data Movement and Conversion Instructions: cp.async.bulk.tensor
9.7.9.25.5.3 Data Movement and Conversion Instructions: cp.reduce.async.bulk.tensor
9.7.9.25.5.4 Data Movement and Conversion Instructions: cp.async.bulk.prefetch.tensor
9.7.9.25.6 Data Movement and Conversion Instructions: Bulk and Tensor copy completion instructions
9.7.9.25.6.1 Data Movement and Conversion Instructions: cp.async.bulk.commit_group
9.7.9.25.6.2 Data Movement and Conversion Instructions: cp.async.bulk.wait_group
9.7.9.26 Data Movement and Conversion Instructions: tensormap.replace
9.7.12.7 Control Flow Instructions: exit
9.7.13 Parallel Synchronization and Communication Instructions
9.7.13.1 Parallel Synchronization and Communication Instructions: bar, barrier
9.7.13.2 Parallel Synchronization and Communication Instructions: bar.warp.sync
9.7.13.3 Parallel Synchronization and Communication Instructions: barrier.cluster
9.7.13.4 Parallel Synchronization and Communication Instructions: membar / fence
9.7.13.5 Parallel Synchronization and Communication Instructions: atom
9.7.13.6 Parallel Synchronization and Communication Instructions: red
9.7.13.7 Parallel Synchronization and Communication Instructions: red.async
9.7.13.9 Parallel Synchronization and Communication Instructions: vote.sync
9.7.13.11 Parallel Synchronization and Communication Instructions: activemask
9.7.13.12 Parallel Synchronization and Communication Instructions: redux.sync
9.7.13.13 Parallel Synchronization and Communication Instructions: griddepcontrol
9.7.13.14 Parallel Synchronization and Communication Instructions: elect.sync
9.7.13.15 Parallel Synchronization and Communication Instructions: mbarrier
9.7.13.15.1 Size and alignment of mbarrier object
9.7.13.15.2 Contents of the mbarrier object
9.7.13.15.4 Phase of the mbarrier object
9.7.13.15.9 Parallel Synchronization and Communication Instructions: mbarrier.init
9.7.13.15.10 Parallel Synchronization and Communication Instructions: mbarrier.inval
9.7.13.15.11 Parallel Synchronization and Communication Instructions: mbarrier.expect_tx
9.7.13.15.13 Parallel Synchronization and Communication Instructions: mbarrier.arrive
9.7.13.15.14 Parallel Synchronization and Communication Instructions: mbarrier.arrive_drop
9.7.13.15.15 Parallel Synchronization and Communication Instructions: cp.async.mbarrier.arrive
9.7.13.15.16 Parallel Synchronization and Communication Instructions: mbarrier.test_wait / mbarrier.try_wait
9.7.13.15.17 Parallel Synchronization and Communication Instructions: mbarrier.pending_count
9.7.13.16 Parallel Synchronization and Communication Instructions: tensormap.cp_fenceproxy
9.7.13.17 Parallel Synchronization and Communication Instructions: clusterlaunchcontrol.try_cancel
9.7.13.18 Parallel Synchronization and Communication Instructions: clusterlaunchcontrol.query_cancel
9.7.14 Warp Level Matrix Multiply-Accumulate Instructions
9.7.14.5.7 Matrix Fragments for mma.m16n8k8
9.7.14.5.8 Matrix Fragments for mma.m16n8k16 with floating point type
9.7.14.5.10 Matrix Fragments for mma.m16n8k32
9.7.14.5.14 Multiply-and-Accumulate Instruction: mma
9.7.14.5.15 Warp-level matrix load instruction: ldmatrix
9.7.14.5.16 Warp-level matrix store instruction: stmatrix
9.7.15 Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions
9.7.15.4 Async Proxy
9.7.15.5 Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation using wgmma.mma_async instruction
9.7.15.5.1 Register Fragments and Shared Memory Matrix Layouts
9.7.15.5.1.2 Shared Memory Matrix Layout
9.7.15.5.1.2.2 Matrix Descriptor Format
9.7.15.5.2 Asynchronous Multiply-and-Accumulate Instruction: wgmma.mma_async
9.7.15.7 Asynchronous wgmma Proxy Operations
9.7.15.7.1 Asynchronous Multiply-and-Accumulate Instruction: wgmma.fence
9.7.15.7.2 Asynchronous Multiply-and-Accumulate Instruction: wgmma.commit_group
9.7.15.7.3 Asynchronous Multiply-and-Accumulate Instruction: wgmma.wait_group
9.7.16 TensorCore 5th Generation Family Instructions
9.7.16.2.1 Matrix Shape
9.7.16.2.3.1 Memory Layout
9.7.16.4.1 Shared Memory Descriptor
9.7.16.4.2 Instruction Descriptor
9.7.16.6 Memory Consistency Model for 5th generation of TensorCore operations
9.7.16.6.2 Pipelined tcgen05 Instructions
9.7.16.7.1 Tensorcore 5th Generation Instructions: tcgen05.alloc, tcgen05.dealloc, \
tcgen05.relinquish_alloc_permit
9.7.16.8.3 Tensorcore 5th Generation Instructions: tcgen05.ld
9.7.16.8.4 Tensorcore 5th Generation Instructions: tcgen05.st
9.7.16.8.5 Tensorcore 5th Generation Instructions: tcgen05.wait
9.7.16.10.9.1 TensorCore 5th Generation Instructions: tcgen05.mma
9.7.16.11.1 TensorCore 5th Generation Instructions: tcgen05.fence
9.7.16.12.1 TensorCore 5th Generation Instructions: tcgen05.commit
9.7.19.5 Miscellaneous Instructions: setmaxnreg
10.14 Special Registers: %cluster_ctaid
10.16 Special Registers: %cluster_ctarank
10.17 Special Registers: %cluster_nctarank
10.24 Special Registers: %clock64
10.28 Special Registers: %globaltimer, %globaltimer_lo, %globaltimer_hi
""".splitlines())

_ONE = r"\d+(?:\.\d+)+"
_CITATION = re.compile(rf"PTX (?:ISA )?(?:section 8\b|(?:section )?{_ONE}(?:(?:,|;| and)\s+(?:// )?{_ONE})*)")


def cited(text):
    """The numbers of the sections that ``text`` cites, in its order, each once. Its edition is none."""
    lists = _CITATION.findall(text.replace(EDITION, ""))
    return list(dict.fromkeys(number for numbers in lists for number in re.findall(r"[\d.]*\d", numbers)))


def short(number):
    """The end of a section's title: of "Data Movement and Conversion Instructions: ld" that is "ld"."""
    return TITLES[number].rpartition(": ")[2]


def with_titles(text):
    """``text``, with the end of its title behind each section that it cites, in parentheses."""
    for number in cited(text):
        text = re.sub(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", rf"\g<0> ({short(number)})", text)
    return text


def looked_up(text):
    """Lines, one for each section that ``text`` cites: edition, number and title.

    KeyError for a number that is not in TITLES."""
    return [f"{EDITION}, {number}: {TITLES[number]}" for number in cited(text)]
