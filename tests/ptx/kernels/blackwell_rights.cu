// What is right by PTX's text although it is unusual, each a small kernel that has to be silent, with right numbers. By
// that text alone: never run on hardware.
#include "blackwell.cuh"

// Columns are allocated and freed out of order, and allocated again where there is a hole.
extern "C" __global__ void __launch_bounds__(192) holes(const char* a, const char* b, float* out) {
    RING
    __shared__ uint32_t more[4];
    START(256, 1, 128)
    if (warp == 4) {
        alloc(address(&more[0]), 128);
        alloc(address(&more[1]), 64);
        dealloc(d, 256);
        alloc(address(&more[2]), 64);
        dealloc(more[1], 64);
        alloc(address(&more[3]), 64);
    }
    __syncthreads();
    PRODUCE(3)
    if (threadIdx.x == 160) {
        EACH(use, 3) {
            wait(&full[use % 2], use / 2);
            multiply(more[use + (use > 0)], address(left[use % 2]), address(right[use % 2]), 0);
            commit(&empty[use % 2]);
        }
        commit(&ready[0]);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        EACH(use, 3) take(more[use + (use > 0)] + (warp << 21), out + (use * 128 + threadIdx.x) * 64);
        before();
    }
    __syncthreads();
    if (warp == 4) dealloc(more[2], 64), dealloc(more[0], 128), dealloc(more[3], 64);
}

// Two threads of two warps issue products into columns of their own, each with a commit of its own.
extern "C" __global__ void __launch_bounds__(192) two_issuers(const char* a, const char* b, float* out) {
    RING
    START(128, 1, 128)
    if (threadIdx.x == 128 || threadIdx.x == 160) {
        int own = warp - 4;
        EACH(k, 2) {
            wait(&empty[own], k + 1);
            expect(&full[own], A_BYTES + B_BYTES);
            load(left[own], a + (own * 2 + k) * A_BYTES, A_BYTES, &full[own]);
            load(right[own], b + (own * 2 + k) * B_BYTES, B_BYTES, &full[own]);
            wait(&full[own], k);
            multiply(d + own * 64, address(left[own]), address(right[own]), k);
            commit(&empty[own]);
        }
        commit(&ready[own]);
    } else if (warp < 4) {
        EACH(tile, 2) {
            wait(&ready[tile], 0);
            after();
            take(rows + tile * 64, out + (tile * 128 + threadIdx.x) * 64);
        }
        before();
    }
    END(128)
}

