// Bugs of Blackwell pipelines that people reported in public, each in a small kernel of our own (nobody's code), and a
// few of our own at the end. Each comment says where to read of it, what is wrong, the fault that has to be named and words of its cure; the line to
// blame ends in "<- fault". With -DMENDED=1 each is as it was mended, or as the cure says. By PTX's text: never run on
// hardware.
#include "blackwell.cuh"

constexpr bool mended = MENDED;

// NVIDIA/cudnn-frontend issue 652: two accumulators share columns, and the epilogue gives them back before it has read
// the last of these
// DataRace: behind that one's tcgen05.wait;
extern "C" __global__ void __launch_bounds__(192) overlapping(const char* a, const char* b, float* out) {
    RING
    START(128, 1, 128)
    PRODUCE(3)
    if (threadIdx.x == 160) {
        EACH(tile, 3) {
            wait(&unused[0], tile + 1);  // the one before, of the shared columns
            after();
            wait(&full[tile % 2], tile / 2);
            multiply(d + tile % 2 * 32, address(left[tile % 2]), address(right[tile % 2]), 0);
            commit(&empty[tile % 2]);
            commit(&ready[0]);
        }
    } else if (warp < 4) {
        EACH(tile, 3) {
            wait(&ready[0], tile);
            after();
            EACH(i, 8) {
                int column = (i + (tile % 2 ? 0 : 4)) % 8 * 8;  // the shared ones first
                uint32_t words[8];
                if (!mended && i == 3) before(), arrive(&unused[0]);  // <- fault
                read(rows + tile % 2 * 32 + column, words);
                loaded();
                if (mended && i == 3) before(), arrive(&unused[0]);
                put(words, out + (tile * 128 + threadIdx.x) * 64 + column);
            }
        }
    }
    END(128)
}

// NVIDIA/cutlass pull request 3652: half of the lanes use nothing of the last load, and the columns are freed while it
// may be under way
// TensorInFlight: tcgen05.wait::ld
extern "C" __global__ void __launch_bounds__(192) unused_lanes(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(1)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        commit(&ready[0]);
    } else if (warp < 4) {
        uint32_t words[8] = {};
        wait(&ready[0], 0);
        after();
        read(rows, words);
        if (mended) loaded();
        if (lane < 16) put(words, out + threadIdx.x * 8);
        arrive(&unused[0]);
    } else if (warp == 4) {
        __syncwarp();
        wait(&unused[0], 0);
        dealloc(d, 64);  // <- fault
    }
}

// NVIDIA/cutlass pull request 3653: a row's statistics are announced before their store is over
// TensorInFlight: tcgen05.wait::st
extern "C" __global__ void __launch_bounds__(320) statistics(const char* a, const char* b, float* out) {
    RING
    __shared__ uint64_t told, heard;
    if (threadIdx.x == 0) init(&told, 128), init(&heard, 128);
    START(128, 1, 128)
    PRODUCE(3)
    if (threadIdx.x == 160) {
        EACH(tile, 3) {
            wait(&unused[tile % 2], tile / 2 + 1);
            wait(&full[tile % 2], tile / 2);
            multiply(d + tile % 2 * 64, address(left[tile % 2]), address(right[tile % 2]), 0);
            commit(&empty[tile % 2]);
            commit(&ready[tile % 2]);
        }
    } else if (warp < 4) {  // softmax
        EACH(tile, 3) {
            wait(&ready[tile % 2], tile / 2);
            after();
            uint32_t word = read_one(rows + tile % 2 * 64 + 63);
            loaded();
            wait(&heard, tile + 1);
            out[(3 + tile) * 128 + threadIdx.x] = __uint_as_float(word);
            write_one(rows + tile % 2 * 64 + 63, __float_as_uint(tile + threadIdx.x));
            if (mended) stored();
            before();
            arrive(&told);
        }
    } else if (warp > 5) {  // correction, of the same lanes
        EACH(tile, 3) {
            wait(&told, tile);
            after();
            uint32_t word = read_one(rows + tile % 2 * 64 + 63);  // <- fault
            loaded();
            out[tile * 128 + warp % 4 * 32 + lane] = __uint_as_float(word);
            before();
            arrive(&heard);
            arrive(&unused[tile % 2]);
        }
    }
    END(128)
}

// NVIDIA/cutlass pull request 2835: a warp without a tile frees at an address that nothing says has been written
// DataRace: barrier
extern "C" __global__ void __launch_bounds__(192) late_address(const char* a, const char* b, float* out) {
    __shared__ alignas(128) char left[A_BYTES], right[B_BYTES];
    __shared__ uint64_t full, ready;
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32, tiles = blockIdx.x;
    if (threadIdx.x == 0) init(&full, 1), init(&ready, 1), inits_done();
    __syncthreads();
    if (warp == 5) alloc(address(&base), 64);
    if (mended) __syncthreads();
    if (threadIdx.x == 160 && tiles) {
        expect(&full, A_BYTES + B_BYTES);
        load(left, a, A_BYTES, &full);
        load(right, b, B_BYTES, &full);
        wait(&full, 0);
        multiply(base, address(left), address(right), 0);
        commit(&ready);
    } else if (warp < 4) {
        if (tiles) {
            wait(&ready, 0);
            after();
            take(base + (warp << 21), out + threadIdx.x * 64);
            before();
        }
        meet<1, 128>();
        if (warp == 0) dealloc(base, 64);  // <- fault
    }
}

