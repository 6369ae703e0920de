// Prototype: sampling as a matrix product on tensor cores, for the seeds' shape alone: fp16, 4 levels, 8 points, one head of
// 32 channels. out (32 rows x 32 channels) = weights (32 x K) @ pixels (K x 32), K pixels of a level's window, added up over levels.
//
// One warp loads the windows of part after part of the picture (plan.py), level by level, into two slots; 8 warps take a group of 32
// neighbouring rows each. For a level, lane = row scatters its 8 samples into the warp's weights: word (pixel pair, row), so that
// its bank is the row's and nothing conflicts. Then the warp multiplies 16 pixels of a line at a time (m16n8k16, fp32 sums), and
// every lane wipes the words that it touched. Weights' fragments are read as single words, each lane of a quad another row, and
// put in order with selects; pixels' fragments by ldmatrix from windows in TMA's 64-byte swizzle. Samples outside the
// group's part of the window become entries of a list: their pixels are copied from global memory, and are multiplied like a window's.
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

constexpr int CONSUMERS = 8;                       // warps, and groups of a part
constexpr int UNROLL = 4;                          // of two lines of a product
constexpr int LINES[4] = {16, 14, 12, 12};         // of a group's part of a window: even; plan.Shape.lines
// A warp's shared memory: weights; room behind them, with their last quarter for pixels from outside the window;
// a level's locations and weights of 32 rows; the samples outside: 8 bytes of weights each, then 4 of their place.
constexpr int W_BYTES = 16 * 1024, FAR_END = W_BYTES + 2048, RAW_PITCH = 48, RAW = FAR_END, LIST = RAW + 32 * RAW_PITCH, KEPT = 24;
constexpr int WARP_BYTES = (LIST + 12 * KEPT + 127) / 128 * 128;
#define BOXES {{25, 28}, {18, 20}, {15, 20}, {14, 20}}
constexpr int SLOT[2] = {(25 * 28 * 64 + 511) / 512 * 512, 18 * 20 * 64}, WINDOWS = SLOT[0] + SLOT[1];
constexpr int SMEM = WINDOWS + CONSUMERS * WARP_BYTES + 32;
static_assert(SMEM <= 232448, "shared memory");

struct Level { float w, h; int width, height, start, window, lines, box_bytes; };
struct Params {
  Level level[4];
  const char *value, *locations, *weights;
  char *out;
  const int2 *items;     // (blocks, max_items): batch, cell
  const int *item_counts;
  const int *cells;      // (parts, 4, 2)
  const int *groups;     // (G, 16): origin x, y of 4 levels; pixel of the origin in 4 windows; count
  const int *order;      // (G, 32)
  int max_items, Q, S;
};

#define DEV __device__ __forceinline__
DEV uint32_t lds(uint32_t a) { uint32_t v; asm volatile("ld.shared.b32 %0,[%1];" : "=r"(v) : "r"(a)); return v; }
DEV void sts(uint32_t a, uint32_t v) { asm volatile("st.shared.b32 [%0],%1;" ::"r"(a), "r"(v)); }
DEV uint4 lds4(uint32_t a) { uint4 v; asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a)); return v; }
DEV void sts4(uint32_t a, uint4 v) { asm volatile("st.shared.v4.b32 [%0],{%1,%2,%3,%4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)); }
DEV void ldsm(uint32_t *r, uint32_t a) { asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a)); }
DEV void mma(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEV uint32_t pack(float lo, float hi) { uint32_t v; asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(v) : "f"(hi), "f"(lo)); return v; }
DEV uint32_t hadd2(uint32_t a, uint32_t b) { uint32_t v; asm("add.rn.f16x2 %0,%1,%2;" : "=r"(v) : "r"(a), "r"(b)); return v; }
DEV void mb_init(uint32_t a, int n) { asm volatile("mbarrier.init.shared.b64 [%0],%1;" ::"r"(a), "r"(n)); }
DEV void mb_expect(uint32_t a, int n) { asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;" ::"r"(a), "r"(n) : "memory"); }
DEV void mb_arrive(uint32_t a) { asm volatile("mbarrier.arrive.shared.b64 _,[%0];" ::"r"(a) : "memory"); }
DEV void mb_wait(uint32_t a, int p) {
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p,[%0],%1; @p bra D; bra W; D: }" ::"r"(a), "r"(p) : "memory");
}
DEV void bulk(uint32_t dst, const void *src, int n, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(dst), "l"(src), "r"(n), "r"(bar) : "memory");
}

