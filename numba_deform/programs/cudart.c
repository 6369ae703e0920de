// The part of the CUDA runtime that a program's host code needs, over the host's memory. What has an effect is handed
// to one function of Python's by its name and its numbers, see cuda_program.py; what is only an answer stands here.
// Functions are declared by their C types alone, so that one text serves all versions of the headers.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <driver_types.h>
#include <execinfo.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned x, y, z; } Dim3;
typedef struct { Dim3 grid, block; size_t shared; void *stream; cudaLaunchAttribute *attributes; unsigned count; } Config;
enum { SUCCESS = 0, INVALID_VALUE = 1, MEMORY_ALLOCATION = 2, INVALID_CONFIGURATION = 9, INVALID_SYMBOL = 13,
       INVALID_DEVICE_POINTER = 17, INVALID_DEVICE_FUNCTION = 98, INVALID_DEVICE = 101, NOT_READY = 600,
       LAUNCH_FAILURE = 719, COOPERATIVE_TOO_LARGE = 720, NOT_SUPPORTED = 801, NAMES = 4096, UNASKED = 48 << 10 };
enum { SMS = 132, THREADS = 2048, BLOCKS = 32, SHARED_OF_SM = 228 << 10, MOST_SHARED = 227 << 10 };

static long (*hook)(const char *name, const uint64_t *words);
static int major = 9, minor = 0;
static struct { const void *host; const char *name; size_t size; long limit; } names[NAMES];  // kernels and variables
static const void *of_program;  // its main, or else a kernel
static int known, sticky;
static __thread int error, popped;  // each thread of the host has its own
static __thread Config pushed;

#define W(x) ((uint64_t)(x))
#define CALL(name, ...) (hook ? asked_of_python(name, (uint64_t[]){__VA_ARGS__}) : 0)
#pragma GCC visibility push(default)

void _ZSt21__throw_runtime_errorPKc(const char *);  // of libstdc++: std::runtime_error
// An exception of Python's goes on as one of C++ in an extension of PyTorch's, which makes one of Python's of it.
static long asked_of_python(const char *name, const uint64_t *words) {
    long answer = hook(name, words);
    if (answer == LONG_MIN) _ZSt21__throw_runtime_errorPKc((const char *)hook("why", 0));
    return answer;
}

void stand_in(void *function, int capability, void *main) {
    of_program = main;
    hook = (long (*)(const char *, const uint64_t *))function;
    major = capability / 10, minor = capability % 10;
}
int unsupported(const char *name) { return CALL("unsupported", W(name)), NOT_SUPPORTED; }
// Where the program stands: offsets in its library of the calls on the stack, the innermost first.
int stack_of_calls(uint64_t *offsets, int room) {
    void *calls[256];
    Dl_info own, info;
    int found = 0, count = backtrace(calls, 256);
    dladdr(of_program ? of_program : names[0].host, &own);
    for (int i = 0; i < count && found < room; i++)
        if (dladdr(calls[i], &info) && info.dli_fbase == own.dli_fbase)
            offsets[found++] = (char *)calls[i] - (char *)own.dli_fbase - 1;
    return found;
}

// --- what nvcc's host code calls by itself
void **__cudaRegisterFatBinary(void *binary) { return calloc(1, sizeof(void *)); }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaInitModule(void **handle) {}
static void registered(const void *host, const char *name, size_t size) {
    if (known == NAMES) abort();
    names[known].host = host, names[known].name = name, names[known].size = size, names[known++].limit = -1;
}
void __cudaRegisterVar(void **handle, const char *host, char *address, const char *name, int external, size_t size) {
    registered(host, name, size);
}
void __cudaRegisterFunction(void **handle, const char *host, char *function, const char *name) {
    registered(host, name, 0);
}
static int index_of(const void *host) {
    for (int i = 0; i < known; i++)
        if (names[i].host == host) return i;
    return -1;
}
unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void *stream) {
    pushed = (Config){grid, block, shared, stream, 0, 0};
    return 0;
}
int __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void **stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *stream = pushed.stream;
    return popped = 1, SUCCESS;
}

