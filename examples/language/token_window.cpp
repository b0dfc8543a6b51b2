#include "token_window.h"

#include <ATen/ops/tensor.h>

namespace heed::examples {

bool append_to_window(std::vector<int64_t>& window, const std::vector<int64_t>& tokens,
                      int64_t context) {
  window.insert(window.end(), tokens.begin(), tokens.end());
  const auto size = static_cast<int64_t>(window.size());
  if (size <= context) return false;
  window.erase(window.begin(), window.end() - (context + 1) / 2);
  return true;
}

at::Tensor to_tensor(const std::vector<int64_t>& tokens, at::Device device) {
  return at::tensor(tokens).unsqueeze(0).to(device);
}

}  // namespace heed::examples
