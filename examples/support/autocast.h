#pragma once

#include <ATen/autocast_mode.h>

namespace heed::examples {

/// While it lives, matrix products on `device` are computed in `dtype`, as under Python's
/// torch.autocast; float32 changes nothing.
class Autocast {
 public:
  Autocast(at::DeviceType device, at::ScalarType dtype) : device_(device) {
    at::autocast::increment_nesting();
    if (dtype == at::kFloat) return;
    at::autocast::set_autocast_dtype(device, dtype);
    at::autocast::set_autocast_enabled(device, true);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(device_, false);
    // The converted weights are kept until here; the optimizer's step makes them out of date.
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const at::DeviceType device_;
};

}  // namespace heed::examples