// NVIDIA/cutlass issue 2230: nothing is allocated
// TensorMemoryMisuse: the address that tcgen05.alloc has stored
extern "C" __global__ void __launch_bounds__(128) no_allocation(const char* a, const char* b, float* out) {
    __shared__ alignas(128) char left[A_BYTES], right[B_BYTES];
    __shared__ uint64_t done;
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32;
    if (mended && warp == 0) alloc(address(&base), 64);
    if (threadIdx.x == 0) init(&done, 1), inits_done();
    __syncthreads();
    uint32_t d = mended ? base : 0;
    EACH(k, 4) {
        for (int i = threadIdx.x; i < A_BYTES / 4; i += 128) ((int*)left)[i] = ((const int*)a)[k * A_BYTES / 4 + i];
        for (int i = threadIdx.x; i < B_BYTES / 4; i += 128) ((int*)right)[i] = ((const int*)b)[k * B_BYTES / 4 + i];
        fence_async();
        __syncthreads();
        if (threadIdx.x == 0) multiply(d, address(left), address(right), k), commit(&done);  // <- fault
        wait(&done, k);
    }
    after();
    take(d + (warp << 21), out + threadIdx.x * 64);
    before();
    __syncthreads();
    if (mended && warp == 0) dealloc(d, 64);
}

// sgl-project/sglang pull request 39124: threads write A, and no proxy fence stands before the product
// MissingProxyFence: fence.proxy.async in each writing thread
extern "C" __global__ void __launch_bounds__(128) no_proxy_fence(const uint32_t* a, const char* b, float* out) {
    __shared__ alignas(128) uint32_t left[A_BYTES / 4];
    __shared__ alignas(128) char right[B_BYTES];
    __shared__ uint64_t full, done;
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32;
    if (warp == 0) alloc(address(&base), 64);
    if (threadIdx.x == 0) init(&full, 1), init(&done, 1), inits_done();
    __syncthreads();
    EACH(tile, 2) {
        for (int i = 0; i < 8; i++) left[threadIdx.x / 8 * 64 + i / 4 * 32 + threadIdx.x % 8 * 4 + i % 4] = a[(tile * 128 + threadIdx.x) * 8 + i];
        if (mended) fence_async();
        before();
        __syncthreads();
        if (threadIdx.x == 0) {
            after();
            expect(&full, B_BYTES);
            load(right, b + tile * B_BYTES, B_BYTES, &full);
            wait(&full, tile);
            multiply(base, address(left), address(right), 0);  // <- fault
            commit(&done);
        }
        wait(&done, tile);
        after();
        take(base + (warp << 21), out + (tile * 128 + threadIdx.x) * 64);
        before();
        __syncthreads();
    }
    if (warp == 0) dealloc(base, 64);
}

// mlc-ai/TIRx-kernels pull request 19: A in tensor memory is written again while the product before may read it
// DataRace: for its tcgen05.commit
extern "C" __global__ void __launch_bounds__(192) one_slot(const uint32_t* a, const char* b, float* out) {
    RING
    START(128, 1, 128)
    if (threadIdx.x == 160) {
        EACH(tile, 3) {
            expect(&full[0], B_BYTES);
            load(right[0], b + tile * B_BYTES, B_BYTES, &full[0]);
            wait(&full[0], tile);
            wait(&unused[0], tile);
            after();
            multiply_tensor(d, d + 64, address(right[0]));
            commit(&empty[0]);
            commit(&ready[0]);
            wait(&empty[0], tile);  // of B
        }
    } else if (warp < 4) {
        EACH(tile, 4) {
            uint32_t words[8];
            if (tile < 3) {
                for (int i = 0; i < 8; i++) words[i] = a[(tile * 128 + threadIdx.x) * 8 + i];
                if (mended) wait(&empty[0], tile + 1), after();
                write(rows + 64, words);  // <- fault
                stored();
                before();
            }
            if (tile) {
                wait(&ready[0], tile + 1);
                after();
                take(rows, out + ((tile - 1) * 128 + threadIdx.x) * 64);
                before();
            }
            if (tile < 3) arrive(&unused[0]);
        }
    }
    END(128)
}

// mlc-ai/TIRx-kernels pull request 19: a warp frees when it has read, and others may not
// DataRace: Have both sides meet
extern "C" __global__ void __launch_bounds__(192) early_dealloc(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        EACH(k, 2) {
            wait(&full[k], 0);
            multiply(d, address(left[k]), address(right[k]), k);
        }
        commit(&ready[0]);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
        if (mended) meet<1, 128>();
        if (warp == 0) dealloc(d, 64);  // <- fault
    }
}

// vllm-project/flash-attention pull request 182: registers of a load have been used, and its columns are given back
// without tcgen05.wait::ld
// TensorInFlight: tcgen05.wait::ld
extern "C" __global__ void __launch_bounds__(192) registers_used(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(3)
    if (threadIdx.x == 160) {
        EACH(tile, 3) {
            wait(&unused[0], tile + 1);
            after();
            wait(&full[tile % 2], tile / 2);
            multiply(d, address(left[tile % 2]), address(right[tile % 2]), 0);  // <- fault
            commit(&empty[tile % 2]);
            commit(&ready[0]);
        }
    } else if (warp < 4) {
        EACH(tile, 3) {
            wait(&ready[0], tile);
            after();
            EACH(column, 8) {
                uint32_t words[8];
                read(rows + column * 8, words);
                if (mended) loaded();
                put(words, out + (tile * 128 + threadIdx.x) * 64 + column * 8, 2);
            }
            before();
            arrive(&unused[0]);
        }
    }
    END(64)
}

