/* A stand-in for CUDA's runtime library on host memory: what is asked for is done at once, and checked strictly.

   Environment variables make it fail as the real one does:
   CUDA_STANDIN_DEVICES   number of GPUs (default 1; 0 answers cudaErrorNoDevice)
   CUDA_STANDIN_DRIVER    "old" answers cudaErrorInsufficientDriver
   CUDA_STANDIN_MEMORY    bytes of device memory (default 8 GiB)
   CUDA_STANDIN_CAPTURE   "no" makes ending a capture fail
   CUDA_STANDIN_FAILS     name of a function that answers cudaErrorUnknown
   CUDA_STANDIN_LOG       a file that gets a line for each call worth telling
   Handles carry a mark, so that a wrong or freed one is cudaErrorInvalidResourceHandle, not a crash. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int cudaError_t;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, OLD_DRIVER = 35, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_HANDLE = 400, NOT_READY = 600, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, UNKNOWN = 999 };

typedef struct { unsigned mark; int capturing; long captured; } Stream;
typedef struct { unsigned mark; double at_ms; int recorded; } Event;
typedef struct { unsigned mark; long nodes; } Graph;
typedef struct Block { void *at; size_t bytes; int on_device; struct Block *next; } Block;

enum { STREAM = 0x57e4a001, EVENT = 0xe7e47002, GRAPH = 0x64a94003, EXEC = 0xe8ec4004, GONE = 0xdead0000 };

static Block *blocks;
static size_t used;

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void tell(const char *what, long number) {
    const char *path = getenv("CUDA_STANDIN_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s %ld\n", what, number);
    fclose(file);
}

static int asked(const char *variable, const char *word) {
    const char *value = getenv(variable);
    return value && strcmp(value, word) == 0;
}

static size_t memory(void) {
    const char *value = getenv("CUDA_STANDIN_MEMORY");
    return value ? strtoull(value, NULL, 10) : (size_t)8 << 30;
}

static int devices(void) {
    const char *value = getenv("CUDA_STANDIN_DEVICES");
    return value ? atoi(value) : 1;
}

#define MAY_FAIL if (asked("CUDA_STANDIN_FAILS", __func__)) return UNKNOWN

static Stream *stream_of(void *handle) {
    Stream *stream = handle;
    return stream && stream->mark == STREAM ? stream : NULL;
}

const char *cudaGetErrorName(cudaError_t code) {
    switch (code) {
    case SUCCESS: return "cudaSuccess";
    case INVALID_VALUE: return "cudaErrorInvalidValue";
    case OUT_OF_MEMORY: return "cudaErrorMemoryAllocation";
    case OLD_DRIVER: return "cudaErrorInsufficientDriver";
    case NO_DEVICE: return "cudaErrorNoDevice";
    case INVALID_DEVICE: return "cudaErrorInvalidDevice";
    case INVALID_HANDLE: return "cudaErrorInvalidResourceHandle";
    case NOT_READY: return "cudaErrorNotReady";
    case CAPTURE_UNSUPPORTED: return "cudaErrorStreamCaptureUnsupported";
    case CAPTURE_INVALIDATED: return "cudaErrorStreamCaptureInvalidated";
    default: return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t code) {
    switch (code) {
    case SUCCESS: return "no error";
    case INVALID_VALUE: return "invalid argument";
    case OUT_OF_MEMORY: return "out of memory";
    case OLD_DRIVER: return "CUDA driver version is insufficient for CUDA runtime version";
    case NO_DEVICE: return "no CUDA-capable device is detected";
    case INVALID_DEVICE: return "invalid device ordinal";
    case INVALID_HANDLE: return "invalid resource handle";
    case NOT_READY: return "device not ready";
    case CAPTURE_UNSUPPORTED: return "operation not permitted when stream is capturing";
    case CAPTURE_INVALIDATED: return "operation failed due to a previous error during capture";
    default: return "unknown error";
    }
}

cudaError_t cudaGetDeviceCount(int *count) {
    MAY_FAIL;
    if (asked("CUDA_STANDIN_DRIVER", "old")) return OLD_DRIVER;
    *count = devices();
    return *count ? SUCCESS : NO_DEVICE;
}

cudaError_t cudaSetDevice(int device) {
    MAY_FAIL;
    tell("device", device);
    return device >= 0 && device < devices() ? SUCCESS : INVALID_DEVICE;
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
    MAY_FAIL;
    tell("schedule", flags);
    return SUCCESS;
}

cudaError_t cudaDeviceSynchronize(void) { MAY_FAIL; return SUCCESS; }

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    MAY_FAIL;
    *total = memory();
    *free_bytes = *total - used;
    return SUCCESS;
}

static cudaError_t take(void **pointer, size_t bytes, int on_device) {
    Block *block = malloc(sizeof *block);
    block->at = malloc(bytes), block->bytes = bytes, block->on_device = on_device, block->next = blocks;
    memset(block->at, 0xcd, bytes);
    blocks = block, *pointer = block->at;
    tell("made block", on_device);
    return SUCCESS;
}

static cudaError_t give(void *pointer, int on_device) {
    for (Block **at = &blocks; *at; at = &(*at)->next)
        if ((*at)->at == pointer && (*at)->on_device == on_device) {
            Block *gone = *at;
            *at = gone->next;
            if (on_device) used -= gone->bytes;
            free(gone->at), free(gone);
            tell("gone block", on_device);
            return SUCCESS;
        }
    return pointer ? INVALID_VALUE : SUCCESS;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    MAY_FAIL;
    if (used + bytes > memory()) return OUT_OF_MEMORY;
    used += bytes;
    return take(pointer, bytes, 1);
}

cudaError_t cudaFree(void *pointer) { MAY_FAIL; return give(pointer, 1); }
cudaError_t cudaMallocHost(void **pointer, size_t bytes) { MAY_FAIL; return take(pointer, bytes, 0); }
cudaError_t cudaFreeHost(void *pointer) { MAY_FAIL; return give(pointer, 0); }

/* Whether so many bytes lie in memory that was asked for; TensorRT's stand-in asks too. */
int standin_holds(const void *at, size_t bytes, int on_device) {
    for (Block *block = blocks; block; block = block->next)
        if (at >= block->at && (char *)at + bytes <= (char *)block->at + block->bytes)
            return block->on_device == on_device;
    return 0;
}

