/* NVML as far as ndld_flow asks it, with two GPUs that tests set by variables. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } Memory;

static unsigned number(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text ? (unsigned)atoi(text) : otherwise;
}

int nvmlInit_v2(void) { return getenv("STANDIN_FAILS") ? 999 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    return snprintf(text, length, "GPU-%04zu", (size_t)handle) < 0;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned length) {
    return snprintf(text, length, "%s", handle == (void *)1 ? "NVIDIA A100" : "NVIDIA T4") < 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) { (void)handle; memory->total = 16ull << 30; return 0; }
int nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *limit) {
    *limit = number("STANDIN_POWER", 300000) + (unsigned)(size_t)handle;
    return 0;
}
int nvmlDeviceGetApplicationsClock(void *handle, unsigned which, unsigned *clock) {
    (void)handle;
    if (getenv("STANDIN_NO_CLOCKS")) return 3;
    *clock = number("STANDIN_CLOCK", 1000) + which;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    *major = handle == (void *)1 ? 8 : 7; *minor = handle == (void *)1 ? 0 : 5; return 0;
}
int nvmlDeviceGetEccMode(void *handle, unsigned *now, unsigned *later) { (void)handle; *now = *later = 1; return 0; }
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *later) {
    (void)handle; *now = 0; *later = number("STANDIN_MIG_LATER", 0); return 0;
}