// flashinfer-ai/flashinfer issue 5334: two products of a step share an accumulator, which is given back while its load
// is under way
// TensorInFlight: tcgen05.wait::ld
extern "C" __global__ void __launch_bounds__(192) shared_accumulator(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(4)
    if (threadIdx.x == 160) {
        EACH(step, 2) EACH(which, 2) {
            int use = 2 * step + which;
            wait(&unused[0], use + 1);
            after();
            wait(&full[which], step);
            multiply(d, address(left[which]), address(right[which]), 0);  // <- fault
            commit(&empty[which]);
            commit(&ready[which]);
        }
    } else if (warp < 4) {
        EACH(step, 2) {
            for (int which = 0; which < 2; which++) {
                uint32_t words[2][8];
                wait(&ready[which], step);
                after();
                read(rows, words[0]);
                read(rows + 8, words[1]);
                if (mended || which) loaded();
                before();
                arrive(&unused[0]);
                for (int i = 0; i < 2; i++) put(words[i], out + ((2 * step + which) * 128 + threadIdx.x) * 16 + i * 8);
            }
        }
    }
    END(64)
}

// NVIDIA/cudnn-frontend pull request 396: the third product of a step lies where the first does, and the next step
// waits for the release of the first alone
// DataRace: Wait, before this, until thread 0 has read
extern "C" __global__ void __launch_bounds__(192) older_release(const char* a, const char* b, float* out) {
    RING
    START(128, 1, 128)
    PRODUCE(6)
    if (threadIdx.x == 160) {
        EACH(use, 6) {
            int step = use / 3, which = use % 3;
            if (which == 0 && mended) wait(&unused[1], step + 1);
            if (which == 2) wait(&unused[0], step);
            after();
            wait(&full[use % 2], use / 2);
            multiply(d + which % 2 * 64, address(left[use % 2]), address(right[use % 2]), 0);  // <- fault
            commit(&empty[use % 2]);
            if (which != 1) commit(&ready[which / 2]);
        }
    } else if (warp < 4) {
        EACH(step, 2) {
            wait(&ready[0], step);
            after();
            take(rows, out + (step * 3 * 128 + threadIdx.x) * 64);
            before();
            arrive(&unused[0]);
            wait(&ready[1], step);
            after();
            take(rows, out + ((step * 3 + 2) * 128 + threadIdx.x) * 64);
            take(rows + 64, out + ((step * 3 + 1) * 128 + threadIdx.x) * 64);
            before();
            arrive(&unused[1]);
        }
    }
    END(128)
}

// facebookexperimental/triton issue 1993: P lies over S, and one warp stores P where another still reads S
// DataRace: Have both sides meet
extern "C" __global__ void __launch_bounds__(320) other_chunk(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 256)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        EACH(tile, 2) {
            wait(&unused[0], tile + 1);
            after();
            wait(&full[tile], 0);
            multiply(d, address(left[tile]), address(right[tile]), 0);
            commit(&ready[0]);
        }
    } else if (warp < 4 || warp > 5) {  // two warps for the same lanes
        int half = warp / 6;
        EACH(tile, 2) {
            uint32_t words[32];
            wait(&ready[0], tile);
            after();
            for (int i = 0; i < 32; i += 8) read(rows + half * 32 + i, words + i);
            loaded();
            if (mended) before(), meet<1, 256>(), after();
            for (int i = 0; i < 32; i++) words[i] = __float_as_uint(2 * __uint_as_float(words[i]));
            for (int i = 0; i < 32; i += 8) write(rows + 32 - half * 32 + i, words + i);  // <- fault
            stored();
            for (int i = 0; i < 32; i += 8) read(rows + 32 - half * 32 + i, words + i);
            loaded();
            for (int i = 0; i < 32; i += 8) put(words + i, out + (tile * 128 + warp % 4 * 32 + lane) * 64 + half * 32 + i);
            before();
            arrive(&unused[0]);
        }
    }
    END(64)
}

// facebookexperimental/triton pull request 1026: a commit of all accumulators' barriers, not of the one that is ready
// TensorInFlight: signal that one's barrier alone
extern "C" __global__ void __launch_bounds__(192) commit_of_all(const char* a, const char* b, float* out) {
    RING
    START(128, 1, 128)
    PRODUCE(3)
    if (threadIdx.x == 160) {
        EACH(tile, 3) {
            wait(&unused[tile % 2], tile / 2 + 1);
            after();
            wait(&full[tile % 2], tile / 2);
            multiply(d + tile % 2 * 64, address(left[tile % 2]), address(right[tile % 2]), 0);
            commit(&empty[tile % 2]);
            if (mended) commit(&ready[tile % 2]);
            else EACH(i, 2) commit(&ready[i]);  // <- fault
        }
    } else if (warp < 4) {
        EACH(tile, 3) {
            wait(&ready[tile % 2], tile / 2);
            after();
            take(rows + tile % 2 * 64, out + (tile * 128 + threadIdx.x) * 64);
            before();
            arrive(&unused[tile % 2]);
        }
    }
    END(128)
}

