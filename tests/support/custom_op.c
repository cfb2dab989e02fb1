/* A library of custom operators for ONNX Runtime: com.acme::Scaled multiplies floats by FACTOR.

   Built without ONNX Runtime's headers, which its wheels do not contain. OrtApi is a table of functions that only grows
   at its end (onnxruntime_c_api.h), so that positions in it hold for every release; the same is true of OrtCustomOp. */

#include <stddef.h>
#include <stdint.h>

#ifndef FACTOR
#define FACTOR 2
#endif

enum {
    CreateCustomOpDomain = 26,
    CustomOpDomain_Add = 27,
    AddCustomOpDomain = 28,
    GetTensorMutableData = 51,
    GetDimensionsCount = 61,
    GetDimensions = 62,
    GetTensorTypeAndShape = 65,
    KernelContext_GetInput = 90,
    KernelContext_GetOutput = 91,
    ReleaseTensorTypeAndShapeInfo = 99,
};
enum { API_VERSION = 11, FLOAT = 1, MAX_RANK = 16 };

typedef void *(*Function)();
typedef struct { const Function *(*get)(uint32_t version); } Base;

static const Function *api;

static void *create(const void *op, const Function *given, const void *info) { return (void *)op; }
static const char *name(const void *op) { return "Scaled"; }
static const char *provider(const void *op) { return NULL; }
static int type(const void *op, size_t index) { return FLOAT; }
static size_t one(const void *op) { return 1; }
static void destroy(void *kernel) {}
static int required(const void *op, size_t index) { return 0; }

static void compute(void *kernel, void *context) {
    const void *input;
    void *shape, *output;
    float *from, *to;
    int64_t dims[MAX_RANK], count = 1;
    size_t rank;
    api[KernelContext_GetInput](context, (size_t)0, &input);
    api[GetTensorTypeAndShape](input, &shape);
    api[GetDimensionsCount](shape, &rank);
    api[GetDimensions](shape, dims, rank);
    api[ReleaseTensorTypeAndShapeInfo](shape);
    api[KernelContext_GetOutput](context, (size_t)0, dims, rank, &output);
    api[GetTensorMutableData](input, &from);
    api[GetTensorMutableData](output, &to);
    for (size_t axis = 0; axis < rank; axis++) count *= dims[axis];
    for (int64_t i = 0; i < count; i++) to[i] = FACTOR * from[i];
}

static const struct {
    uint32_t version;
    void *functions[25];
} scaled = {API_VERSION, {create, name, provider, type, one, type, one, compute, destroy, required, required, required}};

void *RegisterCustomOps(void *options, const Base *base) {
    void *domain;
    api = base->get(API_VERSION);
    void *failure = api[CreateCustomOpDomain]("com.acme", &domain);
    if (!failure) failure = api[CustomOpDomain_Add](domain, &scaled);
    return failure ? failure : api[AddCustomOpDomain](options, domain);
}