// --- errors
static int failed(int status) { return status ? error = status : SUCCESS; }
static int after(long ignored) { return failed(sticky); }  // what waits for a GPU tells what went wrong there
int cudaGetLastError(void) {
    int last = error;
    CALL("asked", 0);
    return error = sticky, last;
}
int cudaPeekAtLastError(void) { return CALL("asked", 0), error; }
static const struct { int number; const char *name, *text; } errors[] = {
    {SUCCESS, "cudaSuccess", "no error"},
    {INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {MEMORY_ALLOCATION, "cudaErrorMemoryAllocation", "out of memory"},
    {INVALID_CONFIGURATION, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {INVALID_SYMBOL, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {INVALID_DEVICE_POINTER, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {INVALID_DEVICE_FUNCTION, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {NOT_READY, "cudaErrorNotReady", "device not ready"},
    {LAUNCH_FAILURE, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {COOPERATIVE_TOO_LARGE, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"}};
static const char *told(int number, int as_text) {
    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].number == number) return as_text ? errors[i].text : errors[i].name;
    return "unrecognized error code";
}
const char *cudaGetErrorString(int number) { return told(number, 1); }
const char *cudaGetErrorName(int number) { return told(number, 0); }
int cuGetErrorString(int number, const char **text) { return *text = told(number, 1), SUCCESS; }
int cuGetErrorName(int number, const char **text) { return *text = told(number, 0), SUCCESS; }

static void __attribute__((destructor)) end(void) {
    if (hook) CALL("end", 0);
}

// --- launches
static int launch(const Config *c, const void *host, void **args, int cooperative) {
    unsigned nine[9] = {c->grid.x, c->grid.y, c->grid.z, c->block.x, c->block.y, c->block.z, 1, 1, 1};
    int i = index_of(host), by_brackets = popped;
    popped = 0;
    for (unsigned a = 0; a < c->count; a++)
        if (c->attributes[a].id == cudaLaunchAttributeClusterDimension)
            memcpy(nine + 6, &c->attributes[a].val.clusterDim, 12);
        else if (c->attributes[a].id == cudaLaunchAttributeCooperative)
            cooperative = c->attributes[a].val.cooperative;
    if (i < 0) return failed(INVALID_DEVICE_FUNCTION);
    if (sticky) return failed(sticky);
    long limit = names[i].limit < 0 ? UNASKED - CALL("static", W(names[i].name)) : names[i].limit;
    long status = CALL("launch", W(names[i].name), W(nine), c->shared, limit, W(c->stream == (void *)1 ? 0 : c->stream),
                       cooperative, by_brackets, W(args));
    if (status == LAUNCH_FAILURE) return sticky = status, failed(SUCCESS);  // told by what waits for it
    return failed(status);
}
int cudaLaunchKernelExC(const Config *c, const void *host, void **args) { return launch(c, host, args, 0); }
int cudaLaunchKernelExC_ptsz(const Config *c, const void *host, void **args) { return launch(c, host, args, 0); }
int cudaLaunchKernel(const void *host, Dim3 grid, Dim3 block, void **args, size_t shared, void *stream) {
    Config c = {grid, block, shared, stream, 0, 0};
    return launch(&c, host, args, 0);
}
int cudaLaunchCooperativeKernel(const void *host, Dim3 grid, Dim3 block, void **args, size_t shared, void *stream) {
    Config c = {grid, block, shared, stream, 0, 0};
    return launch(&c, host, args, 1);
}
int __cudaGetKernel(void **kernel, const void *host) { return *kernel = (void *)host, SUCCESS; }
int cudaGetKernel(void **kernel, const void *host) { return *kernel = (void *)host, SUCCESS; }
int __cudaLaunchKernel(void *host, Dim3 grid, Dim3 block, void **args, size_t shared, void *stream) {
    return cudaLaunchKernel(host, grid, block, args, shared, stream);
}
int __cudaLaunchKernel_ptsz(void *host, Dim3 grid, Dim3 block, void **args, size_t shared, void *stream) {
    return cudaLaunchKernel(host, grid, block, args, shared, stream ? stream : (void *)2);
}
int cudaFuncSetAttribute(const void *host, int which, int value) {
    int i = index_of(host);
    if (i < 0) return failed(INVALID_DEVICE_FUNCTION);
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize) return SUCCESS;
    if (value < 0 || value > MOST_SHARED - CALL("static", W(names[i].name))) return failed(INVALID_VALUE);
    return names[i].limit = value, SUCCESS;
}
int cudaFuncSetCacheConfig(const void *host, int config) { return index_of(host) < 0 ? INVALID_DEVICE_FUNCTION : SUCCESS; }
int cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *host) {
    int i = index_of(host);
    if (i < 0) return failed(INVALID_DEVICE_FUNCTION);
    long shared = CALL("static", W(names[i].name));
    *a = (struct cudaFuncAttributes){.sharedSizeBytes = shared, .maxThreadsPerBlock = CALL("threads", W(names[i].name)),
                                     .numRegs = CALL("registers", 0), .ptxVersion = 10 * major + minor,
                                     .binaryVersion = 10 * major + minor,
                                     .maxDynamicSharedSizeBytes = names[i].limit < 0 ? UNASKED : names[i].limit};
    return SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *host, int threads, size_t shared) {
    int i = index_of(host);
    if (i < 0 || threads < 1 || threads > 1024) return failed(i < 0 ? INVALID_DEVICE_FUNCTION : INVALID_VALUE);
    size_t all = shared + CALL("static", W(names[i].name)) + 1024;
    int by_threads = THREADS / ((threads + 31) / 32 * 32), by_shared = SHARED_OF_SM / all;
    int by_registers = 65536 / (CALL("registers", 0) * ((threads + 31) / 32 * 32));
    *n = by_threads < BLOCKS ? by_threads : BLOCKS;
    *n = by_shared < *n ? by_shared : *n;
    *n = by_registers < *n ? by_registers : *n;
    return SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *host, int threads, size_t shared,
                                                           unsigned flags) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, host, threads, shared);
}
int cudaOccupancyMaxActiveClusters(int *n, const void *host, const Config *c) {
    unsigned size = 1;
    for (unsigned a = 0; a < c->count; a++)
        if (c->attributes[a].id == cudaLaunchAttributeClusterDimension)
            size = c->attributes[a].val.clusterDim.x * c->attributes[a].val.clusterDim.y * c->attributes[a].val.clusterDim.z;
    int status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, host, c->block.x * c->block.y * c->block.z, c->shared);
    return *n = *n * SMS / size, status;
}
int cudaOccupancyMaxPotentialClusterSize(int *size, const void *host, const Config *c) { return *size = 8, SUCCESS; }
int cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *host, int blocks, int threads) {
    int i = index_of(host);
    if (i < 0 || blocks < 1) return failed(i < 0 ? INVALID_DEVICE_FUNCTION : INVALID_VALUE);
    return *bytes = SHARED_OF_SM / blocks - 1024 - CALL("static", W(names[i].name)), SUCCESS;
}