// facebookexperimental/triton pull request 3527: a narrow accumulator lies in a wide one, which is written again before
// the narrow one has been released
// TensorInFlight: Whoever reads that product
extern "C" __global__ void __launch_bounds__(320) narrow_alias(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(4)
    if (threadIdx.x == 160) {
        EACH(step, 2) {
            if (mended) wait(&unused[1], step + 1), after();
            wait(&full[0], step);
            multiply(d, address(left[0]), address(right[0]), 0);  // <- fault
            commit(&empty[0]);
            commit(&ready[0]);
            wait(&unused[0], step);
            after();
            wait(&full[1], step);
            asm volatile("{ .reg .pred p; setp.ne.u32 p, 0, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(d + 32), "l"(descriptor(address(left[1]))), "l"(descriptor(address(right[1]))), "r"(F16_64 - (32 / 8 << 17)) : "memory");
            commit(&empty[1]);
            commit(&ready[1]);
        }
    } else if (warp < 4) {
        EACH(step, 2) {
            wait(&ready[0], step);
            after();
            take(rows, out + (step * 2 * 128 + threadIdx.x) * 64);
            before();
            arrive(&unused[0]);
        }
    } else if (warp > 5) {
        EACH(step, 2) {
            wait(&ready[1], step);
            after();
            for (int i = 0; i < 32; i += 8) {
                uint32_t words[8];
                read(rows + 32 + i, words);
                loaded();
                put(words, out + ((step * 2 + 1) * 128 + warp % 4 * 32 + lane) * 64 + i);
            }
            before();
            arrive(&unused[1]);
        }
    }
    END(64)
}

// triton-lang/triton pull request 10043: one partition stores, and another loads as soon as it likes
// DataRace: Have both sides meet
extern "C" __global__ void __launch_bounds__(256) partition(const uint32_t* a, const char* b, float* out) {
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32, row = threadIdx.x % 128;
    uint32_t words[8];
    if (warp == 0) alloc(address(&base), 32);
    __syncthreads();
    uint32_t rows = base + (warp % 4 << 21);
    if (warp > 3) {
        for (int i = 0; i < 8; i++) words[i] = __float_as_uint(row + 8 * i);
        write(rows, words);
        stored();
        before();
        if (mended) meet<1, 256>();
    } else {
        if (mended) meet<1, 256>();
        after();
        read(rows, words);  // <- fault
        loaded();
        put(words, out + row * 8);
    }
    before();
    __syncthreads();
    if (warp == 0) dealloc(base, 32);
}

// triton-lang/triton pull request 8910: one product for all 512 columns
// BadTensorOperand: 256
extern "C" __global__ void __launch_bounds__(128) too_wide(const char* a, const char* b, float* out) {
    __shared__ alignas(128) char left[A_BYTES], right[8 * B_BYTES];
    __shared__ uint64_t full, done;
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32;
    if (warp == 0) alloc(address(&base), 512);
    if (threadIdx.x == 0) init(&full, 1), init(&done, 1), inits_done();
    __syncthreads();
    if (threadIdx.x == 0) {
        expect(&full, A_BYTES + 8 * B_BYTES);
        load(left, a, A_BYTES, &full);
        load(right, b, 8 * B_BYTES, &full);
        wait(&full, 0);
        uint32_t columns = mended ? 256 : 512, said = 1 << 4 | (columns / 8 & 63) << 17 | 128 / 16 << 24;
        for (int n = 0; n < 512; n += columns)
            asm volatile("{ .reg .pred p; setp.ne.u32 p, 0, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(base + n), "l"(descriptor(address(left))), "l"(descriptor(address(right) + n * 32)), "r"(said) : "memory");  // <- fault
        commit(&done);
    }
    wait(&done, 0);
    after();
    EACH(n, 8) take(base + (warp << 21) + n * 64, out + (n * 128 + threadIdx.x) * 64);
    before();
    __syncthreads();
    if (warp == 0) dealloc(base, 512);
}

// NVIDIA/cudnn-frontend pull request 426: all lanes of a warp store, and one arrives for them
// DataRace: syncwarp
extern "C" __global__ void __launch_bounds__(192) one_arrives(const char* a, const char* b, float* out) {
    RING
    __shared__ float weights[64];
    __shared__ uint64_t weighted;
    if (threadIdx.x == 0) init(&weighted, 1);
    START(64, 1, 128)
    PRODUCE(1)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        commit(&ready[0]);
    } else if (warp == 4) {
        weights[lane] = lane + 1, weights[lane + 32] = lane + 33;
        if (mended) __syncwarp();
        if (lane == 0) arrive(&weighted);
    } else if (warp < 4) {
        uint32_t words[8];
        wait(&weighted, 0);
        wait(&ready[0], 0);
        after();
        EACH(column, 8) {
            read(rows + column * 8, words);
            loaded();
            for (int i = 0; i < 8; i++) out[threadIdx.x * 64 + column * 8 + i] = __uint_as_float(words[i]) * weights[column * 8 + i];  // <- fault
        }
        before();
    }
    END(64)
}

// NVIDIA/cudnn-frontend pull request 784: the epilogue writes shared memory, and TMA stores it without a proxy fence
// MissingProxyFence: fence.proxy.async in each writing thread
extern "C" __global__ void __launch_bounds__(192) no_store_fence(const char* a, const char* b, float* out) {
    RING
    __shared__ alignas(128) float tile[128][64];
    START(64, 1, 128)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        EACH(k, 2) {
            wait(&full[k], 0);
            multiply(d, address(left[k]), address(right[k]), k);
        }
        commit(&ready[0]);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, tile[threadIdx.x]);
        before();
        if (mended) fence_async();
        meet<1, 128>();
        if (threadIdx.x == 0) store(out, tile, sizeof(tile)), stores_done();  // <- fault
    }
    END(64)
}

// facebookexperimental/triton pull request 3286: a slot of the stores is written again when another slot's store has
// been waited for
// DataRace: cp.async.bulk.wait_group 1
extern "C" __global__ void __launch_bounds__(192) store_slots(const char* a, const char* b, float* out) {
    RING
    __shared__ alignas(128) float slots[2][128][8];
    START(64, 1, 128)
    PRODUCE(1)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        commit(&ready[0]);
    } else if (warp < 4) {
        uint32_t words[8];
        wait(&ready[0], 0);
        after();
        EACH(part, 8) {
            read(rows + part * 8, words);
            loaded();
            if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(mended ? 1 : 2) : "memory");
            meet<1, 128>();
            put(words, slots[part % 2][threadIdx.x]);  // <- fault
            fence_async();
            meet<1, 128>();
            if (threadIdx.x == 0) store(out + part * 128 * 8, slots[part % 2], 128 * 8 * 4);
        }
        if (threadIdx.x == 0) stores_done();
        before();
    }
    END(64)
}

