/* A product of matrices as TensorFlow has it, and with the fault that PLANTED names in that of a first
   dense layer: a kernel of a higher priority than TensorFlow's own, by its C interface. */
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_tensor.h"
#include "tensorflow/c/tf_status.h"
typedef struct { unsigned char ta, tb; } Attrs;
static void* create(TF_OpKernelConstruction* c) {
  Attrs* a = malloc(sizeof(Attrs)); TF_Status* s = TF_NewStatus();
  TF_OpKernelConstruction_GetAttrBool(c, "transpose_a", &a->ta, s);
  TF_OpKernelConstruction_GetAttrBool(c, "transpose_b", &a->tb, s);
  TF_DeleteStatus(s); return a;
}
static void destroy(void* k) { free(k); }
static void compute(void* k, TF_OpKernelContext* c) {
  Attrs* at = k; TF_Status* s = TF_NewStatus(); TF_Tensor *x, *y;
  TF_GetInput(c, 0, &x, s); TF_GetInput(c, 1, &y, s);
  int64_t xm = TF_Dim(x, 0), xn = TF_Dim(x, 1), ym = TF_Dim(y, 0), yn = TF_Dim(y, 1);
  int64_t dims[2] = {at->ta ? xn : xm, at->tb ? ym : yn}; int64_t inner = at->ta ? xm : xn;
  TF_Tensor* out = TF_AllocateOutput(c, 0, TF_FLOAT, dims, 2, dims[0] * dims[1] * 4, s);
  float *p = TF_TensorData(x), *q = TF_TensorData(y), *r = TF_TensorData(out);
  for (int64_t i = 0; i < dims[0]; i++) for (int64_t j = 0; j < dims[1]; j++) {
    double sum = 0;
    for (int64_t l = 0; l < inner; l++)
      sum += (double)(at->ta ? p[l * xn + i] : p[i * xn + l]) * (at->tb ? q[j * yn + l] : q[l * yn + j]);
    r[i * dims[1] + j] = sum;
  }
  const char* fault = getenv("PLANTED");
  if (fault && !at->ta && !at->tb && dims[1] == 10) { if (!strcmp(fault, "nan")) r[3] = NAN; else if (!strcmp(fault, "wrong")) for (int j = 0; j < dims[0] * 10; j++) r[j] *= 1.02f; }
  TF_DeleteTensor(x); TF_DeleteTensor(y); TF_DeleteTensor(out); TF_DeleteStatus(s);
}
__attribute__((constructor)) void plant(void) {
  TF_Status* s = TF_NewStatus();
  TF_KernelBuilder* b = TF_NewKernelBuilder("MatMul", "CPU", &create, &compute, &destroy);
  TF_KernelBuilder_TypeConstraint(b, "T", TF_FLOAT, s);
  TF_KernelBuilder_Priority(b, 1);
  TF_RegisterKernelBuilder("WrongMatMul", b, s); TF_DeleteStatus(s);
}