// Adds a sample: ``near`` holds the weights of its pair's columns, ``next`` that of the next pair's first (0: none),
// ``up`` and ``down`` those of its lines, twice.
DEV void scatter(uint32_t at, uint32_t near, uint32_t next, uint32_t up, uint32_t down) {
  asm volatile("{ .reg .pred p; .reg .b32 w0,w1,w2,w3; setp.ne.b32 p,%2,0;"
      "ld.shared.b32 w0,[%0]; ld.shared.b32 w1,[%0+1024]; @p ld.shared.b32 w2,[%0+128]; @p ld.shared.b32 w3,[%0+1152];"
      "fma.rn.f16x2 w0,%1,%3,w0; fma.rn.f16x2 w1,%1,%4,w1; @p fma.rn.f16x2 w2,%2,%3,w2; @p fma.rn.f16x2 w3,%2,%4,w3;"
      "st.shared.b32 [%0],w0; st.shared.b32 [%0+1024],w1; @p st.shared.b32 [%0+128],w2; @p st.shared.b32 [%0+1152],w3; }"
      ::"r"(at), "r"(near), "r"(next), "r"(up), "r"(down) : "memory");
}
DEV void wipe(uint32_t at, uint32_t next) {
  asm volatile("{ .reg .pred p; .reg .b32 z; setp.ne.b32 p,%1,0; mov.b32 z,0;"
      "st.shared.b32 [%0],z; st.shared.b32 [%0+1024],z; @p st.shared.b32 [%0+128],z; @p st.shared.b32 [%0+1152],z; }"
      ::"r"(at), "r"(next) : "memory");
}

// Adds lines of 16 pixels times their weights. words: 4 addresses of this lane's words; pixels: of its ldmatrix row.
struct Frag { uint32_t a[8], b[8]; };
DEV void load_frag(Frag &f, const uint32_t *words, uint32_t line, uint32_t px, uint32_t other) {
#pragma unroll
  for (int i = 0; i < 4; ++i) { f.a[i] = lds(words[i] + line); f.a[4 + i] = lds(words[i] + line + 512); }
  ldsm(f.b, px);
  ldsm(f.b + 4, other);
}
DEV void use_frag(float (*acc)[4][4], Frag &f, bool odd, bool two) {
  uint32_t y[8];
#pragma unroll
  for (int h = 0; h < 8; h += 4) {
    uint32_t s0 = odd ? f.a[h + 1] : f.a[h], s1 = odd ? f.a[h] : f.a[h + 1];
    uint32_t s2 = odd ? f.a[h + 3] : f.a[h + 2], s3 = odd ? f.a[h + 2] : f.a[h + 3];
    y[h] = two ? s2 : s0; y[h + 1] = two ? s3 : s1; y[h + 2] = two ? s0 : s2; y[h + 3] = two ? s1 : s3;
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    mma(acc[0][c], y[0], y[1], y[4], y[5], f.b[2 * c], f.b[2 * c + 1]);
    mma(acc[1][c], y[2], y[3], y[6], y[7], f.b[2 * c], f.b[2 * c + 1]);
  }
}
// In windows whose width leaves 4 pixels over a multiple of 8, every other line has its chunks the other way round.
template <int PITCH> DEV void product(float (*acc)[4][4], const uint32_t *words, uint32_t px, int lines, int lane) {
  static_assert(PITCH % 512 == 256, "4 over 8 pixels");
  bool odd = lane & 1, two = lane & 2;  // of q
  Frag f, g;  // even number of lines; what is read behind the last is not used
  uint32_t at[4], first = px, second = px ^ 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) at[i] = words[i];
  load_frag(f, at, 0, first, second);