// facebookexperimental/triton pull request 430: a stage is given back behind the TMA store that reads it
// RefillRace: cp.async.bulk.wait_group 0
extern "C" __global__ void __launch_bounds__(192) released_before_store(const char* a, const char* b, float* out) {
    RING
    START(64, 2, 128)
    PRODUCE(4)
    if (threadIdx.x == 160) {
        EACH(k, 4) {
            wait(&full[k % 2], k / 2);
            multiply(d, address(left[k % 2]), address(right[k % 2]), k);
            commit(&empty[k % 2]);
        }
        commit(&ready[0]);
    } else if (warp < 4) {
        if (threadIdx.x == 0) {
            EACH(k, 4) {
                wait(&full[k % 2], k / 2);
                store(out + 128 * 64 + k * B_BYTES / 4, right[k % 2], B_BYTES);
                if (mended) stores_read();
                arrive(&empty[k % 2]);  // <- fault
            }
            stores_done();
        }
        __syncwarp();
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// NVIDIA/TransformerEngine pull request 2695: threads read a stage, and give it back to TMA without a proxy fence
// MissingRefillFence: fence.proxy.async in each thread that has read
extern "C" __global__ void __launch_bounds__(192) no_refill_fence(const char* a, const char* b, float* out) {
    RING
    START(64, 129, 128)
    PRODUCE(4)
    if (threadIdx.x == 160) {
        EACH(k, 4) {
            wait(&full[k % 2], k / 2);
            multiply(d, address(left[k % 2]), address(right[k % 2]), k);
            commit(&empty[k % 2]);
        }
        commit(&ready[0]);
    } else if (warp < 4) {
        uint32_t most = 0;
        EACH(k, 4) {
            wait(&full[k % 2], k / 2);
            for (int i = 0; i < 8; i++) most = max(most, ((uint32_t*)left[k % 2])[threadIdx.x * 8 + i] & 0x7FFF);
            if (mended) fence_async();
            arrive(&empty[k % 2]);  // <- fault
        }
        out[128 * 64 + threadIdx.x] = most;
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// deepseek-ai/DeepGEMM pull request 389: lanes add up what TMA brings, and one loads the next into the same stage
// MissingRefillFence: fence.proxy.async in each thread that has read
extern "C" __global__ void __launch_bounds__(192) combine(const char* a, const char* b, float* out) {
    RING
    __shared__ alignas(128) float sums[2][32];
    __shared__ uint64_t came[2];
    if (threadIdx.x == 0) init(&came[0], 1), init(&came[1], 1);
    START(64, 1, 128)
    PRODUCE(1)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        commit(&ready[0]);
    } else if (warp == 3) {
        uint32_t total = 0;
        EACH(k, 7) {
            if (lane == 0 && k < 6) expect(&came[k % 2], 128), load(sums[k % 2], b + k * 128, 128, &came[k % 2]);  // <- fault
            if (k) {
                wait(&came[(k - 1) % 2], (k - 1) / 2);
                total += __float_as_uint(sums[(k - 1) % 2][lane]) & 0xFF;
                if (mended) fence_async();
                __syncwarp();
            }
        }
        out[128 * 64 + lane] = total;
    }
    if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// deepseek-ai/DeepGEMM pull request 384: a whole warp issues the products, not one lane of it
// TensorInFlight: elect
extern "C" __global__ void __launch_bounds__(192) all_lanes_issue(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(2)
    if (warp == 5) {
        EACH(k, 2) {
            wait(&full[k], 0);
            if (!mended || lane == 0) multiply(d, address(left[k]), address(right[k]), k);  // <- fault
        }
        if (lane == 0) commit(&ready[0]);
        __syncwarp();
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// deepseek-ai/DeepGEMM pull request 384: scales are used before their own load has been waited for
// InFlightRead: Wait on
extern "C" __global__ void __launch_bounds__(192) scales_in_flight(const char* a, const char* b, float* out) {
    RING
    __shared__ alignas(128) uint32_t scales[128];
    __shared__ uint64_t scaled;
    if (threadIdx.x == 0) init(&scaled, 1);
    START(64, 1, 128)
    if (threadIdx.x == 128) expect(&scaled, 512), load(scales, a, 512, &scaled);
    PRODUCE(1)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        commit(&ready[0]);
    } else if (warp < 4) {
        uint32_t words[8];
        wait(&ready[0], 0);
        after();
        if (mended) wait(&scaled, 0);
        float scale = scales[threadIdx.x] & 3;  // <- fault
        EACH(column, 8) {
            read(rows + column * 8, words);
            loaded();
            put(words, out + threadIdx.x * 64 + column * 8, scale);
        }
        before();
    }
    END(64)
}

// facebookexperimental/triton pull request 662: the wait for a product is the one before's
// TensorInFlight: Wait on ready
extern "C" __global__ void __launch_bounds__(128) one_phase_early(const char* a, const char* b, float* out) {
    __shared__ alignas(128) char left[2][A_BYTES], right[2][B_BYTES];
    __shared__ uint64_t full[2], ready[2];
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32;
    if (warp == 0) alloc(address(&base), 128);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) init(&full[i], 1), init(&ready[i], 1);
        inits_done();
    }
    __syncthreads();
    uint32_t d = base;
    EACH(tile, 5) {
        if (threadIdx.x == 0 && tile < 4) {
            int i = tile % 2;
            expect(&full[i], A_BYTES + B_BYTES);
            load(left[i], a + tile * A_BYTES, A_BYTES, &full[i]);
            load(right[i], b + tile * B_BYTES, B_BYTES, &full[i]);
            wait(&full[i], tile / 2);
            multiply(d + i * 64, address(left[i]), address(right[i]), 0);
            commit(&ready[i]);
        }
        if (tile) {
            int last = tile - 1;
            wait(&ready[last % 2], mended ? last / 2 : last / 2 + 1);
            after();
            take(d + last % 2 * 64 + (warp << 21), out + (last * 128 + threadIdx.x) * 64);  // <- fault
            before();
        }
        __syncthreads();
    }
    if (warp == 0) dealloc(d, 128);
}

// facebookexperimental/triton pull request 462: two barriers have one place, and the first is not made invalid
// LiveBarrierInit: mbarrier.inval
extern "C" __global__ void __launch_bounds__(128) one_place(const char* a, const char* b, float* out) {
    __shared__ alignas(128) char left[A_BYTES], right[B_BYTES];
    __shared__ uint64_t bar;
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32;
    if (warp == 0) alloc(address(&base), 64);
    if (threadIdx.x == 0) {
        init(&bar, 1);
        inits_done();
        expect(&bar, A_BYTES + B_BYTES);
        load(left, a, A_BYTES, &bar);
        load(right, b, B_BYTES, &bar);
    }
    __syncthreads();
    wait(&bar, 0);
    __syncthreads();
    if (threadIdx.x == 0) {
        if (mended) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(address(&bar)) : "memory");
        init(&bar, 1);  // <- fault
        inits_done();
        multiply(base, address(left), address(right), 0);
        commit(&bar);
    }
    __syncthreads();
    wait(&bar, 0);
    after();
    take(base + (warp << 21), out + threadIdx.x * 64);
    before();
    __syncthreads();
    if (warp == 0) dealloc(base, 64);
}

__device__ uint32_t rank() {
    uint32_t number;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(number));
    return number;
}

__device__ void meet_cluster() { asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory"); }

// Each of two blocks loads half of B for both, and tells both when its product has read a stage.
template <int RELEASES, bool STAYS>
__device__ void of_two(const char* a, const char* b, float* out) {
    RING
    START(64, RELEASES, 128)
    uint32_t own = rank();
    meet_cluster();
    if (threadIdx.x == 128) {
        EACH(k, 4) {
            int stage = k % 2;
            wait(&empty[stage], k / 2 + 1);
            expect(&full[stage], A_BYTES + B_BYTES);
            load(left[stage], a + (own * 4 + k) * A_BYTES, A_BYTES, &full[stage]);
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(address(right[stage]) + own * B_BYTES / 2), "l"(b + k * B_BYTES + own * B_BYTES / 2), "r"(B_BYTES / 2), "r"(address(&full[stage])), "h"((uint16_t)3) : "memory");  // <- fault of commits_of_two
        }
    } else if (threadIdx.x == 160) {
        EACH(k, 4) {
            wait(&full[k % 2], k / 2);
            multiply(d, address(left[k % 2]), address(right[k % 2]), k);
            asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(address(&empty[k % 2])), "h"((uint16_t)3) : "memory");  // <- fault of leaves_early
        }
        commit(&ready[0]);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + (own * 128 + threadIdx.x) * 64);
        before();
    }
    END(64)
    if (STAYS) meet_cluster();
}

