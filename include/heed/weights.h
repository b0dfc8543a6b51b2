#pragma once

#include <heed/export.h>
#include <torch/arg.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace heed {

/// How `load_weights` treats what does not fit.
struct HEED_API LoadOptions {
  /// When true, any name in a LoadReport's `missing`, `unexpected` or `misshapen` is an error.
  TORCH_ARG(bool, strict) = true;
};

/// What `load_weights` did, by name.
struct HEED_API LoadReport {
  std::vector<std::string> loaded;      ///< in both, same shape and dtype: copied
  std::vector<std::string> missing;     ///< in the module, not in the file
  std::vector<std::string> unexpected;  ///< in the file, not in the module
  std::vector<std::string> misshapen;   ///< in both, shape or dtype differs; with both, for reading
};

/// Copies the parameters and buffers of a TorchScript archive (scripted or traced, written by
/// Python's torch.jit.save) into the module's of the same name, on the module's device.
///
/// Nothing is changed unless everything fits. Throws c10::ValueError, listing every name, when the
/// file cannot be read, or, if options.strict, when a name is missing, unexpected or misshapen.
HEED_API LoadReport load_weights(torch::nn::Module& module, const std::string& path,
                                 const LoadOptions& options = {});

}  // namespace heed