#pragma unroll UNROLL
  for (int n = 0; n < lines; n += 2) {
    load_frag(g, at, 1024, second + PITCH, first + PITCH);
    use_frag(acc, f, odd, two);
    load_frag(f, at, 2048, first + 2 * PITCH, second + 2 * PITCH);
    use_frag(acc, g, odd, two);
    first += 2 * PITCH;
    second += 2 * PITCH;
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] += 2048;
  }
}

__global__ void __launch_bounds__(32 * (CONSUMERS + 1), 1)
matrix(const __grid_constant__ Params P, const __grid_constant__ CUtensorMap m0, const __grid_constant__ CUtensorMap m1,
       const __grid_constant__ CUtensorMap m2, const __grid_constant__ CUtensorMap m3) {
  extern __shared__ __align__(1024) char shared[];
  const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const uint32_t bars = base + WINDOWS + CONSUMERS * WARP_BYTES;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) { mb_init(bars + 8 * i, 1); mb_init(bars + 16 + 8 * i, CONSUMERS); }  // full, empty
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  const int n_items = P.item_counts[blockIdx.x];
  if (warp == CONSUMERS) {
    if (lane == 0) {
      for (int i = 0; i < n_items; ++i) {
        int2 it = P.items[blockIdx.x * P.max_items + i];
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          int2 at = ((const int2 *)P.cells)[it.y * 4 + l];
          mb_wait(bars + 16 + 8 * (l & 1), (l >> 1) ^ 1);
          mb_expect(bars + 8 * (l & 1), P.level[l].box_bytes);
          const CUtensorMap *m = l == 0 ? &m0 : l == 1 ? &m1 : l == 2 ? &m2 : &m3;
          asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1,{%2,%3,%4,%5}],[%6];"
              ::"r"(base + P.level[l].window), "l"(m), "r"(0), "r"(at.x), "r"(at.y), "r"(it.x), "r"(bars + 8 * (l & 1)) : "memory");
        }
      }
    }
    return;
  }
  const uint32_t mine = base + WINDOWS + warp * WARP_BYTES, raw = mine + RAW + lane * RAW_PITCH, list = mine + LIST;
  const int g = lane >> 2, q = lane & 3;
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = mine + q * 128 + (4 * g + (i ^ q)) * 4;
  for (int i = 0; i < W_BYTES; i += 512) sts4(mine + i + 16 * lane, make_uint4(0, 0, 0, 0));
  const int2 *items = P.items + blockIdx.x * P.max_items;
  int2 job = items[0], next;
  int number = 0, info = 0;  // the group's 16 numbers, one a lane
  auto fetch = [&](int number, int l) {  // a level's locations and weights of this lane's row
    const char *x = P.locations + (size_t)number * 128 + 32 * l, *w = P.weights + (size_t)number * 64 + 16 * l;
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(raw), "l"(x) : "memory");
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(raw + 16), "l"(x + 16) : "memory");
    asm volatile("cp.async.ca.shared.global [%0],[%1],16;" ::"r"(raw + 32), "l"(w) : "memory");
  };
  info = P.groups[(job.y * CONSUMERS + warp) * 16 + (lane & 15)];
  number = job.x * P.Q + P.order[(job.y * CONSUMERS + warp) * 32 + lane];
  fetch(number, 0);
  for (int j = 0; j < n_items; ++j) {
    const bool more = j + 1 < n_items;
    next = items[min(j + 1, n_items - 1)];
    const int next_info = P.groups[(next.y * CONSUMERS + warp) * 16 + (lane & 15)];
    const int next_query = P.order[(next.y * CONSUMERS + warp) * 32 + lane];
    float acc[2][4][4];
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int k = 0; k < 4; ++k) acc[t][c][k] = 0.f;
    int kept = 0;  // entries of the list
    const char *plane = P.value + (size_t)job.x * P.S * 64;
    auto gather = [&]() {  // pixels of the samples outside, four an entry
      __syncwarp();
      uint32_t pixel = 0, wide = 0;  // of entry ``lane``: first pixel; valid pixels and width of the level
      if (lane < kept) {
        uint32_t entry = lds(list + 8 * KEPT + 4 * lane);
        const Level &L = P.level[entry >> 25 & 3];
        int x = (int)(entry & 0xfff) - 1, y = (int)(entry >> 12 & 0xfff) - 1;
        uint32_t columns = (x >= 0 ? 5u : 0u) | (x + 1 < L.width ? 10u : 0u);
        wide = L.width | (columns & ((y >= 0 ? 3u : 0u) | (y + 1 < L.height ? 12u : 0u))) << 16;
        pixel = L.start + y * L.width + x;
      }
      const int jx = (lane >> 2) & 3, c = lane & 3;
#pragma unroll 1
      for (int e = lane >> 4, n = 0; n < kept; n += 4) {
#pragma unroll
        for (int k = 0; k < 2; ++k, e += 2) {
          uint32_t first = __shfl_sync(~0u, pixel, e), wm = __shfl_sync(~0u, wide, e);
          uint32_t here = wm >> (16 + jx) & 1;
          uint32_t at = here ? first + (jx & 1) + (jx >> 1) * (wm & 0xffff) : 0;
          int px = 4 * (e & 3) + jx;
          asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(mine + FAR_END - 1024 - 256 * n + px * 64 + ((c ^ ((px >> 1) & 3)) << 4)),
              "l"(plane + (size_t)at * 64 + c * 16), "r"(here * 16) : "memory");
        }
      }
    };
    auto flush = [&]() {
      uint32_t at_word = 0;
      __syncwarp();
      if (lane < kept) {
        at_word = mine + lane * 256 + (lds(list + 8 * KEPT + 4 * lane) >> 27) * 4;
        sts(at_word, lds(list + 8 * lane));
        sts(at_word + 128, lds(list + 8 * lane + 4));
      }
      asm volatile("cp.async.wait_all;" ::: "memory");
      __syncwarp();
      int px = 8 * ((lane >> 3) & 1) + (lane & 7);
      uint32_t at = mine + FAR_END - 1024 + px * 64 + (((lane >> 4) ^ ((px >> 1) & 3)) << 4);
      bool odd = lane & 1, two = lane & 2;
#pragma unroll 1
      for (int n = 0; n < kept; n += 4) {
        Frag f;
        load_frag(f, words, 256 * n, at - 256 * n, (at ^ 32) - 256 * n);
        use_frag(acc, f, odd, two);
      }
      __syncwarp();
      if (lane < kept) {
        sts(at_word, 0);
        sts(at_word + 128, 0);
      }
      for (int n = 8; n < kept; n += 4) {
        sts4(mine + FAR_END - 1024 - 256 * n + 16 * lane, make_uint4(0, 0, 0, 0));
        sts4(mine + FAR_END - 512 - 256 * n + 16 * lane, make_uint4(0, 0, 0, 0));
      }
      __syncwarp();
    };
    const int count = __shfl_sync(~0u, info, 12);