// --- memory
static void *of(void *stream) { return stream == (void *)1 ? 0 : stream; }
static int allocated_on(const char *how, void **start, size_t size, void *stream) {
    *start = 0;
    if (!size) return SUCCESS;
    if (size > CALL("free_memory", 0)) return failed(MEMORY_ALLOCATION);
    return *start = (void *)CALL(how, size, W(of(stream))), SUCCESS;
}
static int allocated(const char *how, void **start, size_t size) { return allocated_on(how, start, size, 0); }
static int freed_by(const char *how, void *start, void *stream) {
    if (start && !CALL(how, W(start), W(of(stream)))) return failed(INVALID_VALUE);
    return after(0);
}
static int freed(void *start) { return freed_by("cudaFree", start, 0); }
int cudaMalloc(void **start, size_t size) { return allocated("cuMemAlloc", start, size); }
int cudaMallocAsync(void **start, size_t size, void *stream) {
    return allocated_on("cudaMallocAsync", start, size, stream);
}
int cudaMallocManaged(void **start, size_t size, unsigned flags) { return allocated("cuMemAllocManaged", start, size); }
int cudaMallocHost(void **start, size_t size) { return allocated("cuMemHostAlloc", start, size); }
int cudaHostAlloc(void **start, size_t size, unsigned flags) { return allocated("cuMemHostAlloc", start, size); }
int cudaHostGetDevicePointer(void **device, void *host, unsigned flags) { return *device = host, SUCCESS; }
int cudaHostRegister(void *start, size_t size, unsigned flags) {
    return CALL("cuMemHostRegister", W(start), size, 0), SUCCESS;
}
int cudaHostUnregister(void *start) { return freed(start); }
int cudaFree(void *start) { return freed(start); }
int cudaFreeAsync(void *start, void *stream) { return freed_by("cudaFreeAsync", start, stream); }
int cudaFreeHost(void *start) { return freed(start); }
int cudaMallocPitch(void **start, size_t *pitch, size_t width, size_t height) {
    return *pitch = (width + 511) / 512 * 512, cudaMalloc(start, *pitch * height);
}
int cudaMemGetInfo(size_t *left, size_t *all) {
    return *left = CALL("free_memory", 0), *all = CALL("all_memory", 0), SUCCESS;
}
// Rows of bytes; a plain copy has one. Kinds 1 and 3 write to the device, 2 and 3 read there.
static int copied(const char *what, char *to, size_t pitch, const char *from, size_t from_pitch, size_t width,
                  size_t height, unsigned kind, void *stream, int waits) {
    if (kind > 4 || (height > 1 && (width > pitch || width > from_pitch))) return failed(INVALID_VALUE);
    if (width && CALL("moved", W(what), W(to), pitch, W(from), from_pitch, width, height, W(of(stream)), kind % 2,
                      kind == 2 || kind == 3))
        return failed(INVALID_VALUE);
    return waits ? after(CALL("cuStreamSynchronize", W(of(stream)))) : SUCCESS;
}
static int set(const char *what, char *to, size_t pitch, int value, size_t width, size_t height, void *stream) {
    for (size_t y = 0; width && y < height; y++)
        if (CALL("filled", W(what), W(to + y * pitch), value & 255, width, W(of(stream)))) return failed(INVALID_VALUE);
    return SUCCESS;
}
int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    return copied("cudaMemcpy", to, 0, from, 0, size, 1, kind, 0, 1);
}
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    return copied("cudaMemcpyAsync", to, 0, from, 0, size, 1, kind, stream, 0);
}
int cudaMemcpy2D(void *to, size_t pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind) {
    return copied("cudaMemcpy2D", to, pitch, from, from_pitch, width, height, kind, 0, 1);
}
int cudaMemcpy2DAsync(void *to, size_t pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind,
                      void *stream) {
    return copied("cudaMemcpy2DAsync", to, pitch, from, from_pitch, width, height, kind, stream, 0);
}
static char *address_of(const void *host, size_t size, size_t offset) {
    int i = index_of(host);
    if (i < 0 || !names[i].size || offset + size > names[i].size) return failed(i < 0 ? INVALID_SYMBOL : INVALID_VALUE), NULL;
    return (char *)CALL("symbol", W(names[i].name), names[i].size) + offset;
}
int cudaGetSymbolAddress(void **address, const void *host) {
    return (*address = address_of(host, 0, 0)) ? SUCCESS : error;
}
int cudaGetSymbolSize(size_t *size, const void *host) {
    return index_of(host) < 0 ? failed(INVALID_SYMBOL) : (*size = names[index_of(host)].size, SUCCESS);
}
int cudaMemcpyToSymbolAsync(const void *host, const void *from, size_t size, size_t offset, int kind, void *stream) {
    void *to = address_of(host, size, offset);
    return to ? copied("cudaMemcpyToSymbol", to, 0, from, 0, size, 1, kind, stream, !stream) : error;
}
int cudaMemcpyToSymbol(const void *host, const void *from, size_t size, size_t offset, int kind) {
    return cudaMemcpyToSymbolAsync(host, from, size, offset, kind, 0);
}
int cudaMemcpyFromSymbolAsync(void *to, const void *host, size_t size, size_t offset, int kind, void *stream) {
    void *from = address_of(host, size, offset);
    return from ? copied("cudaMemcpyFromSymbol", to, 0, from, 0, size, 1, kind, stream, !stream) : error;
}
int cudaMemcpyFromSymbol(void *to, const void *host, size_t size, size_t offset, int kind) {
    return cudaMemcpyFromSymbolAsync(to, host, size, offset, kind, 0);
}
int cudaMemset(void *to, int value, size_t size) { return set("cudaMemset", to, 0, value, size, 1, 0); }
int cudaMemsetAsync(void *to, int value, size_t size, void *stream) {
    return set("cudaMemsetAsync", to, 0, value, size, 1, stream);
}
int cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
    return set("cudaMemset2D", to, pitch, value, width, height, 0);
}
int cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *start) {
    int type = CALL("kind", W(start));  // 0 none of CUDA's, 1 of the host, 2 of the device, 3 managed
    *a = (struct cudaPointerAttributes){.type = type, .device = type ? 0 : -2, .devicePointer = type ? (void *)start : 0,
                                        .hostPointer = type == cudaMemoryTypeDevice ? 0 : (void *)start};
    return SUCCESS;
}