// triton-lang/triton pull request 10196: the barrier of a stage that two blocks fill counts the commit of one
// RefillRace: whose count is all their arrivals
extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(192) commits_of_two(const char* a, const char* b, float* out) {
    of_two<mended ? 2 : 1, true>(a, b, out);
}

// sgl-project/sglang pull request 32954: a block ends while commits of the other arrive in it
// BlockEnded: cluster
extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(192) leaves_early(const char* a, const char* b, float* out) {
    of_two<2, mended>(a, b, out);
}

// deepseek-ai/DeepGEMM issue 339: the size of what lies before the barriers leaves out the scales
// LiveBarrierAccess: barrier
extern "C" __global__ void __launch_bounds__(128) forgotten_size(const char* a, const char* b, float* out) {
    constexpr int SCALES = 512, BEFORE = A_BYTES + B_BYTES + (mended ? SCALES : 0);
    __shared__ alignas(128) char room[A_BYTES + B_BYTES + SCALES + 64];
    __shared__ uint32_t base;
    uint32_t left = address(room), right = left + A_BYTES, scales = right + B_BYTES, full = left + BEFORE, done = full + 8;
    int warp = threadIdx.x / 32;
    if (warp == 0) alloc(address(&base), 64);
    if (threadIdx.x == 0) {
        init(full, 1);
        init(done, 1);
        inits_done();
    }
    __syncthreads();
    uint32_t d = base;
    if (threadIdx.x == 0) {
        expect(full, A_BYTES + B_BYTES + SCALES);
        load(left, a, A_BYTES, full);
        load(right, b, B_BYTES, full);
        load(scales, a, SCALES, full);  // <- fault
        wait(full, 0);
        multiply(d, left, right, 0);
        commit(done);
    }
    wait(done, 0);
    after();
    take(d + (warp << 21), out + threadIdx.x * 64);
    before();
    __syncthreads();
    if (warp == 0) dealloc(d, 64);
}