// One thread's product is over for another, which has waited for its commit, and adds to it.
extern "C" __global__ void __launch_bounds__(192) handed_on(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    if (threadIdx.x == 128) {
        EACH(k, 2) {
            expect(&full[k], A_BYTES + B_BYTES);
            load(left[k], a + k * A_BYTES, A_BYTES, &full[k]);
            load(right[k], b + k * B_BYTES, B_BYTES, &full[k]);
        }
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        commit(&ready[0]);
    } else if (threadIdx.x == 160) {
        wait(&ready[0], 0);
        wait(&full[1], 0);
        multiply(d, address(left[1]), address(right[1]), 1);
        commit(&ready[1]);
    } else if (warp < 4) {
        wait(&ready[1], 0);
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// A commit without products arrives at once: it opens the stages.
extern "C" __global__ void __launch_bounds__(192) bare_commit(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    if (threadIdx.x == 128) {
        EACH(k, 4) {
            int stage = k % 2;
            wait(&empty[stage], k / 2);
            expect(&full[stage], A_BYTES + B_BYTES);
            load(left[stage], a + k * A_BYTES, A_BYTES, &full[stage]);
            load(right[stage], b + k * B_BYTES, B_BYTES, &full[stage]);
        }
    } else if (threadIdx.x == 160) {
        EACH(stage, 2) commit(&empty[stage]);
        EACH(k, 4) {
            wait(&full[k % 2], k / 2);
            multiply(d, address(left[k % 2]), address(right[k % 2]), k);
            if (k < 2) commit(&empty[k]);
        }
        commit(&ready[0]);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// One product is announced on three barriers, and two stages are given back together, the later one first.
extern "C" __global__ void __launch_bounds__(192) many_commits(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(4)
    if (threadIdx.x == 160) {
        EACH(round, 2) {
            for (int stage = 1; stage >= 0; stage--) {
                wait(&full[stage], round);
                multiply(d, address(left[stage]), address(right[stage]), round + 1 - stage);
            }
            commit(&empty[1]);
            commit(&empty[0]);
        }
        commit(&ready[0]);
        commit(&ready[1]);
    } else if (warp < 4) {
        wait(&ready[warp % 2], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// As in attention: scores are read, stored again as fp16 over themselves, and are A of the next product.
extern "C" __global__ void __launch_bounds__(192) over_themselves(const char* a, const char* b, float* out) {
    RING
    START(128, 1, 128)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        commit(&ready[0]);
        wait(&unused[0], 0);
        after();
        wait(&full[1], 0);
        multiply_tensor(d + 64, d, address(right[1]));
        commit(&ready[1]);
    } else if (warp < 4) {
        uint32_t words[2][8], halves[8];
        wait(&ready[0], 0);
        after();
        read(rows, words[0]);
        read(rows + 8, words[1]);
        loaded();
        for (int i = 0; i < 8; i++) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves[i]) : "f"(__uint_as_float(words[i / 4][i % 4 * 2 + 1])), "f"(__uint_as_float(words[i / 4][i % 4 * 2])));
        write(rows, halves);
        stored();
        before();
        arrive(&unused[0]);
        wait(&ready[1], 0);
        after();
        take(rows + 64, out + threadIdx.x * 64);
        before();
    }
    END(128)
}

// Eight loads, and one wait for all of them.
extern "C" __global__ void __launch_bounds__(192) one_wait(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(3)
    if (threadIdx.x == 160) {
        EACH(tile, 3) {
            wait(&unused[0], tile + 1);
            wait(&full[tile % 2], tile / 2);
            multiply(d, address(left[tile % 2]), address(right[tile % 2]), 0);
            commit(&empty[tile % 2]);
            commit(&ready[0]);
        }
    } else if (warp < 4) {
        EACH(tile, 3) {
            uint32_t words[8][8];
            wait(&ready[0], tile);
            for (int i = 0; i < 8; i++) read(rows + i * 8, words[i]);
            loaded();
            arrive(&unused[0]);
            for (int i = 0; i < 8; i++) put(words[i], out + (tile * 128 + threadIdx.x) * 64 + i * 8);
        }
    }
    END(64)
}

// Two warps read the same cells, as neither writes them.
extern "C" __global__ void __launch_bounds__(320) read_twice(const char* a, const char* b, float* out) {
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
    } else if (warp < 4 || warp > 5) {
        EACH(tile, 2) {
            wait(&ready[0], tile);
            after();
            take(rows, out + ((warp / 6 * 2 + tile) * 128 + warp % 4 * 32 + lane) * 64);
            before();
            arrive(&unused[0]);
        }
    }
    END(64)
}

// Two products of 64 rows in the same columns: one in lanes 0 to 15 of each warp's, one in the others.
extern "C" __global__ void __launch_bounds__(192) halves_of_lanes(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(1)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        for (int half = 0; half < 2; half++)
            asm volatile("{ .reg .pred p; setp.ne.u32 p, 0, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(d + (half << 20)), "l"(descriptor(address(left[0]) + half * A_BYTES / 2)), "l"(descriptor(address(right[0]))), "r"(F16_64 - (4 << 24)) : "memory");
        commit(&ready[0]);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// Waits that look once and ask again, and waits that say how long.
extern "C" __global__ void __launch_bounds__(192) polls(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(4)
    if (threadIdx.x == 160) {
        EACH(k, 4) {
            asm volatile("{ .reg .pred p; again: mbarrier.test_wait.parity.shared::cta.b64 p, [%0], %1; @p bra over; nanosleep.u32 20; bra again; over: }" ::"r"(address(&full[k % 2])), "r"(k / 2 & 1) : "memory");
            multiply(d, address(left[k % 2]), address(right[k % 2]), k);
            commit(&empty[k % 2]);
        }
        commit(&ready[0]);
    }
    __syncwarp();
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 10000000; @!p bra again; }" ::"r"(address(&ready[0])), "r"(0) : "memory");
    after();
    if (warp < 4) take(rows, out + threadIdx.x * 64);
    before();
    END(64)
}

// Releases and acquires of the cluster's scope, and no fence of tcgen05.
extern "C" __global__ void __launch_bounds__(192) cluster_scope(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(3)
    if (threadIdx.x == 160) {
        EACH(tile, 3) {
            asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(address(&unused[0])), "r"(tile + 1 & 1) : "memory");
            wait(&full[tile % 2], tile / 2);
            multiply(d, address(left[tile % 2]), address(right[tile % 2]), 0);
            commit(&empty[tile % 2]);
            commit(&ready[0]);
        }
    } else if (warp < 4) {
        EACH(tile, 3) {
            asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(address(&ready[0])), "r"(tile & 1) : "memory");
            take(rows, out + (tile * 128 + threadIdx.x) * 64);
            asm volatile("fence.acq_rel.cluster; mbarrier.arrive.release.cluster.shared::cta.b64 _, [%0];" ::"r"(address(&unused[0])) : "memory");
        }
    }
    END(64)
}

// Three warps want half of the columns each: one waits until another frees.
extern "C" __global__ void __launch_bounds__(96) queue_for_columns(const uint32_t* a, const char* b, float* out) {
    __shared__ uint32_t places[3];
    int warp = threadIdx.x / 32;
    uint32_t words[8];
    alloc(address(&places[warp]), 256);
    uint32_t at = *(volatile uint32_t*)&places[warp];
    for (int i = 0; i < 8; i++) words[i] = __float_as_uint(threadIdx.x * 8 + i);
    write(at + 248 + (warp << 21), words);
    stored();
    read(at + 248 + (warp << 21), words);
    loaded();
    put(words, out + threadIdx.x * 8);
    dealloc(at, 256);
}

// Registers are kept in tensor memory, and come back in another shape; nobody else is asked.
extern "C" __global__ void __launch_bounds__(128) spilled(const uint32_t* a, const char* b, float* out) {
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t words[8], back[4];
    if (warp == 0) alloc(address(&base), 32);
    __syncthreads();
    uint32_t rows = base + (warp << 21);
    for (int i = 0; i < 8; i++) words[i] = __float_as_uint(threadIdx.x * 8 + i);
    write(rows, words);
    stored();
    for (int half = 0; half < 2; half++) {
        asm volatile("tcgen05.ld.sync.aligned.16x64b.x4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(back[0]), "=r"(back[1]), "=r"(back[2]), "=r"(back[3]) : "r"(rows + (half << 20)) : "memory");
        loaded();
        int row = warp * 32 + half * 16 + lane / 4 + 8 * (lane % 2);
        for (int i = 0; i < 4; i++) out[row * 8 + 2 * i + lane / 2 % 2] = __uint_as_float(back[i]);
    }
    __syncthreads();
    if (warp == 0) dealloc(base, 32);
}

// A and B are the same bytes.
extern "C" __global__ void __launch_bounds__(192) with_itself(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        EACH(k, 2) {
            wait(&full[k], 0);
            multiply(d, address(left[k]), address(left[k]), k);
        }
        commit(&ready[0]);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// A product is taken off another's sums: A is negated, and nothing has to be waited for between the two.
extern "C" __global__ void __launch_bounds__(192) negated(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        wait(&full[1], 0);
        asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(d), "l"(descriptor(address(left[1]))), "l"(descriptor(address(right[1]))), "r"(F16_64 | 1 << 13) : "memory");
        commit(&ready[0]);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// The thread that issues waits for its products itself, and the others meet it behind that.
extern "C" __global__ void __launch_bounds__(192) issuer_waits(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(4)
    if (threadIdx.x == 160) {
        EACH(k, 4) {
            wait(&full[k % 2], k / 2);
            multiply(d, address(left[k % 2]), address(right[k % 2]), k);
            commit(&empty[k % 2]);
        }
        commit(&ready[0]);
        wait(&ready[0], 0);
        before();
    }
    __syncthreads();
    after();
    if (warp < 4) take(rows, out + threadIdx.x * 64);
    before();
    END(64)
}

// Both stages' B go into four accumulators, whose products are announced one by one, and read while others run.
extern "C" __global__ void __launch_bounds__(192) four_accumulators(const char* a, const char* b, float* out) {
    RING
    __shared__ uint64_t done[4];
    if (threadIdx.x == 0)
        for (int i = 0; i < 4; i++) init(&done[i], 1);
    START(256, 1, 128)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        wait(&full[1], 0);
        EACH(i, 4) {
            multiply(d + i * 64, address(left[i / 2]), address(right[i % 2]), 0);
            commit(&done[i]);
        }
    } else if (warp < 4) {
        EACH(i, 4) {
            wait(&done[i], 0);
            after();
            take(rows + i * 64, out + (i * 128 + threadIdx.x) * 64);
        }
        before();
    }
    END(256)
}

// The lane that elect.sync names issues, in whichever branch: it is the same each time.
extern "C" __global__ void __launch_bounds__(192) elected(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 128)
    PRODUCE(4)
    if (warp == 5) {
        EACH(k, 4) {
            wait(&full[k % 2], k / 2);
            uint32_t one;
            asm volatile("{ .reg .pred p; elect.sync _|p, -1; selp.u32 %0, 1, 0, p; }" : "=r"(one));
            if (one) multiply(d, address(left[k % 2]), address(right[k % 2]), k), commit(&empty[k % 2]);
            __syncwarp();
        }
        uint32_t one;
        asm volatile("{ .reg .pred p; elect.sync _|p, -1; selp.u32 %0, 1, 0, p; }" : "=r"(one));
        if (one) commit(&ready[0]);
        __syncwarp();
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// Columns are freed while products into others run.
extern "C" __global__ void __launch_bounds__(192) freed_beside_products(const char* a, const char* b, float* out) {
    RING
    __shared__ uint32_t more;
    if (threadIdx.x / 32 == 4) alloc(address(&more), 64);
    START(64, 1, 128)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        wait(&full[0], 0);
        multiply(d, address(left[0]), address(right[0]), 0);
        commit(&ready[0]);
        wait(&full[1], 0);
        multiply(more, address(left[1]), address(right[1]), 0);
        commit(&ready[1]);
    } else if (warp < 4) {
        wait(&ready[0], 0);
        after();
        take(rows, out + threadIdx.x * 64);
        before();
        meet<1, 128>();
        if (warp == 2) dealloc(d, 64);
        wait(&ready[1], 0);
        after();
        take(more + (warp << 21), out + (128 + threadIdx.x) * 64);
        before();
        meet<1, 128>();
        if (warp == 3) dealloc(more, 64);
    }
}

// Sums are scaled between two products, by loads and stores of the warp whose lanes they are.
extern "C" __global__ void __launch_bounds__(192) rescaled(const char* a, const char* b, float* out) {
    RING
    START(64, 1, 4)
    PRODUCE(3)
    if (threadIdx.x == 160) {
        EACH(k, 3) {
            if (k) wait(&unused[0], k + 1), after();
            wait(&full[k % 2], k / 2);
            multiply(d, address(left[k % 2]), address(right[k % 2]), k);
            commit(&empty[k % 2]);
            commit(&ready[0]);
        }
    } else if (warp < 4) {
        EACH(k, 3) {
            wait(&ready[0], k);
            after();
            if (k == 2) break;
            EACH(column, 8) {
                uint32_t words[8];
                read(rows + column * 8, words);
                loaded();
                for (int i = 0; i < 8; i++) words[i] = __float_as_uint(2 * __uint_as_float(words[i]));
                write(rows + column * 8, words);
            }
            stored();
            before();
            __syncwarp();
            if (lane == 0) arrive(&unused[0]);  // for its warp
        }
        take(rows, out + threadIdx.x * 64);
        before();
    }
    END(64)
}

// Nobody waits for the loads where their registers are used, and all lanes use them before the columns are freed.
extern "C" __global__ void __launch_bounds__(192) freed_after_use(const char* a, const char* b, float* out) {
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
            put(words, out + threadIdx.x * 64 + column * 8, 2);
        }
        before();
    }
    END(64)
}

// As PTX shows it: relaxed arrivals and waits, and fences of tcgen05.
extern "C" __global__ void __launch_bounds__(192) relaxed(const char* a, const char* b, float* out) {
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
            after();
            take(rows + tile % 2 * 64, out + (tile * 128 + threadIdx.x) * 64);
            before();
            arrive_relaxed(&unused[tile % 2]);
        }
    }
    END(128)
}

// One fence of tcgen05 for two relaxed waits.
extern "C" __global__ void __launch_bounds__(192) one_fence(const char* a, const char* b, float* out) {
    RING
    START(128, 1, 128)
    PRODUCE(2)
    if (threadIdx.x == 160) {
        EACH(tile, 2) {
            wait(&full[tile], 0);
            multiply(d + tile * 64, address(left[tile]), address(right[tile]), 0);
            commit(&ready[tile]);
        }
    } else if (warp < 4) {
        wait_relaxed(&ready[0], 0);
        wait_relaxed(&ready[1], 0);
        after();
        EACH(tile, 2) take(rows + tile * 64, out + (tile * 128 + threadIdx.x) * 64);
        before();
    }
    END(128)
}