// --- streams and events
int cudaStreamCreateWithFlags(uint64_t *stream, unsigned flags) { return *stream = CALL("cuStreamCreate", flags), SUCCESS; }
int cudaStreamCreateWithPriority(uint64_t *stream, unsigned flags, int priority) {
    return cudaStreamCreateWithFlags(stream, flags);
}
int cudaStreamCreate(uint64_t *stream) { return cudaStreamCreateWithFlags(stream, 0); }
int cudaStreamSynchronize(void *stream) { return after(CALL("cuStreamSynchronize", W(of(stream)))); }
int cudaStreamQuery(void *stream) { return CALL("stream_is_over", W(of(stream))) ? after(0) : NOT_READY; }
int cudaStreamDestroy(void *stream) { return SUCCESS; }
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return CALL("cuStreamWaitEvent", W(of(stream)), W(event), flags), SUCCESS;
}
int cudaDeviceSynchronize(void) { return cudaStreamSynchronize(0); }
int cudaEventCreateWithFlags(uint64_t *event, unsigned flags) { return *event = CALL("cuEventCreate", flags), SUCCESS; }
int cudaEventCreate(uint64_t *event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventRecord(void *event, void *stream) { return CALL("cuEventRecord", W(event), W(of(stream))), SUCCESS; }
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) { return cudaEventRecord(event, stream); }
int cudaEventSynchronize(void *event) { return after(CALL("cuEventSynchronize", W(event))); }
int cudaEventQuery(void *event) { return CALL("event_is_over", W(event)) ? after(0) : NOT_READY; }
int cudaEventElapsedTime(float *ms, void *from, void *to) {
    long ns = CALL("elapsed", W(from), W(to));
    return ns < 0 ? failed(400) : (*ms = ns / 1e6f, SUCCESS);
}
int cudaEventElapsedTime_v2(float *ms, void *from, void *to) { return cudaEventElapsedTime(ms, from, to); }
int cudaEventDestroy(void *event) { return SUCCESS; }
int cudaStreamIsCapturing(void *stream, int *status) { return *status = 0, SUCCESS; }
int cudaStreamGetDevice(void *stream, int *device) { return *device = 0, SUCCESS; }
int cudaStreamGetPriority(void *stream, int *priority) { return *priority = 0, SUCCESS; }
int cudaStreamGetFlags(void *stream, unsigned *flags) { return *flags = 0, SUCCESS; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, SUCCESS; }

