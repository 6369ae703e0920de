// The part of the CUDA runtime that a program's host code needs, over the host's memory: memory is malloc's, copies
// are memcpy's, and each launch, and each tensor map to be encoded, is handed to functions that host.py sets.
// Functions are declared by their C types alone, so that one text serves all versions of the headers.
#include <driver_types.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned x, y, z; } Dim3;
typedef struct { Dim3 grid, block; size_t shared; void *stream; cudaLaunchAttribute *attributes; unsigned count; } Config;
enum { SUCCESS = 0, INVALID_VALUE = 1, LAUNCH_FAILURE = 719, NAMES = 1024, UNASKED = 48 << 10 };

static struct {
    void (*memory)(void *start, size_t size);  // size 0: freed
    void (*symbol)(const char *name, const void *from, size_t size, size_t offset);
    int (*launch)(const char *name, const unsigned *nine, size_t shared, void **args);  // grid, block, cluster
    int (*encode)(void *map, int im2col, unsigned type, unsigned rank, void *start, const uint64_t *dims,
                  const uint64_t *strides, const unsigned *box, const unsigned *steps, const unsigned *four);
} hooks;
static struct { const void *host; const char *name; size_t shared; } names[NAMES];  // of kernels and variables
static int known, error;
static Config pushed;

void stand_in(void *memory, void *symbol, void *launch, void *encode) {
    hooks.memory = memory, hooks.symbol = symbol, hooks.launch = launch, hooks.encode = encode;
}

// --- what nvcc's host code calls by itself
void **__cudaRegisterFatBinary(void *binary) { return calloc(1, sizeof(void *)); }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterVar(void **handle, const char *host, char *address, const char *name) {
    if (known < NAMES) names[known].host = host, names[known++].name = name;
}
void __cudaInitModule(void **handle) {}
void __cudaRegisterFunction(void **handle, const char *host, char *function, const char *name) {
    if (known < NAMES) names[known].host = host, names[known++].name = name;
}
unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void *stream) {
    pushed = (Config){grid, block, shared, stream, 0, 0};
    return 0;
}
int __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void **stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *stream = pushed.stream;
    return SUCCESS;
}

// --- launches
static int failed(int status) { return status ? error = status : SUCCESS; }
int cudaGetLastError(void) {
    int last = error;
    return error = SUCCESS, last;
}
int cudaPeekAtLastError(void) { return error; }
int cudaFuncSetAttribute(const void *host, int which, int value) {
    for (int i = 0; i < known; i++)
        if (names[i].host == host && which == cudaFuncAttributeMaxDynamicSharedMemorySize) names[i].shared = value;
    return SUCCESS;
}
int cudaLaunchKernelExC(const Config *c, const void *host, void **args) {
    unsigned nine[9] = {c->grid.x, c->grid.y, c->grid.z, c->block.x, c->block.y, c->block.z, 1, 1, 1};
    for (unsigned i = 0; i < c->count; i++)
        if (c->attributes[i].id == cudaLaunchAttributeClusterDimension)
            memcpy(nine + 6, &c->attributes[i].val.clusterDim, 12);
    for (int i = 0; i < known; i++)
        if (names[i].host == host && c->shared > UNASKED && c->shared > names[i].shared)
            return failed(INVALID_VALUE);  // as on a GPU: the program has to ask for it first
        else if (names[i].host == host)
            return failed(hooks.launch(names[i].name, nine, c->shared, args));
    return failed(LAUNCH_FAILURE);
}
int cudaLaunchKernel(const void *host, Dim3 grid, Dim3 block, void **args, size_t shared, void *stream) {
    Config c = {grid, block, shared, stream, 0, 0};
    return cudaLaunchKernelExC(&c, host, args);
}
int __cudaGetKernel(void **kernel, const void *host) { return *kernel = (void *)host, SUCCESS; }
int __cudaLaunchKernel(void *host, Dim3 grid, Dim3 block, void **args, size_t shared, void *stream) {
    return cudaLaunchKernel(host, grid, block, args, shared, stream);
}
int __cudaLaunchKernel_ptsz(void *host, Dim3 grid, Dim3 block, void **args, size_t shared, void *stream) {
    return cudaLaunchKernel(host, grid, block, args, shared, stream);
}