#pragma unroll 1
    for (int l = 0; l < 4; ++l) {
      const Level &L = P.level[l];
      const int2 origin = make_int2(__shfl_sync(~0u, info, 2 * l), __shfl_sync(~0u, info, 2 * l + 1));
      const int rel = __shfl_sync(~0u, info, 8 + l);
      uint32_t xy[8], at_[4];
      asm volatile("cp.async.wait_all;" ::: "memory");
      { uint4 v = lds4(raw); xy[0] = v.x; xy[1] = v.y; xy[2] = v.z; xy[3] = v.w; }
      { uint4 v = lds4(raw + 16); xy[4] = v.x; xy[5] = v.y; xy[6] = v.z; xy[7] = v.w; }
      { uint4 v = lds4(raw + 32); at_[0] = v.x; at_[1] = v.y; at_[2] = v.z; at_[3] = v.w; }
      const float cx = -0.5f - (float)origin.x, cy = -0.5f - (float)origin.y;
      const float lo_x = -1.f - origin.x, lo_y = -1.f - origin.y, hi_x = L.w - origin.x, hi_y = L.h - origin.y;
      const uint32_t top_y = __float_as_uint((float)(L.lines - 1));
      const uint32_t home = mine + lane * 4;
      uint32_t touched[8], near[8], beyond[8], ups[8], downs[8], far = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        float2 p = __half22float2(*(__half2 *)&xy[k]);
        float2 a2 = __half22float2(*(__half2 *)&at_[k >> 1]);
        float a = (k & 1) ? a2.y : a2.x;
        float x = fmaf(p.x, L.w, cx), y = fmaf(p.y, L.h, cy);
        bool ok = __float_as_uint(x) < __float_as_uint(15.f) && __float_as_uint(y) < top_y;
        if (!ok && x >= lo_x && x < hi_x && y >= lo_y && y < hi_y) far |= 1u << k;
        float tx = __fadd_rd(x, 16777216.f), ty = __fadd_rd(y, 8388608.f);  // down to an even, a whole number
        float fx = x - (tx - 16777216.f) - 1.f, fy = __saturatef(y - (ty - 8388608.f));
        if (!ok) a = 0.f;
        float down = a * fy, up = a - down, second = __saturatef(fx);
        near[k] = pack(__saturatef(-fx), __saturatef(1.f - fabsf(fx)));
        beyond[k] = pack(second, 0.f);
        ups[k] = pack(up, up);
        downs[k] = pack(down, down);
        touched[k] = home + (__float_as_uint(ty) << 10) + (__float_as_uint(tx) << 7) - 0xC0000000u;
        if (!ok) touched[k] = home;
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) scatter(touched[k], near[k], beyond[k], ups[k], downs[k]);
      if (lane >= count) far = 0;
      auto keep = [&](bool again) {  // samples that are far, as many as there is room for
        while (true) {
          uint32_t takers = __ballot_sync(~0u, far != 0);
          if (!takers || kept == KEPT) break;
          int pos = kept + __popc(takers & ((1u << lane) - 1));
          if (far && pos < KEPT) {
            int k = __ffs(far) - 1;
            far &= far - 1;
            uint32_t word, pair;
            if (again) {  // the next level's have come
              word = *(const uint32_t *)(P.locations + (size_t)number * 128 + 32 * l + 4 * k);
              pair = *(const uint32_t *)(P.weights + (size_t)number * 64 + 16 * l + 4 * (k >> 1));
            } else {
              word = lds(raw + 4 * k);
              pair = lds(raw + 32 + 4 * (k >> 1));
            }
            float2 p = __half22float2(*(__half2 *)&word);
            float2 a2 = __half22float2(*(__half2 *)&pair);
            float a = (k & 1) ? a2.y : a2.x;
            float x = fmaf(p.x, L.w, -0.5f), y = fmaf(p.y, L.h, -0.5f);
            float xf = floorf(x), yf = floorf(y), fx = x - xf, fy = y - yf;
            float down = a * fy, up = a - down, ur = up * fx, ul = up - ur, dr = down * fx, dl = down - dr;
            sts(list + 8 * pos, pack(ul, ur));
            sts(list + 8 * pos + 4, pack(dl, dr));
            sts(list + 8 * KEPT + 4 * pos, (uint32_t)((int)xf + 1) | (uint32_t)((int)yf + 1) << 12 | l << 25 | lane << 27);
          }
          kept = min(kept + __popc(takers), KEPT);
        }
      };
      keep(false);
      if (l < 3) fetch(number, l + 1);
      else if (more) fetch(next.x * P.Q + next_query, 0);
      if (l == 3 && kept) gather();
      __syncwarp();
      mb_wait(bars + 8 * (l & 1), l >> 1);
      {
        int px = rel + 8 * ((lane >> 3) & 1) + (lane & 7);
        uint32_t at = base + L.window + px * 64 + (((lane >> 4) ^ ((px >> 1) & 3)) << 4);
        if (l == 0) product<28 * 64>(acc, words, at, L.lines, lane);
        else product<20 * 64>(acc, words, at, L.lines, lane);
      }
      __syncwarp();
      if (lane == 0) mb_arrive(bars + 16 + 8 * (l & 1));