// --- what a program asks of the device
int cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    if (device) return failed(INVALID_DEVICE);
    *p = (struct cudaDeviceProp){
        .name = "CPU engine of numba_deform", .major = major, .minor = minor, .multiProcessorCount = SMS,
        .warpSize = 32, .maxThreadsPerBlock = 1024, .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535}, .sharedMemPerBlock = UNASKED, .totalGlobalMem = CALL("all_memory", 0),
        .sharedMemPerBlockOptin = MOST_SHARED, .sharedMemPerMultiprocessor = SHARED_OF_SM, .regsPerBlock = 65536,
        .regsPerMultiprocessor = 65536, .maxThreadsPerMultiProcessor = THREADS, .maxBlocksPerMultiProcessor = BLOCKS,
        .totalConstMem = 65536, .l2CacheSize = 50 << 20, .unifiedAddressing = 1, .managedMemory = 1,
        .concurrentManagedAccess = 1, .cooperativeLaunch = 1, .concurrentKernels = 1, .asyncEngineCount = 3,
        .canMapHostMemory = 1, .memoryBusWidth = 5120, .memoryPoolsSupported = 1, .clusterLaunch = 1,
        .persistingL2CacheMaxSize = 32 << 20, .accessPolicyMaxWindowSize = 128 << 20,
        .reservedSharedMemPerBlock = 1024, .memPitch = 2147483647, .textureAlignment = 512};
    return SUCCESS;
}
int cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int device) { return cudaGetDeviceProperties(p, device); }
int cudaDeviceGetAttribute(int *value, int which, int device) {
    static const int answers[][2] = {
        {cudaDevAttrMaxThreadsPerBlock, 1024}, {cudaDevAttrMaxBlockDimX, 1024}, {cudaDevAttrMaxBlockDimY, 1024},
        {cudaDevAttrMaxBlockDimZ, 64}, {cudaDevAttrMaxGridDimX, 2147483647}, {cudaDevAttrMaxGridDimY, 65535},
        {cudaDevAttrMaxGridDimZ, 65535}, {cudaDevAttrMaxSharedMemoryPerBlock, UNASKED}, {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, MOST_SHARED}, {cudaDevAttrMaxRegistersPerBlock, 65536},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, SHARED_OF_SM}, {cudaDevAttrMultiProcessorCount, SMS},
        {cudaDevAttrMaxRegistersPerMultiprocessor, 65536}, {cudaDevAttrMaxThreadsPerMultiProcessor, THREADS},
        {cudaDevAttrMaxBlocksPerMultiprocessor, BLOCKS}, {cudaDevAttrL2CacheSize, 50 << 20},
        {cudaDevAttrTotalConstantMemory, 65536}, {cudaDevAttrUnifiedAddressing, 1}, {cudaDevAttrManagedMemory, 1},
        {cudaDevAttrConcurrentManagedAccess, 1}, {cudaDevAttrCooperativeLaunch, 1}, {cudaDevAttrConcurrentKernels, 1},
        {cudaDevAttrClockRate, 1980000}, {cudaDevAttrMemoryClockRate, 2619000}, {cudaDevAttrGlobalMemoryBusWidth, 5120},
        {cudaDevAttrMemoryPoolsSupported, 1}, {cudaDevAttrReservedSharedMemoryPerBlock, 1024},
        {cudaDevAttrComputeMode, 0}, {cudaDevAttrIntegrated, 0}, {cudaDevAttrGpuOverlap, 1}, {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrPciBusId, 1}, {cudaDevAttrPciDeviceId, 0}, {cudaDevAttrPciDomainId, 0}, {cudaDevAttrEccEnabled, 1},
        {cudaDevAttrMaxPitch, 2147483647}, {cudaDevAttrAsyncEngineCount, 3}, {cudaDevAttrClusterLaunch, 1}};
    if (device) return failed(INVALID_DEVICE);
    *value = which == cudaDevAttrComputeCapabilityMajor ? major : minor;
    if (which == cudaDevAttrComputeCapabilityMajor || which == cudaDevAttrComputeCapabilityMinor) return SUCCESS;
    for (unsigned i = 0; i < sizeof answers / sizeof *answers; i++)
        if (answers[i][0] == which) return *value = answers[i][1], SUCCESS;
    char text[64];
    snprintf(text, sizeof text, "device attribute %d", which);
    return CALL("absent", W(text)), failed(INVALID_VALUE);
}
int cudaGetDeviceCount(int *count) { return *count = 1, SUCCESS; }
int cudaGetDevice(int *device) { return *device = 0, SUCCESS; }
int cudaSetDevice(int device) { return device ? failed(INVALID_DEVICE) : SUCCESS; }
int cudaDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
int cudaRuntimeGetVersion(int *version) { return *version = 13000, SUCCESS; }
int cudaDeviceGetPCIBusId(char *text, int size, int device) { return strncpy(text, "0000:01:00.0", size), SUCCESS; }
int cudaDeviceGetLimit(size_t *value, int which) { return *value = 1024, SUCCESS; }
int cudaDeviceCanAccessPeer(int *can, int device, int peer) { return *can = 0, SUCCESS; }