// NVIDIA/Fuser pull request 4276: a nap instead of a wait for the product
// RefillRace: Put tcgen05.commit behind it
extern "C" __global__ void __launch_bounds__(128) nap(const char* a, const char* b, float* out) {
    __shared__ alignas(128) char left[A_BYTES], right[B_BYTES];
    __shared__ uint64_t full, done;
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32;
    if (warp == 0) alloc(address(&base), 64);
    if (threadIdx.x == 0) init(&full, 1), init(&done, 1), inits_done();
    __syncthreads();
    uint32_t d = base;
    EACH(k, 4) {
        if (threadIdx.x == 0) {
            expect(&full, A_BYTES + B_BYTES);
            load(left, a + k * A_BYTES, A_BYTES, &full);  // <- fault
            load(right, b + k * B_BYTES, B_BYTES, &full);
        }
        wait(&full, k);
        if (threadIdx.x == 0) multiply(d, address(left), address(right), k);
        if (mended) {
            if (threadIdx.x == 0) commit(&done);
            wait(&done, k);
        } else {
            __nanosleep(10000);
        }
        __syncthreads();
    }
    after();
    take(d + (warp << 21), out + threadIdx.x * 64);
    before();
    __syncthreads();
    if (warp == 0) dealloc(d, 64);
}

// flashinfer-ai/flashinfer pull request 4732: warps arrive twice at a named barrier for which another has yet to come
// NamedBarrierMisuse: another named barrier
extern "C" __global__ void __launch_bounds__(192) arrives_twice(const char* a, const char* b, float* out) {
    RING
    __shared__ alignas(128) float sums[2][128];
    START(128, 1, 128)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        EACH(tile, 2) {
            wait(&full[tile], 0);
            multiply(d + tile * 64, address(left[tile]), address(right[tile]), 0);
            commit(&ready[tile]);
        }
    } else if (warp < 4) {
        EACH(tile, 2) {
            wait(&ready[tile], 0);
            after();
            uint32_t word = read_one(rows + tile * 64);
            loaded();
            sums[tile][threadIdx.x] = __uint_as_float(word);
            fence_async();
            asm volatile("bar.arrive %0, 160;" ::"r"(mended ? 1 + tile : 1) : "memory");  // <- fault
        }
        before();
    } else if (warp == 4) {
        __syncwarp();
        EACH(tile, 2) {
            asm volatile("bar.sync %0, 160;" ::"r"(mended ? 1 + tile : 1) : "memory");
            if (lane == 0) store(out + tile * 128, sums[tile], 512);
        }
        if (lane == 0) stores_done();
        __syncwarp();
    }
    END(128)
}

// tile-ai/tilelang issue 2644: the bytes of a load are counted for more blocks than load
// MissingBytes: Announce 6144
extern "C" __global__ void __launch_bounds__(128) bytes_of_two(const char* a, const char* b, float* out) {
    __shared__ alignas(128) char left[A_BYTES], right[B_BYTES];
    __shared__ uint64_t full, done;
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32;
    if (warp == 0) alloc(address(&base), 64);
    if (threadIdx.x == 0) {
        init(&full, 1), init(&done, 1), inits_done();
        expect(&full, (A_BYTES + B_BYTES) * (mended ? 1 : 2));
        load(left, a, A_BYTES, &full);
        load(right, b, B_BYTES, &full);
        wait(&full, 0);  // <- fault
        multiply(*(volatile uint32_t*)&base, address(left), address(right), 0);
        commit(&done);
    }
    __syncthreads();
    wait(&done, 0);
    after();
    take(base + (warp << 21), out + threadIdx.x * 64);
    before();
    __syncthreads();
    if (warp == 0) dealloc(base, 64);
}

// our own: one lane waits for the product, and its warp reads
// TensorInFlight: Put __syncwarp() behind the wait
extern "C" __global__ void __launch_bounds__(192) waited_for_by_one(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 4)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        EACH(tile, 2) {
            wait(&unused[0], tile + 1);
            after();
            wait(&full[tile], 0);
            multiply(d, address(left[tile]), address(right[tile]), 0);
            commit(&ready[0]);
        }
    } else if (warp < 4) {
        EACH(tile, 2) {
            if (lane == 0) wait(&ready[0], tile);
            if (mended) __syncwarp();
            after();
            take(rows, out + (tile * 128 + threadIdx.x) * 64);  // <- fault
            before();
            __syncwarp();
            if (lane == 0) arrive(&unused[0]);
        }
    }
    END(64)
}

// our own: sums are stored again before the load of them is over, in the same warp
// TensorInFlight: Call tcgen05.wait::ld between the two
extern "C" __global__ void __launch_bounds__(192) scaled_in_place(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(1)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        commit(&ready[0]);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        EACH(column, 8) {
            uint32_t words[8];
            read(rows + column * 8, words);
            if (mended) loaded();
            for (int i = 0; i < 8; i++) words[i] = __float_as_uint(2 * __uint_as_float(words[i]));
            write(rows + column * 8, words);  // <- fault
        }
        stored();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// our own: two threads add their products to one accumulator, and the second waits for nothing
// TensorInFlight: Put tcgen05.commit behind it
extern "C" __global__ void __launch_bounds__(192) two_add_up(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 1)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        if (mended) commit(&unused[1]), wait(&unused[1], 0);
        before();
        arrive(&ready[1]);
    } else if (threadIdx.x == 0) {
        wait(&ready[1], 0);
        after();
        wait(&full[1], 0);
        multiply(d, address(left[1]), address(right[1]), 1);  // <- fault
        commit(&ready[0]);
    }
    __syncwarp();
    if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// our own: a product of 64 rows is read as if it had 128