#pragma unroll
      for (int k = 0; k < 8; ++k) wipe(touched[k], beyond[k]);
      bool gathered = l == 3;
      while (__any_sync(~0u, far != 0)) {  // seldom: the list was full
        if (!gathered) gather();
        flush();
        kept = 0;
        keep(true);
        gathered = l == 3;
        if (gathered) gather();
      }
    }
    const int next_number = next.x * P.Q + next_query;
    if (kept) flush();
    // Output: lane q of a quad gets chunk q of each of the quad's four rows.
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      uint32_t a[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) a[c] = pack(acc[r >> 1][c][2 * (r & 1)], acc[r >> 1][c][2 * (r & 1) + 1]);
#pragma unroll
      for (int c = 0; c < 4; c += 2) {
        uint32_t s = __shfl_xor_sync(~0u, (q & 1) ? a[c] : a[c + 1], 1);
        if (q & 1) a[c] = s; else a[c + 1] = s;
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        uint32_t s = __shfl_xor_sync(~0u, (q & 2) ? a[c] : a[c + 2], 2);
        if (q & 2) a[c] = s; else a[c + 2] = s;
      }
      int row = 4 * g + r, n = __shfl_sync(~0u, number, row);
      if (row < count) *(uint4 *)(P.out + (size_t)n * 64 + q * 16) = make_uint4(a[0], a[1], a[2], a[3]);
    }
    job = next;
    info = next_info;
    number = next_number;
  }
}