// --- tensor maps
int cuTensorMapEncodeTiled(void *map, unsigned type, unsigned rank, void *start, const uint64_t *dims,
                           const uint64_t *strides, const unsigned *box, const unsigned *steps, unsigned interleave,
                           unsigned swizzle, unsigned promotion, unsigned fill) {
    return CALL("encode", W(map), type, rank, W(start), W(dims), W(strides), W(box), W(steps), interleave, swizzle,
                promotion, fill);
}
static int named(const char *name, void **function, int *status) {
    *function = strcmp(name, "cuTensorMapEncodeTiled") ? 0 : (void *)cuTensorMapEncodeTiled;
    if (!*function) CALL("absent", W(name));
    if (status) *status = !*function;
    return SUCCESS;
}
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, uint64_t flags, int *status) {
    return named(name, function, status);
}
int cudaGetDriverEntryPoint(const char *name, void **function, uint64_t flags, int *status) {
    return named(name, function, status);
}
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    return named(name, function, status);
}

// --- what has no effect that anybody could see here
#define NOTHING(name) int name() { return SUCCESS; }
NOTHING(cudaDeviceReset) NOTHING(cuInit) NOTHING(cudaDeviceSetLimit) NOTHING(cudaDeviceSetCacheConfig)
NOTHING(cudaProfilerStart) NOTHING(cudaProfilerStop) NOTHING(cudaSetDeviceFlags) NOTHING(cudaMemPrefetchAsync)
NOTHING(cudaMemPrefetchAsync_v2) NOTHING(cudaMemAdvise) NOTHING(cudaMemAdvise_v2) NOTHING(cudaStreamAttachMemAsync)
NOTHING(cudaCtxResetPersistingL2Cache) NOTHING(cudaStreamSetAttribute) NOTHING(cudaDeviceSetSharedMemConfig)
#pragma GCC visibility pop
