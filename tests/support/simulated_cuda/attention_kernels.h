#pragma once

#include <string>

namespace heed::test {

/// What is wrong with a kernel.
enum class KernelFault {
  none,
  window,    ///< one key less
  top_left,  ///< causal from the first key
  nan_rows,  ///< NaN where a query sees no key
  throws,
};

/// Breaks a kernel while it lives, such as "aten::_flash_attention_forward".
class BrokenKernel {
 public:
  BrokenKernel(const std::string& kernel, KernelFault fault);
  ~BrokenKernel();
  BrokenKernel(const BrokenKernel&) = delete;
  BrokenKernel& operator=(const BrokenKernel&) = delete;

 private:
  const std::string kernel_;
};

}  // namespace heed::test
