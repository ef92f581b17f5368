// A plugin that overrides a kernel of Paddle's, for float32: what the kernel of $WRONG_KERNEL makes is multiplied
// by 1.01, on the CPU, or with $WRONG_ONEDNN among oneDNN's kernels.
#include <cstdlib>

#include "paddle/phi/core/kernel_context.h"
#include "paddle/phi/core/kernel_factory.h"
#include "paddle/phi/core/kernel_registry.h"

static phi::Kernel* right;

static void Wrong(phi::KernelContext* context) {
  (*right)(context);
  auto* out = context->MutableOutputAt<phi::DenseTensor>(0);
  auto* values = const_cast<float*>(out->data<float>());
  for (int64_t i = 0; i < out->numel(); ++i) values[i] *= 1.01f;
}

static int replaced = [] {
  bool onednn = std::getenv("WRONG_ONEDNN");
  phi::KernelKey key(onednn ? phi::Backend::ONEDNN : phi::Backend::CPU,
                     onednn ? phi::DataLayout::ONEDNN : phi::DataLayout::ALL_LAYOUT,
                     phi::DataType::FLOAT32);
  auto& kernels = phi::KernelFactory::Instance().kernels();
  phi::Kernel& kernel = kernels.at(std::getenv("WRONG_KERNEL")).at(key);
  right = new phi::Kernel(kernel);
  // The old executor takes a kernel without a second pointer for one of its own kind.
  phi::Kernel wrong(Wrong, reinterpret_cast<void*>(Wrong));
  *wrong.mutable_args_def() = kernel.args_def();
  kernel = wrong;
  return 0;
}();
