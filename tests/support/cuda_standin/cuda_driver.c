/* A stand-in for CUDA's driver library with one GPU, for what asks which driver and GPU are here.

   CUDA_STANDIN_INIT      what cuInit answers (default 0, success; 100 is CUDA_ERROR_NO_DEVICE)
   CUDA_STANDIN_VERSION   the CUDA that the driver is for (default 13000: 13.0) */
#include <stdlib.h>
#include <string.h>

enum { COMPUTE_CAPABILITY_MAJOR = 75 };

static int number(const char *variable, int otherwise) {
    const char *value = getenv(variable);
    return value ? atoi(value) : otherwise;
}

int cuInit(unsigned flags) { return number("CUDA_STANDIN_INIT", 0); }

int cuDriverGetVersion(int *version) {
    *version = number("CUDA_STANDIN_VERSION", 13000);
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = 1;
    return 0;
}

int cuDeviceGetName(char *name, int size, int gpu) {
    strncpy(name, "NVIDIA Stand-in", size);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int gpu) {
    *value = attribute == COMPUTE_CAPABILITY_MAJOR ? 8 : 6;
    return 0;
}

int cuGetErrorString(int code, const char **words) {
    *words = code == 100 ? "no CUDA-capable device is detected" : "unknown";
    return 0;
}