/* Memory that was not asked for here is the host's own: CUDA copies from and to it too, only slower. */
static int host_takes(const void *at, size_t bytes) {
    for (Block *block = blocks; block; block = block->next)
        if (at >= block->at && (char *)at < (char *)block->at + block->bytes)
            return standin_holds(at, bytes, 0);
    return 1;
}

int standin_has_stream(void *handle) { return stream_of(handle) != NULL; }

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, int kind, void *handle) {
    MAY_FAIL;
    Stream *stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (kind != 1 && kind != 2) return INVALID_VALUE;
    const void *device = kind == 1 ? target : source, *host = kind == 1 ? source : target;
    if (!standin_holds(device, bytes, 1) || !host_takes(host, bytes)) return INVALID_VALUE;
    memcpy(target, source, bytes);
    tell(kind == 1 ? "h2d" : "d2h", (long)bytes);
    return SUCCESS;
}

cudaError_t cudaStreamCreateWithFlags(void **handle, unsigned flags) {
    MAY_FAIL;
    if (flags > 1) return INVALID_VALUE;
    Stream *stream = calloc(1, sizeof *stream);
    stream->mark = STREAM, *handle = stream;
    tell("stream", 1);
    return SUCCESS;
}

cudaError_t cudaStreamCreate(void **handle) { return cudaStreamCreateWithFlags(handle, 0); }

cudaError_t cudaStreamDestroy(void *handle) {
    Stream *stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    tell("gone stream", 1);
    stream->mark = GONE; /* not freed: a handle that is used again must be seen */
    return SUCCESS;
}

cudaError_t cudaStreamSynchronize(void *handle) {
    MAY_FAIL;
    Stream *stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    return stream->capturing ? CAPTURE_UNSUPPORTED : SUCCESS;
}

cudaError_t cudaEventCreateWithFlags(void **handle, unsigned flags) {
    MAY_FAIL;
    if (flags > 7) return INVALID_VALUE;
    Event *event = calloc(1, sizeof *event);
    event->mark = EVENT, *handle = event;
    tell("event", flags);
    return SUCCESS;
}

cudaError_t cudaEventDestroy(void *handle) {
    Event *event = handle;
    if (!event || event->mark != EVENT) return INVALID_HANDLE;
    tell("gone event", 1);
    event->mark = GONE;
    return SUCCESS;
}

cudaError_t cudaEventRecord(void *handle, void *stream) {
    MAY_FAIL;
    Event *event = handle;
    if (!event || event->mark != EVENT || !stream_of(stream)) return INVALID_HANDLE;
    event->at_ms = now_ms(), event->recorded = 1;
    return SUCCESS;
}

cudaError_t cudaEventSynchronize(void *handle) {
    MAY_FAIL;
    Event *event = handle;
    return event && event->mark == EVENT ? SUCCESS : INVALID_HANDLE;
}

cudaError_t cudaEventElapsedTime(float *ms, void *begin, void *end) {
    MAY_FAIL;
    Event *first = begin, *last = end;
    if (!first || !last || first->mark != EVENT || last->mark != EVENT) return INVALID_HANDLE;
    if (!first->recorded || !last->recorded) return INVALID_HANDLE;
    *ms = (float)(last->at_ms - first->at_ms);
    return SUCCESS;
}

cudaError_t cudaStreamBeginCapture(void *handle, int mode) {
    MAY_FAIL;
    if (mode < 0 || mode > 2) return INVALID_VALUE;
    Stream *stream = stream_of(handle);
    if (!stream || stream->capturing) return INVALID_HANDLE;
    stream->capturing = 1;
    return SUCCESS;
}

cudaError_t cudaStreamEndCapture(void *handle, void **graph) {
    Stream *stream = stream_of(handle);
    if (!stream || !stream->capturing) return INVALID_HANDLE;
    stream->capturing = 0;
    if (asked("CUDA_STANDIN_CAPTURE", "no")) return CAPTURE_INVALIDATED;
    Graph *made = calloc(1, sizeof *made);
    made->mark = GRAPH, *graph = made;
    return SUCCESS;
}

cudaError_t cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    MAY_FAIL;
    if (flags) return INVALID_VALUE;
    Graph *given = graph;
    if (!given || given->mark != GRAPH) return INVALID_VALUE;
    Graph *made = calloc(1, sizeof *made);
    made->mark = EXEC, *exec = made;
    tell("made graph", 1);
    return SUCCESS;
}

cudaError_t cudaGraphDestroy(void *graph) {
    Graph *given = graph;
    if (!given || given->mark != GRAPH) return INVALID_VALUE;
    given->mark = GONE;
    return SUCCESS;
}

cudaError_t cudaGraphLaunch(void *exec, void *stream) {
    MAY_FAIL;
    Graph *given = exec;
    if (!given || given->mark != EXEC || !stream_of(stream)) return INVALID_VALUE;
    tell("launch", 1);
    return SUCCESS;
}

cudaError_t cudaGraphExecDestroy(void *exec) {
    Graph *given = exec;
    if (!given || given->mark != EXEC) return INVALID_VALUE;
    tell("gone graph", 1);
    given->mark = GONE;
    return SUCCESS;
}