// Milliseconds of each of ``repeats`` launches, after ``warm`` others; returns 0, or what went wrong.
extern "C" int run(void *value, void *locations, void *weights, void *out, void *items, void *item_counts, void *cells, void *groups, void *order, int max_items, int B, int Q, int S,
                   const int *hw, int blocks, int warm, int repeats, float *ms) {
  static const int boxes[4][2] = BOXES, lines[4] = {LINES[0], LINES[1], LINES[2], LINES[3]};
  Params P;
  P.value = (char *)value; P.locations = (char *)locations; P.weights = (char *)weights; P.out = (char *)out;
  P.items = (int2 *)items; P.item_counts = (int *)item_counts;
  P.cells = (int *)cells; P.groups = (int *)groups; P.order = (int *)order;
  P.max_items = max_items; P.Q = Q; P.S = S;
  void *encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaFree(0);
  if (cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found) || !encode) return 1000;
  CUtensorMap maps[4];
  int start = 0;
  for (int l = 0; l < 4; ++l) {
    int h = hw[2 * l], w = hw[2 * l + 1];
    int window = l & 1 ? SLOT[0] : 0;
    P.level[l] = {(float)w, (float)h, w, h, start, window, lines[l], boxes[l][0] * boxes[l][1] * 64};
    cuuint64_t dims[4] = {32, (cuuint64_t)w, (cuuint64_t)h, (cuuint64_t)B}, strides[3] = {64, (cuuint64_t)w * 64, (cuuint64_t)S * 64};
    cuuint32_t box[4] = {32, (cuuint32_t)boxes[l][1], (cuuint32_t)boxes[l][0], 1}, ones[4] = {1, 1, 1, 1};
    CUresult r = ((CUresult(*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
        const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill))encode)(
        &maps[l], CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, (char *)value + (size_t)start * 64, dims, strides, box, ones,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r) return 2000 + r;
    start += h * w;
    
  }
  cudaError_t e = cudaFuncSetAttribute(matrix, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM);
  if (e) return e;
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  for (int i = 0; i < warm; ++i) matrix<<<blocks, 32 * (CONSUMERS + 1), SMEM>>>(P, maps[0], maps[1], maps[2], maps[3]);
  for (int i = 0; i < repeats; ++i) {
    cudaEventRecord(a);
    matrix<<<blocks, 32 * (CONSUMERS + 1), SMEM>>>(P, maps[0], maps[1], maps[2], maps[3]);
    cudaEventRecord(b);
    e = cudaEventSynchronize(b);
    if (e) return e;
    cudaEventElapsedTime(ms + i, a, b);
  }
  return cudaGetLastError();
}