// UninitialisedRead: compare lanes and columns
extern "C" __global__ void __launch_bounds__(192) rows_of_128(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(1)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        asm volatile("{ .reg .pred p; setp.ne.u32 p, 0, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(d), "l"(descriptor(address(left[0]))), "l"(descriptor(address(right[0]))), "r"(F16_64 - (4 << 24)) : "memory");
        commit(&ready[0]);
    } else if (warp < 4) {
        uint32_t words[8];
        wait(&ready[0], 0);
        after();
        if (!mended) take(rows, out + threadIdx.x * 64);  // <- fault
        else EACH(column, 16) {
            asm volatile("tcgen05.ld.sync.aligned.16x64b.x2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(rows + column * 4) : "memory");
            loaded();
            int row = warp * 32 + lane / 4 + 8 * (lane % 2);
            for (int i = 0; i < 2; i++) out[row * 64 + column * 4 + 2 * i + lane / 2 % 2] = __uint_as_float(words[i]);
        }
        before();
    }
    END(64)
}

// our own: D of a product lies over its A
// TensorInFlight: Give D columns that A does not have
extern "C" __global__ void __launch_bounds__(192) over_its_factor(const uint32_t* a, const char* b, float* out) {
    RING
    START(128, 1, 128)
    if (threadIdx.x == 160) {
        expect(&full[0], B_BYTES);
        load(right[0], b, B_BYTES, &full[0]);
        wait(&full[0], 0);
        wait(&unused[0], 0);
        after();
        multiply_tensor(d, d + (mended ? 64 : 56), address(right[0]));  // <- fault
        commit(&ready[0]);
    } else if (warp < 4) {
        uint32_t words[8];
        for (int i = 0; i < 8; i++) words[i] = a[threadIdx.x * 8 + i];
        write(rows + (mended ? 64 : 56), words);
        stored();
        before();
        arrive(&unused[0]);
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(128)
}

// our own: a lane waits until all have read, and its warp frees
// DataRace: Put __syncwarp() behind the wait
extern "C" __global__ void __launch_bounds__(192) freed_by_one(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 4)
    PRODUCE(1)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        commit(&ready[0]);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
        __syncwarp();
        if (lane == 0) arrive(&unused[0]);
        if (warp) return;
        if (lane == 0) wait(&unused[0], 0);
        if (mended) __syncwarp();
        dealloc(d, 64);  // <- fault
    }
}

// our own: columns are freed while a product that nobody reads is on its way
// TensorInFlight: Wait on ready[1]
extern "C" __global__ void __launch_bounds__(192) freed_in_flight(const char* a, const char* b, float* out) {
    RING
    START(128, 1, 128)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        EACH(tile, 2) {
            wait(&full[tile], 0);
            multiply(d + tile * 64, address(left[tile]), address(right[tile]), 0);
            commit(&ready[tile]);
        }
        if (mended) wait(&ready[1], 0);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    __syncthreads();
    if (warp == 4) dealloc(d, 128);  // <- fault
}

// our own: a relaxed wait for a product, and no tcgen05.fence behind it
// TensorInFlight: Put tcgen05.fence::after_thread_sync between
extern "C" __global__ void __launch_bounds__(192) no_fence_after(const char* a, const char* b, float* out) {
    RING
    START(128, 1, 128)
    PRODUCE(5)
    if (threadIdx.x == 160) {
        EACH(tile, 5) {
            wait_relaxed(&unused[tile % 2], tile / 2 + 1);
            after();
            wait(&full[tile % 2], tile / 2);
            multiply(d + tile % 2 * 64, address(left[tile % 2]), address(right[tile % 2]), 0);
            commit(&empty[tile % 2]);
            commit(&ready[tile % 2]);
        }
    } else if (warp < 4) {
        EACH(tile, 5) {
            wait_relaxed(&ready[tile % 2], tile / 2);
            if (mended) after();
            take(rows + tile % 2 * 64, out + (tile * 128 + threadIdx.x) * 64);  // <- fault
            before();
            arrive_relaxed(&unused[tile % 2]);
        }
    }
    END(128)
}

// our own: an accumulator is given back by a relaxed arrival, and no tcgen05.fence before it
// DataRace: tcgen05.wait and tcgen05.fence::before_thread_sync
extern "C" __global__ void __launch_bounds__(192) no_fence_before(const char* a, const char* b, float* out) {
    RING
    START(128, 1, 128)
    PRODUCE(5)
    if (threadIdx.x == 160) {
        EACH(tile, 5) {
            wait_relaxed(&unused[tile % 2], tile / 2 + 1);
            after();
            wait(&full[tile % 2], tile / 2);
            multiply(d + tile % 2 * 64, address(left[tile % 2]), address(right[tile % 2]), 0);  // <- fault
            commit(&empty[tile % 2]);
            commit(&ready[tile % 2]);
        }
    } else if (warp < 4) {
        EACH(tile, 5) {
            wait_relaxed(&ready[tile % 2], tile / 2);
            after();
            take(rows + tile % 2 * 64, out + (tile * 128 + threadIdx.x) * 64);
            if (mended) before();
            arrive_relaxed(&unused[tile % 2]);
        }
    }
    END(128)
}

// our own: a relaxed wait for what TMA loads
// InFlightRead: Leave out .relaxed
extern "C" __global__ void __launch_bounds__(192) relaxed_load(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(1)
    if (threadIdx.x == 160) {
        if (mended) wait(&full[0], 0);
        else wait_relaxed(&full[0], 0);  // <- fault
        multiply(d, address(left[0]), address(right[0]), 0);
        commit(&ready[0]);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// our own: numbers in shared memory are given on by a relaxed arrival, which gives tensor memory on alone
// DataRace: Put a barrier
extern "C" __global__ void __launch_bounds__(192) relaxed_numbers(const char* a, const char* b, float* out) {
    RING
    __shared__ float sums[128];
    START(64, 1, 128)
    PRODUCE(1)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        commit(&ready[0]);
        wait(&unused[0], 0);
        float sum = 0;
        for (int i = 0; i < 128; i++) sum += sums[i];  // <- fault
        out[0] = sum;
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        uint32_t word = read_one(rows);
        loaded();
        sums[threadIdx.x] = __uint_as_float(word);
        before();
        if (mended) arrive(&unused[0]);
        else arrive_relaxed(&unused[0]);
    }
    END(64)
}
