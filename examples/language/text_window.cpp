#include "text_window.h"

#include <ATen/ops/from_blob.h>

namespace heed::examples {

bool append_to_window(std::string& window, std::string_view text, int64_t context) {
  window += text;
  const auto room = static_cast<size_t>(context);
  if (window.size() <= room) return false;
  window.erase(0, window.size() - (room + 1) / 2);
  return true;
}

at::Tensor tokens_of(std::string_view text, at::Device device) {
  auto bytes = std::string(text);
  return at::from_blob(bytes.data(), {1, static_cast<int64_t>(bytes.size())}, at::kByte)
      .to(device, at::kLong);
}

}  // namespace heed::examples