// --- memory
int cudaMalloc(void **start, size_t size) {
    if (posix_memalign(start, 512, size ? size : 1)) return 2;
    hooks.memory(*start, size);
    return SUCCESS;
}
int cudaMallocAsync(void **start, size_t size, void *stream) { return cudaMalloc(start, size); }
int cudaMallocManaged(void **start, size_t size, unsigned flags) { return cudaMalloc(start, size); }
int cudaMallocHost(void **start, size_t size) { return cudaMalloc(start, size); }
int cudaFree(void *start) {
    if (start) hooks.memory(start, 0);
    free(start);
    return SUCCESS;
}
int cudaFreeAsync(void *start, void *stream) { return cudaFree(start); }
int cudaFreeHost(void *start) { return cudaFree(start); }
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { return memmove(to, from, size), SUCCESS; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    return cudaMemcpy(to, from, size, kind);
}
int cudaMemcpyToSymbol(const void *host, const void *from, size_t size, size_t offset, int kind) {
    for (int i = 0; i < known; i++)
        if (names[i].host == host) return hooks.symbol(names[i].name, from, size, offset), SUCCESS;
    return LAUNCH_FAILURE;
}
int cudaMemset(void *to, int value, size_t size) { return memset(to, value, size), SUCCESS; }
int cudaMemsetAsync(void *to, int value, size_t size, void *stream) { return cudaMemset(to, value, size); }

// --- what a program asks of the device
int cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    *p = (struct cudaDeviceProp){.name = "the CPU engine", .major = MAJOR, .multiProcessorCount = 132, .warpSize = 32,
                                 .maxThreadsPerBlock = 1024, .sharedMemPerBlock = 49152, .totalGlobalMem = 1ull << 37,
                                 .sharedMemPerBlockOptin = 232448, .l2CacheSize = 50 << 20};
    return SUCCESS;
}
int cudaDeviceGetAttribute(int *value, int which, int device) {
    *value = which == cudaDevAttrMultiProcessorCount           ? 132
             : which == cudaDevAttrComputeCapabilityMajor      ? MAJOR
             : which == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 232448
             : which == cudaDevAttrL2CacheSize                  ? 50 << 20
                                                                : 0;
    return SUCCESS;
}
int cudaGetDeviceCount(int *count) { return *count = 1, SUCCESS; }
int cudaGetDevice(int *device) { return *device = 0, SUCCESS; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int threads, size_t shared) {
    return *n = 1, SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int threads, size_t shared,
                                                           unsigned flags) {
    return *n = 1, SUCCESS;
}
int cudaEventElapsedTime(float *ms, void *from, void *to) { return *ms = 1, SUCCESS; }
int cudaEventElapsedTime_v2(float *ms, void *from, void *to) { return *ms = 1, SUCCESS; }
int cudaEventCreate(void **event) { return *event = 0, SUCCESS; }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return *event = 0, SUCCESS; }
int cudaStreamCreate(void **stream) { return *stream = 0, SUCCESS; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return *stream = 0, SUCCESS; }
const char *cudaGetErrorString(int error) { return error ? "an error of the stand-in" : "no error"; }
const char *cudaGetErrorName(int error) { return cudaGetErrorString(error); }

// --- tensor maps
int cuTensorMapEncodeTiled(void *map, unsigned type, unsigned rank, void *start, const uint64_t *dims,
                           const uint64_t *strides, const unsigned *box, const unsigned *steps, unsigned interleave,
                           unsigned swizzle, unsigned promotion, unsigned fill) {
    unsigned four[4] = {interleave, swizzle, promotion, fill};
    return hooks.encode(map, 0, type, rank, start, dims, strides, box, steps, four);
}
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, uint64_t flags, int *status) {
    *function = strcmp(name, "cuTensorMapEncodeTiled") ? 0 : (void *)cuTensorMapEncodeTiled;
    if (status) *status = !*function;
    return SUCCESS;
}
int cudaGetDriverEntryPoint(const char *name, void **function, uint64_t flags, int *status) {
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}
int cuGetErrorString(int error, const char **text) { return *text = cudaGetErrorString(error), SUCCESS; }
int cuGetErrorName(int error, const char **text) { return *text = cudaGetErrorString(error), SUCCESS; }

// --- what has nothing to do here
#define NOTHING(name) int name() { return SUCCESS; }
NOTHING(cudaDeviceSynchronize) NOTHING(cudaDeviceReset)
NOTHING(cudaSetDevice) NOTHING(cudaStreamSynchronize) NOTHING(cudaStreamDestroy)
NOTHING(cudaEventRecord) NOTHING(cudaEventSynchronize) NOTHING(cudaEventDestroy) NOTHING(cuInit)
NOTHING(cudaStreamIsCapturing) NOTHING(cudaDeviceSetLimit) NOTHING(cudaFuncGetAttributes)
NOTHING(cudaEventQuery) NOTHING(cudaStreamWaitEvent) NOTHING(cudaProfilerStart) NOTHING(cudaProfilerStop)
NOTHING(cudaHostRegister) NOTHING(cudaHostUnregister)
